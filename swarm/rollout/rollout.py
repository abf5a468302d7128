"""The rollout: every verb on episodes, from begin to end and erasing, over one ledger.

What is acknowledged is durable: an `end` is written down before it is answered, and where that fails the episode is
open as before. The step loop gets complete batches of ended episodes. No learner and no HTTP here; the shared state is
in `swarm.rollout.episodes`.

Erasing, for whoever knows the secret whose fingerprint is in the owner's name: open episodes are aborted, waiting ones
dropped (`drop_erased`), and captured tokens deleted. Left for a later request is a settled batch that is in no
checkpoint yet, as it may have to be learned again. Rows stay, so that the balance adds up, and so do weights that
learned of an episode.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

from swarm.errors import (
    EngineUnavailable,
    EpisodeEnded,
    InvalidRequest,
    JobFinished,
    ServerFailed,
    SwarmError,
    Throttled,
)
from swarm.job import Job
from swarm.rollout.episodes import RETRY_AFTER_S, ClosedEpisode, LeasedEpisode, Ledger, closed, untrained
from swarm.rollout.keys import Claims
from swarm.rollout.state import StateMachine
from swarm.rollout.sweeps import Drain, Sweeps
from swarm.rollout.task_sampler import Group
from swarm.rollout.teams import Teams
from swarm.store import Began, Erased, Recovered, Store, TasksListed
from swarm.timelines import CallTree
from swarm.wire import (
    Ack,
    BeginRequest,
    EndAck,
    EndRequest,
    EraseRequest,
    Erasure,
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


class Erasing:
    """Erases episodes of one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def erase(self, request: EraseRequest) -> Erasure:
        """Erase what can be erased now; raise StoreUnavailable where the store takes nothing: ask again."""
        self._ledger.require_recovered()
        mark = fingerprint(request.secret)
        asked = tuple(dict.fromkeys(request.episodes))
        await self._ledger.store.write()  # what was noted before is there to be read
        own = [episode for episode in asked if await self._belongs(episode, mark)]
        self._give_up(own)
        if own:
            await self._ledger.store.write(*map(Erased, own))
        left = [episode for episode in own if await self._has_tokens(episode)]
        log.info("event=erased episodes=%d left=%d", len(own) - len(left), len(left))
        return Erasure(
            erased=tuple(episode for episode in own if episode not in left),
            left=tuple(left),
            unknown=tuple(episode for episode in asked if episode not in own),
        )

    async def _belongs(self, episode: str, mark: str) -> bool:
        found = await self._ledger.store.episode(episode)
        return found is not None and mark in found.owner.split(":")

    async def _has_tokens(self, episode: str) -> bool:
        found = await self._ledger.store.episode(episode)
        return found is not None and (bool(found.record) or found.state in ("open", "prepared"))

    def _give_up(self, own: list[str]) -> None:
        ledger = self._ledger
        for episode in [e for e in ledger.leases if e.id in own and e.settling is None]:
            ledger.give_up(episode, "aborted", "erased")
        for episode_id in own:
            ledger.drop(ledger.groups.drop_ended(episode_id), "erased")
        ledger.store.note(*ledger.groups.streams.moved())
        ledger.notify()


_ADMITTING = frozenset({ServerState.ROLLING, ServerState.ROLLING_POST})
_TOLD = 500
"""Characters of a refusal's message that are kept."""
_COMING = frozenset({ServerState.BOOTING, ServerState.WEIGHT_SYNCING})


class Rollout:
    """Episodes of one loaded job, from begin to the batch. Lives on one event loop."""

    def __init__(
        self,
        job: Job,
        machine: StateMachine,
        store: Store,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ledger = ledger = Ledger(job, machine, store, clock)
        self.leases, self.groups, self.gate, self.counts = ledger.leases, ledger.groups, ledger.gate, ledger.counts
        self.teams = Teams(ledger)
        self.drain = Drain(ledger)
        self.erasing = Erasing(ledger)
        self._sweeps = Sweeps(ledger, self.teams)
        self._listing = asyncio.Lock()

    async def begin(self, request: BeginRequest) -> LeasedEpisode:
        """Admit an episode, waiting for room up to the request's `wait_s`; raise Throttled if there is none."""
        episode = await self.ledger.line.admit(lambda: self._try_begin(request), request.wait_s)
        if episode is not None:
            return episode
        self.counts["throttled"] += 1
        if self.ledger.machine.state is ServerState.BOOTING:
            raise EngineUnavailable("the engine is still booting; try again", retry_after=RETRY_AFTER_S)
        raise Throttled(self._full(request), retry_after=RETRY_AFTER_S)

    async def end(self, claims: Claims, request: EndRequest) -> EndAck:
        """End an episode with its reward; the same end again changes nothing, and another one is EpisodeEnded.

        Returns when the end is durable; raises StoreUnavailable, with the episode still open, if that fails.
        """
        self.ledger.require_recovered()
        episode = self.leases.find(claims, repeats="ended")
        if episode is not None:
            await self.ledger.settle(episode, lambda: self._end(episode, request))
            self.leases.find(claims, repeats="ended")  # raises where something else closed it meanwhile
        return self.leases.ended(claims.episode, _hash(request))

    async def abort(self, claims: Claims, reason: str, *, failed: bool = False) -> Ack:
        """Give an episode up, a prepared one durably; the same abort again changes nothing.

        `failed`: its agent did not get to the end of its task, which is skipped if that is so again and again.
        """
        self.ledger.require_recovered()
        prepared = self.leases.find_prepared(claims)
        if prepared is not None:
            await self.teams.decide(prepared, ended=False, reason=reason)
        episode = self.leases.find(claims, repeats="aborted")
        if episode is not None and episode.settling is not None:
            raise EpisodeEnded(f"episode {episode.id} is being ended")
        if episode is not None:
            log.info("event=abort episode=%s owner=%r reason=%r", episode.id, episode.owner, reason[:200])
            self.ledger.give_up(episode, "aborted", reason, failed=failed)
            self.ledger.notify()
        return Ack(episode_id=claims.episode, state="aborted")

    async def list_tasks(self, request: TaskList) -> TaskListKnown:
        """Give a stream its task list, durably; JobConflict where it has another one."""
        self.ledger.require_recovered()
        self.groups.streams.check(request.stream)
        async with self._listing:
            found = self.groups.streams.passes.get(request.stream)
            if found is not None:
                found.check(request.digest, request.count)
            elif request.ids is not None:
                listed = _listed(request, request.ids)
                await self.ledger.store.write(listed)
                self.groups.list_tasks(listed)
                self.ledger.store.note(*self.groups.streams.moved())
            return TaskListKnown(stream=request.stream, known=found is not None or request.ids is not None)

    def release(self, request: ReleaseRequest) -> Released:
        """Fence the open episodes of a client that is over, as who knows its secret says."""
        self.ledger.require_recovered()
        name = fingerprint(request.secret)
        left = [e for e in self.leases if e.settling is None and name in e.owner.split(":")]
        for episode in left:
            self.ledger.fence(episode, request.reason)
        self.ledger.notify()
        return Released(episodes=len(left))

    def heartbeat(self, claims: Claims) -> Ack:
        """Renew a lease."""
        self.ledger.require_recovered()
        prepared = self.leases.find_prepared(claims)
        if prepared is not None:
            self.leases.renew(prepared)
            return Ack(episode_id=prepared.id, state="prepared")
        return Ack(episode_id=self.leases.renewed(claims).id, state="open")

    def playing(self, claims: Claims) -> LeasedEpisode:
        """Return the open episode of a key and renew its lease; raise what a late owner is told."""
        self.ledger.require_recovered()
        return self.leases.renewed(claims)

    def refused(self, claims: Claims, error: SwarmError) -> None:
        """Count a model call that is refused, by its episode and the error's code, and remember what it is told."""
        self.counts[f"refused_{error.code}"] += 1
        with contextlib.suppress(SwarmError):  # it is over: its owner was told so
            episode = self.leases.renewed(claims)
            if not episode.refusals[error.code]:
                log.warning("event=refused episode=%s code=%s error=%r", episode.id, error.code, error.message[:_TOLD])
            episode.refusals[error.code] += 1
            episode.refusal = self.ledger.refusal = error.message[:_TOLD]

    def recover(self, recovered: Recovered) -> None:
        """Go on from what a former life of the server wrote; called once, before anything begins."""
        self.counts.update(recovered.counts)
        self.counts["begun"] = recovered.begun
        self.groups.name_after(recovered.begun)
        self.groups.updated(recovered.step)  # what was settled and not learned is learned before anything begins
        for name, (epoch, state, _) in recovered.epochs.items():
            self.leases.remember(name, ClosedEpisode("ended" if state == "dropped" else state, epoch))
        self.groups.streams.recover(recovered.streams, self.ledger.job.streams, recovered.lists, recovered.streams_came)
        self.groups.turns.count_played(recovered.played)
        for sample in recovered.pool:
            self.groups.restore(sample)
        self.groups.adopt_again()
        for sample in recovered.prepared:
            self.leases.prepare(sample)
            self.groups.restore_open(sample)
        self.groups.readmit()
        for sample in self.groups.drop_empty():
            self.ledger.drop([sample], untrained(sample))
        self.ledger.drop(self.groups.filter_all(), "constant_group")
        self.ledger.outdate()
        self.ledger.drop(self.groups.drop_heavy(), "pool_bytes")
        self.ledger.store.note(*self.groups.streams.moved())
        self.ledger.notify()

    def sweep(self) -> None:
        """Do what time does (`swarm.rollout.sweeps`)."""
        self._sweeps.sweep()
        self.ledger.notify()

    def updated(self, version: int) -> None:
        """The batch that was taken is learned, and this version serves; there may be room for more."""
        self.ledger.version = version
        self.groups.updated(version)
        self.ledger.notify()

    async def set_shares(self, shares: Mapping[str, float]) -> StreamList:
        """Give streams new shares, from the next group that begins, once they are durable.

        They are written before they hold, and again after: what moved between may have been noted with the old ones.
        """
        self.ledger.require_recovered()
        await self.ledger.store.write(*self.groups.streams.with_shares(shares))
        self.groups.set_shares(shares)
        moved = self.groups.streams.moved()
        await self.ledger.store.write(*moved)
        log.info("event=shares %s", " ".join(f"{change.name}={change.share}" for change in moved))
        self.ledger.notify()
        return self.streams()

    def streams(self) -> StreamList:
        """Return where every stream stands."""
        self.ledger.require_recovered()
        alive = Counter(group.stream for group in self.groups)
        return StreamList(streams=self.groups.streams.status(alive, self.groups.unfinished()))

    def metrics(self) -> dict[str, float]:
        """Return the counters since the training began (`lease/<name>`), and gauges of pool and streams."""
        return {
            **{f"lease/{name}": float(count) for name, count in sorted(self.counts.items())},
            "pool/bytes": float(self.groups.taken_bytes),
        }

    def hold(self, episodes: int, *, ending: bool = False) -> None:
        """Begin no training episode before so many evaluation episodes, of the version that serves, have ended, all of
        one owner and stream: others play other tasks, or the same ones again.

        None at all where training is `ending` with them.
        """
        self.ledger.awaited = episodes
        self.ledger.ending = ending
        self.ledger.evaluations = {}

    def finish(self) -> None:
        """The last step is done: what still waits, or ends from now on, is dropped."""
        self.ledger.finished = True
        self.ledger.drop(self.groups.drop_all(), "job_finished")

    def fail(self, error: SwarmError) -> None:
        """Answer everyone who waits, and every later call, with `error`."""
        self.gate.fail(error)
        for episode in self.leases:
            self.leases.interrupt(episode, error)
        self.ledger.notify()

    def _try_begin(self, request: BeginRequest) -> LeasedEpisode | None:
        state = self.ledger.machine.state
        if state is ServerState.FAILED:
            raise ServerFailed(f"the server FAILED: {self.ledger.machine.reason}")
        if request.kind == "train" and self.ledger.finished:
            raise JobFinished(f"the job's {self.ledger.job.steps} steps are done; only evaluation episodes begin now")
        if state in _COMING:
            return None
        if state not in _ADMITTING:
            raise EngineUnavailable("the engine is off; POST /engine/start", retry_after=RETRY_AFTER_S)
        if request.kind == "train" and (self.ledger.awaited or self.ledger.ending):
            return None
        if (refusal := self.ledger.allowance.refusal(request.owner)) is not None:
            self.counts["throttled"] += 1
            raise refusal
        if request.kind == "eval":
            assert request.task_id is not None  # `BeginRequest` sees to it
            episode = self._open(request, request.task_id)
            self.ledger.evaluation_began(episode)
            return episode
        self.groups.streams.check(request.stream)
        place = self._place(request)
        if place is None:
            return None
        group, turn = place
        episode = self._open(request, group.task_id, group, turn)
        self.ledger.changed.set()
        return episode

    def _full(self, request: BeginRequest) -> str:
        """Return why an episode cannot begin now, and what helps."""
        if request.kind == "train" and (awaited := self.ledger.awaited):
            return (
                f"training waits for {awaited} evaluation episodes of version {self.ledger.version} (the job's "
                "evaluate_after or eval_every); have them played (`ajet client run --evaluations`), and try again"
            )
        return f"no room for {_asked(request)} in the present step; try again, with a longer `wait_s`"

    def _place(self, request: BeginRequest) -> tuple[Group, int | None] | None:
        """Return the group with a place for the named task, or of the next turn; None where there is no room."""
        if request.task_id is None:
            assert request.tasks is not None  # `BeginRequest` sees to it
            return self.groups.next_room(request.stream, request.tasks)
        group = self.groups.room(request.task_id, request.stream)
        return None if group is None else (group, None)

    def _open(
        self, request: BeginRequest, task_id: str, group: Group | None = None, turn: int | None = None
    ) -> LeasedEpisode:
        if self.ledger.renderer is None:
            raise RuntimeError("episodes begin only after the backend started")
        self.counts["begun"] += 1
        self.ledger.allowance.spend(request.owner)
        name = f"{self.ledger.life}-{self.counts['begun']:07d}"
        if group is not None:
            self.groups.join(group, name, turn)
        began = Began(
            name, task_id, request.stream, request.kind, request.owner, group.name if group is not None else None,
            self.ledger.version, self.groups.turns.of(name), request.code,
        )  # fmt: skip
        self.ledger.store.note(began, *self.groups.streams.moved())  # together: a turn begins with its first episode
        return self.leases.begin(name, request, task_id, CallTree(self.ledger.renderer), self.ledger.version)

    async def _end(self, episode: LeasedEpisode, request: EndRequest) -> None:
        sample = self.ledger.sample_of(episode, request)
        await self.ledger.store.write(closed(sample, "ended", epoch=episode.epoch))
        dropped = self.ledger.useless(sample) if episode.kind == "train" else None
        self.leases.close(episode, "ended", end=_hash(request), reason=dropped)
        if episode.kind == "train":
            self.ledger.collect(sample)
        else:
            self.counts["ended"] += 1
            self.counts["evaluated"] += 1
            self.ledger.evaluation_over(episode, (request.reward, request.success))


def _listed(request: TaskList, ids: tuple[str, ...]) -> TasksListed:
    """Return a task list as it is written; raise InvalidRequest where the ids are not those of the digest."""
    if len(ids) != request.count or tasks_digest(ids) != request.digest:
        raise InvalidRequest(
            f"expected {request.count} ids with the digest {request.digest[:12]}, found {len(ids)} with "
            f"{tasks_digest(ids)[:12]}; make it with swarm.wire.tasks_digest",
            param="ids",
        )
    return TasksListed(request.stream, request.digest, ids)


def _hash(request: EndRequest) -> int:
    return hash(request.model_dump_json())


def _asked(request: BeginRequest) -> str:
    named = request.task_id is not None
    return f"task {request.task_id!r}" if named else f"the next task of stream {request.stream!r}"
