"""Approvals: a step that nobody approved becomes a question, or the wait for an answer.

A study is created with `--approve`. With `plan`, a person is asked before anything is trained: before the A/A runs,
where the design has to wait for them, and before everything else once the design is locked. With `stages`, each part
with a price of its own is asked for when it is its turn: A/A runs, screen, each look's seeds, replication. With `none`,
nothing is asked.

Pure functions of the state. What was approved stays approved: a run that failed is tried again, and a look whose
verdict is formed again needs no second yes. A question that nothing waits for any more (its hypotheses were vetoed,
say) holds nothing up. The lack of an answer is never taken for one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal, get_args

from research.design.pricing import price_of
from research.errors import BadApproval
from research.scheduler.budget import StepLimits
from research.scheduler.required_runs import (
    RequiredRun,
    confirmation_runs,
    count_seeds,
    exploration_runs,
    is_over,
    noise_runs,
    planned_runs,
    replication_runs,
)
from research.scheduler.steps import AskApproval, AskCandidate, PlanRun, Step
from research.text import format_seconds
from studies import StudyState
from studies.log.study import LoggedApprovalRequest
from studies.records.design import Design, RunSpec
from studies.records.procedure import Phase
from studies.records.runs import PLUMBING_ARM
from studies.records.verdict import ApprovalRequest

ApprovalMode = Literal["none", "stages", "plan"]
MODE: Final = "approve"
"""Key of the mode in a study's settings."""
EXPLORATION: Final = "exploration"
"""Stage of single runs without a claim."""
Cost = tuple[int, float]
"""Runs, and the seconds that they take."""


def parse_mode(text: str) -> ApprovalMode:
    for mode in get_args(ApprovalMode):
        if text == mode:
            return mode  # type: ignore[no-any-return]
    raise BadApproval(f"expected --approve plan, stages or none; found {text[:40]!r}")


def require_approval(state: StudyState, step: Step | None, limits: StepLimits) -> Step | None:
    """Return a step; what asks for it in its place where nobody approved it, or None while that is asked already."""
    stage = _stage(state, step)
    if stage is None or _is_approved(state, stage):
        return step
    asked = state.open_question
    if asked is not None and asked.question.stage == stage and asked.question.lock == _lock_hash(state, stage):
        return None
    return AskApproval(_question(state, stage, limits))


def describe_cost(asked: LoggedApprovalRequest) -> str:
    question = asked.question
    runs = "1 run" if question.runs == 1 else f"{question.runs} runs"
    return (
        f"at most {runs}, about {format_seconds(question.seconds)}; {format_seconds(question.left_s)} of the budget "
        "were left when it was asked"
    )


def how_to_answer(state: StudyState) -> str:
    return f"ajet study approve {state.id}; or: ajet study deny {state.id}"


def _stage(state: StudyState, step: Step | None) -> str | None:
    mode = state.settings.get(MODE, "none")
    if mode == "none" or not isinstance(step, AskCandidate | PlanRun):
        return None
    phase: Phase = "screen" if isinstance(step, AskCandidate) else step.spec.phase
    if phase == "noise":
        return "noise"
    if phase == "explore":
        return EXPLORATION
    if mode == "plan":
        return "design"
    if isinstance(step, PlanRun) and phase == "confirm":
        assert state.design is not None
        return f"look {_first_analysis(state.design, step.spec)}"
    return "replication" if phase == "replicate" else "screen"


def _first_analysis(design: Design, spec: RunSpec) -> int:
    analyses = range(1, len(design.looks) + 1)
    seen = (
        look for look in analyses if spec.seed in design.seeds_of(spec.arm, design.seeds[: count_seeds(design, look)])
    )
    return next(seen, 1)


def _is_approved(state: StudyState, stage: str) -> bool:
    granted = (answer.asked.question for answer in state.approvals if answer.granted)
    return any(question.stage == stage and question.lock == _lock_hash(state, stage) for question in granted)


def _question(state: StudyState, stage: str, limits: StepLimits) -> ApprovalRequest:
    lock = _lock_hash(state, stage)
    assert lock is not None
    runs, seconds = _cost(state, stage, limits)
    return ApprovalRequest(
        study=state.id, number=len(state.questions) + 1, stage=stage, lock=lock, runs=runs, seconds=round(seconds, 3),
        left_s=round(max(0.0, limits.seconds), 3), would=_describe_effect(state, stage),
    )  # fmt: skip


def _lock_hash(state: StudyState, stage: str) -> str | None:
    if stage == EXPLORATION:
        return state.explorations[-1].plan.hash()
    return state.noise_hash if stage == "noise" else state.design_hash


def _cost(state: StudyState, stage: str, limits: StepLimits) -> Cost:
    design = state.design
    if stage == EXPLORATION:
        return _cost_of(state, exploration_runs(state), limits)
    if design is None:
        assert state.noise_plan is not None
        return _cost_of(state, noise_runs(state.noise_plan), limits)
    if stage == "design":
        return design.price.runs, design.price.total_s
    if design.screen is not None:
        runs, seconds, entering = 0, 0.0, design.screen.candidates
        for rung in design.screen.rungs:
            runs, seconds = runs + entering, seconds + _waves(entering, limits) * price_of(state, "screen", rung.steps)
            entering = min(entering, rung.keep)
        return runs, seconds
    return _cost_of(state, confirmation_runs(state, design) or replication_runs(state, design), limits)


def _cost_of(state: StudyState, required: Sequence[RequiredRun], limits: StepLimits) -> Cost:
    runs = planned_runs(state)
    left = [required_run for required_run in required if required_run not in runs or not is_over(runs[required_run])]
    return len(left), _waves(len(left), limits) * price_of(state, left[0].phase)


def _waves(runs: int, limits: StepLimits) -> int:
    return math.ceil(runs / max(1, limits.parallel))


def _describe_effect(state: StudyState, stage: str) -> str:
    design = state.design
    if stage == EXPLORATION:
        tried = ", ".join(arm.name for arm in state.explorations[-1].plan.arms)
        return f"an exploration, which makes no claim: {tried}, one run each"
    if design is None:
        return _describe_noise(state)
    if stage == "design":
        return f"all that is locked as {str(state.design_hash)[:16]}: {_describe_design(design)}"
    if stage == "screen":
        assert design.screen is not None
        return f"the screen: {design.screen.candidates} candidates on one seed each"
    if stage == "replication":
        assert design.replication is not None
        return f"the replication on {design.replication.environment}, with {len(design.replication.seeds)} fresh seeds"
    number = int(stage.removeprefix("look "))
    arms = " vs ".join(arm.name for arm in design.arms)
    of = f"look {number} of {len(design.looks)}" if len(design.looks) > 1 else "the confirmation"
    return f"{of}: {arms}, with up to {count_seeds(design, number)} seeds each"


def _describe_noise(state: StudyState) -> str:
    assert state.noise_plan is not None
    alike = sum(run.arm != PLUMBING_ARM for run in noise_runs(state.noise_plan))
    still = "a training with a learning rate of 0, to see that it changes nothing"
    runs = f"{alike} A/A runs, to learn what seeds alone do"
    said = runs if state.noise_plan.plumbing is None else f"{still}, and {runs}" if alike else still
    return f"{said}; the design is locked after them, and asked for then"


def _describe_design(design: Design) -> str:
    if design.screen is not None:
        screen = design.screen
        parts = [f"a screen of {screen.candidates} candidates", f"{screen.confirmed} confirmed"]
    else:
        parts = [" vs ".join(arm.name for arm in design.arms)]
    most = "at most " if len(design.looks) > 1 else ""
    parts.append(f"{most}{len(design.seeds)} seeds each in {max(1, len(design.looks))} looks")
    if design.replication is not None:
        parts.append(f"and a replication on {design.replication.environment} where a rule asks for it")
    return ", ".join(parts)
