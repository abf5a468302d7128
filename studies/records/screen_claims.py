"""What follows from a screen: the arms that are confirmed, and the claim on each, written by code.

A claim says that a kept candidate beats the control. The planner said beforehand what it expects of the best one
(`Screen.prediction`); every kept candidate may turn out to be that, so all claims carry it. A candidate whose job is
the control's is no claim and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from studies.records.base import JsonValue
from studies.records.design import CONFIGURATION, Arm, Design, Direction, Hypothesis
from studies.records.design_parts import Prediction, Selection
from studies.records.sentences import statement


def confirmed_arms(design: Design, candidates: Sequence[Arm], selection: Selection) -> tuple[Arm, ...]:
    """Return the kept candidates that differ from the control, the best first."""
    by_name = {arm.name: arm for arm in candidates}
    control = control_values(design)
    kept = (by_name[name] for name in selection.kept)
    return tuple(arm for arm in kept if any(control.get(field) != value for field, value in arm.overrides.items()))


def control_values(design: Design) -> dict[str, JsonValue]:
    """Return every job field of the control arm."""
    control = design.arm(design.control_arm)
    return {**design.base_job, **control.overrides}


def claims(design: Design, arms: Sequence[Arm]) -> tuple[Hypothesis, ...]:
    """Return the claim on each arm, in order; `design` is the locked one, with its screen."""
    return tuple(_claim(design, arm, f"s{number}") for number, arm in enumerate(arms, start=1))


def claims_in_old_words(design: Design, arms: Sequence[Arm]) -> tuple[Hypothesis, ...]:
    """Return the same claims as older logs word them (`tests/recorded/`)."""
    worded = (f"{arm.name} is better than {design.control_arm}." for arm in arms)
    pairs = zip(claims(design, arms), worded, strict=True)
    return tuple(claim.model_copy(update={"statement": words}) for claim, words in pairs)


def effective(design: Design, arms: Sequence[Arm], hypotheses: Sequence[Hypothesis]) -> Design:
    """Return the design that is confirmed: the control and the kept arms, without the screen that found them."""
    found = {"arms": (*design.arms, *arms), "hypotheses": tuple(hypotheses), "screen": None}
    # With no arm left to confirm there are no claims, which only a design without data may be.
    return design.model_copy(update=found)


def _claim(design: Design, arm: Arm, name: str) -> Hypothesis:
    assert design.screen is not None
    control = control_values(design)
    fields = [knob.field for knob in design.screen.knobs]
    variable = fields[0] if len(fields) == 1 else CONFIGURATION
    before = control[variable] if len(fields) == 1 else {field: control[field] for field in arm.overrides}
    after = arm.overrides[variable] if len(fields) == 1 else dict(arm.overrides)
    direction: Direction = "increase" if design.metric.higher_is_better else "decrease"
    return Hypothesis(
        id=name,
        statement=statement(variable, before, after, direction, design.metric),
        mechanism="Found by the screen, whose scores are no evidence for it.",
        variable=variable,
        control=before,
        treatment=after,
        direction=direction,
        prediction=design.screen.prediction or _no_opinion(design),
        smallest_effect=design.promise.effect if design.promise else None,
    )


def _no_opinion(design: Design) -> Prediction:
    """Return what is taken where nobody predicted: either outcome, an effect up to twice the smallest of interest."""
    most = 2 * design.promise.effect if design.promise else 1.0
    low, high = (0.0, most) if design.metric.higher_is_better else (-most, 0.0)
    return Prediction(low=low, high=high, probability=0.5)
