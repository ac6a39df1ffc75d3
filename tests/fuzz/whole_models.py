"""Target: sound models with a few things changed (structure-aware), through ``inspect``, ``plan`` and ``run``.

Inputs below 128 change one of our own models, others one of the fixtures in ``../shared``, where they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field
from synthetic import Sizes, write_model

import ramforge_core
from fuzz.target import FRACTIONS, NUMBERS, Choices, folder
from ramforge_core.calibration import CalibrationStore
from ramforge_core.errors import RamforgeError
from ramforge_core.gguf import open_gguf
from ramforge_core.inspection import inspect
from ramforge_core.inspection import render as render_inspection
from ramforge_core.planning import plan_model
from ramforge_core.planning import render as render_plan
from ramforge_core.plugins import Registry
from ramforge_core.testing.gguf_writer import pack_info, pack_pair, raw_gguf

REGISTRY = Registry.discover()
FIXTURES = Path(__file__).resolve().parents[3] / "shared" / "fixtures"
LARGEST_FIXTURE = 1_500_000
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
PLAIN = Sizes(layers=2, width=64, heads=4, kv_heads=2, feed_forward=96, vocab=280, quant="q8_0", rich="q8_0")
SYNTHETIC = (
    ("llama", PLAIN),
    ("qwen2", PLAIN),
    ("llama", Sizes(layers=1, width=64, heads=2, kv_heads=1, feed_forward=64, vocab=270, quant="q8_0", rich="f16",
                    tied=True, experts=4)),
    ("llama", Sizes(layers=1, width=256, heads=4, kv_heads=1, feed_forward=256, vocab=270)),
)  # fmt: skip
ARCHITECTURES = (
    *(
        "llama",
        "qwen2",
        "qwen3",
        "qwen2moe",
        "qwen3moe",
        "gemma",
        "gemma2",
        "gemma3",
        "phi3",
        "granite",
        "olmo2",
    ),
    *("smollm3", "gpt-oss", "mistral", "deepseek2", "nonsense", "bert", ""),
)
SUFFIXES = (
    *(
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "vocab_size",
        "logit_scale",
    ),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("attention.layer_norm_rms_epsilon", "attention.scale", "attention.sliding_window", "expert_count"),
    *("expert_used_count", "expert_shared_count", "expert_feed_forward_length", "expert_weights_scale"),
    *(
        "expert_weights_norm",
        "expert_gating_func",
        "rope.freq_base",
        "rope.dimension_count",
        "rope.scaling.type",
    ),
    *("rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor"),
    *(
        "rope.scaling.yarn_log_multiplier",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "embedding_scale",
    ),
    *("residual_scale", "attention.sliding_window_pattern", "rope.freq_base_swa", "use_parallel_residual"),
)
VALUES: tuple[object, ...] = (
    *NUMBERS,
    *FRACTIONS,
    True,
    False,
    "",
    "yarn",
    "linear",
    "longrope",
    "none",
    b"\xff",
    -1,
)
LISTS: tuple[object, ...] = (
    [],
    [0],
    [1, 2],
    [2**31] * 3,
    [True],
    ["x"],
    [[1]],
    [float("nan")] * 2,
    [1.5] * 64,
)
DIMENSIONS = (0, 1, 2, 16, 31, 32, 64, 128, 256, 257, 2**16, 2**31, 2**32, 2**40, 2**63)
PATTERNS = (b"\xff", b"\0", b"\x80\x7f", b"\0\x7e", b"\0\x7c", b"\xff\x7b", b"\1\0", b"\x55\xaa\3")

RATES: dict[str, dict[str, Any]] = {
    "disk": {"bytes_per_s": 1e9, "latency_s": 1e-4, "method": "direct", "measured_bytes": 1 << 20, "date": ""},
    "compute": {"decode_s": 0.01, "position": 128, "attention_s": 1e-6, "prefill_s": 0.1, "prefill_tokens": 64,
                "segment_s": 1e-5, "date": ""},
}  # fmt: skip


@define
class Parts:
    """A file taken apart. infos : name, dimensions fastest first, type, offset; all of them lists, to be changed."""

    pairs: dict[str, Any]
    infos: list[list[Any]]
    data: bytearray
    kinds: dict[str, str] = field(factory=dict)

    @classmethod
    def of(cls, path: Path) -> Parts:
        gguf = open_gguf(path)
        values = {key: _plain(value) for key, value in gguf.metadata.items()}
        start = min(info.offset for info in gguf.tensors.values())
        infos = [[i.name, list(i.shape[::-1]), i.ggml_type, i.offset - start] for i in gguf.tensors.values()]
        return cls(values, infos, bytearray(path.read_bytes()[start:]))

    def copy(self) -> Parts:
        pairs = {k: v.copy() if hasattr(v, "copy") else v for k, v in self.pairs.items()}
        return Parts(pairs, [[n, list(d), t, o] for n, d, t, o in self.infos], bytearray(self.data))

    def packed(self) -> bytes:
        pairs = []
        for key, value in self.pairs.items():
            try:
                pairs.append(pack_pair(key, value))
            except (struct.error, OverflowError, ValueError):  # too large, or a list of several kinds
                pairs.append(pack_pair(key, str(value)[:99]))
        infos = [pack_info(name, [d % 2**64 for d in dims], kind, at) for name, dims, kind, at in self.infos]
        return raw_gguf(pairs, infos, self.data)


def _plain(value: object) -> Any:
    if not hasattr(value, "element_type"):
        return value
    return list(value.strings()) if value.element_type == "string" else value.to_numpy()


@cache
def models() -> tuple[list[Parts], list[Parts]]:
    """Our own, and the fixtures."""
    own = []
    with folder() as place:
        for arch, sizes in SYNTHETIC:
            own.append(Parts.of(write_model(place / "m.gguf", sizes, arch, template=TEMPLATE)))
    files = sorted(FIXTURES.glob("*/*.gguf"))
    return own, [Parts.of(file) for file in files if file.stat().st_size <= LARGEST_FIXTURE]


class Remembered(CalibrationStore):
    """Rates that are known already, as on any machine after its first plan."""

    def get(self, kind, key, parse):
        return parse(RATES[kind])


def seeds() -> Iterator[bytes]:
    for change in range(13):
        for model in range(4):
            yield bytes([model, 0, 0, change, 7, 4 * change, 3, 0, 0])
    n = len(models()[1])
    for model in range(n):
        yield bytes([128 + model, 0, 0, 1 + model % 12, model, 3, 1, 0])


def check(data: bytes) -> None:
    choices = Choices(data)
    own, fixtures = models()
    chosen, memory, context = choices.byte(), choices.byte(), choices.byte()
    of = fixtures if chosen >= 128 and fixtures else own
    parts = of[chosen % 128 % len(of)].copy()
    cut = 0
    while change := choices.byte() % 13:
        if change == 12:
            cut = choices.below(1 << 16)
        else:
            _CHANGES[change](parts, choices)
    raw = bytearray(parts.packed())
    if cut:
        del raw[-cut:]
    with folder() as place:
        path = place / "model.gguf"
        path.write_bytes(raw)
        ram = ("1G", "600M", "100%", "8G")[memory % 4]
        use(path, ram, (64, 16, None, 4096)[context % 4])


def use(path: Path, ram: str, ctx: int | None) -> None:
    """What ``inspect``, ``plan`` and ``run`` do; each may refuse the file in its own way."""
    for work in (_inspect, _plan, _run):
        try:
            work(path, ram, ctx)
        except RamforgeError as error:
            if not str(error) or "\n" in str(error):
                raise AssertionError(f"this is no message for people: {error}") from error


def _inspect(path: Path, _ram: str, _ctx: int | None) -> None:
    if not render_inspection(inspect(path, REGISTRY)).replace("\n", "").isprintable():
        raise AssertionError("the report holds control characters")


def _plan(path: Path, ram: str, ctx: int | None) -> None:
    render_plan(plan_model(path, ram=ram, ctx=ctx, threads=1, registry=REGISTRY, store=Remembered()))


def _run(path: Path, ram: str, ctx: int | None) -> None:
    with ramforge_core.open(path, ram=ram, ctx=ctx, threads=1, registry=REGISTRY) as model:
        for raw in (True, False):
            model.generate("hi ä", raw=raw, max_tokens=2, temperature=0).text()


def _metadata_number(parts: Parts, choices: Choices) -> None:
    key = choices.pick(list(parts.pairs) or ["x"])
    parts.pairs[key] = choices.pick(VALUES)


def _configuration(parts: Parts, choices: Choices) -> None:
    architecture = parts.pairs.get("general.architecture", "llama")
    parts.pairs[f"{architecture}.{choices.pick(SUFFIXES)}"] = choices.pick((*VALUES, *LISTS))


def _metadata_list(parts: Parts, choices: Choices) -> None:
    parts.pairs[choices.pick(list(parts.pairs) or ["x"])] = choices.pick(LISTS)


def _no_key(parts: Parts, choices: Choices) -> None:
    parts.pairs.pop(choices.pick(list(parts.pairs) or ["x"]), None)


def _item(parts: Parts, choices: Choices) -> None:
    lists = [
        key for key, value in parts.pairs.items() if isinstance(value, (list, np.ndarray)) and len(value)
    ]
    if not lists:
        return
    table = parts.pairs[choices.pick(lists)]
    at = choices.below(len(table))
    if isinstance(table, list):
        table[at] = choices.take() if isinstance(table[0], (str, bytes)) else table[0]
    else:
        table = table.copy()
        with np.errstate(all="ignore"):
            table[at] = np.array(choices.byte() - 128).astype(table.dtype)
        parts.pairs[next(k for k in lists if len(parts.pairs[k]) == len(table))] = table


def _architecture(parts: Parts, choices: Choices) -> None:
    old, new = parts.pairs.get("general.architecture", ""), choices.pick(ARCHITECTURES)
    if choices.byte() % 2:  # with all of its keys
        parts.pairs = {k.replace(f"{old}.", f"{new}.", 1): v for k, v in parts.pairs.items()}
    parts.pairs["general.architecture"] = new


def _info(parts: Parts, choices: Choices) -> list[Any]:
    return choices.pick(parts.infos or [["x", [1], 0, 0]])


def _shape(parts: Parts, choices: Choices) -> None:
    dims = _info(parts, choices)[1]
    at, how = choices.below(len(dims)), choices.byte() % 4
    if how == 0:
        dims[at] = choices.pick(DIMENSIONS)
    elif how == 1:
        dims.reverse()
    elif how == 2:
        dims.append(1 + choices.byte() % 2)
    else:
        dims[at] += choices.byte() - 128


def _type(parts: Parts, choices: Choices) -> None:
    _info(parts, choices)[2] = choices.byte() % 45


def _offset(parts: Parts, choices: Choices) -> None:
    _info(parts, choices)[3] = (
        (32 * choices.below(1 << 15) + choices.byte() % 2) if choices.byte() % 2 else 2**63
    )


def _tensors(parts: Parts, choices: Choices) -> None:
    at, how = choices.below(len(parts.infos)), choices.byte() % 3
    if how == 0 and parts.infos:
        del parts.infos[at]
    elif how == 1:
        parts.infos.append(list(_info(parts, choices)))
    elif parts.infos:
        parts.infos[at][0] = choices.pick(
            ("output.weight", "rope_freqs.weight", "blk.0.attn_q.bias", "x", "é" * 99)
        )


def _weights(parts: Parts, choices: Choices) -> None:
    offset = _info(parts, choices)[3] + choices.below(1 << 12)
    pattern = choices.pick(PATTERNS) * (1 + choices.byte() * choices.byte())
    if offset < len(parts.data):
        end = min(offset + len(pattern), len(parts.data))
        parts.data[offset:end] = pattern[: end - offset]


_CHANGES = (
    None, _metadata_number, _configuration, _metadata_list, _no_key, _item, _architecture, _shape, _type, _offset,
    _tensors, _weights,
)  # fmt: skip
