"""How a report says things: numbers, durations, times and, above all, verdicts, in words bound to the rules.

The ladder of a verdict's words is fixed here: *supported*, *refuted*, *inconclusive* (which is "no evidence of",
never "no effect"), *invalid*. Nothing is rounded into significance: differences keep three decimals and their sign.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from studies.records.design import CONFIGURATION, Hypothesis, Metric
from studies.records.verdict import Verdict
from studies.report.parts.deciding_interval import DecidingInterval

MINUS: Final = "\N{MINUS SIGN}"
NONE: Final = "–"
LABELS: Final = {
    "supported": "Supported",
    "refuted": "Refuted",
    "equivalent": "Equivalent",
    "inconclusive": "Inconclusive",
    "invalid": "Invalid",
}


def number(value: float | None, digits: int = 3) -> str:
    """Return a value with a true minus sign; large ones with four significant digits; a dash for None."""
    if value is None:
        return NONE
    text = f"{value:.{digits}f}" if abs(value) < 100 else f"{value:.4g}"
    return text.replace("-", MINUS)


def signed(value: float | None, digits: int = 3) -> str:
    """Return a difference with its sign always shown."""
    if value is None:
        return NONE
    text = f"{value:+.{digits}f}" if abs(value) < 100 else f"{value:+.4g}"
    return text.replace("-", MINUS)


def span(low: float | None, high: float | None) -> str:
    """Return an interval of differences: `+0.030 to +0.210`."""
    return NONE if low is None or high is None else f"{signed(low)} to {signed(high)}"


def true_minus(text: str) -> str:
    """Return a text in which the hyphen before a number is a minus sign."""
    return re.sub(r"(?<!\w)-(?=\d)", MINUS, text)


def p_value(value: float | None) -> str:
    """Return a p value, never as an exact zero."""
    if value is None:
        return NONE
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def percent(share: float) -> str:
    """Return a share as a percentage without needless digits: `95 %`."""
    return f"{share * 100:.6g} %"


def plural(count: int, noun: str) -> str:
    """Return `1 run`, `2 runs`; a noun that ends in `y` takes `ies`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"


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
    """Return an event's time for people: `2031-03-04 09:30:07 UTC`."""
    return datetime.fromisoformat(ts).strftime("%Y-%m-%d %H:%M:%S UTC")


def value_of(value: Any) -> str:
    """Return a job field's value as it stands in a job: JSON, text without quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def setting(hypothesis: Hypothesis, value: Any) -> str:
    """Return what an arm sets by a hypothesis: `group_size = 16`, or each field of a configuration."""
    if hypothesis.variable != CONFIGURATION:
        return f"{hypothesis.variable} = {value_of(value)}"
    return ", ".join(f"{name} = {value_of(entry)}" for name, entry in value.items())


def compared(hypothesis: Hypothesis) -> str:
    """Return the two settings a hypothesis compares: `group_size 16 against 4`."""
    if hypothesis.variable == CONFIGURATION:
        return f"{setting(hypothesis, hypothesis.treatment)} against {setting(hypothesis, hypothesis.control)}"
    return f"{hypothesis.variable} {value_of(hypothesis.treatment)} against {value_of(hypothesis.control)}"


def value_alone(hypothesis: Hypothesis, value: Any) -> str:
    """Return a value beside one whose variable was named: `4`, or the whole of a configuration."""
    return setting(hypothesis, value) if hypothesis.variable == CONFIGURATION else value_of(value)


def command_line(command: Any) -> str:
    """Return the command a study was started with as one shell line."""
    if isinstance(command, Sequence) and not isinstance(command, str):
        return shlex.join(str(part) for part in command)
    return str(command)


def one_line(text: str) -> str:
    """Return a text with every run of white space made one space."""
    return " ".join(text.split())


def metric_name(metric: Metric) -> str:
    """Return the metric's name for axes and headings."""
    return "hidden success" if metric.key == "hidden/success" else metric.key


def finding(hypothesis: Hypothesis, verdict: Verdict, metric: Metric, interval: DecidingInterval | None) -> str:
    """Return the verdict as one sentence of numbers with the one interval that decided it, without its label."""
    if verdict.verdict == "invalid" or verdict.estimate is None:
        return true_minus(verdict.reason) + _arms_said(hypothesis, verdict, metric)
    lead = {
        "supported": "",
        "refuted": "the difference lies on the other side of zero. ",
        "equivalent": f"the difference lies{_margin(verdict)}: {_small(verdict)}. ",
        "inconclusive": f"no evidence of {_change(hypothesis)}. ",
    }[verdict.verdict]
    return lead + _comparison(hypothesis, verdict, metric, interval)


def _comparison(hypothesis: Hypothesis, verdict: Verdict, metric: Metric, interval: DecidingInterval | None) -> str:
    with_treatment = f"with {setting(hypothesis, hypothesis.treatment)}"
    ends = (
        "no interval exists"
        if interval is None
        else f"{percent(interval.level)} interval {span(interval.low, interval.high)}"
    )
    text = (
        f"{with_treatment}, {_outcome(verdict.mean_treatment, metric)}, against {number(verdict.mean_control)} with "
        f"{value_alone(hypothesis, hypothesis.control)} (difference {signed(verdict.estimate)}, {ends}, "
        f"n = {verdict.n_treatment} + {verdict.n_control})."
    )
    return text if verdict.verdict == "supported" else text[0].upper() + text[1:]


def _outcome(mean: float | None, metric: Metric) -> str:
    if metric.key == "hidden/success":
        return f"runs solved {number(mean)} of the hidden tasks"
    return f"{metric.key} was {number(mean)}"


def _margin(verdict: Verdict) -> str:
    found = verdict.equivalence
    if found is None:
        return " within the margin"
    return f" within ±{number(found.margin)}"


def _small(verdict: Verdict) -> str:
    return "smaller than what matters, and not zero" if verdict.nonzero else "none that matters"


def _change(hypothesis: Hypothesis) -> str:
    article = "an" if hypothesis.direction == "increase" else "a"
    return f"{article} {hypothesis.direction}"


def _arms_said(hypothesis: Hypothesis, verdict: Verdict, metric: Metric) -> str:
    if verdict.mean_control is None or verdict.mean_treatment is None:
        return ""
    return (
        f" The mean {metric_name(metric)} was {number(verdict.mean_treatment)} with "
        f"{setting(hypothesis, hypothesis.treatment)} and {number(verdict.mean_control)} with "
        f"{value_alone(hypothesis, hypothesis.control)}."
    )
