"""The hooks, all of them. Each returns a sequence of contract objects.

A plugin module is found through an entry point of the hook's group; the entry point's *name* is the key of what it
provides, so that a run imports only what its model needs. A hook is called once, right after its module was
imported; when it raises, the plugin is dropped with a `PluginFailure` and nobody else notices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    import click

    from ramforge_core.architecture import Architecture
    from ramforge_core.backend import Backend
    from ramforge_core.quant import QuantFormat
    from ramforge_core.sources import ModelSource
    from ramforge_core.tokenizer import Tokenizer

hookspec = pluggy.HookspecMarker("ramforge")
hookimpl = pluggy.HookimplMarker("ramforge")


@hookspec
def ramforge_architectures() -> Sequence[Architecture]:  # type: ignore[empty-body]
    """Architectures; entry-point name: ``general.architecture``."""


@hookspec
def ramforge_quant_formats() -> Sequence[QuantFormat]:  # type: ignore[empty-body]
    """Quant formats; entry-point name: the lower-case ggml name (``q4_k``)."""


@hookspec
def ramforge_tokenizers() -> Sequence[type[Tokenizer]]:  # type: ignore[empty-body]
    """Tokenizer classes; entry-point name: ``tokenizer.ggml.model``."""


@hookspec
def ramforge_backends() -> Sequence[Backend]:  # type: ignore[empty-body]
    """Compute backends; entry-point name: what ``--backend`` takes."""


@hookspec
def ramforge_model_sources() -> Sequence[ModelSource]:  # type: ignore[empty-body]
    """Places that ``ramforge pull`` fetches from; entry-point name: the source's key."""


@hookspec
def ramforge_commands() -> Sequence[click.Command]:  # type: ignore[empty-body]
    """Commands of ``ramforge``; entry-point name: the command's name."""
