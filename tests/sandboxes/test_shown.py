from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sandboxes.spec import added_text, escape_control, last_lines


def test_text_steers_no_terminal_and_is_neither_turned_nor_hidden_and_letters_of_the_world_stay() -> None:
    assert escape_control("\x1b[2J\x1b]0;mine\x07done\r100 %\x9b1m") == r"\x1b[2J\x1b]0;mine\x07done\r100 %\x9b1m"
    assert escape_control("pay \u202eeno\u200b") == r"pay \u202eeno\u200b"
    assert escape_control("say\U000e0061\u3164\U000e0101\ud800") == r"say\U000e0061\u3164\U000e0101\ud800"
    assert escape_control("α\tβ\r\n漢字 😀\n") == "α\tβ\n漢字 😀\n"


@given(st.text())
def test_what_is_shown_is_shown_alike_again(text: str) -> None:
    assert escape_control(escape_control(text)) == escape_control(text)


@given(st.text(), st.integers(1, 4), st.integers(2, 50))
def test_last_lines_are_one_line_of_bounded_length(text: str, lines: int, most: int) -> None:
    found = last_lines(text, lines, most)
    assert len(found) <= most
    assert len(found.splitlines()) <= 1


def test_last_lines_are_the_last() -> None:
    assert last_lines("a\nb\nc\n\n", 2, 100) == "b | c"
    assert last_lines("x" * 1000 + "end", 3, 10) == "…xxxxxxend"


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(300, 400))
def test_lines_are_told_once_as_long_as_the_end_that_is_kept_overlaps(lines: list[int], kept: int) -> None:
    """Nothing is lost and nothing is told twice, however many lines come between two looks."""
    whole, before, heard = "", "", ""
    number = itertools.count()
    for count in lines:
        piece = "".join(f"line {next(number):03}\n" for _ in range(count))
        whole += piece
        now = whole[-(kept + len(piece)) :]
        heard += added_text(before, now)
        before = now
    assert heard == whole


@given(st.text(), st.text())
def test_a_text_that_was_kept_whole_gives_just_what_was_added(before: str, added: str) -> None:
    before = before.lstrip("\N{REPLACEMENT CHARACTER}")
    if before:
        assert added_text(before, before + added) == added
