"""Slots: what runs at once on a machine is never more than it carries. A row a slot, in the event log's database.

A slot is one of some equal parts of a machine's cores and memory: `cores 2/3` is the second third. Who makes so many
runs at once takes slots of so many parts, so that studies of small and of large models share a machine.

Promises. Of the slots of a machine that are held no two overlap, whichever studies, processes and installations of the
database hold them: each taking begins by writing the row of the machine, so that takings come one after the other.
Who finds no slot stands in the line of the machine, each study once. Slots are given in the order of the line: nobody
who comes later overtakes, and who has got one and wants another is behind those that wait. A row is taken from
somebody else only as it was seen, so that one that was held anew meanwhile stays.

Does not know. Whether what holds a slot still runs, or whether a study in the line lives: whoever takes says which rows
were left behind and whom the line passes over (`research.installation.slots`). Devices are no slots yet; the column
`slot` is a text, in which the name of one would have its place.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Final

import sqlalchemy as sa

from studies.log.event_log import EventLog
from studies.log.leases import make_table
from studies.records.errors import StoreError

_METADATA: Final = sa.MetaData()
_MACHINES: Final = sa.Table(
    "machines",
    _METADATA,
    sa.Column("host", sa.String(255), primary_key=True),
    sa.Column("turn", sa.Integer, nullable=False),
)
_SLOTS: Final = sa.Table(
    "slots",
    _METADATA,
    sa.Column("host", sa.String(255), primary_key=True),
    sa.Column("study", sa.String(64), primary_key=True),
    sa.Column("attempt", sa.String(255), primary_key=True),
    sa.Column("home", sa.Text, nullable=False),
    sa.Column("turn", sa.Integer, nullable=False),
    sa.Column("claim", sa.Integer, nullable=False),
    sa.Column("slot", sa.String(64), nullable=True),
    sa.UniqueConstraint("host", "slot"),
)


@dataclass(frozen=True, slots=True)
class Slot:
    """The `part`th, from 1, of `parts` equal parts of a machine."""

    part: int
    parts: int

    def __str__(self) -> str:
        return f"cores {self.part}/{self.parts}"

    @classmethod
    def read(cls, text: str) -> Slot:
        """Return the slot of this name; raise StoreError for another's."""
        found = re.fullmatch(r"cores ([1-9]\d*)/([1-9]\d*)", text)
        if found is None:
            raise StoreError(
                f"expected a slot such as 'cores 1/2' in the table `{_SLOTS.name}`; found {text[:80]!r}. A newer ajet "
                "may have written it; else remove the row"
            )
        return cls(int(found[1]), int(found[2]))

    def overlaps(self, other: Slot) -> bool:
        """Return whether the two have anything of the machine in common."""
        return self._begins < other._ends and other._begins < self._ends

    @property
    def _begins(self) -> Fraction:
        return Fraction(self.part - 1, self.parts)

    @property
    def _ends(self) -> Fraction:
        return Fraction(self.part, self.parts)


@dataclass(frozen=True, slots=True)
class SlotAsk:
    """What somebody wants a slot for: an attempt of a study in an installation, which runs `parts` at once."""

    study: str
    attempt: str
    home: str
    parts: int


@dataclass(frozen=True, slots=True)
class SlotRow:
    """A slot that is held, or, without one, a place in the line; `turn` is its number there.

    Each time its own study claims it again `claim` is another number.
    """

    host: str
    study: str
    attempt: str
    home: str
    turn: int
    claim: int
    slot: Slot | None


class Slots:
    """The slots of all machines of an event log's database, as seen from `host`. It creates the tables."""

    def __init__(self, log: EventLog, host: str) -> None:
        self.host = host
        self._log = log
        for table in (_MACHINES, _SLOTS):
            make_table(log, table)
        self._add_machine()

    def rows(self) -> list[SlotRow]:
        """Return all rows of all machines, by the turn at which they came."""
        with self._log.transaction("read") as connection:
            return _read(connection)

    def take(
        self,
        ask: SlotAsk,
        left: Collection[SlotRow] = (),
        passed_over: Collection[str] = (),
        beside: int = 0,
    ) -> SlotRow:
        """Return the row of a slot of this machine for an attempt; one without a slot where it has to wait in the line.

        Rows in `left` are of nobody any more and are removed, as far as they are still as they were seen. Studies in
        `passed_over` are not waited for. So many runs go `beside` that hold no slot, and are kept one free each. An
        attempt that holds one already keeps it.
        """
        with self._log.transaction("write") as connection:
            turn = self._next_turn(connection)
            _remove(connection, left)
            rows = [row for row in _read(connection) if row.host == self.host]
            before = _held(rows, ask) or _place(rows, ask)
            kept = None if before is None else before.slot
            slot = kept or grantable(rows, ask, passed_over, beside)
            came = turn if before is None else before.turn
            row = SlotRow(self.host, ask.study, ask.attempt, ask.home, came, turn, slot)
            if before is None:
                connection.execute(sa.insert(_SLOTS), _values(row))
            else:
                connection.execute(sa.update(_SLOTS).where(_this(before)).values(_values(row)))
        return row

    def give_back(self, rows: Collection[SlotRow]) -> None:
        """Free slots, or leave the line; rows that are not any more as they were seen stay."""
        with self._log.transaction("write") as connection:
            _remove(connection, rows)

    def _next_turn(self, connection: sa.Connection) -> int:
        """Return the next number of this machine; from here to the transaction's end nobody else changes its slots."""
        of_host = _MACHINES.c.host == self.host
        # The transaction begins with a write: SQLite lets no reader become a writer once somebody else wrote.
        connection.execute(sa.update(_MACHINES).where(of_host).values(turn=_MACHINES.c.turn + 1))
        return int(connection.execute(sa.select(_MACHINES.c.turn).where(of_host)).scalar_one())

    def _add_machine(self) -> None:
        if self._is_known():
            return
        try:
            with self._log.transaction("write") as connection:
                connection.execute(sa.insert(_MACHINES), {"host": self.host, "turn": 0})
        except StoreError:
            if not self._is_known():  # else somebody was faster
                raise

    def _is_known(self) -> bool:
        of_host = sa.select(_MACHINES).where(_MACHINES.c.host == self.host)
        with self._log.transaction("read") as connection:
            return connection.execute(of_host).first() is not None


def grantable(rows: Iterable[SlotRow], ask: SlotAsk, passed_over: Collection[str] = (), beside: int = 0) -> Slot | None:
    """Return the slot that an ask would be given now by a machine's rows; None where it has to wait."""
    known = list(rows)
    mine = _place(known, ask)
    waiting = (row for row in known if row.slot is None and row.study != ask.study and row.study not in passed_over)
    if any(mine is None or row.turn < mine.turn for row in waiting):
        return None
    taken = [row.slot for row in known if row.slot is not None]
    parts = (Slot(part, ask.parts) for part in range(1, ask.parts + 1))
    free = [slot for slot in parts if not any(slot.overlaps(other) for other in taken)]
    return free[0] if len(free) > beside else None


def _held(rows: Iterable[SlotRow], ask: SlotAsk) -> SlotRow | None:
    return next((row for row in rows if row.attempt == ask.attempt and row.slot is not None), None)


def _place(rows: Iterable[SlotRow], ask: SlotAsk) -> SlotRow | None:
    """Return the study's place in the line, whichever attempt it was for."""
    return next((row for row in rows if row.study == ask.study and row.slot is None), None)


def _remove(connection: sa.Connection, rows: Iterable[SlotRow]) -> None:
    for row in rows:
        connection.execute(sa.delete(_SLOTS).where(_this(row) & (_SLOTS.c.claim == row.claim)))


def _read(connection: sa.Connection) -> list[SlotRow]:
    ordered = sa.select(_SLOTS).order_by(_SLOTS.c.host, _SLOTS.c.turn)
    return [_row(dict(found)) for found in connection.execute(ordered).mappings()]


def _row(found: dict[str, Any]) -> SlotRow:
    return SlotRow(**{**found, "slot": None if found["slot"] is None else Slot.read(found["slot"])})


def _values(row: SlotRow) -> dict[str, Any]:
    return {**asdict(row), "slot": None if row.slot is None else str(row.slot)}


def _this(row: SlotRow) -> sa.ColumnElement[bool]:
    return (_SLOTS.c.host == row.host) & (_SLOTS.c.study == row.study) & (_SLOTS.c.attempt == row.attempt)
