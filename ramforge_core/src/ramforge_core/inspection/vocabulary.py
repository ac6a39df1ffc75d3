"""What a file says of its vocabulary, and what is odd about it. Builds no tokenizer, so that it is quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from attrs import frozen

from ramforge_core.errors import GGUFError
from ramforge_core.gguf import Metadata, MetadataArray, StringTable
from ramforge_core.gguf.metadata import decode_text
from ramforge_core.vocabulary import Vocabulary

T = TypeVar("T")

_SPECIAL = ("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask")
"""Names in ``tokenizer.ggml.<name>_token_id``; the misspelling is the format's own."""


@frozen
class TokenizerFacts:
    """What the file says of its vocabulary, and what is odd about it.

    special : id by name (``bos``, ``eos``, ``eot``, ...), as the file has them.
    end_of_generation : id to text of every token that ends an answer.
    add_bos, add_eos : None where the file leaves it to the tokenizer.
    """

    model: str | None
    pre: str | None
    tokens: int
    merges: int
    special: Mapping[str, int]
    end_of_generation: Mapping[int, str]
    add_bos: bool | None
    add_eos: bool | None
    warnings: Sequence[str]


class Asker:
    """Asks for metadata that may be missing; what is there but of a wrong kind is noted, not fatal (A14)."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.refused: list[str] = []

    def _ask(self, getter: Callable[[], T]) -> T | None:
        try:
            return getter()
        except GGUFError as error:
            self.refused.append(str(error))
            return None

    def text(self, key: str) -> str | None:
        return self._ask(lambda: self.metadata.text(key, None))

    def integer(self, key: str) -> int | None:
        return self._ask(lambda: self.metadata.integer(key, None))

    def number(self, key: str) -> float | None:
        return self._ask(lambda: self.metadata.number(key, None))

    def flag(self, key: str) -> bool | None:
        return self._ask(lambda: self.metadata.flag(key, None))

    def strings(self, key: str) -> StringTable:
        """Empty if there are none."""
        found = self._ask(lambda: self.metadata.strings(key)) if key in self.metadata else None
        return StringTable.from_payload(b"", 0) if found is None else found

    def length(self, key: str) -> int:
        """Items of an array, 0 if there is none."""
        value = self.metadata.get(key)
        return len(value) if isinstance(value, MetadataArray) else 0


def tokenizer_facts(ask: Asker) -> TokenizerFacts:
    """Read the keys ``tokenizer.ggml.*``."""
    tokens = ask.strings("tokenizer.ggml.tokens")
    model = ask.text("tokenizer.ggml.model")
    pre = ask.text("tokenizer.ggml.pre")
    asked = {name: ask.integer(f"tokenizer.ggml.{name}_token_id") for name in _SPECIAL}
    special = {name: token for name, token in asked.items() if token is not None}
    oddities = _oddities(ask, model, pre, len(tokens), special)
    ends: frozenset[int] = frozenset()
    if tokens:
        try:
            ends = Vocabulary.read(ask.metadata).end_of_generation
        except GGUFError as error:
            if not oddities and not ask.refused:  # else it has been said
                oddities.append(str(error))
    return TokenizerFacts(
        model=model,
        pre=pre,
        tokens=len(tokens),
        merges=ask.length("tokenizer.ggml.merges"),
        special=special,
        end_of_generation={t: decode_text(tokens[t]) for t in sorted(ends)},
        add_bos=ask.flag("tokenizer.ggml.add_bos_token"),
        add_eos=ask.flag("tokenizer.ggml.add_eos_token"),
        warnings=oddities,
    )


def _oddities(
    ask: Asker, model: str | None, pre: str | None, n_tokens: int, special: Mapping[str, int]
) -> list[str]:
    found = []
    if model == "gpt2" and pre in (None, "default"):
        state = "missing" if pre is None else "'default'"
        found.append(
            f"tokenizer.ggml.pre is {state}: text is split by a default rule that may not be the model's own"
        )
    found += [
        f"tokenizer.ggml.{name}_token_id is {token}, but the vocabulary has {n_tokens} tokens"
        for name, token in special.items()
        if not 0 <= token < n_tokens
    ]
    lengths = {name: ask.length(f"tokenizer.ggml.{name}") for name in ("scores", "token_type")}
    found += [
        f"tokenizer.ggml.{name} has {length} items for {n_tokens} tokens"
        for name, length in lengths.items()
        if length not in (0, n_tokens)
    ]
    return found
