"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ramforge_core.errors import DownloadError
from ramforge_core.sizes import format_size


@contextmanager
def atomic_write(target: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of ``target`` when the block ends well and vanishes when it does not.

    It is written in the target's own folder, because a rename across file systems is a copy. What is not a
    regular file (a pipe, a terminal) cannot be replaced and is written directly. Raises OSError.
    """
    target = Path(os.path.realpath(target))
    if target.exists() and not target.is_file():
        with target.open("wb") as stream:
            yield stream
        return
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        publish(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def publish(finished: Path, target: Path) -> None:
    """Give a file that was written in full and synced its final name, replacing what was there."""
    os.replace(finished, target)
    if os.name == "posix":  # the name is on disk only once the folder is
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def require_space(folder: Path, n_bytes: int) -> None:
    """Raises DownloadError if ``folder`` has no room for ``n_bytes`` more."""
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise DownloadError(
            f"the disk of {folder} is too full: {format_size(n_bytes)} are needed and {format_size(free)} are free; "
            "make room, or set RAMFORGE_CACHE to a folder on another disk"
        )
