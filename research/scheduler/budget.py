"""What is given up where the budget does not carry all that is locked.

In an order written here before any data, what is not needed yet first: the replication is not begun; the screen asks
for no more candidates; the confirmation goes on seed by seed as far as it goes. The lock stays as it is;
what is given up is a decision, written down as soon as it is foreseen. Only time decides, and no measured value is
looked at, so that nothing here can favour an outcome.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from research.design.pricing import find_locked_price, price_of
from research.scheduler import required_runs as need
from research.scheduler.steps import NO_MORE_CANDIDATES, SHRINK_RULE, Decide
from research.text import format_flag, format_seconds
from studies import RunState, StudyState
from studies.records.design import Design
from studies.records.procedure import Extension, Screen
from studies.verdicts.judge import seeds_by_runs

GIVEN_UP = ("skip the replication", "shorten the screen", "shorten the confirmation", "cut the first look short")
"""What is foreseen to be given up, each with all that stands before it."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What the next step must keep to."""

    seconds: float
    parallel: int
    """Attempts of the study at once. What comes is reckoned without other studies, as they end."""


class _Batch(NamedTuple):
    runs: int
    seconds: float


def foresee_cuts(state: StudyState, design: Design, limits: StepLimits) -> Iterator[Decide]:
    """Yield what will be given up, if more than was said since the budget was set."""
    if limits.seconds <= 0:
        return
    screen, asked, confirmed = design.screen, len(state.candidates), 0
    trials, least = list[_Batch](), list[_Batch]()
    if screen is not None:
        confirmed = screen.confirmed
        trials = [_screen_rest(state, screen, asked if need.was_cut(state) else screen.candidates)]
        least = [_screen_rest(state, screen, max(asked, _min_candidates(screen)))]
    whole = _confirmation(state, design, confirmed, all_analyses=True)
    look = _confirmation(state, design, confirmed, all_analyses=False)
    again = _replication(state, design)
    everything = [*trials, whole, again]
    if any(run.attempts for run in state.runs_in("replicate")) or _fits(state, everything, limits):
        return
    if again.runs and _fits(state, [*trials, whole], limits):
        level = 0
    elif not trials and not whole.runs:
        return
    elif sum(batch.runs for batch in trials) and _fits(state, [*least, whole], limits):
        level = 1
    else:
        level = 2 if state.interim or state.verdicts or _fits(state, [*least, look], limits) else 3
    since = state.budget_amended
    cuts = [d.action for d in state.decisions if d.rule == SHRINK_RULE and d.seq > since and d.action in GIVEN_UP]
    if level <= max(map(GIVEN_UP.index, cuts), default=-1):
        return
    carried = _seconds(state, [*least, look] if level == 3 else everything, limits)
    consequence = (
        "the replication is not begun unless there is time for all of it",
        "the screen ends when the confirmation needs the time",
        "the confirmation ends before its last look",
        "not even the first look has all its seeds, and is judged on what is there by then",
    )[level]
    reason = (
        f"a run takes about {format_seconds(price_of(state, 'confirm'))}, in the lock "
        f"{format_seconds(find_locked_price(state, 'confirm'))}: what is locked needs about "
        f"{format_seconds(_seconds(state, everything, limits))} more and {format_seconds(limits.seconds)} are left, so "
        f"{consequence}; carried by: ajet study amend {state.id} "
        f'--budget {format_flag(state.budget_s - limits.seconds + carried)} --reason "..."'
    )
    yield Decide(SHRINK_RULE, GIVEN_UP[level], reason)


def affordable_seeds(state: StudyState, design: Design, limits: StepLimits) -> int:
    """Return the most seeds of each arm, the pilot's at least, for which there are time and runs. Time does not count
    where somebody who may have seen the pilot set it: the pilot would be judged at the level of a whole study."""
    assert design.pilot is not None
    first = design.pilot.seeds
    for seeds in range(seeds_by_runs(state), first, -1):
        batch = _Batch((seeds - first) * len(design.arms), price_of(state, "confirm"))
        if state.budget_touched or _fits(state, [batch], limits):
            return seeds
    return first


def carries_longer(state: StudyState, extension: Extension, limits: StepLimits) -> bool:
    """Return whether there is time for the pilot once more with as many steps as runs may have."""
    pilot = _Batch(len(need.confirmation_runs(state)), price_of(state, "confirm", extension.steps))
    return _fits(state, [pilot], limits)


def end_candidates(state: StudyState, design: Design, screen: Screen, limits: StepLimits) -> Iterator[Decide]:
    """Yield the decision to ask for no more candidates, where one more would take the confirmation's time."""
    asked = len(state.candidates)
    if not asked or limits.seconds <= 0:
        return
    # the part of the confirmation that the screen may not touch
    kept = min(screen.confirmed, asked + 1)
    reserve = _confirmation(state, design, kept, all_analyses=asked + 1 > _min_candidates(screen))
    if not _fits(state, [_screen_rest(state, screen, asked + 1), reserve], limits):
        price, left = (format_seconds(seconds) for seconds in (price_of(state, "screen"), limits.seconds))
        yield Decide(
            SHRINK_RULE, NO_MORE_CANDIDATES, f"{asked} of {screen.candidates} candidates were asked for; another run "
            f"of about {price} would take time from the confirmation, with {left} left",
        )  # fmt: skip


def replication_seconds(state: StudyState, design: Design, limits: StepLimits) -> float:
    """Return the seconds of a replication as a whole, that is not begun; 0 for one that is: it goes on."""
    begun = any(run.attempts for run in state.runs_in("replicate"))
    return 0.0 if begun else _seconds(state, [_replication(state, design)], limits)


def _confirmation(state: StudyState, design: Design, confirmed: int, *, all_analyses: bool) -> _Batch:
    """Return the runs of the confirmation that are not begun: of `confirmed` arms and the control, after a screen."""
    if design.screen is None:
        runs = _count_not_begun(state, need.confirmation_runs(state, all_analyses=all_analyses))
    else:
        first = design.looks[0].seeds if design.looks else len(design.seeds)
        runs = (1 + confirmed) * (len(design.seeds) if all_analyses else first)
    return _Batch(runs, price_of(state, "confirm"))


def _replication(state: StudyState, design: Design) -> _Batch:
    if design.replication is None:
        return _Batch(0, 0.0)
    if need.replication_hypotheses(state, design):
        runs = _count_not_begun(state, need.replication_runs(state, design))
    elif design.screen is not None or need.confirmation_runs(state):
        arms = 1 + design.screen.confirmed if design.screen is not None else len(design.arms)
        runs = arms * len(design.replication.seeds)
    else:
        runs = 0  # nothing asked for it
    return _Batch(runs, price_of(state, "replicate"))


def _screen_rest(state: StudyState, screen: Screen, candidates: int) -> _Batch:
    left = candidates - sum(map(_is_begun, state.runs_in("screen")))
    return _Batch(max(0, left), price_of(state, "screen", screen.rungs[0].steps))


def _min_candidates(screen: Screen) -> int:
    """Return with how many candidates there is something to choose: from then on all looks are kept free."""
    return min(screen.candidates, screen.confirmed + 1)


def _count_not_begun(state: StudyState, required: Sequence[need.RequiredRun]) -> int:
    runs = need.planned_runs(state)
    return sum(required_run not in runs or not _is_begun(runs[required_run]) for required_run in required)


def _is_begun(run: RunState) -> bool:
    return run.active is not None or run.collected is not None or need.is_over(run)


def _fits(state: StudyState, batches: Sequence[_Batch], limits: StepLimits) -> bool:
    return _seconds(state, batches, limits) <= limits.seconds


def _seconds(state: StudyState, batches: Sequence[_Batch], limits: StepLimits) -> float:
    """Return the seconds that the batches take one after the other, beside and after what runs now."""
    since = max(0.0, state.budget_s - state.worked_s - limits.seconds)  # the last event of the log
    busy = []
    for run in need.attempts_running(state):
        required_run, attempt = need.to_required_run(run), run.active
        assert attempt is not None
        age = datetime.fromisoformat(state.last_ts) - datetime.fromisoformat(attempt.launched)
        price = price_of(state, required_run.phase, required_run.steps)
        busy.append(max(0.0, price - max(0.0, age.total_seconds()) - since))
    slots = [0.0] * (max(1, limits.parallel) - len(busy)) + sorted(busy)
    for batch in batches:
        for _ in range(batch.runs):
            heapq.heapreplace(slots, slots[0] + batch.seconds)
        slots = [max(slots)] * len(slots)
    return max(slots)
