"""Writes small GGUF files for tests, sound ones and faulty ones.

Shares no code with the reader, so that a mistake in one does not hide in the other. Layout: ggml docs/gguf.md.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

Tensors = Mapping[str, tuple[int, Sequence[int], bytes]]
"""Name to (ggml type id, shape in NumPy order, data)."""

_IDS = {
    "uint8": 0,
    "int8": 1,
    "uint16": 2,
    "int16": 3,
    "uint32": 4,
    "int32": 5,
    "float32": 6,
    "bool": 7,
    "string": 8,
    "array": 9,
    "uint64": 10,
    "int64": 11,
    "float64": 12,
}
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def write_gguf(
    path: str | PathLike[str],
    metadata: Mapping[str, object],
    tensors: Tensors | None = None,
    *,
    version: int = 3,
    alignment: int = 32,
    kinds: Mapping[str, str] | None = None,
    order: str = "<",
) -> Path:
    """Write one file and return its path; the arguments are those of `gguf_bytes`."""
    path = Path(path)
    path.write_bytes(
        gguf_bytes(metadata, tensors, version=version, alignment=alignment, kinds=kinds, order=order)
    )
    return path


def gguf_bytes(
    metadata: Mapping[str, object],
    tensors: Tensors | None = None,
    *,
    version: int = 3,
    alignment: int = 32,
    kinds: Mapping[str, str] | None = None,
    order: str = "<",
) -> bytes:
    """A whole file.

    metadata : values are str, bytes, bool, int, float, NumPy arrays (dtype kept) or lists of one kind. Integers are
        written as uint32 if they fit, else as int32, uint64 or int64; floats as float32.
    alignment : written to ``general.alignment`` when it is not 32.
    kinds : value type by key, where another one is wanted (``"int64"``; for a list that of its items).
    order : ``<`` or ``>``, the byte order of all numbers of the header.
    """
    pairs = dict(metadata)
    if alignment != 32:
        pairs.setdefault("general.alignment", alignment)
    packed = [pack_pair(key, value, (kinds or {}).get(key), order=order) for key, value in pairs.items()]
    infos, data = [], bytearray()
    for name, (ggml_type, shape, raw) in (tensors or {}).items():
        data += bytes(-len(data) % alignment)
        infos.append(pack_info(name, list(shape)[::-1], ggml_type, len(data), order=order))
        data += raw
    return raw_gguf(packed, infos, data, version=version, alignment=alignment, order=order)


def raw_gguf(
    pairs: Sequence[bytes] = (),
    infos: Sequence[bytes] = (),
    data: bytes | bytearray = b"",
    *,
    version: int = 3,
    alignment: int = 32,
    n_tensors: int | None = None,
    n_pairs: int | None = None,
    order: str = "<",
) -> bytes:
    """A file from packed parts, for faults that no sound writer makes: other counts, odd offsets, double keys."""
    counts = (len(infos) if n_tensors is None else n_tensors, len(pairs) if n_pairs is None else n_pairs)
    head = b"GGUF" + struct.pack(f"{order}IQQ", version, *counts) + b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % alignment) + data if infos else head


def pack_text(text: str | bytes, *, order: str = "<") -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack(f"{order}Q", len(raw)) + raw


def pack_pair(key: str | bytes, value: object, kind: str | None = None, *, order: str = "<") -> bytes:
    """One key with its value."""
    kind_id, payload = _pack_value(value, kind, order)
    return pack_raw_pair(key, kind_id, payload, order=order)


def pack_raw_pair(key: str | bytes, kind_id: int, payload: bytes, *, order: str = "<") -> bytes:
    """One key with any value type id and any bytes behind it."""
    return pack_text(key, order=order) + struct.pack(f"{order}I", kind_id) + payload


def pack_info(
    name: str | bytes,
    dims: Sequence[int],
    ggml_type: int,
    offset: int,
    *,
    n_dims: int | None = None,
    order: str = "<",
) -> bytes:
    """One tensor info; ``dims`` in the order of the file, fastest first."""
    count = len(dims) if n_dims is None else n_dims
    return (
        pack_text(name, order=order)
        + struct.pack(f"{order}I", count)
        + struct.pack(f"{order}{len(dims)}Q", *dims)
        + struct.pack(f"{order}IQ", ggml_type, offset)
    )


def _pack_value(value: object, kind: str | None, order: str) -> tuple[int, bytes]:
    if isinstance(value, np.ndarray):
        name = kind or value.dtype.name
        raw = value.astype(np.dtype(f"{order}{np.dtype(name).str[1:]}")).tobytes()
        return _IDS["array"], struct.pack(f"{order}IQ", _IDS[name], value.size) + raw
    if isinstance(value, (list, tuple)):
        return _IDS["array"], _pack_items(list(value), kind, order)
    if isinstance(value, (str, bytes)):
        return _IDS["string"], pack_text(value, order=order)
    kind_id = _IDS[kind or _scalar_kind([value])]
    return kind_id, struct.pack(f"{order}{_CODES[kind_id]}", value)


def _pack_items(items: list[Any], kind: str | None, order: str) -> bytes:
    """Element type, count and items of an array."""
    if items and all(isinstance(item, (list, tuple)) for item in items):
        kind_id, packed = _IDS["array"], b"".join(_pack_items(list(item), kind, order) for item in items)
    elif all(isinstance(item, (str, bytes)) for item in items) and kind in (None, "string"):
        kind_id, packed = _IDS["string"], b"".join(pack_text(item, order=order) for item in items)
    else:
        kind_id = _IDS[kind or _scalar_kind(items)]
        packed = struct.pack(f"{order}{len(items)}{_CODES[kind_id]}", *items)
    return struct.pack(f"{order}IQ", kind_id, len(items)) + packed


def _scalar_kind(items: list[Any]) -> str:
    if all(isinstance(item, (bool, np.bool_)) for item in items):
        return "bool"
    if any(isinstance(item, (float, np.floating)) for item in items):
        return "float32"
    low, high = min(items), max(items)
    for name, least, most in (
        ("uint32", 0, 2**32 - 1),
        ("int32", -(2**31), 2**31 - 1),
        ("uint64", 0, 2**64 - 1),
        ("int64", -(2**63), 2**63 - 1),
    ):
        if least <= low and high <= most:
            return name
    raise ValueError(f"{low}..{high} fits no integer type of GGUF")
