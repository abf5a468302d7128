"""Budgets: read, and said back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.errors import BadInput
from research.text import MOST_SECONDS, format_flag, format_seconds, parse_budget


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90), ("10m", 600), ("2h", 7200), ("1h30m", 5400), ("1d", 86_400), ("1.5h", 5400),
        (" 1h 30m ", 5400), ("1D2H3M4S", 93_784),
    ],
)  # fmt: skip
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "10", "m", "10x", "ten minutes", "-5m", "30m1h", "5m5m", "1e3s", "10m!", "nans", "infs", "٣m"]
)
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(BadInput, match="such as 90s, 10m, 2h, 1h30m or 1d") as caught:
        parse_budget(text)
    assert repr(text) in caught.value.message


@pytest.mark.parametrize("text", ["0s", "0.5s", "366d", "9" * 400 + "d"])
def test_no_time_and_too_much_time_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="between 1s and 365d"):
        parse_budget(text)


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        seconds = parse_budget(text)
    except BadInput:
        return
    assert 1 <= seconds <= MOST_SECONDS


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"), (0, "0 s"), (45.4, "45 s"), (89.4, "89 s"), (89.6, "1 min 30 s"), (120, "2 min"),
        (390, "6 min 30 s"), (3569, "59 min"), (3570, "1 h"), (5400, "1 h 30 min"), (86_399, "1 d"),
        (97_200, "1 d 3 h"),
    ],
)  # fmt: skip
def test_durations_are_said_in_two_units(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(st.floats(min_value=0, max_value=MOST_SECONDS))
def test_a_flag_is_read_back_as_at_least_what_it_stands_for(seconds: float) -> None:
    assert seconds <= max(60.0, parse_budget(format_flag(min(seconds, MOST_SECONDS)))) < seconds + 61
