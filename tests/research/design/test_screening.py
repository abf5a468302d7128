"""The screen: who is asked next, what a rung waits for, and whom a screen keeps."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.design.comparison import BOUND
from research.design.samplers import MOST_LISTED
from research.design.screening import Scores, ScreenProgress, Trial
from research.errors import NotReady
from studies.records.base import JsonValue
from studies.records.design import Arm
from studies.records.procedure import Knob, Rung, Screen, Selection

Truth = Callable[[Mapping[str, JsonValue], int], float | None]  # the score of a candidate's job fields at a rung
LADDERS = (
    Knob(field="a", values=(1, 2, 4, 8)),
    Knob(field="b", values=(0.1, 0.2, 0.4)),
    Knob(field="c", values=(False, True)),
)
CONTROL: dict[str, JsonValue] = {"a": 1, "b": 0.1, "c": False}


def a_screen(sampler: str = "surface", candidates: int = 12, keeps: tuple[int, ...] = (2,), seed: int = 1) -> Screen:
    rungs = tuple(Rung(steps=10 * (at + 1), keep=keep) for at, keep in enumerate(keeps))
    bound = BOUND if sampler == "surface" else None
    return Screen.model_validate(
        {"knobs": LADDERS, "sampler": sampler, "bound": bound, "candidates": candidates, "initial": 4, "rungs": rungs,
         "seed": seed}
    )  # fmt: skip


@dataclass
class Driven:
    progress: ScreenProgress
    selection: Selection

    @property
    def asked(self) -> tuple[Arm, ...]:
        return self.progress.asked

    @property
    def scores(self) -> Scores:
        return self.progress.scores

    @property
    def kept(self) -> tuple[str, ...]:
        return self.selection.kept

    def at(self, rung: int) -> set[str]:
        return {name for name, own in self.scores if own == rung}


def begun(screen: Screen, **changes: Any) -> ScreenProgress:
    return ScreenProgress(screen, **{"control": CONTROL, **changes})


def ask_all(progress: ScreenProgress, most: int = 1000) -> ScreenProgress:
    """Return the progress after so many candidates more, or all that it asks for."""
    while len(progress.asked) < most and (arm := progress.next_candidate()):
        progress = replace(progress, asked=(*progress.asked, arm))
    return progress


def drive(screen: Screen, truth: Truth, *, at_once: int = 1, **changes: Any) -> Driven:
    """Run a screen with `at_once` runs side by side, whose scores all come in before the next are asked."""
    progress = begun(screen, **changes)
    while True:
        before = len(progress.asked)
        progress = ask_all(progress, before + at_once)
        trials = progress.due_trials()
        if len(progress.asked) == before and not trials:
            return Driven(progress, progress.select())
        places = {arm.name: arm.overrides for arm in progress.asked}
        scores = {trial: truth(places[trial.candidate], trial.rung) for trial in trials}
        progress = replace(progress, scores={**progress.scores, **scores})


SAMPLERS = ("grid", "surface")
ALL_BUT_THE_CONTROL = 4 * 3 * 2 - 1


def bowl(values: Mapping[str, JsonValue], rung: int = 0) -> float:
    return 0.1 * values["c"] - 0.1 * (math.log2(values["a"]) - 2) ** 2 - 0.1 * (math.log2(values["b"] / 0.2)) ** 2


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("count", [0, 3, 7])
def test_whoever_is_killed_before_writing_an_ask_down_asks_the_same_again(sampler: str, count: int) -> None:
    whole = drive(a_screen(sampler), bowl).progress
    scores = {(arm.name, 0): whole.scores[arm.name, 0] for arm in whole.asked[:count]}
    once = replace(whole, asked=whole.asked[:count], scores=scores).next_candidate()
    again = replace(whole, asked=whole.asked[:count], scores=dict(reversed(scores.items()))).next_candidate()
    assert once == again
    assert once is not None


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_no_combination_is_asked_twice_and_the_control_never(sampler: str) -> None:
    driven = drive(a_screen(sampler, candidates=100, keeps=(2,)), bowl)
    places = [tuple(arm.overrides.values()) for arm in driven.asked]
    assert len(set(places)) == len(places) == ALL_BUT_THE_CONTROL
    assert tuple(CONTROL.values()) not in places
    assert len({arm.name for arm in driven.asked}) == len(places)
    assert len(drive(a_screen(sampler, candidates=7), bowl).asked) == 7  # no more than the lock says


def test_a_combination_that_is_no_job_is_not_asked() -> None:
    screen = a_screen("surface", candidates=50)
    assert len(ask_all(begun(screen, allowed=lambda values: values["a"] != 8)).asked) == 3 * 3 * 2 - 1


def test_a_space_too_large_to_list_is_still_searched() -> None:
    knobs = tuple(Knob(field=name, values=tuple(range(8))) for name in "abcdef")
    control = dict.fromkeys("abcdef", 0)
    screen = Screen(knobs=knobs, sampler="surface", candidates=12, initial=6, rungs=(Rung(steps=1, keep=1),), seed=0,
                    bound=BOUND)  # fmt: skip
    assert math.prod(len(knob.values) for knob in knobs) > MOST_LISTED
    driven = drive(screen, lambda values, _: float(sum(values.values())), control=control)
    assert len(driven.asked) == 12
    assert driven.scores[driven.asked[-1].name, 0] > 30  # type: ignore[operator]


@pytest.mark.slow
def test_the_surface_asks_where_scores_are_high_more_than_a_grid_does() -> None:
    def noisy(values: Mapping[str, JsonValue], rung: int) -> float:
        return bowl(values) + random.Random(repr(values)).gauss(0, 0.02)

    def asked(sampler: str, seed: int) -> float:
        driven = drive(a_screen(sampler, candidates=14, keeps=(1,), seed=seed), noisy)
        return fmean(bowl(arm.overrides) for arm in driven.asked[4:])

    chance, informed = (fmean(asked(sampler, seed) for seed in range(6)) for sampler in SAMPLERS)
    assert informed > chance


@pytest.mark.parametrize(("sampler", "bound"), [("random", None), ("tpe", None), ("surface", None)])
def test_a_screen_that_an_older_version_locked_is_not_asked_on(sampler: str, bound: float | None) -> None:
    screen = a_screen().model_copy(update={"sampler": sampler, "bound": bound})
    with pytest.raises(NotReady):
        begun(screen).next_candidate()


def test_lower_is_better_where_the_metric_says_so() -> None:
    driven = drive(
        a_screen("surface", candidates=14, keeps=(1,)), lambda values, _: -bowl(values), higher_is_better=False
    )
    assert driven.kept == ("a=4+b=0.2+c=true",)


def rising(values: Mapping[str, JsonValue], rung: int = 0) -> float:
    return float(values["a"]) + float(values["b"]) + 0.5 * values["c"]


@st.composite
def halvings(draw: st.DrawFn) -> tuple[int, tuple[int, ...]]:
    candidates = draw(st.integers(1, 20))
    keeps = sorted(draw(st.lists(st.integers(1, candidates), min_size=1, max_size=3)), reverse=True)
    return candidates, tuple(keeps)


@given(halvings(), st.sampled_from(SAMPLERS), st.integers(1, 3))
def test_a_rung_runs_whom_the_one_before_kept(shape: tuple[int, tuple[int, ...]], sampler: str, at_once: int) -> None:
    candidates, keeps = shape
    screen = a_screen(sampler, candidates, keeps)
    driven = drive(screen, rising, at_once=at_once)
    entering = [candidates, *keeps]
    assert [len(driven.at(rung)) for rung in range(len(keeps))] == entering[:-1]
    assert len(driven.kept) == keeps[-1]
    steps = sum(screen.rungs[rung].steps for _, rung in driven.scores)
    assert steps == sum(count * rung.steps for count, rung in zip(entering, screen.rungs, strict=False))


def test_a_rung_waits_for_the_last_run_of_the_rung_before() -> None:
    asked = tuple(Arm(name=f"x{a}", overrides={"a": a, "b": 0.2, "c": True}) for a in (1, 2, 4))
    scores = {("x1", 0): 0.1, ("x2", 0): 0.3}
    progress = begun(a_screen("grid", 3, (2, 1)), asked=asked, scores=scores)
    assert progress.due_trials() == (Trial("x4", 0),)
    assert replace(progress, scores={**scores, ("x4", 0): 0.2}).due_trials() == (Trial("x2", 1), Trial("x4", 1))
    few = replace(progress, asked=asked[:1], scores={("x1", 0): 0.5})
    assert few.due_trials() == ()  # before all candidates were asked


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_failed_run_counts_as_the_worst_and_never_goes_on(sampler: str) -> None:
    driven = drive(a_screen(sampler, 8, (4, 2)), lambda values, _: None if values["c"] else rising(values))
    kept = [arm for arm in driven.asked if arm.name in driven.kept]
    assert not any(arm.overrides["c"] for arm in kept)
    assert min(driven.selection.scores.values()) >= min(score for score in driven.scores.values() if score is not None)


def test_a_screen_of_failures_alone_selects_nobody() -> None:
    asked = (Arm(name="x", overrides={"a": 2, "b": 0.2, "c": True}),)
    with pytest.raises(ValueError, match="last rung"):
        begun(a_screen("surface", 1, (1,)), asked=asked, scores={("x", 0): None}).select()
