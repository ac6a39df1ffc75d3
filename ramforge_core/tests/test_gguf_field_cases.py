"""Faults that users of other tools met, each with the behaviour that is right here. Ids as in the test names.

A18 to A20 are in test_gguf_shards.py, A35 in test_gguf_reader.py.
"""

from __future__ import annotations

import re
import struct
import time
import tracemalloc
from pathlib import Path

import pytest

from ramforge_core.errors import GGUFError, MetadataError, TensorError
from ramforge_core.gguf import MetadataArray, open_gguf
from ramforge_core.gguf.reader import MAX_ALIGNMENT, MAX_ARRAY_DEPTH
from ramforge_core.testing.gguf_writer import (
    gguf_bytes,
    pack_info,
    pack_pair,
    pack_raw_pair,
    raw_gguf,
    write_gguf,
)

F32, Q5_0, Q8_0, Q4_K = 0, 6, 8, 12
METADATA = {
    "general.architecture": "llama",
    "general.name": "tiny",
    "tokenizer.ggml.tokens": [f"token{i}" for i in range(50)],
    "llama.block_count": 2,
}
TENSORS = {
    "token_embd.weight": (F32, (8, 4), bytes(range(128))),
    "blk.0.attn_q.weight": (F32, (3, 4), bytes(48)),
    "output_norm.weight": (F32, (4,), bytes(16)),
}
WHOLE = gguf_bytes(METADATA, TENSORS)


def opened(tmp_path: Path, raw: bytes, name: str = "model.gguf", **kwargs):
    path = tmp_path / name
    path.write_bytes(raw)
    return open_gguf(path, **kwargs)


def refused(
    tmp_path: Path, raw: bytes, pattern: str, kind: type[Exception] = GGUFError, name: str = "model.gguf"
) -> str:
    """Open a faulty file; the error is one line that names the file and fits the pattern."""
    with pytest.raises(kind, match=pattern) as caught:
        opened(tmp_path, raw, name)
    message = str(caught.value)
    assert "\n" not in message
    assert name in message
    return message


def one_pair(key, kind_id: int, payload: bytes) -> bytes:
    return raw_gguf([pack_raw_pair(key, kind_id, payload)])


# ------------------------------------------------------------------ A01


def cuts() -> dict[str, int]:
    """Where to cut `WHOLE`, by what is lost."""
    pairs_end = 24 + sum(len(pack_pair(k, v)) for k, v in METADATA.items())
    infos_end = pairs_end + sum(len(pack_info(n, s, t, 0)) for n, (t, s, _) in TENSORS.items())
    data = -(-infos_end // 32) * 32
    assert infos_end < data, "the file has padding to cut in"
    return {
        "magic": 3,
        "version": 6,
        "counts": 15,
        "before the first key": 24,
        "a key's name": 30,
        "a value": WHOLE.index(b"tiny") + 2,
        "an array": WHOLE.index(b"token30"),
        "an array's head": WHOLE.index(b"tokenizer.ggml.tokens") + 27,
        "a tensor info": pairs_end + 20,
        "the last tensor info": infos_end - 1,
        "padding": infos_end + 1,
        "all data": data,
        "all but one byte of data": data + 1,
        "the last byte": len(WHOLE) - 1,
    }


@pytest.mark.parametrize("what", cuts())
def test_A01_cut_files_are_refused_saying_what_is_missing(tmp_path, what):
    message = refused(tmp_path, WHOLE[: cuts()[what]], "cut short")
    assert "fetch" in message


def test_A01_the_message_names_the_first_bad_tensor_with_declared_and_present_bytes(tmp_path):
    start = len(WHOLE) - 16 - 48 - 16 - 128  # data of three tensors, one padded
    for n_bytes, first in (
        (0, "token_embd.weight"),
        (100, "token_embd.weight"),
        (140, "blk.0.attn_q.weight"),
    ):
        message = refused(tmp_path, WHOLE[: start + n_bytes], "cut short", TensorError)
        declared, present = (128, n_bytes) if first == "token_embd.weight" else (48, n_bytes - 128)
        assert f"tensor {first!r} of {declared} bytes" in message
        assert f"ends at byte {start + n_bytes}" in message
        assert f"{present} bytes of it are present" in message


@pytest.mark.parametrize("what", list(cuts())[2:])  # less than a version is no header
def test_A01_inspection_of_a_cut_file_gets_what_is_readable(tmp_path, what):
    gguf = (
        opened(tmp_path, WHOLE[: cuts()[what]], allow_incomplete=True) if what not in ("version",) else None
    )
    if gguf is None:
        return  # less than a version is no header
    assert "cut short" in gguf.incomplete
    order = list(cuts())
    assert ("general.name" in gguf.metadata) == (order.index(what) > order.index("a value"))
    assert ("llama.block_count" in gguf.metadata) == (order.index(what) > order.index("an array's head"))
    assert len(gguf.tensors) == (3 if order.index(what) >= order.index("padding") else 0)


def test_A01_every_shorter_file_is_refused_and_never_crashes(tmp_path):
    for size in (*range(40), *range(40, len(WHOLE), 7)):
        with pytest.raises(GGUFError, match=r"cut short|empty"):
            opened(tmp_path, WHOLE[:size])
        if size >= 8:
            assert opened(tmp_path, WHOLE[:size], allow_incomplete=True).incomplete


# ------------------------------------------------------------------ A02 to A04


def one_tensor(dims, ggml_type=F32, offset=0, data=bytes(64), **kwargs) -> bytes:
    return raw_gguf([], [pack_info("big.weight", dims, ggml_type, offset, **kwargs)], data)


@pytest.mark.parametrize("offset", [2**64 - 32, 2**63, 2**63 - 32, 2**62])
def test_A02_huge_offsets_do_not_wrap(tmp_path, offset):
    refused(tmp_path, one_tensor([16], offset=offset), r"'big.weight'.*(outside|ends at byte)", TensorError)
    if offset > 2**62:  # not even inspection takes this for a file that is cut short
        with pytest.raises(TensorError, match="outside"):
            opened(tmp_path, one_tensor([16], offset=offset), allow_incomplete=True)


@pytest.mark.parametrize("dims", [[2**63, 2], [2**32, 2**32], [2**40, 2**40, 1, 1], [2**62], [2**64 - 1] * 4])
def test_A03_overflowing_sizes_are_refused_with_their_dimensions(tmp_path, dims):
    for lenient in (False, True):
        with pytest.raises(TensorError, match=re.escape(f"tensor 'big.weight' with dimensions {dims}")):
            opened(tmp_path, one_tensor(dims), allow_incomplete=lenient)


@pytest.mark.parametrize("n_dims", [0, 5, 9, 0xFFFFFFFF])
def test_A04_number_of_dimensions_is_1_to_4(tmp_path, n_dims):
    begin = time.perf_counter()
    refused(
        tmp_path,
        one_tensor([4] * min(n_dims, 9), n_dims=n_dims),
        f"'big.weight' has {n_dims} dimensions",
        TensorError,
    )
    assert time.perf_counter() - begin < 0.5


@pytest.mark.parametrize("n_dims", [1, 2, 3, 4])
def test_A04_one_to_four_dimensions_are_read(tmp_path, n_dims):
    assert opened(tmp_path, one_tensor([2] * n_dims)).tensors["big.weight"].shape == (2,) * n_dims


@pytest.mark.parametrize("dims", [[0], [4, 0], [0, 4, 4]])
def test_dimensions_of_0_are_refused(tmp_path, dims):
    refused(tmp_path, one_tensor(dims), "has 0 values", TensorError)


@pytest.mark.parametrize(("dims", "ggml_type"), [([33], Q8_0), ([255, 2], Q4_K), ([1], Q4_K)])
def test_rows_must_be_whole_blocks(tmp_path, dims, ggml_type):
    refused(tmp_path, one_tensor(dims, ggml_type), "'big.weight'.*not whole blocks", TensorError)


# ------------------------------------------------------------------ A06 to A08


@pytest.mark.parametrize("count", [2**60, 2**64 - 1, 3])
@pytest.mark.parametrize("what", ["n_pairs", "n_tensors"])
@pytest.mark.parametrize("lenient", [False, True])
def test_A06_counts_are_capped_by_the_bytes_that_are_there(tmp_path, count, what, lenient):
    raw = raw_gguf(**{what: count}) + bytes(20)
    begin = time.perf_counter()
    tracemalloc.start()
    try:
        with pytest.raises(GGUFError, match=str(count)):
            opened(tmp_path, raw, allow_incomplete=lenient)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - begin < 1
    assert peak < 10e6


LONG = {
    "string": (8, struct.pack("<Q", 1 << 30)),
    "string of 2^64-1": (8, struct.pack("<Q", 2**64 - 1)),
    "array of 2^62 uint8": (9, struct.pack("<IQ", 0, 2**62)),
    "array of 2^62 bool": (9, struct.pack("<IQ", 7, 2**62)),
    "array of 2^61 strings": (9, struct.pack("<IQ", 8, 2**61)),
    "array of 2^60 arrays": (9, struct.pack("<IQ", 9, 2**60)),
    "array with a string of 1 GiB": (9, struct.pack("<IQQ", 8, 2, 1 << 30)),
    "array with a string of 2^64-8": (9, struct.pack("<IQQ", 8, 2, 2**64 - 8)),
    "last string too long": (9, struct.pack("<IQQ", 8, 1, 1 << 30)),
    "inner array of 2^62": (9, struct.pack("<IQIQ", 9, 1, 4, 2**62)),
}


@pytest.mark.parametrize("fault", LONG)
def test_A07_lengths_beyond_the_file_are_refused_before_allocation_with_the_key(tmp_path, fault):
    kind_id, payload = LONG[fault]
    tracemalloc.start()
    try:
        refused(tmp_path, one_pair("some.key", kind_id, payload + bytes(100)), "cut short.*'some.key'")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10e6


def nested(depth: int) -> bytes:
    """An array of ``depth`` levels, the innermost of two uint8."""
    return struct.pack("<IQ", 9, 1) * (depth - 1) + struct.pack("<IQ", 0, 2) + b"\1\2"


@pytest.mark.parametrize("depth", [1, 2, 4, 5, MAX_ARRAY_DEPTH])
def test_A08_nested_arrays_are_read_to_the_documented_depth(tmp_path, depth):
    raw = raw_gguf([pack_raw_pair("deep", 9, nested(depth)), pack_pair("after", 7)])
    metadata = opened(tmp_path, raw).metadata
    wanted = [1, 2]
    for _ in range(depth - 1):
        wanted = [wanted]
    assert metadata["deep"].to_list() == wanted
    assert metadata["after"] == 7


@pytest.mark.parametrize("depth", [MAX_ARRAY_DEPTH + 1, 10_000])
def test_A08_deeper_arrays_are_refused(tmp_path, depth):
    refused(
        tmp_path,
        one_pair("deep", 9, nested(depth)),
        f"'deep' nests arrays deeper than {MAX_ARRAY_DEPTH}",
        MetadataError,
    )


def test_A08_unknown_types_are_refused_not_skipped(tmp_path):
    refused(
        tmp_path,
        one_pair("odd", 9, struct.pack("<IQ", 99, 1) + bytes(9)),
        "'odd'.*element type 99",
        MetadataError,
    )
    inner = struct.pack("<IQIQ", 9, 1, 13, 1) + bytes(9)
    refused(tmp_path, one_pair("odd", 9, inner), "'odd'.*element type 13", MetadataError)
    refused(tmp_path, one_pair("odd", 13, bytes(9)), "'odd'.*value type 13", MetadataError)


@pytest.mark.parametrize("value", [2, 255])
def test_bools_other_than_0_and_1_are_refused(tmp_path, value):
    refused(tmp_path, one_pair("flag", 7, bytes([value])), f"'flag'.*{value}", MetadataError)
    for count in (3, 200_000):
        payload = struct.pack("<IQ", 7, count) + bytes(count - 1) + bytes([value])
        refused(tmp_path, one_pair("flags", 9, payload), "'flags'.*other than 0 and 1", MetadataError)


# ------------------------------------------------------------------ A09 to A16


def aligned(value, kind=None) -> bytes:
    pairs = [pack_pair("general.alignment", value, kind)]
    step = value if isinstance(value, int) and 0 < value < 1 << 20 else 32
    return raw_gguf(pairs, [pack_info("t", [4], F32, 0)], bytes(16), alignment=step)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0, None),
        (3, None),
        (24, None),
        (2**30, None),
        (2**31, None),
        (-32, "int32"),
        (2**40, "uint64"),
        (0, "int64"),
    ],
)
def test_A09_absurd_alignments_are_refused_with_key_and_value(tmp_path, value, kind):
    refused(tmp_path, aligned(value, kind), f"'general.alignment' is {value}", MetadataError)


def test_A09_alignment_that_is_no_integer_is_refused(tmp_path):
    for value in ("32", 32.0, True, [32]):
        refused(tmp_path, aligned(value), "'general.alignment' must be an integer", MetadataError)


@pytest.mark.parametrize("value", [1, 8, 32, 64, 4096])
@pytest.mark.parametrize("kind", ["uint32", "int32", "uint64", "int64", "uint16"])
def test_A09_powers_of_two_are_good_in_any_integer_width(tmp_path, value, kind):
    gguf = opened(tmp_path, aligned(value, kind))
    assert gguf.alignment == value <= MAX_ALIGNMENT
    assert gguf.tensors["t"].offset % value == 0


def test_offsets_off_the_alignment_are_refused(tmp_path):
    refused(
        tmp_path,
        one_tensor([4], offset=16),
        "offset 16, which is not a multiple of the alignment 32",
        TensorError,
    )


@pytest.mark.parametrize("extra", [1, 7, 31])
def test_A11_padding_at_the_end_is_fine(tmp_path, extra):
    gguf = opened(tmp_path, WHOLE + bytes(extra))
    assert len(gguf.tensors) == 3
    assert gguf.warnings == ()


def test_A11_unpadded_last_tensor_is_fine_and_more_bytes_are_a_warning(tmp_path):
    assert len(WHOLE) % 32 != 0
    assert opened(tmp_path, WHOLE).warnings == ()
    assert any(
        "1000 bytes behind its last tensor" in w for w in opened(tmp_path, WHOLE + bytes(1000)).warnings
    )


def test_A12_faulty_keys_are_refused(tmp_path):
    small = struct.pack("<I", 1)
    refused(tmp_path, one_pair("", 4, small), "name of 0 bytes")
    refused(tmp_path, one_pair("k" * 65536, 4, small), "name of 65536 bytes")
    refused(tmp_path, one_pair("a\0b", 4, small), "NUL")
    assert opened(tmp_path, one_pair("k" * 65535, 4, small)).metadata["k" * 65535] == 1
    refused(tmp_path, raw_gguf([], [pack_info("", [4], F32, 0)], bytes(16)), "name of 0 bytes")
    refused(tmp_path, raw_gguf([], [pack_info("a\0", [4], F32, 0)], bytes(16)), "NUL")


def test_A12_the_37_byte_file(tmp_path):
    raw = raw_gguf([struct.pack("<QIB", 0, 0, 7)])
    assert len(raw) == 37
    refused(tmp_path, raw, "name of 0 bytes")


@pytest.mark.parametrize("kind", ["uint8", "int16", "uint32", "int32", "uint64", "int64"])
def test_A14_integer_widths_are_interchangeable(tmp_path, kind):
    values = {"split.count": 1, "n": 7, "tokenizer.ggml.token_type": [1, 3, 6]}
    metadata = open_gguf(write_gguf(tmp_path / "m.gguf", values, kinds=dict.fromkeys(values, kind))).metadata
    assert metadata.integer("n") == 7
    assert metadata.integers("tokenizer.ggml.token_type") == [1, 3, 6]
    assert metadata.numbers_array("tokenizer.ggml.token_type").tolist() == [1, 3, 6]


def test_A14_split_count_as_text_is_an_error_naming_the_key(tmp_path):
    refused(tmp_path, gguf_bytes({"split.count": "3"}), "'split.count' must be an integer", MetadataError)


@pytest.mark.parametrize("value", [-1, 2**31, 100_000])
def test_A14_absurd_split_counts_are_refused(tmp_path, value):
    refused(tmp_path, gguf_bytes({"split.count": value}), f"'split.count' is {value}", MetadataError)


def test_A16_two_tensors_of_one_name_are_refused(tmp_path):
    infos = [pack_info("blk.0.attn_q.weight", [4], F32, offset) for offset in (0, 32)]
    refused(
        tmp_path,
        raw_gguf([], infos, bytes(48)),
        "two tensors with the name 'blk.0.attn_q.weight'",
        TensorError,
    )


def test_double_keys_are_refused(tmp_path):
    refused(
        tmp_path, raw_gguf([pack_pair("a.b", 1), pack_pair("a.b", 2)]), "'a.b' appears twice", MetadataError
    )


@pytest.mark.parametrize("second", [0, 32])
@pytest.mark.parametrize("ggml_type", [F32, 250])
def test_overlapping_tensors_are_refused(tmp_path, second, ggml_type):
    infos = [pack_info("a", [10], F32, 0), pack_info("b", [10], ggml_type, second)]
    refused(tmp_path, raw_gguf([], infos, bytes(200)), "'a' and 'b' overlap|'b' and 'a' overlap", TensorError)


def test_gaps_between_tensors_and_any_order_are_fine(tmp_path):
    infos = [pack_info("late", [8], F32, 320), pack_info("early", [8], F32, 32)]
    gguf = opened(tmp_path, raw_gguf([], infos, bytes(352)))
    assert gguf.tensors["late"].offset - gguf.tensors["early"].offset == 288


# ------------------------------------------------------------------ A23 to A26


def test_A23_big_endian_files_are_named(tmp_path):
    message = refused(
        tmp_path, gguf_bytes(METADATA, TENSORS, order=">"), "big-endian GGUF file \\(version 3\\)"
    )
    assert "convert" in message
    refused(tmp_path, WHOLE[3::-1] + WHOLE[4:], "big-endian")


def test_A24_versions_2_and_3_load_equally(tmp_path):
    v2 = opened(tmp_path, gguf_bytes(METADATA, TENSORS, version=2))
    v3 = opened(tmp_path, gguf_bytes(METADATA, TENSORS, version=3))
    assert (v2.version, v3.version) == (2, 3)
    assert v2.tensors == v3.tensors

    def plain(gguf):
        return {k: v.to_list() if isinstance(v, MetadataArray) else v for k, v in gguf.metadata.items()}

    assert plain(v2) == plain(v3) == METADATA


@pytest.mark.parametrize("version", [0, 1, 4, 77])
def test_A24_other_versions_are_refused_with_what_is_supported(tmp_path, version):
    raw = gguf_bytes(METADATA, TENSORS, version=version)
    refused(tmp_path, raw, f"GGUF version {version}, but versions 2 and 3 are supported")


FOREIGN = {
    "ggjt": (b"ggjt\x03\0\0\0" + bytes(90), "old GGJT format"),
    "tjgg": (b"tjgg\x03\0\0\0" + bytes(90), "old GGJT format"),
    "ggml": (b"ggml" + bytes(90), "old GGML format"),
    "lmgg": (b"lmgg" + bytes(90), "old GGML format"),
    "html": (b"<!DOCTYPE html><html>", "web page"),
    "html, indented": (b"\n  <HTML lang=en>", "web page"),
    "safetensors": (struct.pack("<Q", 60) + b'{"weight":{"dtype":"F16"}}', "safetensors.*convert"),
    "json": (b'{"error":"Repository not found"}', "JSON"),
    "zip": (b"PK\x03\x04" + bytes(90), "zip"),
    "pickle": (b"\x80\x02}q\0." + bytes(90), "pickle"),
    "gzip": (b"\x1f\x8b\x08" + bytes(90), "gzip"),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a", "Git LFS.*git lfs pull"),
    "empty": (b"", "empty"),
    "other": (b"\x7fELF" + bytes(90), "not a GGUF file.*ELF"),
    "one byte": (b"\x00", "not a GGUF file"),
}


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("lenient", [False, True])
def test_A25_other_formats_are_named(tmp_path, what, lenient):
    raw, pattern = FOREIGN[what]
    refused(tmp_path, raw, pattern)
    with pytest.raises(GGUFError, match=pattern):
        opened(tmp_path, raw, allow_incomplete=lenient)


@pytest.mark.parametrize("ggml_type", [39, 42, 250, 4, 2**32 - 1])
def test_A26_unknown_tensor_types_do_not_stop_the_reading(tmp_path, ggml_type):
    infos = [
        pack_info("good", [8], F32, 0),
        pack_info("new", [256], ggml_type, 32),
        pack_info("late", [8], F32, 320),
    ]
    gguf = opened(tmp_path, raw_gguf([pack_pair("general.architecture", "llama")], infos, bytes(352)))
    info = gguf.tensors["new"]
    assert (info.ggml_type, info.shape) == (ggml_type, (256,))
    if ggml_type in (39, 42):
        assert info.nbytes == {39: 8 * 17, 42: 4 * 18}[ggml_type]
    else:
        assert (info.nbytes, info.type_name) == (None, f"type {ggml_type}")
    assert gguf.tensors["late"].nbytes == 32
    with pytest.raises(TensorError, match=r"cut short.*'late'"):
        opened(tmp_path, raw_gguf([], infos, bytes(351)))


def test_A26_tensor_of_unknown_type_that_starts_behind_the_end(tmp_path):
    refused(
        tmp_path, one_tensor([8], 250, offset=96), "'big.weight' of an unknown number of bytes", TensorError
    )


# ------------------------------------------------------------------ A27 to A36


def test_A27_types_are_kept_per_tensor(tmp_path):
    tensors = {
        "token_embd.weight": (Q8_0, (4, 896), bytes(4 * 28 * 34)),
        "blk.0.ffn_down.weight": (Q5_0, (2, 896), bytes(2 * 28 * 22)),
        "blk.0.attn_q.weight": (Q4_K, (2, 1024), bytes(2 * 4 * 144)),
        "output_norm.weight": (F32, (896,), bytes(4 * 896)),
    }
    gguf = open_gguf(write_gguf(tmp_path / "m.gguf", METADATA, tensors))
    for name, (ggml_type, _, data) in tensors.items():
        assert (gguf.tensors[name].ggml_type, gguf.tensors[name].nbytes) == (ggml_type, len(data))
    refused(
        tmp_path, one_tensor([896, 2], Q4_K), "rows of 896 values.*q4_k \\(256 values each\\)", TensorError
    )


def test_A29_tied_embeddings_are_noted(tmp_path):
    assert opened(tmp_path, WHOLE).tied_embeddings
    untied = {**TENSORS, "output.weight": (F32, (8, 4), bytes(128))}
    assert not opened(tmp_path, gguf_bytes(METADATA, untied)).tied_embeddings
    assert not opened(tmp_path, gguf_bytes(METADATA)).tied_embeddings, "a vocabulary has no embeddings at all"


def test_A36_text_is_utf8_and_invalid_bytes_are_kept_for_tokens_and_escaped_for_display(tmp_path):
    template = "{{ '\u2581🙂' }}"
    tokens = [b"\xff", b"\xe2\x96", "\u2581".encode(), b"\xf0\x9f\x99\x82"]
    metadata = open_gguf(
        write_gguf(
            tmp_path / "m.gguf",
            {"tokenizer.chat_template": template, "tokenizer.ggml.tokens": tokens, "general.name": b"a\xffb"},
        )
    ).metadata
    assert metadata.text("tokenizer.chat_template") == template
    assert list(metadata.strings("tokenizer.ggml.tokens")) == tokens
    assert metadata["tokenizer.ggml.tokens"].to_list() == ["\\xff", "\\xe2\\x96", "\u2581", "🙂"]
    assert metadata.text("general.name") == "a\\xffb"


def test_names_that_are_no_utf8_can_be_shown(tmp_path):
    gguf = opened(
        tmp_path, raw_gguf([pack_raw_pair(b"k\xff", 0, b"\1")], [pack_info(b"t\xfe", [8], F32, 0)], bytes(32))
    )
    assert dict(gguf.metadata) == {"k\\xff": 1}
    assert list(gguf.tensors) == ["t\\xfe"]
