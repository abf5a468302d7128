"""What is given up where the budget does not carry all that is locked.

In an order written here before any data, what is not needed yet first: the replication is not begun; the screen asks
for no more candidates, then ends; the confirmation goes on seed by seed as far as it goes. A screen leaves the time of
the confirmation untouched: of all its looks once it has candidates to choose among, of the first look in any case. The
lock stays as it is; what is given up is a decision, written down as soon as it is foreseen.

Only time decides: what is left of the budget, how many runs there are to make, and how long runs took
(`research.design.pricing.price_of`). No measured value is looked at, so nothing here can favour an outcome. It reckons
with all looks and with the replication.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from research.design.pricing import find_locked_price, price_of
from research.scheduler.required_runs import (
    RequiredRun,
    attempts_running,
    confirmation_runs,
    is_over,
    last_budget_amendment,
    planned_runs,
    replication_hypotheses,
    replication_runs,
    to_required_run,
    was_cut,
)
from research.scheduler.steps import END_SCREEN, NO_MORE_CANDIDATES, SHRINK_RULE, Decide
from research.text import format_flag, format_seconds
from studies import RunState, StudyState
from studies.records.design import Design
from studies.records.procedure import Screen

GIVEN_UP = ("skip the replication", "shorten the screen", "shorten the confirmation", "cut the first look short")
"""What is foreseen to be given up, each with all that stands before it."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What the next step must keep to."""

    seconds: float
    parallel: int
    """Attempts of the study at once. What comes is reckoned without other studies, as they end."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Runs that are not begun yet and may go side by side, and the seconds of each."""

    runs: int
    seconds: float


def foresee_cuts(state: StudyState, design: Design, limits: StepLimits) -> Iterator[Decide]:
    """Yield what will be given up, if more than was said since the budget was set."""
    if limits.seconds <= 0:
        return
    rest = _RemainingWork(state, design, limits)
    level = rest.level()
    said = [
        GIVEN_UP.index(d.action)
        for d in state.decisions
        if d.rule == SHRINK_RULE and d.action in GIVEN_UP and d.seq > last_budget_amendment(state)
    ]
    if level is not None and level > max(said, default=-1):
        yield Decide(SHRINK_RULE, GIVEN_UP[level], rest.sentence(level))


def end_candidates(state: StudyState, design: Design, screen: Screen, limits: StepLimits) -> Iterator[Decide]:
    """Yield the decision to ask for no more candidates, where one more would take the confirmation's time."""
    asked = len(state.candidates)
    if asked and limits.seconds > 0 and not _fits_screen(state, design, screen, limits, asked + 1):
        reason = f"{asked} of {screen.candidates} candidates were asked for; {_describe_reserve(state, limits)}"
        yield Decide(SHRINK_RULE, NO_MORE_CANDIDATES, reason)


def end_screen(state: StudyState, design: Design, screen: Screen, limits: StepLimits) -> Iterator[Decide]:
    """Yield the end of a screen whose rung would take the confirmation's time; one candidate is always tried."""
    tried = [run for run in state.runs_in("screen") if run.active is not None or run.measurements]
    if tried and limits.seconds > 0 and not _fits_rung(state, design, screen, limits):
        made = sum(is_over(run) for run in state.runs_in("screen"))
        yield Decide(SHRINK_RULE, END_SCREEN, f"{made} of its runs are over; {_describe_reserve(state, limits)}")


def can_afford_replication(state: StudyState, design: Design, limits: StepLimits) -> bool:
    """Return whether the replication is begun already, or can be carried as a whole."""
    return any(run.attempts for run in state.runs_in("replicate")) or _fits(
        state, [_replication(state, design)], limits
    )


def replication_seconds(state: StudyState, design: Design, limits: StepLimits) -> float:
    return _seconds(state, [_replication(state, design)], limits)


class _RemainingWork:
    """What is left to run of all that is locked, and what of it the time carries."""

    def __init__(self, state: StudyState, design: Design, limits: StepLimits) -> None:
        self._state, self._design, self._limits = state, design, limits
        screen = design.screen
        asked, confirmed = len(state.candidates), 0 if screen is None else screen.confirmed
        self._screen = (
            []
            if screen is None
            else _screen_rest(
                state, screen, len(state.candidates) if was_cut(state, NO_MORE_CANDIDATES) else screen.candidates
            )
        )
        self._least = [] if screen is None else _screen_rest(state, screen, max(asked, _min_candidates(screen)))
        self._whole = _confirmation(state, design, confirmed, all_analyses=True)
        self._look = _confirmation(state, design, confirmed, all_analyses=False)
        self._again = _replication(state, design)

    def level(self) -> int | None:
        """Return the index in GIVEN_UP of what has to be given up; None where all is carried, or is begun."""
        begun = any(run.attempts for run in self._state.runs_in("replicate"))
        if begun or self._fits([*self._screen, self._whole, self._again]):
            return None
        if self._again.runs and self._fits([*self._screen, self._whole]):
            return 0
        if not self._screen and not self._whole.runs:
            return None
        if sum(batch.runs for batch in self._screen) and self._fits([*self._least, self._whole]):
            return 1
        judged = bool(self._state.interim or self._state.verdicts)
        return 2 if judged or self._fits([*self._least, self._look]) else 3

    def sentence(self, level: int) -> str:
        state, left = self._state, self._limits.seconds
        all_of_it = [*self._screen, self._whole, self._again]
        carried = [*self._least, self._look] if level == 3 else all_of_it
        budget = format_flag(state.budget_s - left + _seconds(state, carried, self._limits))
        consequence = (
            "the replication is not begun unless there is time for all of it",
            "the screen ends when the confirmation needs the time",
            "the confirmation ends before its last look",
            "not even the first look has all its seeds, and is judged on what is there by then",
        )[level]
        return (
            f"a run takes about {format_seconds(price_of(state, 'confirm'))}, in the lock "
            f"{format_seconds(find_locked_price(state, 'confirm'))}: what is locked needs about "
            f"{format_seconds(_seconds(state, all_of_it, self._limits))} more and {format_seconds(left)} are left, so "
            f'{consequence}; carried by: ajet study amend {state.id} --budget {budget} --reason "..."'
        )

    def _fits(self, batches: Sequence[_Batch]) -> bool:
        return _fits(self._state, batches, self._limits)


def _fits_screen(state: StudyState, design: Design, screen: Screen, limits: StepLimits, candidates: int) -> bool:
    rest = _screen_rest(state, screen, candidates)
    return _fits(state, [*rest, _reserved_batch(state, design, screen, candidates)], limits)


def _fits_rung(state: StudyState, design: Design, screen: Screen, limits: StepLimits) -> bool:
    asked = len(state.candidates)
    rung = _screen_rest(state, screen, asked)[0]
    return _fits(state, [rung, _reserved_batch(state, design, screen, asked)], limits)


def _reserved_batch(state: StudyState, design: Design, screen: Screen, candidates: int) -> _Batch:
    """Return the part of the confirmation that a screen of so many candidates may not touch."""
    kept = min(screen.confirmed, candidates)
    return _confirmation(state, design, kept, all_analyses=candidates > _min_candidates(screen))


def _confirmation(state: StudyState, design: Design, confirmed: int, *, all_analyses: bool) -> _Batch:
    """Return the runs of the confirmation that are not begun: of `confirmed` arms and the control, after a screen."""
    if design.screen is None:
        runs = _count_not_begun(state, confirmation_runs(state, design, all_analyses=all_analyses))
    else:
        first = design.looks[0].seeds if design.looks else len(design.seeds)
        runs = (1 + confirmed) * (len(design.seeds) if all_analyses else first)
    return _Batch(runs, price_of(state, "confirm"))


def _replication(state: StudyState, design: Design) -> _Batch:
    """Return the runs of the replication that are not begun: of all arms, before it is asked for."""
    if design.replication is None:
        return _Batch(0, 0.0)
    if replication_hypotheses(state, design):
        runs = _count_not_begun(state, replication_runs(state, design))
    elif design.screen is not None or confirmation_runs(state, design):
        arms = 1 + design.screen.confirmed if design.screen is not None else len(design.arms)
        runs = arms * len(design.replication.seeds)
    else:
        runs = 0  # nothing asked for it
    return _Batch(runs, price_of(state, "replicate"))


def _screen_rest(state: StudyState, screen: Screen, candidates: int) -> list[_Batch]:
    """Return the runs of each rung that are not begun, in a screen of so many candidates."""
    begun = Counter(to_required_run(run).steps for run in state.runs_in("screen") if _is_begun(run))
    batches, entering = [], candidates
    for rung in () if was_cut(state, END_SCREEN) else screen.rungs:
        if left := max(0, entering - begun[rung.steps]):
            batches.append(_Batch(left, price_of(state, "screen", rung.steps)))
        entering = min(entering, rung.keep)
    return batches or [_Batch(0, 0.0)]  # what comes after waits for the runs that go on


def _min_candidates(screen: Screen) -> int:
    """Return with how many candidates there is something to choose: from then on all looks are kept free."""
    return min(screen.candidates, screen.confirmed + 1)


def _count_not_begun(state: StudyState, required: Sequence[RequiredRun]) -> int:
    runs = planned_runs(state)
    return sum(required_run not in runs or not _is_begun(runs[required_run]) for required_run in required)


def _is_begun(run: RunState) -> bool:
    return run.active is not None or run.collected is not None or is_over(run)


def _fits(state: StudyState, batches: Sequence[_Batch], limits: StepLimits) -> bool:
    return _seconds(state, batches, limits) <= limits.seconds


def _seconds(state: StudyState, batches: Sequence[_Batch], limits: StepLimits) -> float:
    """Return the seconds that the batches take one after the other, beside and after what runs now."""
    since = max(0.0, state.budget_s - state.worked_s - limits.seconds)  # the last event of the log
    busy = sorted(_remaining_seconds(state, run, since) for run in attempts_running(state))
    slots = [0.0] * (max(1, limits.parallel) - len(busy)) + busy
    for batch in batches:
        for _ in range(batch.runs):
            heapq.heapreplace(slots, slots[0] + batch.seconds)
        slots = [max(slots)] * len(slots)
    return max(slots)


def _remaining_seconds(state: StudyState, run: RunState, since: float) -> float:
    """Return the seconds that a running attempt still takes, by its price, so long after the log's last event."""
    required_run, attempt = to_required_run(run), run.active
    if attempt is None:
        return 0.0
    age = datetime.fromisoformat(state.last_ts) - datetime.fromisoformat(attempt.launched)
    return max(0.0, price_of(state, required_run.phase, required_run.steps) - max(0.0, age.total_seconds()) - since)


def _describe_reserve(state: StudyState, limits: StepLimits) -> str:
    return (
        f"another run of about {format_seconds(price_of(state, 'screen'))} would take time from the confirmation, with "
        f"{format_seconds(limits.seconds)} left"
    )
