"""Tensor infos: names, shapes, types and offsets, checked one by one and against each other."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

from attrs import evolve, frozen

from ramforge_core.errors import GGUFError, TensorError
from ramforge_core.gguf import types
from ramforge_core.gguf.cursor import HeaderCursor
from ramforge_core.gguf.foreign import what_to_do
from ramforge_core.gguf.metadata import decode_text

MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 65535
MAX_SIZE = (1 << 63) - 1
"""Largest count or byte offset; more does not fit the signed 64-bit numbers of file systems and kernels."""


@frozen
class TensorInfo:
    """Where a tensor lies.

    shape : NumPy order, slowest dimension first (the reverse of what the file holds).
    ggml_type, type_name : the id in the file, and its lower-case ggml name or ``type 250``.
    file : index into `GGUF.files`. offset : absolute byte offset in that file.
    nbytes : bytes of data; None if the type is not known.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    type_name: str
    file: int
    offset: int
    nbytes: int | None

    @property
    def n_values(self) -> int:
        n = 1
        for dim in self.shape:
            n *= dim
        return n

    @property
    def end(self) -> int:
        """Byte offset behind the tensor; for an unknown type behind its first byte, as more is not known."""
        return self.offset + (1 if self.nbytes is None else self.nbytes)


def take_name(cursor: HeaderCursor, what: str) -> str:
    """A metadata key or a tensor name: 1 to 65535 bytes without NUL (A12)."""
    start = cursor.position
    length = cursor.u64()
    if not 0 < length <= MAX_NAME_BYTES:
        raise GGUFError(
            f"{cursor.path}: {what} at byte {start} has a name of {length} bytes; 1 to {MAX_NAME_BYTES} are allowed"
        )
    raw = cursor.take(length)
    if b"\0" in raw:
        raise GGUFError(
            f"{cursor.path}: {what} at byte {start} has a NUL byte in its name {decode_text(raw[:80])!r}"
        )
    return decode_text(raw)


def take_tensor_infos(cursor: HeaderCursor, count: int, alignment: int) -> tuple[TensorInfo, ...]:
    """All tensor infos; the cursor is behind the header afterwards.

    Raises TensorError for what no file of any length can hold: double names, overlaps, overflow, partial blocks.
    """
    relative = {}
    for index in range(count):
        info = _take_info(cursor, index, count, alignment)
        if info.name in relative:
            raise TensorError(f"{cursor.path} holds two tensors with the name {info.name!r}")
        relative[info.name] = info
    data_offset = -(-cursor.position // alignment) * alignment
    infos = tuple(evolve(info, offset=data_offset + info.offset) for info in relative.values())
    _check_overlaps(cursor.path, infos)
    return infos


def _take_info(cursor: HeaderCursor, index: int, count: int, alignment: int) -> TensorInfo:
    """One tensor info, its offset still relative to the start of the data."""
    cursor.doing = f"the info of tensor {index + 1} of {count}"
    name = take_name(cursor, f"tensor {index + 1} of {count}")
    cursor.doing = f"the info of tensor {name!r}"
    n_dims = cursor.u32()
    if not 1 <= n_dims <= MAX_DIMENSIONS:
        raise TensorError(
            f"{cursor.path}: tensor {name!r} has {n_dims} dimensions; 1 to {MAX_DIMENSIONS} are allowed"
        )
    dims = struct.unpack(f"<{n_dims}Q", cursor.take(8 * n_dims))
    ggml_type, offset = cursor.u32(), cursor.u64()
    where = f"{cursor.path}: tensor {name!r} with dimensions {list(dims)}"
    if offset % alignment:
        raise TensorError(
            f"{where} starts at offset {offset}, which is not a multiple of the alignment {alignment}"
        )
    nbytes = _data_bytes(where, dims, ggml_type)
    if offset + (nbytes or 1) > MAX_SIZE:
        raise TensorError(f"{where} lies outside the file: its offset is {offset}, more than any file holds")
    return TensorInfo(name, dims[::-1], ggml_type, types.type_name(ggml_type), 0, offset, nbytes)


def _data_bytes(where: str, dims: tuple[int, ...], ggml_type: int) -> int | None:
    """Bytes of the tensor's data, None if the type is not known. Python's integers cannot overflow (A03)."""
    n_values = 1
    for dim in dims:
        n_values *= dim
    if not 0 < n_values <= MAX_SIZE:
        raise TensorError(f"{where} has {n_values} values; 1 to {MAX_SIZE} are allowed")
    known = types.GGML_TYPES.get(ggml_type)
    if known is None:
        return None
    if dims[0] % known.block_values:
        raise TensorError(
            f"{where} has rows of {dims[0]} values, which are not whole blocks of its type {known.name} "
            f"({known.block_values} values each)"
        )
    nbytes = n_values // known.block_values * known.block_bytes
    if nbytes > MAX_SIZE:
        raise TensorError(
            f"{where} and type {known.name} would take {nbytes} bytes, more than any file holds"
        )
    return nbytes


def _check_overlaps(path: Path, infos: tuple[TensorInfo, ...]) -> None:
    for before, after in pairwise(sorted(infos, key=lambda info: info.offset)):
        if after.offset < before.end:
            raise TensorError(
                f"{path}: tensors {before.name!r} and {after.name!r} overlap: the first ends at byte {before.end}, "
                f"the second starts at byte {after.offset}"
            )


def missing_data(path: Path, size: int, infos: tuple[TensorInfo, ...]) -> TensorError | None:
    """None if all tensors lie inside the file, else the error that names the first one that does not (A01)."""
    bad = [info for info in infos if info.end > size]
    if not bad:
        return None
    first = bad[0]
    declared = "of an unknown number of bytes" if first.nbytes is None else f"of {first.nbytes} bytes"
    more = f" ({len(bad) - 1} more are concerned)" if len(bad) > 1 else ""
    return TensorError(
        f"{path} is cut short: tensor {first.name!r} {declared} starts at byte {first.offset}, but the file ends at "
        f"byte {size}, so {max(0, size - first.offset)} bytes of it are present{more}"
        f"{what_to_do(path)}"
    )
