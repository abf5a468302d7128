"""Slots: a prompt gets the cached prefix that is truly its own, and nobody's slot is given away."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.local.generating.slots import SlotAssignment, SlotTable

_SLOTS, _POSITIONS = 3, 24
_prompts = st.lists(st.integers(0, 1), min_size=1, max_size=_POSITIONS - 1)


def _fill(table: SlotTable, slot: int, ids: list[int]) -> None:
    table.reach(np.array([slot]), np.array([len(ids)]))


@given(st.lists(st.tuples(_prompts, st.integers(0, 99)), max_size=40))
def test_a_placement_s_cached_prefix_is_what_the_slot_or_its_donor_holds(steps: list[tuple[list[int], int]]) -> None:
    table = SlotTable(_SLOTS, _POSITIONS)
    held: dict[int, list[int]] = {}
    busy: list[int] = []
    for prompt, choice in steps:
        if table.idle() == 0 or (busy and choice % 3 == 0):
            table.release(busy.pop(choice % len(busy)))
        assert table.idle() == _SLOTS - len(busy)
        placement = table.place(prompt)
        assert placement.slot not in busy
        assert placement.cached < len(prompt)
        source = placement.slot if placement.donor is None else placement.donor
        assert held.get(source, [])[: placement.cached] == prompt[: placement.cached]
        busy.append(placement.slot)
        _fill(table, placement.slot, prompt)
        held[placement.slot] = prompt


def test_a_longer_turn_goes_to_the_slot_of_its_conversation() -> None:
    table = SlotTable(4, _POSITIONS)
    conversation, other = list(range(10)), list(range(50, 60))
    for prompt in (conversation, other):
        _fill(table, table.place(prompt).slot, prompt)
    table.release(0)
    table.release(1)
    assert table.place([*conversation, 99]) == SlotAssignment(slot=0, cached=10)


def test_a_sibling_copies_the_shared_prefix_and_leaves_the_conversation_whole() -> None:
    table = SlotTable(4, _POSITIONS)
    first = list(range(12))
    _fill(table, table.place(first).slot, first)
    table.release(0)
    assert table.place([*range(10), 77, 78]) == SlotAssignment(slot=1, cached=10, donor=0)
    assert table.place([*first, 99]) == SlotAssignment(slot=0, cached=12)


def test_the_least_recently_used_slot_is_emptied_first() -> None:
    table = SlotTable(2, _POSITIONS)
    slots = [table.place([i] * 3).slot for i in range(2)]
    table.release(slots[1])
    table.release(slots[0])
    assert table.place([9, 9]).slot == slots[1]


def test_nothing_is_cached_after_forgetting() -> None:
    table = SlotTable(2, _POSITIONS)
    _fill(table, table.place([1, 2, 3]).slot, [1, 2, 3])
    table.release(0)
    table.forget()
    assert table.place([1, 2, 3, 4]).cached == 0


def test_a_sibling_is_told_of_the_oldest_row_that_will_hold_its_prompt_and_borrows_what_that_has() -> None:
    table = SlotTable(4, 200)
    prompt = list(range(100))
    leader, second, third = (table.place([*prompt, tail]).slot for tail in (900, 901, 902))
    assert table.leader(leader) is None
    assert table.leader(second) == (leader, 100)
    assert table.leader(third) == (leader, 100)
    table.reach(np.array([leader]), np.array([60]))
    assert table.borrow(second) == SlotAssignment(second, 60, leader)
    assert table.borrow(second) is None
    table.reach(np.array([leader]), np.array([101]))
    assert table.borrow(third) == SlotAssignment(third, 100, leader)
    assert table.leader(third) is None


def test_a_short_shared_opening_is_not_waited_for() -> None:
    table = SlotTable(2, 200)
    table.place(list(range(100)))
    assert table.leader(table.place([*range(20), *range(500, 560)]).slot) is None


def test_rows_that_change_places_take_all_with_them() -> None:
    table = SlotTable(3, _POSITIONS)
    busy = table.place([1, 2, 3, 4]).slot
    table.reach(np.array([busy]), np.array([2]))
    assert table.exchange(busy, 2) == 2
    assert table.lacking().tolist() == [0, 0, 2]
    assert table.read(np.array([2]), np.array([[0, 1, 2, 3]])).tolist() == [[1, 2, 3, 4]]
    table.append(np.array([2]), np.array([5]))
    table.release(2)
    assert table.idle() == 3
    assert table.place([1, 2, 9]) == SlotAssignment(2, 2)
