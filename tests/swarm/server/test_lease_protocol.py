"""The lease protocol as a whole, with crashes: nothing acknowledged is lost or trained twice, all are told why.

A crash keeps what was awaited in the store and any part of what was only noted after it. What the model knows is what
its clients were told; what the store keeps is folded back by a small reading of its changes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swarm.backends.fake.backend import EOS_ID, FakeRenderer
from swarm.errors import EpisodeEnded, JobConflict, LeaseLost, StoreUnavailable, SwarmError, Throttled
from swarm.job import Job
from swarm.server.episodes.rollout import Rollout
from swarm.server.shared.keys import Claims
from swarm.server.shared.served_clock import MOST_S, ServedClock
from swarm.server.shared.states import StateMachine
from swarm.store import (
    Began,
    Captured,
    Change,
    Closed,
    FakeStore,
    InStep,
    Prepared,
    Recovered,
    Sample,
    StreamMoved,
    TasksListed,
)
from swarm.timelines import Node
from swarm.wire import BeginRequest, EndRequest, PrepareRequest, ServerState
from tests.swarm.server.support import Clock, job

T = TypeVar("T")
TTL_S = 30.0


class CrashStore(FakeStore):
    """Knows how much of its changes a crash cannot take."""

    def __init__(self, kept: Sequence[Change] = ()) -> None:
        super().__init__()
        self.changes = list(kept)
        self.durable = len(self.changes)
        self._noted: list[int] = []

    async def write(self, *changes: Change) -> None:
        await super().write(*changes)
        self.durable = len(self.changes)
        self._noted.clear()

    def note(self, *changes: Change) -> None:
        super().note(*changes)
        self._noted.append(len(self.changes))

    def left(self, notes: int) -> list[Change]:
        """Return what is left after a crash, with so many notes since the last write; each is written whole."""
        return self.changes[: max([self.durable, *self._noted[:notes]])]


@dataclass
class Row:
    """What a store would keep of an episode."""

    began: Began
    nodes: list[Node]
    state: str = "open"
    epoch: int = 1
    reason: str | None = None
    closed: Closed | None = None
    prepared: Prepared | None = None
    step: int | None = None

    def sample(self) -> Sample:
        last = self.closed or self.prepared
        assert last is not None
        assert last.reward is not None
        group = (self.closed.group if self.closed is not None else None) or self.began.group
        assert group is not None
        decider = self.prepared if self.state == "prepared" else None
        return Sample(
            self.began.episode, self.began.task_id, self.began.stream, self.began.owner, group, last.reward,
            last.success, last.weight, tuple(self.nodes), decider.decider if decider else None,
            decider.decider_token if decider else None, self.turn,
        )  # fmt: skip

    @property
    def turn(self) -> int | None:
        """Its turn, as it was when it ended."""
        return self.closed.turn if self.closed is not None and self.closed.reward is not None else self.began.turn


def rows_of(changes: Sequence[Change]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for change in changes:
        if isinstance(change, Began):
            rows[change.episode] = Row(change, [])
        elif isinstance(change, Captured):
            rows[change.episode].nodes.append(change.node)
        elif isinstance(change, Prepared):
            rows[change.episode].prepared, rows[change.episode].state = change, "prepared"
        elif isinstance(change, Closed):
            row = rows[change.episode]
            if change.state == "dropped" and row.closed is not None:
                change = replace(change, turn=row.turn)
            assert change.state != "dropped" or row.state == "ended", "only what ended is dropped"
            row.state, row.epoch, row.reason, row.closed = change.state, change.epoch, change.reason, change
        elif isinstance(change, InStep):
            for episode in change.episodes:
                assert rows[episode].state == "ended", "only what waits is trained, and once"
                rows[episode].state, rows[episode].step = "in_step", change.step
    return rows


def folded(changes: list[Change]) -> tuple[list[Change], Recovered]:
    """Return the changes with the fences of those that were open at the crash, and what is read back of them."""
    for name, row in rows_of(changes).items():
        if row.state == "open":
            changes.append(Closed(name, "fenced", 2, reason="server_restarted"))
    rows, counts = rows_of(changes), Counter[str]()
    for row in rows.values():
        if row.state in ("aborted", "fenced"):
            counts[row.state] += 1
        elif row.state != "prepared":
            counts["ended"] += 1
            counts["trained"] += row.state == "in_step"
        if row.state in ("fenced", "dropped"):
            counts[f"drop_{row.reason}"] += 1
    order = [change.episode for change in changes if isinstance(change, Closed) and change.state == "ended"]
    closed = {name: row for name, row in rows.items() if row.state not in ("open", "prepared")}
    recovered = Recovered(
        checkpoints=(),
        step=0,
        replay={},
        pool=[rows[name].sample() for name in order if rows[name].state == "ended"],
        prepared=[row.sample() for row in rows.values() if row.state == "prepared"],
        epochs={n: (r.epoch, "ended" if r.state == "in_step" else r.state, r.reason) for n, r in closed.items()},  # type: ignore[misc]
        streams=list({change.name: change for change in changes if isinstance(change, StreamMoved)}.values()),
        begun=len(rows),
        counts=dict(counts),
        lists=[change for change in changes if isinstance(change, TasksListed)],
        played=Counter(
            (row.began.stream, row.turn, (row.reason or "") if row.state == "dropped" else "")
            for row in rows.values()
            if row.turn is not None and row.state in ("in_step", "dropped")
        ),
    )
    return changes, recovered


class Protocol(RuleBasedStateMachine):
    """Clients do anything in any order, the store fails now and then, time passes, and the server dies."""

    @initialize(
        rule_=st.sampled_from(["groups", "varied_groups", "episodes"]),
        size=st.integers(2, 3),
        tasks=st.integers(1, 2),
        surplus=st.integers(0, 1),
        mixed=st.booleans(),
    )
    def load(self, rule_: str, size: int, tasks: int, surplus: int, mixed: bool) -> None:
        self.runner = asyncio.Runner()
        self.job = job(
            batch_rule=rule_, group_size=size, episodes_per_step=size * tasks, surplus_groups=surplus,
            lease_ttl_s=TTL_S, drain_timeout_s=10, streams={"a": 2, "b": 1} if mixed else {},
        )  # fmt: skip
        self.clock = Clock()
        self.served = ServedClock(self.clock)
        self.store = CrashStore()
        self.told: dict[str, set[str]] = {}  # what an episode may be, as far as its client knows
        self.rewards: dict[str, float] = {}
        self.given_up: set[str] = set()  # prepared ones whose abort was acknowledged: their teams rely on it
        self.step = 0
        self.start(None)

    def start(self, recovered: Recovered | None) -> None:
        machine = StateMachine()
        self.rollout = fresh(self.job, machine, self.store, self.served)
        machine.to(ServerState.BOOTING)
        if recovered is not None:
            self.rollout.recover(recovered)
        machine.to(ServerState.ROLLING)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        async def whole() -> T:
            try:
                return await work
            finally:
                for _ in range(5):  # what was begun in the background gets on too
                    await asyncio.sleep(0)

        return self.runner.run(whole())

    def claims(self, episode: str) -> Claims:
        return Claims("lease", episode=episode, epoch=1)

    def chosen(self, data: st.DataObject, *states: str) -> str | None:
        """Return an episode that may be in one of the states, or now and then any: by age, as names are random."""
        late = not states or data.draw(st.integers(0, 3)) == 3
        names = [name for name, told in self.told.items() if late or told & set(states)]
        return names[data.draw(st.integers(0, len(names) - 1))] if names else None

    @rule(task=st.sampled_from("xy"), stream=st.sampled_from("ab"))
    def begin(self, task: str, stream: str) -> None:
        try:
            episode = self.do(self.rollout.begin(BeginRequest(task_id=task, stream=stream)))
        except Throttled:
            return
        assert episode.id not in self.told, "a name is never used again"
        self.told[episode.id] = {"open"}

    @rule(data=st.data())
    def call(self, data: st.DataObject) -> None:
        name = self.chosen(data, "open")
        for episode in self.rollout.leases:
            if episode.id == name:
                prompt = episode.tree.prompt([{"role": "user", "content": str(len(episode.tree.nodes))}])
                answer = {"role": "assistant", "content": ""}
                node = episode.tree.add(prompt, [EOS_ID], [-0.1], [0], text="", answer=answer)
                self.do(self.store.write(Captured(episode.id, node)))
                self.rollout.leases.touch(episode)

    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        name = self.chosen(data)
        if name is not None:
            self.hear(name, lambda: self.rollout.heartbeat(self.claims(name)).state, {"open", "prepared"})

    @rule(seconds=st.sampled_from([1, 11, 31]))
    def time_passes(self, seconds: int) -> None:
        self.pass_time(seconds)
        for told in self.told.values():  # a lease may run out; one that decides for its team may abort itself
            if told & {"open", "prepared"}:
                told |= {"fenced"} if "open" in told else {"aborted"}

    def pass_time(self, seconds: float, *, stands_still: bool = False) -> None:
        """Let time pass, in which the server serves or stands still; then it sweeps."""
        for _ in range(0 if stands_still else int(seconds / MOST_S)):
            self.clock.now += MOST_S
            self.served.beat()
        self.clock.now += seconds if stands_still else 0.0

        async def sweep() -> None:
            self.rollout.sweep()
            await asyncio.sleep(0)

        self.do(sweep())
        self.served.beat()

    @rule(data=st.data(), reward=st.sampled_from([0.0, 1.0]), twice=st.booleans(), broken=st.booleans())
    def end(self, data: st.DataObject, reward: float, twice: bool, broken: bool) -> None:
        name = self.chosen(data, "open")
        if name is None:
            return

        async def ends() -> list[Any]:
            request = EndRequest(reward=reward)
            work = [self.rollout.end(self.claims(name), request) for _ in range(2 if twice else 1)]
            return await asyncio.gather(*work, return_exceptions=True)

        first = "open" in self.told[name]
        self.store.fail = "the disk is full" if broken else None
        results = self.do(ends())
        self.store.fail = None
        assert len({type(result) for result in results}) == 1
        if isinstance(results[0], StoreUnavailable):
            assert first
            return
        if isinstance(results[0], SwarmError):
            self.judge(name, results[0])
            return
        assert self.told[name] & {"open", "ended"}
        assert results[0].state == "ended"
        if first and self.told[name] != {"ended"}:
            self.rewards[name] = reward
        self.told[name] = {"ended"}

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = self.chosen(data, "open", "prepared")
        if name is None:
            return
        was, possible = self.told[name], {"open", "prepared", "aborted"}
        if self.hear(name, lambda: self.do(self.rollout.abort(self.claims(name), "")).state, possible):
            self.given_up |= {name} if was == {"prepared"} else set()

    @rule(data=st.data(), follower=st.booleans())
    def prepare(self, data: st.DataObject, follower: bool) -> None:
        name = self.chosen(data, "open")
        if name is None:
            return
        link = {"decider": "http://127.0.0.1:9/episodes/x", "decider_token": "t"} if follower else {}
        request = PrepareRequest.model_validate({"reward": 0.5, **link})
        teams = self.rollout.teams
        if self.hear(name, lambda: self.do(teams.prepare(self.claims(name), request)).state, {"open", "prepared"}):
            self.told[name] = {"prepared"}

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        name = self.chosen(data, "prepared")
        if name is None:
            return
        was = self.told[name]
        try:
            done = self.hear(
                name, lambda: self.do(self.rollout.teams.commit(self.claims(name))).state, {"prepared", "ended"}
            )
        except JobConflict:
            assert "open" in was
            return
        if done and was != {"ended"}:
            self.rewards[name] = 0.5

    def hear(self, name: str, verb: Any, possible: set[str]) -> bool:
        """Let a client do something; what it hears must fit what it knew. Return whether it was acknowledged."""
        try:
            state = verb()
        except JobConflict:
            raise
        except SwarmError as error:
            self.judge(name, error)
            return False
        assert self.told[name] & possible, (self.told[name], state)
        self.told[name] = {state}
        return True

    def judge(self, name: str, error: SwarmError) -> None:
        """A late owner is told why, and what it is told stays so."""
        told = self.told[name]
        if isinstance(error, LeaseLost):
            assert told & {"fenced"}, told
            self.told[name] = {"fenced"}
            return
        assert isinstance(error, EpisodeEnded), error
        for word in ("prepared", "ended", "aborted", "closed long ago"):
            if f" is {word}" in error.message:
                assert told & {word, "fenced" if word == "closed long ago" else word}, (told, error.message)
                self.told[name] = told & {word} or told
                return
        raise AssertionError(error.message)

    @precondition(lambda self: self.rollout.groups.complete)
    @rule(crash=st.booleans())
    def train(self, crash: bool) -> None:
        batch = self.rollout.drain.take()
        if crash:  # between the batch and its settlement: it waits again
            self.die(9)
            return
        self.step += 1
        names = tuple(sample.episode for group in batch for sample in group.ended)
        assert len(names) == self.job.episodes_per_step
        for group in batch:
            for sample in group.ended:
                assert sample.reward == self.rewards[sample.episode]
        self.do(self.store.write(InStep(self.step, names)))

    @rule(kept=st.sampled_from([0, 1, 3, 9]))
    def dies(self, kept: int) -> None:
        self.die(kept)

    def die(self, kept: int) -> None:
        """Begin another life with what is durable, and as many of the changes that were only noted since."""
        changes, recovered = folded(self.store.left(kept))
        self.store = CrashStore(changes)
        self.start(recovered)
        rows = rows_of(changes)
        for name, told in self.told.items():
            if name not in rows:
                assert "ended" not in told
                self.told[name] = {"closed long ago", "fenced"}
            elif told != {"ended"}:
                self.told[name] = told - {"open"} | ({"fenced"} if rows[name].state == "fenced" else set())
                if told == {"aborted"} and rows[name].state == "fenced":
                    self.told[name] = {"fenced"}

    @invariant()
    def nothing_acknowledged_is_lost_or_doubled(self) -> None:
        if not hasattr(self, "rollout"):
            return
        rows = rows_of(self.store.changes)
        waiting = [sample for group in self.rollout.groups for sample in group.ended]
        assert len({sample.episode for sample in waiting}) == len(waiting)
        for name, reward in self.rewards.items():
            row = rows[name]
            assert row.state in ("ended", "in_step", "dropped")
            assert row.closed is not None
            assert row.closed.reward == reward
        assert all(rows[name].state == "aborted" for name in self.given_up)
        assert {sample.episode for sample in waiting} == {n for n, row in rows.items() if row.state == "ended"}

    @invariant()
    def the_balance_holds(self) -> None:
        if not hasattr(self, "rollout"):
            return
        counts = self.rollout.counts
        reasons = ("no_calls", "no_trained_calls", "partial_group", "constant_group", "pool_bytes", "job_finished")
        dropped = sum(counts[f"drop_{reason}"] for reason in reasons)
        over = counts["trained"] + counts["evaluated"] + counts["aborted"] + counts["fenced"] + dropped
        assert counts["begun"] == len(self.rollout.leases) + self.rollout.groups.collected + over

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.close()


def fresh(wanted: Job, machine: StateMachine, store: FakeStore, clock: Callable[[], float]) -> Rollout:
    rollout = Rollout(wanted, machine, store, clock)
    rollout.ledger.renderer = FakeRenderer()
    return rollout


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_the_fold_knows_what_must_not_happen() -> None:
    began = Began("e", "t", "default", "train", "me", "t#1", 0)
    with pytest.raises(AssertionError, match="waits"):
        rows_of([began, InStep(1, ("e",))])
