"""Cases with one right answer: a flight, and how to tell from what landed whether the system saw through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from simlab.flights.flight import Flight, FlightResult, fly
from simlab.flights.records import FlownClaim, claims

Score = Literal["detected", "withheld", "fooled"]
"""`detected`: named in the system's own words. `withheld`: unnamed, but nothing false is claimed. `fooled`: else."""


@dataclass(frozen=True)
class TemptingCase:
    """One tempting situation. `build` gives its flight by a number, so that it can be repeated in other worlds."""

    name: str
    what: str
    """What is wrong, in a sentence."""
    tempting: str
    """The wrong answer it tempts to."""
    build: Callable[[int], Flight]
    wrong: Callable[[FlownClaim], bool]
    """Whether a claim is the wrong answer."""
    named_by: tuple[str, ...]
    """Words, any of which in the system's own sentences name the situation."""
    heard: bool = False
    """Whether the planner's notes and the report count as well: of what a topic asks for, no verdict can speak."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What came of a case."""

    case: str
    number: int
    score: Score
    verdicts: tuple[str, ...]
    said: str
    """The sentence that named it, or what the study ended with."""


def score(case: TemptingCase, number: int) -> CaseResult:
    """Fly a case and score it."""
    landed = fly(case.build(number))
    return judged(case, number, landed)


def judged(case: TemptingCase, number: int, landed: FlightResult) -> CaseResult:
    """Return the score of a flown case: a wrong claim is one unless the same verdict carries the warning."""
    wrong = [claim for claim in claims(landed) if case.wrong(claim)]
    naming = next((line for line in sentences(landed, case.heard) if any(word in line for word in case.named_by)), None)
    found: Score = "fooled" if wrong and naming is None else "detected" if naming is not None else "withheld"
    verdicts = [verdict for entry in landed.state.rounds for verdict in entry.verdicts]
    said = naming or landed.refused or (verdicts[-1].reason if verdicts else "")
    return CaseResult(case.name, number, found, tuple(verdict.verdict for verdict in verdicts), said[:400])


def sentences(landed: FlightResult, heard: bool = False) -> list[str]:
    """Return what the system says by itself: refusals, verdicts with their warnings, attempts and runs given up.

    With `heard`, also the planner's notes and the report, line by line.
    """
    state = landed.state
    said = [landed.refused or "", state.stopped_reason or ""]
    for verdict in (verdict for entry in state.rounds for verdict in (*entry.verdicts, *entry.superseded)):
        said += [verdict.reason, *verdict.violations, *(f"excluded {key}" for key in verdict.excluded)]
    for run in state.every_run.values():
        said += [f"{run.invalid[0]}: {run.invalid[1]}"] if run.invalid else []
        said += [f"{attempt.code}: {attempt.reason}" for attempt in run.attempts if attempt.status == "failed"]
    if heard:
        said += [act.note for act in state.planner_acts] + (landed.report or "").splitlines()
    return [line for line in said if line]
