"""Leases (one controller a study) and slots (what a machine carries), in the log's database.

Lease: each renewal counts `beat` up. A holder trusts its lease for `ttl_s` from the *start* of its last renewal;
another process takes over only after seeing the same beat for `ttl_s` from the *end* of its first read. Each uses its
own clock, which runs on during sleep; clocks of two hosts are never compared. A dead holder of the same host is
detected at once. Taking over is one UPDATE that names the epoch and beat seen, so one of two wins, and the epoch only
grows. An append after a take-over is refused with HeadMoved (`studies.log.event_log`).

Slots: equal parts of a machine's cores and memory (`cores 2/3`), or of GPUs (`gpu 3 1/2`: half of device 3;
`gpu 0,1 1/1`: two whole ones). Those held never overlap, since each taking begins by writing the machine's row; of the
cores a run on a GPU has no slot. They are given in the order of a line for cores and one for GPUs, each study once. A
row is taken from somebody else only as it was seen. Which holders still live is for `research.installation.machine`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import psutil
import sqlalchemy as sa
from sqlalchemy.schema import CreateTable

from studies.errors import ControllerLeaseLost, LeaseHeld, StoreError
from studies.log.event_log import EventLog

TTL_S: Final = 60.0
"""Seconds that a lease lasts without a renewal."""
RENEW_S: Final = 15.0
"""Seconds between renewals: three may fail before another process may take over."""
WATCH_S: Final = 1.0
"""Seconds between two reads of a lease that somebody else holds."""
_TRIES: Final = 2
"""Renewals tried once the time is over: a connection from before a sleep may fail once."""
_JOIN_S: Final = 5.0
_ROUNDING_S: Final = 1.0
"""Seconds by which a process's start time may be off: kernels count it in ticks."""

_WAITS: Final = "gpu wanted "
"""How the column `slot` begins of a row in the line for GPUs."""

SteadyClock = Callable[[], float]

_METADATA: Final = sa.MetaData()
_LEASES: Final = sa.Table(
    "leases", _METADATA, sa.Column("study", sa.String(64), primary_key=True),
    sa.Column("holder", sa.Text, nullable=False), sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("beat", sa.Integer, nullable=False), sa.Column("ttl_s", sa.Float, nullable=False),
)  # fmt: skip
_MACHINES: Final = sa.Table(
    "machines", _METADATA, sa.Column("host", sa.String(255), primary_key=True),
    sa.Column("turn", sa.Integer, nullable=False),
)  # fmt: skip
_SLOTS: Final = sa.Table(
    "slots", _METADATA, sa.Column("host", sa.String(255), primary_key=True),
    sa.Column("study", sa.String(64), primary_key=True), sa.Column("attempt", sa.String(255), primary_key=True),
    sa.Column("home", sa.Text, nullable=False), sa.Column("turn", sa.Integer, nullable=False),
    sa.Column("claim", sa.Integer, nullable=False), sa.Column("slot", sa.Text, nullable=True),
    sa.UniqueConstraint("host", "slot"),
)  # fmt: skip


def prepare(log: EventLog, statements: Collection[sa.Executable]) -> None:
    """Execute what changes nothing the second time; again where another process did it at once and was faster."""
    for last in (False, True):
        try:
            with log.transaction("open") as connection:
                for statement in statements:
                    connection.execute(statement)
            return
        except StoreError:
            if last:
                raise


def suspend_aware_time() -> float:
    # On Linux CLOCK_MONOTONIC stands still in a sleep, and CLOCK_BOOTTIME does not; elsewhere there is only the first.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that drives a study. `boot` names one boot of a host and one namespace of process ids."""

    host: str
    boot: str
    pid: int
    started_s: float
    """Seconds from the host's boot to the process's start, which setting the host's clock does not change."""
    home: str

    @classmethod
    def here(cls, home: Path) -> Holder:
        return cls.of(os.getpid(), home)

    @classmethod
    def of(cls, pid: int, home: Path) -> Holder:
        try:  # the same for processes that see each other
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            boot += f" {os.readlink('/proc/self/ns/pid')}"
        except OSError:  # not Linux
            boot = f"{psutil.boot_time():.0f}"
        return cls(socket.gethostname(), boot, pid, _seconds_after_boot(psutil.Process(pid)), str(home))

    def shares_host(self, other: Holder) -> bool:
        return (self.host, self.boot) == (other.host, other.boot)

    def is_gone(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            another = abs(_seconds_after_boot(process) - self.started_s) > _ROUNDING_S
            return another or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:  # another user's
            return False

    def describe(self) -> str:
        return f"process {self.pid} on {self.host}"


def _seconds_after_boot(process: psutil.Process) -> float:
    return process.create_time() - psutil.boot_time()


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A study's lease as the database has it. A lease that was given back has a `ttl_s` of 0."""

    holder: Holder
    fencing_token: int
    beat: int
    ttl_s: float

    @property
    def given_back(self) -> bool:
        return self.ttl_s <= 0

    @property
    def mark(self) -> tuple[int, int]:
        """What is another one after every sign of life."""
        return self.fencing_token, self.beat


class ControllerLeases:
    """The leases of an event log's database. It creates the table, so only those who drive or end studies open it."""

    def __init__(self, log: EventLog, *, ttl_s: float = TTL_S, clock: SteadyClock = suspend_aware_time) -> None:
        self.ttl_s = ttl_s
        self.clock = clock
        self._log = log
        prepare(log, [CreateTable(_LEASES, if_not_exists=True)])

    def read(self, study: str) -> LeaseRow | None:
        with self._log.transaction("read") as connection:
            row = connection.execute(sa.select(_LEASES).where(_LEASES.c.study == study)).mappings().one_or_none()
        if row is None:
            return None
        try:
            holder = Holder(**json.loads(row["holder"]))
        except (TypeError, ValueError) as error:
            raise StoreError(
                f"expected a holder of a lease in the table `{_LEASES.name}`; found {row['holder'][:80]!r}. A newer "
                "ajet may have written it; else remove the row"
            ) from error
        return LeaseRow(holder, row["epoch"], row["beat"], row["ttl_s"])

    def take(
        self,
        study: str,
        me: Holder,
        note: Callable[[str], None] = lambda line: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> ControllerLease:
        """Return a study's lease; wait for the ttl of another host's holder, telling `note`; LeaseHeld if he lives."""
        watch, told = LeaseWatch(self, me), False
        while not isinstance(lease := watch.try_take(study), ControllerLease):
            if lease is not None and not told:
                note(
                    f"waiting up to {lease.ttl_s:.0f} s: study {study} was last driven by {lease.holder.describe()}, "
                    "and this host cannot see whether it lives"
                )
                told = True
            sleep(WATCH_S)
        return lease

    def take_over(self, study: str, seen: LeaseRow | None, me: Holder) -> ControllerLease | None:
        """Return the lease that was read, or that nobody had yet, as its new holder; None when it changed since."""
        began, token = self.clock(), 1 if seen is None else seen.fencing_token + 1
        values = {"holder": json.dumps(asdict(me), sort_keys=True), "epoch": token, "ttl_s": self.ttl_s}
        if seen is not None:
            as_seen = (_LEASES.c.epoch == seen.fencing_token) & (_LEASES.c.beat == seen.beat)
            if not self._update(study, as_seen, beat=seen.beat + 1, **values):
                return None
        else:
            try:
                with self._log.transaction("write") as connection:
                    connection.execute(sa.insert(_LEASES), {"study": study, "beat": 1, **values})
            except StoreError:
                if self.read(study) is None:
                    raise
                return None
        return ControllerLease(self, study, token, began)

    def beat(self, study: str, fencing_token: int) -> bool:
        return self._update(study, _LEASES.c.epoch == fencing_token, beat=_LEASES.c.beat + 1)

    def give_back(self, study: str, fencing_token: int) -> None:
        self._update(study, _LEASES.c.epoch == fencing_token, ttl_s=0.0, beat=_LEASES.c.beat + 1)

    def _update(self, study: str, as_seen: sa.ColumnElement[bool], **values: Any) -> bool:
        change = sa.update(_LEASES).where((_LEASES.c.study == study) & as_seen).values(values)
        with self._log.transaction("write") as connection:
            return connection.execute(change).rowcount == 1


class LeaseWatch:
    """Whose controllers live, as far as one process can see: of this host at once, of others by whether they beat."""

    def __init__(self, leases: ControllerLeases, me: Holder) -> None:
        self._leases = leases
        self._me = me
        self._beats: dict[str, tuple[tuple[int, int], float]] = {}

    def is_gone(self, study: str) -> bool:
        """Return whether nobody drives a study; a process of this host that is suspended, however long, does."""
        row = self._leases.read(study)
        if row is None or row.given_back:
            return True
        return row.holder.is_gone() if row.holder.shares_host(self._me) else self._is_still(study, row)

    def is_silent(self, study: str) -> bool:
        """Return whether nobody drives a study now, or he gave no sign of life for as long as his lease lasts."""
        row = self._leases.read(study)
        if row is None or row.given_back or self._is_still(study, row):
            return True
        return row.holder.shares_host(self._me) and row.holder.is_gone()

    def try_take(self, study: str) -> ControllerLease | LeaseRow | None:
        """Return the lease if it is free now, the row while its holder may be alive, None where another was faster.
        Raise LeaseHeld for a holder that is alive."""
        row = self._leases.read(study)
        if row is not None and not row.given_back:
            near = row.holder.shares_host(self._me)
            if not (near and row.holder.is_gone()):
                if near or self._beats.get(study, (row.mark, 0.0))[0] != row.mark:
                    raise LeaseHeld(
                        f"expected no other controller of study {study}; {row.holder.describe()} drives it, in "
                        f"{row.holder.home}. Wait for it, or stop it: ajet study stop {study}"
                    )
                if not self._is_still(study, row):
                    return row
        return self._leases.take_over(study, row, self._me)

    def _is_still(self, study: str, row: LeaseRow) -> bool:
        now = self._leases.clock()
        before, since = self._beats.get(study, (None, now))
        if before != row.mark:
            self._beats[study] = row.mark, now
            return False
        return now - since >= row.ttl_s


class ControllerLease:
    """The right to drive a study, as its holder has it. Safe to use from several threads."""

    def __init__(self, leases: ControllerLeases, study: str, fencing_token: int, renewed_at: float) -> None:
        self.study = study
        self.fencing_token = fencing_token
        self._leases = leases
        self._renewed_at = renewed_at
        self._lost: str | None = None

    @property
    def believed(self) -> bool:
        """Whether nobody else can hold it now, judged without the database."""
        return self._lost is None and self._leases.clock() - self._renewed_at < self._leases.ttl_s

    def renew(self) -> None:
        """Renew it for `ttl_s`; raise ControllerLeaseLost when another process has it, StoreError of the database."""
        began = self._leases.clock()
        if self._lost is None and not self._leases.beat(self.study, self.fencing_token):
            row = self._leases.read(self.study)
            by = "somebody who removed its row" if row is None else row.holder.describe()
            self._lost = (
                f"expected to hold the lease of study {self.study}; it was taken over by {by} while this controller "
                f"gave no sign of life. This one ends, runs go on under the other: ajet study watch {self.study}"
            )
        if self._lost is not None:
            raise ControllerLeaseLost(self._lost)
        self._renewed_at = max(self._renewed_at, began)

    def check(self) -> None:
        """Return if it is held, or (the machine slept) can be renewed; ControllerLeaseLost else: the holder stops."""
        away: StoreError | None = None
        for _ in range(_TRIES):
            if self.believed:
                return
            try:
                self.renew()
            except StoreError as error:
                away = error
        if not self.believed:
            raise ControllerLeaseLost(
                f"the lease of study {self.study} could not be renewed for {self._leases.ttl_s:.0f} s and more, so "
                f"another controller may have it ({away or 'the database answers too late'}). This one ends; runs that "
                f"were started go on. Then: ajet study resume {self.study}"
            ) from away

    def give_back(self) -> None:
        """Free it at once for the next process; it is no longer held."""
        self._lost = self._lost or f"the lease of study {self.study} was given back"
        self._leases.give_back(self.study, self.fencing_token)


@contextmanager
def renew_in_background(lease: ControllerLease, every_s: float = RENEW_S) -> Iterator[ControllerLease]:
    """Renew a lease from a thread inside the block, and free it at the end."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(every_s):
            try:
                lease.renew()
            except ControllerLeaseLost:
                return  # the driver's next check says so
            except StoreError:
                continue  # away for a while; `ControllerLease.check` says when it was too long

    thread = threading.Thread(target=renew, name=f"lease of {lease.study}", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        over.set()
        thread.join(_JOIN_S)
        with suppress(StoreError):  # else the next one finds this process gone, or sees no beat
            lease.give_back()


@dataclass(frozen=True, slots=True)
class Slot:
    """The `part`th, from 1, of `parts` equal parts of some devices, by their ids, or without any of the cores."""

    part: int
    parts: int
    devices: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"gpu {','.join(self.devices)}" if self.devices else "cores"
        return f"{where} {self.part}/{self.parts}"

    @classmethod
    def read(cls, text: str) -> Slot:
        found = re.fullmatch(r"(?:cores|gpu (\S+)) ([1-9]\d*)/([1-9]\d*)", text)
        if found is None:
            raise StoreError(
                f"expected a slot such as 'cores 1/2' in the table `{_SLOTS.name}`; found {text[:80]!r}. A newer ajet "
                "may have written it; else remove the row"
            )
        return cls(int(found[2]), int(found[3]), tuple(found[1].split(",")) if found[1] else ())

    def overlaps(self, other: Slot) -> bool:
        same = self.devices == other.devices or not {*self.devices}.isdisjoint(other.devices)
        begins, ends = Fraction(self.part - 1, self.parts), Fraction(self.part, self.parts)
        return same and begins < Fraction(other.part, other.parts) and Fraction(other.part - 1, other.parts) < ends


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """What somebody wants a slot for: an attempt of a study in an installation. It is one of `parts` of the cores; with
    `devices`, one of `parts` of one of these, or so many (`each`) whole ones."""

    study: str
    attempt: str
    home: str
    parts: int
    devices: tuple[str, ...] = ()
    each: int = 1


@dataclass(frozen=True, slots=True)
class SlotRow:
    """A slot that is held, or, without one, place `turn` in a line; each claim by its study has another `claim`."""

    host: str
    study: str
    attempt: str
    home: str
    turn: int
    claim: int
    slot: Slot | None
    for_gpu: bool = False
    """In which line it waits, without a slot."""


class Slots:
    """The slots of all machines of an event log's database, as seen from `host`. It creates the tables."""

    def __init__(self, log: EventLog, host: str) -> None:
        self.host = host
        self._log = log
        new = sa.select(sa.literal(host), sa.literal(0)).where(~sa.exists().where(_MACHINES.c.host == host))
        tables = [CreateTable(table, if_not_exists=True) for table in (_MACHINES, _SLOTS)]
        prepare(log, [*tables, sa.insert(_MACHINES).from_select(["host", "turn"], new)])

    def rows(self) -> list[SlotRow]:
        with self._log.transaction("read") as connection:
            return _read_slots(connection)

    def take(self, ask: SlotRequest, left: Collection[SlotRow] = (), passed_over: Collection[str] = ()) -> SlotRow:
        """Return the row of a slot of this machine for an attempt; one without a slot where it has to wait in the line.
        Rows in `left` are of nobody any more and are removed; studies in `passed_over` are not waited for."""
        here = _MACHINES.c.host == self.host
        with self._log.transaction("write") as connection:
            # A write first: SQLite lets no reader become a writer once somebody else wrote, and from here to the
            # transaction's end nobody else changes this machine's slots.
            connection.execute(sa.update(_MACHINES).where(here).values(turn=_MACHINES.c.turn + 1))
            turn = int(connection.execute(sa.select(_MACHINES.c.turn).where(here)).scalar_one())
            _remove_slots(connection, left)
            rows = [row for row in _read_slots(connection) if row.host == self.host]
            held = (row for row in rows if row.attempt == ask.attempt and row.slot is not None)
            before = next(held, None) or _find_queued(rows, ask)
            slot = (before.slot if before else None) or find_free_slot(rows, ask, passed_over)
            came = before.turn if before else turn
            for_gpu = slot is None and bool(ask.devices)
            row = SlotRow(self.host, ask.study, ask.attempt, ask.home, came, turn, slot, for_gpu)
            text = f"{_WAITS}{turn}" if for_gpu else None  # no two rows of a host may have one
            values = {**asdict(row), "slot": str(slot) if slot else text}
            del values["for_gpu"]
            if before is None:
                connection.execute(sa.insert(_SLOTS), values)
            else:
                connection.execute(sa.update(_SLOTS).where(_match_slot(before)).values(values))
        return row

    def give_back(self, rows: Collection[SlotRow]) -> None:
        """Free slots, or leave the line; rows that are not any more as they were seen stay."""
        with self._log.transaction("write") as connection:
            _remove_slots(connection, rows)


def find_free_slot(rows: Iterable[SlotRow], ask: SlotRequest, passed_over: Collection[str] = ()) -> Slot | None:
    """Return the slot that an ask would be given now by a machine's rows; None where it has to wait."""
    known = list(rows)
    mine = _find_queued(known, ask)
    waiting = (row for row in known if row.slot is None and row.study != ask.study and row.study not in passed_over)
    if any(row.for_gpu == bool(ask.devices) and (mine is None or row.turn < mine.turn) for row in waiting):
        return None
    taken = [row.slot for row in known if row.slot is not None]

    def is_free(slot: Slot) -> bool:
        return not any(slot.overlaps(other) for other in taken)

    if ask.each > 1:
        whole = [device for device in ask.devices if is_free(Slot(1, 1, (device,)))][: ask.each]
        return Slot(1, 1, tuple(whole)) if len(whole) == ask.each else None
    places: list[tuple[str, ...]] = [(device,) for device in ask.devices] or [()]  # a device of its own first
    every = (Slot(part, ask.parts, at) for part in range(1, ask.parts + 1) for at in places)
    return next(filter(is_free, every), None)


def _find_queued(rows: Iterable[SlotRow], ask: SlotRequest) -> SlotRow | None:
    return next((row for row in rows if row.study == ask.study and row.slot is None), None)


def _read_slots(connection: sa.Connection) -> list[SlotRow]:
    rows = connection.execute(sa.select(_SLOTS).order_by(_SLOTS.c.host, _SLOTS.c.turn)).mappings()
    return [
        SlotRow(**{**row, "slot": None if waits or row["slot"] is None else Slot.read(row["slot"])}, for_gpu=waits)
        for row in rows
        for waits in [(row["slot"] or "").startswith(_WAITS)]
    ]


def _remove_slots(connection: sa.Connection, rows: Iterable[SlotRow]) -> None:
    for row in rows:
        connection.execute(sa.delete(_SLOTS).where(_match_slot(row) & (_SLOTS.c.claim == row.claim)))


def _match_slot(row: SlotRow) -> sa.ColumnElement[bool]:
    return (_SLOTS.c.host == row.host) & (_SLOTS.c.study == row.study) & (_SLOTS.c.attempt == row.attempt)
