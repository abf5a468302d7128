"""The screen's next step: ask for a candidate, run what its rung needs, and write down whom its locked rule keeps.

`research.screening` chooses and ranks; here is when it is asked. Candidate number i is chosen by the results of those
before it less the parallel slots, whatever else is known by then: equal results lead to equal candidates, wherever a
controller is killed. A run that was given up has no score, which ranks worst.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache

from research.proposals.arms import possible
from research.scheduling.required_runs import RequiredRun, as_required, attempts_running, is_over, was_cut
from research.scheduling.shrinking import StepLimits, enough_candidates
from research.scheduling.steps import BUDGET_CODE, END_SCREEN, NO_MORE_CANDIDATES, AskCandidate, DecideScreen, Step
from research.screening import Allowed, Scores, control_values, cut_short, due, next_candidate, select
from studies import StudyState
from studies.records.base import JsonValue, canonical
from studies.records.design import Arm, Design
from studies.records.design_parts import Screen
from studies.records.run_specs import screen_metric


def screen_runs(state: StudyState, design: Design, screen: Screen) -> tuple[RequiredRun, ...]:
    """Return the screening runs that are needed now, those that are over excepted."""
    if was_cut(state, END_SCREEN):
        return tuple(as_required(run) for run in attempts_running(state))
    trials = due(
        _cut(state, design, screen), control_values(design), tuple(state.candidates.values()), scores(state, screen),
        higher_is_better=_higher(design), allowed=_possible(canonical(design.base_job)),
    )  # fmt: skip
    return tuple(
        RequiredRun("screen", trial.candidate, screen.seed, screen.rungs[trial.rung].steps) for trial in trials
    )


def screen_step(
    state: StudyState, design: Design, screen: Screen, required: tuple[RequiredRun, ...], limits: StepLimits
) -> Iterator[Step]:
    """Yield the next candidate while there are slots and time for it, or whom the screen kept once it is over."""
    made = _cut(state, design, screen)
    if (arm := _next(state, design, made)) is not None:
        yield from enough_candidates(state, design, screen, limits)
        yield AskCandidate(len(state.candidates), arm)
    elif not required and measured(state, made):
        told = scores(state, made)
        asked = tuple(arm for arm in state.candidates.values() if (arm.name, 0) in told)
        yield DecideScreen(select(made, asked, told, higher_is_better=_higher(design)))


def measured(state: StudyState, screen: Screen) -> bool:
    """Return whether any candidate has a score at the last rung: without one there is nothing to keep."""
    last = len(screen.rungs) - 1
    return any(rung == last and score is not None for (_, rung), score in scores(state, screen).items())


def scores(state: StudyState, screen: Screen) -> Scores:
    """Return the score of each screening run that is over, by candidate and rung; None for one that was given up."""
    found: dict[tuple[str, int], float | None] = {}
    ended = was_cut(state, END_SCREEN)
    for run in state.runs_in("screen"):
        if is_over(run) and not (ended and run.invalid is not None and run.invalid[0] == BUDGET_CODE):
            value = run.measurements.get(run.spec.metric.key) if run.invalid is None else None
            for rung in _rungs(screen, int(run.spec.job["steps"])):
                found[run.spec.arm, rung] = None if value is None else value.value
    return found


def _cut(state: StudyState, design: Design, screen: Screen) -> Screen:
    """Return the screen as far as there was time for it."""
    asked = tuple(state.candidates.values())
    if was_cut(state, END_SCREEN):
        return cut_short(screen, asked, scores(state, screen), higher_is_better=_higher(design))
    return screen.model_copy(update={"candidates": len(asked)}) if was_cut(state, NO_MORE_CANDIDATES) else screen


def _next(state: StudyState, design: Design, screen: Screen) -> Arm | None:
    """Return the candidate to ask for now; None while slots are full, or when there is none left."""
    asked = tuple(state.candidates.values())
    settled = len(asked) + 1 - int(state.settings["parallel"])
    told = {arm.name for arm in asked[: max(0, settled)]}
    known = scores(state, screen)
    if any((name, 0) not in known for name in told):
        return None
    seen = {trial: score for trial, score in known.items() if trial[0] in told}
    return next_candidate(
        screen, control_values(design), asked, seen,
        higher_is_better=_higher(design), allowed=_possible(canonical(design.base_job)),
    )  # fmt: skip


def _higher(design: Design) -> bool:
    """Return whether a higher score is a better one."""
    return screen_metric(design.metric).higher_is_better


def _rungs(screen: Screen, steps: int) -> Iterator[int]:
    return (index for index, rung in enumerate(screen.rungs) if rung.steps == steps)


@lru_cache(maxsize=4)
def _possible(base: str) -> Allowed:
    """Return what says whether knob values make a job; each is tried once, as every step of a screen asks for all."""
    check, known = possible(json.loads(base)), dict[tuple[tuple[str, JsonValue], ...], bool]()

    def allowed(values: Mapping[str, JsonValue]) -> bool:
        key = tuple(values.items())
        if key not in known:
            known[key] = check(values)
        return known[key]

    return allowed
