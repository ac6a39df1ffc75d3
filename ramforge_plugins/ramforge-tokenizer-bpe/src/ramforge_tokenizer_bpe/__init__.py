"""Byte-pair encoding for ``tokenizer.ggml.model`` = ``gpt2``: GPT-2, Llama 3, Qwen, SmolLM and kin."""

from __future__ import annotations

from collections.abc import Sequence

from ramforge_core.hookspecs import hookimpl
from ramforge_core.tokenizer import Tokenizer


@hookimpl
def ramforge_tokenizers() -> Sequence[type[Tokenizer]]:
    from ramforge_tokenizer_bpe.tokenizer import BytePairTokenizer

    return [BytePairTokenizer]
