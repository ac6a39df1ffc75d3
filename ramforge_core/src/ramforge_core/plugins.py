"""The registry: what is installed, by kind and key, imported when it is asked for.

A plugin that somebody asked for and that cannot be used is an error with its cause; one that nobody asked for
costs one warning line. There is no module state: each `Registry` knows what it loaded.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ramforge_core.discovery import (
    GROUPS,
    PluginEntry,
    PluginFailure,
    allow_list,
    find_entries,
    first_party,
    is_strict,
    normalise,
    one_line,
)
from ramforge_core.errors import BackendError, DuplicatePluginError, PluginLoadError, UnknownPluginError
from ramforge_core.plugin_messages import NOUNS, broken, duplicate, package_for, shown

if TYPE_CHECKING:
    import click

    from ramforge_core.architecture import Architecture
    from ramforge_core.backend import Backend
    from ramforge_core.plugin_host import PluginHost
    from ramforge_core.quant import QuantFormat
    from ramforge_core.sources import ModelSource
    from ramforge_core.tokenizer import Tokenizer

log = logging.getLogger("ramforge")


class Registry:
    """Contract objects by kind and key.

    Made by `discover`. Lookups of one key (`architecture`, `quant_format`, ...) import only what they are asked
    for; those of a whole kind (`architectures`, ...) import all of it and leave out what is broken.
    """

    def __init__(
        self,
        entries: Iterable[PluginEntry],
        *,
        blocked: Iterable[PluginEntry] = (),
        failures: Iterable[PluginFailure] = (),
        notes: Iterable[str] = (),
        strict: bool = False,
    ) -> None:
        by_kind: dict[str, dict[str, tuple[PluginEntry, ...]]] = {kind: {} for kind in GROUPS}
        for entry in entries:
            keys = by_kind[entry.kind]
            keys[entry.key] = (*keys.get(entry.key, ()), entry)
        self._entries = {kind: MappingProxyType(keys) for kind, keys in by_kind.items()}
        self._blocked = tuple(blocked)
        self._found = tuple(failures)
        self._notes = list(notes)
        self._strict = strict
        self._host: PluginHost | None = None
        self._outcomes: dict[PluginEntry, Any] = {}
        self._warned: set[object] = set()
        self._lock = RLock()

    @classmethod
    def discover(cls, environ: Mapping[str, str] = os.environ) -> Registry:
        """Look at what is installed; imports no plugin.

        environ : read for ``RAMFORGE_PLUGINS`` (allow-list) and ``RAMFORGE_STRICT_PLUGINS``.
        """
        entries, failures = find_entries()
        allowed = allow_list(environ)
        notes = []
        if allowed is not None:
            unknown = allowed - {normalise(e.distribution) for e in entries} - first_party() - {"ramforge"}
            if unknown:
                names = ", ".join(sorted(unknown))
                notes.append(f"RAMFORGE_PLUGINS allows {names}, but no plugin of that name is installed")
            if not allowed - {"ramforge"}:
                notes.append(
                    "RAMFORGE_PLUGINS is empty, which allows what the distribution 'ramforge' requires, but "
                    "that is not installed: no plugin is in use"
                )
        ok = {e: allowed is None or normalise(e.distribution) in allowed for e in entries}
        return cls(
            (e for e in entries if ok[e]),
            blocked=(e for e in entries if not ok[e]),
            failures=failures,
            notes=notes,
            strict=is_strict(environ),
        )

    def entries(self, kind: str) -> Mapping[str, tuple[PluginEntry, ...]]:
        """Read-only: key to the entry points that claim it; more than one is a conflict. Imports nothing."""
        return self._entries[kind]

    @property
    def blocked(self) -> tuple[PluginEntry, ...]:
        """Installed, but not on the allow-list."""
        return self._blocked

    @property
    def failures(self) -> tuple[PluginFailure, ...]:
        """Everything that was found broken so far; complete after `load_all`."""
        return (*self._found, *(o for o in self._outcomes.values() if isinstance(o, PluginFailure)))

    def provider(self, kind: str, key: str) -> PluginEntry | None:
        """The entry point whose object a lookup gives; None if there is none, or none that can be used."""
        try:
            return self._resolve(kind, key)[0]
        except (UnknownPluginError, DuplicatePluginError, PluginLoadError):
            return None

    def architecture(self, key: str) -> Architecture:
        """By ``general.architecture``. A runnable one replaces a declared one of the same key."""
        found: Architecture = self._get("architectures", key)
        return found

    def quant_format(self, type_or_name: int | str) -> QuantFormat:
        """By ggml type id or lower-case ggml name."""
        found: QuantFormat
        if isinstance(type_or_name, str):
            found = self._get("quants", type_or_name)
            return found
        from ramforge_core.gguf import GGML_TYPES

        known = GGML_TYPES.get(type_or_name)
        if known is not None and known.name in self._entries["quants"]:
            found = self._get("quants", known.name)
            return found
        return self._by_type(type_or_name, known.name if known else None)

    def tokenizer(self, key: str) -> type[Tokenizer]:
        """By ``tokenizer.ggml.model``."""
        found: type[Tokenizer] = self._get("tokenizers", key)
        return found

    def backend(self, key: str | None = None) -> Backend:
        """By key, or the available one with the highest priority.

        Raises UnknownPluginError if it is not installed, BackendError if it cannot work on this machine.
        """
        if key is None:
            return self._best_backend()
        backend: Backend = self._get("backends", key)
        reason = unavailable(backend)
        if reason is not None:
            raise BackendError(f"backend {key!r} cannot work on this machine: {reason}")
        return backend

    def source(self, key: str) -> ModelSource:
        """By the source's key."""
        found: ModelSource = self._get("sources", key)
        return found

    @property
    def commands(self) -> Mapping[str, click.Command]:
        """By name; looking at the names imports nothing, taking a command imports it alone."""
        return _Lazy(self, "commands")

    def architectures(self) -> Mapping[str, Architecture]:
        """All that can be used, by key; this and the four below import every plugin of their kind."""
        return self.all_of("architectures")

    def quant_formats(self) -> Mapping[str, QuantFormat]:
        return self.all_of("quants")

    def tokenizers(self) -> Mapping[str, type[Tokenizer]]:
        return self.all_of("tokenizers")

    def backends(self) -> Mapping[str, Backend]:
        return self.all_of("backends")

    def sources(self) -> Mapping[str, ModelSource]:
        return self.all_of("sources")

    def all_of(self, kind: str) -> Mapping[str, Any]:
        """Read-only: key to contract object, of all that can be used. Imports every plugin of the kind."""
        self._tell(kind)
        found = {}
        for key in self._entries[kind]:
            try:
                found[key] = self._resolve(kind, key)[1]
            except (DuplicatePluginError, PluginLoadError) as error:
                if self._strict:
                    raise
                if isinstance(error, DuplicatePluginError):
                    self._warn((kind, key), str(error))
            for entry in self._entries[kind][key]:
                self._complain(self._outcomes.get(entry))
        return MappingProxyType(found)

    def load_all(self) -> None:
        """Import everything, so that `failures` is complete."""
        for kind in GROUPS:
            self.all_of(kind)
            for entries in self._entries[kind].values():
                for entry in entries:
                    self._complain(self._load(entry))

    def _load(self, entry: PluginEntry) -> Any:
        with self._lock:
            if self._host is None:
                from ramforge_core.plugin_host import PluginHost

                self._host = PluginHost()
            if entry not in self._outcomes:
                self._outcomes[entry] = self._host.load(entry)
            outcome = self._outcomes[entry]
        if self._strict and isinstance(outcome, PluginFailure):
            raise broken(outcome) from outcome.error
        return outcome

    def _get(self, kind: str, key: str) -> Any:
        self._tell(kind, key)
        return self._resolve(kind, key)[1]

    def _resolve(self, kind: str, key: str) -> tuple[PluginEntry, Any]:
        """The one entry that a key stands for, and its object; raises when there is not exactly one."""
        entries = self._entries[kind].get(key, ())
        if not entries:
            raise UnknownPluginError(self._unknown(kind, key))
        if len(entries) > 1 and kind != "architectures":
            raise duplicate(entries)
        outcomes = [(entry, self._load(entry)) for entry in entries]
        usable = [(e, o) for e, o in outcomes if not isinstance(o, PluginFailure)]
        if not usable:
            failure = outcomes[0][1]
            raise broken(failure) from failure.error
        runnable = [(e, o) for e, o in usable if getattr(o, "runnable", True)]
        best = runnable or usable
        if len(best) > 1:
            raise duplicate(tuple(e for e, _ in best))
        for _, outcome in outcomes:  # one of two providers is broken: the other serves, but not silently
            self._complain(outcome)
        return best[0]

    def _by_type(self, ggml_type: int, name: str | None) -> QuantFormat:
        formats = self.all_of("quants")
        same = [k for k, f in formats.items() if f.ggml_type == ggml_type]
        if len(same) > 1:
            raise duplicate(tuple(self._entries["quants"][k][0] for k in same))
        if not same:
            raise UnknownPluginError(self._unknown("quants", name, ggml_type))
        found: QuantFormat = formats[same[0]]
        return found

    def _best_backend(self) -> Backend:
        backends = self.all_of("backends")
        reasons = {key: unavailable(backend) for key, backend in backends.items()}
        usable = [backends[key] for key in sorted(backends) if reasons[key] is None]
        if usable:
            best: Backend = max(usable, key=lambda backend: backend.priority)
            return best
        why = [f"{key}: {reason}" for key, reason in reasons.items()]
        why += [f"{f.name}: {f.why}" for f in self.failures if f.kind == "backends"]
        if not why:
            raise UnknownPluginError("no backend is installed; install the package ramforge-backend-cpu")
        raise BackendError(f"no backend can work on this machine: {'; '.join(why)}")

    def _unknown(self, kind: str, key: str | None, ggml_type: int | None = None) -> str:
        what = f"{NOUNS[kind]} {shown(key)}" if key is not None else "quant format"
        if ggml_type is not None:
            what += f" of ggml type {ggml_type}"
        text = f"no installed plugin provides {what}; {self._known(kind)}"
        hidden = [e for e in self._blocked if (e.kind, e.key) == (kind, key)]
        package = package_for(kind, key or "")
        if hidden:
            return f"{text}; {hidden[0].provider} does, but RAMFORGE_PLUGINS does not allow it"
        return f"{text}; the package to try is {package}" if package else text

    def _known(self, kind: str) -> str:
        if kind != "architectures":
            return f"known: {', '.join(sorted(self._entries[kind])) or 'none'}"
        found = self.architectures()
        runs = ", ".join(sorted(k for k, a in found.items() if a.runnable)) or "none"
        declared = ", ".join(sorted(k for k, a in found.items() if not a.runnable)) or "none"
        return f"those that run: {runs}; to inspect and plan only: {declared}"

    def _tell(self, kind: str, wanted: str | None = None) -> None:
        """Say once what is wrong with plugins that nobody asked for, as far as it is seen without imports."""
        for failure in self._found:
            if self._strict:
                raise broken(failure) from failure.error
            self._complain(failure)
        for note in self._notes:
            self._warn(note, note)
        if kind != "architectures":  # there, whether it is a conflict is seen only after importing both
            for key, entries in self._entries[kind].items():
                if len(entries) > 1 and key != wanted:
                    error = duplicate(entries)
                    if self._strict:
                        raise error
                    self._warn((kind, key), str(error))

    def _complain(self, outcome: object) -> None:
        if isinstance(outcome, PluginFailure):
            # One line per plugin, not one for each of its entry points.
            self._warn(
                (outcome.distribution, outcome.kind, outcome.phase), f"{broken(outcome)}; it is ignored"
            )

    def _warn(self, once: object, text: str) -> None:
        if once not in self._warned:
            self._warned.add(once)
            log.warning("%s", text)


class _Lazy(Mapping[str, Any]):
    """Names without imports, values with one."""

    def __init__(self, registry: Registry, kind: str) -> None:
        self._registry = registry
        self._kind = kind

    def __getitem__(self, key: str) -> Any:
        return self._registry._get(self._kind, key)

    def __contains__(self, key: object) -> bool:
        return key in self._registry.entries(self._kind)

    def __iter__(self) -> Iterator[str]:
        return iter(self._registry.entries(self._kind))

    def __len__(self) -> int:
        return len(self._registry.entries(self._kind))


def unavailable(backend: Backend) -> str | None:
    """Why a backend cannot work on this machine; None if it can."""
    try:
        return backend.available()
    except Exception as error:  # a driver that fails to load is a reason like any other
        return one_line(error)
