"""The batch rule holds for whatever clients do."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from swarm.server.batches.batch import Groups
from swarm.server.batches.group import Group, bytes_of
from swarm.store import Sample
from swarm.timelines import Drift, Node
from tests.swarm.server.support import Clock, job

TTL_S = 30.0
NODE = Node(0, None, (1, 2, 3), (4, 5), (-0.1, -0.2), (0, 0), "", Drift.START)
EPISODE_BYTES = bytes_of([NODE])
REWARDS = st.sampled_from([0.0, -0.0, 1.0, 0.1 + 0.2, 0.3])


def groups(clock: Clock | None = None, **fields: object) -> Groups:
    """Two groups of two, unless told otherwise."""
    return Groups(job(lease_ttl_s=TTL_S, **fields), clock or Clock())


def begin(alive: Groups, name: str, task: str, stream: str = "default") -> Group | None:
    group = alive.room(task, stream)
    if group is not None:
        alive.join(group, name)
    return group


def sample(alive: Groups, name: str, reward: float = 0.0) -> Sample:
    group = alive.of(name)
    assert group is not None
    return Sample(name, group.task_id, group.stream, "me", group.name, reward, None, 1.0, (NODE,))


def play(alive: Groups, name: str, task: str, reward: float = 0.0, stream: str = "default") -> list[Sample]:
    assert begin(alive, name, task, stream) is not None
    return alive.end(sample(alive, name, reward))


class Clients(RuleBasedStateMachine):
    """Clients begin, end and give up in any order, and time passes; the model keeps what must come of it."""

    @initialize(
        rule=st.sampled_from(["groups", "varied_groups", "episodes"]),
        tasks=st.integers(1, 3),
        size=st.integers(2, 3),
        surplus=st.integers(0, 2),
        held=st.sampled_from([2, 5, 1000]),
    )
    def load(self, rule: str, tasks: int, size: int, surplus: int, held: int) -> None:
        self.clock = Clock()
        self.job = job(
            batch_rule=rule, group_size=size, episodes_per_step=tasks * size, surplus_groups=surplus, lease_ttl_s=TTL_S
        )
        self.job = self.job.model_copy(update={"pool_bytes": held * EPISODE_BYTES})
        self.groups = Groups(self.job, self.clock)
        self.open: dict[str, str] = {}
        self.waiting: dict[str, Sample] = {}
        self.begun = self.trained = 0
        self.dropped: Counter[str] = Counter()
        self.names: set[str] = set()

    @property
    def places(self) -> int:
        return self.job.episodes_per_step + self.job.surplus_groups * self.job.group_size

    @rule(task=st.sampled_from("abc"))
    def begin(self, task: str) -> None:
        self.begun += 1
        name = f"e{self.begun:03d}"
        group = begin(self.groups, name, task)
        if group is None:
            self.begun -= 1
            assert len(self.open) + len(self.waiting) == self.places or self.job.batch_rule != "episodes"
            return
        assert group.task_id == task
        self.open[name] = group.name

    @rule(data=st.data(), reward=REWARDS)
    def end(self, data: st.DataObject, reward: float) -> None:
        if not self.open:
            return
        chosen = data.draw(st.sampled_from(sorted(self.open)))
        group = self.open.pop(chosen)
        ended = sample(self.groups, chosen, reward)
        self.waiting[chosen] = ended
        members = [s for s in self.waiting.values() if s.group == group]
        filtered = self.groups.end(ended)
        constant = len(members) == self.job.group_size and len({s.reward for s in members}) == 1
        expected = members if constant and self.job.batch_rule == "varied_groups" else []
        assert {s.episode for s in filtered} == {s.episode for s in expected}
        self.drop(filtered, "constant_group")
        before = list(self.waiting)
        heavy = self.groups.drop_heavy()
        assert [s.episode for s in heavy] == before[: len(heavy)]
        self.drop(heavy, "pool_bytes")

    def drop(self, samples: list[Sample], reason: str) -> None:
        for dropped in samples:
            assert self.waiting.pop(dropped.episode) is dropped
            self.dropped[reason] += 1

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        if self.open:
            chosen = data.draw(st.sampled_from(sorted(self.open)))
            self.groups.leave(chosen)
            del self.open[chosen]
            self.dropped["given_up"] += 1

    @rule(seconds=st.sampled_from([1, 29, 31]))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds
        for group in self.groups.drop_idle():
            assert 0 < len(group.ended) < self.job.group_size
            assert group.name not in self.open.values()
            self.drop(group.ended, "partial_group")

    @rule()
    def step(self) -> None:
        if not self.groups.complete:
            with pytest.raises(RuntimeError, match="complete batch"):
                self.groups.take()
            return
        batch = self.groups.take()
        assert [g.name for g in batch] == sorted(g.name for g in batch)
        sizes = [len(group.ended) for group in batch]
        assert sum(sizes) == self.job.episodes_per_step
        if self.job.batch_rule != "episodes":
            assert sizes == [self.job.group_size] * self.job.tasks_per_step
            assert not self.names & {group.name for group in batch}
        if self.job.batch_rule == "varied_groups":
            assert not any(group.constant for group in batch)
        for group in batch:
            self.names.add(group.name)
            assert [s.episode for s in group.ended] == sorted(s.episode for s in group.ended)
            for trained in group.ended:
                assert (trained.group, trained.task_id) == (group.name, group.task_id)
                assert self.waiting.pop(trained.episode) is trained
                self.trained += 1

    @invariant()
    def every_episode_is_accounted_for(self) -> None:
        assert self.groups.collected == len(self.waiting)
        assert self.begun == self.trained + self.dropped.total() + len(self.open) + len(self.waiting)
        assert self.groups.bytes == len(self.waiting) * EPISODE_BYTES <= self.job.pool_bytes

    @invariant()
    def no_place_is_given_twice(self) -> None:
        assert len(self.open) + len(self.waiting) <= self.places
        for group in self.groups:
            assert len(group) > 0
            assert self.job.batch_rule == "episodes" or len(group) <= self.job.group_size
        assert self.groups.full or not self.groups.complete

    def teardown(self) -> None:
        if hasattr(self, "groups"):
            assert self.groups.collected == len(self.groups.drop_all())


TestClients = Clients.TestCase
TestClients.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def test_a_task_may_have_a_second_group_once_its_first_is_full() -> None:
    alive = groups()
    found = [begin(alive, f"e{number}", "a") for number in range(5)]
    assert [group and group.name for group in found] == ["a#1", "a#1", "a#2", "a#2", None]


def test_rewards_are_compared_as_the_exact_numbers_that_were_sent() -> None:
    alive = groups(batch_rule="varied_groups")
    play(alive, "e1", "a", 0.1 + 0.2)
    assert play(alive, "e2", "a", 0.3) == []
    play(alive, "e3", "b", 0.0)
    assert [dropped.episode for dropped in play(alive, "e4", "b", -0.0)] == ["e3", "e4"]
    assert alive.room("c") is not None


def test_what_is_whole_beyond_the_batch_comes_first_in_the_next() -> None:
    alive = groups(surplus_groups=1)
    for number, task in enumerate("aabbcc"):
        play(alive, f"e{number}", task)
    assert [group.name for group in alive.take()] == ["a#1", "b#2"]
    for number, task in enumerate("ddee", 6):
        play(alive, f"e{number}", task)
    assert [group.name for group in alive.take()] == ["c#3", "d#4"]


def test_a_slow_group_does_not_hold_up_a_batch_that_has_surplus() -> None:
    alive = groups(surplus_groups=1)
    begin(alive, "slow", "a")
    for number, task in enumerate("bbcc"):
        play(alive, f"e{number}", task)
    assert alive.complete
    alive.take()
    alive.end(sample(alive, "slow"))
    play(alive, "late", "a")
    assert not alive.complete
    assert alive.collected == 2


def test_under_the_rule_episodes_those_of_a_task_are_one_group_of_any_size() -> None:
    alive = groups(batch_rule="episodes")
    for number, task in enumerate("aaab"):
        play(alive, f"e{number}", task)
    assert [(group.task_id, len(group.ended)) for group in alive.take()] == [("a", 3), ("b", 1)]


def test_a_bound_too_small_for_one_batch_is_said_to_be_so() -> None:
    alive = Groups(job().model_copy(update={"pool_bytes": 2 * EPISODE_BYTES}), Clock())
    for number in range(5):
        assert alive.starved is None
        play(alive, f"e{number}", "ab"[number % 2])
        alive.drop_heavy()
    play(alive, "last", "a")
    alive.drop_heavy()
    assert alive.starved is not None
    assert "pool_bytes is too small" in alive.starved


def test_the_places_of_the_oldest_are_free_again_when_they_were_dropped_for_bytes() -> None:
    alive = Groups(job().model_copy(update={"pool_bytes": 3 * EPISODE_BYTES}), Clock())
    for number, task in enumerate("aabb"):
        play(alive, f"e{number}", task)
    assert [dropped.episode for dropped in alive.drop_heavy()] == ["e0"]
    assert not alive.full
    group = alive.room("a")
    assert group is not None
    assert group.name == "a#1"
