"""Ids of tensor types and of metadata values: plain tables, no code that decodes anything."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from attrs import frozen


@frozen
class GgmlType:
    """Size facts of a tensor type: a row is whole blocks of ``block_values`` values in ``block_bytes`` bytes."""

    name: str
    block_values: int
    block_bytes: int


# Source: ggml.h (enum ggml_type) and ggml-common.h (static asserts on block structs) of llama.cpp, 0c1e57098.
GGML_TYPES: Mapping[int, GgmlType] = MappingProxyType(
    {
        0: GgmlType("f32", 1, 4),
        1: GgmlType("f16", 1, 2),
        2: GgmlType("q4_0", 32, 18),
        3: GgmlType("q4_1", 32, 20),
        6: GgmlType("q5_0", 32, 22),
        7: GgmlType("q5_1", 32, 24),
        8: GgmlType("q8_0", 32, 34),
        9: GgmlType("q8_1", 32, 36),
        10: GgmlType("q2_k", 256, 84),
        11: GgmlType("q3_k", 256, 110),
        12: GgmlType("q4_k", 256, 144),
        13: GgmlType("q5_k", 256, 176),
        14: GgmlType("q6_k", 256, 210),
        15: GgmlType("q8_k", 256, 292),
        16: GgmlType("iq2_xxs", 256, 66),
        17: GgmlType("iq2_xs", 256, 74),
        18: GgmlType("iq3_xxs", 256, 98),
        19: GgmlType("iq1_s", 256, 50),
        20: GgmlType("iq4_nl", 32, 18),
        21: GgmlType("iq3_s", 256, 110),
        22: GgmlType("iq2_s", 256, 82),
        23: GgmlType("iq4_xs", 256, 136),
        24: GgmlType("i8", 1, 1),
        25: GgmlType("i16", 1, 2),
        26: GgmlType("i32", 1, 4),
        27: GgmlType("i64", 1, 8),
        28: GgmlType("f64", 1, 8),
        29: GgmlType("iq1_m", 256, 56),
        30: GgmlType("bf16", 1, 2),
        34: GgmlType("tq1_0", 256, 54),
        35: GgmlType("tq2_0", 256, 66),
        39: GgmlType("mxfp4", 32, 17),
        40: GgmlType("nvfp4", 64, 36),
        41: GgmlType("q1_0", 128, 18),
        42: GgmlType("q2_0", 64, 18),
    }
)

REMOVED_TYPES: Mapping[int, str] = MappingProxyType(
    {
        4: "q4_2",
        5: "q4_3",
        31: "q4_0_4_4",
        32: "q4_0_4_8",
        33: "q4_0_8_8",
        36: "iq4_nl_4_4",
        37: "iq4_nl_4_8",
        38: "iq4_nl_8_8",
    }
)
"""Ids that ggml once used and gave up: no current program can read such a tensor."""

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)

VALUE_TYPES = (
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "float32",
    "bool",
    "string",
    "array",
    "uint64",
    "int64",
    "float64",
)
"""Metadata value types; the position is the id in the file. Source: ggml docs/gguf.md."""

NUMBER_DTYPES = ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?", None, None, "<u8", "<i8", "<f8")
"""NumPy dtypes as stored, by value type id."""

SMALLEST_VALUE_BYTES = (1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8)
"""The least bytes one value takes: exact for numbers, the length prefix for strings, the head for arrays."""


def type_name(ggml_type: int) -> str:
    """Lower-case ggml name (``q4_k``), or ``type 250`` for an id that is not in `GGML_TYPES`."""
    known = GGML_TYPES.get(ggml_type)
    return known.name if known else f"type {ggml_type}"


def type_label(ggml_type: int) -> str:
    """What to call a type in a message: name, bare id, or id with the note that ggml has removed it."""
    if ggml_type in REMOVED_TYPES:
        return f"type {ggml_type} ({REMOVED_TYPES[ggml_type]}, removed from ggml; the model must be converted anew)"
    return type_name(ggml_type)
