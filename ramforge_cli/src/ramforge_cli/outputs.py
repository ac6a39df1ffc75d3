"""Writing results: to stdout and to files that were asked for. What cannot be written is an error of its own."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ramforge_core.errors import RamforgeError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputError(RamforgeError, OSError):
    """The output could not be written: a full disk, a folder that takes no files."""

    reason = "output"


def write_file(file: Path, data: bytes) -> None:
    """Let ``file`` appear with this content. Raises OutputError, which names the file as it was asked for."""
    from ramforge_core.files import atomic_write

    try:
        with atomic_write(file) as out:
            out.write(data)
    except OSError as error:
        raise OutputError(f"cannot write {file}: {error.strerror or error}") from error


class _Stdout(io.FileIO):
    """The descriptor under stdout. Only here is it known that an OSError is one of the output."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:  # whoever read has seen enough: no fault
            raise
        except OSError as error:
            raise OutputError(f"cannot write to stdout: {error.strerror or error}") from error


@contextmanager
def guarded_stdout() -> Iterator[None]:
    """While the block runs, ``sys.stdout`` raises OutputError instead of OSError, where it is a file or a pipe."""
    before = sys.stdout
    buffer = getattr(before, "buffer", None)
    if not isinstance(before, io.TextIOWrapper) or not isinstance(getattr(buffer, "raw", buffer), io.FileIO):
        yield
        return
    before.flush()
    raw = _Stdout(before.fileno(), "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(
        raw if isinstance(buffer, io.FileIO) else io.BufferedWriter(raw),  # `python -u` has no buffer
        encoding=before.encoding,
        errors=before.errors,
        newline=None if sys.platform == "win32" else "\n",
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
    try:
        yield
    finally:
        sys.stdout = before
