"""The batch rule holds for whatever clients do."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from swarm.backends.fake import FakeRenderer
from swarm.server.batch import Groups
from swarm.server.episodes import Episode
from swarm.timelines import Tree
from tests.swarm.server.support import Clock

TASKS, SIZE, IDLE_S = 3, 2, 30.0


def episode(name: str, task: str) -> Episode:
    return Episode(name, task, "default", "train", "me", Tree(FakeRenderer()), 0.0, 0.0)


class Clients(RuleBasedStateMachine):
    """Clients begin, end and give up in any order, and time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.groups = Groups(TASKS, SIZE, IDLE_S, self.clock)
        self.open: dict[Episode, str] = {}
        self.ended: dict[str, list[Episode]] = {}
        self.begun = 0

    @rule(task=st.sampled_from("abcd"))
    def begin(self, task: str) -> None:
        group = self.groups.room(task)
        if group is None:
            assert len(self.groups._alive) == TASKS
            return
        assert group.task_id == task
        partial = [g for g in self.groups._alive if g.task_id == task and len(g) < SIZE]
        assert not partial or group is partial[0]
        self.begun += 1
        new = episode(f"e{self.begun:03d}", task)
        self.groups.join(group, new)
        self.open[new] = group.name

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.open:
            chosen = data.draw(st.sampled_from(sorted(self.open, key=lambda e: e.id)))
            self.groups.end(chosen)
            self.ended.setdefault(self.open.pop(chosen), []).append(chosen)

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        if self.open:
            chosen = data.draw(st.sampled_from(sorted(self.open, key=lambda e: e.id)))
            self.groups.leave(chosen)
            del self.open[chosen]

    @rule(seconds=st.sampled_from([1, 29, 31]))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds
        for group in self.groups.drop_idle():
            assert 0 < len(group.ended) < SIZE
            assert self.ended.pop(group.name) == group.ended

    @rule()
    def step(self) -> None:
        if not self.groups.complete:
            with pytest.raises(RuntimeError, match="complete batch"):
                self.groups.take()
            return
        taken = self.groups.take()
        assert [len(group.ended) for group in taken] == [SIZE] * TASKS
        assert {g.name: set(g.ended) for g in taken} == {name: set(found) for name, found in self.ended.items()}
        assert [g.name for g in taken] == sorted(g.name for g in taken)
        self.ended.clear()

    @invariant()
    def no_place_is_given_twice(self) -> None:
        assert len(self.groups._alive) <= TASKS
        assert all(0 < len(group) <= SIZE for group in self.groups._alive)
        assert self.groups.collected == sum(map(len, self.ended.values()))
        assert self.groups.full == (len(self.open) + self.groups.collected == TASKS * SIZE)
        assert self.groups.complete == (self.groups.collected == TASKS * SIZE)


TestClients = Clients.TestCase
TestClients.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_task_may_have_a_second_group_once_its_first_is_full() -> None:
    groups = Groups(2, 2, IDLE_S, Clock())
    names = []
    for number in range(4):
        group = groups.room("a")
        assert group is not None
        groups.join(group, episode(f"e{number}", "a"))
        names.append(group.name)
    assert names == ["a#1", "a#1", "a#2", "a#2"]
    assert groups.room("a") is None


def test_a_group_with_an_open_episode_is_never_idle() -> None:
    clock = Clock()
    groups = Groups(1, 2, IDLE_S, clock)
    group = groups.room("a")
    assert group is not None
    groups.join(group, episode("e", "a"))
    clock.now += 10_000
    assert groups.drop_idle() == []
