"""What architectures with experts have in common: configuration keys, tensors and the mixture as part of a block.

As `ramforge_core.transformer`, which has the parts of dense blocks. Keys and tensor names as in gguf-py's
``constants.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from attrs import frozen

from ramforge_core.architecture import TensorSpec
from ramforge_core.errors import MetadataError
from ramforge_core.graph import GraphBuilder, Value
from ramforge_core.transformer import TransformerConfig, projection

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata


@frozen
class Mixture:
    """experts : in a block. chosen : of them for each token. width : inside an expert."""

    experts: int
    chosen: int
    width: int


@frozen(kw_only=True)
class MixtureConfig(TransformerConfig):
    """A decoder whose blocks choose among experts; ``mixture`` is None if they do not."""

    mixture: Mixture | None


def read_mixture(metadata: Metadata, arch: str) -> Mixture | None:
    """Read expert_count, expert_used_count and expert_feed_forward_length (default: feed_forward_length).

    Returns None if there are no experts. Raises MetadataError.
    """
    experts = metadata.integer(f"{arch}.expert_count", default=0)
    if experts == 0:
        return None
    chosen = metadata.integer(f"{arch}.expert_used_count")
    key = f"{arch}.expert_feed_forward_length"
    width = metadata.integer(key, default=metadata.integer(f"{arch}.feed_forward_length"))
    if not 1 <= chosen <= experts:
        raise MetadataError(
            f"metadata keys '{arch}.expert_count' and '{arch}.expert_used_count' are {experts} and {chosen}; "
            "expected at least one expert in use, and no more than there are"
        )
    if width < 1:
        raise MetadataError(f"metadata key {key!r} is {width}, expected at least 1")
    return Mixture(experts, chosen, width)


def expert_tensors(c: TransformerConfig, m: Mixture, b: str, *, biases: bool = False) -> list[TensorSpec]:
    """Router and routed experts of block ``b``, all experts of a block in one tensor. biases : they have them."""
    E, D, F = m.experts, c.embedding_length, m.width
    shapes = {"gate": (E, F, D), "up": (E, F, D), "down": (E, D, F)}
    specs = [TensorSpec(b + "ffn_gate_inp.weight", (E, D))]
    specs += [TensorSpec(f"{b}ffn_{p}_exps.weight", shape) for p, shape in shapes.items()]
    if biases:
        specs.append(TensorSpec(b + "ffn_gate_inp.bias", (E,)))
        specs += [TensorSpec(f"{b}ffn_{p}_exps.bias", shape[:2]) for p, shape in shapes.items()]
    return specs


def shared_expert_tensors(c: TransformerConfig, width: int, b: str) -> list[TensorSpec]:
    """The experts that every token goes through, which files hold as one of their common width."""
    D = c.embedding_length
    shapes = {"gate": (width, D), "up": (width, D), "down": (D, width)}
    return [TensorSpec(f"{b}ffn_{p}_shexp.weight", shape) for p, shape in shapes.items()]


def mixture(
    m: Mixture,
    g: GraphBuilder,
    x: Value,
    b: str,
    act: Literal["silu", "gelu", "swiglu_oai"] = "silu",
    **routing: Any,
) -> Value:
    """The routed experts of block ``b`` on its normed input. routing : arguments of `GraphBuilder.route`."""
    routes = g.route(projection(g, x, b + "ffn_gate_inp"), m.chosen, **routing)
    gate, up, down = (f"{b}ffn_{p}_exps" for p in ("gate", "up", "down"))
    biases = {
        f"{p}_bias": f"{b}ffn_{p}_exps.bias" for p in ("gate", "up", "down") if g.has(f"{b}ffn_{p}_exps.bias")
    }
    return g.moe(x, routes, f"{gate}.weight", f"{up}.weight", f"{down}.weight", act, **biases)


def shared_expert(g: GraphBuilder, x: Value, b: str) -> Value:
    """The shared experts of block ``b`` on its normed input."""
    gate, up = (g.linear(x, f"{b}ffn_{p}_shexp.weight") for p in ("gate", "up"))
    return g.linear(g.glu(gate, up), b + "ffn_down_shexp.weight")
