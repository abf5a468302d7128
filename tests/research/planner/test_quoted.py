"""Text of somebody else's in a digest: plain, short, by id."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.planner import Digest
from research.planner.quoted import LONGEST, MOST, Quoted, plain, quoted

ODD = st.sampled_from(
    ["\x1b[31m", "\x1b]0;title\x07", "\x1bP1;2q\x1b\\\\", "\x9b2J", "\u202e", "\x00", "\r\n", "\t", "a", "é"]
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("look at \x1b[31mthe seeds\x1b[0m", "look at the seeds"),
        ("\x1b]0;owned\x07stop", "stop"),
        ("a\r\nb\tc", "a b c"),
        ("\u202egnp.exe", "gnp.exe"),
        ("a\x00b\x7f", "ab"),
        ("plain é 群れ", "plain é 群れ"),
    ],
)
def test_terminal_sequences_and_controls_are_left_out(text: str, expected: str) -> None:
    assert plain(text) == expected


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=900) | st.lists(ODD, max_size=60).map("".join))
def test_any_text_becomes_one_short_line_that_can_be_stored(text: str) -> None:
    shown = plain(text)
    assert len(shown) <= LONGEST
    assert not [char for char in shown if unicodedata.category(char).startswith("C")]
    assert plain(shown) == shown
    json.dumps(shown).encode()


def test_the_latest_are_kept_and_empty_ones_left_out() -> None:
    shown = quoted([(f"note-{number}", f"text {number}") for number in range(20)] + [("note-20", "\x1b[0m ")])
    assert [entry.id for entry in shown] == [f"note-{number}" for number in range(20 - MOST, 20)]


def test_notes_stand_quoted_in_the_facts(digest: Callable[..., Digest]) -> None:
    facts = digest("group size 4 vs 16", notes=[Quoted("note-7", "look at the seeds")]).facts()
    assert facts["user_notes_quoted"] == [{"id": "note-7", "text": "look at the seeds"}]
