"""The graph: a list of stages, each a list of ops over named values and weight names.

This is a description; it holds no array and computes nothing. The formula of each op is stated here and defined by
the backend ``numpy``. Letters: T tokens of the batch, D width of a value, H query heads, G key/value heads,
K width of a key head, V width of a value head, E experts of which each token uses k, F width inside an expert.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from attrs import define, field, frozen

from ramforge_core.errors import TensorError

GRAPH_VERSION = 2
"""Raised whenever an op is added or gets a new meaning; see `Graph.version`."""


@frozen
class Value:
    """A named float32 array (T, width) that one op writes and later ops read."""

    name: str
    width: int


@frozen
class RopeScaling:
    """How rotation frequencies are stretched for contexts longer than the trained one.

    kind linear: all frequencies divided by ``factor``. kind yarn: interpolated between the stretched and the
    original frequency by dimension (Peng et al. 2023), and cos and sin multiplied by ``attention_factor``, which is
    the complete multiplier (usually 1 + 0.1 ln factor). kind longrope: nothing but that multiplier; the frequencies
    are stretched by `Rope.factors` or `Rope.long_factors`, whichever the context asks for (Ding et al. 2024).
    Llama 3's scaling needs no kind: GGUF files hold its per-dimension factors as the tensor `Rope.factors`.
    """

    kind: Literal["linear", "yarn", "longrope"]
    factor: float
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@frozen
class Embed:
    """out (T, D) = row ``token`` of the weight (vocab, D)."""

    out: Value
    weight: str


@frozen
class Norm:
    """out = x / sqrt(mean(x^2) + eps) * weight (rms), or (x - mean) / sqrt(var + eps) * weight + bias (layer).

    group : width of the runs that are normalised each by itself (per-head norm); the weight has this width.
    """

    out: Value
    x: Value
    weight: str
    eps: float
    kind: Literal["rms", "layer"]
    group: int
    bias: str | None = None


@frozen
class Linear:
    """out (T, rows) = x (T, columns) @ weight (rows, columns).T + bias (rows,).

    start : a matrix may be cut in runs of rows that are weights of their own, each with an op that writes the
        columns from ``start`` of the same ``out``; the bias is that of the whole.
    """

    out: Value
    x: Value
    weight: str
    bias: str | None = None
    start: int = 0


@frozen
class HeadLinear:
    """A matrix for each head: out[:, h*R : (h+1)*R] = x[:, h*C : (h+1)*C] @ weight[h].T, weight (H, R, C)."""

    out: Value
    x: Value
    weight: str


@frozen
class Slice:
    """The same columns of each head: out (T, heads * width) = x[:, h*head_width + start : ... + width] for each h."""

    out: Value
    x: Value
    start: int
    heads: int = 1


@frozen
class Join:
    """Each head of a with that of b behind it: out (T, heads * (A + B)), a (T, heads * A), b (T, heads * B)."""

    out: Value
    a: Value
    b: Value
    heads: int


@frozen
class Add:
    """out = a + b."""

    out: Value
    a: Value
    b: Value


@frozen
class Mul:
    """out = a * b, value by value."""

    out: Value
    a: Value
    b: Value


@frozen
class Scale:
    """out = x * factor."""

    out: Value
    x: Value
    factor: float


@frozen
class Softcap:
    """out = cap * tanh(x / cap)."""

    out: Value
    x: Value
    cap: float


@frozen
class Rope:
    """Rotate each head of x (T, heads * head_width) by its token's position.

    The first ``rotary_width`` values of a head are rotated in pairs, the rest is copied. pairs ``adjacent``: value
    2i with 2i+1; ``half``: value i with i + rotary_width/2. Pair i turns by position * base^(-2i/rotary_width),
    divided by ``factors[i]`` where that weight (rotary_width/2,) is named, then changed by ``scaling``.
    long_factors : takes the place of ``factors`` in a program whose context (`Limits.max_context`) is longer than
        ``scaling.original_context``.
    """

    out: Value
    x: Value
    head_width: int
    rotary_width: int
    pairs: Literal["adjacent", "half"]
    base: float
    scaling: RopeScaling | None = None
    factors: str | None = None
    long_factors: str | None = None


@frozen
class Attention:
    """Store this batch's keys and values, then attend: softmax(q @ k.T * scale) @ v, causal, per head.

    q (T, H*K), k (T, G*K), v (T, G*V), out (T, H*V). Query head h reads key/value head h // (H/G). A token at
    position p sees positions 0..p of its own sequence, or only the last ``window`` of them. Keys and values are
    rounded to the cache's type before they are attended. softcap: scores become cap * tanh(s / cap). sinks: a weight
    (H,) of scores that take part in the softmax's sum and carry no value.
    ``layer`` is the index in the KV cache, 0 for the first attention op of the graph.
    """

    out: Value
    q: Value
    k: Value
    v: Value
    layer: int
    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: str | None = None


@frozen
class Glu:
    """out = act(gate) * up; act is silu: x * sigmoid(x), or gelu: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""

    out: Value
    gate: Value
    up: Value
    act: Literal["silu", "gelu"]


@frozen
class Gate:
    """out = x * sigmoid(gate); gate (T, 1) goes for the whole row, gate (T, width of x) value by value."""

    out: Value
    x: Value
    gate: Value


@frozen
class Route:
    """Choose k experts for each token: out (T, 2k) = their numbers, ascending, then their weights in this order.

    logits (T, E). scores s are softmax(logits) or sigmoid(logits). Chosen are the k largest s + bias, bias being a
    weight (E,) or 0; of equal ones the lower number, and what is not a number counts as the largest. The weight of an
    expert is its s, divided by the sum of the chosen ones if ``normalise`` (which makes softmax a softmax over the
    chosen), times ``scale``. Numbers are exact: a float32 holds integers up to 2^24.
    """

    out: Value
    logits: Value
    scores: Literal["softmax", "sigmoid"]
    normalise: bool
    scale: float
    bias: str | None = None


@frozen
class Moe:
    """Mixture of experts: out[t] = sum over the chosen e, ascending, of w(t, e) * (down_e @ h + down_bias_e).

    h = glu(gate_e @ x[t] + gate_bias_e, up_e @ x[t] + up_bias_e). x (T, D); routes (T, 2k) as from `Route`; weights
    gate and up (E, F, D), down (E, D, F), their biases (E, F), (E, F), (E, D). act is silu or gelu as in `Glu`, or
    swiglu_oai: (u + 1) * g * sigmoid(1.702 g) with g = min(gate, 7) and u = up clamped to [-7, 7] (gpt-oss).
    experts, expert_width : E and F.
    Summing in the order of the experts makes a token's result independent of the others in the batch, and lets a
    backend take some experts first and the others later: see `Program.run`.
    """

    out: Value
    x: Value
    routes: Value
    gate_weight: str
    up_weight: str
    down_weight: str
    experts: int
    expert_width: int
    act: Literal["silu", "gelu", "swiglu_oai"] = "silu"
    gate_bias: str | None = None
    up_bias: str | None = None
    down_bias: str | None = None

    @property
    def chosen(self) -> int:
        """Experts for each token: k."""
        return self.routes.width // 2

    @property
    def expert_weights(self) -> tuple[str, str, str]:
        """Names of the weights whose first dimension is the expert."""
        return self.gate_weight, self.up_weight, self.down_weight


Op = (
    Embed
    | Norm
    | Linear
    | HeadLinear
    | Slice
    | Join
    | Add
    | Mul
    | Scale
    | Softcap
    | Rope
    | Attention
    | Glu
    | Gate
    | Route
    | Moe
)
"""The closed set. A backend implements all of it."""

_WEIGHT_FIELDS = (
    "weight",
    "gate_weight",
    "up_weight",
    "down_weight",
    "bias",
    "gate_bias",
    "up_bias",
    "down_bias",
)
_INPUT_FIELDS = ("x", "a", "b", "q", "k", "v", "gate", "up", "logits", "routes")


def op_weights(op: Op) -> tuple[str, ...]:
    """Names of the weights that an op reads, in a fixed order."""
    names = (getattr(op, f, None) for f in (*_WEIGHT_FIELDS, "factors", "sinks"))
    return tuple(n for n in names if n is not None)


def op_inputs(op: Op) -> tuple[Value, ...]:
    """Values that an op reads, in the order of its fields."""
    values = (getattr(op, f, None) for f in _INPUT_FIELDS)
    return tuple(v for v in values if v is not None)


@frozen
class Stage:
    """A run of ops that belongs together: the embedding, one block, the head.

    rows ``wanted``: the ops work only on the tokens whose logits are wanted, gathered at the stage's entry.
    """

    name: str
    ops: tuple[Op, ...]
    rows: Literal["all", "wanted"] = "all"


@frozen
class Graph:
    """All stages of a pass. ``logits`` is the value that the pass is run for; its width is the vocabulary."""

    stages: tuple[Stage, ...]
    logits: Value

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple(op for stage in self.stages for op in stage.ops)

    @property
    def version(self) -> int:
        """The lowest `GRAPH_VERSION` that has all that this graph is made of: what a backend must know."""
        second = (Gate, Route, Moe, HeadLinear, Join)

        def since(op: Op) -> int:
            newer = getattr(op, "long_factors", None) or (isinstance(op, Slice) and op.heads > 1)
            return 2 if newer or isinstance(op, second) else 1

        return max(since(op) for op in self.ops)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attention ops; the position in this list is their ``layer``."""
        return tuple(op for op in self.ops if isinstance(op, Attention))

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of all weights in the order of first use."""
        return tuple(dict.fromkeys(name for op in self.ops for name in op_weights(op)))


@define
class GraphBuilder:
    """Builds a `Graph` op by op and checks widths against the tensors' shapes while doing so.

    shapes : name -> NumPy-order shape of every tensor that the file really holds.
    """

    shapes: Mapping[str, tuple[int, ...]]
    _stages: list[Stage] = field(factory=list, init=False)
    _ops: list[Op] | None = field(default=None, init=False)
    _count: int = field(default=0, init=False)
    _layers: int = field(default=0, init=False)
    _logits: Value | None = field(default=None, init=False)

    def has(self, name: str) -> bool:
        """Whether the file holds this (optional) tensor."""
        return name in self.shapes

    @contextmanager
    def stage(self, name: str, rows: Literal["all", "wanted"] = "all") -> Iterator[None]:
        """Everything built inside belongs to this stage."""
        self._ops = []
        yield
        self._stages.append(Stage(name, tuple(self._ops), rows))
        self._ops = None

    def _value(self, width: int) -> Value:
        self._count += 1
        return Value(f"v{self._count}", width)

    def _emit(self, op: Op) -> Value:
        if self._ops is None:
            raise ValueError("an op must be built inside a stage")
        self._ops.append(op)
        return op.out

    def _matrix(self, name: str, columns: int | None) -> int:
        shape = self.shapes[name]
        if len(shape) != 2 or columns not in (None, shape[1]):
            raise TensorError(f"tensor {name!r} has shape {shape}, but {columns} columns are needed here")
        return shape[0]

    def _vector(self, name: str, width: int) -> str:
        if self.shapes[name] != (width,):
            raise TensorError(f"tensor {name!r} has shape {self.shapes[name]}, expected ({width},)")
        return name

    def _same(self, a: Value, b: Value) -> int:
        if a.width != b.width:
            raise ValueError(f"{a.name} has width {a.width}, {b.name} has {b.width}; they must agree")
        return a.width

    def embed(self, weight: str) -> Value:
        self._matrix(weight, None)
        return self._emit(Embed(self._value(self.shapes[weight][1]), weight))

    def norm(
        self,
        x: Value,
        weight: str,
        eps: float,
        kind: Literal["rms", "layer"] = "rms",
        *,
        group: int | None = None,
        bias: str | None = None,
    ) -> Value:
        width = group or x.width
        if x.width % width:
            raise ValueError(f"a value of width {x.width} has no whole groups of {width}")
        self._vector(weight, width)
        if bias is not None:
            self._vector(bias, width)
        return self._emit(Norm(self._value(x.width), x, weight, eps, kind, width, bias))

    def linear(self, x: Value, weight: str, bias: str | None = None) -> Value:
        rows = self._matrix(weight, x.width)
        if bias is not None:
            self._vector(bias, rows)
        return self._emit(Linear(self._value(rows), x, weight, bias))

    def head_linear(self, x: Value, weight: str) -> Value:
        heads, rows, columns = self.shapes[weight]
        if heads * columns != x.width:
            raise TensorError(
                f"tensor {weight!r} has shape {(heads, rows, columns)}, x has {x.width} columns"
            )
        return self._emit(HeadLinear(self._value(heads * rows), x, weight))

    def slice(self, x: Value, start: int, width: int, heads: int = 1) -> Value:
        """width, start : in each head."""
        whole, rest = divmod(x.width, heads)
        if rest or start < 0 or width < 1 or start + width > whole:
            raise ValueError(
                f"slice [{start}, {start + width}) is outside {heads} heads of a value of {x.width}"
            )
        return self._emit(Slice(self._value(heads * width), x, start, heads))

    def join(self, a: Value, b: Value, heads: int = 1) -> Value:
        if a.width % heads or b.width % heads:
            raise ValueError(f"values of width {a.width} and {b.width} do not have {heads} heads")
        return self._emit(Join(self._value(a.width + b.width), a, b, heads))

    def add(self, a: Value, b: Value) -> Value:
        return self._emit(Add(self._value(self._same(a, b)), a, b))

    def mul(self, a: Value, b: Value) -> Value:
        return self._emit(Mul(self._value(self._same(a, b)), a, b))

    def scale(self, x: Value, factor: float) -> Value:
        return self._emit(Scale(self._value(x.width), x, factor))

    def softcap(self, x: Value, cap: float) -> Value:
        return self._emit(Softcap(self._value(x.width), x, cap))

    def rope(
        self,
        x: Value,
        *,
        head_width: int,
        rotary_width: int,
        pairs: Literal["adjacent", "half"],
        base: float,
        scaling: RopeScaling | None = None,
        factors: str | None = None,
        long_factors: str | None = None,
    ) -> Value:
        if x.width % head_width or rotary_width > head_width or rotary_width % 2:
            raise ValueError(
                f"cannot rotate {rotary_width} values of heads of {head_width} in a value of {x.width}"
            )
        for name in (factors, long_factors):
            if name is not None:
                self._vector(name, rotary_width // 2)
        out = self._value(x.width)
        return self._emit(Rope(out, x, head_width, rotary_width, pairs, base, scaling, factors, long_factors))

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        *,
        heads: int,
        kv_heads: int,
        key_width: int,
        value_width: int,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: str | None = None,
    ) -> Value:
        wanted = (heads * key_width, kv_heads * key_width, kv_heads * value_width)
        if (q.width, k.width, v.width) != wanted or heads % kv_heads:
            raise ValueError(f"q, k, v have widths {(q.width, k.width, v.width)}, expected {wanted}")
        if sinks is not None:
            self._vector(sinks, heads)
        out = self._value(heads * value_width)
        layer, self._layers = self._layers, self._layers + 1
        return self._emit(
            Attention(
                out, q, k, v, layer, heads, kv_heads, key_width, value_width, scale, window, softcap, sinks
            )
        )

    def glu(self, gate: Value, up: Value, act: Literal["silu", "gelu"] = "silu") -> Value:
        return self._emit(Glu(self._value(self._same(gate, up)), gate, up, act))

    def gate(self, x: Value, gate: Value) -> Value:
        if gate.width not in (1, x.width):
            raise ValueError(
                f"a gate of width {gate.width} for a value of width {x.width}; 1 or {x.width} fits"
            )
        return self._emit(Gate(self._value(x.width), x, gate))

    def route(
        self,
        logits: Value,
        chosen: int,
        *,
        normalise: bool,
        scores: Literal["softmax", "sigmoid"] = "softmax",
        scale: float = 1.0,
        bias: str | None = None,
    ) -> Value:
        if not 1 <= chosen <= logits.width:
            raise ValueError(f"{chosen} of {logits.width} experts cannot be chosen")
        if bias is not None:
            self._vector(bias, logits.width)
        return self._emit(Route(self._value(2 * chosen), logits, scores, normalise, scale, bias))

    def moe(
        self,
        x: Value,
        routes: Value,
        gate: str,
        up: str,
        down: str,
        act: Literal["silu", "gelu", "swiglu_oai"] = "silu",
        *,
        gate_bias: str | None = None,
        up_bias: str | None = None,
        down_bias: str | None = None,
    ) -> Value:
        experts, width = self.shapes[gate][0], self.shapes[gate][-2]
        wanted = {
            gate: (experts, width, x.width),
            up: (experts, width, x.width),
            down: (experts, x.width, width),
            gate_bias: (experts, width),
            up_bias: (experts, width),
            down_bias: (experts, x.width),
        }
        for name, shape in wanted.items():
            if name is not None and self.shapes[name] != shape:
                raise TensorError(f"tensor {name!r} has shape {self.shapes[name]}, expected {shape}")
        biases = (gate_bias, up_bias, down_bias)
        return self._emit(Moe(self._value(x.width), x, routes, gate, up, down, experts, width, act, *biases))

    def logits(self, x: Value) -> None:
        """Name the value that the pass is run for."""
        self._logits = x

    def finish(self) -> Graph:
        if self._logits is None:
            raise ValueError("the graph names no logits")
        return Graph(tuple(self._stages), self._logits)
