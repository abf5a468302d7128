"""The threshold that a topic names: a share of hidden success that is to be reached, or below which the area counts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from research.errors import BadMetric
from research.metrics.words import GOAL, LENGTHS

_NUMBER = r"\d+(?:\.\d+)?\s*(?:%|percent\b|per cent\b)|0?\.\d+(?![\d%])"
_VERBS = (
    r"reach(?:es|ing)?|get(?:s|ting)?\s+to|hit(?:s|ting)?|achiev(?:e|es|ing)|attain(?:s|ing)?|pass(?:es|ing)?|"
    r"solv(?:e|es|ing)"
)
_BETWEEN = (
    rf"(?:(?:to|until|till|before|needed|required|it\s+takes|necessary|{_VERBS}|at|of|an?|the|threshold|hidden|success|"
    r"accuracy|score|rate)\s+)*"
)
_SOLVED = (
    r"(?:\s+(?:of\s+)?(?:(?:the|its|all)\s+)?(?:hidden\s+)?(?:success|accuracy|score|solved|tasks|games)"
    r"(?:\s+rate)?)*"
)
_TO = re.compile(
    rf"\s*\b(?:to|until|till|before|at|{_VERBS})\s+{_BETWEEN}(?P<share>{_NUMBER})"
    rf"(?P<more>(?:\s*(?:,|and|or|/|then)\s*(?:{_NUMBER}))*){_SOLVED}",
    re.IGNORECASE,
)
"""A threshold and what leads to it."""
_BELOW = re.compile(
    rf"\s*\b(?:below|under|up\s+to|cut(?:\s+off)?\s+at)\s+{_BETWEEN}(?P<share>{_NUMBER})(?P<more>){_SOLVED}", re.I
)
_AREA = re.compile(r"\b(?:areas?|auc|curves?)\b[^.?:;]{0,30}$", re.IGNORECASE)
"""What stands before `below 0.7`, where that bounds an area."""
_LED = re.compile(
    rf"(?:\b(?:to|until|before|needed|required|takes|{LENGTHS}|time|clock|seconds)|fast\w*|quick\w*|sooner|slow\w*|"
    r"\b(?:than|vs\.?|versus|or|and|against|beats?)\s+[\d.e+-]+)\s*$",
    re.IGNORECASE,
)
"""What stands before `to 0.7`, where that is a threshold; `faster than 3e-3 to 0.7` ends what is listed."""


@dataclass(frozen=True, slots=True)
class NamedThreshold:
    """A threshold that a topic names."""

    share: float
    said: str
    rest: str
    """The topic with `to` and a mark in its place."""
    reached: bool
    """Whether a verb says that it is to be reached."""


def named_threshold(topic: str) -> NamedThreshold | None:
    """Return the threshold that a topic names; None where it names none. Raises BadMetric for several."""
    bounds = (match for match in _BELOW.finditer(topic) if _AREA.search(topic[: match.start()]))
    found = next(bounds, None) or _TO.search(topic)
    if found is None:
        return None
    reached = re.search(_VERBS, found[0], re.IGNORECASE) is not None
    is_percent = not found["share"].startswith((".", "0.")) or found["share"][-1] in "%t"
    if not is_percent and not (reached or found.re is _BELOW or _LED.search(topic[: found.start()])):
        return None  # a value of a field, such as a temperature from 0.7 to 0.9
    if found["more"]:
        several = f"{found['share'].strip()}{found['more']}"
        raise BadMetric(f"expected one threshold; found {several!r}; ask for each by itself")
    share = float(re.sub(r"[^\d.]", "", found["share"])) / (100 if is_percent else 1)
    rest = f"{topic[: found.start()]} to {GOAL}{topic[found.end() :]}"
    return NamedThreshold(share, found[0].strip(), rest, reached)
