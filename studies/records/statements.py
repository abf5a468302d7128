"""Claims as sentences code writes, and the design as its screen and its pilot leave it.

After a screen a claim says that a kept candidate beats the control, with what the planner expects of the best one
(`Screen.prediction`). A candidate whose job is the control's is no claim and is left out.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from studies.records.base import JsonValue
from studies.records.design import CONFIGURATION, GAIN, MODEL, SUCCESS, Arm, Design, Direction, Hypothesis, Metric
from studies.records.procedure import InterimAnalysis, Noise, Prediction, Selection, Sizing

_VERBS: Final = {"increase": "raises", "decrease": "lowers"}
_AMOUNTS: Final = {"increase": "more", "decrease": "fewer"}
_SIZES: Final = {"increase": "larger", "decrease": "smaller"}
_MOVES: Final = {"increase": "rises", "decrease": "falls"}
_WHOLE: Final = 100


def list_tests(design: Design | None, hypotheses: tuple[Hypothesis, ...]) -> tuple[str, ...]:
    """Return what is put to the test, a sentence for each hypothesis; of a screen, that it comes first."""
    if design is None:
        return tuple(map(_before_lock, hypotheses))
    if design.screen is not None:
        return (screen_sentence([knob.field for knob in design.screen.knobs], design.environment),)
    least, power = (design.promise.effect, design.promise.power) if design.promise else (None, 1.0)
    return sentences(design.hypotheses, design.environment, least, design.metric, power)


def sentences(
    claims: Iterable[Hypothesis], environment: str | None = None, least: float | None = None,
    metric: Metric | None = None, power: float = 1.0,
) -> tuple[str, ...]:  # fmt: skip
    """Return what is put to the test by each claim; `least` is the smallest difference of interest."""
    found, rarely = [], f" with {100 * power:.0f} % probability" if power < 0.5 else ""
    sized = "" if least is None else f" (sized to see {amount(least, metric)}{rarely})"
    for claim in claims:
        where = "" if environment is None else f", in {environment}"
        if where and "hidden" in outcome_name(claim.variable, metric):
            where += " on the hidden tasks played"
        more = _describe_joint_fields(claim)
        moves = ", ".join(f"{mediator.metric} {_MOVES[mediator.direction]}" for mediator in claim.mediators)
        more += f" Then, where a difference is shown, in this order: whether {moves} with it." if moves else ""
        found.append(_describe_test(claim, where, least, metric, sized) + more)
    return tuple(found)


def screen_sentence(fields: Iterable[str], environment: str) -> str:
    return f"Which values of {', '.join(fields)} are best: the best of a screen against the defaults, in {environment}."


def statement(
    variable: str, control: JsonValue, treatment: JsonValue, direction: str, metric: Metric | None = None
) -> str:
    with_control, judged = setting(variable, control), outcome_name(variable, metric)
    if metric is not None and metric.cut_at is not None:
        return f"{setting(variable, treatment)} needs {_AMOUNTS[direction]} {judged} than {with_control}."
    return f"{setting(variable, treatment)} {_VERBS[direction]} the {judged}, compared with {with_control}."


def statement_of(claim: Hypothesis, metric: Metric | None = None) -> str:
    """Return a claim as a sentence from its typed fields, with what it leaves open where fields differ together."""
    if claim.kind == "interaction":
        effect = f"{effect_of(claim)} on the {outcome_name(claim.variable, metric)}"
        return f"The {effect} is {_SIZES[claim.direction]} {_describe_moderator(claim)}."
    if claim.kind == "trend":
        by = f", {along(claim)}" if claim.contrast else ""
        return f"The {outcome_name(claim.variable, metric)} {_MOVES[claim.direction]} over {_rungs(claim)}{by}."
    said = statement(claim.variable, claim.control, claim.treatment, claim.direction, metric)
    return said + _describe_joint_fields(claim)


def _describe_joint_fields(claim: Hypothesis) -> str:
    if claim.variable != CONFIGURATION or len(claim.varied) < 2 or claim.kind != "difference":
        return ""
    *others, last = claim.varied
    return f" They differ together: the difference cannot be laid to {', '.join(others)} or {last} alone."


def effect_of(claim: Hypothesis) -> str:
    """Return which effect an interaction is about: `effect of group_size (4 to 16)`."""
    name = claim.moderated
    low, high = claim.varied[name]
    return f"effect of {name} ({format_setting_value(name, low)} to {format_setting_value(name, high)})"


def _describe_moderator(claim: Hypothesis) -> str:
    low, high = (setting(claim.moderator, value) for value in claim.varied[claim.moderator])
    return f"with {high} than with {low}"


def _rungs(claim: Hypothesis) -> str:
    if claim.variable == CONFIGURATION:
        return f"({'), ('.join(setting(CONFIGURATION, value) for value in claim.ladder)})"
    return f"{claim.variable} = {', '.join(format_setting_value(claim.variable, value) for value in claim.ladder)}"


def along(claim: Hypothesis) -> str:
    """Return by what a trend's values are weighed: a straight line, or the weights of a contrast."""
    weights = ", ".join(f"{weight:.3g}" for weight in claim.contrast)
    return f"by the weights {weights}" if weights else "along a straight line"


def outcome_name(variable: str, metric: Metric | None = None) -> str:
    """Return what a claim is a claim about: without another metric, of models what they gain, as they begin unlike."""
    if metric is not None:
        return metric_name(metric)
    return "gain in hidden success" if variable == MODEL else "hidden success"


def metric_name(metric: Metric) -> str:
    return metric.name or {SUCCESS: "hidden success", GAIN: "gain in hidden success"}.get(metric.key, metric.key)


def amount(value: float, metric: Metric | None) -> str:
    """Return a size in a metric's unit, as it was given: `512 episodes`, or `0.1` of a share."""
    said = f"{value:,.0f}" if abs(value) >= _WHOLE else f"{value:g}"
    return f"{said} {metric.unit}" if metric is not None and metric.cut_at is not None else said


def setting(variable: str, value: Any) -> str:
    if variable == CONFIGURATION and isinstance(value, Mapping):
        return ", ".join(setting(name, entry) for name, entry in sorted(value.items()))
    return f"{variable} = {format_setting_value(variable, value)}"


def format_setting_value(variable: str, value: Any) -> str:
    """Return the value of a field as sentences have it: a model by its name, anything else as a job has it."""
    return model_name(value) if variable == MODEL and isinstance(value, Mapping) else value_of(value)


def model_name(value: Mapping[str, Any]) -> str:
    return str(value.get("path", "")).rstrip("/").rpartition("/")[2] or str(value.get("kind", MODEL))


def value_of(value: Any) -> str:
    """Return a job field's value as it stands in a job: JSON, text without quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _describe_test(claim: Hypothesis, where: str, least: float | None, metric: Metric | None, sized: str) -> str:
    if claim.kind != "difference":
        margin = "anything that matters" if least is None else amount(least, metric)
        alike, judged = claim.sought == "equivalence", outcome_name(claim.variable, metric)
        if claim.kind == "interaction":
            effect, both = f"Whether the {effect_of(claim)} on the {judged}", _describe_moderator(claim)
            if alike:
                return f"{effect} is the same {both.replace(' than ', ' as ')}{where}, to less than {margin}."
            return f"{effect} is {_SIZES[claim.direction]} {both}{where}{sized}."
        over = f"over {_rungs(claim)}, {along(claim)}{where}"
        if alike:
            return f"Whether the {judged} changes {over}, by less than {margin}."
        return f"Whether the {judged} {_MOVES[claim.direction]} {over}{sized}."
    treatment, control = (setting(claim.variable, value) for value in (claim.treatment, claim.control))
    at = " after as many training episodes" if claim.matched == "episodes" else ""
    judged = outcome_name(claim.variable, metric)
    if claim.sought == "equivalence":
        near = f"by less than {amount(least, metric)}" if least is not None else "by nothing that matters"
        return (
            f"Whether the {judged} with {treatment} and with {control} differs {near}{at}{where}: the verdict "
            "Equivalent is what is asked for."
        )
    if metric is not None and metric.cut_at is not None:
        needs = "more or fewer" if claim.open else _AMOUNTS[claim.direction]
        return f"Whether {treatment} needs {needs} {judged} than {control}{where}{sized}."
    moves = "changes" if claim.open else _VERBS[claim.direction]
    return f"Whether {treatment} {moves} the {judged}{at}, compared with {control}{where}{sized}."


def _before_lock(claim: Hypothesis) -> str:
    usual = statement_of(claim)
    if claim.kind != "difference":
        return _describe_test(claim, "", None, None, "") if claim.statement == usual else f"Whether {claim.statement}"
    ours = claim.statement.startswith(setting(claim.variable, claim.treatment))  # in older logs it is the planner's
    if ours and claim.statement != usual:
        return f"Whether {claim.statement}"
    return _describe_test(claim, "", None, None, "") + _describe_joint_fields(claim)


def select_arms(design: Design, candidates: Sequence[Arm], selection: Selection) -> tuple[Arm, ...]:
    by_name = {arm.name: arm for arm in candidates}
    control = control_values(design)
    kept = (by_name[name] for name in selection.kept)
    return tuple(arm for arm in kept if any(control.get(field) != value for field, value in arm.overrides.items()))


def control_values(design: Design) -> dict[str, JsonValue]:
    return {**design.base_job, **design.arm(design.control_arm).overrides}


def claims_in_old_words(design: Design, arms: Sequence[Arm]) -> tuple[Hypothesis, ...]:
    """Return the same claims as older logs word them (`tests/recorded/`)."""
    worded = (f"{arm.name} is better than {design.control_arm}." for arm in arms)
    pairs = zip(claims(design, arms), worded, strict=True)
    return tuple(claim.model_copy(update={"statement": words}) for claim, words in pairs)


def apply_pilot(design: Design) -> Design:
    """Return what a locked design with a pilot is until it is sized: as many seeds as the pilot, looked at once."""
    pilot, place = design.pilot, design.inquiry
    if pilot is None:
        return design
    alike = None if place is None else place.equivalence / design.likenesses
    return _with_seeds(design, design, (InterimAnalysis(seeds=pilot.seeds, alpha=design.alpha, equivalence=alike),))


def apply_sizing(locked: Design, design: Design, sizing: Sizing) -> Design:
    """Return a design with the seeds of its lock that it was sized to, its looks, and the noise that it met."""
    noise = None if sizing.sd is None else Noise(
        sd=sizing.sd, df=sizing.df, episodes=design.metric.episodes, collapsed=sizing.collapsed, runs=sizing.runs,
        basis=f"the first {sizing.runs} runs of this study, whichever their arms",
    )  # fmt: skip
    return _with_seeds(locked, design, sizing.looks).model_copy(update={"noise": noise})


def _with_seeds(locked: Design, design: Design, looks: tuple[InterimAnalysis, ...]) -> Design:
    seeds, again = looks[-1].seeds, design.replication
    if again is not None and locked.replication is not None:
        again = again.model_copy(update={"seeds": locked.replication.seeds[:seeds]})
    return design.model_copy(update={"seeds": locked.seeds[:seeds], "looks": looks, "replication": again})


def claims(design: Design, arms: Sequence[Arm]) -> tuple[Hypothesis, ...]:
    """Return the claim on each kept arm: that it is better than the control."""
    assert design.screen is not None
    control, fields = control_values(design), [knob.field for knob in design.screen.knobs]
    variable = fields[0] if len(fields) == 1 else CONFIGURATION
    direction: Direction = "increase" if design.metric.higher_is_better else "decrease"
    # Where nobody predicted: either outcome, an effect up to twice the smallest of interest.
    most = 2 * design.promise.effect if design.promise else 1.0
    low, high = (0.0, most) if design.metric.higher_is_better else (-most, 0.0)
    found = []
    for number, arm in enumerate(arms, start=1):
        before = control[variable] if len(fields) == 1 else {field: control[field] for field in arm.overrides}
        after = arm.overrides[variable] if len(fields) == 1 else dict(arm.overrides)
        found.append(Hypothesis(
            id=f"s{number}", variable=variable, control=before, treatment=after, direction=direction,
            statement=statement(variable, before, after, direction, design.metric),
            mechanism="Found by the screen, whose scores are no evidence for it.",
            prediction=design.screen.prediction or Prediction(low=low, high=high, probability=0.5),
            smallest_effect=design.promise.effect if design.promise else None,
        ))  # fmt: skip
    return tuple(found)
