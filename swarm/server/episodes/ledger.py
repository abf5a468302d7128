"""The ledger of one training's episodes: the state that rollout, teams, sweeps and calls share, and its bookkeeping.

It holds leases, groups, the line of those who wait for room, the gate of generation, the store and the counts; each
verb changes them together. Every episode that leaves without being trained is counted with its reason; at all times

    begun = open and prepared + waiting for their batch + trained + evaluated + aborted + fenced
            + drop_no_calls + drop_no_trained_calls + drop_partial_group + drop_failed_task + drop_constant_group
            + drop_pool_bytes + drop_stale + drop_job_finished + drop_erased

Knows no learner and no HTTP, and decides nothing: who is fenced or dropped, and when, is its callers' business.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from itertools import islice
from typing import Literal, NamedTuple

from swarm.backends.protocols import Renderer
from swarm.errors import EngineUnavailable, EpisodeEnded, StoreUnavailable
from swarm.job import Job
from swarm.server.batches.batch import Groups
from swarm.server.episodes.admission import Admission, Allowance
from swarm.server.episodes.call_rewards import call_rewards
from swarm.server.episodes.episodes import Closing, LeasedEpisode, Leases, PreparedEpisode
from swarm.server.episodes.trained_agents import require_trained
from swarm.server.shared.gate import Gate
from swarm.server.shared.states import StateMachine
from swarm.store import Closed, Sample, Store
from swarm.wire import EndRequest, ServerState

log = logging.getLogger(__name__)

Outcome = tuple[float, bool | None]
"""Reward of an evaluation episode, and whether it succeeded."""
RETRY_AFTER_S = 1.0
LOST_KEPT = 50
REASON_KEPT = 500
"""Characters of the reason of an episode that was given up, which are a client's own words."""
SETTLING_S = 30.0
"""Seconds after which those who wait for a store that does not answer are told so."""


class LostEpisode(NamedTuple):
    """One that was dropped or fenced: when (Unix time), whose, and why."""

    at: float
    episode: str
    stream: str
    owner: str
    reason: str


class Ledger:
    """The episodes of one loaded job. Lives on one event loop."""

    def __init__(self, job: Job, machine: StateMachine, store: Store, clock: Callable[[], float]) -> None:
        self.job = job
        self.machine = machine
        self.store = store
        self.clock = clock
        self.life = secrets.token_hex(4)
        """Begins the names of the episodes of this life of the server: those of another one never come again."""
        self.leases = Leases(job.lease_ttl_s, clock, self.life)
        self.groups = Groups(job, clock)
        self.allowance = Allowance(clock)
        self.gate = Gate()
        self.counts: Counter[str] = Counter()
        """Since the training began: begun, ended, trained, evaluated, aborted, fenced, throttled, calls, and
        drop_<reason>; every fence has its drop_<reason> too. And, of this life of the server, tasks_skipped
        and side_conversations: those beyond the first of episodes of which all is trained, whoever spoke."""
        self.skipped: Counter[str] = Counter()
        """The tasks of these, the last ones: plays of them failed again and again."""
        self.sampled_tokens = 0
        """Ids the engine sampled in training episodes since it was started, whatever became of them."""
        self.version = 0
        """The policy version that serves now."""
        self.renderer: Renderer | None = None
        """The backend's, once it was started; nothing begins before."""
        self.finished = False
        """The job's last step is done."""
        self._evaluation_draws = (-1, random.Random())
        self.awaited = 0
        """Episodes of the evaluation of this version that training waits for; no training episode begins meanwhile."""
        self.ending = False
        """No training episode begins any more: the last step's weights are being evaluated."""
        self.evaluations: dict[tuple[str, str], dict[str, Outcome | None]] = {}
        """Those that began meanwhile, by owner and stream (each is an evaluation of its own), and what they came to."""
        self.evaluated: list[Outcome] = []
        """Those of the first evaluation that was whole."""
        self.lost: deque[LostEpisode] = deque(maxlen=LOST_KEPT)
        """The last ones that were dropped or fenced, the oldest first."""
        self.refusal: str | None = None
        """What the last refused model call was told."""
        self.full_since: float | None = None
        """When the batch that is waited for was full, None before it is."""
        self.line: Admission[LeasedEpisode] = Admission(
            lambda episode: self.give_up(episode, "aborted", "left the line")
        )
        self.changed = asyncio.Event()
        """Set at each change that may complete the batch; who waits for one clears it."""

    @property
    def unplayed(self) -> int:
        """How many of the awaited episodes have not ended in the evaluation that is the furthest."""
        ended = (sum(play is not None for play in self._counted(plays)) for plays in self.evaluations.values())
        return self.awaited and self.awaited - max(ended, default=0)

    def evaluation_began(self, episode: LeasedEpisode) -> None:
        """Count an evaluation episode as one that training waits for, where it does and as many are not there yet."""
        if self.awaited:
            self.evaluations.setdefault((episode.owner, episode.stream), {})[episode.id] = None

    def evaluation_over(self, episode: LeasedEpisode, outcome: Outcome | None) -> None:
        """Take what an evaluation episode came to, None where it was given up; the first ones to begin make a whole.

        Not the first ones to end: these would be the short ones.
        """
        plays = self.evaluations.get((episode.owner, episode.stream), {})
        if episode.id not in plays:
            return
        if outcome is None:
            del plays[episode.id]
        else:
            plays[episode.id] = outcome
        first = [play for play in self._counted(plays) if play is not None]
        if self.awaited and len(first) == self.awaited:
            self.awaited, self.evaluated = 0, first
            self.groups.touch()

    def _counted(self, plays: Mapping[str, Outcome | None]) -> Iterator[Outcome | None]:
        return islice(plays.values(), self.awaited)

    def require_recovered(self) -> None:
        """Raise EngineUnavailable while what was written may not have been read back."""
        if self.machine.state in (ServerState.OFFLINE, ServerState.BOOTING):
            raise EngineUnavailable("the engine is still booting; try again", retry_after=RETRY_AFTER_S)

    def evaluation_seed(self) -> int:
        """Return the seed of an evaluation's next call: which ones come follows from the job's seed and the version."""
        if self._evaluation_draws[0] != self.version:
            self._evaluation_draws = (self.version, random.Random(f"evaluations {self.job.seed} {self.version}"))
        return self._evaluation_draws[1].getrandbits(63)

    def notify(self) -> None:
        """Something changed that may admit a waiter or complete the batch."""
        self.line.pump()
        self.changed.set()

    def sample_of(self, episode: LeasedEpisode, request: EndRequest) -> Sample:
        """Return an open episode with the reward it ends with.

        Raises InvalidRequest for rewards of what it does not have, and where none of its agents is to be trained.
        """
        if episode.kind == "train":
            require_trained(self.job.train_agents, episode.tree.nodes)
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
            call_rewards=call_rewards(request, episode.tree.nodes),
            turn=self.groups.turns.of(episode.id),
            code=episode.code,
        )

    async def settle(
        self, episode: LeasedEpisode | PreparedEpisode, work: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        """Do the work that closes or prepares an episode, once: whoever comes meanwhile shares its outcome.

        The work goes on when its caller is gone, or was told after SETTLING_S to ask again (StoreUnavailable). Model
        calls in flight end first, so that nothing is captured after.
        """
        if episode.settling is None:
            if isinstance(episode, LeasedEpisode):
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
        if (reason := self.useless(sample)) is not None:
            self.groups.leave(sample.episode, ended=True)
            self.store.note(*self.groups.streams.moved())
            self.drop([sample], reason)
            return
        self.counts["side_conversations"] += sample.side_conversations
        filtered = self.groups.end(sample)
        self.store.note(*self.groups.streams.moved())  # before what is dropped: a crash between must not undo a turn
        self.drop(filtered, "constant_group")
        self.drop(self.groups.drop_stale(), "stale")
        self.drop(self.groups.drop_heavy(), "pool_bytes")

    def useless(self, sample: Sample) -> str | None:
        """Return why an episode that ends now is dropped at once, None for one that may be trained."""
        if self.finished:
            return "job_finished"
        return None if sample.teaches else untrained(sample)

    def drop(self, samples: Iterable[Sample], reason: str) -> None:
        """Count samples that ended and will not be trained, and write down why."""
        for sample in samples:
            self.counts[f"drop_{reason}"] += 1
            self.lost.append(LostEpisode(time.time(), sample.episode, sample.stream, sample.owner, reason))
            log.warning("event=drop episode=%s owner=%r reason=%s", sample.episode, sample.owner, reason)
            self.store.note(closed(sample, "dropped", reason))

    def fence(self, episode: LeasedEpisode, reason: str) -> None:
        """Take an episode from its owner; its place is free again."""
        self.counts[f"drop_{reason}"] += 1
        self.lost.append(LostEpisode(time.time(), episode.id, episode.stream, episode.owner, reason))
        log.warning("event=fence episode=%s owner=%r reason=%s", episode.id, episode.owner, reason)
        self.give_up(episode, "fenced", reason)

    def give_up(self, episode: LeasedEpisode, state: Closing, reason: str, *, failed: bool = False) -> None:
        """Close an open episode without a reward, and count and note it; its place is free again, unless its agent
        `failed` its task too often."""
        self.counts[state] += 1
        self.leases.close(episode, state, reason=reason if state == "fenced" else None)
        self.store.note(Closed(episode.id, state, episode.epoch, reason=reason[:REASON_KEPT] or None))
        if episode.kind == "eval":
            self.evaluation_over(episode, None)
        elif not failed:
            self.groups.leave(episode.id)
        elif self.groups.fail(episode.id):
            self._skip(episode, reason)

    def _skip(self, episode: LeasedEpisode, reason: str) -> None:
        """Count and name a task that is passed over in this pass, as its plays failed again and again."""
        self.counts["tasks_skipped"] += 1
        self.skipped[episode.task_id] += 1
        if len(self.skipped) > LOST_KEPT:
            del self.skipped[next(iter(self.skipped))]
        log.warning("event=task_skipped task=%r stream=%r last=%r", episode.task_id, episode.stream, reason[:200])
        self.store.note(*self.groups.streams.moved())

    def free(self, prepared: PreparedEpisode) -> None:
        """Give a prepared episode's place away, if it has one."""
        if self.groups.of(prepared.id) is not None:
            self.groups.leave(prepared.id)

    def outdate(self) -> None:
        """Give up what no batch can take any more (`swarm.server.batches.staleness`)."""
        self.drop(self.groups.drop_stale(), "stale")
        outdated = self.groups.outdated
        for episode in [e for e in self.leases if e.id in outdated and e.settling is None]:
            self.fence(episode, "outdated")
        for prepared in [p for p in self.leases.prepared if p.id in outdated and p.settling is None]:
            self.free(prepared)

    async def _settled(
        self, episode: LeasedEpisode | PreparedEpisode, work: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        try:
            while isinstance(episode, LeasedEpisode) and episode.calls:  # noqa: ASYNC110  -- a call tells nobody of its end
                await asyncio.sleep(0.001)
            await work()
        finally:
            episode.settling = None
            self.leases.renew(episode)
            self.notify()


def untrained(sample: Sample) -> str:
    """Return why an ended episode has nothing to train."""
    return "no_trained_calls" if sample.nodes else "no_calls"


def closed(sample: Sample, state: Literal["ended", "dropped"], reason: str | None = None, epoch: int = 1) -> Closed:
    """Return what is written of an episode that ended with its reward."""
    return Closed(
        sample.episode, state, epoch, sample.reward, sample.success, sample.weight, sample.group or None, reason,
        sample.turn, call_rewards=sample.call_rewards,
    )  # fmt: skip
