"""What a planner's closing words say that no fact bears out: numbers it was never shown, verdicts nobody reached.

A number may be any rounding of a fact to the digits that are shown, as a share or per cent; a sign that is written must
be the fact's. Verdicts are held to the claims' ids by `studies.records.planner_words`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from research.planner.digest import Digest
from studies.records.planner_words import PlannerWords, contradicted

_NUMBER: Final = re.compile(
    r"(?<![\w.])(?P<sign>[-+\u2212]?)(?P<digits>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?P<exponent>e[-+]?\d+)?"
    r"(?P<share>\s*(?:%|percent\b|per cent\b|(?:percentage )?points?\b|pp\b))?(?!\w)",
    re.IGNORECASE,
)
_WHOLE: Final = 10.0
"""Facts from this size on may be rounded to a whole number."""


def voiced(by: str, text: str, digest: Digest) -> PlannerWords:
    """Return a planner's words with what in them is in no fact of the digest it was shown."""
    facts = tuple(_facts(digest.facts())) + _counts(digest)
    unfounded = (found.text for found in _numbers(text) if not any(found.may_be(fact) for fact in facts))
    wrong = contradicted(text, digest.every_verdict)
    return PlannerWords(by=by, text=text, unfounded=tuple(dict.fromkeys(unfounded)), contradicted=wrong)


@dataclass(frozen=True, slots=True)
class _Number:
    """A number as it is written."""

    text: str
    value: float
    step: float
    """One unit of the last digit that is shown."""
    signed: bool
    share: bool
    """Whether it is per cent, or points of a hundred."""

    def may_be(self, fact: float) -> bool:
        """Return whether it is the fact, rounded to the digits that are shown."""
        if self.signed and fact * self.value < 0:
            return False
        shown = abs(fact) * (100.0 if self.share else 1.0)
        if self.step >= 1 and not self.share and shown < _WHOLE:
            return shown == abs(self.value)
        return abs(shown - abs(self.value)) <= self.step / 2 * (1 + 1e-9)


def _numbers(text: str) -> Iterator[_Number]:
    for found in _NUMBER.finditer(text):
        digits, exponent = found["digits"].replace(",", ""), found["exponent"] or ""
        decimals = len(digits.partition(".")[2])
        sign = "-" if found["sign"] in ("-", "\u2212") else ""
        yield _Number(
            text=found[0].strip(),
            value=float(f"{sign}{digits}{exponent}"),
            step=float(f"1{exponent}") * 10.0**-decimals,
            signed=bool(found["sign"]),
            share=bool(found["share"]),
        )


def _facts(value: Any) -> Iterator[float]:
    """Yield every number in a JSON value, those in its texts too."""
    if isinstance(value, Mapping):
        for entry in value.values():
            yield from _facts(entry)
    elif isinstance(value, str):
        yield from (found.value / (100.0 if found.share else 1.0) for found in _numbers(value))
    elif isinstance(value, Sequence):
        for entry in value:
            yield from _facts(entry)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def _counts(digest: Digest) -> tuple[float, ...]:
    """Return what can be counted in the facts: arms, hypotheses, runs."""
    runs = sum(arm.n for arm in digest.arms)
    return float(len(digest.arms)), float(len(digest.hypotheses)), float(runs)
