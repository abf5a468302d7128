"""The question as it was asked, the question as it is tested, and how the two differ: what plan, terminal and report
begin with.

The sentences on what is tested are written by code from typed fields: a planner's own wording is quoted elsewhere, and
decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from studies.checks.confounds import TOKENS_TOLD, WALL_TOLD
from studies.log.study_state import StudyState
from studies.records.design import Design, Hypothesis
from studies.records.run_data import Conditions
from studies.records.sentences import tested


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody wanted to know, and what a study can tell them."""

    asked: str
    """The topic, or the flags that stood in its place, word for word on one line."""
    tested: tuple[str, ...]
    """A sentence for each hypothesis or screen; empty while nothing is planned."""
    not_tested: tuple[str, ...]
    """What of the topic is in no field of the plan: its words as written, or a planner's sentence that says so."""


def question_of(state: StudyState) -> Question:
    """Return the question of a study as far as it is planned."""
    left = [text for act in state.planner_acts for text in act.not_tested]
    return Question(
        asked=" ".join(state.topic.split()),
        tested=tested(state.design, state.hypotheses),
        not_tested=tuple(dict.fromkeys(left)),
    )


def unequal(state: StudyState, hypothesis: Hypothesis) -> tuple[str, ...]:
    """Return what the two arms of a hypothesis do not share of training, with the amounts: each a clause.

    Episodes and tokens are told as they were trained, or as planned where nothing is measured yet; seconds as measured.
    """
    design = state.design
    if design is None:
        return ()
    names = (design.control_arm, design.arm_with(hypothesis.variable, hypothesis.treatment).name)
    known = [_conditions(state, name) for name in names]
    planned = [_planned_episodes(design, name) for name in names]
    return tuple(_unequal(names, known, planned))


def unequal_episodes(control: tuple[str, float], treatment: tuple[str, float]) -> str | None:
    """Return that two arms, each a name and its training episodes, differ in them; None where they do not."""
    (name, left), (other, right) = control, treatment
    return None if left == right else f"training episodes: {left:,.0f} with {name}, {right:,.0f} with {other}"


def _planned_episodes(design: Design, arm: str) -> float | None:
    job = {**design.base_job, **design.arm(arm).overrides}
    steps, batch = job.get("steps"), job.get("episodes_per_step")
    return float(steps * batch) if isinstance(steps, int) and isinstance(batch, int) else None


def _conditions(state: StudyState, arm: str) -> list[Conditions]:
    found = ((run.collected or {}).get("conditions") for run in state.runs_of(arm) if run.status == "collected")
    return [Conditions.model_validate(entry) for entry in found if entry is not None]


def _unequal(names: tuple[str, str], known: list[list[Conditions]], planned: list[float | None]) -> Iterator[str]:
    for noun, field, least in (
        ("training episodes", "episodes", 1.0), ("trained tokens", "tokens", TOKENS_TOLD),
        ("seconds of training", "wall_s", WALL_TOLD),
    ):  # fmt: skip
        sides = [_mean(conditions, field) for conditions in known]
        if None in sides and field == "episodes":
            sides = planned
        left, right = sides
        if left and right and max(left, right) / min(left, right) > least:
            yield f"{noun}: {left:,.0f} with {names[0]}, {right:,.0f} with {names[1]}"


def _mean(conditions: list[Conditions], field: str) -> float | None:
    values = [value for entry in conditions if (value := getattr(entry, field)) is not None]
    return fmean(values) if values else None
