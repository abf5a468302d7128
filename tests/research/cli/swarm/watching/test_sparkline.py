"""A curve in one line: as wide as it may be, and as high as its values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from research.cli.swarm.watching.sparkline import BARS, PLAIN, sparkline

VALUES = st.lists(st.none() | st.floats(-1e9, 1e9), max_size=400)


@given(VALUES, st.integers(1, 120), st.sampled_from([BARS, PLAIN]))
def test_it_is_never_wider_than_asked_and_has_no_other_characters(
    values: list[float | None], width: int, bars: str
) -> None:
    line = sparkline(values, width, bars)
    assert len(line) == min(len(values), width)
    assert set(line) <= {*bars, " "}


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=50, unique=True))
def test_a_higher_value_is_never_a_lower_bar_and_the_ends_of_the_scale_are_reached(values: list[int]) -> None:
    heights = [BARS.index(bar) for bar in sparkline([float(value) for value in values], 50)]
    ordered = [height for _, height in sorted(zip(values, heights, strict=True))]
    assert ordered == sorted(ordered)
    assert (ordered[0], ordered[-1]) == (0, len(BARS) - 1)


def test_what_does_not_fit_is_averaged_and_what_is_not_known_is_a_gap() -> None:
    assert sparkline([0.0, 0.0, 10.0, 10.0], 2) == "▁█"
    assert sparkline([0.0, None, 10.0], 9) == "▁ █"
    assert sparkline([0.0, None, 10.0, 10.0], 2) == "▁█", "a part is the mean of what is known of it"
    assert sparkline([3.0, 3.0, 3.0], 9) == "▅▅▅"
    assert sparkline([], 9) == ""
