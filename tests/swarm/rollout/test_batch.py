"""The batch rule holds for whatever clients do, and no token is learned that is older than the job allows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swarm.errors import InvalidRequest
from swarm.rollout.groups import Group, Groups, bytes_of
from swarm.rollout.streams import BatchSelection, DeficitRoundRobin, Streams
from swarm.store.tables import Sample, StreamRow
from swarm.timelines import Drift, Node
from tests.swarm.server.support import Clock, job

TTL_S = 30.0
NODE = Node(0, None, (1, 2, 3), (4, 5), (-0.1, -0.2), (0, 0), "", Drift.START)
EPISODE_BYTES = bytes_of([NODE])


def groups(clock: Clock | None = None, **fields: object) -> Groups:
    return Groups(job(lease_ttl_s=TTL_S, **fields), clock or Clock())


def begin(alive: Groups, name: str, task: str, stream: str = "default") -> Group | None:
    group = alive.find_place(task, stream)
    if group is not None:
        alive.join(group, name)
    return group


def sample(alive: Groups, name: str, reward: float = 0.0) -> Sample:
    group = alive.group_of(name)
    assert group is not None
    return Sample(name, group.task_id, group.stream, "me", group.name, reward, None, 1.0, (NODE,))


def play(alive: Groups, name: str, task: str, reward: float = 0.0, stream: str = "default") -> list[Sample]:
    assert begin(alive, name, task, stream) is not None
    return alive.end(sample(alive, name, reward))


def test_rewards_are_compared_as_the_exact_numbers_that_were_sent() -> None:
    alive = groups(batch_rule="varied_groups")
    play(alive, "e1", "a", 0.1 + 0.2)
    assert play(alive, "e2", "a", 0.3) == []
    play(alive, "e3", "b", 0.0)
    assert [dropped.episode for dropped in play(alive, "e4", "b", -0.0)] == ["e3", "e4"]
    assert alive.find_place("c") is not None


STREAMS = "ab"


class Overlap(RuleBasedStateMachine):
    """Clients begin, end and give up while time passes and batches are taken and learned, in any order."""

    @initialize(
        fields=st.fixed_dictionaries({
            "batch_rule": st.sampled_from(["groups", "varied_groups", "episodes"]), "steps": st.integers(1, 9),
            "streams": st.sampled_from([{}, {"a": 1, "b": 1}, {"a": 2, "b": 1}]), "max_staleness": st.integers(0, 3),
            "surplus_groups": st.sampled_from([0, 0, 1, 2]),
        }),
        tasks=st.integers(1, 3), size=st.integers(2, 3), held=st.sampled_from([3, 6, 1000]),
    )  # fmt: skip
    def load(self, fields: dict[str, Any], tasks: int, size: int, held: int) -> None:
        self.job = job(group_size=size, episodes_per_step=tasks * size, lease_ttl_s=TTL_S, **fields)
        self.job = self.job.model_copy(update={"pool_bytes": held * EPISODE_BYTES})
        self.clock = Clock()
        self.unit = size if self.job.batch_rule == "episodes" else 1
        self.places = tasks * self.unit
        self.groups = Groups(self.job, self.clock)
        shares = fields["streams"]
        self.dealer = DeficitRoundRobin(shares, {}) if shares else None
        self.open: dict[str, int] = {}
        self.oldest: dict[str, int] = {}
        self.samples: dict[str, Sample] = {}
        self.written: dict[str, StreamRow] = {}
        self.begun = self.version = self.taken = 0
        self.gone: Counter[str] = Counter()

    @property
    def learning(self) -> bool:
        return self.taken > self.version

    @rule(task=st.sampled_from("xyz"), stream=st.sampled_from(STREAMS))
    def begin(self, task: str, stream: str) -> None:
        self.begins(task, stream)

    def begins(self, task: str, stream: str) -> bool:
        name = f"e{self.begun:04d}"
        group = begin(self.groups, name, task, stream if self.dealer else "default")
        if group is None:
            return False
        assert group.task_id == task
        self.begun += 1
        self.open[name] = self.version
        return True

    @rule(task=st.sampled_from("xyz"))
    def fill(self, task: str) -> None:
        while any(self.begins(task, stream) for stream in STREAMS):
            pass

    @precondition(lambda self: self.open)
    @rule(youngest=st.booleans(), groups=st.integers(1, 3))
    def finish(self, youngest: bool, groups: int) -> None:
        playing = [group for group in self.groups if group.open]
        for group in playing[-groups:] if youngest else playing[:groups]:
            for name in sorted(group.open):
                self.ends(name, (self.open[name], self.version), float(name[1:]))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), constant=st.booleans())
    def end(self, data: st.DataObject, constant: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        first = data.draw(st.integers(self.open[name], self.version + self.learning))
        last = data.draw(st.integers(first, self.version + self.learning))
        self.ends(name, (first, last), 0.0 if constant else float(name[1:]))

    def ends(self, name: str, versions: tuple[int, int], reward: float) -> None:
        del self.open[name]
        ended = replace(sample(self.groups, name, reward), nodes=(replace(NODE, versions=versions),))
        self.oldest[name], self.samples[name] = versions[0], ended
        members = [s for n, s in self.samples.items() if n in self.oldest and s.group == ended.group]
        constant = len(members) == self.job.group_size and len({s.reward for s in members}) == 1
        filtered = {s.episode for s in self.groups.end(ended)}
        assert filtered == {s.episode for s in members if constant and self.job.batch_rule == "varied_groups"}
        for filtered_one in filtered:
            self.drop(filtered_one, "constant")
        self.outdate()
        before = list(self.oldest)
        heavy = [s.episode for s in self.groups.drop_heavy()]
        assert heavy == before[: len(heavy)], "the oldest first"
        for name in heavy:
            self.drop(name, "pool_bytes")

    @rule(seconds=st.sampled_from([1, 29, 31]))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds
        for group in self.groups.drop_idle():
            assert 0 < len(group.ended) < self.job.group_size
            assert not group.open
            for idle in group.ended:
                self.drop(idle.episode, "partial_group")

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        del self.open[name]
        self.groups.leave(name)
        self.gone["given_up"] += 1

    def drop(self, name: str, reason: str) -> None:
        del self.oldest[name]
        self.gone[reason] += 1

    def outdate(self) -> None:
        for stale in self.groups.drop_stale():
            self.drop(stale.episode, "stale")
        for name in self.groups.outdated:
            del self.open[name]
            self.groups.leave(name)
            self.gone["stale"] += 1

    @precondition(lambda self: not self.learning and self.groups.complete and self.taken < self.job.steps)
    @rule()
    def take(self) -> None:
        batch = self.groups.take()
        self.taken += 1
        self.written = {moved.name: moved for moved in self.groups.streams.list_rows()}
        if self.dealer is not None:
            owed = Counter(self.dealer.deal() for _ in range(self.places))
            weight = len if self.job.batch_rule == "episodes" else lambda _: 1
            assert sum((Counter({g.stream: weight(g.ended)}) for g in batch), Counter()) == owed
        assert [g.name for g in batch] == sorted(g.name for g in batch)
        sizes = [len(group.ended) for group in batch]
        assert sum(sizes) == self.job.episodes_per_step
        if self.job.batch_rule != "episodes":
            assert sizes == [self.job.group_size] * self.job.tasks_per_step
        assert self.job.batch_rule != "varied_groups" or not any(group.constant for group in batch)
        for group in batch:
            assert [s.episode for s in group.ended] == sorted(s.episode for s in group.ended)
            for trained in group.ended:
                assert trained is self.samples[trained.episode]
                assert (trained.group, trained.task_id) == (group.name, group.task_id)
                age = self.taken - 1 - self.oldest.pop(trained.episode)
                assert age <= self.job.max_staleness or not self.ages
                self.gone["trained"] += 1
        self.outdate()
        if not self.job.max_staleness:  # nobody plays while that is learned
            self.update()

    @property
    def ages(self) -> bool:
        """Whether the age of tokens is bounded: without an overlap groups to spare are learned a step late."""
        return bool(self.job.max_staleness) or not self.job.surplus_groups

    @rule()
    def crash(self) -> None:
        """The server dies and starts again: what had ended is there, and what was taken is learned."""
        self.gone["given_up"] += len(self.open)
        self.open = {}
        self.version = self.taken
        self.groups = Groups(self.job, self.clock)
        self.groups.finish_update(self.taken)
        self.groups.streams.recover(tuple(self.written.values()), self.job.streams)
        self.oldest = dict(sorted(self.oldest.items()))
        assert self.groups.recover([self.samples[name] for name in self.oldest], []) == ([], [])
        self.outdate()

    @precondition(lambda self: self.learning)
    @rule()
    def update(self) -> None:
        self.version += 1
        self.groups.finish_update(self.version)

    @invariant()
    def nothing_is_too_old_but_for_surplus(self) -> None:
        assert self.gone["stale"] == 0 or self.job.surplus_groups

    @invariant()
    def no_more_is_admitted_than_batches_can_take_in_time(self) -> None:
        batches = 1  # without an overlap it is the server that lets nobody begin after the last one
        if self.job.max_staleness:
            batches = min(self.version + self.job.max_staleness + 1, self.job.steps) - self.taken
        assert self.groups.taken.total() <= batches * self.places + self.job.surplus_groups * self.unit

    @invariant()
    def every_episode_is_accounted_for(self) -> None:
        assert self.begun == len(self.open) + len(self.oldest) + self.gone.total()
        assert self.groups.collected == len(self.oldest)
        assert self.groups.bytes == len(self.oldest) * EPISODE_BYTES <= self.job.pool_bytes
        assert all(len(group) for group in self.groups)
        assert self.job.batch_rule == "episodes" or all(len(group) <= self.job.group_size for group in self.groups)
        assert self.groups.full or not self.groups.complete
        if not self.groups.complete:
            with pytest.raises(RuntimeError, match="complete batch"):
                self.groups.take()

    def teardown(self) -> None:
        """Whatever happened, clients that go on playing finish the job."""
        if hasattr(self, "groups"):
            self.groups._most_bytes = 10**9
            while self.version < self.job.steps:
                self.go_on()
            assert self.gone["trained"] == self.job.steps * self.job.episodes_per_step

    def go_on(self) -> None:
        if self.learning:
            self.update()
        elif self.groups.complete:
            self.take()
        elif self.open:
            self.ends(min(self.open), (self.version, self.version), float(self.begun))
        else:
            lacking = [(group.task_id, group.stream) for group in self.groups.orphaned]
            assert any(self.begins(task, stream) for task, stream in [*lacking, *(("x", s) for s in STREAMS)])


TestOverlap = Overlap.TestCase
TestOverlap.settings = settings(stateful_step_count=40)


def test_a_batch_leaves_room_for_what_later_batches_could_not_all_take() -> None:
    """Four places have one batch after this one, which takes two."""
    found = BatchSelection([Counter(s=2)] * 3, 2, [("s", slack) for slack in (1, 1, 1, 1, 2, 2)])
    assert [found.take("s", slack) for slack in (2, 1, 1, 1)] == [False, True, True, False]
    assert found.whole


def test_a_stream_without_a_share_is_refused_where_streams_have_shares() -> None:
    streams = Streams({"math": 1, "code": 1}, 4, 0, 2)
    with pytest.raises(InvalidRequest, match=r"code, math.*'web'"):
        streams.check("web")
    Streams({}, 4, 0, 2).check("web")


def test_the_cursor_counts_groups_that_were_played_to_their_end() -> None:
    alive = Groups(job(batch_rule="varied_groups"), Clock())
    for number, (task, reward) in enumerate(zip("aabbc", (1.0, 1.0, 0.0, 1.0, 0.0), strict=True)):
        play(alive, f"e{number}", task, reward)
    (status,) = alive.streams.status(Counter(), {})
    assert (status.name, status.cursor) == ("default", 2)
    alive = Groups(job(batch_rule="episodes", episodes_per_step=6), Clock())
    for number in range(5):
        play(alive, f"e{number}", f"task-{number}")
    (status,) = alive.streams.status(Counter(), {})
    assert status.cursor == 2, "group_size episodes each"


def test_shares_are_written_all_together_and_those_that_went_too() -> None:
    streams = Streams({"a": 1, "b": 3}, 4, 0, 2)
    streams.count_group("a")
    written = {moved.name: moved for moved in streams.take_moved()}
    assert {name: moved.share for name, moved in written.items()} == {"a": 0.25, "b": 0.75}
    streams.set_shares({"b": 1, "c": 1}, [])
    written |= {moved.name: moved for moved in streams.take_moved()}
    restarted = Streams({"a": 1, "b": 3}, 4, 0, 2)
    restarted.recover(tuple(written.values()), {"a": 1, "b": 3})
    assert restarted.shares == {"b": 0.5, "c": 0.5}
    assert [status.cursor for status in restarted.status(Counter(), {})] == [1, 0, 0]


@given(
    shares=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 20), min_size=2), needed=st.integers(1, 12),
    surplus=st.integers(0, 3), data=st.data(),
)  # fmt: skip
def test_whatever_begins_ends_or_is_given_up_no_stream_is_off_its_share_by_a_whole_place(
    shares: dict[str, int], needed: int, surplus: int, data: st.DataObject
) -> None:
    """Streams may play nothing for any time; batches are taken as they come to be, and a restart comes at any time. So
    shares that divide a batch are exact in each, floats as they are."""
    asked = {name: share / 7 for name, share in shares.items()}
    streams = Streams(asked, needed, surplus, 2)
    taken, trained, written = Counter[str](), Counter[str](), dict[str, StreamRow]()
    for _ in range(data.draw(st.integers(1, 20))):
        name = data.draw(st.sampled_from(sorted(shares)))
        for _ in range(data.draw(st.integers(-needed, 2 * needed))):
            taken[name] += streams.admits(name, taken)
        taken -= Counter({name: data.draw(st.integers(0, needed))})
        batch = Counter(streams._window[:needed])
        if batch <= taken:
            streams.take_batch(batch)
            taken, trained = taken - batch, trained + batch
            written |= {moved.name: moved for moved in streams.list_rows()}
        if data.draw(st.booleans()):
            streams = Streams(asked, needed, surplus, 2)
            streams.recover(tuple(written.values()), asked)
        dealt = trained + Counter(streams._window)
        assert taken <= Counter(streams._window)
        for name, share in shares.items():
            for counts in (trained, dealt):
                assert abs(counts[name] - Fraction(share * counts.total(), sum(shares.values()))) < 1


def test_a_server_that_dies_after_a_stream_lost_its_share_starts_again_and_keeps_its_groups() -> None:
    streams = Streams({"a": 1, "b": 1}, 4, 0, 2)
    streams.set_shares({"b": 1, "c": 1}, ["a", "a", "a"])
    restarted = Streams({"a": 1, "b": 1}, 4, 0, 2)
    restarted.recover(streams.take_moved(), {"a": 1, "b": 1})
    restarted.readmit(["a", "a", "a"])
    assert Counter(restarted._window) == {"a": 3, "b": 1}
