"""A small SentencePiece vocabulary in memory, and a slow, plain reading of the algorithm to compare with."""

from __future__ import annotations

from itertools import pairwise

from ramforge_core.gguf import Metadata

CONTROL = ["<unk>", "<s>", "</s>", "<|user|>", "<|end|>"]
BYTES = [f"<0x{b:02X}>" for b in range(256)]
WORDS = {
    "▁": -1.0, "h": -2.0, "e": -2.0, "l": -2.0, "o": -2.0, "A": -2.0, "w": -2.0, "{": -2.0, '"': -2.0, "<": -2.0,
    ">": -2.0, "s": -2.0, "t": -2.0, "x": -2.0, "ll": -3.0, "he": -4.0, "hell": -5.0, "hello": -6.0, "▁hello": -7.0,
    "▁▁": -8.0, "▁▁▁▁": -9.0, "AA": -3.0, "AAAA": -3.0, "lo": -3.0, '▁{"': -4.0, '{"': -3.5, "▁{": -3.7, "el": -4.0,
    "<s": -1.0, "te": -5.0, "▁te": -5.0, "▁t": -5.0, "▁text": -9.0, "xt": -5.0, "text": -6.0, "中": -7.0, "中中": -8.0,
}  # fmt: skip


def values(words=WORDS, **changes: object) -> dict[str, object]:
    """Metadata of a file; changes by the end of the key (``scores=[...]``), None leaves a key out."""
    tokens = CONTROL[:3] + BYTES + list(words) + CONTROL[3:] + ["<tool>"]
    found = {
        "general.name": "tiny",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + list(words.values()) + [0.0] * 3,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(words) + [3, 3, 4],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    found.update(
        {"tokenizer.ggml." + key if "." not in key else key: value for key, value in changes.items()}
    )
    return {key: value for key, value in found.items() if value is not None}


def metadata(**changes) -> Metadata:
    return Metadata.from_dict(values(**changes))


def merge_slowly(text: str, words) -> list[str]:
    """Merge the neighbours that make the token of best score, the leftmost of equal ones, until there are none."""
    symbols = list(text.replace(" ", "▁"))
    while len(symbols) > 1:
        joined = [a + b for a, b in pairwise(symbols)]
        found = [(-words[text], i) for i, text in enumerate(joined) if text in words]
        if not found:
            break
        _, at = min(found)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    return symbols
