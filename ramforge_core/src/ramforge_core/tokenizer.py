"""The contract of a tokenizer: text to ids and back, from the metadata of the file alone.

A tokenizer over an ordinary GGUF vocabulary has most of it from `ramforge_core.vocabulary.VocabularyTokenizer`.
"""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata


class Tokenizer(ABC):
    """One vocabulary. Immutable and safe from several threads.

    key : the value of ``tokenizer.ggml.model``.
    bos_id, eos_id : None where the vocabulary has none.
    add_bos, add_eos : whether ``add_special`` adds them.
    end_of_generation : every id that ends an answer: eos, eot, eom and their kin.
    """

    key: ClassVar[str]
    n_vocab: int
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    add_eos: bool
    end_of_generation: frozenset[int]

    @classmethod
    @abstractmethod
    def from_metadata(cls, metadata: Metadata) -> Tokenizer:
        """Build from the header. Raises MetadataError naming the key at fault."""

    @abstractmethod
    def encode(
        self,
        text: str,
        *,
        add_special: bool = False,
        parse_special: bool = False,
        barriers: Sequence[int] = (),
    ) -> list[int]:
        """Text to ids.

        add_special : add BOS/EOS as the file asks, never a second BOS before one that the text begins with.
        parse_special : text of control tokens becomes the token. User-defined tokens are matched always.
        barriers : ascending character offsets that no special token may span, so that what a user typed stays text.
        """

    def tokenize(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """`encode` as an open model has it."""
        return self.encode(text, add_special=add_special, parse_special=parse_special)

    @abstractmethod
    def piece(self, token: int, *, special: bool = True) -> bytes:
        """Bytes of one token; control tokens give their text, or nothing when ``special`` is False."""

    @abstractmethod
    def token_id(self, text: str) -> int | None:
        """The id of the token whose text is exactly this, or None."""

    @abstractmethod
    def is_control(self, token: int) -> bool:
        """Whether the token is a control (or unknown) token rather than text."""

    @property
    @abstractmethod
    def control_texts(self) -> Sequence[str]:
        """The texts that ``parse_special`` turns into control tokens."""

    @abstractmethod
    def detokenize(self, ids: Iterable[int]) -> bytes:
        """The pieces joined, without the one blank at the start that the vocabulary itself added."""

    def decode(self, ids: Iterable[int], *, special: bool = True) -> bytes:
        """The pieces joined, nothing stripped: what a streaming printer emits."""
        return b"".join(self.piece(i, special=special) for i in ids)

    def stream(self, *, special: bool = False) -> TokenStream:
        """A decoder that takes ids one by one and gives text as it becomes decodable."""
        return TokenStream(self, special=special)


class TokenStream:
    """Ids in, text out; an incomplete UTF-8 sequence waits for its next byte, invalid bytes become U+FFFD."""

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Text that this token completes; may be empty."""
        return self._utf8.decode(self._tokenizer.piece(token, special=self._special))

    def finish(self) -> str:
        """What was still held back, with U+FFFD for an incomplete tail."""
        return self._utf8.decode(b"", final=True)
