"""What a study does next: a pure function of state, time left and runs at once.

`next_step` returns None when there is nothing to do but to wait for running attempts, or nothing at all. A study goes
through its stages in order: the run that must not learn (and A/A runs, in logs from before there were pilots), the
screen, the pilot that sizes the design, the confirmation look by look, the replication; each is left when its runs are
over. Then the next round's question is asked, as long as level and budget tell something. No run begins that by its
price would end after the budget, and where the budget does not carry all that is locked, what is not needed yet is
given up first (`research.scheduler.budget`). Once the budget is used up, what was collected is judged, and the study
stops; resumed with no more budget, it concludes. While it is paused, what runs finishes and nothing begins, not even a
verdict; what a person has to approve waits for that (`research.scheduler.approvals`). Attempts are watched elsewhere
(`research.runs.launcher`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from research.design.pricing import price_of
from research.errors import NotReady
from research.scheduler.approvals import require_approval
from research.scheduler.budget import StepLimits, affordable_seeds, end_screen, foresee_cuts, replication_seconds
from research.scheduler.interim_analyses import (
    conclusion,
    judgements,
    last_judgements,
    screen_runs,
    screen_step,
    zero_lr_conclusion,
)
from research.scheduler.required_runs import (
    RequiredRun,
    attempts_running,
    budget_stop_reason,
    confirmation_runs,
    exploration_runs,
    find_failure,
    is_over,
    later_runs,
    may_continue,
    missing_runs,
    noise_runs,
    planned_runs,
    replication_runs,
    runs_left,
    spec_of,
    to_required_run,
)
from research.scheduler.steps import (
    BUDGET_CODE,
    EXPLORED,
    UNLOCKED,
    VETO_CODE,
    AskCandidate,
    BuildReport,
    Collect,
    ConcludeStudy,
    Decide,
    Invalidate,
    Launch,
    Measure,
    PlanRound,
    PlanRun,
    PlanStudy,
    PrepareModel,
    SizeDesign,
    Step,
    StopAttempt,
    StopStudy,
)
from research.text import format_seconds, memoize_last
from studies import RunState, StudyState
from studies.log.study import BUDGET_RULE, Decision
from studies.records.design import Design
from studies.records.procedure import Phase
from studies.records.runs import PLUMBING_ARM

_TAKES_TIME = (PlanStudy, AskCandidate, PlanRun, PrepareModel, Launch)
_USED_UP = "{:g} s of work are used up"
MOST_ATTEMPTS = 3
"""Tries at an A/A run, which has no design to say it."""


def next_step(state: StudyState, seconds_left: float, parallel: int) -> Step | None:
    """Return the next step of at most `parallel` attempts; None when only those that run, or nobody, can move it on."""
    if state.concluded_reason is not None:
        return BuildReport() if state.report is None else None
    if state.stopped_reason is not None:
        return next(_when_stopped(state), None)
    used_up = state.budget_decision
    if used_up is not None and (not _has_design(state) or state.stopped_seq < used_up.seq):
        return StopStudy(budget_stop_reason(used_up))
    limits = StepLimits(seconds_left, parallel)
    if state.paused_reason is not None:  # what runs may finish, as long as there is a budget for it
        step = next(_follow_up(state), None)
        if step is None and limits.seconds <= 0 and any(attempts_running(state)):
            return Decide(BUDGET_RULE, "stop", _USED_UP.format(state.budget_s))
        return step
    if used_up is not None:
        return next(_wind_up(state, used_up), None)
    step = next(_work(state, limits), None)
    if (reason := _budget_end_reason(state, step, limits)) is not None:
        return Decide(BUDGET_RULE, "stop", reason)
    return require_approval(state, step, limits)


def is_done(state: StudyState) -> bool:
    """Return whether no tick can move the study on, unless somebody resumes it."""
    still = state.concluded_reason is not None or state.stopped_reason is not None
    return still and next_step(state, 0.0, 0) is None


def _work(state: StudyState, limits: StepLimits) -> Iterator[Step]:
    required = _stage_runs(state)
    yield from _follow_up(state)
    design, runs = state.design, planned_runs(state)
    if exploration_runs(state):
        yield from _make(state, required, limits)
        if not any(attempts_running(state)) and price_of(state, "explore") > limits.seconds:
            left = (runs[entry] for entry in required if entry in runs and not is_over(runs[entry]))
            reason = "the budget carries no more of the exploration"
            yield from (Invalidate(run.run_id, BUDGET_CODE, reason) for run in left)
        return
    if state.explored is not None:
        yield ConcludeStudy(EXPLORED)
        return
    if design is None:
        yield from zero_lr_conclusion(state)
        yield from _make(state, required, limits)
        if all(_is_met(state, required_run) for required_run in required):
            yield PlanStudy()
        return
    yield from foresee_cuts(state, design, limits)
    if design.screen is not None:
        yield from screen_step(state, design, design.screen, required, limits)
    elif not state.awaits_sizing:
        yield from judgements(state, design)
    elif all(_is_met(state, required_run) for required_run in required):
        yield SizeDesign(affordable_seeds(state, design, limits))
    yield from _make(state, required, limits)
    if required or any(attempts_running(state)):
        return
    if may_continue(state) and limits.seconds > 0 and runs_left(state) != 0:
        yield PlanRound()
    else:
        yield from conclusion(state, design)


def _stage_runs(state: StudyState) -> tuple[RequiredRun, ...]:
    design = state.design
    if exploring := exploration_runs(state):
        return exploring
    if design is None:
        required = () if state.noise_plan is None else noise_runs(state.noise_plan)
        if required and required[0].arm == PLUMBING_ARM:
            still = planned_runs(state).get(required[0])
            if still is None or not is_over(still) or still.invalid is not None:
                return required[:1]  # nothing is trained before the machinery is seen to work
        return required
    if design.screen is not None:
        return screen_runs(state, design, design.screen)
    return confirmation_runs(state) or replication_runs(state, design)


def _is_met(state: StudyState, required_run: RequiredRun) -> bool:
    run = planned_runs(state).get(required_run)
    return run is not None and is_over(run)


def _follow_up(state: StudyState) -> Iterator[Step]:
    """Yield what ends of attempts ask for, and give up the runs that nothing needs any more."""
    wanted, design = _possible_runs(state), state.design
    for run in state.runs.values():
        if run.invalid is not None:
            continue
        if (step := _settle(run, design)) is not None:
            yield step
        elif not is_over(run) and to_required_run(run) not in wanted:
            about = [h.id for h in design.hypotheses if run.spec.arm in design.contrast_of(h)] if design else []
            code, why = BUDGET_CODE, "its claim was settled on what the budget had carried"
            if design is not None and design.screen is not None:
                why = "the screen was ended to keep the confirmation within the budget"
            elif (run.active is not None and state.vetoed) or (about and state.vetoed.keys() >= set(about)):
                code, why = VETO_CODE, "nothing needs it any more: its hypothesis was vetoed"
            if run.active is not None and code == VETO_CODE:
                yield StopAttempt(run.run_id, code)
            yield Invalidate(run.run_id, code, why)


@memoize_last
def _possible_runs(state: StudyState) -> frozenset[RequiredRun]:
    """Return what is needed, or will be if a verdict that is computed again at an earlier look comes out as it did."""
    design, required = state.design, _stage_runs(state)
    if design is None or design.screen is not None:
        return frozenset(required)
    return frozenset((*required, *later_runs(state, design)))


def _make(state: StudyState, required: Sequence[RequiredRun], limits: StepLimits) -> Iterator[Step]:
    runs = planned_runs(state)
    left = runs_left(state)
    if left is None or left > 0:
        yield from (PlanRun(spec_of(state, required_run)) for required_run in missing_runs(runs, required))
    planned = [required_run for required_run in required if required_run in runs]
    waiting = [required_run for required_run in planned if runs[required_run].status in ("planned", "ended")]
    if not waiting:
        return
    design, phase = state.design, waiting[0].phase
    of_model: Phase = "confirm" if phase == "screen" else phase  # a screen begins with the confirmation's
    if of_model not in state.prepared:
        yield PrepareModel(of_model)
    if sum(1 for _ in attempts_running(state)) >= limits.parallel:
        return
    if design is not None and design.screen is not None:
        yield from end_screen(state, design, design.screen, limits)
    if design is not None and phase == "replicate" and replication_seconds(state, design, limits) > limits.seconds:
        return
    for required_run in waiting:
        if price_of(state, phase, required_run.steps) <= limits.seconds:
            run = runs[required_run]
            yield Launch(run.run_id, len(run.attempts) + 1)
            return


def _settle(run: RunState, design: Design | None) -> Step | None:
    if run.status not in ("ended", "collected"):
        return None
    if run.collected is None and run.attempts[-1].status == "finished":
        return Collect(run.run_id)
    if (failure := find_failure(run, MOST_ATTEMPTS if design is None else design.max_attempts)) is not None:
        return Invalidate(run.run_id, *failure)
    return Measure(run.run_id) if run.collected is not None and not is_over(run) else None


def _budget_end_reason(state: StudyState, step: Step | None, limits: StepLimits) -> str | None:
    running = any(attempts_running(state))
    if limits.seconds <= 0 and (isinstance(step, _TAKES_TIME) or (step is None and running)):
        return _USED_UP.format(state.budget_s)
    if step is not None or running:
        return None
    unmet = [required_run for required_run in _stage_runs(state) if not _is_met(state, required_run)]
    if runs_left(state) == 0 and not any(required_run in planned_runs(state) for required_run in unmet):
        return f"all {len(state.every_run)} runs are used up"
    if not unmet:
        raise NotReady(f"expected a next step of study {state.id}; found none, and nothing that it waits for")
    required, design = unmet[0], state.design
    price, left = price_of(state, required.phase, required.steps), f"{max(0.0, limits.seconds):.0f} s"
    replication_s = replication_seconds(state, design, limits) if required.phase == "replicate" and design else 0.0
    if replication_s > max(0.0, limits.seconds):
        takes = f"the replication takes about {format_seconds(replication_s)}"
    elif price > limits.seconds:
        takes = f"a run takes about {price:.0f} s"
    else:
        return None
    return f"{left} of {state.budget_s:g} s are left, and {takes}"


def _when_stopped(state: StudyState) -> Iterator[Step]:
    """End what runs; after the budget, judge what was collected, and report that, or a denial."""
    used_up = state.budget_decision is not None
    code = BUDGET_CODE if used_up else "stopped"
    yield from (StopAttempt(run.run_id, code) for run in attempts_running(state))
    if used_up and state.design is not None:
        yield from filter(None, (_settle(run, state.design) for run in state.runs.values() if run.invalid is None))
        if any(run.attempts for run in state.runs_in("confirm")):
            yield from last_judgements(state, state.design)
    if (used_up or state.denial is not None) and _has_design(state) and state.report is None:
        yield BuildReport()


def _has_design(state: StudyState) -> bool:
    """Return whether a design was locked, of this round or of one before, or a study explored: there is something to
    report."""
    return state.design is not None or bool(state.rounds_before) or state.explored is not None


def _wind_up(state: StudyState, used_up: Decision) -> Iterator[Step]:
    """Go on after the budget was used up and nobody amended it: judge what is there, and conclude."""
    yield from (StopAttempt(run.run_id, BUDGET_CODE) for run in attempts_running(state))
    for run in state.runs.values():
        if run.invalid is not None:
            continue
        if (step := _settle(run, state.design)) is not None:
            yield step
        elif not is_over(run):
            point = "had finished" if run.attempts else "began"
            yield Invalidate(run.run_id, BUDGET_CODE, f"the study's budget was used up before the run {point}")
    if state.design is None:
        yield ConcludeStudy(EXPLORED if state.explores else f"round {state.round} {UNLOCKED}: {used_up.reason}")
        return
    yield from last_judgements(state, state.design)
    yield from conclusion(state, state.design)
