"""Loading plugins, one entry point at a time and each behind a guard.

`PluginHost.load` imports, registers, calls and checks one entry point and never raises because of it: a plugin that
fails at any step is unregistered and leaves a `PluginFailure`. What follows from that is decided in `plugins.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import metadata
from inspect import isabstract
from typing import Any

import pluggy
from attrs import define, field

from ramforge_core import __version__, hookspecs
from ramforge_core.discovery import GROUPS, Phase, PluginEntry, PluginFailure, normalise

HOOKS = {
    "architectures": "ramforge_architectures",
    "quants": "ramforge_quant_formats",
    "tokenizers": "ramforge_tokenizers",
    "backends": "ramforge_backends",
    "sources": "ramforge_model_sources",
    "commands": "ramforge_commands",
}
"""Kind of plugin to the hook that provides it."""


class _Step(Exception):
    """What went wrong, and in which phase; never leaves this module."""

    def __init__(self, phase: Phase, error: BaseException) -> None:
        self.phase: Phase = phase
        self.error = error


@contextmanager
def _guard(phase: Phase) -> Iterator[None]:
    try:
        with redirect_stdout(sys.stderr):  # what a plugin prints is no part of a command's result
            yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the plugin is foreign code; a panic of Rust is no Exception
        raise _Step(phase, error) from error


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager("ramforge")
    manager.add_hookspecs(hookspecs)
    return manager


@define(eq=False)
class PluginHost:
    """Loads entry points. A module that stands under many of them is imported, registered and called once."""

    _manager: pluggy.PluginManager = field(factory=_manager, init=False)
    _provided: dict[tuple[str, str], Sequence[Any] | _Step] = field(factory=dict, init=False)

    def load(self, entry: PluginEntry) -> Any:
        """The checked contract object of an entry point, or its `PluginFailure`."""
        try:
            objects = self._objects(entry)
            with _guard("contract"):
                provided = _pick(entry, objects)
                _CHECKS[entry.kind](entry, provided)
            if entry.kind == "quants":
                with _guard("abi"):
                    _check_kernels(provided)
        except _Step as step:
            e = entry
            return PluginFailure(e.key, e.kind, e.distribution, e.version, step.phase, step.error)
        return provided

    def _objects(self, entry: PluginEntry) -> Sequence[Any]:
        """What the module's hook of this kind returns; a failure is remembered as well, never tried again."""
        known = (entry.value, entry.kind)
        if known not in self._provided:
            try:
                self._provided[known] = self._first_call(entry)
            except _Step as step:
                self._provided[known] = step
        outcome = self._provided[known]
        if isinstance(outcome, _Step):
            raise outcome
        return outcome

    def _first_call(self, entry: PluginEntry) -> Sequence[Any]:
        with _guard("version"):
            _check_requirement(entry.distribution)
        with _guard("import"):
            plugin = metadata.EntryPoint(entry.key, entry.value, GROUPS[entry.kind]).load()
        try:
            with _guard("register"):
                if not self._manager.is_registered(plugin):
                    self._manager.register(plugin, entry.value)
                self._manager.check_pending()
            with _guard("call"):
                return self._call(plugin, entry)
        except _Step:
            # Pluggy's register is not transactional: a refused plugin may be half in.
            with _guard("register"):
                if self._manager.is_registered(plugin):
                    self._manager.unregister(plugin)
            raise

    def _call(self, plugin: object, entry: PluginEntry) -> Sequence[Any]:
        """Call one plugin's hook alone: in a common call the first that raises would stop all others."""
        name = HOOKS[entry.kind]
        others = [p for p in self._manager.get_plugins() if p is not plugin]
        results = self._manager.subset_hook_caller(name, others)()
        if not results:
            raise TypeError(f"{entry.value} implements no hook {name}, or it returned None")
        for result in results:
            if not isinstance(result, list | tuple):
                raise TypeError(
                    f"{name} of {entry.value} returned a {type(result).__name__}, expected a list"
                )
        return [provided for result in results for provided in result]


def _check_requirement(distribution: str) -> None:
    """A distribution that asks for another ``ramforge-core`` is refused before it is imported: pip only warns."""
    from packaging.requirements import Requirement

    for text in metadata.requires(distribution) or ():
        wanted = Requirement(text)
        if normalise(wanted.name) != "ramforge-core" or (
            wanted.marker and not wanted.marker.evaluate({"extra": ""})
        ):
            continue
        if not wanted.specifier.contains(__version__, prereleases=True):
            raise ImportError(
                f"it requires ramforge-core {wanted.specifier}, and this is {__version__}: install a version of "
                f"{distribution} that is made for it"
            )


def _key(kind: str, provided: object) -> object:
    return getattr(provided, "name" if kind in ("quants", "commands") else "key", None)


def _pick(entry: PluginEntry, objects: Sequence[Any]) -> Any:
    same = [o for o in objects if _key(entry.kind, o) == entry.key]
    if len(same) != 1:
        keys = ", ".join(repr(_key(entry.kind, o)) for o in objects) or "nothing"
        raise LookupError(
            f"the entry point is named {entry.key!r}, but {HOOKS[entry.kind]} of {entry.value} provides "
            f"{keys}: expected one object of this key, got {len(same)}"
        )
    return same[0]


def _need(provided: object, contract: type) -> None:
    if not isinstance(provided, contract):
        raise TypeError(
            f"got {provided!r}, expected an instance of {contract.__module__}.{contract.__qualname__}"
        )


def _check_architecture(entry: PluginEntry, provided: Any) -> None:
    from ramforge_core.architecture import Architecture

    _need(provided, Architecture)


def _check_quant(entry: PluginEntry, provided: Any) -> None:
    from ramforge_core.gguf import GGML_TYPES
    from ramforge_core.quant import QuantFormat

    _need(provided, QuantFormat)
    for name in ("ggml_type", "block_values", "block_bytes"):
        if not isinstance(getattr(provided, name, None), int):
            raise TypeError(f"{provided!r} has no integer {name}")
    known = next((i for i, t in GGML_TYPES.items() if t.name == entry.key), provided.ggml_type)
    if known != provided.ggml_type:
        raise ValueError(f"{entry.key} is ggml type {known}, but {provided!r} says {provided.ggml_type}")


def _check_tokenizer(entry: PluginEntry, provided: Any) -> None:
    from ramforge_core.tokenizer import Tokenizer

    if not isinstance(provided, type) or not issubclass(provided, Tokenizer):
        raise TypeError(f"got {provided!r}, expected a subclass of {Tokenizer.__module__}.Tokenizer")
    if isabstract(provided):
        missing = ", ".join(sorted(provided.__abstractmethods__))
        raise TypeError(f"{provided.__qualname__} does not implement {missing}")


def _check_backend(entry: PluginEntry, provided: Any) -> None:
    from ramforge_core.backend import Backend

    _need(provided, Backend)


def _check_source(entry: PluginEntry, provided: Any) -> None:
    from ramforge_core.sources import ModelSource

    _need(provided, ModelSource)


def _check_command(entry: PluginEntry, provided: Any) -> None:
    import click  # the plugin that brought a command needs it; core does not

    _need(provided, click.Command)


_CHECKS: Mapping[str, Callable[[PluginEntry, Any], None]] = {
    "architectures": _check_architecture,
    "quants": _check_quant,
    "tokenizers": _check_tokenizer,
    "backends": _check_backend,
    "sources": _check_source,
    "commands": _check_command,
}


def _check_kernels(provided: Any) -> None:
    from ramforge_core.quant import KERNEL_ABI, QuantKernels

    kernels = provided.kernels
    if kernels is None:
        return
    _need(kernels, QuantKernels)
    if kernels.abi != KERNEL_ABI:
        raise ValueError(
            f"kernels of ABI {kernels.abi!r}, expected {KERNEL_ABI}: rebuild the plugin with this version's "
            f"ramforge_kernel.h"
        )
    if "portable" not in kernels.functions:
        raise ValueError("kernels without 'portable' functions, which every format must have")
