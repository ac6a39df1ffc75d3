"""The contract of a model source: a place that models can be fetched from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

Progress = Callable[[int, "int | None"], None]
"""Called with bytes so far and bytes in all (None if unknown)."""


class ModelSource(ABC):
    """A place such as a package index or a model hub.

    key : short name of the source, which is also the entry-point name.
    name_form : how its names look when no list can hold them (``hf://owner/repo/file.gguf``); empty if it has a list.
    """

    key: ClassVar[str]
    name_form: ClassVar[str] = ""

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """Names that this source knows by heart (``smollm2``), for lists and error messages."""

    @abstractmethod
    def claims(self, name: str) -> bool:
        """Whether this source can fetch ``name``. Pure: looks at the name only."""

    @abstractmethod
    def find(self, name: str) -> Path | None:
        """A copy that is on this machine already, outside the cache; None if there is none. No network."""

    @abstractmethod
    def filename(self, name: str) -> str:
        """Relative path below the cache directory under which ``name`` is kept."""

    @abstractmethod
    def fetch(self, name: str, target: Path, progress: Progress) -> None:
        """Fetch to ``target``: checked, and moved there atomically at the end; nothing is left on failure
        but a partial file that the next call continues. Raises DownloadError.
        """
