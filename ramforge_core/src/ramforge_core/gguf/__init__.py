"""The GGUF reader: the one place that turns bytes into names, shapes, types and offsets.

Header only: tensor data is neither read nor mapped. See `open_gguf`.
"""

from __future__ import annotations

from ramforge_core.gguf.infos import TensorInfo
from ramforge_core.gguf.metadata import Metadata, MetadataArray, StringTable
from ramforge_core.gguf.model import GGUF, open_gguf
from ramforge_core.gguf.types import GGML_TYPES, REMOVED_TYPES, GgmlType, type_label, type_name

__all__ = [
    "GGML_TYPES",
    "GGUF",
    "REMOVED_TYPES",
    "GgmlType",
    "Metadata",
    "MetadataArray",
    "StringTable",
    "TensorInfo",
    "open_gguf",
    "type_label",
    "type_name",
]
