"""The data of an inquiry's figures: each round's claims, and what each round's tests might spend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from studies.inquiry.ledger import ErrorLedger, Ledgers
from studies.log.study_state import StudyState
from studies.records.design import Design, Hypothesis
from studies.report.parts.deciding_interval import DecidingInterval, deciding_interval
from studies.report.parts.wording import compared, label, metric_axis


@dataclass(frozen=True, slots=True)
class ClaimEffect:
    """One claim of a round, and the difference that its runs showed."""

    name: str
    label: str
    estimate: float | None
    observed: DecidingInterval | None
    margin: float | None
    """Differences within it to both sides of zero do not matter; None where the lock names none."""


@dataclass(frozen=True, slots=True)
class Effects:
    """The claims of all rounds that were judged by one metric, in the order of the rounds."""

    items: tuple[ClaimEffect, ...]
    measured: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class LevelBar:
    """The level of one round in one ledger, in parts."""

    round: int
    own: float
    received: float
    asked: bool
    """Whether the round was locked; the level of one that was not is what it would have had."""


@dataclass(frozen=True, slots=True)
class LevelBars:
    """The rounds of one ledger, up to the most that there could be."""

    kind: str
    bars: tuple[LevelBar, ...]


def claim_effects(rounds: Sequence[StudyState]) -> tuple[Effects, ...]:
    """Return the judged claims of all rounds, apart by the metric that they were judged by."""
    found: dict[str, list[ClaimEffect]] = {}
    units: dict[str, str] = {}
    for state in rounds:
        if state.design is not None:
            axis = metric_axis(state.design.metric)
            units[axis] = state.design.metric.unit
            found.setdefault(axis, []).extend(_claims(state, state.design))
    return tuple(Effects(tuple(items), axis, units[axis]) for axis, items in found.items() if items)


def _claims(state: StudyState, design: Design) -> Iterator[ClaimEffect]:
    for claim in design.hypotheses:
        if (verdict := state.verdict_on(claim.id)) is not None:
            yield ClaimEffect(
                _named(state, design, claim), label(claim, verdict), verdict.estimate,
                deciding_interval(design, verdict), design.equivalence_margin,
            )  # fmt: skip


def _named(state: StudyState, design: Design, claim: Hypothesis) -> str:
    return f"Round {state.round}: {compared(claim)}, in {design.environment}"


def level_bars(ledgers: Ledgers, locked: int) -> tuple[LevelBars, ...]:
    """Return the levels of both ledgers as they stood; `locked` is how many rounds came to a lock."""
    return (
        LevelBars("claims of a difference", tuple(_bars(ledgers.differences, locked))),
        LevelBars("claims of no difference", tuple(_bars(ledgers.equivalences, locked))),
    )


def _bars(ledger: ErrorLedger, locked: int) -> Iterator[LevelBar]:
    entries = ledger.entries()
    yield from (LevelBar(entry.round, entry.own, entry.received, entry.round <= locked) for entry in entries)
    for ahead, level in enumerate(ledger.could_have()[1:], start=len(entries) + 1):
        yield LevelBar(ahead, level, 0.0, asked=False)
