"""The transition table is the only way from state to state."""

from __future__ import annotations

import itertools

import pytest

from swarm.server.shared.states import TRANSITIONS, IllegalTransition, StateMachine, Transition
from swarm.wire import ServerState as S

LIFE = [S.BOOTING, S.ROLLING, S.ROLLING_POST, S.WEIGHT_SYNCING, S.ROLLING, S.OFFLINE]


def walk(machine: StateMachine, *states: S) -> StateMachine:
    for state in states:
        machine.to(state, "broke" if state is S.FAILED else None)
    return machine


def reached(state: S) -> StateMachine:
    paths = {S.OFFLINE: [], S.FAILED: [S.BOOTING, S.FAILED]}
    return walk(StateMachine(), *paths.get(state, LIFE[: LIFE.index(state) + 1] if state in LIFE else []))


def test_a_life_is_told_to_the_listener_and_kept() -> None:
    heard: list[Transition] = []
    machine = walk(StateMachine(heard.append, clock=lambda: 5.0), *LIFE)
    assert [change.target for change in heard] == LIFE
    assert list(machine.events) == heard
    assert heard[0] == Transition(S.OFFLINE, S.BOOTING, 5.0)


@pytest.mark.parametrize(("source", "target"), [p for p in itertools.product(S, S) if p[1] not in TRANSITIONS[p[0]]])
def test_what_is_not_in_the_table_raises_and_changes_nothing(source: S, target: S) -> None:
    machine = reached(source)
    with pytest.raises(IllegalTransition, match=f"{source} -> {target}"):
        machine.to(target, "why" if target is S.FAILED else None)
    assert machine.state is source


@pytest.mark.parametrize("source", [S.BOOTING, S.ROLLING, S.ROLLING_POST, S.WEIGHT_SYNCING])
def test_every_running_state_can_fail_with_a_reason_and_be_stopped(source: S) -> None:
    machine = reached(source)
    machine.to(S.FAILED, "out of memory")
    assert machine.reason == "out of memory"
    machine.to(S.OFFLINE)
    assert machine.reason is None


def test_failing_without_a_reason_is_refused() -> None:
    with pytest.raises(IllegalTransition, match="reason"):
        reached(S.ROLLING).to(S.FAILED)


def test_a_reason_that_is_no_unicode_can_be_told() -> None:
    machine = reached(S.ROLLING)
    machine.to(S.FAILED, "no file b\udcff.safetensors")
    assert machine.reason == machine.events[-1].reason == r"no file b\udcff.safetensors"
