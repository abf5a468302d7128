"""The rollout: every verb on episodes, from begin to end and erasing, over one ledger.

What is acknowledged is durable: an `end` is written down before it is answered, and where that fails the episode is
open as before. The step loop gets complete batches of ended episodes.

Erasing, for whoever knows the secret whose fingerprint is in the owner's name: open episodes are aborted, waiting ones
dropped (`drop_erased`), and captured tokens deleted. Left for a later request is a settled batch that is in no
checkpoint yet, as it may have to be learned again. Rows stay, so that the balance adds up, and so do weights that
learned of an episode.

A sweep is what time does, several times a second: leases expire; an episode that a full batch waits for is fenced once
its own time is over, or once it is a straggler whose client is silent; prepared episodes that hold the batch up lose
their places; groups that nobody completes are dropped; places that streams without a share have left are dealt out
anew. Stragglers are the open episodes that a full batch waits for, once half of the batch has ended; before that there
are none.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from swarm import errors, wire
from swarm.job import Job
from swarm.rendering.messages import BackendError
from swarm.rollout.episodes import REASON_KEPT, RETRY_AFTER_S, ClosedEpisode, EpisodeRegistry, LeasedEpisode
from swarm.rollout.groups import Group
from swarm.rollout.keys import Claims
from swarm.rollout.state import StateMachine
from swarm.rollout.teams import Teams
from swarm.store.changes import EpisodeClosed, EpisodeErased
from swarm.store.reading import RecoveredState
from swarm.store.tables import EpisodeRow, TaskListRow
from swarm.store.writer import Store
from swarm.timelines import CallTree

log = logging.getLogger(__name__)


HEARTBEATS_ONLY_S = 600.0
"""Seconds after its last call for which heartbeats keep a straggler whose client did not say how long it may take."""


class Rollout(EpisodeRegistry):
    """Episodes of one loaded job, from begin to the batch. Lives on one event loop."""

    def __init__(
        self, job: Job, machine: StateMachine, store: Store, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(job, machine, store, clock)
        self.teams = Teams(self)
        self._listing = asyncio.Lock()
        self._straggling_since: float | None = None

    async def begin(self, request: wire.BeginRequest) -> LeasedEpisode:
        """Admit an episode, waiting for room up to the request's `wait_s`; raise Throttled if there is none."""
        what = request.kind, request.stream, request.task_id, request.tasks
        episode = await self.admission.admit(lambda: self._try_begin(request), request.wait_s, what)
        if episode is not None:
            return episode
        self.counts["throttled"] += 1
        self.require_recovered()
        if request.kind == "train" and self.pending_evaluations:
            raise errors.Throttled(
                f"training waits for {self.pending_evaluations} evaluation episodes of version {self.version} (the "
                "job's evaluate_after or eval_every); have them played (`ajet client run --evaluations`), and try "
                "again",
                retry_after=RETRY_AFTER_S,
            )
        name = f"the next task of stream {request.stream!r}" if request.task_id is None else f"task {request.task_id!r}"
        raise errors.Throttled(
            f"no room for {name} in the present step; try again, with a longer `wait_s`", retry_after=RETRY_AFTER_S
        )

    def _try_begin(self, request: wire.BeginRequest) -> LeasedEpisode | None:
        state = self.machine.state
        if state is wire.ServerState.FAILED:
            raise errors.ServerFailed(f"the server FAILED: {self.machine.reason}")
        if request.kind == "train" and self.finished:
            raise errors.JobFinished(f"the job's {self.job.steps} steps are done; only evaluation episodes begin now")
        if state in (wire.ServerState.BOOTING, wire.ServerState.WEIGHT_SYNCING):
            return None
        if state is wire.ServerState.OFFLINE:
            raise errors.EngineUnavailable("the engine is off; POST /engine/start", retry_after=RETRY_AFTER_S)
        if request.kind == "train" and (self.pending_evaluations or self.ending):
            return None
        if (refusal := self.begin_quota.find_refusal(request.owner)) is not None:
            self.counts["throttled"] += 1
            raise refusal
        if request.kind == "eval":
            assert request.task_id is not None  # `BeginRequest` sees to it
            episode = self._open(request, request.task_id)
            self.begin_evaluation(episode)
            return episode
        self.groups.streams.check(request.stream)
        task_index = None
        if request.task_id is not None:
            group = self.groups.find_place(request.task_id, request.stream)
        else:
            assert request.tasks is not None  # `BeginRequest` sees to it
            group, task_index = self.groups.find_next_place(request.stream, request.tasks) or (None, None)
        if group is None:
            return None
        episode = self._open(request, group.task_id, group, task_index)
        self.changed.set()
        return episode

    def _open(
        self, request: wire.BeginRequest, task_id: str, group: Group | None = None, task_index: int | None = None
    ) -> LeasedEpisode:
        assert self.renderer is not None  # nothing is admitted before the backend started
        self.counts["begun"] += 1
        self.begin_quota.spend(request.owner)
        name = f"{self.incarnation}-{self.counts['begun']:07d}"
        if group is not None:
            self.groups.join(group, name, task_index)
        row = EpisodeRow(
            name, task_id, request.stream, request.kind, request.owner, group.name if group is not None else None,
            self.version, self.groups.task_index_of(name), request.code,
        )  # fmt: skip
        # together: a turn begins with its first episode
        self.store.note(row, *self.groups.streams.take_moved())
        return self.leases.begin(name, request, task_id, CallTree(self.renderer), self.version)

    async def end(self, claims: Claims, request: wire.EndRequest) -> wire.EndAck:
        """End an episode with its reward; the same end again changes nothing, and another one is EpisodeEnded. Returns
        when the end is durable; raises StoreUnavailable, with the episode still open, if that fails."""
        self.require_recovered()
        digest = hash(request.model_dump_json())
        episode = self.leases.find(claims, repeats="ended")
        if episode is not None:
            await self.settle(episode, lambda: self._end(episode, request, digest))
            self.leases.find(claims, repeats="ended")  # raises where something else closed it meanwhile
        return self.leases.acknowledge_end(claims.episode, digest)

    async def _end(self, episode: LeasedEpisode, request: wire.EndRequest, digest: int) -> None:
        sample = self.make_sample(episode, request)
        await self.store.write(EpisodeClosed(episode.id, "ended", episode.fencing_token, sample))
        dropped = self.find_drop_reason(sample) if episode.kind == "train" else None
        self.leases.close(episode, "ended", end=digest, reason=dropped)
        if episode.kind == "train":
            self.collect(sample)
        else:
            self.counts["ended"] += 1
            self.counts["evaluated"] += 1
            self.end_evaluation(episode, (request.reward, request.success))

    async def abort(self, claims: Claims, reason: str, *, failed: bool = False) -> wire.Ack:
        """Give an episode up, a prepared one durably; the same abort again changes nothing. `failed`: its agent did not
        get to the end of its task, which is skipped if that is so again and again."""
        self.require_recovered()
        prepared = self.leases.find_prepared(claims)
        if prepared is not None:
            await self.teams.decide(prepared, ended=False, reason=reason)
        episode = self.leases.find(claims, repeats="aborted")
        if episode is not None and episode.settling is not None:
            raise errors.EpisodeEnded(f"episode {episode.id} is being ended")
        if episode is not None:
            log.info("event=abort episode=%s owner=%r reason=%r", episode.id, episode.owner, reason[:200])
            self.give_up(episode, "aborted", reason, failed=failed)
            self.notify()
        return wire.Ack(episode_id=claims.episode, state="aborted")

    def heartbeat(self, claims: Claims) -> wire.Ack:
        self.require_recovered()
        prepared = self.leases.find_prepared(claims)
        if prepared is not None:
            self.leases.renew(prepared)
            return wire.Ack(episode_id=prepared.id, state="prepared")
        return wire.Ack(episode_id=self.leases.find_and_renew(claims).id, state="open")

    def renew_episode(self, claims: Claims) -> LeasedEpisode:
        self.require_recovered()
        return self.leases.find_and_renew(claims)

    def count_refusal(self, claims: Claims, error: errors.SwarmError) -> None:
        self.counts[f"refused_{error.code}"] += 1
        with contextlib.suppress(errors.SwarmError):  # it is over: its owner was told so
            episode = self.leases.find_and_renew(claims)
            episode.refusal = self.refusal = error.message[:REASON_KEPT]
            if not episode.refusals[error.code]:
                log.warning("event=refused episode=%s code=%s error=%r", episode.id, error.code, episode.refusal)
            episode.refusals[error.code] += 1

    def release(self, request: wire.ReleaseRequest) -> wire.Released:
        self.require_recovered()
        mark = wire.fingerprint(request.secret)
        left = [e for e in self.leases if e.settling is None and mark in e.owner.split(":")]
        for episode in left:
            self.fence(episode, request.reason)
        self.notify()
        return wire.Released(episodes=len(left))

    async def erase(self, episodes: Iterable[str], mark: str) -> None:
        """Give up, drop and erase what can be now of those episodes whose owner has the mark. Raises StoreUnavailable
        where the store takes nothing: ask again."""
        self.require_recovered()
        await self.store.write()  # what was noted before is there to be read
        own = []
        for name in episodes:
            record = await self.store.episode(name)
            if record is not None and mark in record.owner.split(":"):
                own.append(name)
        for episode in [e for e in self.leases if e.id in own and e.settling is None]:
            self.give_up(episode, "aborted", "erased")
        self.drop(self.groups.drop_samples(own), "erased")
        self.note_streams()
        self.notify()
        await self.store.write(*map(EpisodeErased, own))

    async def list_tasks(self, request: wire.TaskList) -> wire.TaskListKnown:
        self.require_recovered()
        self.groups.streams.check(request.stream)
        async with self._listing:
            sampler, ids = self.groups.streams.samplers.get(request.stream), request.ids
            if sampler is not None:
                sampler.check(request.digest, request.count)
            elif ids is not None:
                if len(ids) != request.count or wire.tasks_digest(ids) != request.digest:
                    raise errors.InvalidRequest(
                        f"expected {request.count} ids with the digest {request.digest[:12]}, found {len(ids)} with "
                        f"{wire.tasks_digest(ids)[:12]}; make it with swarm.wire.tasks_digest",
                        param="ids",
                    )
                listed = TaskListRow(request.stream, request.digest, ids)
                await self.store.write(listed)
                for group in self.groups.list_tasks(listed):
                    self.drop(group.ended, "partial_group")
                self.note_streams()
            return wire.TaskListKnown(stream=request.stream, known=sampler is not None or ids is not None)

    async def set_shares(self, shares: Mapping[str, float]) -> wire.StreamList:
        """Give streams new shares, from the next group that begins, once they are durable. They are written before they
        hold, and again after: what moved between may have been noted with the old ones."""
        self.require_recovered()
        await self.store.write(*self.groups.streams.list_rows(shares=shares))
        self.groups.set_shares(shares)
        moved = self.groups.streams.take_moved()
        await self.store.write(*moved)
        log.info("event=shares %s", " ".join(f"{row.name}={row.share}" for row in moved))
        self.notify()
        return self.streams()

    def streams(self) -> wire.StreamList:
        self.require_recovered()
        alive = Counter(group.stream for group in self.groups)
        return wire.StreamList(streams=self.groups.streams.status(alive, self.groups.count_missing()))

    def recover(self, recovered: RecoveredState) -> None:
        groups = self.groups
        self.counts.update(recovered.counts)
        self.counts["begun"] = groups.groups_named = recovered.begun
        groups.finish_update(recovered.step)  # what was settled and not learned is learned before anything begins
        for name, (fencing_token, state, _) in recovered.fencing_tokens.items():
            self.leases.remember(name, ClosedEpisode("ended" if state == "dropped" else state, fencing_token))
        groups.streams.recover(recovered.streams, self.job.streams, recovered.lists)
        groups.restore_plays(recovered.played)
        for sample in recovered.prepared:
            self.leases.prepare(sample)
        empty, filtered = groups.recover(recovered.pool, recovered.prepared)
        for sample in empty:
            self.drop([sample], sample.untrained_reason or "")
        self.drop(filtered, "constant_group")
        self.drop_outdated()
        self.drop(groups.drop_heavy(), "pool_bytes")
        self.note_streams()
        self.notify()

    def finish_update(self, version: int) -> None:
        self.version = version
        self.groups.finish_update(version)
        self.notify()

    def metrics(self) -> dict[str, float]:
        counts = {f"lease/{name}": float(count) for name, count in sorted(self.counts.items())}
        return {**counts, "pool/bytes": float(self.groups.taken_bytes)}

    def pause_admission(self, episodes: int, *, ending: bool = False) -> None:
        """Begin no training episode before so many evaluation episodes, of the version that serves, have ended, all of
        one owner and stream: others play other tasks, or the same ones again. None at all where training is `ending`
        with them."""
        self.pending_evaluations = episodes
        self.ending = ending
        self.evaluations = {}

    def finish(self) -> None:
        """The last step is done: what still waits, or ends from now on, is dropped."""
        self.finished = True
        self.drop(self.groups.drop_all(), "job_finished")

    def fail(self, error: errors.SwarmError) -> None:
        self.gate.fail(error)
        for episode in self.leases:
            self.leases.interrupt(episode, error)
        self.notify()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition on groups and leases; raise BackendError once no batch can ever come."""
        while not condition():
            if self.groups.starved is not None:
                raise BackendError(self.groups.starved)
            self.changed.clear()
            await self.changed.wait()

    async def quiesce(self) -> None:
        """Shut the gate and wait until nothing generates; a call longer than `drain_timeout_s` is fenced."""
        self.gate.shut()
        if await self._wait_until_idle():
            return
        for episode in self.leases:
            if any(call.generating for call in episode.calls):
                self.fence(episode, "held_up_update")
        if not await self._wait_until_idle():
            raise BackendError("the engine did not cancel its requests; no update is possible while they run")

    async def wait_for_batch(self) -> tuple[Group, ...]:
        """Wait until a batch is there and nothing generates; return it and begin the next. The gate is shut then. A
        batch can fall apart while calls are waited for (its oldest dropped for bytes, shares changed): wait again."""
        while True:
            await self.wait_until(lambda: self.groups.complete)
            await self.quiesce()
            if self.groups.complete:
                return self.take_batch()
            self.gate.open()

    def take_batch(self) -> tuple[Group, ...]:
        """Return the complete batch's groups and begin the next. Where the streams stand then is written with it."""
        batch = self.groups.take()
        self.counts["trained"] += sum(len(group.ended) for group in batch)
        self.full_since = None
        self.drop_outdated()
        return batch

    async def _wait_until_idle(self) -> bool:
        """Return whether nothing generates within `drain_timeout_s`, to which time the server stood still is added."""
        drain, began = self.job.drain_timeout_s, self.clock()
        if await self.gate.wait_until_empty(drain):
            return True
        return self.clock() - began < drain / 2 and await self.gate.wait_until_empty(drain)

    def sweep(self) -> None:
        now = self.clock()
        for episode in [e for e in self.leases if e.expires_at <= now and not e.calls and e.settling is None]:
            self.fence(episode, "lease_expired")
        if self.pending_evaluations:  # the batch stands: nobody holds it up, and no group could be completed
            self._straggling_since = None
            self.teams.sweep()
            self.notify()
            return
        for episode in self._find_stuck():
            self.fence(episode, "held_up_batch")
        for group in self.groups.drop_idle():
            log.warning("event=drop_group group=%r episodes=%d", group.name, len(group.ended))
            self.drop(group.ended, "failed_task" if group.skipped else "partial_group")
        self.groups.streams.reclaim(self.groups.taken)
        self.teams.sweep()
        self.notify()

    def _find_stuck(self) -> list[LeasedEpisode]:
        """Return who holds a full batch up: stragglers whose clients are silent, and who is over its own time. Where
        their clients gave them none, heartbeats alone give HEARTBEATS_ONLY_S."""
        now = self.clock()
        if self.full_since is None:
            self._straggling_since = None
            return []
        silent_since, waited_for = -math.inf, len(self.admission) > 0
        if 2 * self.groups.collected < self.job.episodes_per_step:  # there are no stragglers before half has ended
            self._straggling_since = None
        elif self._straggling_since is None:
            self._straggling_since = now
        if self._straggling_since is not None and self._straggling_since <= now - self.job.drain_timeout_s:
            silent_since = now - self.job.drain_timeout_s
        stuck = []
        for episode in self.leases:
            silent, due = not episode.calls and episode.heard_at <= silent_since, episode.due_at
            if due is not None and (due <= now or episode.tree.nodes or not waited_for):
                silent = silent or due <= now
            else:  # its client gave it no time, or makes no call while others wait for a place it could hold for a week
                silent = silent or (not episode.calls and episode.active_at <= now - HEARTBEATS_ONLY_S)
            if silent and episode.settling is None:
                stuck.append(episode)
        awaited = self.groups.awaited if stuck else set()
        return [e for e in stuck if e.id in awaited]
