"""Conformance suites for plugins, and helpers for tests. Needs pytest; importing this package alone imports nothing.

A plugin's test subclasses the suite of its kind and overrides its fixtures; see ``docs/conformance.md``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ramforge_core.testing.architecture import ArchitectureTests
    from ramforge_core.testing.backend import BackendTests
    from ramforge_core.testing.gguf_writer import write_gguf
    from ramforge_core.testing.quant import QuantFormatTests
    from ramforge_core.testing.tokenizer import TokenizerTests

__all__ = [
    "ArchitectureTests",
    "BackendTests",
    "QuantFormatTests",
    "TokenizerTests",
    "write_gguf",
]

_HOMES = {
    "ArchitectureTests": "architecture",
    "BackendTests": "backend",
    "QuantFormatTests": "quant",
    "TokenizerTests": "tokenizer",
    "write_gguf": "gguf_writer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
