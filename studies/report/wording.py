"""How a report says things: numbers, durations, and verdicts in words bound to the rules.

The ladder of a verdict's words is fixed here: *supported*, *refuted*, *inconclusive* (which is "no evidence of",
never "no effect"), *invalid*. Nothing is rounded into significance: differences keep three decimals and their sign.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from studies.records.design import CONFIGURATION, GAIN, SUCCESS, Hypothesis, Metric
from studies.records.statements import effect_of, format_setting_value, metric_name, value_of
from studies.records.verdict import Verdict
from studies.verdicts.scope import find_unobserved_misses
from studies.verdicts.wording import DecidingInterval, decimals, ends_in_digits, reached_phrase

MINUS: Final = "\N{MINUS SIGN}"
NONE: Final = "–"
_SIDES: Final = ("supported", "refuted")
_PERCENT: Final = 0.01
_ZERO: Final = re.compile(r"^[+-](0(?:\.0+)?)$")
LABELS: Final = {
    "supported": "Supported",
    "refuted": "Refuted",
    "equivalent": "Equivalent",
    "inconclusive": "Inconclusive",
    "invalid": "Invalid",
}


def label(claim: Hypothesis, verdict: Verdict) -> str:
    """Return a verdict's word; of a question that names no side, that there is a difference, whichever it is."""
    return "Difference shown" if claim.open and verdict.verdict in _SIDES else LABELS[verdict.verdict]


def number(value: float | None, digits: int = 3, *, unit: str = "") -> str:
    """Return a value with a true minus sign and as many digits as say something, by its unit; a dash for None."""
    if value is None:
        return NONE
    if unit:
        return f"{value:,.{decimals(value) if value else 0}f}".replace("-", MINUS)
    text = f"{value:.{digits}f}" if abs(value) < 100 else f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return _ZERO.sub(r"\1", text).replace("-", MINUS)


def format_signed(value: float | None, digits: int = 3, *, unit: str = "") -> str:
    """Return a difference with its sign always shown, but of what reads as 0."""
    if value is None:
        return NONE
    if unit:
        return f"{value:+,.{decimals(value)}f}".replace("-", MINUS) if value else "0"
    text = f"{value:+.{digits}f}" if abs(value) < 100 else f"{value:+.4g}" if abs(value) < 1000 else f"{value:+,.0f}"
    return _ZERO.sub(r"\1", text).replace("-", MINUS)


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
    """Return a share as a percentage without needless digits: `95 %`."""
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


def setting(hypothesis: Hypothesis, value: Any) -> str:
    if hypothesis.variable != CONFIGURATION:
        return f"{hypothesis.variable} = {format_setting_value(hypothesis.variable, value)}"
    return ", ".join(f"{name} = {value_of(entry)}" for name, entry in value.items())


def describe_comparison(hypothesis: Hypothesis) -> str:
    """Return the settings a hypothesis compares: `group_size 16 against 4`."""
    if hypothesis.kind == "interaction":
        return f"{effect_of(hypothesis)} by {hypothesis.moderator}"
    if hypothesis.kind == "trend":
        return f"{hypothesis.variable} over {', '.join(value_alone(hypothesis, value) for value in hypothesis.ladder)}"
    if hypothesis.variable == CONFIGURATION:
        return f"{setting(hypothesis, hypothesis.treatment)} against {setting(hypothesis, hypothesis.control)}"
    treatment, control = (value_alone(hypothesis, value) for value in (hypothesis.treatment, hypothesis.control))
    return f"{hypothesis.variable} {treatment} against {control}"


def value_alone(hypothesis: Hypothesis, value: Any) -> str:
    """Return a value beside one whose variable was named: `4`, or the whole of a configuration."""
    whole = hypothesis.variable == CONFIGURATION
    return setting(hypothesis, value) if whole else format_setting_value(hypothesis.variable, value)


def command_line(command: Any) -> str:
    """Return the command a study was started with as one shell line."""
    if isinstance(command, Sequence) and not isinstance(command, str):
        return shlex.join(str(part) for part in command)
    return str(command)


def one_line(text: str) -> str:
    return " ".join(text.split())


def in_unit(text: str, metric: Metric) -> str:
    """Return a number with its metric's unit, unless its name says all: `1,234 episodes`, but `0.612`."""
    return f"{text} {metric.unit}" if metric.unit and metric.cut_at is not None and text != NONE else text


def format_size(value: float | None, metric: Metric) -> str:
    return in_unit(number(value, unit=metric.unit), metric)


def describe_cut(metric: Metric, missed: int, of: int) -> str:
    return f"not reached by {missed} of {of}" if metric.threshold is not None else f"{missed} of {of} at the cut"


def metric_axis(metric: Metric) -> str:
    name = metric_name(metric)
    return name if not metric.unit or metric.unit in name else f"{name} ({metric.unit})"


def finding(hypothesis: Hypothesis, verdict: Verdict, metric: Metric, interval: DecidingInterval | None) -> str:
    """Return the verdict as one sentence of numbers with the one interval that decided it, without its label."""
    if verdict.verdict == "invalid" or verdict.estimate is None:
        return true_minus(verdict.reason) + _describe_arms(hypothesis, verdict, metric)
    told = _rates if verdict.test == "boschloo" else _comparison
    lead, text = _lead(hypothesis, verdict, metric), told(hypothesis, verdict, metric, interval)
    return lead + text[0].upper() + text[1:] if lead else text


def _lead(hypothesis: Hypothesis, verdict: Verdict, metric: Metric) -> str:
    if hypothesis.open and verdict.verdict in _SIDES:
        return ""
    same = verdict.equivalence
    margin = "the margin" if same is None else f"±{format_size(same.margin, metric)}"
    small = "smaller than what matters, and not zero" if verdict.nonzero else "none that matters"
    return {
        "supported": "",
        "refuted": "the difference lies on the other side of zero. ",
        "equivalent": f"the difference lies within {margin}: {small}. ",
        "inconclusive": f"no evidence of {_change(hypothesis)}. ",
    }[verdict.verdict]


def _rates(hypothesis: Hypothesis, verdict: Verdict, metric: Metric, interval: DecidingInterval | None) -> str:
    """Return two rates of runs as counts, with the exact p that decides and the interval beside it."""
    told = [
        f"{round((mean or 0.0) * n)} of {n} trainings"
        for mean, n in ((verdict.mean_treatment, verdict.n_treatment), (verdict.mean_control, verdict.n_control))
    ]
    did = "collapsed" if metric.kind == "collapse" else f"had {metric_name(metric)}"
    p = verdict.p if verdict.p_adjusted is None else verdict.p_adjusted
    ends = "" if interval is None else f", {percent(interval.level)} interval {span(interval.low, interval.high)}"
    return (
        f"with {setting(hypothesis, hypothesis.treatment)}, {told[0]} {did}, against {told[1]} with "
        f"{value_alone(hypothesis, hypothesis.control)} (exact p {p_value(p)}; difference of the rates "
        f"{format_signed(verdict.estimate)}{ends})."
    )


def describe_reached(hypothesis: Hypothesis, verdict: Verdict, metric: Metric) -> str:
    """Return the share of runs whose value is not where it is cut, as a sentence; empty for what is never cut."""
    if not verdict.reached or verdict.estimate is None:
        return ""
    missed = any(rate.count < rate.of for rate in verdict.reached)
    if metric.threshold is None and not missed:  # a cut that no run met says nothing
        return _of_those_there(hypothesis, verdict, metric)
    names = _names(hypothesis, verdict)
    told = [
        f"{rate.count} of {rate.of} with {names[rate.arm]} ({number(rate.low, 2)} to {number(rate.high, 2)})"
        for rate in (verdict.reached if verdict.arms else reversed(verdict.reached))
    ]
    what = "It was reached by" if metric.threshold is not None else f"Below {metric.cut_at:,.0f}, where it is cut, lay"
    said = f" {what} {' and '.join(told)}, with 95 % limits of the rate"
    cut = f"; a run that did not counts with {in_unit(f'{metric.cut_at:,.0f}', metric)}" if missed else ""
    return f"{said}{cut}." + _of_those_there(hypothesis, verdict, metric)


def _names(hypothesis: Hypothesis, verdict: Verdict) -> dict[str, str]:
    arms = [rate.arm for rate in verdict.reached]
    if verdict.arms:
        return dict(zip(arms, arms, strict=True))
    values = (value_alone(hypothesis, value) for value in (hypothesis.control, hypothesis.treatment))
    return dict(zip(arms, values, strict=True))


def _of_those_there(hypothesis: Hypothesis, verdict: Verdict, metric: Metric) -> str:
    """Return of which trainings a verdict on a time speaks, where it is not of all; empty where it is."""
    if verdict.scope != "reached":
        return ""
    names = _names(hypothesis, verdict)
    found = find_unobserved_misses(metric, verdict)
    uppers = [f"{_whole(one.upper)} with {names[one.arm]}" for one in found]
    alike = len(found) > 1 and len({one.upper for one in found}) == 1
    if alike or len(found) == 1:
        uppers = [f"{_whole(found[0].upper)}{' per arm' if alike else ''}"]
    least = [one.breaking_share for one in found if one.breaking_share is not None]
    undone = f", and {_whole(min(least))} would undo it" if least else ""
    alone = f" with {names[found[0].arm]}" if len(found) == 1 else ""
    phrase, most = reached_phrase(metric), " and ".join(uppers)
    return f" So this is of trainings{alone} that {phrase}: that up to {most} never do is not ruled out{undone}."


def _whole(share: float) -> str:
    """Return a share in whole percent, or, of a small one, to a tenth."""
    return percent(round(share, 2 if share >= _PERCENT else 3))


def _comparison(hypothesis: Hypothesis, verdict: Verdict, metric: Metric, interval: DecidingInterval | None) -> str:
    if verdict.arms:
        return _contrast(hypothesis, verdict, metric, interval)
    difference = in_unit(format_signed(verdict.estimate, unit=metric.unit), metric)
    return (
        f"with {setting(hypothesis, hypothesis.treatment)}, {_outcome(verdict.mean_treatment, metric)}, against "
        f"{number(verdict.mean_control, unit=metric.unit)} with "
        f"{value_alone(hypothesis, hypothesis.control)} (difference {difference}, {_ends(interval, metric)}, "
        f"n = {verdict.n_treatment} + {verdict.n_control})."
    )


def _ends(interval: DecidingInterval | None, metric: Metric) -> str:
    if interval is None:
        return "no interval exists"
    return f"{percent(interval.level)} interval {span(interval.low, interval.high, unit=metric.unit)}"


def describe_counts(verdict: Verdict) -> str:
    """Return how many runs of each arm a verdict rests on: the treatment's first, or a contrast's in their order."""
    counts = [arm.n for arm in verdict.arms] or [verdict.n_treatment, verdict.n_control]
    return " + ".join(map(str, counts))


def _contrast(hypothesis: Hypothesis, verdict: Verdict, metric: Metric, interval: DecidingInterval | None) -> str:
    """Return an interaction or a trend by the means of all its arms."""
    means = [number(arm.mean, unit=metric.unit) for arm in verdict.arms]
    size = in_unit(format_signed(verdict.estimate, unit=metric.unit), metric)
    told = f"{size}, {_ends(interval, metric)}, n = {describe_counts(verdict)}"
    if hypothesis.kind == "trend":
        values = ", ".join(value_alone(hypothesis, value) for value in hypothesis.ladder)
        return f"{metric_name(metric)} was {', '.join(means)} at {hypothesis.variable} = {values} (rise {told})."
    low, high = (f"{hypothesis.moderator} = {value_of(v)}" for v in hypothesis.varied[hypothesis.moderator])
    return (
        f"the {effect_of(hypothesis)} took {metric_name(metric)} from {means[2]} to {means[3]} with {high}, and "
        f"from {means[0]} to {means[1]} with {low} (difference of the differences {told})."
    )


def _outcome(mean: float | None, metric: Metric) -> str:
    if metric.key == SUCCESS:
        return f"runs solved {number(mean)} of the hidden tasks"
    if metric.key == GAIN:
        return f"runs gained {format_signed(mean)} of hidden success over their own beginning"
    if metric.cut_at is not None and metric.threshold is not None:
        return f"runs took {format_size(mean, metric)} to {metric.threshold:g} hidden success on average"
    return f"{'the mean of ' if metric.unit else ''}{metric_name(metric)} was {number(mean, unit=metric.unit)}"


def _change(hypothesis: Hypothesis) -> str:
    if hypothesis.kind == "interaction":
        return "one effect being another than the other"
    if hypothesis.open:
        return "a difference"
    article = "an" if hypothesis.direction == "increase" else "a"
    return f"{article} {hypothesis.direction}"


def _describe_arms(hypothesis: Hypothesis, verdict: Verdict, metric: Metric) -> str:
    if verdict.mean_control is None or verdict.mean_treatment is None or verdict.arms:
        return ""
    return (
        f" The mean {metric_name(metric)} was {number(verdict.mean_treatment, unit=metric.unit)} with "
        f"{setting(hypothesis, hypothesis.treatment)} and {number(verdict.mean_control, unit=metric.unit)} with "
        f"{value_alone(hypothesis, hypothesis.control)}."
    )
