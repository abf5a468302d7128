"""How a report says things: numbers, durations, and verdicts in words bound to the rules.

Nothing is rounded into significance: differences keep three decimals and their sign; *inconclusive* is "no evidence
of", never "no effect".
"""

import re
import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from studies.records.design import CONFIGURATION, Hypothesis, Metric
from studies.records.statements import effect_of, format_setting_value, metric_name, value_of
from studies.records.verdict import Verdict
from studies.verdicts.scope import find_unobserved_misses
from studies.verdicts.wording import DecidingInterval, decimals, ends_in_digits, explain_reached, explain_trainings

MINUS: Final = "\N{MINUS SIGN}"
NONE: Final = "–"
_SIDES: Final = {
    "difference": ("higher", "lower"), "interaction": ("larger", "smaller"), "trend": ("rising", "falling"),
}  # fmt: skip


def label(claim: Hypothesis, verdict: Verdict) -> str:
    """Return a verdict's word, with the side of a difference that it claims, and whether it is by the margin."""
    if verdict.verdict not in ("supported", "refuted") or verdict.estimate is None:
        return verdict.verdict.capitalize()
    side = _SIDES[claim.kind][verdict.estimate < 0] + (" by the margin" if verdict.by_margin else "")
    side += ", against a control nobody uses" if claim.unused_control else ""
    return capital(side) if claim.open else f"{verdict.verdict.capitalize()}, {side}"


def format_signed(value: float | None, *, unit: str = "") -> str:
    return number(value, unit=unit, sign="+")


def number(value: float | None, digits: int = 3, *, unit: str = "", sign: str = "") -> str:
    """Return a value with a true minus sign and as many digits as say something, by its unit; a dash for None."""
    if value is None:
        return NONE
    if unit:
        text = f"{value:{sign},.{decimals(value)}f}" if value else "0"
    elif abs(value) < 100:
        text = re.sub(r"^[+-](0(?:\.0+)?)$", r"\1", f"{value:{sign}.{digits}f}")
    else:
        text = f"{value:{sign}.4g}" if abs(value) < 1000 else f"{value:{sign},.0f}"
    return text.replace("-", MINUS)


def span(low: float | None, high: float | None, *, unit: str = "") -> str:
    if low is None or high is None:
        return NONE
    return " to ".join(ends_in_digits((low, high), unit)).replace("-", MINUS)


def true_minus(text: str) -> str:
    return re.sub(r"(?<!\w)-(?=\d)", MINUS, text)


def p_value(value: float | None) -> str:
    if value is None:
        return NONE
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def percent(share: float) -> str:
    return f"{share * 100:.6g} %"


def fine_percent(share: float) -> str:
    """Return a level as a percentage with as many digits as tell levels apart: `3.33 %`."""
    return f"{share * 100:.2f} %"


def plural(count: int, noun: str) -> str:
    """Return `1 run`, `2 runs`; a noun that ends in a consonant and `y` takes `ies`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{count:,} {noun}s"


def duration(seconds: float | None) -> str:
    """Return seconds as people say them: `48 s`, `4 min 32 s`, `3 h 05 min`."""
    if seconds is None:
        return NONE
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def moment(ts: str) -> str:
    return datetime.fromisoformat(ts).strftime("%Y-%m-%d %H:%M:%S UTC")


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def command_line(command: Any) -> str:
    if isinstance(command, Sequence) and not isinstance(command, str):
        return shlex.join(str(part) for part in command)
    return str(command)


def setting(hypothesis: Hypothesis, value: Any) -> str:
    if hypothesis.variable != CONFIGURATION:
        return f"{hypothesis.variable} = {format_setting_value(hypothesis.variable, value)}"
    return describe_fields(value)


def describe_fields(fields: Any, none: str = "the base job") -> str:
    return ", ".join(f"{name} = {value_of(value)}" for name, value in fields.items()) or none


def value_alone(hypothesis: Hypothesis, value: Any) -> str:
    whole = hypothesis.variable == CONFIGURATION
    return setting(hypothesis, value) if whole else format_setting_value(hypothesis.variable, value)


def describe_comparison(hypothesis: Hypothesis) -> str:
    """Return the settings a hypothesis compares: `group_size 16 against 4`."""
    if hypothesis.kind == "interaction":
        return f"{effect_of(hypothesis)} by {hypothesis.moderator}"
    if hypothesis.kind == "trend":
        return f"{hypothesis.variable} over {', '.join(value_alone(hypothesis, value) for value in hypothesis.ladder)}"
    lead = "" if hypothesis.variable == CONFIGURATION else f"{hypothesis.variable} "
    return (
        f"{lead}{value_alone(hypothesis, hypothesis.treatment)} against {value_alone(hypothesis, hypothesis.control)}"
    )


def describe_counts(verdict: Verdict) -> str:
    return " + ".join(map(str, [arm.n for arm in verdict.arms] or [verdict.n_treatment, verdict.n_control]))


def in_unit(text: str, metric: Metric) -> str:
    """Return a number with its metric's unit, unless its name says all: `1,234 episodes`, but `0.612`."""
    return f"{text} {metric.unit}" if metric.unit and metric.cut_at is not None and text != NONE else text


def format_size(value: float | None, metric: Metric) -> str:
    return in_unit(number(value, unit=metric.unit), metric)


def metric_axis(metric: Metric) -> str:
    name = metric_name(metric)
    return name if not metric.unit or metric.unit in name else f"{name} ({metric.unit})"


def finding(hypothesis: Hypothesis, verdict: Verdict, metric: Metric, interval: DecidingInterval | None) -> str:
    if verdict.verdict == "invalid" or verdict.estimate is None:
        if verdict.mean_control is None or verdict.mean_treatment is None or verdict.arms:
            return true_minus(verdict.reason)
        return (
            f"{true_minus(verdict.reason)} The mean {metric_name(metric)} was "
            f"{number(verdict.mean_treatment, unit=metric.unit)} with {setting(hypothesis, hypothesis.treatment)} and "
            f"{number(verdict.mean_control, unit=metric.unit)} with {value_alone(hypothesis, hypothesis.control)}."
        )
    if verdict.test == "boschloo":
        text = _compare_rates(hypothesis, verdict, metric, interval)
    elif verdict.arms:
        text = _describe_contrast(hypothesis, verdict, metric, interval)
    else:
        difference = in_unit(format_signed(verdict.estimate, unit=metric.unit), metric)
        text = (
            f"with {setting(hypothesis, hypothesis.treatment)}, mean {metric_name(metric).removeprefix('mean ')} was "
            f"{number(verdict.mean_treatment, unit=metric.unit)}, against "
            f"{number(verdict.mean_control, unit=metric.unit)} with {value_alone(hypothesis, hypothesis.control)} "
            f"(difference {difference}, {_ends(interval, metric.unit)}, n = {describe_counts(verdict)})."
        )
    if verdict.verdict in ("supported", "refuted") and verdict.equivalence is not None and verdict.test != "boschloo":
        size = format_size(verdict.equivalence.margin, metric)
        text += f" The whole interval lies beyond {size}." if verdict.by_margin else f" {size} or more is not shown."
    if verdict.verdict == "supported" or (hypothesis.open and verdict.verdict == "refuted"):
        return text
    if verdict.verdict == "refuted":
        lead = "the difference lies on the other side of zero"
    elif verdict.verdict == "equivalent":
        same = verdict.equivalence
        margin = "the margin" if same is None else f"±{format_size(same.margin, metric)}"
        small = "smaller than what matters, and not zero" if verdict.nonzero else "none that matters"
        lead = f"the difference lies within {margin}: {small}"
    elif hypothesis.kind == "interaction":
        lead = "no evidence of one effect being another than the other"
    elif hypothesis.open:
        lead = "no evidence of a difference"
    else:
        lead = f"no evidence of {'an' if hypothesis.direction == 'increase' else 'a'} {hypothesis.direction}"
    return f"{lead}. {capital(text)}"


def _compare_rates(hypothesis: Hypothesis, verdict: Verdict, metric: Metric, interval: DecidingInterval | None) -> str:
    pairs = ((verdict.mean_treatment, verdict.n_treatment), (verdict.mean_control, verdict.n_control))
    treatment, control = (f"{round((mean or 0.0) * n)} of {n} trainings" for mean, n in pairs)
    did = "collapsed" if metric.kind == "collapse" else f"had {metric_name(metric)}"
    p = verdict.p if verdict.p_adjusted is None else verdict.p_adjusted
    ends = "" if interval is None else f", {_ends(interval, '')}"
    return (
        f"with {setting(hypothesis, hypothesis.treatment)}, {treatment} {did}, against {control} with "
        f"{value_alone(hypothesis, hypothesis.control)} (exact p {p_value(p)}; difference of the rates "
        f"{format_signed(verdict.estimate)}{ends})."
    )


def _describe_contrast(
    hypothesis: Hypothesis, verdict: Verdict, metric: Metric, interval: DecidingInterval | None
) -> str:
    means = [number(arm.mean, unit=metric.unit) for arm in verdict.arms]
    size = in_unit(format_signed(verdict.estimate, unit=metric.unit), metric)
    found = f"{size}, {_ends(interval, metric.unit)}, n = {describe_counts(verdict)}"
    if hypothesis.kind == "trend":
        values = ", ".join(value_alone(hypothesis, value) for value in hypothesis.ladder)
        return f"{metric_name(metric)} was {', '.join(means)} at {hypothesis.variable} = {values} (rise {found})."
    low, high = (f"{hypothesis.moderator} = {value_of(v)}" for v in hypothesis.varied[hypothesis.moderator])
    return (
        f"the {effect_of(hypothesis)} took {metric_name(metric)} from {means[2]} to {means[3]} with {high}, and "
        f"from {means[0]} to {means[1]} with {low} (difference of the differences {found})."
    )


def _ends(interval: DecidingInterval | None, unit: str) -> str:
    if interval is None:
        return "no interval exists"
    return f"{percent(interval.level)} interval {span(interval.low, interval.high, unit=unit)}"


def describe_trainings(verdict: Verdict, metric: Metric) -> str:
    """Return of which trainings a verdict speaks; of a time, the share of runs below its cut."""
    if verdict.estimate is None:
        return ""
    missed, reached = any(rate.count < rate.of for rate in verdict.reached), ""
    if verdict.collapses and verdict.verdict != "invalid":
        unseen = find_unobserved_misses(metric, verdict) if verdict.starts else ()
        reached = explain_trainings(verdict.scope, verdict.collapses, verdict.starts, unseen, named=True)
    if verdict.reached and (metric.threshold is not None or missed):
        rates = " and ".join(
            f"{rate.count} of {rate.of} with {rate.arm} ({number(rate.low, 2)} to {number(rate.high, 2)})"
            for rate in verdict.reached
        )
        below = f"Below {metric.cut_at:,.0f}, where it is cut, lay"
        by = below if metric.threshold is None else "It was reached by"
        cut = f"; a run that did not counts with {in_unit(f'{metric.cut_at:,.0f}', metric)}" if missed else ""
        reached += f" {by} {rates}, with 95 % limits of the rate{cut}."
    if verdict.scope != "reached":
        return reached
    return reached + explain_reached(find_unobserved_misses(metric, verdict), metric, verdict.scope, named=True)
