"""A growing text seen through its end is told once."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from research.growing_text import news


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(300, 400))
def test_lines_are_told_once_as_long_as_the_end_that_is_kept_overlaps(lines: list[int], kept: int) -> None:
    """Nothing is lost and nothing is told twice, however many lines come between two looks."""
    whole, before, heard = "", "", ""
    number = itertools.count()
    for count in lines:
        piece = "".join(f"line {next(number):03}\n" for _ in range(count))
        whole += piece
        now = whole[-(kept + len(piece)) :]
        heard += news(before, now)
        before = now
    assert heard == whole


@given(st.text(), st.text())
def test_a_text_that_was_kept_whole_gives_just_what_was_added(before: str, added: str) -> None:
    before = before.lstrip("\N{REPLACEMENT CHARACTER}")
    if before:
        assert news(before, before + added) == added
