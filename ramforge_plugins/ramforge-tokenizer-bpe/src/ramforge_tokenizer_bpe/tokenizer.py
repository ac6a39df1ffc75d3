"""The tokenizer over the C code of ``bpe.c`` and ``split.c``."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ramforge_core.errors import MetadataError, ParameterError
from ramforge_core.gguf import StringTable
from ramforge_core.vocabulary import HIDDEN, NORMAL, PREFIX, UNUSED, Vocabulary, VocabularyTokenizer
from ramforge_tokenizer_bpe._kernels import ffi, lib
from ramforge_tokenizer_bpe.presets import preset

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata

MERGES = PREFIX + "merges"


class BytePairTokenizer(VocabularyTokenizer):
    """``tokenizer.ggml.model`` = ``gpt2``."""

    key = "gpt2"

    def __init__(self, metadata: Metadata) -> None:
        rules = preset(metadata)
        vocabulary = Vocabulary.read(metadata, add_bos=rules.add_bos)
        wanted = ((vocabulary.flags & (NORMAL | UNUSED)) > 0).astype(np.uint8)
        texts = plain_texts(vocabulary.texts, wanted)
        # what ends or structures a conversation can be typed, but never becomes that token by merging
        wanted[vocabulary.flags & HIDDEN > 0] = 0
        super().__init__(vocabulary, texts=texts)
        self._kept: list[object] = []  # arrays that the struct points into
        self._bpe = ffi.new("rf_bpe *")
        self._split = rules.split
        self._bpe.whole_words = rules.whole_words
        self._index(texts, wanted)
        self._read_merges(metadata.strings(MERGES))

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> BytePairTokenizer:
        return cls(metadata)

    def _keep(self, ctype: str, array: NDArray[Any] | bytes) -> Any:
        self._kept.append(array)
        return ffi.from_buffer(ctype, array)

    def _index(self, texts: StringTable, wanted: NDArray[np.uint8]) -> None:
        bpe = self._bpe
        slots = empty_slots(len(texts))
        bpe.strings.blob = self._keep("uint8_t[]", texts.blob)
        bpe.strings.offsets = self._keep("int64_t[]", texts.offsets)
        bpe.strings.slots = self._keep("int32_t[]", slots)
        bpe.strings.mask = len(slots) - 1
        bpe.longest = int(np.diff(texts.offsets).max())
        lib.rf_bpe_index(bpe, ffi.from_buffer("uint8_t[]", wanted), len(texts))

    def _read_merges(self, merges: StringTable) -> None:
        bpe = self._bpe
        n = len(merges)
        slots = empty_slots(n)
        bpe.pair_slots = self._keep("int32_t[]", slots)
        bpe.pair_mask = len(slots) - 1
        scratch = np.empty(int(np.diff(merges.offsets).max(initial=0)), np.uint8)
        table = np.empty((3, n), np.int32)
        bad = lib.rf_bpe_merges(
            bpe,
            ffi.from_buffer("uint8_t[]", merges.blob),
            ffi.from_buffer("int64_t[]", merges.offsets),
            n,
            ffi.from_buffer("uint8_t[]", scratch),
            *(self._keep("int32_t[]", row) for row in table),
        )
        if bad >= 0:
            raise MetadataError(
                f"metadata key {MERGES!r}: merge {bad} is {merges[bad][:40]!r}, expected two parts with a blank between"
            )

    def _find(self, text: bytes) -> int | None:
        token = lib.rf_bpe_find(self._bpe, ffi.from_buffer("uint8_t[]", text), len(text))
        return token if token >= 0 else None

    def _encode_text(self, text: bytes) -> list[int]:
        cut = Cut(self._split, text)
        # The code points are not needed any more, and no text has more tokens than bytes.
        ids = cut.points.view(np.int32)
        work = np.empty((lib.RF_CHAIN_ARRAYS, cut.longest), np.int32)
        count = lib.rf_bpe_encode(
            self._bpe,
            ffi.from_buffer("uint8_t[]", text),
            len(text),
            ffi.from_buffer("uint8_t[]", cut.starts),
            ffi.from_buffer("int32_t[]", work),
            cut.longest,
            ffi.from_buffer("int32_t[]", ids),
        )
        if count < 0:
            raise ParameterError(f"a word of {cut.longest} bytes is too long to tokenize")
        found: list[int] = ids[:count].tolist()
        return found


class Cut:
    """Text cut into words.

    points : code points, uint32 (bytes of the text,), the first `count` filled.
    starts : uint8, 1 for each character that begins a word, and behind the last.
    longest : bytes of the longest word.
    """

    def __init__(self, split: int, text: bytes) -> None:
        n = len(text)
        self.points = np.empty(n, np.uint32)
        self.starts = np.empty(n + 1, np.uint8)
        longest = ffi.new("int64_t *")
        self.count: int = lib.rf_split(
            split,
            ffi.from_buffer("uint8_t[]", text),
            n,
            ffi.from_buffer("uint32_t[]", self.points),
            ffi.from_buffer("uint8_t[]", np.empty(n, np.uint8)),
            ffi.from_buffer("uint8_t[]", self.starts),
            longest,
        )
        if self.count < 0:
            raise ParameterError("the text to tokenize is not valid UTF-8")
        self.longest: int = longest[0]


def words(split: int, text: str) -> list[str]:
    """The words that text is cut into before merging; split is one of the numbers in ``split.h``."""
    starts = np.flatnonzero(Cut(split, text.encode()).starts[: len(text) + 1]).tolist()
    return [text[a:b] for a, b in itertools.pairwise(starts)]


def plain_texts(texts: StringTable, wanted: NDArray[np.uint8]) -> StringTable:
    """Token texts as plain bytes. wanted : uint8 (n,), which are ordinary tokens; 0 after where they cannot be."""
    blob = np.empty(len(texts.blob), np.uint8)
    offsets = np.empty_like(texts.offsets)
    lib.rf_bpe_decode(
        ffi.from_buffer("uint8_t[]", texts.blob),
        ffi.from_buffer("int64_t[]", texts.offsets),
        len(texts),
        ffi.from_buffer("uint8_t[]", wanted),
        ffi.from_buffer("uint8_t[]", blob),
        ffi.from_buffer("int64_t[]", offsets),
    )
    return StringTable(blob[: offsets[-1]].tobytes(), offsets)


def empty_slots(n: int) -> NDArray[np.int32]:
    """A hash table for n entries: free slots, at most half of them to be used."""
    return np.full(2 << max(n, 1).bit_length(), -1, np.int32)
