"""A small byte-pair vocabulary in memory, and a slow, plain reading of the algorithm to compare with."""

from __future__ import annotations

from itertools import pairwise

from ramforge_core.gguf import Metadata

STAND_INS = [b for b in range(256) if not (0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE)]
ALPHABET = {b: chr(0x100 + STAND_INS.index(b)) if b in STAND_INS else chr(b) for b in range(256)}
"""GPT-2's printable character of each byte."""

CONTROL = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>"]
USER_DEFINED = ["<tool>", "   "]
PAIRS = [
    ("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello"), ("A", "A"), ("AA", "AA"), ("Ġ", "Ġ"),
    ("ĠĠ", "ĠĠ"), (".", "."), ("Ċ", "Ċ"), ("1", "2"), ("12", "3"), ("ä", "¸"), ("ä¸", "Ń"), ("i", "m"), ("<", "|"),
    ("|", ">"), ("<|", "im"), ("o", "o"), ("l", "o"), ("'", "s"), ("Ġ", "w"), ("e", "l"),
]  # fmt: skip


def printable(data: bytes) -> str:
    return "".join(ALPHABET[b] for b in data)


def values(pre: str | None = "gpt-2", pairs=PAIRS, **changes: object) -> dict[str, object]:
    """Metadata of a file; changes by the end of the key (``merges=[...]``), None leaves a key out."""
    normal = [ALPHABET[b] for b in range(256)] + [a + b for a, b in pairs]
    tokens = normal + CONTROL + USER_DEFINED
    found = {
        "general.name": "tiny",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(normal) + [3] * len(CONTROL) + [4] * len(USER_DEFINED),
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in pairs],
        "tokenizer.ggml.bos_token_id": tokens.index("<|bos|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|eos|>"),
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
    }
    found.update(
        {"tokenizer.ggml." + key if "." not in key else key: value for key, value in changes.items()}
    )
    return {key: value for key, value in found.items() if value is not None}


def metadata(pre: str | None = "gpt-2", **changes) -> Metadata:
    return Metadata.from_dict(values(pre, **changes))


def merge_slowly(word: bytes, pairs) -> list[str]:
    """Byte-pair encoding as a textbook has it: merge the pair of lowest rank, the leftmost of equal ones, repeat."""
    ranks = {pair: rank for rank, pair in reversed(list(enumerate(pairs)))}
    symbols = [ALPHABET[b] for b in word]
    while len(symbols) > 1:
        found = [(ranks[p], i) for i, p in enumerate(pairwise(symbols)) if p in ranks]
        if not found:
            break
        _, at = min(found)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    return symbols
