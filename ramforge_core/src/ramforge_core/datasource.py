"""The data source: the one place that reads tensor bytes."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from ramforge_core.errors import GGUFError
from ramforge_core.memory import PAGE
from ramforge_core.residency import Read

_READ_BYTES = 16 << 20
_POPULATE_READ = 22
"""madvise(2), Linux 5.14: fault pages in, and return an error where touching them would be a SIGBUS."""


@frozen(eq=False)
class MappedExtent:
    """Bytes of a file from ``offset`` on as memory that is not copied; made by `DataSource.map`."""

    file: int
    offset: int
    pages: mmap.mmap = field(repr=False)

    def view(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Read-only uint8 (nbytes,) from byte ``offset`` of the file; keeps the mapping alive."""
        return np.frombuffer(self.pages, np.uint8, nbytes, offset - self.offset)


@define(eq=False)
class DataSource:
    """Reads extents of a model's files, buffered or past the page cache. Safe from several threads.

    direct : whether windows are read with O_DIRECT; turns False by itself for a file whose file system refuses it,
        and then what was read is dropped from the page cache again. None tries.
    Use as a context manager, or call `close`, twice if you like.
    """

    paths: Sequence[Path]
    direct: bool = True
    known: Sequence[tuple[int, int]] | None = None
    """Size and time of the last change of each file (ns) as its header was read; None: as it is now."""
    mapped: bool = field(default=False, init=False)
    """Whether somebody uses mapped pages, which change when the file does: whoever does says so here."""
    _plain: dict[int, int] = field(factory=dict, init=False, repr=False)
    _direct: dict[int, int] = field(factory=dict, init=False, repr=False)
    _refused: set[int] = field(factory=set, init=False, repr=False)
    """Files whose direct descriptor turned out not to serve. It stays open: other threads may be reading through it."""
    _seen: dict[int, tuple[int, int]] = field(factory=dict, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        try:
            for i, path in enumerate(self.paths):
                with _io_errors(path, "cannot open the file"):
                    self._plain[i] = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
                self._seen[i] = self.known[i] if self.known else self._look(i)
                if self.direct and hasattr(os, "O_DIRECT"):
                    with contextlib.suppress(OSError):
                        self._direct[i] = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except BaseException:
            self.close()
            raise

    def read_into(self, file: int, offset: int, out: NDArray[np.uint8]) -> None:
        """Fill ``out`` from byte ``offset`` of file number ``file``, through the page cache.

        Raises GGUFError on a short read or an I/O error.
        """
        view, done = out.data, 0
        with _io_errors(self.paths[file], f"cannot read {out.size} bytes at byte {offset}"):
            while done < len(view):
                count = os.preadv(self._plain[file], [view[done : done + _READ_BYTES]], offset + done)
                if not count:
                    raise self._short(file, offset, out.size, done)
                done += count

    def map(self, file: int, offset: int, nbytes: int) -> MappedExtent | None:
        """Map an extent, rounded outward to pages, read-only. `fetch` its bytes before they are touched.

        None where the system maps no files, or cannot tell of errors other than by a signal.
        """
        if sys.platform != "linux":
            return None
        start = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        self._check_end(file, offset, nbytes)
        try:
            pages = mmap.mmap(
                self._plain[file],
                offset + nbytes - start,
                flags=mmap.MAP_PRIVATE,
                prot=mmap.PROT_READ,
                offset=start,
            )
            pages.madvise(_POPULATE_READ, 0, 0)
        except OSError:
            return None
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)  # for what the page cache does not have yet
        return MappedExtent(file, start, pages)

    def fetch(self, extent: MappedExtent, offset: int, nbytes: int) -> None:
        """Bring bytes of a mapped extent into memory, from byte ``offset`` of the file. Raises as `read_into`."""
        first = (offset - extent.offset) // mmap.PAGESIZE * mmap.PAGESIZE
        with _io_errors(self.paths[extent.file], f"cannot read {nbytes} bytes at byte {offset}"):
            try:
                extent.pages.madvise(_POPULATE_READ, first, offset - extent.offset + nbytes - first)
            except OSError as error:
                self._check_end(extent.file, offset, nbytes)
                raise OSError(errno.EIO, os.strerror(errno.EIO)) from error

    def read_window(self, read: Read, out: NDArray[np.uint8]) -> None:
        """Fill a page-aligned window, uint8 (read.nbytes,), without leaving anything in the page cache.

        The window may reach past the end of the file, its pieces may not. Raises GGUFError.
        """
        needed = max(start + nbytes for _, start, nbytes in read.pieces)
        view, done, path = out.data, 0, self.paths[read.file]
        with _io_errors(path, f"cannot read {read.nbytes} bytes at byte {read.offset}"):
            while done < needed:
                count = self._read(read, view, done)
                if not count:
                    raise self._short(read.file, read.offset, needed, done)
                done += count

    def _read(self, read: Read, view: memoryview, done: int) -> int:
        descriptor = self._direct.get(read.file)
        if descriptor is not None and read.file not in self._refused and done % PAGE == 0:
            try:
                return os.preadv(descriptor, [view[done:]], read.offset + done)
            except OSError as error:
                if error.errno != errno.EINVAL:  # this file system wants no direct reads after all
                    raise
                self._refused.add(read.file)
        count = os.preadv(self._plain[read.file], [view[done:]], read.offset + done)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._plain[read.file], read.offset + done, count, os.POSIX_FADV_DONTNEED)
        return count

    def forget(self, read: Read) -> None:
        """Drop a window from the page cache, where the system can, so that reading it asks the disk."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._plain[read.file], read.offset, read.nbytes, os.POSIX_FADV_DONTNEED)

    def check_unchanged(self) -> None:
        """Raises GGUFError if a file was written to since it was opened: its header may no longer fit."""
        for i, path in enumerate(self.paths):
            if self._look(i) != self._seen[i]:
                raise GGUFError(f"{path}: the file was changed while the model was in use; open it again")

    @property
    def is_direct(self) -> bool:
        """Whether windows of every file are read past the page cache."""
        return len(self._direct) == len(self._plain) and not self._refused

    def _look(self, file: int) -> tuple[int, int]:
        facts = os.fstat(self._plain[file])
        return facts.st_size, facts.st_mtime_ns

    def _check_end(self, file: int, offset: int, nbytes: int) -> None:
        size = os.fstat(self._plain[file]).st_size
        if offset + nbytes > size:
            raise self._short(file, offset, nbytes, max(0, size - offset))

    def _short(self, file: int, offset: int, expected: int, got: int) -> GGUFError:
        end = min(offset + got, os.fstat(self._plain[file]).st_size)
        return GGUFError(
            f"{self.paths[file]}: ends at byte {end}, but {expected} bytes were expected from byte {offset}; "
            "the file is cut short or has changed"
        )

    def close(self) -> None:
        for descriptor in (*self._plain.values(), *self._direct.values()):
            os.close(descriptor)
        self._plain.clear()
        self._direct.clear()

    def __enter__(self) -> DataSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def _io_errors(path: Path, what: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
    try:
        yield
    except OSError as error:
        raise GGUFError(f"{path}: {what}: {error.strerror or error}") from error
