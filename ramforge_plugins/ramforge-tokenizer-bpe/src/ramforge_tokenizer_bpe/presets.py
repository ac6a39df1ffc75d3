"""What ``tokenizer.ggml.pre`` names: how text is cut into words, and what goes with it.

Names and their meaning: llama.cpp, src/llama-vocab.cpp (MIT). Names that share a row there with one that golden vectors
cover are known here too; others are refused rather than guessed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from attrs import frozen

from ramforge_core.errors import UnsupportedError
from ramforge_tokenizer_bpe._kernels import lib

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata

KEY = "tokenizer.ggml.pre"

log = logging.getLogger("ramforge")


@frozen
class Preset:
    """split : which words, see ``split.h``.
    whole_words : a word that is a token is taken whole, whatever the merges say.
    add_bos : BOS is added unless the file says otherwise.
    """

    split: int
    whole_words: bool = False
    add_bos: bool = False


DEFAULT = Preset(lib.RF_SPLIT_DEFAULT)
GPT2 = Preset(lib.RF_SPLIT_GPT2)
LLAMA3 = Preset(lib.RF_SPLIT_LLAMA3, whole_words=True, add_bos=True)
LIKE_LLAMA3 = Preset(lib.RF_SPLIT_LLAMA3)
QWEN2 = Preset(lib.RF_SPLIT_QWEN2)
DIGITS = Preset(lib.RF_SPLIT_DIGITS)

_NAMES = {
    GPT2: (
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert "
        "mpt olmo jais trillion granite-docling exaone4"
    ),
    LLAMA3: "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    LIKE_LLAMA3: "dbrx smaug-bpe glm4 chatglm-bpe",
    QWEN2: "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
    DIGITS: "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    Preset(lib.RF_SPLIT_FALCON): "falcon",
    Preset(lib.RF_SPLIT_DEEPSEEK_LLM): "deepseek-llm",
    Preset(lib.RF_SPLIT_DEEPSEEK_CODER): "deepseek-coder",
    Preset(lib.RF_SPLIT_GPT4O): "gpt-4o llama4",
}
PRESETS = {name: preset for preset, names in _NAMES.items() for name in names.split()}


def preset(metadata: Metadata) -> Preset:
    """The preset of a file. Raises UnsupportedError for a name that is not known."""
    name = metadata.text(KEY, "")
    if name in ("", "default"):
        said = f"metadata key {KEY!r} is {name!r}" if name else f"the file has no metadata key {KEY!r}"
        log.warning(
            "%s: splitting text the default way, which may not be what the model was trained with", said
        )
        return DEFAULT
    if name not in PRESETS:
        known = ", ".join(sorted(PRESETS))
        raise UnsupportedError(
            f"metadata key {KEY!r} names the pre-tokenizer {name!r}, which is not known; known: {known}"
        )
    return PRESETS[name]
