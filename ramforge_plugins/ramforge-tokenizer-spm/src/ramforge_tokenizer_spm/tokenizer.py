"""The tokenizer over the C code of ``spm.c``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ramforge_core.errors import MetadataError, ParameterError
from ramforge_core.vocabulary import BYTE, HIDDEN, PREFIX, Vocabulary, VocabularyTokenizer, byte_of_token
from ramforge_tokenizer_spm._kernels import ffi, lib

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata

SCORES = PREFIX + "scores"
BLANK = "▁".encode()
"""U+2581, which stands for a blank in the file."""


class SentencePieceTokenizer(VocabularyTokenizer):
    """``tokenizer.ggml.model`` = ``llama``."""

    key = "llama"

    def __init__(self, metadata: Metadata) -> None:
        vocabulary = Vocabulary.read(metadata, add_bos=True, bos_id=1, eos_id=2, unknown_id=0)
        super().__init__(vocabulary, space_prefix=metadata.flag(PREFIX + "add_space_prefix", True))
        self._prefix = BLANK if self._space_prefix else b""
        self._kept: list[object] = []  # arrays that the struct points into
        self._spm = self._index(vocabulary, score_order(metadata, self.n_vocab))

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> SentencePieceTokenizer:
        return cls(metadata)

    def _index(self, vocabulary: Vocabulary, order: NDArray[np.int32]) -> Any:
        texts, flags = vocabulary.texts, vocabulary.flags
        slots = np.full(2 << self.n_vocab.bit_length(), -1, np.int32)
        spm = ffi.new("rf_spm *")
        spm.strings.blob = self._keep("uint8_t[]", texts.blob)
        spm.strings.offsets = self._keep("int64_t[]", texts.offsets)
        spm.strings.slots = self._keep("int32_t[]", slots)
        spm.strings.mask = len(slots) - 1
        spm.order = self._keep("int32_t[]", order)
        spm.joins = self._keep("uint8_t[]", np.zeros(lib.RF_SPM_JOINS, np.uint8))
        spm.longest = int(np.diff(texts.offsets).max())
        spm.unknown = -1 if vocabulary.unknown_id is None else vocabulary.unknown_id
        # What ends or structures a conversation can be typed, but never becomes that token by merging.
        wanted = (flags & (HIDDEN | BYTE) == 0).astype(np.uint8)
        lib.rf_spm_index(spm, ffi.from_buffer("uint8_t[]", wanted), self.n_vocab)
        for byte in range(256):
            spm.bytes[byte] = lib.rf_spm_find(spm, bytes([byte]), 1)
        for token in np.flatnonzero(flags & BYTE).tolist():
            for byte in byte_of_token(texts[token]):
                spm.bytes[byte] = token
        return spm

    def _keep(self, ctype: str, array: NDArray[Any] | bytes) -> Any:
        self._kept.append(array)
        return ffi.from_buffer(ctype, array)

    def _plain(self, text: bytes) -> bytes:
        return text.replace(BLANK, b" ")

    def _find(self, text: bytes) -> int | None:
        escaped = text.replace(b" ", BLANK)
        token = lib.rf_spm_find(self._spm, escaped, len(escaped))
        return token if token >= 0 else None

    def _encode_text(self, text: bytes) -> list[int]:
        escaped = self._prefix + text.replace(b" ", BLANK)
        n = len(escaped)
        source = ffi.from_buffer("uint8_t[]", escaped)
        capacity = lib.rf_spm_longest_part(self._spm, source, n)
        work = np.empty((lib.RF_SPM_ARRAYS, capacity), np.int32)
        ids = np.empty(n, np.int32)
        count = lib.rf_spm_encode(
            self._spm,
            source,
            n,
            ffi.from_buffer("int32_t[]", work),
            capacity,
            ffi.from_buffer("int32_t[]", ids),
        )
        if count < 0:
            raise ParameterError(f"a part of {capacity} characters is too long to tokenize")
        found: list[int] = ids[:count].tolist()
        return found


def score_order(metadata: Metadata, n: int) -> NDArray[np.int32]:
    """Place of each token's score, int32 (n,): 0 for the best, equal scores share a place."""
    scores = metadata.numbers_array(SCORES)
    if len(scores) < n:
        raise MetadataError(f"metadata key {SCORES!r} has {len(scores)} items for {n} tokens")
    scores = scores[:n].astype(np.float32)
    if np.isnan(scores).any():
        raise MetadataError(
            f"metadata key {SCORES!r}: score {int(np.isnan(scores).argmax())} is not a number"
        )
    _, place = np.unique(-scores, return_inverse=True)
    return place.astype(np.int32)
