"""The screen: which candidate is tried next, which runs are due, who goes on, who is kept.

The first candidates are spread over the knobs, the rest are asked of the sampler. Rungs are synchronous (successive
halving): one begins when the one before it is over (Jamieson & Talwalkar 2016). A failed run has the worst
score of its rung. Under the `surface` sampler candidates are ranked by the surface's mean, which draws a lucky score
back to what all others say; under the other samplers by the raw score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from research.design.samplers import (
    SAMPLERS,
    Allowed,
    SearchHistory,
    Space,
    Surface,
    allow_any,
    arm_of,
    build_ladders,
    choose_balanced,
    make_generator,
)
from studies.records.base import JsonValue
from studies.records.design import Arm
from studies.records.procedure import Rung, Screen, Selection


class Trial(NamedTuple):
    """One screening run: a candidate at a rung, trained `screen.rungs[rung].steps` steps with the screen's seed."""

    candidate: str
    rung: int


Scores = Mapping[tuple[str, int], float | None]
"""The metric of each trial that is over, None where nothing could be measured; a trial still running is left out."""


def next_candidate(
    screen: Screen,
    control: Mapping[str, JsonValue],
    asked: Sequence[Arm],
    scores: Scores,
    *,
    higher_is_better: bool = True,
    allowed: Allowed = allow_any,
) -> Arm | None:
    """Return the next candidate of a screen; None when enough were asked, or every combination was.

    `control` holds the control's value of each knob: it is never a candidate. Earlier candidates may still run.
    """
    if len(asked) >= screen.candidates:
        return None
    space, index = Space(screen.knobs, control, allowed), len(asked)
    points = [space.point(arm.overrides) for arm in asked]
    free = space.shuffle_free_points(make_generator(screen.seed, index), without=points)
    if not free:
        return None
    told = collect_scores(asked, 0, scores, higher_is_better=higher_is_better)
    last = index >= screen.candidates - screen.confirmed
    values = tuple(told.get(arm.name) for arm in asked)
    known = SearchHistory(space, screen.seed, tuple(points), values, last, screen.bound)
    begins = index < screen.initial and screen.sampler in ("tpe", "surface")
    return arm_of(space, (choose_balanced if begins else SAMPLERS[screen.sampler])(known, free), index)


def list_due_trials(
    screen: Screen,
    control: Mapping[str, JsonValue],
    asked: Sequence[Arm],
    scores: Scores,
    *,
    higher_is_better: bool = True,
    allowed: Allowed = allow_any,
) -> tuple[Trial, ...]:
    """Return the trials without a score that belong to the rung at hand, running ones included.

    Empty: more must be asked (`next_candidate`), or, where that gives None, `select` may be called.
    """
    first = _list_missing_trials([arm.name for arm in asked], 0, scores)
    if first:
        return first
    if len(asked) < screen.candidates:
        space = Space(screen.knobs, control, allowed)
        points = [space.point(arm.overrides) for arm in asked]
        if space.shuffle_free_points(make_generator(screen.seed, len(asked)), without=points):
            return ()
    for rung in range(1, len(screen.rungs)):
        entering = select_survivors(screen, rung - 1, asked, scores, higher_is_better=higher_is_better)
        if missing := _list_missing_trials(entering, rung, scores):
            return missing
    return ()


def select_survivors(
    screen: Screen, rung: int, asked: Sequence[Arm], scores: Scores, *, higher_is_better: bool = True
) -> tuple[str, ...]:
    """Return the candidates that go on from a rung that is over, the best first; a failed one never does."""
    ranked = _rank(screen, rung, asked, scores, higher_is_better)
    measured = [name for name, _ in ranked if scores[name, rung] is not None]
    return tuple(measured[: screen.rungs[rung].keep])


def select(screen: Screen, asked: Sequence[Arm], scores: Scores, *, higher_is_better: bool = True) -> Selection:
    """Return what a screen that is over led to; raise ValueError where no candidate could be measured to the end."""
    last = len(screen.rungs) - 1
    kept = select_survivors(screen, last, asked, scores, higher_is_better=higher_is_better)
    if not kept:
        raise ValueError("expected a candidate that was measured at the screen's last rung; found none")
    by = "the response surface's mean" if screen.sampler == "surface" else "the score"
    reason = (
        f"the best {len(kept)} of {len(asked)} candidates by {by} after {screen.rungs[-1].steps} steps, seed "
        f"{screen.seed}"
    )
    return Selection(kept=kept, scores=dict(_rank(screen, last, asked, scores, higher_is_better)), reason=reason)


def truncate_screen(screen: Screen, asked: Sequence[Arm], scores: Scores, *, higher_is_better: bool = True) -> Screen:
    """Return the screen that ends now: of the candidates with a score, up to the last rung that was gone through."""
    tried = [arm for arm in asked if (arm.name, 0) in scores]
    entering, last = tuple(arm.name for arm in tried), 0
    for rung in range(len(screen.rungs)):
        if _list_missing_trials(entering, rung, scores):
            break
        entering = select_survivors(screen, rung, tried, scores, higher_is_better=higher_is_better)
        if not entering:
            break
        last = rung
    rungs = (*screen.rungs[:last], Rung(steps=screen.rungs[last].steps, keep=screen.confirmed))
    return screen.model_copy(update={"candidates": len(tried), "rungs": rungs})


def collect_scores(
    asked: Sequence[Arm], rung: int, scores: Scores, *, higher_is_better: bool = True
) -> dict[str, float]:
    """Return the score of each candidate that is over at a rung, turned so that higher is better, the failed worst."""
    sign = 1.0 if higher_is_better else -1.0
    there = {arm.name: scores[arm.name, rung] for arm in asked if (arm.name, rung) in scores}
    worst = min((sign * score for score in there.values() if score is not None), default=0.0)
    return {name: worst if score is None else sign * score for name, score in there.items()}


def _list_missing_trials(names: Sequence[str], rung: int, scores: Scores) -> tuple[Trial, ...]:
    return tuple(Trial(name, rung) for name in names if (name, rung) not in scores)


def _rank(
    screen: Screen, rung: int, asked: Sequence[Arm], scores: Scores, higher_is_better: bool
) -> list[tuple[str, float]]:
    """Return the candidates over at a rung with what they are ranked by, in the metric's own direction, best first.

    That is their score, or the surface's mean at the rung, which has seen the rungs before.
    """
    ranks = collect_scores(asked, rung, scores, higher_is_better=higher_is_better)
    if screen.sampler == "surface" and ranks:
        space = Space(screen.knobs, {})
        point = {arm.name: space.point(arm.overrides) for arm in asked}
        seen = [collect_scores(asked, at, scores, higher_is_better=higher_is_better) for at in range(rung + 1)]
        rows = [(point[name], at, score) for at, those in enumerate(seen) for name, score in those.items()]
        surface = Surface(build_ladders(space), *zip(*rows, strict=True))
        means = surface.to_scores(surface.predict([point[name] for name in ranks], rung).mean, rung).tolist()
        ranks = dict(zip(ranks, means, strict=True))
    sign = 1.0 if higher_is_better else -1.0
    return [(name, sign * score) for name, score in sorted(ranks.items(), key=lambda entry: -entry[1])]
