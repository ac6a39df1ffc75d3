"""`ramforge_core.sizes`: sizes as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramforge_core.errors import ParameterError
from ramforge_core.sizes import format_size, parse_size

K, M, G, T = (1024**n for n in range(1, 5))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("6G", 6 * G),
        ("6GiB", 6 * G),
        ("6GB", 6 * G),
        ("6gib", 6 * G),
        ("8192M", 8 * G),
        ("512MiB", 512 * M),
        ("1.5G", 3 * G // 2),
        ("0.1K", 102),
        ("800k", 800 * K),
        ("2T", 2 * T),
        ("4096", 4096),
        ("4096B", 4096),
        (" 8 GiB ", 8 * G),
        ("50%", 5 * G),
        ("12.5 %", 5 * G // 4),
        ("100%", 10 * G),
    ],
)
def test_j05_sizes_in_every_spelling(text, size):
    assert parse_size(text, total=10 * G) == size


def test_a_number_of_bytes_may_come_as_a_number():
    assert parse_size(4096) == 4096


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "0", "0G", "0.0G", "0.5", "1.5", "0%", "abc", "nan", "NaN G", "inf", "-1", "-8G", "+8G", "8X", "8GiBs",
        "8 G B", "8iB", "8,5G", "1e9", "8_0", "0x10", "1.G", ".5G", "G", "%", "101%", "100.1%", "-5%", "٨G", "8G\0",
        "0.0001K", "9" * 16, "9" * 5000, "999999999999999T",
    ],
)  # fmt: skip
def test_j05_nonsense_is_refused_and_shown_with_examples(text):
    with pytest.raises(ParameterError) as raised:
        parse_size(text, total=10 * G)
    assert repr(text) in str(raised.value)
    assert "8G" in str(raised.value)
    assert "512M" in str(raised.value)


@pytest.mark.parametrize("value", [float("nan"), -1, 0, True, None, b"8G"])
def test_values_that_are_no_text_are_refused_alike(value):
    with pytest.raises(ParameterError):
        parse_size(value)


def test_a_percentage_of_nothing_known_is_refused():
    with pytest.raises(ParameterError, match=r"'50%'.*8G"):
        parse_size("50%")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1.00 KiB"),
        (1536 * M, "1.50 GiB"),
        (416 * M, "416 MiB"),
        (10.5 * M, "10.5 MiB"),
        (9.996 * M, "10.0 MiB"),
        (99.96 * M, "100 MiB"),
        (1000 * K, "1000 KiB"),
        (M - 1, "1.00 MiB"),
        (G - 1, "1.00 GiB"),
        (5000 * T, "5000 TiB"),
    ],
)
def test_sizes_for_people(size, text):
    assert format_size(size) == text


@given(st.integers(1, 2**53))
def test_what_is_shown_can_be_typed_and_is_right_to_three_digits(size):
    text = format_size(size).replace(" bytes", "").replace(" byte", "")
    assert parse_size(text) == pytest.approx(size, rel=0.00501, abs=1)
