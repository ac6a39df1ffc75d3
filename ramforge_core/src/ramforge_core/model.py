"""From a GGUF header to the facts of a model: architecture, graph, and where each weight lies.

Everything is checked here, before a byte of a weight is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from ramforge_core.architecture import Architecture, TensorSpec
from ramforge_core.backend import WeightSpec
from ramforge_core.errors import MetadataError, TensorError, UnknownPluginError, UnsupportedError
from ramforge_core.gguf import GGML_TYPES, type_label
from ramforge_core.graph import Graph, GraphBuilder
from ramforge_core.plugin_messages import package_for

if TYPE_CHECKING:
    from ramforge_core.gguf import GGUF, TensorInfo
    from ramforge_core.plugins import Registry


@frozen(eq=False)
class Model:
    """A model that can be run: its file, what it computes, and its weights in file order."""

    gguf: GGUF
    architecture: Architecture
    config: Any
    graph: Graph
    weights: Mapping[str, WeightSpec]


def read_model(gguf: GGUF, registry: Registry) -> Model:
    """Find the plugins that a file needs and build its graph.

    Raises UnsupportedError or a PluginError if something that it needs is not installed, MetadataError or
    TensorError if the file does not hold what its architecture says.
    """
    architecture = registry.architecture(gguf.metadata.text("general.architecture"))
    if not architecture.runnable:
        raise UnsupportedError(cannot_run(architecture.key, registry))
    config = read_config(gguf, architecture)
    used = check_tensors(gguf.tensors, architecture.key, architecture.tensors(config))
    weights = _weights(used, registry)
    builder = GraphBuilder({name: info.shape for name, info in used.items()})
    architecture.build(config, builder)
    return Model(gguf, architecture, config, builder.finish(), weights)


def read_config(gguf: GGUF, architecture: Architecture) -> Any:
    """The configuration, with no more blocks than the file can hold: all later work grows with them.

    Raises MetadataError.
    """
    config = architecture.config(gguf.metadata)
    if config.block_count > len(gguf.tensors):
        raise MetadataError(
            f"metadata key '{architecture.key}.block_count' is {config.block_count}, but the file holds only "
            f"{len(gguf.tensors)} tensors: fewer than one for each block"
        )
    return config


def check_tensors(
    tensors: Mapping[str, TensorInfo], key: str, specs: Sequence[TensorSpec]
) -> dict[str, TensorInfo]:
    """The tensors that the architecture uses, in file order. Raises TensorError naming all that are amiss."""
    groups: defaultdict[str, list[TensorSpec]] = defaultdict(list)
    for spec in specs:
        if spec.group is not None:
            groups[spec.group].append(spec)
    needed = {s.name for s in specs if s.required}
    for members in groups.values():
        if any(s.name in tensors for s in members):
            needed.update(s.name for s in members)
    missing = [s.name for s in specs if s.name in needed and s.name not in tensors]
    if missing:
        raise TensorError(f"missing {_names(missing)}: architecture {key!r} needs it with these settings")
    for spec in specs:
        info = tensors.get(spec.name)
        if info is not None and _without_ones(info.shape) != _without_ones(spec.shape):
            raise TensorError(
                f"tensor {spec.name!r} has shape {info.shape}, expected {spec.shape} from the metadata of the file"
            )
    known = {s.name for s in specs}
    foreign = [name for name in tensors if name not in known]
    if foreign:
        raise UnsupportedError(
            f"unknown {_names(foreign)}: architecture {key!r} as implemented here does not use it, so the text "
            f"would be wrong"
        )
    shapes = {s.name: s.shape for s in specs}
    return {name: evolve(info, shape=shapes[name]) for name, info in tensors.items()}


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Writers differ in whether a matrix of one row is a vector; the bytes are the same."""
    return shape[1:] if len(shape) > 1 and shape[0] == 1 else shape


def _weights(used: Mapping[str, TensorInfo], registry: Registry) -> dict[str, WeightSpec]:
    by_type: defaultdict[int, list[str]] = defaultdict(list)
    for name, info in used.items():
        by_type[info.ggml_type].append(name)
    formats, unsupported = {}, []
    for ggml_type, names in by_type.items():
        try:
            formats[ggml_type] = registry.quant_format(ggml_type)
        except UnknownPluginError:
            unsupported.append(unsupported_type(ggml_type, names, registry))
    if unsupported:
        raise UnsupportedError("; ".join(unsupported))
    return {name: WeightSpec(name, info.shape, formats[info.ggml_type]) for name, info in used.items()}


def cannot_run(key: str, registry: Registry) -> str:
    """The sentence on an architecture that is declared only."""
    runs = ", ".join(sorted(k for k, a in registry.architectures().items() if a.runnable)) or "none"
    return (
        f"architecture {key!r} cannot run yet; its files can be inspected and planned only (ramforge inspect, "
        f"ramforge support). Architectures that run: {runs}"
    )


def unsupported_type(ggml_type: int, names: Sequence[str], registry: Registry) -> str:
    """The sentence on a tensor type that no plugin decodes: which, in which tensors, what is supported instead."""
    formats = registry.quant_formats()
    supported = ", ".join(sorted(formats, key=lambda key: formats[key].ggml_type)) or "none"
    count = f"{len(names)} tensor{'s' if len(names) > 1 else ''}"
    known = GGML_TYPES.get(ggml_type)
    label = f"type {ggml_type} ({known.name})" if known else type_label(ggml_type)
    text = f"unsupported tensor {label} in {count} ({_shown(names)}); supported: {supported}"
    return f"{text}; the package to try is {package_for('quants', known.name)}" if known else text


def _names(names: Sequence[str]) -> str:
    return f"tensor{'s' if len(names) > 1 else ''} {_shown([repr(n) for n in names])}"


def _shown(names: Sequence[str], show: int = 3) -> str:
    more = f" and {len(names) - show} more" if len(names) > show else ""
    return ", ".join(names[:show]) + more
