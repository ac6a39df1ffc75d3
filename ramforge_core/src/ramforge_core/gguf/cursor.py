"""A forward cursor over the header of a file: buffered reads that grow, checked against the file's size."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from ramforge_core.errors import GGUFError

FIRST_BLOCK_BYTES = 1 << 16
LARGEST_BLOCK_BYTES = 1 << 20
"""Reads start small, for headers of small models, and double up to this, for large vocabularies."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class CutShortError(GGUFError):
    """The file ends before its header or its tensors do."""


class HeaderCursor:
    """Reads values one after the other and never past the end of the file.

    doing : what is being read, for messages; the reader keeps it up to date.
    """

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self._file = file
        self._block = FIRST_BLOCK_BYTES
        self._buffer = b""
        self._base = 0
        self._at = 0
        self.path = path
        self.size = size
        self.doing = "the header"

    @property
    def position(self) -> int:
        """Byte offset in the file of what is read next."""
        return self._base + self._at

    @property
    def remaining(self) -> int:
        return self.size - self.position

    def cut_short(self, wanted: int) -> CutShortError:
        return CutShortError(
            f"{self.path} is cut short: {self.doing} needs {wanted} bytes at byte {self.position}, but the file "
            f"ends at byte {self.size}"
        )

    def peek(self, offset: int, n_bytes: int) -> bytes:
        """Bytes elsewhere in the file, fewer at its end; the position stays."""
        self._file.seek(offset)
        return self._file.read(n_bytes)

    def _fill(self, wanted: int) -> None:
        """Make ``wanted`` bytes available at the current position."""
        if wanted > self.remaining:
            raise self.cut_short(wanted)
        start = self.position
        held = self._buffer[self._at :]
        self._file.seek(start + len(held))
        parts, have = [held], len(held)
        while have < wanted:
            part = self._file.read(max(self._block, wanted - have))
            if not part:
                self.size = start + have
                raise self.cut_short(wanted)
            parts.append(part)
            have += len(part)
        self._block = min(2 * self._block, LARGEST_BLOCK_BYTES)
        self._buffer, self._base, self._at = b"".join(parts), start, 0

    def take(self, n_bytes: int) -> bytes:
        if self._at + n_bytes > len(self._buffer):
            self._fill(n_bytes)
        data = self._buffer[self._at : self._at + n_bytes]
        self._at += n_bytes
        return data

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def skip(self, n_bytes: int) -> None:
        if n_bytes > self.remaining:
            raise self.cut_short(n_bytes)
        self._at += n_bytes

    def skip_strings(self, count: int) -> None:
        """Walk over ``count`` strings, each behind its length. The hot loop of opening a model."""
        unpack = _U64.unpack_from
        done = 0
        while done < count:
            if self._at + 8 > len(self._buffer):
                self._fill(8)
            buffer, at = self._buffer, self._at
            first = done
            try:
                for _ in range(first, count):
                    at += 8 + unpack(buffer, at)[0]
                    done += 1
            except (struct.error, OverflowError):
                pass  # the next length lies beyond this buffer, or beyond everything
            self._at = at
            if self.remaining < 0:
                raise CutShortError(
                    f"{self.path} is cut short: string {done} of {count} in {self.doing} would end at byte "
                    f"{self.position}, but the file ends at byte {self.size}"
                )
