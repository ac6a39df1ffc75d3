"""All golden vectors of llama.cpp: ids, special tokens, BOS and EOS, pieces, detokenized text."""

import pytest

from ramforge_core.gguf import open_gguf
from ramforge_core.testing.tokenizer import golden_faults, golden_rows
from ramforge_tokenizer_spm.tokenizer import SentencePieceTokenizer


@pytest.mark.parametrize("name", ["llama-spm", "phi-3"])
def test_golden_vectors(shared, name):
    golden = shared / "golden"
    path = golden / "vocabs" / f"ggml-vocab-{name}.gguf"
    tokenizer = SentencePieceTokenizer.from_metadata(open_gguf(path).metadata)
    rows = golden_rows(golden / "tokenizer" / f"{name}.jsonl.gz")
    assert len(rows) > 400
    faults = {(row["id"], row["category"]): f for row in rows if (f := golden_faults(tokenizer, row))}
    assert not faults
