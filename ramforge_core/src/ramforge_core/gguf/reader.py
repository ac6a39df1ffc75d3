"""One file's header: magic, version, metadata and tensor infos, every number checked before it is used.

Tensor data is never read. What a file may hold is written down in ggml's docs/gguf.md; what it must not hold is
checked here, so that nothing behind this module meets a hostile number.
"""

from __future__ import annotations

import struct
from pathlib import Path
from stat import S_ISREG

from attrs import evolve, frozen

from ramforge_core.errors import GGUFError, MetadataError, ModelNotFoundError
from ramforge_core.gguf import types
from ramforge_core.gguf.cursor import CutShortError, HeaderCursor
from ramforge_core.gguf.foreign import name_foreign_file, what_to_do
from ramforge_core.gguf.infos import TensorInfo, missing_data, take_name, take_tensor_infos
from ramforge_core.gguf.metadata import FileSpan, Metadata, MetadataArray, decode_text

VERSIONS = (2, 3)
MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 24
MAX_ARRAY_DEPTH = 8
"""An array of numbers has depth 1, an array of such arrays depth 2, and so on."""
LONG_TEXT_BYTES = 1 << 16
"""Texts above this stay in the file until they are asked for."""
SMALL_ARRAY_BYTES = 1 << 12
"""Arrays of numbers up to this are kept in memory."""
# Without the name's bytes, so that a nameless key is told by its own message.
SMALLEST_PAIR_BYTES = 8 + 4 + 1
SMALLEST_INFO_BYTES = 8 + 4 + 8 + 4 + 8

_SCALAR_CODES = ("B", "b", "H", "h", "I", "i", "f", None, None, None, "Q", "q", "d")
_SCALARS = tuple(struct.Struct(f"<{code}") if code else None for code in _SCALAR_CODES)


@frozen(eq=False)
class Header:
    """What one file says. ``incomplete`` tells what is missing of it, None if nothing is."""

    path: Path
    size: int
    version: int
    alignment: int
    metadata: Metadata
    tensors: tuple[TensorInfo, ...]
    incomplete: str | None = None
    warnings: tuple[str, ...] = ()
    modified_ns: int = 0


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
            header = _read(HeaderCursor(file, path, status.st_size), allow_incomplete)
            return evolve(header, modified_ns=status.st_mtime_ns)
    except CutShortError as error:
        raise CutShortError(f"{error}{what_to_do(path)}") from error
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"there is no file {path}") from error
    except OSError as error:
        raise GGUFError(f"cannot read {path}: {error.strerror or error}") from error


def _read(cursor: HeaderCursor, allow_incomplete: bool) -> Header:
    version = _take_version(cursor)
    values: dict[str, object] = {}
    metadata = Metadata(values, str(cursor.path))
    try:
        n_tensors, n_pairs = _take_counts(cursor, capped=not allow_incomplete)
        for index in range(n_pairs):
            _take_pair(cursor, values, index, n_pairs)
        alignment = _alignment(metadata)
        infos = take_tensor_infos(cursor, n_tensors, alignment)
    except CutShortError as error:
        if not allow_incomplete:
            raise
        message = f"{error}{what_to_do(cursor.path)}"
        return Header(cursor.path, cursor.size, version, _alignment(metadata), metadata, (), message)
    incomplete = missing_data(cursor.path, cursor.size, infos)
    if incomplete is not None:
        if not allow_incomplete:
            raise incomplete
        return Header(cursor.path, cursor.size, version, alignment, metadata, infos, str(incomplete))
    warnings = _check_tail(cursor, metadata, infos, alignment)
    return Header(cursor.path, cursor.size, version, alignment, metadata, infos, warnings=warnings)


def _take_version(cursor: HeaderCursor) -> int:
    """Check magic and version; the cursor is behind both afterwards."""
    if cursor.size == 0:
        raise GGUFError(f"{cursor.path} is empty (0 bytes); fetch it again")
    head = cursor.peek(0, min(cursor.size, 64))
    if not head.startswith(MAGIC):
        raise GGUFError(name_foreign_file(cursor.path, head))
    cursor.skip(len(MAGIC))
    cursor.doing = "the version"
    version = cursor.u32()
    if version and version & 0xFFFF == 0:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        raise GGUFError(
            f"{cursor.path} is a big-endian GGUF file (version {swapped}), which is not supported; convert it to "
            f"little-endian (gguf-convert-endian of the package gguf)"
        )
    if version not in VERSIONS:
        advice = "convert the model anew" if version < VERSIONS[0] else "a newer RAMforge may read it"
        raise GGUFError(
            f"{cursor.path} is GGUF version {version}, but versions {VERSIONS[0]} and {VERSIONS[1]} are supported; "
            f"{advice}"
        )
    return version


def _take_counts(cursor: HeaderCursor, *, capped: bool) -> tuple[int, int]:
    """Numbers of tensors and of metadata keys, capped by what the rest of the file can hold (A06).

    capped : False reads on regardless, to show as much of a cut file as there is; the file's end stops that.
    """
    cursor.doing = "the header"
    n_tensors, n_pairs = cursor.u64(), cursor.u64()
    kinds = ((n_pairs, SMALLEST_PAIR_BYTES, "metadata keys"), (n_tensors, SMALLEST_INFO_BYTES, "tensors"))
    for count, smallest, what in kinds:
        if capped and count * smallest > cursor.remaining:
            raise CutShortError(
                f"{cursor.path} is damaged or cut short: it declares {count} {what}, but the {cursor.remaining} bytes "
                f"behind byte {cursor.position} can hold {cursor.remaining // smallest} at most"
            )
    return n_tensors, n_pairs


def _take_pair(cursor: HeaderCursor, values: dict[str, object], index: int, count: int) -> None:
    cursor.doing = f"metadata key {index + 1} of {count}"
    key = take_name(cursor, cursor.doing)
    if key in values:
        raise MetadataError(f"{cursor.path}: metadata key {key!r} appears twice")
    cursor.doing = f"the value of metadata key {key!r}"
    values[key] = _take_value(cursor, key, cursor.u32())


def _take_value(cursor: HeaderCursor, key: str, kind: int) -> object:
    if kind == types.STRING:
        length = cursor.u64()
        if length > LONG_TEXT_BYTES:
            span = FileSpan(cursor.path, cursor.position, length)
            cursor.skip(length)
            return span
        return decode_text(cursor.take(length))
    if kind == types.ARRAY:
        return _take_array(cursor, key)
    if kind == types.BOOL:
        byte = cursor.take(1)[0]
        if byte > 1:
            raise MetadataError(
                f"{cursor.path}: metadata key {key!r} is a bool with the value {byte}, not 0 or 1"
            )
        return byte == 1
    packed = _SCALARS[kind] if kind < len(_SCALARS) else None
    if packed is None:
        raise MetadataError(
            f"{cursor.path}: metadata key {key!r} has the unknown value type {kind}; 0 to {len(_SCALARS) - 1} are known"
        )
    value: int | float = packed.unpack(cursor.take(packed.size))[0]
    return value


def _take_array(cursor: HeaderCursor, key: str) -> MetadataArray:
    """Locate an array; only small ones of numbers are kept in memory."""
    element, count = _take_array_head(cursor, key)
    start = cursor.position
    n_bytes = count * types.SMALLEST_VALUE_BYTES[element]
    if types.NUMBER_DTYPES[element] is not None and n_bytes <= SMALL_ARRAY_BYTES:
        data = cursor.take(n_bytes)
        if element == types.BOOL:
            _check_bools(cursor, key, data)
        return MetadataArray(key, types.VALUE_TYPES[element], count, data)
    _skip_items(cursor, key, element, count, 1)
    span = FileSpan(cursor.path, start, cursor.position - start)
    return MetadataArray(key, types.VALUE_TYPES[element], count, span)


def _take_array_head(cursor: HeaderCursor, key: str) -> tuple[int, int]:
    """Element type and count of an array, checked against what the file can still hold."""
    element, count = cursor.u32(), cursor.u64()
    if element >= len(types.VALUE_TYPES):
        raise MetadataError(
            f"{cursor.path}: metadata key {key!r} is an array of the unknown element type {element}; 0 to "
            f"{len(types.VALUE_TYPES) - 1} are known"
        )
    needed = count * types.SMALLEST_VALUE_BYTES[element]
    if needed > cursor.remaining:
        raise CutShortError(
            f"{cursor.path} is damaged or cut short: metadata key {key!r} declares {count} "
            f"{types.VALUE_TYPES[element]} items, at least {needed} bytes, but the file has {cursor.remaining} bytes "
            f"behind byte {cursor.position}"
        )
    return element, count


def _skip_items(cursor: HeaderCursor, key: str, element: int, count: int, depth: int) -> None:
    if element == types.STRING:
        cursor.skip_strings(count)
    elif element == types.BOOL:
        for start in range(0, count, LONG_TEXT_BYTES):
            _check_bools(cursor, key, cursor.take(min(count - start, LONG_TEXT_BYTES)))
    elif element == types.ARRAY:
        if depth == MAX_ARRAY_DEPTH:
            raise MetadataError(
                f"{cursor.path}: metadata key {key!r} nests arrays deeper than {MAX_ARRAY_DEPTH} levels"
            )
        for _ in range(count):
            inner, length = _take_array_head(cursor, key)
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
            f"{metadata.where}: metadata key 'general.alignment' is {value}; a power of two from 1 to {MAX_ALIGNMENT} "
            f"is expected"
        )
    return value


def _check_tail(
    cursor: HeaderCursor, metadata: Metadata, infos: tuple[TensorInfo, ...], alignment: int
) -> tuple[str, ...]:
    """Look behind the last tensor: padding is fine (A11), another GGUF is not (A20), the rest is worth a warning."""
    if any(info.nbytes is None for info in infos):
        return ()
    end = max((info.end for info in infos), default=cursor.position)
    for start in (end, -(-end // alignment) * alignment):
        if start + 8 <= cursor.size and cursor.peek(start, len(MAGIC)) == MAGIC:
            if metadata.integer("split.count", 0) > 1:
                raise GGUFError(
                    f"{cursor.path} holds several gguf-split shards one behind the other (the next begins at byte "
                    f"{start}): do not concatenate shards; keep them as separate files in one folder"
                )
            raise GGUFError(
                f"{cursor.path} holds a second GGUF file from byte {start} on: two files have been joined; take them "
                f"apart"
            )
    extra = cursor.size - end
    if infos and extra >= alignment:
        return (f"{cursor.path} has {extra} bytes behind its last tensor, which nothing refers to",)
    return ()
