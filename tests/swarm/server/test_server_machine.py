"""A server as a whole, through any number of lives: nothing acknowledged is lost or trained twice, all are told why."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swarm import errors, wire
from swarm.backends.fake import EOS_ID, FakeBackend
from swarm.backends.protocols import Batch
from swarm.job import Job, Tracking
from swarm.rollout.episodes import LeasedEpisode
from swarm.rollout.keys import Claims
from swarm.rollout.rollout import Rollout
from swarm.rollout.state import MOST_S, LeaseClock
from swarm.server import Keys, SwarmServer, service
from swarm.store.changes import (
    BatchScheduled,
    CallCaptured,
    Change,
    CheckpointEvaluated,
    CheckpointSaved,
    EpisodeClosed,
    EpisodePrepared,
)
from swarm.store.tables import EpisodeRow, Sample, StreamRow, TaskListRow, choose_kept_steps
from swarm.store.writer import Store
from swarm.store.writer import open_store as open_sql_store
from tests.swarm.server.support import Clock, job

T = TypeVar("T")
TTL_S = 30.0
IDS = ("x", "y", "z")
ORDERS = (IDS, ("z", "x", "y"))
OTHERS = ("x", "y")
SECRETS = {name: name * 32 for name in "pq"}
OF_THE_MOMENT = ("timing_s/", "lease/", "pool/", "trainer/", "rollouter/", "drop/", "eval/", "tokens/generated")
OF_ROLLOUT = ("timing_s/gen", "tokens/generated")
POINTS = [
    f"{when} {change}"
    for change in (
        "CallCaptured", "EpisodeClosed", "EpisodePrepared", "TaskListRow", "BatchScheduled", "CheckpointSaved",
        "CheckpointEvaluated", "update", "save",
    )
    for when in ("before", "after")
]  # fmt: skip


class Died(Exception):
    """The server is dead: whoever waits for it hears nothing."""


class Life:
    """One life of a server: the point at which it ends, if there is one, and how many notes are left then."""

    def __init__(self, end: str | None = None) -> None:
        self.end = end
        self.kept = 0
        self.dead = False

    def reach(self, point: str) -> None:
        self.dead = self.dead or point == self.end
        if self.dead:
            raise Died

    def around(self, name: str, work: Callable[..., T]) -> Callable[..., T]:
        def lived(*given: Any) -> T:
            self.reach(f"before {name}")
            done = work(*given)
            self.reach(f"after {name}")
            return done

        return lived


class MortalStore:
    """A real store that a life's end leaves with what was awaited, and with some of the notes since."""

    def __init__(self, store: Store, life: Life, kept: Sequence[Change]) -> None:
        self._store = store
        self._life = life
        self._notes: list[tuple[Change, ...]] = []
        self.changes = list(kept)
        self.durable = len(self.changes)
        self.fail: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, *changes: Change) -> None:
        if self.fail is not None:
            raise errors.StoreUnavailable(self.fail)
        names = {type(change).__name__: None for change in changes}
        for name in names:
            self._life.reach(f"before {name}")
        self.changes += changes
        self.durable = len(self.changes)
        self._pass_on(len(self._notes))
        await self._store.write(*changes)
        for name in names:
            self._life.reach(f"after {name}")

    def note(self, *changes: Change) -> None:
        if not self._life.dead:
            self.changes += changes
            self._notes.append(changes)

    def _pass_on(self, notes: int) -> None:
        for changes in self._notes[:notes]:
            self._store.note(*changes)
        self._notes = self._notes[notes:]

    async def lose(self, kept: int) -> None:
        """Forget the notes beyond so many; each was written whole."""
        lost = sum(map(len, self._notes[kept:]))
        self._pass_on(kept)
        self.changes = self.changes[: len(self.changes) - lost]


@dataclass
class Row:
    began: EpisodeRow
    state: str = "open"
    reason: str | None = None
    ended: Sample | None = None

    @property
    def turn(self) -> int | None:
        return self.began.task_index if self.ended is None else self.ended.task_index

    @property
    def reward(self) -> float | None:
        return None if self.ended is None else self.ended.reward


def rows_of(changes: Sequence[Change]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for change in changes:
        if isinstance(change, EpisodeRow):
            rows[change.episode] = Row(change)
        elif isinstance(change, EpisodePrepared):
            rows[change.episode].state = "prepared"
        elif isinstance(change, EpisodeClosed):
            row = rows[change.episode]
            assert change.state != "dropped" or row.state == "ended", "only what ended is dropped"
            row.state, row.reason, row.ended = change.state, change.reason, change.sample or row.ended
        elif isinstance(change, BatchScheduled):
            for episode in change.episodes:
                assert rows[episode].state == "ended", "only what waits is trained, and once"
                rows[episode].state = "in_step"
    return rows


def listing(ids: tuple[str, ...], *, with_ids: bool) -> wire.TaskList:
    return wire.TaskList(stream="a", digest=wire.tasks_digest(ids), count=len(ids), ids=ids if with_ids else None)


class Logged:
    def __init__(self) -> None:
        self.steps: list[tuple[int, dict[str, float]]] = []
        self.evaluated: set[int] = set()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if "eval/episodes" in metrics:
            self.evaluated.add(step)
        if all(name.startswith("eval/") for name in metrics):
            return
        exact = {name: v for name, v in metrics.items() if name in OF_ROLLOUT or not name.startswith(OF_THE_MOMENT)}
        self.steps.append((step, exact))

    def finish(self) -> None: ...


def playing() -> Any:
    """Return the rule that plays whole episodes; a machine has it several times, so that batches come to be."""

    @rule(
        streams=st.sampled_from(["ab", "ba", "a", "b"]), episodes=st.integers(2, 12), rewards=st.integers(0, 2**12 - 1),
        end=st.none() | st.sampled_from(POINTS),
    )  # fmt: skip
    def play(self: Server, streams: str, episodes: int, rewards: int, end: str | None) -> None:
        """Whole episodes by name, one after another, and the evaluations that training waits for between them, through
        the server's death at the `end`."""
        self.life.end = end
        for number in range(episodes):
            while self.rollout.pending_evaluations:
                self.evaluates(float(rewards >> number & 1))
            before = set(self.told)
            self.begin("x", streams[number % len(streams)])
            for name in set(self.told) - before:
                self.calls(name)
                self.ends(name, float(rewards >> number & 1))

    return play


class Server(RuleBasedStateMachine):
    """Clients p and q share the task list of stream `a`, and play by name in both streams."""

    @initialize(
        rule_=st.sampled_from(["groups", "varied_groups", "episodes"]), size=st.integers(2, 3),
        tasks=st.integers(1, 2), surplus=st.integers(0, 1), mixed=st.booleans(), staleness=st.sampled_from([0, 1, 2]),
        every=st.sampled_from([1, 2, 9]), kept=st.integers(1, 2), evaluated=st.sampled_from([1, None, 2, 5]),
    )  # fmt: skip
    def load(
        self, rule_: str, size: int, tasks: int, surplus: int, mixed: bool, staleness: int, every: int, kept: int,
        evaluated: int | None,
    ) -> None:  # fmt: skip
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp())
        self.job = job(
            batch_rule=rule_, group_size=size, episodes_per_step=size * tasks, surplus_groups=surplus, steps=5,
            lease_ttl_s=TTL_S, drain_timeout_s=10, streams={"a": 2, "b": 1} if mixed else {}, tracking=Tracking(),
            checkpoint_every=every, checkpoints_kept=kept, max_staleness=staleness, eval_every=evaluated,
            evaluation_episodes=2,
        )  # fmt: skip
        self.clock = Clock()
        self.served = LeaseClock(self.clock)
        self.told: dict[str, set[str]] = {}  # what an episode may be, as far as its client knows
        self.unheard: dict[str, set[str]] = {}  # whose client was not answered before a death: what it was told before
        self.rewards: dict[str, float] = {}
        self.evaluations: set[str] = set()
        self.given_up: set[str] = set()  # prepared ones whose abort was acknowledged: their teams rely on it
        self.adopted: dict[str, int] = {}  # the turns that plays by name count for since the list was named
        self.batches: dict[int, Any] = {}  # what each step learned when it was first seen
        self.measured: dict[int, Any] = {}
        self.line: list[tuple[asyncio.Task[LeasedEpisode], str, str]] = []  # who waits, for which task and stream
        self.first = self.lives = 0
        self.runner.run(self.begin_life([]))

    @property
    def rollout(self) -> Rollout:
        assert self.server.opened is not None
        return self.server.opened.rollout

    @property
    def step(self) -> int:
        assert self.server.opened is not None
        return self.server.opened.step

    async def begin_life(self, changes: Sequence[Change], end: str | None = None) -> None:
        life = self.life = Life(end)
        self.lives += 1
        self.tracker = Logged()

        def make(wanted: Job, _: Path) -> FakeBackend:
            self.backend = FakeBackend(wanted)
            learner: Any = self.backend.learner
            learner.update, learner.save = life.around("update", learner.update), life.around("save", learner.save)
            return self.backend

        def open_store(*given: Any) -> Any:
            store, recovered = open_sql_store(*given)
            self.store = MortalStore(store, life, changes)
            return self.store, recovered

        there = [c.step for c in changes if isinstance(c, CheckpointSaved) and self.checkpoint(c.step).exists()]
        self.loaded = max(there, default=0)
        self.server = SwarmServer(
            self.folder, self.folder, Keys(), backends=make, trackers=lambda _: self.tracker, clock=self.served
        )
        moved = [change for change in changes if isinstance(change, StreamRow) and change.name == "a"]
        known = set(range(moved[-1].next_task_index)) - set(moved[-1].unfinished) if moved else set()
        # of a turn that is not over, what no row says is forgotten: it may be given to another group
        self.adopted = {name: turn for name, turn in self.adopted.items() if turn in known}
        with patch.object(service, "open_store", open_store):
            self.server.load(self.job)
            await self.server.start()
            await self.quiet()

    def checkpoint(self, step: int) -> Path:
        return self.folder / "checkpoints" / self.job.digest()[:12] / f"step-{step:06d}" / "fake.json"

    async def quiet(self) -> None:
        async with asyncio.timeout(120):
            while not self.life.dead and self.busy:  # noqa: ASYNC110  -- neither tells anybody
                await asyncio.sleep(0)
            for _ in range(5):  # what was begun in the background gets on too
                await asyncio.sleep(0)

    @property
    def busy(self) -> bool:
        training, state = self.server.opened, self.server.machine.state
        assert training is not None
        assert state is not wire.ServerState.FAILED, self.server.machine.reason
        if training.rollout.pending_evaluations:
            return False
        on_its_way = state in (wire.ServerState.BOOTING, wire.ServerState.WEIGHT_SYNCING) or training.updating
        if self.job.keeps_best_of(training.step) and training.step not in self.tracker.evaluated:
            on_its_way = True  # what an evaluation came to is being written down
        return on_its_way or (training.step < self.job.steps and training.rollout.groups.complete)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do what a client asks for, and all that comes of it; Died if it was not answered."""

        async def whole() -> T:
            try:
                return await work
            except errors.SwarmError as error:
                if self.life.dead:
                    raise Died from error
                raise
            finally:
                await self.quiet()

        try:
            return self.runner.run(whole())
        finally:
            if self.life.dead:
                self.die(self.life.kept)
            self.hear_line()

    def die(self, kept: int, again: str | None = None) -> None:
        """End this life, and begin another one with what is durable, and as many of the notes since. `again` is a point
        at which that one ends too, maybe while it learns again what it had learned."""
        self.life.dead = True
        self.runner.run(self.store.lose(kept))
        self.runner.run(self.server.stop())
        self.runner.run(asyncio.sleep(0))
        for work, _, _ in self.line:  # who was given a place in the last moment did not hear of it
            assert work.done()
            assert isinstance(
                work.exception(), errors.EngineUnavailable | errors.ServerFailed | errors.JobFinished | None
            )
        self.line = []
        changes = self.store.changes
        for name, row in rows_of(changes).items():
            if row.state == "open":
                changes.append(EpisodeClosed(name, "fenced", 2, reason="server_restarted"))
        rows = rows_of(changes)
        for name, told in self.told.items():
            row = rows.get(name)
            if name in self.unheard:
                before = self.unheard.pop(name)
                told = before if row is None else before | {"ended" if row.state in ENDED else row.state}
                self.told[name] = told
            if row is None:
                assert "ended" not in told
                self.told[name] = {"closed long ago", "fenced"}
            elif told != {"ended"}:
                self.told[name] = told - {"open"} | ({"fenced"} if row.state == "fenced" else set())
                if told == {"aborted"} and row.state == "fenced":
                    self.told[name] = {"fenced"}
        self.runner.run(self.begin_life(changes, again))
        if self.life.dead:
            self.die(9)

    def claims(self, episode: str) -> Claims:
        return Claims("lease", episode=episode, fencing_token=1)

    def chosen(self, data: st.DataObject, *states: str) -> str | None:
        """Return an episode that may be in one of the states, or now and then any: by age, as names are random."""
        late = not states or data.draw(st.integers(0, 3)) == 3
        names = [name for name, told in self.told.items() if late or told & set(states)]
        return names[data.draw(st.integers(0, len(names) - 1))] if names else None

    @contextlib.contextmanager
    def asking(self, name: str | None = None) -> Iterator[None]:
        """Let a client ask; a server that dies before it answers leaves it not knowing."""
        if name is not None:
            self.unheard[name] = set(self.told[name])
        lives = self.lives
        try:
            yield
        except Died:
            assert self.lives == lives + 1
        finally:
            if name is not None:
                self.unheard.pop(name, None)

    @rule(task=st.sampled_from("xy"), stream=st.sampled_from("ab"))
    def begin(self, task: str, stream: str) -> None:
        held = self.rollout.pending_evaluations
        with contextlib.suppress(errors.Throttled, errors.JobFinished):
            episode = self.do(self.rollout.begin(wire.BeginRequest(task_id=task, stream=stream)))
            assert episode.id not in self.told, "a name is never used again"
            assert not held, "training waits for an evaluation"
            self.told[episode.id] = {"open"}

    @rule(places=st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from("ab")), min_size=1, max_size=3))
    def queue(self, places: list[tuple[str, str]]) -> None:
        """Many ask for a place and wait, in this order; who finds none stays in line."""

        async def stand() -> None:
            for task, stream in places * 4:
                wanted = wire.BeginRequest(task_id=task, stream=stream).model_copy(update={"wait_s": 1e6})
                self.line.append((asyncio.create_task(self.rollout.begin(wanted)), task, stream))
                await asyncio.sleep(0)

        with self.asking():
            self.do(stand())

    @precondition(lambda self: self.line)
    @rule(rewards=st.integers(0, 255), aborts=st.booleans())
    def make_room(self, rewards: int, aborts: bool) -> None:
        """All that plays ends, or is given up, while others wait for its place."""
        for number, name in enumerate([name for name, told in self.told.items() if told == {"open"}]):
            if aborts:
                self.hear(name, self.rollout.abort(self.claims(name), ""), {"open", "aborted"})
            else:
                self.calls(name)
                self.ends(name, float(rewards >> number % 8 & 1))

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def leave_line(self, data: st.DataObject) -> None:
        work, _, _ = self.line.pop(data.draw(st.integers(0, len(self.line) - 1)))
        work.cancel()
        with self.asking():
            self.do(asyncio.sleep(0))
        assert work.cancelled()

    def hear_line(self) -> None:
        """Let those in line hear what they were given: places go to the first who can use them."""
        waiting: set[tuple[str, str]] = set()
        for work, task, stream in list(self.line):
            if not work.done():
                waiting.add((task, stream))
                continue
            self.line.remove((work, task, stream))
            if isinstance(work.exception(), errors.JobFinished):
                continue
            episode = work.result()
            assert (episode.task_id, episode.stream) == (task, stream)
            assert (task, stream) not in waiting, "who came first is admitted first"
            assert episode.id not in self.told
            self.told[episode.id] = {"open"}

    @rule(reward=st.sampled_from([0.0, 1.0]))
    def evaluate(self, reward: float) -> None:
        self.evaluates(reward)

    def evaluates(self, reward: float) -> None:
        wanted = wire.BeginRequest(task_id="t", kind="eval", stream="evaluations", owner="e")
        with self.asking():
            episode = self.do(self.rollout.begin(wanted))
            self.told[episode.id] = {"open"}
            self.evaluations.add(episode.id)
            self.calls(episode.id)
            self.ends(episode.id, reward)

    @rule(data=st.data())
    def call(self, data: st.DataObject) -> None:
        self.calls(self.chosen(data, "open"))

    def calls(self, name: str | None) -> None:
        for episode in self.rollout.leases:
            if episode.id == name:
                prompt = episode.tree.prompt([{"role": "user", "content": str(len(episode.tree.nodes))}])
                answer = {"role": "assistant", "content": ""}
                version = self.backend.engine.version
                node = episode.tree.make_node(prompt, [EOS_ID], [-0.1], [version], text="")
                episode.tree.keep(prompt, node, answer)
                with self.asking():
                    self.do(self.store.write(CallCaptured(episode.id, node)))
                    self.rollout.leases.touch(episode)
                return

    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        name = self.chosen(data)
        if name is not None:
            self.hear(name, self.heard(name), {"open", "prepared"})

    async def heard(self, name: str) -> Any:
        return self.rollout.heartbeat(self.claims(name))

    @rule(seconds=st.sampled_from([1, 11, 31]))
    def time_passes(self, seconds: int) -> None:
        self.pass_time(seconds)
        self.may_be_fenced()

    def may_be_fenced(self) -> None:
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

        with self.asking():
            self.do(sweep())
        self.served.beat()

    @rule(data=st.data(), reward=st.sampled_from([0.0, 1.0]), twice=st.booleans(), broken=st.booleans())
    def end(self, data: st.DataObject, reward: float, twice: bool, broken: bool) -> None:
        if (name := self.chosen(data, "open")) is not None:
            self.ends(name, reward, twice=twice, broken=broken)

    def ends(self, name: str, reward: float, *, twice: bool = False, broken: bool = False) -> None:
        async def ends() -> list[Any]:
            request = wire.EndRequest(reward=reward)
            work = [self.rollout.end(self.claims(name), request) for _ in range(2 if twice else 1)]
            self.store.fail = "the disk is full" if broken else None
            found = await asyncio.gather(*work, return_exceptions=True)
            self.store.fail = None
            if self.life.dead:
                raise Died
            return found

        first = "open" in self.told[name]
        with self.asking(name):
            results = self.do(ends())
            assert len({type(result) for result in results}) == 1
            if isinstance(results[0], errors.StoreUnavailable):
                assert first
                return
            if isinstance(results[0], BaseException):
                self.judge(name, results[0])
                return
            assert self.told[name] & {"open", "ended"}
            assert (results[0].state, results[0].reason is None) in (("ended", True), ("dropped", False))
            if first and self.told[name] != {"ended"}:
                self.rewards[name] = reward
            self.told[name] = {"ended"}

    play, play_on, play_more, play_much, play_most = (playing() for _ in range(5))

    @rule(rewards=st.integers(0, 255))
    def finish(self, rewards: int) -> None:
        for number, name in enumerate([name for name, told in self.told.items() if "open" in told]):
            self.calls(name)
            self.ends(name, float(rewards >> number % 8 & 1))

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = self.chosen(data, "open", "prepared")
        if name is None:
            return
        was, possible = self.told[name], {"open", "prepared", "aborted"}
        if self.hear(name, self.rollout.abort(self.claims(name), ""), possible):
            self.given_up |= {name} if was == {"prepared"} else set()

    @rule(data=st.data(), follower=st.booleans())
    def prepare(self, data: st.DataObject, follower: bool) -> None:
        name = self.chosen(data, "open")
        if name is None or name in self.evaluations:
            return
        link = {"decider": "http://127.0.0.1:9/episodes/x", "decider_token": "t"} if follower else {}
        request = wire.PrepareRequest.model_validate({"reward": 0.5, **link})
        self.hear(name, self.rollout.teams.prepare(self.claims(name), request), {"open", "prepared"})

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        name = self.chosen(data, "prepared")
        if name is None:
            return
        was = self.told[name]
        try:
            done = self.hear(name, self.rollout.teams.commit(self.claims(name)), {"prepared", "ended"})
        except errors.JobConflict:
            assert "open" in was
            return
        if done and was != {"ended"}:
            self.rewards[name] = 0.5

    def hear(self, name: str, verb: Coroutine[Any, Any, Any], possible: set[str]) -> bool:
        """Let a client do something; what it hears must fit what it knew. Return whether it was acknowledged."""
        with self.asking(name):
            try:
                state = self.do(verb).state
            except errors.JobConflict:
                raise
            except errors.SwarmError as error:
                self.judge(name, error)
                return False
            assert self.told[name] & possible, (self.told[name], state)
            self.told[name] = {state}
            return True
        return False

    def judge(self, name: str, error: BaseException) -> None:
        told = self.told[name]
        if isinstance(error, errors.LeaseLost):
            assert told & {"fenced"} or rows_of(self.store.changes)[name].reason == "outdated", told
            self.told[name] = {"fenced"}
            return
        assert isinstance(error, errors.EpisodeEnded), error
        for word in ("prepared", "ended", "aborted", "closed long ago"):
            if f" is {word}" in error.message or f" was {word} with another reward" in error.message:
                assert told & {word, "fenced" if word == "closed long ago" else word}, (told, error.message)
                self.told[name] = told & {word} or told
                return
        raise AssertionError(error.message)

    @rule(order=st.sampled_from(ORDERS), with_ids=st.booleans())
    def name_tasks(self, order: tuple[str, ...], with_ids: bool) -> None:
        if (before := self.listed) is None:  # what was played before is behind the list's first turn
            self.first = max((s.cursor for s in self.rollout.streams().streams if s.name == "a"), default=0)
        with self.asking():
            answer = self.do(self.rollout.list_tasks(listing(order, with_ids=with_ids)))
            assert answer.known == (before is not None or with_ids)
            expected = order if before is None and with_ids else before and before.ids
            assert (None if self.listed is None else self.listed.ids) == expected

    @precondition(lambda self: self.listed is not None)
    @rule(with_ids=st.booleans())
    def name_others(self, with_ids: bool) -> None:
        with pytest.raises(errors.JobConflict, match="stream 'a'"):
            self.do(self.rollout.list_tasks(listing(OTHERS, with_ids=with_ids)))
        nothing_begins = (
            errors.JobConflict,
            errors.JobFinished,
            errors.Throttled,
            errors.EngineUnavailable,
        )  # what evaluations wait for comes first
        with pytest.raises(nothing_begins, match=r"stream 'a'|steps are done|training waits|the engine is"):
            self.do(self.rollout.begin(wire.BeginRequest(tasks=wire.tasks_digest(OTHERS), stream="a")))

    @precondition(lambda self: self.listed is not None)
    @rule(client=st.sampled_from("pq"))
    def begin_next(self, client: str) -> None:
        owner = f"{client}:{wire.fingerprint(SECRETS[client])}"
        asked = wire.BeginRequest(tasks=wire.tasks_digest(IDS), stream="a", owner=owner, timeout_s=10_000)
        lacking, following = self.standing()
        with contextlib.suppress(errors.Throttled, errors.JobFinished):
            episode = self.do(self.rollout.begin(asked))
            turn = self.rollout.groups.task_index_of(episode.id)
            assert turn in (*lacking, following), "what was begun comes first, then the next of the pass"
            assert self.listed is not None
            assert turn is not None
            assert episode.task_id == self.listed.ids[turn % len(IDS)]
            assert episode.id not in self.told
            self.told[episode.id] = {"open"}

    @rule(client=st.sampled_from("pq"))
    def client_died(self, client: str) -> None:
        mine = [e.id for e in self.rollout.leases if e.owner.startswith(f"{client}:")]
        others = {e.id for e in self.rollout.leases} - set(mine)
        assert self.rollout.release(wire.ReleaseRequest(secret=SECRETS[client])).episodes == len(mine)
        for name in mine:
            self.told[name] = {"fenced"}
        assert {e.id for e in self.rollout.leases} == others

    @rule(data=st.data())
    def tool_takes_long(self, data: st.DataObject) -> None:
        """Ten leases long, with heartbeats; the others are not heard of meanwhile."""
        busy = [e for e in self.rollout.leases if e.due_at is not None]  # by age
        if not busy:
            return
        episode, lives = busy[data.draw(st.integers(0, len(busy) - 1))], self.lives
        self.may_be_fenced()
        for _ in range(int(10 * TTL_S / 5)):
            self.pass_time(5)
            if self.lives != lives:
                return
            self.rollout.heartbeat(self.claims(episode.id))
        self.told[episode.id] = {"open"}

    @rule()
    def stall(self) -> None:
        """However long the server stands still, whoever was alive before it is afterwards."""
        for episode in self.rollout.leases:
            self.rollout.heartbeat(self.claims(episode.id))
            self.told[episode.id] = {"open"}
        alive, lives = {e.id for e in self.rollout.leases}, self.lives
        self.pass_time(100 * TTL_S, stands_still=True)
        assert self.lives != lives or {e.id for e in self.rollout.leases} == alive

    @rule(kept=st.sampled_from([0, 1, 3, 9]), damages=st.booleans(), again=st.none() | st.sampled_from(POINTS))
    def dies(self, kept: int, damages: bool, again: str | None) -> None:
        newest = self.saved()[-self.job.checkpoints_kept :]
        if damages and len(newest) == 2:
            self.checkpoint(newest[1]).unlink()
        self.die(kept, again)

    def saved(self) -> list[int]:
        """Return the steps of the checkpoints that the store counts on: the newest, and the best of the evaluated."""
        kept: set[int] = set()
        evaluations: dict[int, wire.EvaluationSummary] = {}
        for change in self.store.changes:
            if isinstance(change, CheckpointSaved):
                kept.add(change.step)
            elif isinstance(change, CheckpointEvaluated):
                evaluations[change.evaluation.step] = change.evaluation
            else:
                continue
            kept = choose_kept_steps(kept, self.job.checkpoints_kept, evaluations.values())
        return sorted(kept)

    @rule(point=st.sampled_from(POINTS), kept=st.sampled_from([0, 1, 3, 9]))
    def will_die(self, point: str, kept: int) -> None:
        self.life.end, self.life.kept = point, kept

    @property
    def listed(self) -> TaskListRow | None:
        found = self.rollout.groups.streams.samplers.get("a")
        return None if found is None else found.listed

    def standing(self) -> tuple[tuple[int, ...], int]:
        found = self.rollout.groups.streams.samplers.get("a")
        assert found is not None
        return found.unfinished, found.next_task_index

    @invariant()
    def nothing_acknowledged_is_lost_or_doubled(self) -> None:
        rows = rows_of(self.store.changes)
        waiting = [sample for group in self.rollout.groups for sample in group.ended]
        assert len({sample.episode for sample in waiting}) == len(waiting)
        for name, reward in self.rewards.items():
            row = rows[name]
            assert row.state in ENDED
            assert row.reward == reward
        assert all(rows[name].state == "aborted" for name in self.given_up)
        pooled = {n for n, row in rows.items() if row.state == "ended" and row.began.kind == "train"}
        assert {sample.episode for sample in waiting} == pooled

    @invariant()
    def nobody_waits_while_there_is_a_place_for_them(self) -> None:
        state, rollout = self.server.machine.state, self.rollout
        if state is wire.ServerState.ROLLING and not rollout.pending_evaluations and not rollout.ending:
            assert not rollout.finished or not self.line
            assert not [task for _, task, stream in self.line if rollout.groups.find_place(task, stream)]

    @invariant()
    def each_version_is_evaluated_once_and_whole_by_episodes_of_its_own(self) -> None:
        rows = rows_of(self.store.changes)
        found = [c.evaluation for c in self.store.changes if isinstance(c, CheckpointEvaluated)]
        assert [one.step for one in found] == sorted({one.step for one in found})
        for one in found:
            played = [row for row in rows.values() if (row.began.kind, row.began.version) == ("eval", one.step)]
            rewards = [row.reward for row in played if row.state == "ended" and row.reward is not None]
            assert one.episodes == self.job.evaluation_episodes <= len(rewards)
            assert min(rewards) <= one.reward <= max(rewards)

    @invariant()
    def weights_hold_each_step_once_as_it_was_first_learned(self) -> None:
        learner, steps = self.backend.learner, list(range(1, self.step + 1))
        rows = rows_of(self.store.changes)
        assert [step for step, _ in learner.trained] == steps
        trained = [name for _, batch in learner.trained for name, _ in batch]
        assert sorted(trained) == sorted(name for name, row in rows.items() if row.state == "in_step")
        assert len(set(trained)) == len(trained) == self.step * self.job.episodes_per_step
        assert [batch.step for batch in learner.batches] == steps[self.loaded :], "no step is learned again for nothing"
        for batch in learner.batches:
            assert self.batches.setdefault(batch.step, batch) == batch
            check_batch(batch, self.job, rows)
            for episode in batch.episodes:
                assert episode.reward == self.rewards.get(episode.episode_id, episode.reward)
        assert [step for step, _ in self.tracker.steps] == steps, "the tracker is told of every step once"
        for step, metrics in self.tracker.steps:
            assert self.measured.setdefault(step, metrics) == metrics
        names = [self.checkpoint(step).parent.name for step in self.saved()]
        found = self.checkpoint(0).parents[1]
        assert (sorted(path.name for path in found.iterdir()) if found.exists() else []) == names
        assert all(self.checkpoint(step).exists() for step in self.saved()), "a damaged one is written again"
        if self.job.batch_rule != "episodes":
            taken = sum(stream.groups_trained for stream in self.rollout.streams().streams)
            assert taken == self.step * self.job.tasks_per_step, "a batch counts once for its streams"

    @invariant()
    def the_balance_holds(self) -> None:
        counts = self.rollout.counts
        reasons = (
            "no_calls", "no_trained_calls", "partial_group", "constant_group", "pool_bytes", "job_finished", "stale",
        )  # fmt: skip
        dropped = sum(counts[f"drop_{reason}"] for reason in reasons)
        over = counts["trained"] + counts["evaluated"] + counts["aborted"] + counts["fenced"] + dropped
        assert counts["begun"] == len(self.rollout.leases) + self.rollout.groups.collected + over

    @invariant()
    def each_task_is_played_once_in_a_pass(self) -> None:
        rows, turn_of = rows_of(self.store.changes), self.rollout.groups.task_index_of
        for name in rows:
            if (turn := turn_of(name)) is not None:
                self.adopted[name] = turn
        if self.listed is None:
            return
        over, counted, empty = Counter[int](), Counter[int](), Counter[int]()
        for name, row in rows.items():
            turn = row.turn if row.turn is not None else self.adopted.get(name)
            if turn is not None and row.began.stream == "a" and (row.reason or "") != "partial_group":
                over[turn] += row.state in ENDED and row.reason != "no_calls"
                empty[turn] += row.reason == "no_calls"
        size, found = self.job.group_size, self.rollout.groups.streams.samplers.get("a")
        counted.update(over)
        for turn, plays in empty.items():
            counted[turn] += plays if self.job.batch_rule == "episodes" else max(0, plays - size)
        assert found is not None
        assert all(plays <= size for plays in over.values()), "none twice"
        playing = Counter(turn_of(e.id) for e in self.rollout.leases if e.stream == "a")
        playing.update(turn_of(h.id) for h in self.rollout.leases.prepared if h.sample.stream == "a")
        assert list(found.lacking) == [t for t in found.unfinished if playing[t] + counted[t] < size], "what is lost"
        unfinished, following = self.standing()
        for turn in range(self.first, following):
            assert turn in unfinished or counted[turn] >= size, "none left out"

    @invariant()
    def what_is_written_is_what_stands(self) -> None:
        if self.listed is None:
            return
        (*_, last) = [None, *(c for c in self.store.changes if isinstance(c, StreamRow) and c.name == "a")]
        unfinished, following = self.standing()
        assert (last.next_task_index, last.unfinished) == (following, unfinished) if last else following == 0

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            with contextlib.suppress(errors.SwarmError):
                self.runner.run(self.server.stop())
            self.runner.close()
            shutil.rmtree(self.folder, ignore_errors=True)


def check_batch(batch: Batch, wanted: Job, rows: Mapping[str, Row]) -> None:
    """Whole groups of one task each, sampled by weights that are young enough."""
    groups: dict[str, list[float]] = {}
    for episode in batch.episodes:
        groups.setdefault(episode.group, []).append(episode.reward)
        assert rows[episode.episode_id].began.task_id == episode.group.partition("#")[0]
        sampled = [version for row in episode.rows for version in row.versions if version >= 0]
        if wanted.max_staleness or not wanted.surplus_groups:
            assert min(sampled) >= batch.step - 1 - wanted.max_staleness
    sizes = [len(rewards) for rewards in groups.values()]
    assert sum(sizes) == wanted.episodes_per_step
    assert wanted.batch_rule == "episodes" or sizes == [wanted.group_size] * wanted.tasks_per_step
    assert wanted.batch_rule != "varied_groups" or all(len(set(rewards)) > 1 for rewards in groups.values())


ENDED = ("ended", "in_step", "dropped")
TestServer = Server.TestCase
TestServer.settings = settings(stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow])
