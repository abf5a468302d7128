from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.screening import Trial, due, select, steps_in_all
from studies.records import Arm, JsonValue
from tests.research.screening.driving import CONTROL, a_screen, drive

SAMPLERS = ("grid", "random", "tpe", "surface", "bound")


def rising(values: Mapping[str, JsonValue], rung: int = 0) -> float:
    return float(values["a"]) + float(values["b"]) + 0.5 * values["c"]


@st.composite
def halvings(draw: st.DrawFn) -> tuple[int, tuple[int, ...]]:
    candidates = draw(st.integers(1, 20))
    keeps = sorted(draw(st.lists(st.integers(1, candidates), min_size=1, max_size=3)), reverse=True)
    return candidates, tuple(keeps)


@settings(deadline=None, max_examples=30)
@given(halvings(), st.sampled_from(["grid", "random", "surface", "bound"]), st.integers(1, 3))
def test_every_rung_runs_whom_the_rung_before_kept_and_no_more(
    shape: tuple[int, tuple[int, ...]], sampler: str, at_once: int
) -> None:
    candidates, keeps = shape
    screen = a_screen(sampler, candidates, keeps)
    driven = drive(screen, rising, at_once=at_once)
    entering = [candidates, *keeps]
    assert [len(driven.at(rung)) for rung in range(len(keeps))] == entering[:-1]
    assert len(driven.kept) == keeps[-1]
    steps = sum(screen.rungs[rung].steps for _, rung in driven.scores)
    assert steps == steps_in_all(screen)


@settings(deadline=None, max_examples=20)
@given(
    st.dictionaries(st.integers(0, 22), st.floats(-1, 1), min_size=23, max_size=23), st.sampled_from(["grid", "random"])
)
def test_without_noise_the_best_of_a_whole_grid_is_kept_whatever_the_scores(
    heights: dict[int, float], sampler: str
) -> None:
    places: dict[str, int] = {}

    def truth(values: Mapping[str, JsonValue], rung: int) -> float:
        return heights[places.setdefault(repr(values), len(places))]

    driven = drive(a_screen(sampler, 23, (6, 2)), truth)
    best = max(driven.at(0), key=lambda name: driven.scores[name, 0] or 0.0)
    assert driven.scores[driven.kept[0], 1] == pytest.approx(driven.scores[best, 0])


def test_without_noise_the_surface_keeps_the_best_of_a_whole_grid() -> None:
    assert drive(a_screen("surface", 23, (6, 2)), rising).kept[0] == "a=8+b=0.4+c=true"


def test_a_rung_waits_for_the_last_run_of_the_rung_before() -> None:
    asked = [Arm(name=f"x{a}", overrides={"a": a, "b": 0.2, "c": True}) for a in (1, 2, 4)]
    screen = a_screen("random", 3, (2, 1))
    scores: dict[tuple[str, int], float | None] = {("x1", 0): 0.1, ("x2", 0): 0.3}
    assert due(screen, CONTROL, asked, scores) == (Trial("x4", 0),)
    assert due(screen, CONTROL, asked, {**scores, ("x4", 0): 0.2}) == (Trial("x2", 1), Trial("x4", 1))


def test_the_next_rung_does_not_begin_before_all_candidates_were_asked() -> None:
    asked = [Arm(name="x", overrides={"a": 2, "b": 0.2, "c": True})]
    assert due(a_screen("random", 3, (2, 1)), CONTROL, asked, {("x", 0): 0.5}) == ()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_failed_run_counts_as_the_worst_and_never_goes_on(sampler: str) -> None:
    driven = drive(a_screen(sampler, 8, (4, 2)), lambda values, _: None if values["c"] else rising(values))
    kept = [arm for arm in driven.asked if arm.name in driven.kept]
    assert not any(arm.overrides["c"] for arm in kept)
    assert driven.selection is not None
    assert min(driven.selection.scores.values()) >= min(score for score in driven.scores.values() if score is not None)


def test_a_screen_of_failures_alone_selects_nobody() -> None:
    asked = [Arm(name="x", overrides={"a": 2, "b": 0.2, "c": True})]
    with pytest.raises(ValueError, match="measured at the screen's last rung; found none"):
        select(a_screen("surface", 1, (1,)), asked, {("x", 0): None})


def test_a_lucky_run_beside_poor_ones_is_ranked_below_a_good_one_beside_good_ones() -> None:
    """Where the raw score would be fooled, the surface is not: this is what it is for."""
    lucky = "a=1+b=0.2+c=false"

    def truth(values: Mapping[str, JsonValue], rung: int) -> float:
        name = "+".join(f"{field}={str(value).lower()}" for field, value in values.items())
        return 0.9 if name == lucky else 0.1 * float(values["a"])

    raw, smooth = (drive(a_screen(sampler, 23, (1,)), truth) for sampler in ("grid", "surface"))
    assert raw.kept == (lucky,)
    assert smooth.kept != (lucky,)
    assert "a=8" in smooth.kept[0]
