from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from studies import EventLog, StoreError
from studies.log.locks import ControllerLeases, Holder, LeaseWatch, Slot, SlotRequest, SlotRow, Slots, find_free_slot
from tests.studies.processes import go, line, start

HOST = "machine"


@pytest.fixture
def log(url: str) -> Iterator[EventLog]:
    with closing(EventLog(url)) as opened:
        yield opened


@pytest.fixture
def slots(log: EventLog) -> Slots:
    return Slots(log, HOST)


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
    with closing(EventLog(url)) as log:
        assert sorted(map(str, got)) == sorted(map(str, slots_of(Slots(log, HOST).rows())))
        assert fit(got), got
        assert all(find_free_slot(Slots(log, HOST).rows(), ask("new", count), [f"study-{n}" for n in parts]) is None
                   for count in parts)  # fmt: skip


def test_a_machine_that_cannot_be_written_down_is_said_at_once(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = sa.exc.OperationalError("INSERT", {}, Exception("database is locked"))

    def refuse(connection: sa.Connection, statement: sa.Executable, *rest: object) -> None:
        if isinstance(statement, sa.Insert):
            raise locked

    Slots(log, "another")
    with log.transaction("read") as connection:
        sa.event.listen(connection.engine, "before_execute", refuse)
    with pytest.raises(StoreError, match="database is locked"):
        Slots(log, "here")
    sa.event.remove(connection.engine, "before_execute", refuse)
    assert Slots(log, "here").take(SlotRequest("s", "s-a1", "/home", 1)).slot == Slot(1, 1)


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


def test_a_slot_of_another_version_is_one_clear_line(log: EventLog, slots: Slots) -> None:
    slots.take(ask("s", 1))
    with log.transaction("write") as connection:
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


@pytest.mark.parametrize("far", [False, True], ids=["a process that lives may go on", "nobody sees whether it lives"])
def test_a_controller_is_silent_after_its_ttl_without_a_beat_and_gone_then_where_it_cannot_be_seen(
    log: EventLog, far: bool
) -> None:
    now = [0.0]
    leases, here = ControllerLeases(log, ttl_s=60.0, clock=lambda: now[0]), Holder.here(Path())
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
