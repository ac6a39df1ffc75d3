"""RAMforge core: contracts, GGUF reader, plugin host and engine. Importing it costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ramforge_core.api import LanguageModel, open, open_tokenizer
    from ramforge_core.errors import RamforgeError

__all__ = ["LanguageModel", "RamforgeError", "__version__", "open", "open_tokenizer"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ramforge_core' has no attribute {name!r}")
    from ramforge_core import api, errors

    return getattr(api, name, None) or getattr(errors, name)
