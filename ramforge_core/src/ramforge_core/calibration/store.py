"""The memory of measurements: one JSON file in the cache directory. What is damaged in it is measured anew."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ramforge_core.pull import cache_dir

VERSION = 2
"""Raised when a measurement is made or used in another way: older ones are then forgotten."""

Rate = TypeVar("Rate")


class CalibrationStore:
    """Measurements by kind (``disk``, ``compute``) and key. Several processes may use it: the last write holds."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_dir() / "calibration.json"

    def get(self, kind: str, key: str, parse: Callable[[Mapping[str, Any]], Rate]) -> Rate | None:
        """What is remembered, or None. parse : raises ValueError, KeyError or TypeError for what is damaged."""
        try:
            return parse(self._load()[kind][key])
        except (KeyError, TypeError, ValueError):
            return None

    def put(self, kind: str, key: str, facts: Mapping[str, Any]) -> None:
        """Remember; a folder that cannot be written costs a log line, since it can be measured again."""
        from ramforge_core.files import atomic_write  # whose imports take memory, see `compute_key`

        known = self._load()
        of_kind = known.get(kind)
        known[kind] = {**(of_kind if isinstance(of_kind, dict) else {}), key: dict(facts)}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.path) as out:
                out.write(json.dumps({**known, "version": VERSION}, indent=2).encode() + b"\n")
        except OSError as error:
            logging.getLogger("ramforge").info("the calibration is not remembered: %s", error)

    def _load(self) -> dict[str, Any]:
        try:
            known = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return known if isinstance(known, dict) and known.get("version") == VERSION else {}
