"""What tokenizers over a GGUF vocabulary share: token kinds, special tokens, BOS and EOS, end of generation, pieces.

Not here: how plain text becomes tokens. That is what a tokenizer plugin adds to `VocabularyTokenizer`.

The rules follow llama.cpp (src/llama-vocab.cpp, MIT), which files in circulation are made for and tested with: they
hold no strip flags, and often no end-of-turn id, so that both have to be known by name.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from ramforge_core.errors import MetadataError, ParameterError
from ramforge_core.special_tokens import SpecialMatcher, SpecialToken
from ramforge_core.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata, StringTable

PREFIX = "tokenizer.ggml."

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = (1 << i for i in range(1, 7))
"""Flags of a token: bit n is set for the value n of ``tokenizer.ggml.token_type``; a token can get CONTROL later."""

N_TOKEN_TYPES = 7
SPECIAL = UNKNOWN | CONTROL | USER_DEFINED
HIDDEN = UNKNOWN | CONTROL

END_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
)
"""Tokens that end an answer whatever the metadata says; they count as control tokens even if the file disagrees."""

FILL_IN_TEXTS = {
    "fim_pre": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),
    "fim_suf": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),
    "fim_mid": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Tokens of fill-in-the-middle, which are control tokens; the first that is there counts, unless metadata says."""

FILL_IN_ENDS = ("fim_pad", "fim_rep", "fim_sep")
"""Those of them that end an answer too."""

CHANNEL_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
"""Marks of gpt-oss that have to be seen in the text, so they count as user-defined."""

PHI3_KEEPS_BLANKS = ("<unk>", "<s>", "<|endoftext|>")
"""Special tokens of Phi-3 that do not swallow the blanks behind them; all others do."""


def find_token(texts: StringTable, text: str) -> int | None:
    """The first token whose text in the file is exactly this."""
    wanted = text.encode()
    at = texts.blob.find(wanted)
    while at >= 0:
        token = int(np.searchsorted(texts.offsets, at, side="right")) - 1
        if texts[token] == wanted:
            return token
        at = texts.blob.find(wanted, at + 1)
    return None


@frozen(eq=False)
class Vocabulary:
    """What a header says of its tokens, made consistent.

    texts : token texts as in the file, raw bytes.
    flags : uint8 (n_vocab,), see `NORMAL` and its kin.
    unknown_id : stands for what cannot be said otherwise, or None.
    strip_right : special tokens that swallow the blanks behind them.
    Others as in `Tokenizer`.
    """

    texts: StringTable = field(repr=False)
    flags: NDArray[np.uint8] = field(repr=False)
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    add_bos: bool
    add_eos: bool
    end_of_generation: frozenset[int]
    strip_right: frozenset[int] = field(repr=False)

    @classmethod
    def read(
        cls,
        metadata: Metadata,
        *,
        add_bos: bool = False,
        bos_id: int | None = None,
        eos_id: int | None = None,
        unknown_id: int | None = None,
    ) -> Vocabulary:
        """From the header; the arguments are what counts where a key is missing.

        Raises MetadataError naming the key that is missing or at fault.
        """
        texts = metadata.strings(PREFIX + "tokens")
        n = len(texts)
        if n == 0:
            raise MetadataError(f"metadata key '{PREFIX}tokens' holds no tokens; this file has no vocabulary")
        flags = _token_flags(metadata, n)

        bos = _special_id(metadata, "bos", n, bos_id)
        eos = _special_id(metadata, "eos", n, eos_id)
        ends = {eos, *_ends(metadata, texts, flags)}
        return cls(
            texts=texts,
            flags=flags,
            bos_id=bos,
            eos_id=eos,
            unknown_id=_special_id(metadata, "unknown", n, unknown_id),
            add_bos=_adds(metadata, "bos", bos, add_bos),
            add_eos=_adds(metadata, "eos", eos, False),
            end_of_generation=frozenset(token for token in ends if token is not None),
            strip_right=_strip_right(metadata, texts, flags),
        )


def _token_flags(metadata: Metadata, n: int) -> NDArray[np.uint8]:
    key = PREFIX + "token_type"
    if key not in metadata:
        return np.full(n, NORMAL, np.uint8)
    types = metadata.numbers_array(key)
    if types.dtype.kind not in "iu":
        raise MetadataError(
            f"metadata key {key!r} must be an array of integers, but holds {types.dtype.name}"
        )
    if len(types) < n:
        raise MetadataError(f"metadata key {key!r} has {len(types)} items for {n} tokens")
    flags = np.zeros(n, np.uint8)
    for kind in range(1, N_TOKEN_TYPES):
        flags[types[:n] == kind] = 1 << kind
    return flags


def _ends(metadata: Metadata, texts: StringTable, flags: NDArray[np.uint8]) -> set[int | None]:
    """What ends an answer beside EOS, by key and by name; corrects the flags of tokens that are known by name."""
    n = len(texts)
    ends = {_special_id(metadata, "eot", n), _special_id(metadata, "eom", n)}
    for name, candidates in FILL_IN_TEXTS.items():
        token = _special_id(metadata, name, n)
        if token is None:
            token = next((t for c in candidates if (t := find_token(texts, c)) is not None), None)
            if token is not None:
                flags[token] |= CONTROL
        if name in FILL_IN_ENDS:
            ends.add(token)
    named = {text: token for text in END_TEXTS if (token := find_token(texts, text)) is not None}
    for token in named.values():
        flags[token] |= CONTROL
    ends.update(named.values())
    if {"<|end|>", "<|return|>", "<|call|>"} <= set(
        named
    ):  # gpt-oss, where it ends a message, not the answer
        ends.discard(named["<|end|>"])
        flags[named["<|end|>"]] = USER_DEFINED
    for text in CHANNEL_TEXTS:
        if (token := find_token(texts, text)) is not None:
            flags[token] = USER_DEFINED
    return ends


def _special_id(metadata: Metadata, name: str, n: int, default: int | None = None) -> int | None:
    key = f"{PREFIX}{name}_token_id"
    token = metadata.integer(key, None)
    if token is None:
        return default if default is not None and default < n else None
    if not 0 <= token < n:
        raise MetadataError(
            f"metadata key {key!r} is {token}, but the vocabulary has {n} tokens (0 to {n - 1})"
        )
    return token


def _adds(metadata: Metadata, name: str, token: int | None, default: bool) -> bool:
    """Whether BOS or EOS is added. Raises MetadataError when the file asks for a token that it does not name."""
    key = f"{PREFIX}add_{name}_token"
    asked = metadata.flag(key, None)
    if asked and token is None:
        raise MetadataError(f"metadata key {key!r} is true, but '{PREFIX}{name}_token_id' is missing")
    return token is not None and (default if asked is None else asked)


def _strip_right(metadata: Metadata, texts: StringTable, flags: NDArray[np.uint8]) -> frozenset[int]:
    name = metadata.text("general.name", "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    special = set(np.flatnonzero(flags & SPECIAL).tolist())
    return frozenset(special - {find_token(texts, text) for text in PHI3_KEEPS_BLANKS})


class VocabularyTokenizer(Tokenizer):
    """A tokenizer over a `Vocabulary`. A plugin adds `_encode_text` and `_find`, and `_plain` if text is escaped.

    vocabulary : what the header says.
    texts : texts of the tokens by id as the plugin keeps them; by default those of the vocabulary.
    space_prefix : whether `_encode_text` puts a blank before its text.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, texts: StringTable | None = None, space_prefix: bool = False
    ) -> None:
        self.n_vocab = len(vocabulary.flags)
        self.bos_id, self.eos_id = vocabulary.bos_id, vocabulary.eos_id
        self.add_bos, self.add_eos = vocabulary.add_bos, vocabulary.add_eos
        self.end_of_generation = vocabulary.end_of_generation
        self._flags = vocabulary.flags
        self._texts = vocabulary.texts if texts is None else texts
        self._space_prefix = space_prefix
        self._special: dict[str, int] = {}
        tokens = []
        for token in np.flatnonzero(self._flags & SPECIAL).tolist():
            try:
                text = vocabulary.texts[token].decode()
            except UnicodeDecodeError:
                continue  # no text can hold it
            if text and self._special.setdefault(text, token) == token:
                control = self.is_control(token)
                tokens.append(SpecialToken(text, token, control, token in vocabulary.strip_right))
        self._control_texts = tuple(t.text for t in tokens if t.control)
        self._all_special = SpecialMatcher(tokens)
        self._user_defined = SpecialMatcher([t for t in tokens if not t.control])

    @abstractmethod
    def _encode_text(self, text: bytes) -> list[int]:
        """Ids of non-empty UTF-8 text that holds no special token; it is at the start or behind a special token."""

    @abstractmethod
    def _find(self, text: bytes) -> int | None:
        """The id of the ordinary token that stands for these bytes."""

    def _plain(self, text: bytes) -> bytes:
        """The bytes that an ordinary token with this text stands for."""
        return text

    def encode(
        self,
        text: str,
        *,
        add_special: bool = False,
        parse_special: bool = False,
        barriers: Sequence[int] = (),
    ) -> list[int]:
        text = _without_surrogates(text)
        matcher = self._all_special if parse_special else self._user_defined
        ids: list[int] = []
        at = 0
        for match in matcher.split(text, barriers):
            if match.start > at:
                ids += self._encode_text(text[at : match.start].encode())
            ids.append(match.token)
            at = match.end
        if at < len(text):
            ids += self._encode_text(text[at:].encode())
        if add_special and self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def piece(self, token: int, *, special: bool = True) -> bytes:
        flags = self._flag(token)
        if flags & HIDDEN and not special:
            return b""
        text = self._texts[token]
        if flags & SPECIAL:
            return text
        if flags & NORMAL:
            return self._plain(text)
        if flags & BYTE:
            return byte_of_token(text)
        return b""

    def _flag(self, token: int) -> int:
        if not 0 <= token < self.n_vocab:
            raise ParameterError(f"token {token} is not in the vocabulary (0 to {self.n_vocab - 1})")
        return int(self._flags[token])

    def token_id(self, text: str) -> int | None:
        special = self._special.get(text)
        return special if special is not None else self._find(_without_surrogates(text).encode())

    def is_control(self, token: int) -> bool:
        return bool(self._flag(token) & HIDDEN)

    @property
    def control_texts(self) -> Sequence[str]:
        return self._control_texts

    def detokenize(self, ids: Iterable[int]) -> bytes:
        pieces = []
        at_start = self._space_prefix
        for token in ids:
            piece = self.piece(token)
            if at_start and not self.is_control(token):
                piece = piece.removeprefix(b" ")
                at_start = False
            pieces.append(piece)
        return b"".join(pieces)


def byte_of_token(text: bytes) -> bytes:
    """The byte of a byte token, whose text is ``<0x0A>``; nothing if the text is something else."""
    match = re.fullmatch(rb"<0x([0-9A-Fa-f]{2})>", text)
    return bytes.fromhex(match[1].decode()) if match else b""


def _without_surrogates(text: str) -> str:
    """Lone surrogates, which no UTF-8 can hold, become U+FFFD; lengths and offsets stay."""
    return text if text.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", text)
