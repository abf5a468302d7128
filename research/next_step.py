"""What a study does next: one pure function of its state, the time left and how many runs go at once.

`next_step` returns None when there is nothing to do but to wait for running attempts, or nothing at all. A study goes
through its stages in order: A/A runs, the screen, the confirmation look by look, the replication; each is left when its
runs are over. No run begins that by its price would end after the budget, and where the budget does not carry all that
is locked, what is not needed yet is given up first (`research.shrinking`). Once the budget is used up, what was
collected is judged, and the study stops; resumed with no more budget, it concludes. While it is paused, what runs
finishes and nothing begins, not even a verdict. Attempts are watched elsewhere (`research.runner`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from research.budget import format_seconds
from research.closing import conclusion, judgements, last_judgements, plumbing_end
from research.errors import Stuck
from research.giving_up import given_up
from research.needs import (
    Need,
    attempts_running,
    budget_decision,
    budget_stop,
    confirm_needs,
    is_over,
    later_needs,
    missing,
    model_phase,
    need_of,
    noise_needs,
    planned,
    replicate_needs,
    runs_left,
    spec_of,
)
from research.pricing import price_of
from research.screen_steps import screen_needs, screen_step
from research.shrinking import Limits, affords_replication, end_of_screen, foreseen, replication_seconds
from research.steps import (
    BUDGET_CODE,
    BUDGET_RULE,
    VETO_CODE,
    AskCandidate,
    BuildReport,
    Collect,
    Decide,
    Invalidate,
    Launch,
    Measure,
    Plan,
    PlanRun,
    PrepareModel,
    Step,
    StopAttempt,
    StopStudy,
)
from studies import RunState, StudyState
from studies.records import Design
from studies.specs import PLUMBING_ARM

_TAKES_TIME = (Plan, AskCandidate, PlanRun, PrepareModel, Launch)
MOST_ATTEMPTS = 3
"""Tries at an A/A run, which has no design to say it."""


def next_step(state: StudyState, seconds_left: float, parallel: int, others: int = 0) -> Step | None:
    """Return the next step; None when only running attempts, or nobody, can move the study on.

    Of the `parallel` attempts that go at once, `others` are other studies'.
    """
    if state.concluded_reason is not None:
        return BuildReport() if state.report is None else None
    if state.stopped_reason is not None:
        return next(_when_stopped(state), None)
    used_up = budget_decision(state)
    if used_up is not None and (state.design is None or state.stopped_seq < used_up.seq):
        return StopStudy(budget_stop(used_up))
    limits = Limits(seconds_left, parallel, others)
    if state.paused_reason is not None:
        return next(_when_paused(state, limits), None)
    if used_up is not None and state.design is not None:
        return next(_wound_up(state, state.design), None)
    step = next(_work(state, limits), None)
    if (reason := _used_up(state, step, limits)) is not None:
        return Decide(BUDGET_RULE, "stop", reason)
    return step


def is_done(state: StudyState) -> bool:
    """Return whether no tick can move the study on, unless somebody resumes it."""
    still = state.concluded_reason is not None or state.stopped_reason is not None
    return still and next_step(state, 0.0, 0) is None


def _work(state: StudyState, limits: Limits) -> Iterator[Step]:
    needs = _needs(state)
    yield from _tend(state, needs)
    design = state.design
    if design is None:
        yield from plumbing_end(state)
        yield from _gather(state, needs, limits)
        if all(_met(state, need) for need in needs):
            yield Plan()
        return
    yield from foreseen(state, design, limits)
    if design.screen is not None:
        yield from screen_step(state, design, design.screen, needs, limits)
        yield from _gather(state, needs, limits)
        if not needs and not any(attempts_running(state)):
            yield from conclusion(state, design)
    else:
        yield from judgements(state, design, limits.seconds)
        yield from _gather(state, needs, limits)
        if not needs and not any(attempts_running(state)):
            yield from conclusion(state, design)


def _needs(state: StudyState) -> tuple[Need, ...]:
    """Return the runs of the stage that the study is in."""
    design = state.design
    if design is None:
        needs = () if state.noise_plan is None else noise_needs(state.noise_plan)
        waits = needs and needs[0].arm == PLUMBING_ARM and not _measured(state, needs[0])
        return needs[:1] if waits else needs  # nothing is trained before the machinery is seen to work
    if design.screen is not None:
        return screen_needs(state, design, design.screen)
    return confirm_needs(state, design) or replicate_needs(state, design)


def _met(state: StudyState, need: Need) -> bool:
    run = planned(state).get(need)
    return run is not None and is_over(run)


def _measured(state: StudyState, need: Need) -> bool:
    return _met(state, need) and planned(state)[need].invalid is None


def _tend(state: StudyState, needs: Sequence[Need]) -> Iterator[Step]:
    """Do what the runs' pasts call for, and give up those that nothing can need any more."""
    wanted = _conceivable(state, needs)
    for run in state.runs.values():
        if run.invalid is not None:
            continue
        if (step := _settle(run, state.design)) is not None:
            yield step
        elif not is_over(run) and need_of(run) not in wanted:
            yield from _give_up(run, state.design)


def _give_up(run: RunState, design: Design | None) -> Iterator[Step]:
    """End a run that nothing needs any more: of a screen that was ended for want of time, else of a vetoed claim."""
    if design is not None and design.screen is not None:
        yield Invalidate(run.run_id, BUDGET_CODE, "the screen was ended to keep the confirmation within the budget")
        return
    if run.active is not None:
        yield StopAttempt(run.run_id, VETO_CODE)
    yield Invalidate(run.run_id, VETO_CODE, "nothing needs it any more: its hypothesis was vetoed")


def _conceivable(state: StudyState, needs: Sequence[Need]) -> frozenset[Need]:
    """Return what is needed, or will be if a verdict that is computed again at an earlier look comes out as it did."""
    design = state.design
    if design is None or design.screen is not None:
        return frozenset(needs)
    return frozenset((*needs, *later_needs(state, design)))


def _gather(state: StudyState, needs: Sequence[Need], limits: Limits) -> Iterator[Step]:
    """Plan what is needed, and launch it as far as slots and budget go."""
    runs = planned(state)
    left = runs_left(state)
    if left is None or left > 0:
        yield from (PlanRun(spec_of(state, need)) for need in missing(runs, needs))
    waiting = [need for need in needs if need in runs and runs[need].status in ("planned", "ended")]
    if waiting and (phase := model_phase(waiting[0].phase)) not in state.prepared:
        yield PrepareModel(phase)
    if waiting and sum(1 for _ in attempts_running(state)) < limits.parallel - limits.others:
        yield from _launch(state, [runs[need] for need in waiting], limits)


def _launch(state: StudyState, waiting: Sequence[RunState], limits: Limits) -> Iterator[Step]:
    """Begin the first run that by its price ends within the budget, and leaves the confirmation its time."""
    design, phase = state.design, waiting[0].spec.phase
    if design is not None and design.screen is not None:
        yield from end_of_screen(state, design, design.screen, limits)
    if design is not None and phase == "replicate" and not affords_replication(state, design, limits):
        return
    for run in waiting:
        if price_of(state, phase, need_of(run).steps) <= limits.seconds:
            yield Launch(run.run_id, len(run.attempts) + 1)
            return


def _settle(run: RunState, design: Design | None) -> Step | None:
    """Return the step that a run's past calls for, if there is one that launches nothing."""
    if run.status not in ("ended", "collected"):
        return None
    if run.collected is None and run.attempts[-1].status == "finished":
        return Collect(run.run_id)
    if (given := given_up(run, MOST_ATTEMPTS if design is None else design.max_attempts)) is not None:
        return Invalidate(run.run_id, given.code, given.reason)
    return Measure(run.run_id) if run.collected is not None and not is_over(run) else None


def _used_up(state: StudyState, step: Step | None, limits: Limits) -> str | None:
    """Return why the budget lets nothing more be done, in words; None while it does."""
    running = any(attempts_running(state))
    if limits.seconds <= 0 and (isinstance(step, _TAKES_TIME) or (step is None and running)):
        return _spent(state)
    if step is not None or running:
        return None
    unmet = [need for need in _needs(state) if not _met(state, need)]
    if runs_left(state) == 0 and not any(need in planned(state) for need in unmet):
        return f"all {len(state.runs)} runs are used up"
    if not unmet:
        raise Stuck(f"expected a next step of study {state.id}; found none, and nothing that it waits for")
    if (takes := _too_dear(state, unmet[0], limits)) is None:
        return None
    return f"{max(0.0, limits.seconds):.0f} s of {state.budget_s:g} s are left, and {takes}"


def _too_dear(state: StudyState, need: Need, limits: Limits) -> str | None:
    """Return what the time does not carry, in words; None where it carries it."""
    price = price_of(state, need.phase, need.steps)
    if need.phase == "replicate" and state.design is not None and not affords_replication(state, state.design, limits):
        return f"the replication takes about {format_seconds(replication_seconds(state, state.design, limits))}"
    if price <= limits.seconds:  # it waits for a place that another study's attempt has
        return None
    return f"a run takes about {price:.0f} s"


def _when_paused(state: StudyState, limits: Limits) -> Iterator[Step]:
    """Let what runs finish, as long as there is a budget for it."""
    yield from _tend(state, _needs(state))
    if limits.seconds <= 0 and any(attempts_running(state)):
        yield Decide(BUDGET_RULE, "stop", _spent(state))


def _spent(state: StudyState) -> str:
    return f"{state.budget_s:g} s of work are used up"


def _when_stopped(state: StudyState) -> Iterator[Step]:
    """End what runs; if it was the budget, give up what is open, and judge and report what was collected."""
    used_up = budget_decision(state) is not None
    code = BUDGET_CODE if used_up else "stopped"
    yield from (StopAttempt(run.run_id, code) for run in attempts_running(state))
    if used_up and state.design is not None:
        yield from _give_all_up(state)
        yield from last_judgements(state, state.design)
        if state.report is None:
            yield BuildReport()


def _wound_up(state: StudyState, design: Design) -> Iterator[Step]:
    """Go on after the budget was used up and nobody amended it: judge what is there, and conclude."""
    yield from (StopAttempt(run.run_id, BUDGET_CODE) for run in attempts_running(state))
    yield from _give_all_up(state)
    yield from last_judgements(state, design)
    yield from conclusion(state, design)


def _give_all_up(state: StudyState) -> Iterator[Step]:
    for run in state.runs.values():
        if run.invalid is not None:
            continue
        if (step := _settle(run, state.design)) is not None:
            yield step
        elif not is_over(run):
            yield Invalidate(run.run_id, BUDGET_CODE, "the study's budget was used up before the run had finished")
