"""Mutated files: whatever the bytes, the reader gives a header or one of our errors, quickly."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ramforge_core.errors import RamforgeError
from ramforge_core.gguf import Metadata, MetadataArray, open_gguf
from ramforge_core.inspection import inspect, render
from ramforge_core.plugins import Registry
from ramforge_core.testing.gguf_writer import gguf_bytes

QUICK = settings(
    max_examples=150,
    deadline=2000,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
SEED = gguf_bytes(
    {
        "general.architecture": "llama",
        "general.alignment": 32,
        "a.flag": True,
        "a.float": 0.5,
        "a.nested": [[1, 2], [3]],
        "a.flags": [True, False],
        "split.count": 1,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "bb", "<|im_end|>"],
        "tokenizer.ggml.scores": [0.5, -1.0, 2.0],
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
    },
    {
        "token_embd.weight": (8, (3, 32), bytes(3 * 34)),
        "blk.0.attn_q.weight": (12, (2, 256), bytes(2 * 144)),
        "output_norm.weight": (0, (32,), bytes(128)),
    },
)
HEADER = len(SEED) - 128 - 288 - 128
NUMBERS = [0, 1, 2, 7, 8, 9, 13, 31, 32, 255, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 32, 2**64 - 1]
REGISTRY = Registry(())


@st.composite
def mutated(draw) -> bytes:
    """The seed file with some bytes changed, numbers overwritten, parts doubled or cut."""
    data = bytearray(SEED)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, min(HEADER, len(data) - 1)))
        match draw(st.sampled_from(["byte", "u32", "u64", "insert", "delete", "cut"])):
            case "byte":
                data[at] = draw(st.integers(0, 255))
            case "u32":
                data[at : at + 4] = struct.pack("<I", draw(st.sampled_from(NUMBERS)) % 2**32)
            case "u64":
                data[at : at + 8] = struct.pack("<Q", draw(st.sampled_from(NUMBERS)))
            case "insert":
                data[at:at] = data[at : at + draw(st.integers(1, 40))]
            case "delete":
                del data[at : at + draw(st.integers(1, 40))]
            case "cut":
                del data[at + 8 :]
    return bytes(data)


def use_everything(path: Path) -> None:
    gguf = open_gguf(path)
    for key, value in gguf.metadata.items():
        if isinstance(value, MetadataArray):
            assert len(value.to_list()) == len(value), key
    size = path.stat().st_size
    for info in gguf.tensors.values():
        assert 0 <= info.offset < info.end <= size
        assert info.offset % gguf.alignment == 0
    assert gguf.incomplete is None


def look_at_everything(path: Path) -> None:
    report = inspect(path, REGISTRY)
    text = render(report)
    assert text.replace("\n", "").isprintable()
    json.dumps(report.to_dict(), allow_nan=False)
    if report.incomplete is None:
        open_gguf(path)
    else:
        with pytest.raises(RamforgeError):
            open_gguf(path)


@pytest.mark.parametrize("reading", [use_everything, look_at_everything])
def test_mutated_files_give_a_header_or_one_of_our_errors(reading):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"

        @QUICK
        @given(mutated())
        @example(SEED)
        def check(raw: bytes) -> None:
            path.write_bytes(raw)
            message = "none"
            try:
                reading(path)
            except RamforgeError as error:
                message = str(error)
            assert message
            assert "\n" not in message

        check()


@QUICK
@given(st.binary(max_size=400))
def test_random_bytes_behind_a_good_start(tail):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        for head in (b"", b"GGUF", b"GGUF\3\0\0\0", struct.pack("<4sIQQ", b"GGUF", 3, 2, 3)):
            path.write_bytes(head + tail)
            try:
                use_everything(path)
            except RamforgeError:
                continue


@QUICK
@given(st.lists(st.binary(max_size=20), max_size=40))
def test_string_tables_hold_what_was_put_in(strings):
    table = Metadata.from_dict({"x": strings}).strings("x")
    assert list(table) == strings == [table[i] for i in range(len(table))]
