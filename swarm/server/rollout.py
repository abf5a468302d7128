"""The rollout: every verb on episodes, over leases, groups, the admission line and the gate of generation.

It promises the step loop complete batches of ended episodes, and clients a clear answer for every call. What is
acknowledged is durable: an `end` is written down before it is answered, and where that fails the episode is open
as before, so that the client can send it again. Every episode that leaves without being trained is counted with its
reason; at all times

    begun = open and prepared + waiting for their batch + trained + evaluated + aborted + fenced
            + drop_no_calls + drop_no_trained_calls + drop_partial_group + drop_constant_group + drop_pool_bytes
            + drop_stale + drop_job_finished

It knows no learner and no HTTP. Teams are in `swarm.server.teams`, what time does in `swarm.server.sweeps`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Literal

from swarm.backends.protocols import BackendError, Renderer
from swarm.errors import (
    EngineUnavailable,
    EpisodeEnded,
    InvalidRequest,
    JobFinished,
    ServerFailed,
    StoreUnavailable,
    SwarmError,
    Throttled,
)
from swarm.job import Job
from swarm.server.admission import Admission
from swarm.server.batch import Groups
from swarm.server.episodes import Closed as Remembered
from swarm.server.episodes import Closing, Episode, Held, Leases
from swarm.server.gate import Gate
from swarm.server.group import Group
from swarm.server.keys import Claims
from swarm.server.states import StateMachine
from swarm.server.sweeps import Sweeps
from swarm.server.teams import Teams
from swarm.store import Began, Closed, Recovered, Sample, Store, TasksListed
from swarm.timelines import Tree
from swarm.wire import (
    Ack,
    BeginRequest,
    EndRequest,
    Released,
    ReleaseRequest,
    ServerState,
    StreamList,
    TaskList,
    TaskListKnown,
    fingerprint,
    tasks_digest,
)

log = logging.getLogger(__name__)

_ADMITTING = frozenset({ServerState.ROLLING, ServerState.ROLLING_POST})
_COMING = frozenset({ServerState.BOOTING, ServerState.WEIGHT_SYNCING})
RETRY_AFTER_S = 1.0
SETTLING_S = 30.0
"""Seconds after which those who wait for a store that does not answer are told so."""


class Rollout:
    """Episodes of one loaded job, from begin to the batch. Lives on one event loop."""

    def __init__(
        self, job: Job, machine: StateMachine, store: Store, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.job = job
        self.machine = machine
        self.store = store
        self.clock = clock
        self._prefix = secrets.token_hex(4)  # of this life of the server: names of another one never come again
        self.leases = Leases(job.lease_ttl_s, clock, self._prefix)
        self.groups = Groups(job, clock)
        self.teams = Teams(self)
        self.gate = Gate()
        self.finished = False
        self.version = 0
        """The policy version that serves now."""
        self.sampled_tokens = 0
        """Ids the engine sampled since it was started, whatever became of them."""
        self.counts: Counter[str] = Counter()
        """Since the training began: begun, ended, trained, evaluated, aborted, fenced, throttled, calls, and
        drop_<reason>; every fence has its drop_<reason> too."""
        self.renderer: Renderer | None = None
        self._line: Admission[Episode] = Admission(lambda episode: self._give_up(episode, "aborted", "left the line"))
        self._sweeps = Sweeps(self)
        self._changed = asyncio.Event()
        self._listing = asyncio.Lock()

    async def begin(self, request: BeginRequest) -> Episode:
        """Admit an episode, waiting for room up to the request's `wait_s`; raise Throttled if there is none."""
        episode = await self._line.admit(lambda: self._try_begin(request), request.wait_s)
        if episode is not None:
            return episode
        self.counts["throttled"] += 1
        if self.machine.state is ServerState.BOOTING:
            raise EngineUnavailable("the engine is still booting; try again", retry_after=RETRY_AFTER_S)
        raise Throttled(
            f"no room for {_asked(request)} in the present step; try again, with a longer `wait_s`",
            retry_after=RETRY_AFTER_S,
        )

    async def end(self, claims: Claims, request: EndRequest) -> Ack:
        """End an episode with its reward; the same end again changes nothing.

        Returns when the end is durable; raises StoreUnavailable, with the episode still open, if that fails.
        """
        self.require_recovered()
        episode = self.leases.find(claims, repeats="ended")
        if episode is None:
            return Ack(episode_id=claims.episode, state="ended")
        await self.settle(episode, lambda: self._end(episode, request))
        self.leases.find(claims, repeats="ended")  # raises where something else closed it meanwhile
        return Ack(episode_id=episode.id, state="ended")

    async def abort(self, claims: Claims, reason: str) -> Ack:
        """Give an episode up, a prepared one durably; the same abort again changes nothing."""
        self.require_recovered()
        held = self.leases.prepared(claims)
        if held is not None:
            await self.teams.decide(held, ended=False, reason=reason)
        episode = self.leases.find(claims, repeats="aborted")
        if episode is not None and episode.settling is not None:
            raise EpisodeEnded(f"episode {episode.id} is being ended")
        if episode is not None:
            log.info("event=abort episode=%s owner=%r reason=%r", episode.id, episode.owner, reason[:200])
            self._give_up(episode, "aborted", reason)
            self.notify()
        return Ack(episode_id=claims.episode, state="aborted")

    async def list_tasks(self, request: TaskList) -> TaskListKnown:
        """Give a stream its task list, durably; JobConflict where it has another one."""
        self.require_recovered()
        self.groups.streams.check(request.stream)
        async with self._listing:
            found = self.groups.streams.passes.of(request.stream)
            if found is not None:
                found.check(request.digest, request.count)
            elif request.ids is not None:
                listed = _listed(request, request.ids)
                await self.store.write(listed)
                self.groups.list_tasks(listed)
                self.store.note(*self.groups.streams.moved())
            return TaskListKnown(stream=request.stream, known=found is not None or request.ids is not None)

    def release(self, request: ReleaseRequest) -> Released:
        """Fence the open episodes of a client that is dead, as who knows its secret says."""
        self.require_recovered()
        name = fingerprint(request.secret)
        left = [e for e in self.leases if e.settling is None and name in e.owner.split(":")]
        for episode in left:
            self.fence(episode, "owner_died")
        self.notify()
        return Released(episodes=len(left))

    def heartbeat(self, claims: Claims) -> Ack:
        """Renew a lease."""
        self.require_recovered()
        held = self.leases.prepared(claims)
        if held is not None:
            self.leases.renew(held)
            return Ack(episode_id=held.id, state="prepared")
        return Ack(episode_id=self.leases.holding(claims).id, state="open")

    def playing(self, claims: Claims) -> Episode:
        """Return the open episode of a key and renew its lease; raise what a late owner is told."""
        self.require_recovered()
        return self.leases.holding(claims)

    def recover(self, recovered: Recovered) -> None:
        """Go on from what a former life of the server wrote; called once, before anything begins."""
        self.counts.update(recovered.counts)
        self.counts["begun"] = self.groups.named = recovered.begun
        self.groups.updated(recovered.step)  # what was settled and not learned is learned before anything begins
        for name, (epoch, state, _) in recovered.epochs.items():
            self.leases.remember(name, Remembered("ended" if state == "dropped" else state, epoch))
        self.groups.streams.recover(recovered.streams, self.job.streams, recovered.lists)
        self.groups.count_played(recovered.played)
        for sample in recovered.pool:
            self.groups.restore(sample)
        self.groups.adopt_again()
        for sample in recovered.prepared:
            self.leases.hold(sample)
            self.groups.restore_open(sample)
        for sample in self.groups.drop_empty():
            self.drop([sample], _silence(sample))
        self.drop(self.groups.filter_all(), "constant_group")
        self._outdate()
        self.drop(self.groups.drop_heavy(), "pool_bytes")
        self.store.note(*self.groups.streams.moved())
        self.notify()

    def sweep(self) -> None:
        """Do what time does (`swarm.server.sweeps`)."""
        self._sweeps.sweep()
        self.notify()

    def fence(self, episode: Episode, reason: str) -> None:
        """Take an episode from its owner; its place is free again."""
        self.counts[f"drop_{reason}"] += 1
        log.warning("event=fence episode=%s owner=%r reason=%s", episode.id, episode.owner, reason)
        self._give_up(episode, "fenced", reason)

    def drop(self, samples: Iterable[Sample], reason: str) -> None:
        """Count samples that ended and will not be trained, and write down why."""
        for sample in samples:
            self.counts[f"drop_{reason}"] += 1
            log.warning("event=drop episode=%s owner=%r reason=%s", sample.episode, sample.owner, reason)
            self.store.note(_closed(sample, "dropped", reason))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition on groups and leases; raise BackendError once no batch can ever come.

        One waiter at a time: the step loop.
        """
        while not condition():
            if self.groups.starved is not None:
                raise BackendError(self.groups.starved)
            self._changed.clear()
            await self._changed.wait()

    def draining(self) -> None:
        """Note that the batch is full: from now on, those who hold it up are fenced after `drain_timeout_s`."""
        self._sweeps.full_since = self.clock()

    def updated(self, version: int) -> None:
        """The batch that was taken is learned, and this version serves; there may be room for more."""
        self.version = version
        self.groups.updated(version)
        self.notify()

    async def quiet(self) -> None:
        """Shut the gate and wait until nothing generates; a call longer than `drain_timeout_s` is fenced."""
        self.gate.shut()
        if await self._emptied():
            return
        for episode in self.leases:
            if any(call.generating for call in episode.calls):
                self.fence(episode, "held_up_update")
        if not await self._emptied():
            raise BackendError("the engine did not cancel its requests; no update is possible while they run")

    async def _emptied(self) -> bool:
        """Return whether nothing generates within `drain_timeout_s`, to which time the server stood still is added."""
        began, drain = self.clock(), self.job.drain_timeout_s
        if await self.gate.emptied(drain):
            return True
        return self.clock() - began < drain / 2 and await self.gate.emptied(drain)

    async def batch(self) -> tuple[Group, ...]:
        """Wait until a batch is there and nothing generates; return it and begin the next. The gate is shut then.

        A batch can fall apart while calls are waited for (its oldest dropped for bytes, shares changed): wait again.
        """
        while True:
            await self.until(lambda: self.groups.complete)
            await self.quiet()
            if self.groups.complete:
                return self.take()
            self.gate.open()

    def take(self) -> tuple[Group, ...]:
        """Return the complete batch's groups and begin the next. Where the streams stand then is written with it."""
        batch = self.groups.take()
        self.counts["trained"] += sum(len(group.ended) for group in batch)
        self._sweeps.full_since = None
        self._outdate()
        return batch

    async def set_shares(self, shares: Mapping[str, float]) -> StreamList:
        """Give streams new shares, from the next group that begins, once they are durable.

        They are written before they hold, and again after: what moved between may have been noted with the old ones.
        """
        self.require_recovered()
        await self.store.write(*self.groups.streams.with_shares(shares))
        self.groups.set_shares(shares)
        moved = self.groups.streams.moved()
        await self.store.write(*moved)
        log.info("event=shares %s", " ".join(f"{change.name}={change.share}" for change in moved))
        self.notify()
        return self.streams()

    def streams(self) -> StreamList:
        """Return where every stream stands."""
        self.require_recovered()
        alive = Counter(group.stream for group in self.groups)
        return StreamList(streams=self.groups.streams.status(alive, self.groups.unfinished()))

    def require_recovered(self) -> None:
        """Raise EngineUnavailable while what was written may not have been read back."""
        if self.machine.state in (ServerState.OFFLINE, ServerState.BOOTING):
            raise EngineUnavailable("the engine is still booting; try again", retry_after=RETRY_AFTER_S)

    def metrics(self) -> dict[str, float]:
        """Return the counters since the training began (`lease/<name>`), and gauges of pool and streams."""
        return {
            **{f"lease/{name}": float(count) for name, count in sorted(self.counts.items())},
            "pool/bytes": float(self.groups.taken_bytes),
            "throttle/lent": float(self.groups.streams.lent),
        }

    @property
    def in_line(self) -> int:
        """How many wait for room."""
        return len(self._line)

    def finish(self) -> None:
        """The last step is done: what still waits, or ends from now on, is dropped."""
        self.finished = True
        self.drop(self.groups.drop_all(), "job_finished")

    async def settle(self, episode: Episode | Held, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Do the work that closes or prepares an episode, once: whoever comes meanwhile shares its outcome.

        The work goes on when its caller is gone, or was told after SETTLING_S to ask again (StoreUnavailable). Model
        calls in flight end first, so that nothing is captured after.
        """
        if episode.settling is None:
            if isinstance(episode, Episode):
                self.leases.interrupt(episode, EpisodeEnded(f"episode {episode.id} is being ended"))
            episode.settling = asyncio.create_task(self._settled(episode, work))
        settling = episode.settling
        await asyncio.wait({settling}, timeout=SETTLING_S)
        if not settling.done():
            raise StoreUnavailable(
                f"the store has not answered for {SETTLING_S:g} s; ask again: what becomes of episode {episode.id} is "
                "being written down, and counts once",
                retry_after=RETRY_AFTER_S,
            )
        settling.result()

    def collect(self, sample: Sample) -> None:
        """Take the sample of an episode that ended durably, and count it."""
        self.counts["ended"] += 1
        if self.finished or not sample.teaches:
            self.groups.leave(sample.episode, ended=True)
            self.store.note(*self.groups.streams.moved())
            self.drop([sample], "job_finished" if self.finished else _silence(sample))
            return
        filtered = self.groups.end(sample)
        self.store.note(*self.groups.streams.moved())  # before what is dropped: a crash between must not undo a turn
        self.drop(filtered, "constant_group")
        self.drop(self.groups.drop_stale(), "stale")
        self.drop(self.groups.drop_heavy(), "pool_bytes")

    def notify(self) -> None:
        """Something changed that may admit a waiter or complete the batch."""
        self._line.pump()
        self._changed.set()

    def fail(self, error: SwarmError) -> None:
        """Answer everyone who waits, and every later call, with `error`."""
        self.gate.fail(error)
        for episode in self.leases:
            self.leases.interrupt(episode, error)
        self.notify()

    def _try_begin(self, request: BeginRequest) -> Episode | None:
        state = self.machine.state
        if state is ServerState.FAILED:
            raise ServerFailed(f"the server FAILED: {self.machine.reason}")
        if request.kind == "train" and self.finished:
            raise JobFinished(f"the job's {self.job.steps} steps are done; only evaluation episodes begin now")
        if state in _COMING:
            return None
        if state not in _ADMITTING:
            raise EngineUnavailable("the engine is off; POST /engine/start", retry_after=RETRY_AFTER_S)
        if request.kind == "eval":
            assert request.task_id is not None  # `BeginRequest` sees to it
            return self._open(request, request.task_id)
        self.groups.streams.check(request.stream)
        place = self._place(request)
        if place is None:
            return None
        group, turn = place
        episode = self._open(request, group.task_id, group, turn)
        self._changed.set()
        return episode

    def _place(self, request: BeginRequest) -> tuple[Group, int | None] | None:
        """Return the group with a place for the named task, or of the next turn; None where there is no room."""
        if request.task_id is None:
            assert request.tasks is not None  # `BeginRequest` sees to it
            return self.groups.next_room(request.stream, request.tasks)
        group = self.groups.room(request.task_id, request.stream)
        return None if group is None else (group, None)

    def _outdate(self) -> None:
        """Give up what no batch can take any more (`swarm.server.staleness`)."""
        self.drop(self.groups.drop_stale(), "stale")
        outdated = self.groups.outdated
        for episode in [e for e in self.leases if e.id in outdated and e.settling is None]:
            self.fence(episode, "outdated")
        for held in [held for held in self.leases.held if held.id in outdated and held.settling is None]:
            self.teams.free(held)

    def _open(
        self, request: BeginRequest, task_id: str, group: Group | None = None, turn: int | None = None
    ) -> Episode:
        if self.renderer is None:
            raise RuntimeError("episodes begin only after the backend started")
        self.counts["begun"] += 1
        name = f"{self._prefix}-{self.counts['begun']:07d}"
        if group is not None:
            self.groups.join(group, name, turn)
        began = Began(
            name, task_id, request.stream, request.kind, request.owner, group.name if group is not None else None,
            self.version, self.groups.turn_of(name),
        )  # fmt: skip
        self.store.note(began, *self.groups.streams.moved())  # together: a turn begins with its first episode
        return self.leases.begin(name, request, task_id, Tree(self.renderer))

    async def _settled(self, episode: Episode | Held, work: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            while isinstance(episode, Episode) and episode.calls:  # noqa: ASYNC110  -- a call tells nobody of its end
                await asyncio.sleep(0.001)
            await work()
        finally:
            episode.settling = None
            self.leases.renew(episode)
            self.notify()

    async def _end(self, episode: Episode, request: EndRequest) -> None:
        sample = self.sample_of(episode, request)
        await self.store.write(_closed(sample, "ended", epoch=episode.epoch))
        self.leases.close(episode, "ended")
        if episode.kind == "train":
            self.collect(sample)
        else:
            self.counts["ended"] += 1
            self.counts["evaluated"] += 1

    def sample_of(self, episode: Episode, request: EndRequest) -> Sample:
        """Return an open episode with the reward it ends with."""
        group = self.groups.of(episode.id)
        return Sample(
            episode=episode.id,
            task_id=episode.task_id,
            stream=episode.stream,
            owner=episode.owner,
            group=group.name if group is not None else "",
            reward=request.reward,
            success=request.success,
            weight=request.weight,
            nodes=tuple(episode.tree.nodes),
            turn=self.groups.turn_of(episode.id),
        )

    def _give_up(self, episode: Episode, state: Closing, reason: str) -> None:
        self.counts[state] += 1
        self.leases.close(episode, state)
        self.store.note(Closed(episode.id, state, episode.epoch, reason=reason or None))
        if episode.kind == "train":
            self.groups.leave(episode.id)


def _silence(sample: Sample) -> str:
    """Return why a sample teaches nothing."""
    return "no_trained_calls" if sample.nodes else "no_calls"


def _closed(sample: Sample, state: Literal["ended", "dropped"], reason: str | None = None, epoch: int = 1) -> Closed:
    return Closed(
        sample.episode, state, epoch, sample.reward, sample.success, sample.weight, sample.group or None, reason,
        sample.turn,
    )  # fmt: skip


def _listed(request: TaskList, ids: tuple[str, ...]) -> TasksListed:
    """Return a task list as it is written; raise InvalidRequest where the ids are not those of the digest."""
    if len(ids) != request.count or tasks_digest(ids) != request.digest:
        raise InvalidRequest(
            f"expected {request.count} ids with the digest {request.digest[:12]}, found {len(ids)} with "
            f"{tasks_digest(ids)[:12]}; make it with swarm.wire.tasks_digest",
            param="ids",
        )
    return TasksListed(request.stream, request.digest, ids)


def _asked(request: BeginRequest) -> str:
    named = request.task_id is not None
    return f"task {request.task_id!r}" if named else f"the next task of stream {request.stream!r}"
