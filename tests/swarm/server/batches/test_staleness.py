"""No token is learned that is older than the job allows, whatever clients do, and nothing is dropped for its age."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swarm.server.batches.batch import Groups
from swarm.server.batches.staleness import BatchPlace, BatchSelection
from swarm.server.batches.streams import DeficitRoundRobin
from swarm.store import Sample, StreamMoved
from tests.swarm.server.batches.test_batch import NODE, begin, sample
from tests.swarm.server.support import Clock, job

STREAMS = "ab"


class Overlap(RuleBasedStateMachine):
    """Clients begin, end and give up while batches are taken and learned, in any order."""

    @initialize(
        rule=st.sampled_from(["groups", "varied_groups", "episodes"]),
        tasks=st.integers(1, 3),
        size=st.integers(2, 3),
        staleness=st.integers(1, 3),
        surplus=st.sampled_from([0, 0, 1, 2]),
        shares=st.sampled_from([{}, {"a": 1, "b": 1}, {"a": 2, "b": 1}]),
        steps=st.integers(1, 9),
    )
    def load(
        self, rule: str, tasks: int, size: int, staleness: int, surplus: int, shares: dict[str, float], steps: int
    ) -> None:
        self.job = job(
            batch_rule=rule, group_size=size, episodes_per_step=tasks * size, surplus_groups=surplus, streams=shares,
            steps=steps, max_staleness=staleness,
        )  # fmt: skip
        self.unit = size if rule == "episodes" else 1
        self.places = tasks * self.unit
        self.groups = Groups(self.job, Clock())
        self.dealer = DeficitRoundRobin(shares, {}) if shares else None
        self.open: dict[str, int] = {}
        self.oldest: dict[str, int] = {}
        self.samples: dict[str, Sample] = {}
        self.written: dict[str, StreamMoved] = {}
        self.lent = self.lost = False
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
        if begin(self.groups, name, task, stream if self.dealer else "default") is None:
            return False
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
        """Whole groups end, the oldest or the youngest ones."""
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
        for filtered in self.groups.end(ended):
            self.drop(filtered.episode, "constant")
        self.outdate()

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
        """Give up what is too old, as a rollout does."""
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
        self.written = {moved.name: moved for moved in self.groups.streams.standing()}
        if self.dealer is not None and not self.lent:
            owed = Counter(self.dealer.deal() for _ in range(self.places))
            weight = len if self.job.batch_rule == "episodes" else lambda _: 1
            assert sum((Counter({g.stream: weight(g.ended)}) for g in batch), Counter()) == owed
        for trained in (s.episode for group in batch for s in group.ended):
            assert self.taken - 1 - self.oldest.pop(trained) <= self.job.max_staleness
            self.gone["trained"] += 1
        self.outdate()

    @precondition(lambda self: self.groups.held_up)
    @rule()
    def lend(self) -> None:
        self.groups.lend()
        self.lent = True

    @rule()
    def crash(self) -> None:
        """The server dies and starts again: what had ended is there, and what was taken is learned."""
        self.gone["given_up"] += len(self.open)
        self.open = {}
        self.version = self.taken
        self.lost = self.lost or self.lent
        self.groups = Groups(self.job, Clock())
        self.groups.updated(self.taken)
        self.groups.streams.recover(tuple(self.written.values()), self.job.streams)
        for name in sorted(self.oldest):
            self.groups.restore(self.samples[name])
        self.outdate()

    @precondition(lambda self: self.learning)
    @rule()
    def update(self) -> None:
        self.version += 1
        self.groups.updated(self.version)

    @invariant()
    def nothing_is_too_old_but_for_surplus_and_places_lent_before_a_crash(self) -> None:
        assert self.gone["stale"] == 0 or self.job.surplus_groups or self.lost

    @invariant()
    def no_more_is_admitted_than_batches_can_take_in_time(self) -> None:
        alive = self.groups.taken.total() if not self.lost else 0
        batches = min(self.version + self.job.max_staleness + 1, self.job.steps) - self.taken
        assert alive <= batches * self.places + self.job.surplus_groups * self.unit

    @invariant()
    def every_episode_is_accounted_for(self) -> None:
        assert self.begun == len(self.open) + len(self.oldest) + self.gone.total()
        assert self.groups.collected == len(self.oldest)

    def teardown(self) -> None:
        """Whatever happened, clients that go on playing finish the job."""
        if hasattr(self, "groups"):
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
TestOverlap.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def selection(*slacks: int, batches: int, needed: int = 2) -> BatchSelection:
    return BatchSelection([Counter({"s": needed})] * batches, needed, [BatchPlace("s", slack) for slack in slacks])


def test_a_batch_leaves_room_for_what_later_batches_could_not_all_take() -> None:
    found = selection(1, 1, 1, 1, 2, 2, batches=3)
    assert not found.takes(BatchPlace("s", 2))  # four places have one batch after this one, which takes two
    assert [found.takes(BatchPlace("s", 1)) for _ in range(3)] == [True, True, False]
    assert found.whole


def test_what_must_be_learned_now_comes_before_what_was_done_first() -> None:
    found = selection(0, 1, 1, batches=2)
    assert [found.takes(BatchPlace("s", slack)) for slack in (1, 1, 0)] == [True, False, True]
    assert found.whole


def test_what_is_too_old_is_taken_by_no_batch() -> None:
    assert not selection(-1, 0, batches=2).fits(BatchPlace("s", -1))


@pytest.mark.parametrize(("staleness", "steps", "places"), [(0, 9, 2), (1, 9, 4), (3, 9, 8), (3, 2, 4), (3, 1, 2)])
def test_as_many_batches_are_rolled_out_as_may_be_learned_in_time(staleness: int, steps: int, places: int) -> None:
    alive = Groups(job(max_staleness=staleness, steps=steps), Clock())
    begun = [begin(alive, f"e{number}", f"t{number // 2}") for number in range(2 * places + 1)]
    assert [group is not None for group in begun] == [True] * (2 * places) + [False]


def test_who_takes_a_lent_place_gives_away_none_that_somebody_plays() -> None:
    wanted = job(batch_rule="episodes", episodes_per_step=2, streams={"a": 1, "b": 1}, steps=2, max_staleness=1)
    groups = Groups(wanted, Clock())
    begun = [name for name in ("a1", "a2", "b1", "b2", "a3", "b3") if begin(groups, name, "x", name[0]) is not None]
    assert begun == ["a1", "a2", "b1", "b2"], "two batches of two places"
    groups.end(sample(groups, "a1", 1.0))
    for name in ("a2", "b1", "b2"):
        groups.leave(name)
    groups.lend()
    again = [name for name in ("a4", "a5", "b4", "b5", "a6", "b6") if begin(groups, name, "x", name[0]) is not None]
    assert again == ["a4", "a5", "b4"]
    assert groups.taken.total() == 4
