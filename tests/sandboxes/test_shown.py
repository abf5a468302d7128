from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandboxes.shown import last_lines, shown


def test_a_terminal_is_not_steered() -> None:
    assert shown("\x1b[2J\x1b]0;mine\x07done\r100 %\x9b1m") == r"\x1b[2J\x1b]0;mine\x07done\r100 %\x9b1m"


def test_text_is_neither_turned_nor_hidden() -> None:
    assert shown("pay \u202eeno\u200b") == r"pay \u202eeno\u200b"


def test_lines_tabs_and_letters_of_the_world_stay() -> None:
    assert shown("α\tβ\r\n漢字 😀\n") == "α\tβ\n漢字 😀\n"


@given(st.text())
def test_what_is_shown_is_shown_alike_again(text: str) -> None:
    assert shown(shown(text)) == shown(text)


@given(st.text(), st.integers(1, 4), st.integers(2, 50))
def test_last_lines_are_one_line_of_bounded_length(text: str, lines: int, most: int) -> None:
    found = last_lines(text, lines, most)
    assert len(found) <= most
    assert len(found.splitlines()) <= 1


def test_last_lines_are_the_last() -> None:
    assert last_lines("a\nb\nc\n\n", 2, 100) == "b | c"
    assert last_lines("x" * 1000 + "end", 3, 10) == "…xxxxxxend"
