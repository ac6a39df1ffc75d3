"""SentencePiece byte-pair encoding for ``tokenizer.ggml.model`` = ``llama``: Llama 1 and 2, Mistral, Phi-3, Gemma."""

from __future__ import annotations

from collections.abc import Sequence

from ramforge_core.hookspecs import hookimpl
from ramforge_core.tokenizer import Tokenizer


@hookimpl
def ramforge_tokenizers() -> Sequence[type[Tokenizer]]:
    from ramforge_tokenizer_spm.tokenizer import SentencePieceTokenizer

    return [SentencePieceTokenizer]
