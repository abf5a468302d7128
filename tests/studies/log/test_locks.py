from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from studies import ControllerLeaseLost, EventLog, LeaseHeld, StoreError
from studies.log.locks import (
    ControllerLease,
    ControllerLeases,
    Holder,
    LeaseWatch,
    Slot,
    SlotRequest,
    SlotRow,
    Slots,
    find_free_slot,
    renew_in_background,
)
from tests.golden import assert_golden, refused
from tests.studies.processes import go, line, start

STUDY = "s-1"
TTL_S = 60.0
HERE = Holder.here(Path("/home-a"))


class Seconds:
    """A steady clock that a test moves; sleeping moves it. A host's clock is `offset` from the true one."""

    def __init__(self, now: float = 0.0, true: Seconds | None = None) -> None:
        self.now, self.true = now, true

    def __call__(self) -> float:
        return self.now + (0.0 if self.true is None else self.true.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Seconds:
    return Seconds(5000.0)


@pytest.fixture
def leases(log: EventLog, clock: Seconds) -> ControllerLeases:
    return ControllerLeases(log, ttl_s=TTL_S, clock=clock)


def elsewhere(host: str) -> Holder:
    return replace(HERE, host=host, boot=f"boot of {host}")


def never(seconds: float) -> None:
    raise AssertionError("expected nothing to be waited for")


@contextmanager
def taker(url: str) -> Iterator[subprocess.Popen[str]]:
    process = start("lease", url, STUDY, "/home-b")
    try:
        assert line(process) == "ready"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_of_processes_that_contend_one_wins_and_the_others_are_told_who(url: str) -> None:
    with ExitStack() as stack:
        takers = [stack.enter_context(taker(url)) for _ in range(3)]
        for process in takers:
            go(process)
        answers = {process.pid: line(process) for process in takers}
        (winner,) = (pid for pid, said in answers.items() if said == "held")
        holder = f"process {winner} on {HERE.host}"
        assert all(holder in said and "/home-b" in said for pid, said in answers.items() if pid != winner), answers


@pytest.mark.slow
def test_a_killed_holder_of_this_host_is_followed_at_once(url: str) -> None:
    with closing(EventLog(url)) as log, taker(url) as process:
        go(process)
        assert line(process) == "held"
        with pytest.raises(LeaseHeld, match=rf"{STUDY}; process {process.pid} on "):
            ControllerLeases(log).take(STUDY, HERE, sleep=never)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie, which holds no lease
        lease = ControllerLeases(log).take(STUDY, HERE, sleep=never)
        assert (lease.fencing_token, lease.believed) == (2, True)


@pytest.mark.parametrize("before", [elsewhere("far"), replace(HERE, boot="the boot before")], ids=["host", "boot"])
def test_a_silent_holder_that_cannot_be_seen_is_watched_for_the_ttl(
    leases: ControllerLeases, clock: Seconds, before: Holder
) -> None:
    told: list[str] = []
    assert leases.take(STUDY, before).fencing_token == 1  # and its host dies
    lease = leases.take(STUDY, HERE, told.append, clock.sleep)
    assert 5000 + TTL_S <= clock.now < 5000 + TTL_S + 5
    assert lease.fencing_token == 2
    assert_golden("\n".join(told).replace(f"process {before.pid} on {before.host}", "process PID on HOST"))


def test_a_holder_of_another_host_that_gives_a_sign_of_life_keeps_its_lease(
    leases: ControllerLeases, clock: Seconds
) -> None:
    far = leases.take(STUDY, elsewhere("far"))

    def later(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now >= 5050:
            far.renew()

    with pytest.raises(LeaseHeld, match=f"process {HERE.pid} on far"):
        leases.take(STUDY, HERE, sleep=later)
    assert clock.now < 5000 + TTL_S
    far.check()


def test_a_holder_whose_lease_was_taken_is_told_by_whom_and_stays_without(
    leases: ControllerLeases, clock: Seconds
) -> None:
    mine = leases.take(STUDY, HERE)
    clock.sleep(1000)  # this host sleeps, and far takes over
    leases.take(STUDY, elsewhere("far"), sleep=clock.sleep)
    for _ in range(2):
        with pytest.raises(ControllerLeaseLost, match=f"process {HERE.pid} on far .*ajet study watch {STUDY}"):
            mine.check()


def test_a_database_that_is_away_is_borne_until_somebody_else_may_have_the_lease(
    log: EventLog, leases: ControllerLeases, clock: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = leases.take(STUDY, HERE)
    present, failures = log.transaction, [0]

    def away(action: str) -> Any:
        if failures[0] > 0:
            failures[0] -= 1
            raise StoreError("the network is down")
        return present(action)

    monkeypatch.setattr(log, "transaction", away)
    failures[0] = 10
    clock.sleep(TTL_S - 1)
    mine.check()
    clock.sleep(1)
    with refused(ControllerLeaseLost, "60 s", "network is down", f"ajet study resume {STUDY}"):
        mine.check()
    failures[0] = 1  # a connection from before a sleep fails once
    mine.check()


def test_it_is_renewed_from_a_thread_while_it_is_kept(leases: ControllerLeases) -> None:
    with renew_in_background(leases.take(STUDY, HERE), every_s=0.01):
        deadline = time.monotonic() + 60
        while (row := leases.read(STUDY)) is None or row.beat < 4:
            assert time.monotonic() < deadline, row
    assert not [thread for thread in threading.enumerate() if thread.name == f"lease of {STUDY}"]


def test_a_log_from_before_there_were_leases_gets_the_table_only_from_who_drives(tmp_path: Path) -> None:
    with closing(EventLog(f"sqlite:///{tmp_path / 'events.db'}")) as log:

        def tables() -> set[str]:
            with log.transaction("read") as connection:
                return set(sa.inspect(connection).get_table_names())

        log.studies()
        assert tables() == {"events"}
        ControllerLeases(log).take(STUDY, HERE)
        assert tables() == {"events", "leases"}
        assert ControllerLeases(log).read("another") is None


def test_a_row_that_cannot_be_read_is_one_clear_line(log: EventLog) -> None:
    ControllerLeases(log).take(STUDY, HERE)
    with log.transaction("write") as connection:
        connection.execute(sa.text("update leases set holder = '{\"host\": 1}'"))
    with refused(StoreError, "holder"):
        ControllerLeases(log).read(STUDY)


Act = Callable[[], None]


def nothing() -> None: ...


class SlowLog(EventLog):
    """A database that takes `late_s` until it writes, and as long to answer; others act before and after it wrote."""

    def __init__(self, true: Seconds) -> None:
        super().__init__("sqlite://")
        self._true = true
        self.slow()

    def slow(self, late_s: float = 0.0, before: Act = nothing, after: Act = nothing) -> None:
        self.late_s, self.before, self.after = late_s, before, after

    @contextmanager
    def transaction(self, action: str) -> Iterator[sa.Connection]:
        late_s, before, after = self.late_s, self.before, self.after
        if action != "write":
            late_s, before, after = 0.0, nothing, nothing
        else:
            self.slow()
        self._true.sleep(late_s)
        before()
        with super().transaction(action) as connection:
            yield connection
        after()
        self._true.sleep(late_s)


HOSTS = st.integers(0, 2)
PAUSES = st.sampled_from([0.0, 10.0, 35.0, TTL_S])
LATE = st.sampled_from([0.0, 0.0, 25.0, 50.0])
ACTS = st.sampled_from(["nothing", "renewals", "a challenge"])


class Protocol(RuleBasedStateMachine):
    """Three hosts that cannot see one another's processes, a slow database, and any order of what they may do."""

    def __init__(self) -> None:
        super().__init__()
        self.true = Seconds()
        self.log = SlowLog(self.true)
        clocks = [Seconds(offset, self.true) for offset in (0.0, 1e6, -1e4)]
        self.leases = [ControllerLeases(self.log, ttl_s=TTL_S, clock=clock) for clock in clocks]
        self.held: list[tuple[int, ControllerLease]] = []
        self.wishes: dict[int, LeaseWatch] = {}

    @rule(host=HOSTS, pause=PAUSES)
    def a_host_tries_to_take(self, host: int, pause: float) -> None:
        self.true.sleep(pause)
        self._try(host)

    @rule(host=HOSTS, pause=st.sampled_from([TTL_S - 10, TTL_S]))
    def a_host_watches(self, host: int, pause: float) -> None:
        self._try(host)
        self.true.sleep(pause)
        self._try(host)

    @rule(host=HOSTS, taking=st.booleans(), late_s=LATE, before=ACTS, after=ACTS, pause=PAUSES)
    def others_act_while_the_database_is_slow(
        self, host: int, taking: bool, late_s: float, before: str, after: str, pause: float
    ) -> None:
        other = (host + 1) % 3
        acts = {"nothing": nothing, "renewals": self._all_renew, "a challenge": lambda: self._try(other)}
        self.log.slow(late_s, acts[before], acts[after])
        if taking:
            self._try(host)
        else:
            self._all_renew()
        self.log.slow()
        self.true.sleep(pause)
        self._try(other)

    @rule(holder=st.integers(0, 9), pause=PAUSES)
    def a_holder_renews(self, holder: int, pause: float) -> None:
        self.true.sleep(pause)
        for host, lease in self.held[-1 - holder :][:1]:
            self._renew(host, lease)

    @rule(holder=st.integers(0, 9))
    def a_renewal_is_done_and_its_answer_is_lost(self, holder: int) -> None:
        for host, lease in self.held[-1 - holder :][:1]:
            self.leases[host].beat(STUDY, lease.fencing_token)

    @rule(pause=PAUSES)
    def all_holders_check(self, pause: float) -> None:
        self.true.sleep(pause)
        for _, lease in self.held:
            with suppress(ControllerLeaseLost):
                lease.check()
                assert lease.believed

    @rule()
    def the_last_holder_gives_back(self) -> None:
        if self.held:
            self.held.pop()[1].give_back()

    @invariant()
    def at_most_one_believes_in_its_lease(self) -> None:
        believing = [(host, lease.fencing_token) for host, lease in self.held if lease.believed]
        assert len(believing) <= 1, believing

    def _try(self, host: int) -> None:
        wish = self.wishes.setdefault(host, LeaseWatch(self.leases[host], elsewhere(f"host-{host}")))
        try:
            lease = wish.try_take(STUDY)
        except LeaseHeld:
            self.wishes.pop(host, None)
            return
        if isinstance(lease, ControllerLease):
            self.held.append((host, lease))
            self.wishes.pop(host, None)

    def _all_renew(self) -> None:
        for host, lease in self.held:
            self._renew(host, lease)

    def _renew(self, host: int, lease: ControllerLease) -> None:
        stale = self._epoch(host) != lease.fencing_token
        try:
            lease.renew()
        except ControllerLeaseLost:
            assert self._epoch(host) != lease.fencing_token
        else:
            assert not stale, "a stale holder's renewal was taken"

    def _epoch(self, host: int) -> int:
        return self.leases[host].read(STUDY).fencing_token

    def teardown(self) -> None:
        self.log.close()


Protocol.TestCase.settings = settings(stateful_step_count=25)
TestProtocol = Protocol.TestCase


HOST = "machine"


@pytest.fixture
def shared(url: str) -> Iterator[EventLog]:
    with closing(EventLog(url)) as opened:
        yield opened


@pytest.fixture
def slots(shared: EventLog) -> Slots:
    return Slots(shared, HOST)


def ask(study: str, parts: int, attempt: str = "") -> SlotRequest:
    return SlotRequest(study, attempt or f"{study}-a1", "/home", parts)


def slots_of(rows: Sequence[SlotRow]) -> list[Slot]:
    return [row.slot for row in rows if row.slot is not None]


def fit(slots: Sequence[Slot]) -> bool:
    """Whether the slots share a machine without having anything of it twice."""
    apart = not any(one.overlaps(other) for one, other in combinations(slots, 2))
    return apart and sum((Fraction(1, slot.parts) for slot in slots), Fraction(0)) <= 1


@pytest.mark.slow
def test_processes_that_contend_share_the_machine_and_leave_nothing_free(url: str) -> None:
    parts = (2, 3, 4)
    processes = [start("slots", url, HOST, f"study-{count}", str(count)) for count in parts]
    try:
        assert [line(process) for process in processes] == ["ready"] * len(parts)
        for process in processes:
            go(process)
        said = [process.communicate()[0].split("\n") for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [lines[-2] for lines in said] == ["none"] * len(parts)
    got = [Slot.read(line) for lines in said for line in lines[:-2]]
    with closing(EventLog(url)) as shared:
        assert sorted(map(str, got)) == sorted(map(str, slots_of(Slots(shared, HOST).rows())))
        assert fit(got), got
        assert all(find_free_slot(Slots(shared, HOST).rows(), ask("new", count), [f"study-{n}" for n in parts]) is None
                   for count in parts)  # fmt: skip


def test_a_machine_that_cannot_be_written_down_is_said_at_once(
    shared: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = sa.exc.OperationalError("INSERT", {}, Exception("database is locked"))

    def refuse(connection: sa.Connection, statement: sa.Executable, *rest: object) -> None:
        if isinstance(statement, sa.Insert):
            raise locked

    Slots(shared, "another")
    with shared.transaction("read") as connection:
        sa.event.listen(connection.engine, "before_execute", refuse)
    with pytest.raises(StoreError, match="database is locked"):
        Slots(shared, "here")
    sa.event.remove(connection.engine, "before_execute", refuse)
    assert Slots(shared, "here").take(SlotRequest("s", "s-a1", "/home", 1)).slot == Slot(1, 1)


def test_a_study_stands_in_the_line_once_and_keeps_its_place_whichever_run_is_next(slots: Slots) -> None:
    held = slots.take(ask("s", 1))
    turns = [slots.take(ask("waits", 1, attempt)).turn for attempt in ("a1", "a2", "a1")]
    assert len(set(turns)) == 1
    assert slots.take(ask("later", 1)).turn > turns[0]
    slots.give_back([held])
    assert slots.take(ask("later", 1)).slot is None
    assert slots.take(ask("waits", 1, "a3")).slot == Slot(1, 1)


def test_studies_that_want_more_than_there_is_take_turns(slots: Slots) -> None:
    names = ("a", "b", "c")
    held = [slots.take(ask("a", 2, f"a{number}")) for number in range(2)]
    order = []
    for number in range(2, 14):
        for study in names:
            slots.take(ask(study, 2, f"{study}{number}"))
        slots.give_back([held.pop(0)])
        got = [row for study in names if (row := slots.take(ask(study, 2, f"{study}{number}"))).slot is not None]
        assert len(got) == 1
        held += got
        order.append(got[0].study)
    assert order == ["a", "b", "c"] * 4


def test_what_was_left_behind_is_taken_only_as_it_was_seen(slots: Slots) -> None:
    seen = slots.take(ask("left", 1))
    slots.take(ask("left", 1))  # its next controller claims it
    assert slots.take(ask("s", 1), left=[seen]).slot is None
    now = next(row for row in slots.rows() if row.study == "left")
    slots.give_back([seen])
    assert now in slots.rows()
    assert slots.take(ask("s", 1), left=[now]).slot == Slot(1, 1)


def test_a_slot_of_another_version_is_one_clear_line(shared: EventLog, slots: Slots) -> None:
    slots.take(ask("s", 1))
    with shared.transaction("write") as connection:
        connection.execute(sa.text("update slots set slot = 'moon 1'"))
    with pytest.raises(StoreError, match=r"'cores 1/2' .* found 'moon 1'"):
        slots.rows()


PARTS = st.integers(1, 5)


@given(taken=st.lists(PARTS, max_size=6), parts=PARTS)
def test_what_is_granted_fits_and_nothing_that_would_fit_alone_is_kept_back(taken: list[int], parts: int) -> None:
    rows: list[SlotRow] = []
    for number, count in enumerate(taken):
        if (slot := find_free_slot(rows, ask(f"s{number}", count))) is not None:
            rows.append(SlotRow(HOST, f"s{number}", "a", "/home", number, number, slot))
    granted = find_free_slot(rows, ask("new", parts))
    assert fit([*slots_of(rows), *([] if granted is None else [granted])])
    free = [Slot(part, parts) for part in range(1, parts + 1)]
    free = [slot for slot in free if fit([*slots_of(rows), slot])]
    assert (granted is not None) == bool(free)


@pytest.mark.parametrize("far", [False, True], ids=["its process lives", "out of sight"])
def test_a_controller_is_silent_after_its_ttl_without_a_beat_and_gone_then_where_it_cannot_be_seen(
    shared: EventLog, far: bool
) -> None:
    now = [0.0]
    leases, here = ControllerLeases(shared, ttl_s=60.0, clock=lambda: now[0]), Holder.here(Path())
    watch = LeaseWatch(leases, here)
    lease = leases.take("s", replace(here, host="far", boot="boot") if far else here)

    def seen(study: str = "s", after_s: float = 0.0) -> tuple[bool, bool]:
        now[0] += after_s
        return watch.is_gone(study), watch.is_silent(study)

    assert (seen("never"), seen()) == ((True, True), (False, False))
    assert seen(after_s=40.0) == (False, False)
    lease.renew()
    assert [seen(after_s=pause) for pause in (0.0, 59.0, 1.0)] == [(False, False), (False, False), (far, True)]
    lease.renew()
    assert seen() == (False, False)
    lease.give_back()
    assert seen() == (True, True)
