"""Stop strings in streamed text: field cases C04 and C06, and independence of the chunking."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramforge_core.errors import ParameterError
from ramforge_core.stops import StopMatcher


def run(stops, chunks):
    """Everything that is shown, whether a stop was found, and the pieces."""
    matcher, shown = StopMatcher(stops), []
    for chunk in chunks:
        emit, stopped = matcher.push(chunk)
        shown.append(emit)
        if stopped:
            return "".join(shown), True, shown
    shown.append(matcher.flush())
    return "".join(shown), False, shown


@pytest.mark.parametrize(
    ("stops", "chunks", "shown"),
    [
        (["DEFGHIJ"], ["ABC", "DEF", "G", "HI", "J", "K"], "ABC"),
        (["\nUser:"], ["Fine.", "\nUser", ": and"], "Fine."),
        (["stop"], ["please ", "stop!"], "please "),
        ([".."], ["well", "..."], "well"),
        (["ab", "abc"], ["xab", "c"], "x"),
        (["long stop", "st"], ["a long s", "top"], "a long "),
        (["bcd", "cd"], ["abc", "d"], "a"),
        (["aab"], ["a", "a", "a", "b"], "a"),
        (["日本"], ["x日", "本y"], "x"),
    ],
)
def test_text_before_the_stop_is_shown_and_nothing_of_the_stop(stops, chunks, shown):
    assert run(stops, chunks)[:2] == (shown, True)


def test_a_tail_that_could_begin_a_stop_waits_and_comes_out_when_it_does_not():
    matcher = StopMatcher(["\nUser:"])
    assert matcher.push("one\nUs") == ("one", False)
    assert matcher.push("ual") == ("\nUsual", False)
    assert matcher.push(" day\n") == (" day", False)
    assert matcher.flush() == "\n"
    assert matcher.flush() == ""


def test_nothing_comes_after_a_stop():
    matcher = StopMatcher(["#"])
    assert matcher.push("a#b") == ("a", True)
    assert matcher.push("c") == ("", True)
    assert matcher.flush() == ""


def test_without_stops_all_text_passes_at_once():
    assert run([], ["a", "", "b"]) == ("ab", False, ["a", "", "b", ""])


@pytest.mark.parametrize("stops", ["text", [""], ["a", ""], [1]])
def test_senseless_stops_are_refused(stops):
    with pytest.raises(ParameterError, match="stop strings"):
        StopMatcher(stops)


@settings(deadline=None)
@given(
    st.text("abc", max_size=40),
    st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
    st.lists(st.integers(0, 40), max_size=12),
)
def test_the_chunking_does_not_matter(text, stops, cuts):
    edges = sorted({0, len(text), *(c for c in cuts if c <= len(text))})
    chunks = [text[a:b] for a, b in pairwise(edges)]
    matches = [(n + len(s), n) for s in stops for n in range(len(text)) if text.startswith(s, n)]
    want = text[: min(matches)[1]] if matches else text
    assert run(stops, chunks)[:2] == (want, bool(matches))
    assert run(stops, list(text))[:2] == (want, bool(matches))
