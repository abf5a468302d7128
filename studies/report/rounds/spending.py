"""The error ledgers of an inquiry as tables: what each round's tests might spend, and what it handed on."""

from __future__ import annotations

from dataclasses import dataclass

from studies.inquiry.ledger import ErrorLedger, LedgerEntry, Ledgers
from studies.log.study_state import StudyState
from studies.report.parts.parts import Cell, Table, cell, table
from studies.report.parts.wording import fine_percent, percent


@dataclass(frozen=True, slots=True)
class LedgerTable:
    """One ledger, round by round."""

    kind: str
    entries: Table


@dataclass(frozen=True, slots=True)
class LedgerSection:
    """Both ledgers of an inquiry, and what they promise."""

    promise: str
    tables: tuple[LedgerTable, ...]


def ledgers_now(state: StudyState) -> Ledgers:
    """Return the ledgers after the newest round that is over."""
    return state.ledgers.after(state.outcome) if _is_over(state) else state.ledgers


def locked_rounds(state: StudyState) -> int:
    """Return how many rounds came to a lock."""
    return sum(each.locked_design is not None for each in state.rounds)


def ledger_section(state: StudyState) -> LedgerSection:
    """Return both ledgers as they stand."""
    ledgers, locked = ledgers_now(state), locked_rounds(state)
    alpha = percent(ledgers.differences.alpha)
    promise = (
        f"The first lock allows {ledgers.differences.rounds} rounds. Over all of them, any false claim of a difference "
        f"has a probability of at most {alpha}, and any false claim of no difference as well. A round may spend its "
        "own part and what the round before handed on: all of its level where each of its comparisons ended in a claim "
        "of the kind, or none was tested, else nothing. Neither ledger pays for the other."
    )
    kinds = (("Claims of a difference", ledgers.differences), ("Claims of no difference", ledgers.equivalences))
    return LedgerSection(promise, tuple(LedgerTable(kind, _entries(ledger, locked)) for kind, ledger in kinds))


def _is_over(state: StudyState) -> bool:
    """Return whether the present round's claims got their last verdicts."""
    if state.design is None or state.ledgers.left == 0:
        return False
    return state.concluded_reason is not None or state.status == "judged"


def _entries(ledger: ErrorLedger, locked: int) -> Table:
    rows = [_row(entry, locked, last=entry.round == ledger.rounds) for entry in ledger.entries()]
    return table(("Round", "Own part", "Received", "Level", "Handed on"), rows, numeric=(1, 2, 3), cards=True)


def _row(entry: LedgerEntry, locked: int, *, last: bool) -> list[Cell]:
    handed = {True: "yes", False: "no", None: "not over" if entry.round <= locked else "not locked: nothing was spent"}
    said = "the last round" if last and entry.handed_on is not None else handed[entry.handed_on]
    return [
        cell(str(entry.round)), cell(fine_percent(entry.own)), cell(fine_percent(entry.received)),
        cell(fine_percent(entry.level)), cell(said),
    ]  # fmt: skip
