"""What a header says of its tokens: kinds, names that decide, ids that are added."""

import pytest

from ramforge_core.errors import MetadataError
from ramforge_core.gguf import Metadata
from ramforge_core.vocabulary import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    byte_of_token,
    find_token,
)


def read(tokens, types=None, **changes):
    values = {"tokenizer.ggml.tokens": tokens}
    if types:
        values["tokenizer.ggml.token_type"] = types
    values.update({f"tokenizer.ggml.{key}": value for key, value in changes.items()})
    return Vocabulary.read(Metadata.from_dict(values))


def test_kinds_of_tokens():
    found = read(["a", "b", "c", "d", "e"], [1, 2, 3, 4, 99])
    assert found.flags.tolist() == [NORMAL, UNKNOWN, CONTROL, USER_DEFINED, 0]
    assert read(["a"]).flags.tolist() == [NORMAL]


def test_find_token_needs_the_whole_text():
    texts = read(["xab", "a", "b", "abc", "ab", "ab", ""]).texts
    assert find_token(texts, "ab") == 4
    assert find_token(texts, "xa") is None
    assert find_token(texts, "ca") is None


@pytest.mark.parametrize(
    "text", ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>"]
)
def test_well_known_ends_are_control_tokens_whatever_the_file_says(text):
    found = read(["a", text], [1, 1])
    assert found.end_of_generation == {1}
    assert found.flags[1] & CONTROL


def test_ends_by_key():
    found = read(["a", "b", "c", "d"], eos_token_id=1, eot_token_id=2, eom_token_id=3)
    assert found.end_of_generation == {1, 2, 3}
    assert found.flags.tolist() == [NORMAL] * 4


def test_end_of_a_message_is_no_end_of_an_answer_in_gpt_oss():
    found = read(["<|end|>", "<|return|>", "<|call|>", "<|channel|>"], [3, 3, 3, 3])
    assert found.end_of_generation == {1, 2}
    assert found.flags[0] == found.flags[3] == USER_DEFINED


def test_fill_in_tokens():
    found = read(["<fim_prefix>", "<fim_pad>", "<PAD>", "x"], [4, 4, 4, 1])
    assert found.end_of_generation == {1}
    assert [bool(f & CONTROL) for f in found.flags.tolist()] == [True, True, False, False]
    assert read(["<fim_pad>", "x"], [4, 1], fim_pad_token_id=1).end_of_generation == {1}


def test_added_tokens():
    found = read(["a", "b"], bos_token_id=0)
    assert (found.bos_id, found.eos_id, found.add_bos, found.add_eos) == (0, None, False, False)
    assert read(["a", "b"], bos_token_id=0, add_bos_token=True).add_bos
    with pytest.raises(MetadataError, match=r"add_bos_token.*bos_token_id"):
        read(["a"], add_bos_token=True)


def test_bytes():
    assert byte_of_token(b"<0x0A>") == b"\n"
    assert byte_of_token(b"<0xff>") == b"\xff"
    assert byte_of_token(b"<0xG0>") == byte_of_token(b"x") == b""
