"""The Python API: open a model, tokenize, get logits, generate.

import ramforge_core
with ramforge_core.open("model.gguf") as m:
    for piece in m.generate("Why is the sky blue?", max_tokens=100):
        print(piece, end="", flush=True)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from ramforge_core.answer import Answer
from ramforge_core.backend import Backend
from ramforge_core.budget import MemoryBudget
from ramforge_core.chat import ChatTemplate
from ramforge_core.engine import Engine, load_engine
from ramforge_core.errors import ParameterError
from ramforge_core.generation import Generation, GenerationStats
from ramforge_core.gguf import GGUF, Metadata, open_gguf
from ramforge_core.kv import KV_TYPES, KVType
from ramforge_core.model import Model, read_model
from ramforge_core.plugins import Registry
from ramforge_core.profile import Profile
from ramforge_core.pull import resolve
from ramforge_core.sampling import Sampler, SamplingParameters
from ramforge_core.sequence import KeptSequence
from ramforge_core.sizes import parse_size
from ramforge_core.system import available_memory, check_budget, default_budget
from ramforge_core.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ramforge_core.planning import Plan

Messages = Sequence[Mapping[str, str]]


@define
class Stats:
    """What loading took, and what the last answer took."""

    load_s: float
    weight_bytes: int
    backend: str
    isa: str = ""
    threads: int | None = None
    last: GenerationStats = field(factory=GenerationStats)

    def to_dict(self) -> dict[str, Any]:
        return {
            "load_s": self.load_s,
            "weight_bytes": self.weight_bytes,
            "backend": self.backend,
            "isa": self.isa,
            "threads": self.threads,
            **self.last.to_dict(),
        }


@frozen(eq=False)
class Opened:
    """How a model was opened: the backend that computes, and what was asked for. context : None where it was free."""

    backend: Backend
    context: int | None
    kv_type: KVType
    threads: int
    sequences: int = 1


@define(eq=False)
class LanguageModel:
    """An open model. Use as a context manager, or call `close`."""

    engine: Engine = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    template: ChatTemplate | None = field(repr=False)
    stats: Stats
    opened: Opened = field(repr=False)
    profile: Profile | None = field(default=None, repr=False)

    @property
    def plan(self) -> Plan:
        """What `ramforge plan` says of this model as it was opened.

        It has speeds as far as the rates of disk and kernels are remembered; nothing is measured here.
        """
        from ramforge_core.planning import plan_opened

        return plan_opened(self.engine, self.opened)

    def tokenize(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Text to token ids; see `Tokenizer.encode`."""
        return self.tokenizer.tokenize(text, add_special, parse_special)

    def detokenize(self, ids: Iterable[int]) -> bytes:
        """Token ids to bytes, without the blank at the start that the vocabulary itself added."""
        return self.tokenizer.detokenize(ids)

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits after each of ``ids``, which start a text: float32 (len(ids), n_vocab)."""
        return self.engine.all_logits(ids)

    def prompt_ids(
        self, prompt: str | Messages, *, system: str | None = None, raw: bool = False
    ) -> list[int]:
        """The tokens that `generate` feeds the model.

        A text becomes one user turn of the model's chat template; messages are dicts with role and content.
        With ``raw``, or where the model has no template, a text is taken as it is.
        """
        if raw or self.template is None:
            if not isinstance(prompt, (str, list, tuple)):
                raise ParameterError(f"the prompt is {prompt!r}, expected a text or a list of messages")
            if not isinstance(prompt, str) or system is not None:
                raise ParameterError(
                    "messages and a system text need a chat template; "
                    + ("raw prompts use none" if raw else "this model has none")
                )
            return self.tokenizer.encode(prompt, add_special=True)
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        return self.template.encode(self.template.render(messages))

    def generate(
        self,
        prompt: str | Messages,
        *,
        system: str | None = None,
        max_tokens: int | None = None,
        temperature: float = 0.2,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        repeat_penalty: float = 1.0,
        repeat_last_n: int = 64,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        raw: bool = False,
        special: bool = False,
        progress: Callable[[float, int], None] | None = None,
        kept: KeptSequence | None = None,
    ) -> Generation:
        """Answer a prompt: an iterator of text pieces that also has ``ids``, ``finish_reason`` and ``seed``.

        prompt, system, raw : see `prompt_ids`. max_tokens : None goes on until the model ends or the context is full.
        temperature to seed : see `SamplingParameters`. stop : texts that end the answer and are not part of it.
        special : show control tokens. progress : called with prompt tokens done and in all.
        kept : of `sequence`; what the prompt has in common with it is not computed again, and the answer is added.
        """
        parameters = SamplingParameters(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repeat_penalty=repeat_penalty,
            repeat_last_n=repeat_last_n,
            seed=seed,
        )
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if not raw and self.template is not None:
            stops += tuple(self.template.text_stops)
        prompt_ids = self.prompt_ids(prompt, system=system, raw=raw)
        room = self.engine.context - len(prompt_ids) + 1
        answer = Answer(self.tokenizer, room, max_tokens, stops, special)
        generation = Generation(self.engine, prompt_ids, Sampler(parameters), answer, progress, kept)
        self.stats.last = generation.stats
        return generation

    def sequence(self) -> KeptSequence:
        """An empty sequence to hand to `generate` turn after turn; call its ``close`` to give its memory back."""
        return KeptSequence(self.engine.cache())

    def close(self) -> None:
        """Stop what runs and give the memory back."""
        self.engine.close()

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def open(
    model: str | os.PathLike[str],
    *,
    backend: str | None = None,
    threads: int = 0,
    ctx: int | None = None,
    kv_type: KVType = "f16",
    ram: str | int | None = None,
    sequences: int = 1,
    registry: Registry | None = None,
    progress: Callable[[int, int], None] | None = None,
    profile: Profile | None = None,
    before_load: Callable[[Tokenizer], object] | None = None,
    reserve: int = 0,
) -> LanguageModel:
    """Open a model.

    model : a GGUF file, a folder or any shard of a split file, or a name that `ramforge pull` knows.
    backend : key of a backend; None takes the best that works here. threads : 0 lets it choose.
    ctx : tokens the context holds; None means 4096, or less where the model or the budget has less.
    kv_type : how keys and values are kept: f16, f32, or q8_0, which takes half of f16 and rounds more.
    ram : bytes that the whole process may take, as a number or as ``2G``, ``512M``, ``50%``; None takes a safe share of
        what the machine and its container have free. What does not fit is read from disk in every pass.
    sequences : how many texts will be made at once, see `ramforge_core.scheduler`.
    progress : called with weight bytes read and in all.
    profile : a new one, to be told where the time of passes goes; it costs a little of it.
    before_load : called before the budget is divided; what it keeps in memory counts as part of the process.
    reserve : bytes of the budget that the caller will take for itself.
    Raises a RamforgeError that says what is wrong before any weight is read.
    """
    began = time.perf_counter()
    registry = registry or Registry.discover()
    gguf = open_gguf(resolve(model, registry))
    ready = prepare(gguf, registry, backend=backend, kv_type=kv_type, ram=ram)
    facts, chosen = ready.facts, ready.backend
    if before_load is not None:
        before_load(ready.tokenizer)
    engine = load_engine(
        facts,
        chosen,
        ready.budget,
        context=ctx,
        kv_type=kv_type,
        sequences=sequences,
        threads=threads,
        reserve=reserve,
        progress=progress,
        profile=profile,
    )
    weight_bytes = sum(w.nbytes for w in facts.weights.values())
    isa = chosen.describe().get("isa", "")
    stats = Stats(time.perf_counter() - began, weight_bytes, chosen.key, isa, engine.program.threads)
    opened = Opened(chosen, ctx, kv_type, threads, sequences)
    return LanguageModel(engine, ready.tokenizer, ready.template, stats, opened, profile)


@frozen(eq=False)
class Prepared:
    """Everything of a model but its weights. Held by whoever opens it and by whoever plans to, so that both start
    from a process of the same size."""

    facts: Model
    backend: Backend
    tokenizer: Tokenizer
    template: ChatTemplate | None
    budget: MemoryBudget


def prepare(
    gguf: GGUF, registry: Registry, *, backend: str | None, kv_type: KVType, ram: str | int | None
) -> Prepared:
    """Find the plugins that a file needs, and fix the budget; arguments as in `open`."""
    if kv_type not in KV_TYPES:
        raise ParameterError(f"kv_type is {kv_type!r}, expected one of {', '.join(KV_TYPES)}")
    chosen = registry.backend(backend)
    facts = read_model(gguf, registry)
    tokenizer = _tokenizer(gguf.metadata, registry)
    template = ChatTemplate.from_metadata(gguf.metadata, tokenizer)
    if template is not None:
        import ramforge_core.template_sandbox  # noqa: F401 - imported later, it would be 6 MiB beside the budget
    return Prepared(facts, chosen, tokenizer, template, budget_of(ram))


def budget_of(ram: str | int | None) -> MemoryBudget:
    """The budget that ``ram`` asks for, in `open`'s terms, as far as the machine has it."""
    if ram is None:
        return MemoryBudget(default_budget())
    return MemoryBudget(check_budget(parse_size(ram, available_memory().limit)))


def open_tokenizer(model: str | os.PathLike[str], *, registry: Registry | None = None) -> Tokenizer:
    """The tokenizer of a file, which may hold a vocabulary only. Arguments as in `open`."""
    registry = registry or Registry.discover()
    return _tokenizer(open_gguf(resolve(model, registry)).metadata, registry)


def _tokenizer(metadata: Metadata, registry: Registry) -> Tokenizer:
    return registry.tokenizer(metadata.text("tokenizer.ggml.model")).from_metadata(metadata)
