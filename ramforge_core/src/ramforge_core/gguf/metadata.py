"""The metadata of a model: typed access to the key/value part of a header.

Scalars are Python values. Arrays stay where they are, in the file, until somebody asks for them, and are then
decoded in bulk: a vocabulary of 256k tokens costs nothing to those who do not need it.
"""

from __future__ import annotations

import enum
import struct
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, overload

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from ramforge_core.errors import GGUFError, MetadataError
from ramforge_core.gguf import types

T = TypeVar("T")


class _Missing(enum.Enum):
    MISSING = enum.auto()


_MISSING: Final = _Missing.MISSING
_U64 = struct.Struct("<Q")
_ARRAY_HEAD = struct.Struct("<IQ")


@frozen
class FileSpan:
    """Bytes of a header that are left in the file until they are wanted."""

    path: Path
    offset: int
    nbytes: int

    def read(self, limit: int | None = None) -> bytes:
        """The bytes, or the first ``limit`` of them. Raises GGUFError when the file no longer holds them."""
        wanted = self.nbytes if limit is None else min(limit, self.nbytes)
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(wanted)
        except OSError as error:
            raise GGUFError(f"cannot read {self.path}: {error.strerror or error}") from error
        if len(data) != wanted:
            raise GGUFError(
                f"{self.path} has changed since it was opened: {wanted} bytes of metadata expected at byte "
                f"{self.offset}, got {len(data)}; open it again"
            )
        return data


Payload = bytes | FileSpan


def payload_bytes(payload: Payload) -> bytes:
    return payload if isinstance(payload, bytes) else payload.read()


def decode_text(data: bytes) -> str:
    r"""UTF-8 to text; a byte that is not UTF-8 becomes ``\xNN``, so that any text can be shown (A36)."""
    return data.decode("utf-8", "backslashreplace")


@frozen(eq=False)
class StringTable:
    """Many byte strings in two objects.

    blob : all strings joined. offsets : int64 (n + 1,); string i is ``blob[offsets[i]:offsets[i + 1]]``.
    Raw bytes, because tokens need not be valid UTF-8.
    """

    blob: bytes = field(repr=False)
    offsets: NDArray[np.int64] = field(repr=False)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"string {index} of {n}")
        index %= n
        return self.blob[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[bytes]:
        ends = self.offsets.tolist()
        blob = self.blob
        start = 0
        for end in ends[1:]:
            yield blob[start:end]
            start = end

    @classmethod
    def from_payload(cls, data: bytes, count: int) -> StringTable:
        """From strings as a file holds them, each behind its length as uint64."""
        unpack = _U64.unpack_from
        at = 0
        begins = array("q", bytes(8 * (count + 1)))
        try:
            for i in range(count):
                begins[i] = at
                at += 8 + unpack(data, at)[0]
        except (struct.error, OverflowError) as error:
            raise GGUFError(
                f"string {i} of {count} runs past the end of its array ({len(data)} bytes)"
            ) from error
        if at != len(data):
            raise GGUFError(f"{count} strings take {at} bytes, but their array has {len(data)}")
        begins[count] = at
        prefixes = np.frombuffer(begins, np.int64)
        keep = np.ones(len(data), np.bool_)
        for byte in range(8):
            keep[prefixes[:-1] + byte] = False
        blob = np.frombuffer(data, np.uint8)[keep].tobytes()
        return cls(blob, prefixes - 8 * np.arange(count + 1, dtype=np.int64))


@frozen(eq=False)
class MetadataArray:
    """An array value: its length is known, its items are decoded when asked for.

    element_type : one of `VALUE_TYPES`, such as ``int32``, ``string`` or ``array``.
    """

    key: str
    element_type: str
    count: int
    payload: Payload = field(repr=False)

    def __len__(self) -> int:
        return self.count

    @property
    def nbytes(self) -> int:
        """Bytes that the items take in the file."""
        return len(self.payload) if isinstance(self.payload, bytes) else self.payload.nbytes

    def to_numpy(self) -> NDArray[Any]:
        """Numbers or booleans as a read-only array (count,) of the stored type. Raises MetadataError for others."""
        dtype = types.NUMBER_DTYPES[types.VALUE_TYPES.index(self.element_type)]
        if dtype is None:
            raise MetadataError(
                f"metadata key {self.key!r} is an array of {self.element_type}, not of numbers"
            )
        return np.frombuffer(payload_bytes(self.payload), dtype)

    def strings(self) -> StringTable:
        """Strings as raw bytes. Raises MetadataError when the items are something else."""
        if self.element_type != "string" and self.count:
            raise MetadataError(
                f"metadata key {self.key!r} is an array of {self.element_type}, not of strings"
            )
        return StringTable.from_payload(payload_bytes(self.payload), self.count)

    def to_list(self) -> list[Any]:
        """Items as Python values; strings as text with bytes that are not UTF-8 escaped; nested arrays as lists."""
        if self.element_type == "string":
            return [decode_text(item) for item in self.strings()]
        if self.element_type == "array":
            return _decode_arrays(payload_bytes(self.payload), 0, self.count)[0]
        return list(self.to_numpy().tolist())


def _decode_arrays(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    """``count`` arrays from ``data``, and where they end. The reader has checked lengths and depth already."""
    out: list[Any] = []
    for _ in range(count):
        element, length = _ARRAY_HEAD.unpack_from(data, at)
        at += _ARRAY_HEAD.size
        if element == types.ARRAY:
            items, at = _decode_arrays(data, at, length)
        elif element == types.STRING:
            items = []
            for _ in range(length):
                end = at + 8 + _U64.unpack_from(data, at)[0]
                items.append(decode_text(data[at + 8 : end]))
                at = end
        else:
            numbers = np.frombuffer(data, types.NUMBER_DTYPES[element], length, at)
            items, at = numbers.tolist(), at + numbers.nbytes
        out.append(items)
    return out, at


class Metadata(Mapping[str, object]):
    """Keys and values of a header. Scalars are int, float, bool or str; arrays are `MetadataArray`.

    The typed getters raise MetadataError that names the key when it is missing (unless a default is given) or when
    it holds something of another kind. Integers of all widths are the same kind (A14).
    """

    def __init__(self, values: Mapping[str, object], where: str = "memory") -> None:
        self._values = values
        self.where = where

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Metadata:
        """Metadata in memory. Lists hold values of one kind: bool, int, float, str or bytes, or lists."""
        return cls({key: _from_python(key, value) for key, value in values.items()})

    def __getitem__(self, key: str) -> object:
        value = self._values[key]
        return decode_text(value.read()) if isinstance(value, FileSpan) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __repr__(self) -> str:
        return f"<Metadata with {len(self)} keys>"

    def long_text(self, key: str, limit: int) -> tuple[int, str] | None:
        """Bytes in all and the first ``limit`` of them, of a text so long that it was left in the file; else None."""
        value = self._values[key]
        if not isinstance(value, FileSpan):
            return None
        return value.nbytes, value.read(limit).decode("utf-8", "ignore")

    def _error(self, key: str, wanted: str, value: object) -> MetadataError:
        return MetadataError(f"{self.where}: metadata key {key!r} must be {wanted}, but is {describe(value)}")

    def _get(self, key: str, kinds: tuple[type, ...], wanted: str, default: object) -> Any:
        if key not in self._values:
            if default is _MISSING:
                raise MetadataError(f"{self.where}: metadata key {key!r} ({wanted}) is missing")
            return default
        value = self[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self._error(key, wanted, value)
        return value

    @overload
    def integer(self, key: str) -> int: ...
    @overload
    def integer(self, key: str, default: T) -> int | T: ...
    def integer(self, key: str, default: Any = _MISSING) -> Any:
        return self._get(key, (int,), "an integer", default)

    @overload
    def number(self, key: str) -> float: ...
    @overload
    def number(self, key: str, default: T) -> float | T: ...
    def number(self, key: str, default: Any = _MISSING) -> Any:
        value = self._get(key, (int, float), "a number", default)
        return float(value) if value is not default else value

    @overload
    def text(self, key: str) -> str: ...
    @overload
    def text(self, key: str, default: T) -> str | T: ...
    def text(self, key: str, default: Any = _MISSING) -> Any:
        return self._get(key, (str,), "a text", default)

    @overload
    def flag(self, key: str) -> bool: ...
    @overload
    def flag(self, key: str, default: T) -> bool | T: ...
    def flag(self, key: str, default: Any = _MISSING) -> Any:
        return self._get(key, (bool,), "true or false", default)

    @overload
    def integers(self, key: str) -> list[int]: ...
    @overload
    def integers(self, key: str, default: T) -> list[int] | T: ...
    def integers(self, key: str, default: Any = _MISSING) -> Any:
        found = self._get(key, (MetadataArray,), "an array of integers", default)
        if found is default:
            return found
        if found.count == 0:
            return []
        if "int" not in found.element_type:
            raise self._error(key, "an array of integers", found)
        return found.to_list()

    def numbers_array(self, key: str) -> NDArray[Any]:
        """An array of numbers (n,), in the stored type."""
        found: MetadataArray = self._get(key, (MetadataArray,), "an array of numbers", _MISSING)
        if found.count == 0:
            return np.empty(0, np.float32)
        if found.element_type == "bool":
            raise self._error(key, "an array of numbers", found)
        return found.to_numpy()

    def strings(self, key: str) -> StringTable:
        """An array of strings, as raw bytes."""
        found: MetadataArray = self._get(key, (MetadataArray,), "an array of strings", _MISSING)
        return found.strings()


def describe(value: object) -> str:
    """A value in a message: kind and content, short."""
    if isinstance(value, MetadataArray):
        return f"an array of {value.count} {value.element_type} items"
    if isinstance(value, str) and len(value) > 40:
        return f"the text {value[:40]!r}... ({len(value)} characters)"
    return f"the {'text' if isinstance(value, str) else type(value).__name__} {value!r}"


def _from_python(key: str, value: object) -> object:
    """A Python value as the reader would have given it."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "b":
            return MetadataArray(key, "bool", value.size, value.tobytes())
        little = value.astype(value.dtype.newbyteorder("<"))
        return MetadataArray(key, value.dtype.name, value.size, little.tobytes())
    if isinstance(value, (list, tuple)):
        element, payload = encode_array(list(value))
        return MetadataArray(key, types.VALUE_TYPES[element], len(value), payload)
    if isinstance(value, bytes):
        return decode_text(value)
    if isinstance(value, np.generic):
        return value.item()
    return value


def encode_array(items: list[Any]) -> tuple[int, bytes]:
    """Element type id and items as a file holds them, without the array's own head."""
    if all(isinstance(item, (str, bytes)) for item in items):
        raw = [item.encode() if isinstance(item, str) else item for item in items]
        return types.STRING, b"".join(_U64.pack(len(item)) + item for item in raw)
    if all(isinstance(item, (list, tuple)) for item in items):
        parts = []
        for item in items:
            element, payload = encode_array(list(item))
            parts.append(_ARRAY_HEAD.pack(element, len(item)) + payload)
        return types.ARRAY, b"".join(parts)
    if all(isinstance(item, (bool, np.bool_)) for item in items):
        return types.BOOL, bytes(bytearray(map(bool, items)))
    if all(isinstance(item, (int, np.integer)) for item in items):
        return types.INT64, np.array(items, "<i8").tobytes()
    if all(isinstance(item, (int, float, np.number)) for item in items):
        return types.FLOAT64, np.array(items, "<f8").tobytes()
    raise MetadataError(
        "the items of a metadata array must be of one kind: bool, int, float, str, bytes or list"
    )
