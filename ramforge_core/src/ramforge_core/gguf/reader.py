"""One file's header: magic, version, metadata and tensor infos, every number checked before it is used.

Tensor data is never read. What a file may hold is written down in ggml's docs/gguf.md; what it must not hold is
checked here, so that nothing behind this module meets a hostile number.
"""

from __future__ import annotations

import struct
from pathlib import Path
from stat import S_ISREG

from attrs import frozen

from ramforge_core.errors import GGUFError, MetadataError, ModelNotFoundError, TensorError
from ramforge_core.gguf import types
from ramforge_core.gguf.cursor import CutShortError, HeaderCursor
from ramforge_core.gguf.foreign import byte_piece_hint, name_foreign_file
from ramforge_core.gguf.metadata import FileSpan, Metadata, MetadataArray, decode_text

VERSIONS = (2, 3)
MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 24
MAX_ARRAY_DEPTH = 8
"""An array of numbers has depth 1, an array of such arrays depth 2, and so on."""
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 65535
MAX_SIZE = (1 << 63) - 1
"""Largest count or byte offset; more does not fit the signed 64-bit numbers of file systems and kernels."""
LONG_TEXT_BYTES = 1 << 16
"""Texts above this stay in the file until they are asked for."""
SMALL_ARRAY_BYTES = 1 << 12
"""Arrays of numbers up to this are kept in memory."""
SMALLEST_PAIR_BYTES = 8 + 1 + 4 + 1
SMALLEST_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8

_SCALARS = tuple(
    struct.Struct("<" + code) if code else None
    for code in ("B", "b", "H", "h", "I", "i", "f", "", "", "", "Q", "q", "d")
)


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
    def end(self) -> int:
        """Byte offset behind the tensor; for an unknown type behind its first byte, as more is not known."""
        return self.offset + (1 if self.nbytes is None else self.nbytes)


@frozen
class Header:
    """What one file says. ``incomplete`` tells what is missing of it, None if nothing is."""

    path: Path
    size: int
    version: int
    alignment: int
    data_offset: int
    metadata: Metadata
    tensors: tuple[TensorInfo, ...]
    incomplete: str | None


def read_header(path: Path, *, allow_incomplete: bool = False) -> Header:
    """Read and check the header of one file.

    allow_incomplete : a file that is cut short gives what can be read of it, with ``Header.incomplete`` set,
        instead of an error.
    Raises GGUFError, MetadataError or TensorError on damage, ModelNotFoundError if there is no such file.
    """
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):
            raise GGUFError(f"{path} is not a regular file; give a .gguf file or a folder with one")
        with path.open("rb", buffering=0) as file:
            cursor = HeaderCursor(file, path, status.st_size)
            return _read(cursor, allow_incomplete)
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"there is no file {path}") from error
    except OSError as error:
        raise GGUFError(f"cannot read {path}: {error.strerror or error}") from error


def _read(cursor: HeaderCursor, allow_incomplete: bool) -> Header:
    version = _version(cursor)
    values: dict[str, object] = {}
    try:
        n_tensors, n_pairs = _counts(cursor, strict=not allow_incomplete)
        for i in range(n_pairs):
            _pair(cursor, values, i, n_pairs)
        metadata = Metadata(values)
        alignment = _alignment(metadata)
        raw = [_tensor_info(cursor, i, n_tensors, alignment) for i in range(n_tensors)]
    except CutShortError as error:
        message = f"{error}{byte_piece_hint(cursor.path)}"
        if not allow_incomplete:
            raise CutShortError(message) from error
        return Header(cursor.path, cursor.size, version, 0, 0, Metadata(values), (), message)
    data_offset = -(-cursor.position // alignment) * alignment
    tensors = tuple(_placed(cursor.path, info, data_offset) for info in raw)
    _check_names(cursor.path, tensors)
    _check_overlaps(cursor.path, tensors)
    incomplete = _missing_data(cursor.path, cursor.size, tensors)
    if incomplete is not None and not allow_incomplete:
        raise TensorError(incomplete)
    return Header(cursor.path, cursor.size, version, alignment, data_offset, metadata, tensors, incomplete)


def _version(cursor: HeaderCursor) -> int:
    if cursor.size == 0:
        raise GGUFError(f"{cursor.path} is empty (0 bytes); fetch it again")
    head = cursor.take(min(cursor.size, 16))
    if not head.startswith(MAGIC):
        raise GGUFError(name_foreign_file(cursor.path, head))
    if len(head) < 8:
        raise CutShortError(
            f"{cursor.path} is cut short: it ends at byte {len(head)}, before its version; fetch it again"
        )
    version = int.from_bytes(head[4:8], "little")
    if version & 0xFFFF == 0 and version:
        raise GGUFError(
            f"{cursor.path} is a big-endian GGUF file (version {int.from_bytes(head[4:8], 'big')}), which is not "
            f"supported; convert it to little-endian with gguf-convert-endian"
        )
    if version not in VERSIONS:
        raise GGUFError(
            f"{cursor.path} is GGUF version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} are supported"
            + ("; convert the model anew" if version < VERSIONS[0] else "; a newer RAMforge may read it")
        )
    cursor.rewind(8)
    return version


def _counts(cursor: HeaderCursor, strict: bool) -> tuple[int, int]:
    cursor.doing = "the header"
    n_tensors, n_pairs = cursor.u64(), cursor.u64()
    if not strict:
        return n_tensors, n_pairs  # what is there gets read; the end of the file ends the loops
    for count, smallest, what in (
        (n_pairs, SMALLEST_PAIR_BYTES, "metadata keys"),
        (n_tensors, SMALLEST_TENSOR_BYTES, "tensors"),
    ):
        if count * smallest > cursor.remaining:
            raise CutShortError(
                f"{cursor.path} declares {count} {what}, but the {cursor.remaining} bytes behind byte "
                f"{cursor.position} can hold {cursor.remaining // smallest} at most: the file is damaged or cut short"
            )
    return n_tensors, n_pairs


def _name(cursor: HeaderCursor, what: str) -> str:
    """A key or a tensor name."""
    start = cursor.position
    length = cursor.u64()
    if not 0 < length <= MAX_NAME_BYTES:
        raise GGUFError(
            f"{cursor.path}: {what} at byte {start} has a name of {length} bytes; 1 to {MAX_NAME_BYTES} are allowed"
        )
    raw = cursor.take(length)
    if b"\0" in raw:
        raise GGUFError(
            f"{cursor.path}: {what} at byte {start} has a NUL byte in its name {decode_text(raw)[:80]!r}"
        )
    return decode_text(raw)


def _pair(cursor: HeaderCursor, values: dict[str, object], index: int, count: int) -> None:
    cursor.doing = f"metadata key {index + 1} of {count}"
    key = _name(cursor, cursor.doing)
    if key in values:
        raise MetadataError(f"{cursor.path}: metadata key {key!r} appears twice")
    cursor.doing = f"the value of metadata key {key!r}"
    values[key] = _value(cursor, key, cursor.u32())


def _value(cursor: HeaderCursor, key: str, kind: int) -> object:
    if kind == types.STRING:
        length = cursor.u64()
        if length > cursor.remaining:
            raise cursor.cut_short(length)
        if length > LONG_TEXT_BYTES:
            span = FileSpan(cursor.path, cursor.position, length)
            cursor.skip(length)
            return span
        return decode_text(cursor.take(length))
    if kind == types.ARRAY:
        return _array(cursor, key)
    if kind == types.BOOL:
        byte = cursor.take(1)[0]
        if byte > 1:
            raise MetadataError(
                f"{cursor.path}: metadata key {key!r} is a bool with the value {byte}; 0 or 1 expected"
            )
        return byte == 1
    packed = _SCALARS[kind] if kind < len(_SCALARS) else None
    if packed is None:
        raise MetadataError(
            f"{cursor.path}: metadata key {key!r} has the unknown value type {kind}; known are 0 to "
            f"{len(types.VALUE_TYPES) - 1}"
        )
    value: int | float = packed.unpack(cursor.take(packed.size))[0]
    return value


def _array(cursor: HeaderCursor, key: str) -> MetadataArray:
    element, count = _array_head(cursor, key)
    start = cursor.position
    if (
        types.NUMBER_DTYPES[element] is not None
        and (count * types.SMALLEST_VALUE_BYTES[element]) <= SMALL_ARRAY_BYTES
    ):
        data = cursor.take(count * types.SMALLEST_VALUE_BYTES[element])
        if element == types.BOOL:
            _check_bools(cursor, key, data)
        return MetadataArray(key, types.VALUE_TYPES[element], count, data)
    _skip_items(cursor, key, element, count, 1)
    span = FileSpan(cursor.path, start, cursor.position - start)
    return MetadataArray(key, types.VALUE_TYPES[element], count, span)


def _array_head(cursor: HeaderCursor, key: str) -> tuple[int, int]:
    """Element type and count of an array, checked against what the file can still hold."""
    element, count = cursor.u32(), cursor.u64()
    if element >= len(types.VALUE_TYPES):
        raise MetadataError(
            f"{cursor.path}: metadata key {key!r} is an array of the unknown element type {element}; known are 0 to "
            f"{len(types.VALUE_TYPES) - 1}"
        )
    needed = count * types.SMALLEST_VALUE_BYTES[element]
    if needed > cursor.remaining:
        raise CutShortError(
            f"{cursor.path}: metadata key {key!r} declares {count} {types.VALUE_TYPES[element]} items, at least "
            f"{needed} bytes, but the file has {cursor.remaining} bytes behind byte {cursor.position}: it is damaged "
            f"or cut short"
        )
    return element, count


def _skip_items(cursor: HeaderCursor, key: str, element: int, count: int, depth: int) -> None:
    if element == types.STRING:
        cursor.skip_strings(count)
    elif element == types.BOOL:
        left = count
        while left:
            data = cursor.take(min(left, LONG_TEXT_BYTES))
            _check_bools(cursor, key, data)
            left -= len(data)
    elif element == types.ARRAY:
        if depth == MAX_ARRAY_DEPTH:
            raise MetadataError(
                f"{cursor.path}: metadata key {key!r} nests arrays deeper than {MAX_ARRAY_DEPTH} levels"
            )
        for _ in range(count):
            inner, length = _array_head(cursor, key)
            _skip_items(cursor, key, inner, length, depth + 1)
    else:
        cursor.skip(count * types.SMALLEST_VALUE_BYTES[element])


def _check_bools(cursor: HeaderCursor, key: str, data: bytes) -> None:
    if data.translate(None, b"\0\1"):
        raise MetadataError(
            f"{cursor.path}: metadata key {key!r} is an array of bools with values other than 0 and 1"
        )


def _alignment(metadata: Metadata) -> int:
    value = metadata.integer("general.alignment", DEFAULT_ALIGNMENT)
    if not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        raise MetadataError(
            f"metadata key 'general.alignment' is {value}; a power of two up to {MAX_ALIGNMENT} is expected"
        )
    return value


def _tensor_info(cursor: HeaderCursor, index: int, count: int, alignment: int) -> TensorInfo:
    """One tensor info; ``offset`` is still relative to the start of the data."""
    cursor.doing = f"the info of tensor {index + 1} of {count}"
    name = _name(cursor, f"tensor {index + 1} of {count}")
    cursor.doing = f"the info of tensor {name!r}"
    n_dims = cursor.u32()
    if not 1 <= n_dims <= MAX_DIMENSIONS:
        raise TensorError(
            f"{cursor.path}: tensor {name!r} has {n_dims} dimensions; 1 to {MAX_DIMENSIONS} are allowed"
        )
    dims = struct.unpack(f"<{n_dims}Q", cursor.take(8 * n_dims))
    ggml_type, offset = cursor.u32(), cursor.u64()
    where = f"{cursor.path}: tensor {name!r} with dimensions {list(dims)}"
    n_values = 1
    for dim in dims:
        n_values *= dim
    if not 0 < n_values <= MAX_SIZE:
        raise TensorError(f"{where} has {n_values} values; 1 to {MAX_SIZE} are allowed")
    nbytes = None
    known = types.GGML_TYPES.get(ggml_type)
    if known is not None:
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
    if offset % alignment:
        raise TensorError(
            f"{where} starts at offset {offset}, which is not a multiple of the alignment {alignment}"
        )
    if offset + (nbytes or 1) > MAX_SIZE:
        raise TensorError(f"{where} lies outside the file: its offset is {offset}, more than any file holds")
    return TensorInfo(name, dims[::-1], ggml_type, types.type_name(ggml_type), 0, offset, nbytes)


def _placed(path: Path, info: TensorInfo, data_offset: int) -> TensorInfo:
    return TensorInfo(
        info.name, info.shape, info.ggml_type, info.type_name, 0, data_offset + info.offset, info.nbytes
    )


def _check_names(path: Path, tensors: tuple[TensorInfo, ...]) -> None:
    seen = set()
    for info in tensors:
        if info.name in seen:
            raise TensorError(f"{path} holds two tensors with the name {info.name!r}")
        seen.add(info.name)


def _check_overlaps(path: Path, tensors: tuple[TensorInfo, ...]) -> None:
    ordered = sorted(tensors, key=lambda info: info.offset)
    for before, after in zip(ordered, ordered[1:], strict=False):
        if after.offset < before.end:
            raise TensorError(
                f"{path}: tensors {before.name!r} and {after.name!r} overlap: the first ends at byte {before.end}, "
                f"the second starts at byte {after.offset}"
            )


def _missing_data(path: Path, size: int, tensors: tuple[TensorInfo, ...]) -> str | None:
    """None if all tensors lie inside the file, else one sentence that names the first that does not."""
    bad = [info for info in tensors if info.end > size]
    if not bad:
        return None
    first = bad[0]
    present = max(0, size - first.offset)
    declared = "of unknown size" if first.nbytes is None else f"of {first.nbytes} bytes"
    more = f" ({len(bad) - 1} more tensors are concerned)" if len(bad) > 1 else ""
    return (
        f"{path} is cut short: tensor {first.name!r} {declared} starts at byte {first.offset}, but the file ends at "
        f"byte {size}, so {present} bytes of it are present{more}; fetch it again{byte_piece_hint(path)}"
    )
