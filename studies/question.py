"""The question as it was asked, the question as it is tested, and how the two differ: what plan, terminal and report
begin with.

The sentences on what is tested are written by code from typed fields: a planner's own wording is quoted elsewhere, and
decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from studies.checks.confounds import TOKENS_TOLD, WALL_TOLD
from studies.log.study_state import StudyState
from studies.metrics.registry import kinds
from studies.records.design import GAIN, MODEL, Design, Hypothesis
from studies.records.run_data import Conditions
from studies.records.sentences import metric_name, tested


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
        not_tested=tuple(dict.fromkeys((*left, *_other_measures(state, left)))),
    )


def _other_measures(state: StudyState, said: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each measure that the topic asks for by name, where another one is compared.

    What was `said` of it when it was planned is not said again.
    """
    if state.design is None:
        return
    topic, own = f" {' '.join(re.findall(r'[a-z0-9-]+', state.topic.lower()))} ", state.design.metric
    kind = own.kind or ("gain" if own.key == GAIN else "success")
    if any(f" {word} " in topic for word in _words(kind)):
        return
    for other in kinds().values():
        word = next((word for word in other.words if f" {word} " in topic), None)
        if word is not None and other.name != kind and not any(word in text.lower() for text in said):
            yield f'"{word}" asks for {other.title}; what is compared is {metric_name(own)}.'


def _words(kind: str) -> tuple[str, ...]:
    return kinds()[kind].words if kind in kinds() else ()


def unequal(state: StudyState, hypothesis: Hypothesis) -> tuple[str, ...]:
    """Return what the arms of a hypothesis do not share of training with the control, with the amounts: each a clause.

    Of models that are compared, at which success they began comes first: it is what they gain that is judged.

    Episodes and tokens are told as they were trained, or as planned where nothing is measured yet; seconds as measured.
    """
    design = state.design
    if design is None:
        return ()
    control, *others = design.contrast_of(hypothesis)
    return tuple(clause for other in others for clause in _apart(state, design, hypothesis, (control, other)))


def _apart(state: StudyState, design: Design, hypothesis: Hypothesis, names: tuple[str, str]) -> Iterator[str]:
    known = [_conditions(state, name) for name in names]
    if MODEL in hypothesis.declared:
        yield from _begun(names, known)
    yield from _unequal(names, known, [_planned_episodes(design, name) for name in names])


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


def _begun(names: tuple[str, str], known: list[list[Conditions]]) -> tuple[str, ...]:
    """Return at which success models that are compared began; nothing while it is not known of both."""
    left, right = (_mean(conditions, "initial_success") for conditions in known)
    if left is None or right is None or left == right:
        return ()
    return (f"hidden success before training: {left:.3f} with {names[0]}, {right:.3f} with {names[1]}",)


def _mean(conditions: list[Conditions], field: str) -> float | None:
    values = [value for entry in conditions if (value := getattr(entry, field)) is not None]
    return fmean(values) if values else None
