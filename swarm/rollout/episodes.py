"""Episodes: leases, and the ledger of one training's counts.

A lease lives `ttl_s` after the last call or heartbeat and while a call is in flight; FIRST_TTLS times as long before
the first. When it runs out the episode is fenced: its token grows, and the late owner gets LeaseLost. `notify` must be
called after every change that may make room. Every episode that leaves untrained is counted with its reason; at all
times

    begun = open and prepared + waiting for their batch + trained + evaluated + aborted + fenced
            + drop_no_calls + drop_no_trained_calls + drop_partial_group + drop_failed_task + drop_constant_group
            + drop_pool_bytes + drop_stale + drop_job_finished + drop_erased
"""

import asyncio
import logging
import random
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, Protocol

from swarm.backends.protocols import CallReward
from swarm.errors import EngineUnavailable, EpisodeEnded, InvalidRequest, LeaseLost, StoreUnavailable, SwarmError
from swarm.job import Job
from swarm.rendering.messages import Renderer
from swarm.rollout.groups import Groups
from swarm.rollout.keys import Claims
from swarm.rollout.state import Admission, BeginQuota, GenerationGate, StateMachine
from swarm.snapshot import DropSnapshot
from swarm.store.changes import EpisodeClosed
from swarm.store.tables import Sample
from swarm.store.writer import Store
from swarm.timelines import CallTree, Node
from swarm.wire import BeginRequest, EndAck, EndRequest, EpisodeKind, ServerState

log = logging.getLogger(__name__)
Closing = Literal["ended", "aborted", "fenced"]
State = Literal["open", "prepared", "ended", "aborted", "fenced"]
Outcome = tuple[float, bool | None]
"""Reward of an evaluation episode, and whether it succeeded."""
RETRY_AFTER_S = 1.0
LOST_KEPT = 50
REASON_KEPT = 500
"""Characters of a reason, which are a client's own words, and of a refusal's message."""
SETTLING_S = 30.0
"""Seconds after which those who wait for a store that does not answer are told so."""
_MOST_SHOWN = 20


def call_rewards(request: EndRequest, nodes: Sequence[Node]) -> tuple[CallReward, ...]:
    """Return the rewards of all calls; none where every call is worth the same and nobody said which agent made it.
    Raises InvalidRequest for a call or an agent that the episode does not have."""
    agents = {node.agent for node in nodes if node.agent}
    who = "agents (they name themselves by the header X-Ajet-Agent, or by KEY/NAME for their key)"
    for field_name, named, there, what in (
        ("by_call", {str(index) for index in request.by_call}, {str(node.index) for node in nodes}, "calls"),
        ("by_agent", set(request.by_agent), agents, who),
    ):
        if unknown := sorted(named - there):
            known = ", ".join(sorted(there)[:_MOST_SHOWN]) or "none"
            raise InvalidRequest(
                f"`{field_name}` has a reward for {unknown[0][:80]!r}, which is none of the episode's {what}: {known}; "
                "the episode is still open",
                param=field_name,
            )
    if not (request.by_call or request.by_agent or agents):
        return ()
    by_agent = {node.index: request.by_agent.get(node.agent, request.reward) for node in nodes}
    worth = {**by_agent, **request.by_call}
    return tuple(CallReward(node.index, worth[node.index], node.agent) for node in nodes)


FIRST_TTLS = 4
_WHY_FENCED = {
    "lease_expired": "no call or heartbeat came in time",
    "held_up_batch": "it held up a full batch",
    "held_up_update": "it held up an update",
    "outdated": "it was too old for the next batch",
}
"""Where nothing is said here, or known any more, its client or the server was started again."""
CLOSED_KEPT = 65_536
"""Closed episodes remembered for a precise answer; older ones are all answered with EpisodeEnded."""


class Interruptible(Protocol):
    """A call in flight; an interrupted one ends now, and its client is told the error."""

    @property
    def generating(self) -> bool: ...

    def interrupt(self, error: SwarmError) -> None: ...


@dataclass(slots=True, eq=False)
class LeasedEpisode:
    """One play of a task. `active_at` is when its agent last made or finished a call, `heard_at` when its client was
    last heard of, by a call or a heartbeat. `due_at` is when the time its client gave it is over, if it gave one.
    `version` is the policy that served when it began, `code` the sha256 of its agent's files, if its client said it.
    `settling` is the work of writing its end or its team's first phase down, while that goes on. `refusals` counts its
    refused calls by their error's code, `refusal` is what the last one was told."""

    id: str
    task_id: str
    stream: str
    kind: EpisodeKind
    owner: str
    tree: CallTree
    expires_at: float
    active_at: float
    heard_at: float
    due_at: float | None = None
    version: int = 0
    code: str | None = None
    fencing_token: int = 1
    begun_at: float = 0.0
    calls: set[Interruptible] = field(default_factory=set)
    settling: asyncio.Task[None] | None = None
    refusals: Counter[str] = field(default_factory=Counter)
    refusal: str | None = None


@dataclass(slots=True, eq=False)
class PreparedEpisode:
    """A prepared episode, whole but undecided, `since` then; a decider aborts itself at `expires_at`."""

    sample: Sample
    since: float
    expires_at: float
    fencing_token: int = 1
    settling: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self.sample.episode


Unclosed = LeasedEpisode | PreparedEpisode


@dataclass(frozen=True, slots=True)
class ClosedEpisode:
    """What is remembered of a closed episode; `fencing_token` is the one that is valid since."""

    state: Closing
    fencing_token: int
    tokens: int | None = None
    """Tokens sampled in it; None where a former life of the server knew them."""
    refusals: Mapping[str, int] = field(default_factory=dict)
    refusal: str | None = None
    """As of a `LeasedEpisode`."""
    end: int | None = None
    """Hash of the end that closed it; None where it was closed otherwise, or in a former life."""
    reason: str | None = None
    """Why it was fenced, or why nothing of it could be trained as it ended."""


class Leases:
    """All episodes of one training; open ones whole, closed ones as a word. `incarnation` begins the names of all
    episodes that are begun here; those of a former life of the server have another."""

    def __init__(self, ttl_s: float, clock: Callable[[], float], incarnation: str = "") -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._incarnation = incarnation
        self._open: dict[str, LeasedEpisode] = {}
        self._prepared: dict[str, PreparedEpisode] = {}
        self.closed: dict[str, ClosedEpisode] = {}

    def __len__(self) -> int:
        return len(self._open) + len(self._prepared)

    def __iter__(self) -> Iterator[LeasedEpisode]:
        return iter(list(self._open.values()))

    @property
    def prepared(self) -> tuple[PreparedEpisode, ...]:
        return tuple(self._prepared.values())

    def begin(
        self, episode_id: str, request: BeginRequest, task_id: str, tree: CallTree, version: int = 0
    ) -> LeasedEpisode:
        now = self._clock()
        episode = LeasedEpisode(
            episode_id, task_id, request.stream, request.kind, request.owner, tree, now + FIRST_TTLS * self._ttl_s, now,
            now, None if request.timeout_s is None else now + request.timeout_s, version, request.code, begun_at=now,
        )  # fmt: skip
        self._open[episode_id] = episode
        return episode

    def find(self, claims: Claims, repeats: Closing | None = None) -> LeasedEpisode | None:
        """Return the open episode of a key, or None where it was closed by the same call before (`repeats`). Raises
        LeaseLost for one that is fenced, or unknown and of a former life, EpisodeEnded for one prepared or over."""
        name = claims.episode
        episode = self._open.get(name)
        if episode is not None and episode.fencing_token == claims.fencing_token:
            return episode
        closed = self.closed.get(name)
        if closed is not None and closed.fencing_token != claims.fencing_token:
            why = _WHY_FENCED.get(closed.reason or "", "its client or the server was restarted")
            raise LeaseLost(f"episode {name} was fenced: {why} (a lease is {self._ttl_s:g} s); begin a new one")
        if closed is not None and closed.state == repeats:
            return None
        if name in self._prepared:
            raise EpisodeEnded(f"episode {name} is prepared: it waits for its team; commit or abort it")
        if closed is None and not name.startswith(self._incarnation):
            raise LeaseLost(f"episode {name} was lost when the server was restarted; begin a new one")
        state = closed.state if closed is not None else "closed long ago"
        raise EpisodeEnded(f"episode {name} is {state}; begin a new one")

    def find_and_renew(self, claims: Claims) -> LeasedEpisode:
        """Return the open episode of a key and renew its lease; raise what a late owner is told."""
        episode = self.find(claims)
        assert episode is not None  # `find` returns None for `repeats` alone
        if episode.settling is not None:
            raise EpisodeEnded(f"episode {episode.id} is being ended; begin a new one")
        self.renew(episode)
        return episode

    def find_prepared(self, claims: Claims) -> PreparedEpisode | None:
        prepared = self._prepared.get(claims.episode)
        return prepared if prepared is not None and prepared.fencing_token == claims.fencing_token else None

    def state_of(self, episode_id: str) -> State | None:
        if episode_id in self._open:
            return "open"
        if episode_id in self._prepared:
            return "prepared"
        closed = self.closed.get(episode_id)
        return closed.state if closed is not None else None

    def acknowledge_end(self, episode_id: str, end: int) -> EndAck:
        """Return what is told of an episode that ended; EpisodeEnded where that was with another `end` than this."""
        closed = self.closed.get(episode_id, ClosedEpisode("ended", 1))
        if closed.end not in (None, end):
            raise EpisodeEnded(f"episode {episode_id} was ended with another reward, which counts; begin a new one")
        return EndAck(
            episode_id=episode_id, state="ended" if closed.reason is None else "dropped", tokens=closed.tokens,
            reason=closed.reason, refused=sum(closed.refusals.values()), refusal=closed.refusal,
        )  # fmt: skip

    def renew(self, episode: Unclosed) -> None:
        now = self._clock()
        episode.expires_at = now + self._ttl_s
        if isinstance(episode, LeasedEpisode):
            episode.heard_at = now

    def touch(self, episode: LeasedEpisode) -> None:
        episode.active_at = self._clock()
        self.renew(episode)

    def prepare(self, sample: Sample, fencing_token: int = 1) -> None:
        now = self._clock()
        self._open.pop(sample.episode, None)
        self._prepared[sample.episode] = PreparedEpisode(sample, now, now + self._ttl_s, fencing_token)

    def close(self, episode: Unclosed, state: Closing, end: int | None = None, reason: str | None = None) -> None:
        """Close an open or prepared episode; calls in flight end with the error later calls will get."""
        refusals: tuple[Mapping[str, int], str | None] = ({}, None)
        if isinstance(episode, PreparedEpisode):
            del self._prepared[episode.id]
            nodes: Sequence[Node] = episode.sample.nodes
        else:
            del self._open[episode.id]
            nodes, refusals = episode.tree.nodes, (episode.refusals, episode.refusal)
        if state == "fenced":
            episode.fencing_token += 1
        tokens = sum(len(node.sampled) for node in nodes)
        self.remember(episode.id, ClosedEpisode(state, episode.fencing_token, tokens, *refusals, end, reason))
        if isinstance(episode, LeasedEpisode):
            fenced = LeaseLost(f"episode {episode.id} was fenced; its call was cancelled")
            over = EpisodeEnded(f"episode {episode.id} is {state}; its call was cancelled")
            self.interrupt(episode, fenced if state == "fenced" else over)

    def remember(self, episode_id: str, closed: ClosedEpisode) -> None:
        self.closed[episode_id] = closed
        if len(self.closed) > CLOSED_KEPT:
            del self.closed[next(iter(self.closed))]

    def interrupt(self, episode: LeasedEpisode, error: SwarmError) -> None:
        for call in list(episode.calls):
            call.interrupt(error)


class EpisodeRegistry:
    """The episodes of one loaded job. Lives on one event loop."""

    def __init__(self, job: Job, machine: StateMachine, store: Store, clock: Callable[[], float]) -> None:
        self.job = job
        self.machine = machine
        self.store = store
        self.clock = clock
        self.incarnation = secrets.token_hex(4)
        """Begins the names of the episodes of this life of the server: those of another one never come again."""
        self.leases = Leases(job.lease_ttl_s, clock, self.incarnation)
        self.groups = Groups(job, clock)
        self.begin_quota = BeginQuota(clock)
        self.gate = GenerationGate()
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
        self.pending_evaluations = 0
        """Episodes of the evaluation of this version that training waits for; no training episode begins meanwhile."""
        self.ending = False
        """No training episode begins any more: the last step's weights are being evaluated."""
        self.evaluations: dict[tuple[str, str], dict[str, Outcome | None]] = {}
        """Those that began meanwhile, by owner and stream (each is an evaluation of its own), and what they came to."""
        self.evaluated: list[Outcome] = []
        """Those of the first evaluation that was whole."""
        self.lost: deque[DropSnapshot] = deque(maxlen=LOST_KEPT)
        """The last ones that were dropped or fenced, the oldest first."""
        self.refusal: str | None = None
        """What the last refused model call was told."""
        self.full_since: float | None = None
        """When the batch that is waited for was full, None before it is."""
        self.admission: Admission[LeasedEpisode] = Admission(
            lambda episode: self.give_up(episode, "aborted", "left the line")
        )
        self.changed = asyncio.Event()
        """Set at each change that may complete the batch; who waits for one clears it."""

    @property
    def unplayed(self) -> int:
        """How many of the awaited episodes have not ended in the evaluation that is the furthest."""
        ended = (len(self._first_outcomes(plays)) for plays in self.evaluations.values())
        return self.pending_evaluations and self.pending_evaluations - max(ended, default=0)

    def begin_evaluation(self, episode: LeasedEpisode) -> None:
        """Count an evaluation episode as one that training waits for, where it does and as many are not there yet."""
        if self.pending_evaluations:
            self.evaluations.setdefault((episode.owner, episode.stream), {})[episode.id] = None

    def end_evaluation(self, episode: LeasedEpisode, outcome: Outcome | None) -> None:
        """Take what an evaluation episode came to, None where it was given up; the first ones to begin make a whole,
        not the first ones to end: these would be the short ones."""
        plays = self.evaluations.get((episode.owner, episode.stream), {})
        if episode.id not in plays:
            return
        if outcome is None:
            del plays[episode.id]
        else:
            plays[episode.id] = outcome
        first = self._first_outcomes(plays)
        if self.pending_evaluations and len(first) == self.pending_evaluations:
            self.pending_evaluations, self.evaluated = 0, first
            for group in self.groups:  # the time in which none is completed counts from now: nobody could play
                group.touched_at = self.clock()

    def _first_outcomes(self, plays: Mapping[str, Outcome | None]) -> list[Outcome]:
        return [play for play in islice(plays.values(), self.pending_evaluations) if play is not None]

    def evaluation_seed(self) -> int:
        """Return the seed of an evaluation's next call: which ones come follows from the job's seed and the version."""
        if self._evaluation_draws[0] != self.version:
            self._evaluation_draws = (self.version, random.Random(f"evaluations {self.job.seed} {self.version}"))
        return self._evaluation_draws[1].getrandbits(63)

    def require_recovered(self) -> None:
        """Raise EngineUnavailable while what was written may not have been read back."""
        if self.machine.state in (ServerState.OFFLINE, ServerState.BOOTING):
            raise EngineUnavailable("the engine is still booting; try again", retry_after=RETRY_AFTER_S)

    def notify(self) -> None:
        self.admission.admit_waiting()
        self.changed.set()

    def note_streams(self) -> None:
        self.store.note(*self.groups.streams.take_moved())

    def make_sample(self, episode: LeasedEpisode, request: EndRequest) -> Sample:
        """Return an open episode with the reward it ends with. Raises InvalidRequest for rewards of what it does not
        have, and where it has calls and none is of an agent that is to be trained."""
        agents, wanted = {node.agent for node in episode.tree.nodes}, self.job.train_agents
        if episode.kind == "train" and wanted and agents and agents.isdisjoint(wanted):
            callers = ", ".join(repr(name) for name in sorted(agents)[:_MOST_SHOWN] if name)
            raise InvalidRequest(
                f"expected a call of an agent that the job trains (`train_agents`: {', '.join(map(repr, wanted))}); "
                f"found calls of {callers or 'none that says its name'}. Let the agent name itself (the header "
                "X-Ajet-Agent, or KEY/NAME for its key), or change the job; the episode is still open",
                param="train_agents",
            )
        group = self.groups.group_of(episode.id)
        return Sample(
            episode=episode.id, task_id=episode.task_id, stream=episode.stream, owner=episode.owner,
            group=group.name if group is not None else "", reward=request.reward, success=request.success,
            weight=request.weight, nodes=tuple(episode.tree.nodes),
            call_rewards=call_rewards(request, episode.tree.nodes), task_index=self.groups.task_index_of(episode.id),
            code=episode.code,
        )  # fmt: skip

    async def settle(self, episode: Unclosed, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Do the work that closes or prepares an episode, once: whoever comes meanwhile shares its outcome. Model calls
        in flight end first. It goes on when its caller is gone, or was told after SETTLING_S to ask again."""

        async def run() -> None:
            try:
                while isinstance(episode, LeasedEpisode) and episode.calls:  # noqa: ASYNC110  -- a call tells nobody of its end
                    await asyncio.sleep(0.001)
                await work()
            finally:
                episode.settling = None
                self.leases.renew(episode)
                self.notify()

        if episode.settling is None:
            if isinstance(episode, LeasedEpisode):
                self.leases.interrupt(episode, EpisodeEnded(f"episode {episode.id} is being ended"))
            episode.settling = asyncio.create_task(run())
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
        self.counts["ended"] += 1
        if (reason := self.find_drop_reason(sample)) is not None:
            self.groups.leave(sample.episode, ended=True)
            self.note_streams()
            self.drop([sample], reason)
            return
        self.counts["side_conversations"] += sample.side_conversations
        filtered = self.groups.end(sample)
        self.note_streams()  # before what is dropped: a crash between must not undo a turn
        self.drop(filtered, "constant_group")
        self.drop(self.groups.drop_stale(), "stale")
        self.drop(self.groups.drop_heavy(), "pool_bytes")

    def find_drop_reason(self, sample: Sample) -> str | None:
        return "job_finished" if self.finished else sample.untrained_reason

    def drop(self, samples: Iterable[Sample], reason: str) -> None:
        for sample in samples:
            self._count_lost("drop", sample.episode, sample.stream, sample.owner, reason)
            self.store.note(EpisodeClosed(sample.episode, "dropped", reason=reason))

    def fence(self, episode: LeasedEpisode, reason: str) -> None:
        self._count_lost("fence", episode.id, episode.stream, episode.owner, reason)
        self.give_up(episode, "fenced", reason)

    def _count_lost(self, event: str, episode: str, stream: str, owner: str, reason: str) -> None:
        self.counts[f"drop_{reason}"] += 1
        self.lost.append(DropSnapshot(at=time.time(), episode=episode, stream=stream, owner=owner, reason=reason))
        log.warning("event=%s episode=%s owner=%r reason=%s", event, episode, owner, reason)

    def give_up(self, episode: LeasedEpisode, state: Closing, reason: str, *, failed: bool = False) -> None:
        """Close an open episode without a reward; a task that its agent `failed` too often is skipped."""
        self.counts[state] += 1
        self.leases.close(episode, state, reason=reason if state == "fenced" else None)
        self.store.note(EpisodeClosed(episode.id, state, episode.fencing_token, reason=reason[:REASON_KEPT] or None))
        if episode.kind == "eval":
            self.end_evaluation(episode, None)
        elif not failed:
            self.groups.leave(episode.id)
        elif self.groups.fail(episode.id):
            self.counts["tasks_skipped"] += 1
            self.skipped[episode.task_id] += 1
            if len(self.skipped) > LOST_KEPT:
                del self.skipped[next(iter(self.skipped))]
            log.warning("event=task_skipped task=%r stream=%r last=%r", episode.task_id, episode.stream, reason[:200])
            self.note_streams()

    def free_place(self, prepared: PreparedEpisode) -> None:
        if self.groups.group_of(prepared.id) is not None:
            self.groups.leave(prepared.id)

    def drop_outdated(self) -> None:
        self.drop(self.groups.drop_stale(), "stale")
        outdated = self.groups.outdated
        for episode in [e for e in self.leases if e.id in outdated and e.settling is None]:
            self.fence(episode, "outdated")
        for prepared in [p for p in self.leases.prepared if p.id in outdated and p.settling is None]:
            self.free_place(prepared)
