"""Approvals: a step that nobody approved becomes a question, or the wait for an answer.

With `--approve plan` a person is asked before a run that the design has to wait for, before everything else once the
design is locked, and once a pilot has sized it. With `stages`, each part with a price of its own is asked for when it
is its turn. What was approved stays approved; the lack of an answer is never taken for one.
"""

import math
from typing import Final, Literal, get_args

from research.design.pricing import price_of
from research.errors import BadInput
from research.scheduler import required_runs as need
from research.scheduler.budget import StepLimits
from research.scheduler.steps import AskApproval, AskCandidate, PlanRun, Step
from research.text import format_seconds
from studies import StudyState
from studies.log.entries import LoggedApprovalRequest
from studies.records.procedure import Phase
from studies.records.runs import UNTRAINED_RUN
from studies.records.verdict import ApprovalRequest

ApprovalMode = Literal["none", "stages", "plan"]
MODE: Final = "approve"
"""Key of the mode in a study's settings."""
PILOT: Final = "pilot"
"""Stage of the runs that size the design."""
LONGER: Final = "longer pilot"
"""Stage of the same runs once they are made longer."""
SIZED: Final = "sized"
"""Stage of all that follows a pilot, of a study that is asked for as a whole."""
EXPLORATION: Final = "exploration"
"""Stage of single runs without a claim."""


def parse_mode(text: str) -> ApprovalMode:
    for mode in get_args(ApprovalMode):
        if text == mode:
            return mode  # type: ignore[no-any-return]
    raise BadInput(f"expected --approve plan, stages or none; found {text[:40]!r}")


def require_approval(state: StudyState, step: Step | None, limits: StepLimits) -> Step | None:
    """Return a step; what asks for it in its place where nobody approved it, or None while that is asked already."""
    stage = _stage(state, step)
    if stage is None:
        return step
    lock = state.noise_hash if stage == "noise" else state.design_hash
    if stage == EXPLORATION:
        lock = state.explorations[-1].plan.hash()
    granted = (answer.asked.question for answer in state.approvals if answer.granted)
    if any((question.stage, question.lock) == (stage, lock) for question in granted):
        return step
    asked = state.open_question
    if asked is not None and (asked.question.stage, asked.question.lock) == (stage, lock):
        return None
    assert lock is not None
    runs, seconds = _cost(state, stage, limits)
    question = ApprovalRequest(
        study=state.id, number=len(state.questions) + 1, stage=stage, lock=lock, runs=runs, seconds=round(seconds, 3),
        left_s=round(max(0.0, limits.seconds), 3), would=_describe_effect(state, stage),
    )  # fmt: skip
    return AskApproval(question)


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
    design, spec = state.design, step.spec if isinstance(step, PlanRun) else None
    pilot = design.pilot if design is not None and phase == "confirm" else None
    if (
        design is not None and spec is not None and pilot is not None
        and spec.seed in design.seeds_of(spec.arm, design.seeds[: pilot.seeds])
    ):  # fmt: skip
        longer = design.extension is not None and spec.job["steps"] == design.extension.steps
        return "design" if mode != "stages" else LONGER if longer else PILOT
    if mode == "plan":
        return "design" if state.sizing is None else SIZED
    if spec is not None and phase == "confirm":
        assert design is not None
        for look in range(1, len(design.looks) + 1):
            if spec.seed in design.seeds_of(spec.arm, design.seeds[: need.count_seeds(design, look)]):
                return f"look {look}"
        return "look 1"
    return "replication" if phase == "replicate" else "screen"


def _cost(state: StudyState, stage: str, limits: StepLimits) -> tuple[int, float]:
    design, runs = state.design, need.planned_runs(state)
    if stage == "design" and design is not None:
        return design.price.runs, design.price.total_s
    batches: list[tuple[int, float]] = []
    if stage == SIZED and design is not None:
        again = 0 if design.replication is None else len(design.replication.seeds) * len(design.arms)
        rest = [run for run in need.confirmation_runs(state, all_analyses=True) if run not in runs]
        batches = [(len(rest), price_of(state, "confirm")), (again, price_of(state, "replicate"))]
    elif stage != EXPLORATION and design is not None and design.screen is not None:
        batches = [(design.screen.candidates, price_of(state, "screen", design.screen.rungs[0].steps))]
    else:
        if stage == EXPLORATION:
            required = need.exploration_runs(state)
        elif design is None:
            assert state.noise_plan is not None
            required = need.noise_runs(state.noise_plan)
        else:
            required = need.confirmation_runs(state) or need.replication_runs(state, design)
        left = need.unmet_runs(state, required)
        batches.append((len(left), price_of(state, left[0].phase)))
    waves = (math.ceil(count / max(1, limits.parallel)) * seconds for count, seconds in batches)
    return sum(count for count, _ in batches), sum(waves)


def _describe_effect(state: StudyState, stage: str) -> str:
    design = state.design
    if stage == EXPLORATION:
        plan = state.explorations[-1].plan
        return f"an exploration, which makes no claim: {', '.join(arm.name for arm in plan.arms)}, {plan.runs_told}"
    if design is None:
        assert state.noise_plan is not None
        alike = len(state.noise_plan.seeds)
        runs = f"{alike} A/A runs, to learn what seeds alone do"
        what = runs if state.noise_plan.plumbing is None else f"{UNTRAINED_RUN}, and {runs}" if alike else UNTRAINED_RUN
        return f"{what}; the design is locked after them, and asked for then"
    screen, replication, looks = design.screen, design.replication, len(design.looks)
    arms = " vs ".join(arm.name for arm in design.arms)
    if stage == "design":
        parts = [arms]
        if screen is not None:
            parts = [f"a screen of {screen.candidates} candidates", f"{screen.confirmed} confirmed"]
        if design.pilot is not None and state.sizing is None:
            parts.append(f"{design.pilot.seeds} seeds each first, which say how many follow, and are asked for then")
        else:
            parts.append(f"{'at most ' if looks > 1 else ''}{len(design.seeds)} seeds each in {max(1, looks)} looks")
        if replication is not None:
            parts.append(f"and a replication on {replication.environment} where a rule asks for it")
        return f"all that is locked as {str(state.design_hash)[:16]}: {', '.join(parts)}"
    if stage in (PILOT, LONGER):
        longer = f" again, of {design.base_job['steps']} steps as they still rose" if stage == LONGER else ""
        return f"the first runs{longer}, which say how many follow: {arms}, with {len(design.seeds)} seeds each"
    if stage == SIZED:
        most = f"{'at most ' if looks > 1 else ''}{len(design.seeds)}"
        return f"what the first runs led to: {arms}, with {most} seeds each in {max(1, looks)} looks"
    if stage == "screen":
        assert screen is not None
        return f"the screen: {screen.candidates} candidates on one seed each"
    if stage == "replication":
        assert replication is not None
        return f"the replication on {replication.environment}, with {len(replication.seeds)} fresh seeds"
    number = int(stage.removeprefix("look "))
    of = f"look {number} of {looks}" if looks > 1 else "the confirmation"
    return f"{of}: {arms}, with up to {need.count_seeds(design, number)} seeds each"
