"""What this machine can do with the plugins it has, and what it says of one file.

Both reports hold facts that programs read (`to_dict`) and people read (`render`). Neither fails because of a plugin:
what is broken is part of the report (unless ``RAMFORGE_STRICT_PLUGINS`` asks for an error).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import asdict, frozen

from ramforge_core.discovery import GROUPS, PluginEntry, PluginFailure, one_line
from ramforge_core.errors import BackendError, MetadataError, PluginError, RamforgeError, UnknownPluginError
from ramforge_core.model import cannot_run, check_tensors, read_config, read_model, unsupported_type
from ramforge_core.plugins import unavailable

if TYPE_CHECKING:
    from ramforge_core.architecture import Architecture
    from ramforge_core.backend import Backend
    from ramforge_core.gguf import GGUF
    from ramforge_core.plugins import Registry
    from ramforge_core.quant import QuantFormat
    from ramforge_core.sources import ModelSource


@frozen
class Provided:
    """One key that can be used, who provides it, and what it can do (capability to value)."""

    key: str
    distribution: str
    version: str
    can: Mapping[str, Any]


@frozen
class SupportReport:
    """Everything that is installed. ``provided``: by kind, in the order of their keys.

    conflicts : entry points that claim a key together, in groups. blocked : not on the allow-list.
    """

    provided: Mapping[str, Sequence[Provided]]
    conflicts: Sequence[Sequence[PluginEntry]]
    blocked: Sequence[PluginEntry]
    failures: Sequence[PluginFailure]

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``: one list per kind, then ``conflicts``, ``blocked`` and ``broken``."""
        out: dict[str, Any] = {
            kind: [
                {"key": p.key, "distribution": p.distribution, "version": p.version, **p.can}
                for p in self.provided[kind]
            ]
            for kind in GROUPS
        }
        out["conflicts"] = [
            {
                "kind": group[0].kind,
                "key": group[0].key,
                "providers": [{"distribution": e.distribution, "version": e.version} for e in group],
            }
            for group in self.conflicts
        ]
        out["blocked"] = [
            {"kind": e.kind, "key": e.key, "distribution": e.distribution, "version": e.version}
            for e in self.blocked
        ]
        out["broken"] = [
            {
                "kind": f.kind,
                "key": f.name,
                "distribution": f.distribution,
                "version": f.version,
                "phase": f.phase,
                "error": one_line(f.error),
            }
            for f in self.failures
        ]
        return out

    def render(self) -> str:
        """For people: a table per kind, and what is not in use with the reason."""
        parts = []
        for kind in GROUPS:
            rows = [(p.key, f"{p.distribution} {p.version}", _SAY[kind](p.can)) for p in self.provided[kind]]
            parts.append(f"{kind}\n{_table(rows or [('none', '', '')])}")
        if self.conflicts:
            rows = [
                (f"{g[0].kind} {g[0].key}", " and ".join(dict.fromkeys(e.provider for e in g)), "not in use")
                for g in self.conflicts
            ]
            parts.append(f"conflicts\n{_table(rows)}")
        if self.failures:
            rows = [(f"{f.kind} {f.name}", f"{f.distribution} {f.version}", f.why) for f in self.failures]
            parts.append(f"broken\n{_table(rows)}")
        if self.blocked:
            rows = [
                (f"{e.kind} {e.key}", e.provider, "not allowed by RAMFORGE_PLUGINS") for e in self.blocked
            ]
            parts.append(f"blocked\n{_table(rows)}")
        return "\n\n".join(parts)


def support(registry: Registry) -> SupportReport:
    """Import every plugin and say what each of them can do."""
    registry.load_all()
    try:
        default = registry.backend()
    except (PluginError, BackendError):
        default = None
    ask: dict[str, Callable[[Any], Mapping[str, Any]]] = {
        "architectures": _architecture,
        "quants": _quant,
        "tokenizers": lambda tokenizer: {},
        "backends": lambda backend: _backend(backend, backend is default),
        "sources": _source,
        "commands": lambda command: {"help": command.get_short_help_str()},
    }
    provided = {}
    for kind in GROUPS:
        found = registry.all_of(kind)
        provided[kind] = [
            Provided(key, entry.distribution, entry.version, _ask(ask[kind], found[key]))
            for key in sorted(found, key=lambda k: (getattr(found[k], "ggml_type", 0), k))
            if (entry := registry.provider(kind, key)) is not None
        ]
    conflicts = [
        group
        for kind in GROUPS
        for key, group in registry.entries(kind).items()
        if len(group) > 1 and key not in registry.all_of(kind)
    ]
    return SupportReport(provided, conflicts, registry.blocked, registry.failures)


def _ask(question: Callable[[Any], Mapping[str, Any]], provided: object) -> Mapping[str, Any]:
    """Capabilities as the plugin tells them; one that cannot tell says why instead."""
    try:
        return question(provided)
    except Exception as error:  # a report on plugins must not fail because of one
        return {"error": one_line(error)}


def _architecture(architecture: Architecture) -> Mapping[str, Any]:
    return {"runs": architecture.runnable}


def _quant(quant: QuantFormat) -> Mapping[str, Any]:
    from ramforge_core.quant import ISAS, QuantFormat

    kernels = quant.kernels
    return {
        "ggml_type": quant.ggml_type,
        "block_values": quant.block_values,
        "block_bytes": quant.block_bytes,
        "bits_per_weight": 8 * quant.block_bytes / quant.block_values,
        "kernels": [isa for isa in ISAS if kernels and isa in kernels.functions],
        "packing": kernels.packing if kernels else None,
        "encode": type(quant).encode is not QuantFormat.encode,
    }


def _backend(backend: Backend, default: bool) -> Mapping[str, Any]:
    reason = unavailable(backend)
    facts: dict[str, Any] = {"available": reason is None, "reason": reason, "default": default}
    facts |= {"priority": backend.priority, "memory_tiers": list(backend.memory_tiers)}
    return facts if reason else {**facts, **backend.describe()}


def _source(source: ModelSource) -> Mapping[str, Any]:
    return {"names": list(source.names), "name_form": source.name_form}


def _say(tell: Callable[[Mapping[str, Any]], str]) -> Callable[[Mapping[str, Any]], str]:
    return lambda can: can["error"] if "error" in can else tell(can)


def _say_quant(can: Mapping[str, Any]) -> str:
    size = f"{can['bits_per_weight']:g} bits, blocks of {can['block_values']} in {can['block_bytes']} bytes"
    kernels = ", ".join(can["kernels"]) or "NumPy only"
    return f"type {can['ggml_type']}, {size}; kernels: {kernels}{'; encodes' if can['encode'] else ''}"


def _say_backend(can: Mapping[str, Any]) -> str:
    if not can["available"]:
        return f"not available: {can['reason']}"
    known = ("available", "reason", "default", "priority", "memory_tiers")
    told = [f"{name} {value}" for name, value in can.items() if name not in known]
    told.append(f"memory {'+'.join(can['memory_tiers'])}")
    return ", ".join(told) + (" (default)" if can["default"] else "")


_SAY = {
    "architectures": _say(lambda can: "run, inspect, plan" if can["runs"] else "inspect and plan only"),
    "quants": _say(_say_quant),
    "tokenizers": _say(lambda can: ""),
    "backends": _say(_say_backend),
    "sources": _say(lambda can: ", ".join([*can["names"], *filter(None, [can["name_form"]])])),
    "commands": _say(lambda can: str(can["help"])),
}


def _plain(text: str) -> str:
    """What could steer a terminal made visible: keys and names may come from a file, errors from a plugin."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _table(cells: Iterable[tuple[str, ...]]) -> str:
    rows = [tuple(map(_plain, row)) for row in cells]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    )


# ------------------------------------------------------------------ one file


@frozen
class FormatUse:
    """A tensor type of a file: how many tensors have it, and which distribution decodes it (None: nobody)."""

    ggml_type: int
    name: str
    tensors: int
    nbytes: int | None
    distribution: str | None

    @property
    def supported(self) -> bool:
        return self.distribution is not None


@frozen
class ModelSupport:
    """What the installed plugins say of one file. ``reasons``: why it cannot run; empty if it can.

    architecture, tokenizer : the keys that the file names, None if it names none.
    architecture_runs : None if no plugin knows the architecture, False if it can be inspected and planned only.
    """

    architecture: str | None
    architecture_runs: bool | None
    tokenizer: str | None
    tokenizer_supported: bool
    formats: Sequence[FormatUse]
    reasons: Sequence[str]

    @property
    def runnable(self) -> bool:
        return not self.reasons

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "runnable": self.runnable,
            "architecture": self.architecture,
            "architecture_runs": self.architecture_runs,
            "tokenizer": self.tokenizer,
            "tokenizer_supported": self.tokenizer_supported,
            "formats": [{**asdict(f), "supported": f.supported} for f in self.formats],
            "reasons": list(self.reasons),
        }

    def render(self) -> str:
        """For people: the verdict first."""
        lines = ["runs: yes" if self.runnable else "runs: no"]
        lines += [f"  because {_plain(reason)}" for reason in self.reasons]
        how = {None: "unknown", False: "inspect and plan only", True: "runs"}[self.architecture_runs]
        lines.append(f"architecture: {_plain(self.architecture or 'not named')} ({how})")
        known = "supported" if self.tokenizer_supported else "not supported"
        lines.append(f"tokenizer: {_plain(self.tokenizer or 'not named')} ({known})")
        if self.formats:
            rows = [(f.name, f"{f.tensors} tensors", f.distribution or "not supported") for f in self.formats]
            lines.append(f"tensor types:\n{_table(rows)}")
        return "\n".join(lines)


def model_support(gguf: GGUF, registry: Registry, *, build_tokenizer: bool = False) -> ModelSupport:
    """Whether this file can run here, and all reasons why not. Reads no weights.

    build_tokenizer : also build the tokenizer, which finds what only its plugin sees (an unknown pre-tokenizer, a
        damaged vocabulary) and takes up to half a second.
    """
    reasons: list[str] = []
    if gguf.incomplete:
        reasons.append(gguf.incomplete)
    architecture, key, runs = _find_architecture(gguf, registry, reasons)
    formats, decodable = _find_formats(gguf, registry, reasons)
    if not gguf.tensors and not gguf.incomplete:
        reasons.append("it holds no tensors, only a vocabulary")
    elif architecture is not None and architecture.runnable and not gguf.incomplete:
        _check_model(gguf, registry, architecture, decodable, reasons)
    tokenizer, supported = _find_tokenizer(gguf, registry, build_tokenizer, reasons)
    try:
        registry.backend()
    except (PluginError, BackendError) as error:
        reasons.append(str(error))
    return ModelSupport(key, runs, tokenizer, supported, formats, reasons)


def _find_architecture(
    gguf: GGUF, registry: Registry, reasons: list[str]
) -> tuple[Architecture | None, str | None, bool | None]:
    key = None
    try:
        key = gguf.metadata.text("general.architecture")
        architecture = registry.architecture(key)
    except (MetadataError, PluginError) as error:
        reasons.append(str(error))
        return None, key, None
    if not architecture.runnable:
        reasons.append(cannot_run(architecture.key, registry))
    return architecture, key, architecture.runnable


def _find_formats(gguf: GGUF, registry: Registry, reasons: list[str]) -> tuple[list[FormatUse], bool]:
    by_type: defaultdict[int, list[str]] = defaultdict(list)
    for name, info in gguf.tensors.items():
        by_type[info.ggml_type].append(name)
    formats = []
    for ggml_type, names in by_type.items():
        sizes = [gguf.tensors[name].nbytes for name in names]
        nbytes = None if None in sizes else sum(size or 0 for size in sizes)
        type_name = gguf.tensors[names[0]].type_name
        entry = None
        try:
            entry = registry.provider("quants", registry.quant_format(ggml_type).name)
        except UnknownPluginError:
            reasons.append(unsupported_type(ggml_type, names, registry))
        except PluginError as error:
            reasons.append(f"{_count(names)} of type {type_name} cannot be read: {error}")
        formats.append(
            FormatUse(ggml_type, type_name, len(names), nbytes, entry.distribution if entry else None)
        )
    return formats, all(f.supported for f in formats)


def _count(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{len(names)} tensor{'s' if len(names) > 1 else ''} ({shown})"


def _check_model(
    gguf: GGUF, registry: Registry, architecture: Architecture, decodable: bool, reasons: list[str]
) -> None:
    """Settings, tensors and graph, as a run would check them."""
    try:
        if decodable:
            read_model(gguf, registry)
        else:
            config = read_config(gguf, architecture)
            check_tensors(gguf.tensors, architecture.key, architecture.tensors(config))
    except RamforgeError as error:
        reasons.append(str(error))
    except Exception as error:  # a faulty plugin is a reason like any other
        reasons.append(f"architecture {architecture.key!r} failed on this file: {one_line(error)}")


def _find_tokenizer(
    gguf: GGUF, registry: Registry, build: bool, reasons: list[str]
) -> tuple[str | None, bool]:
    key = None
    try:
        key = gguf.metadata.text("tokenizer.ggml.model")
        tokenizer = registry.tokenizer(key)
        if build:
            tokenizer.from_metadata(gguf.metadata)
    except RamforgeError as error:
        reasons.append(str(error))
        return key, False
    except Exception as error:
        reasons.append(f"tokenizer {key!r} failed on this file: {one_line(error)}")
        return key, False
    return key, True
