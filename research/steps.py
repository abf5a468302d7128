"""What a study does next: one pure function of its state, the time left and how many runs go at once.

A step is the smallest thing after which the study may be killed: what it does is in the event log when it is done,
so that the next step follows from the log alone. `next_step` returns None when there is nothing to do but to wait
for running attempts, or nothing at all. Attempts are watched elsewhere (`research.runner`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from research.codes import WITHIN_REACH_OF_CODE
from studies import RunState, StudyState
from studies.records import Design, RunSpec

BUDGET_RULE = "stop when the wall-clock budget is used up"
CONCLUDE_RULE = "conclude when every hypothesis has its verdict"
BUDGET_CODE = "budget_exhausted"
FAILURES = ("failed", "lost", "timeout")
"""Ends of an attempt that count against `Design.max_attempts`; one that was stopped does not."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Have the planner propose and design, and lock the design."""


@dataclass(frozen=True, slots=True)
class PlanRun:
    """Write down one run of the design."""

    spec: RunSpec


@dataclass(frozen=True, slots=True)
class PrepareModel:
    """Have the model of the design at hand before the first run needs it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Begin an attempt at a run."""

    run_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """End the attempt that runs."""

    run_id: str
    code: str


@dataclass(frozen=True, slots=True)
class Collect:
    """Store the results of a run whose attempt finished."""

    run_id: str


@dataclass(frozen=True, slots=True)
class Measure:
    """Record the measurements of a collected run."""

    run_id: str


@dataclass(frozen=True, slots=True)
class Invalidate:
    """Give a run up."""

    run_id: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Judge:
    """Compute the verdict on a hypothesis."""

    hypothesis: str


@dataclass(frozen=True, slots=True)
class Decide:
    """Write down what a rule decided."""

    rule: str
    action: str
    reason: str


@dataclass(frozen=True, slots=True)
class StopStudy:
    """Stop the study."""

    reason: str


@dataclass(frozen=True, slots=True)
class Conclude:
    """End the study."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """Build the report."""


Step = (
    Plan | PlanRun | PrepareModel | Launch | StopAttempt | Collect | Measure | Invalidate | Judge | Decide | StopStudy
    | Conclude | BuildReport
)  # fmt: skip


def next_step(state: StudyState, seconds_left: float, parallel: int) -> Step | None:
    """Return the next step; None when only running attempts, or nobody, can move the study on."""
    if state.concluded_reason is not None:
        return BuildReport() if state.report is None else None
    winding_up = any(decision.rule == BUDGET_RULE for decision in state.decisions)
    if state.stopped_reason is not None:
        return _when_stopped(state, winding_up)
    if seconds_left <= 0 and not all_over(state):
        reason = f"{state.settings['budget_s']:g} s of work are used up"
        return StopStudy(f"budget: {reason}") if winding_up else Decide(BUDGET_RULE, "stop", reason)
    if state.design is None:
        return Plan()
    if not all_over(state):
        return next(_toward_results(state, state.design, parallel), None)
    return next(_toward_conclusion(state, state.design), None)


def attempts_running(state: StudyState) -> Iterator[RunState]:
    """Yield the runs with an attempt that runs."""
    return (run for run in state.runs.values() if run.active is not None)


def is_done(state: StudyState) -> bool:
    """Return whether no tick can move the study on, unless somebody resumes it."""
    still = state.concluded_reason is not None or state.stopped_reason is not None
    return still and next_step(state, 0.0, 0) is None


def _when_stopped(state: StudyState, winding_up: bool) -> Step | None:
    """End what runs; if it was the budget, give up what is open, and judge and report what was collected."""
    for run in attempts_running(state):
        return StopAttempt(run.run_id, BUDGET_CODE if winding_up else "stopped")
    if not winding_up or state.design is None:
        return None
    for run in state.runs.values():
        if (step := _settle(run, state.design)) is not None:
            return step
        if run.status not in ("collected", "invalid"):
            return Invalidate(run.run_id, BUDGET_CODE, "the study's budget was used up before the run had finished")
    verdicts = {verdict.hypothesis for verdict in state.verdicts}
    for hypothesis in state.design.hypotheses:
        if hypothesis.id not in verdicts:
            return Judge(hypothesis.id)
    return BuildReport() if state.report is None else None


def _toward_results(state: StudyState, design: Design, parallel: int) -> Iterator[Step]:
    planned = state.runs.keys()
    yield from (PlanRun(spec) for spec in run_specs(state.id, design) if spec.run_id not in planned)
    yield from (step for run in state.runs.values() if (step := _settle(run, design)) is not None)
    if state.model is None:
        yield PrepareModel()
    if sum(1 for _ in attempts_running(state)) < parallel:
        waiting = (run for run in state.runs.values() if run.status in ("planned", "ended"))
        yield from (Launch(run.run_id, len(run.attempts) + 1) for run in waiting)


def _settle(run: RunState, design: Design) -> Step | None:
    """Return the step that a run's past calls for, if there is one that launches nothing."""
    if run.status == "collected":
        return Measure(run.run_id) if len(run.measurements) < 2 else None
    if run.status != "ended":
        return None
    last = run.attempts[-1]
    if last.status == "finished":
        return Collect(run.run_id)
    failures = sum(attempt.status in FAILURES for attempt in run.attempts)
    if failures >= design.max_attempts and last.status in FAILURES:
        return Invalidate(run.run_id, last.code, f"{failures} attempts failed, the last one: {last.reason}")
    if run.spec.code is not None and last.code in WITHIN_REACH_OF_CODE:
        reason = f"not tried again, as generated code may have brought it about: {last.reason}"
        return Invalidate(run.run_id, last.code, reason)
    return None


def _toward_conclusion(state: StudyState, design: Design) -> Iterator[Step]:
    verdicts = {verdict.hypothesis for verdict in state.verdicts}
    yield from (Judge(hypothesis.id) for hypothesis in design.hypotheses if hypothesis.id not in verdicts)
    if all(decision.rule != CONCLUDE_RULE for decision in state.decisions):
        said = ", ".join(f"{verdict.hypothesis} {verdict.verdict}" for verdict in state.verdicts)
        yield Decide(CONCLUDE_RULE, "conclude", f"all {len(state.verdicts)} hypotheses are judged: {said}")
    yield Conclude()


def all_over(state: StudyState) -> bool:
    """Return whether every run of the design is measured or given up."""
    if state.design is None or len(state.runs) < len(state.design.arms) * len(state.design.seeds):
        return False
    runs = state.runs.values()
    return all(run.invalid is not None or len(run.measurements) == 2 for run in runs)


def run_specs(study: str, design: Design) -> Iterator[RunSpec]:
    """Yield the runs of a design, seed by seed, so that what a budget cuts off leaves the arms in balance."""
    for seed in design.seeds:
        for arm in design.arms:
            yield RunSpec(
                study=study,
                design_hash=design.hash(),
                arm=arm.name,
                seed=seed,
                environment=design.environment,
                job={**design.base_job, **arm.job_overrides, "seed": seed},
                metric=design.metric,
                code=design.code.get(arm.reward),
            )
