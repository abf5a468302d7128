"""What surprised in the rounds so far: where a locked expectation and the data part, as code sees it.

A prediction whose interval missed, a direction that was refuted, trainings that collapsed or broke down, what the
confound linter found in the runs, and measures that nobody asked for which say something else than a verdict. Each is a
reason to look, and no claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from studies.records.design import Hypothesis
from studies.records.verdict import Verdict

MOST_SHOWN: Final = 16
"""Surprises that are shown: the latest."""
_LONGEST: Final = 240


@dataclass(frozen=True, slots=True)
class Surprise:
    """One of them."""

    round: int
    claim: str
    """Id of the hypothesis; empty where the sentence names it."""
    what: str
    """In a sentence."""


def surprises(round: int, claim: Hypothesis, verdict: Verdict) -> Iterator[Surprise]:
    """Yield what surprised about one claim of a round."""
    for what in (*_of_the_claim(claim, verdict), *_of_the_runs(verdict)):
        yield Surprise(round, claim.id, shortened(what))


def shortened(what: str) -> str:
    """Return a sentence at a length that a digest has room for."""
    return what if len(what) <= _LONGEST else f"{what[: _LONGEST - 1]}…"


def _of_the_claim(claim: Hypothesis, verdict: Verdict) -> Iterator[str]:
    if verdict.verdict == "refuted" and not claim.open:
        yield f"{claim.direction} was claimed, and the opposite was found ({verdict.estimate:+.4g})"
    predicted = claim.prediction
    if verdict.within_prediction is False and verdict.estimate is not None:
        yield f"predicted {predicted.low:+.4g} to {predicted.high:+.4g}, found {verdict.estimate:+.4g}"


def _of_the_runs(verdict: Verdict) -> Iterator[str]:
    for rate in verdict.collapses:
        if rate.count:
            yield f"{rate.count} of {rate.of} trainings of {rate.arm} collapsed"
    for what, count in verdict.counted_as_worst.items():
        yield f"{what}: {count} counted with the worst value"
    yield from (f"the linter says: {line}" for line in verdict.violations)
