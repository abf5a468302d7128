"""Which metrics a topic names, which of them its runs are judged by, and the question that is left.

Judged is the first that is named, or the one behind `by` (`by area under the curve`); of the others there is no verdict
(`research.metrics.beside`). What the words say of better and worse is left in their place, so that the question is
still one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from research.errors import BadMetric
from research.metrics.asked import AskedMetric
from research.metrics.thresholds import NamedThreshold, named_threshold
from research.metrics.words import GOAL, SPEED, AskingWords, environment_said, rows
from studies.metrics.kinds.success import Success

_NOT_OURS = re.compile(r"\b(?:reward|entropy|mode|policy)[- ]collaps\w+", re.IGNORECASE)
"""What collapses otherwise than a training does."""
_BY = re.compile(
    r"\b(?:by|in\s+terms\s+of|measured\s+(?:by|in)|judged\s+(?:by|on)|according\s+to|regarding)\s+(?:the\s+|its\s+)?$",
    re.IGNORECASE,
)
"""What stands before the metric that somebody wants runs to be judged by."""
_JOINED = re.compile(r"\b(?:and|or|but|while|yet|without|at\s+the\s+(?:cost|expense)|although|though)\b|[,;]", re.I)
_AMOUNT = re.compile(
    r"(?<![\w.])(?:\d+(?:\.\d+)?\s*(?:%|percent\b|per cent\b|x\b|times\b|-?fold\b)|twice\b|thrice\b|half\b|"
    r"(?:two|three|four|five|ten)\s+times\b)\s+",
    re.IGNORECASE,
)
_COST_OF = re.compile(r"\bat\s+the\s+(?:cost|expense|price)\s+of\s+(?:the\s+|its\s+|an?\s+)?$", re.IGNORECASE)
_UNUSED = re.compile(rf"\s+to\s+{GOAL}")


@dataclass(frozen=True, slots=True)
class ReadMetric:
    """What a topic says of its metric."""

    asked: AskedMetric
    question: str
    """The topic, with words for better, best, worse or neither in the place of what names the metric, and without what
    names others."""
    others: tuple[AskedMetric, ...] = ()
    """What else it names, in its order."""


@dataclass(frozen=True, slots=True)
class _NamedBy:
    """Words of a topic that ask for a metric."""

    row: AskingWords
    match: re.Match[str]

    @property
    def at(self) -> tuple[int, int]:
        return self.match.span()


def metric_in(topic: str, judged: str = "") -> ReadMetric | None:
    """Return the metric that a topic asks for; None where it names none.

    Where it names the kind `judged`, or another was asked for by that, its question is read as one about it. Raises
    BadMetric for several thresholds, and for words that say by how much.
    """
    goal = named_threshold(topic)
    text = topic if goal is None else goal.rest
    found = _found(text, goal is not None)
    if not any(entry.row.kind in SPEED for entry in found) and goal is not None and judged not in SPEED:
        text, goal = topic, None
        found = _found(text, of_goal=False)
    named = _named(found)
    if not named:
        return None
    _require_no_amount(text)
    kinds = list(dict.fromkeys(entry.row.kind for entry in named))
    behind = next((entry.row.kind for entry in named if _BY.search(text[: entry.at[0]])), kinds[0])
    chosen = judged if judged in kinds else behind
    usual = [entry for entry in found if entry.row.rank == "usual" and _is_apart(text, entry, named)]
    asked = {kind: _asked(kind, [entry for entry in found if entry.row.kind == kind], goal) for kind in kinds}
    if usual and chosen != Success.name:
        asked.setdefault(Success.name, _asked(Success.name, usual, None))
    others = tuple(metric for kind, metric in asked.items() if kind != chosen)
    return ReadMetric(asked[chosen], _question(text, chosen, [*named, *_ways(found), *usual]), others)


def without_metric(topic: str, asked: AskedMetric | None) -> str:
    """Return a topic with the words that ask for metrics replaced by what they say of better and worse."""
    if asked is None:
        return topic
    said = metric_in(topic, asked.kind)
    if said is not None:
        return said.question
    goal = named_threshold(topic)
    return topic if goal is None or asked.kind not in SPEED else _UNUSED.sub("", goal.rest)


def _found(text: str, of_goal: bool) -> list[_NamedBy]:
    """Return the words that ask for metrics, in their order; of those that overlap the first, and the longest."""
    others = [found.span() for found in _NOT_OURS.finditer(text)]
    every = [
        _NamedBy(row, match)
        for row in rows()
        if of_goal or not row.of_goal
        for match in row.pattern.finditer(text)
        if not any(start < match.end() and match.start() < end for start, end in others)
    ]
    taken: list[_NamedBy] = []
    for entry in sorted(every, key=lambda entry: (entry.at[0], -entry.at[1])):
        if not taken or entry.at[0] >= taken[-1].at[1]:
            taken.append(entry)
    return taken


def _named(found: Sequence[_NamedBy]) -> list[_NamedBy]:
    """Return what names a metric: words such as `faster` where no other metric of speed is named."""
    strong = [entry for entry in found if entry.row.rank == "named"]
    of_speed = any(entry.row.kind in SPEED for entry in strong)
    return [entry for entry in found if entry in strong or (entry.row.rank == "speed" and not of_speed)]


def _ways(found: Sequence[_NamedBy]) -> Iterator[_NamedBy]:
    """Yield the words that say which way a metric of speed is to go, which others name."""
    return (entry for entry in found if entry.row.rank == "speed" and entry not in _named(found))


def _is_apart(text: str, usual: _NamedBy, named: Sequence[_NamedBy]) -> bool:
    """Return whether what is compared anyhow is named beside another metric: `solves more, and learns faster`."""
    between = (text[min(usual.at[1], entry.at[1]) : max(usual.at[0], entry.at[0])] for entry in named)
    return all(_JOINED.search(words) for words in between)


def _asked(kind: str, found: Sequence[_NamedBy], goal: NamedThreshold | None) -> AskedMetric:
    of = next((environment_said(name) for entry in found if (name := entry.match.groupdict().get("of"))), "")
    words = [" ".join(entry.match[0].split()) for entry in found]
    at_least = next((entry.row.threshold for entry in found), None)
    if goal is not None and kind in SPEED:
        at_least = goal.share
        words = [text.replace(f"to {GOAL}", goal.said) for text in words]
        words += [goal.said] if not any(goal.said in text for text in words) else []
    return AskedMetric(kind, at_least, of, ", ".join(dict.fromkeys(words)))


def _question(text: str, chosen: str, found: Sequence[_NamedBy]) -> str:
    """Return the text with what the words say of the chosen metric, and nothing where they are of another."""
    for entry in sorted(found, key=lambda entry: entry.at, reverse=True):
        ours = entry.row.kind == chosen or (entry.row.rank == "speed" and chosen in SPEED)
        before = text[: entry.at[0]]
        text = (before + entry.row.says(entry.match) if ours else _COST_OF.sub("", before)) + text[entry.at[1] :]
    return _UNUSED.sub("", text)


def _require_no_amount(text: str) -> None:
    """Raise BadMetric for a topic that says by how much: the smallest difference that matters is a flag's."""
    for amount in _AMOUNT.finditer(text):
        row = next((row for row in rows() if row.rank != "usual" and row.pattern.match(text, amount.end())), None)
        if row is not None:
            said = text[amount.start() : row.pattern.match(text, amount.end()).end()]  # type: ignore[union-attr]
            raise BadMetric(
                f"expected a question without an amount; found {said!r}; leave the amount out, and say the smallest "
                "difference that matters in the metric's unit, --effect (`ajet metric list`)"
            )
