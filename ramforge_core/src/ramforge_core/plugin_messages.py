"""What is said of plugins: which package to try, what is broken, who collides. Knows no registry, imports no plugin."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ramforge_core.discovery import PluginEntry, PluginFailure, normalise
from ramforge_core.errors import DuplicatePluginError, PluginLoadError

NOUNS = {
    "architectures": "architecture",
    "quants": "quant format",
    "tokenizers": "tokenizer",
    "backends": "backend",
    "sources": "model source",
    "commands": "command",
}
PREFIXES = {
    "architectures": "ramforge-arch-",
    "quants": "ramforge-quant-",
    "tokenizers": "ramforge-tokenizer-",
    "backends": "ramforge-backend-",
}
FAMILIES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "architectures": {
        "ramforge-arch-gemma": ("gemma2", "gemma3"),
        "ramforge-arch-qwen": ("qwen2", "qwen3"),
        "ramforge-arch-qwen-moe": ("qwen2moe", "qwen3moe"),
    },
    "quants": {
        "ramforge-quant-bits": ("q1_0", "q2_0"),
        "ramforge-quant-float": ("f32", "f16", "bf16"),
        "ramforge-quant-fp4": ("mxfp4", "nvfp4"),
        "ramforge-quant-iq": (
            *("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s"),
            *("iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs"),
        ),
        "ramforge-quant-legacy": ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0"),
        "ramforge-quant-k": ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_k"),
    },
    "tokenizers": {"ramforge-tokenizer-bpe": ("gpt2",), "ramforge-tokenizer-spm": ("llama",)},
}
"""First-party distributions that are not named after their keys."""

_PLAIN_KEY = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")


def package_for(kind: str, key: str) -> str | None:
    """The name of the package that provides, or would provide, this key; None if no package could be named so.

    A key may come from a file, which may hold anything: nothing but a plain name becomes advice.
    """
    if not _PLAIN_KEY.fullmatch(key):
        return None
    for package, keys in FAMILIES.get(kind, {}).items():
        if key in keys:
            return package
    prefix = PREFIXES.get(kind)
    return prefix + normalise(key) if prefix else None


def shown(key: str) -> str:
    """A key in quotes, without what could steer a terminal, and not a page of it: files hold anything."""
    return repr(key if len(key) <= 80 else f"{key[:80]}...")


def broken(failure: PluginFailure) -> PluginLoadError:
    """The error that a failure is for whoever asked for the plugin."""
    what = f" ({NOUNS[failure.kind]} {failure.name!r})" if failure.kind else ""
    return PluginLoadError(
        f"plugin {failure.distribution} {failure.version}{what} cannot be used: {failure.why}"
    )


def duplicate(entries: tuple[PluginEntry, ...]) -> DuplicatePluginError:
    """The error that several providers of one key are."""
    first = entries[0]
    providers = " and ".join(dict.fromkeys(e.provider for e in entries))
    return DuplicatePluginError(
        f"{NOUNS[first.kind]} {first.key!r} is provided by {providers}; uninstall one, or name in "
        f"RAMFORGE_PLUGINS the distributions that are allowed"
    )
