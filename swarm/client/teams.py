"""Teams: one agent plays with several models, each on its own server; all learn or none.

    async with Team.training(clients, jobs):
        await Team.rollout(clients, tasks, play)     # play(team) returns a reward for each role

Two phases end a team: every server writes down that its episode may end (prepare), then the decider is committed, which
decides the team, then the others. If the client dies the servers find the decision themselves (`swarm.rollout.teams`)
or another client calls `settle`. Evaluation episodes decide nothing and are ended last.

The leader's server chooses the task; the others begin it by name. A leader whose job is finished hands the lead on and
plays on in evaluation episodes. What a leader hands out ahead of the others waits, and is withdrawn when a play was
lost, or after WITHDRAW_S.

An answer that is no reward for each role, or a member whose model was never called, ends the rollout. What may pass
(exception, timeout, NaN, lost lease) aborts that team's episodes, is counted and played again; in an evaluation a
failure of the agent counts as not solved.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from swarm.client.async_client import EPISODE_TIMEOUT_S, AsyncSwarmClient
from swarm.client.episode import AgentFailed, Episode, HasId, Result, end_request, parse_reward
from swarm.client.rollout import (
    CLEANUP_TIMEOUT_S,
    WAIT_S,
    LimitPauses,
    Place,
    PlayLoop,
    StreamTasks,
    find_retry_after_s,
    is_server_error,
    mean_of,
    run_shielded,
)
from swarm.client.transport import Transports
from swarm.errors import (
    EngineUnavailable,
    EpisodeEnded,
    InvalidRequest,
    JobFinished,
    LeaseLost,
    NotFound,
    ServerFailed,
    SwarmError,
    TeamAborted,
    Throttled,
    Unreachable,
)
from swarm.wire import EVALUATION_STREAM, Ack

if TYPE_CHECKING:
    from swarm.job import Job

T = TypeVar("T")
RETRY_TIMEOUT_S = 60.0
"""Seconds for which a server that does not answer is asked again."""
_PAUSE_S = 0.2
_PASSING = (Unreachable, EngineUnavailable, Throttled)
_OVER = (LeaseLost, EpisodeEnded, NotFound)


class LinkedEpisodes:
    """Linked episodes by role. The first one, or the one named `decider`, decides for all.

    `patience_s`: how long a server that does not answer is waited for, in each phase. Let the decider be an episode
    of the server that is the least likely to go away; where that is gone for longer than its `lease_ttl_s` between
    the phases, the team is aborted.
    """

    def __init__(
        self, episodes: Mapping[str, Episode[Any]], *, decider: str | None = None, patience_s: float = RETRY_TIMEOUT_S
    ) -> None:
        if not episodes:
            raise InvalidRequest("expected the episodes of a team by role, found none")
        self.episodes = dict(episodes)
        self._trained = [role for role, episode in self.episodes.items() if episode.kind == "train"]
        self.decider = decider or next(iter(self._trained or self.episodes))
        if self.decider not in (self._trained or self.episodes):
            raise InvalidRequest(
                f"expected a decider among {sorted(self._trained or self.episodes)}, found {self.decider!r}"
            )
        self._patience_s = patience_s
        self._deciding = False

    def __getitem__(self, role: str) -> Episode[Any]:
        return self.episodes[role]

    @property
    def task(self) -> Any:
        """The task that the team plays."""
        return self.episodes[self.decider].task

    @property
    def ttl_s(self) -> float:
        """Seconds without a call or heartbeat after which one of the episodes may be lost."""
        return min(episode.ttl_s for episode in self.episodes.values())

    @property
    def last_call(self) -> float:
        """When the server last heard of the episode that was silent for the longest time (monotonic seconds)."""
        return min(episode.last_call for episode in self.episodes.values())

    async def heartbeat(self, by: Transports | None = None) -> None:
        """Keep all leases alive that can be; what is lost is met by who plays."""
        await asyncio.gather(*(_beat(episode, by) for episode in self.episodes.values()))

    async def end(self, rewards: Mapping[str, Result]) -> Mapping[str, Ack]:
        """End all episodes with their rewards, or none; return what each server says, by role.

        An answer `prepared` belongs to a server that went away after the team was decided: its episode is ended as soon
        as it is back and asks, or is told by `settle`. Raises TeamAborted when one of them could not be ended (all are
        aborted then), InvalidRequest for rewards that do not fit, with all episodes still open, and Unreachable when
        the decider's server went away at the very moment of the decision: `settle` finds out which way it went.
        """
        worths = self._check_rewards(rewards)
        if not self._trained:
            return await self._end_evaluations(worths, rewards)
        await self._prepare(worths, rewards)
        self._deciding = True
        await self._decide()
        return await self._pass_on(ended=True) | await self._end_evaluations(worths, rewards)

    async def abort(self, reason: str = "", *, failed: bool = False) -> Mapping[str, Ack]:
        """Give all episodes up, as the agent `failed` or for another reason.

        Returns what each server says, by role (`open` for one that does not answer).
        A team that was decided by then is ended all the same; where nobody knows, the others are left as they are.
        """
        if not self._deciding:
            return await self._pass_on(ended=False, reason=reason, failed=failed)
        first = await self._tell(self.decider, ended=False, reason=reason)
        if first.state in ("open", "prepared"):
            return {role: Ack(episode_id=self.episodes[role].id, state="prepared") for role in self._trained}
        return await self._pass_on(ended=first.state == "ended", reason=reason)

    async def settle(self) -> Mapping[str, Ack]:
        """Ask what was decided, wherever this team was left, and pass it on; what is undecided is left as it is."""
        decider = self.episodes[self.decider]
        try:
            state = (await self._retry(decider.outcome)).state
        except NotFound:
            state = "aborted"
        if state in ("open", "prepared"):
            return {role: await self._retry(self.episodes[role].outcome) for role in self._trained}
        return await self._pass_on(ended=state == "ended")

    def _check_rewards(self, rewards: Mapping[str, Result]) -> dict[str, tuple[float, bool | None]]:
        if rewards.keys() != self.episodes.keys():
            raise InvalidRequest(f"expected a reward for each of {sorted(self.episodes)}, found {sorted(rewards)}")
        worths = {role: parse_reward(reward) for role, reward in rewards.items()}
        for role, (reward, success) in worths.items():
            end_request(reward, success, **_credit_fields(rewards[role]))  # refuses before anything is sent
        return worths

    async def _prepare(self, worths: Mapping[str, tuple[float, bool | None]], given: Mapping[str, Result]) -> None:
        decider = self.episodes[self.decider]

        async def prepare(role: str) -> None:
            reward, success = worths[role]
            own, link = _credit_fields(given[role]), None if role == self.decider else decider
            await self._retry(lambda: self.episodes[role].prepare(reward, success, decider=link, **own))

        keeping = asyncio.create_task(self._keep_alive())
        try:
            results = await asyncio.gather(*map(prepare, self._trained), return_exceptions=True)
        finally:
            keeping.cancel()
        failed = {role: result for role, result in zip(self._trained, results, strict=True) if result is not None}
        if failed:
            role, error = next(iter(failed.items()))
            with suppress(SwarmError):
                await self.abort(f"{role} could not be prepared")
            if not isinstance(error, SwarmError):
                raise error
            raise TeamAborted(f"{role} could not be ended, so the whole team is aborted: {error}") from error

    async def _decide(self) -> None:
        """Commit the decider; if it turns out to be aborted, abort all."""
        try:
            await self._retry(self.episodes[self.decider].commit)
        except _OVER as error:
            await self.abort("its team was aborted")
            raise TeamAborted(f"the team's time was up before it was decided: {error}") from error

    async def _pass_on(self, *, ended: bool, reason: str = "its team aborted", failed: bool = False) -> dict[str, Ack]:
        """Tell every server the decision, the decider's first; one that does not answer is left for later."""
        first = {self.decider: await self._tell(self.decider, ended, reason, failed)}
        others = [role for role in (self._trained if ended else self.episodes) if role != self.decider]
        told = await asyncio.gather(*(self._tell(role, ended, reason, failed) for role in others))
        return first | dict(zip(others, told, strict=True))

    async def _tell(self, role: str, ended: bool, reason: str, failed: bool = False) -> Ack:
        episode = self.episodes[role]
        patience_s = self._patience_s if ended else 0.0  # what is not told finds out that it is aborted
        try:
            try:
                closing = episode.commit if ended else partial(episode.abort, reason, failed=failed)
                return await self._retry(closing, patience_s)
            except (EpisodeEnded, LeaseLost):
                return await self._retry(episode.outcome, patience_s)
        except NotFound:
            return Ack(episode_id=episode.id, state="aborted")
        except _PASSING:
            return Ack(episode_id=episode.id, state="prepared" if ended else "open")

    async def _end_evaluations(
        self, worths: Mapping[str, tuple[float, bool | None]], given: Mapping[str, Result]
    ) -> dict[str, Ack]:
        """End those that are trained nowhere; where all are, TeamAborted unless each is ended."""
        roles = [role for role in self.episodes if role not in self._trained]

        async def end(role: str) -> Ack:
            try:
                return await self._retry(lambda: self.episodes[role].end(*worths[role], **_credit_fields(given[role])))
            except (*_OVER, *_PASSING) as error:
                if not self._trained:
                    raise TeamAborted(f"{role} could not be ended: {error}") from error
                return Ack(episode_id=self.episodes[role].id, state="fenced")

        return dict(zip(roles, await asyncio.gather(*map(end, roles)), strict=True))

    async def _retry(self, call: Callable[[], Awaitable[T]], patience_s: float | None = None) -> T:
        """Call until the server answers; raise what it says last, `patience_s` after the first try."""
        deadline = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        while True:
            try:
                return await call()
            except _PASSING:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_PAUSE_S)

    async def _keep_alive(self) -> None:
        """Keep the leases of those that are ready alive while others are waited for."""
        while True:
            await asyncio.sleep(self.ttl_s / 3)
            await self.heartbeat()


async def _beat(episode: Episode[Any], by: Transports | None) -> None:
    with suppress(SwarmError):
        await episode.heartbeat(by)


def _credit_fields(result: Result) -> dict[str, Any]:
    return {name: getattr(result, name, None) for name in ("by_call", "by_agent")}


log = logging.getLogger(__name__)
TeamT = TypeVar("TeamT", bound=LinkedEpisodes)


@dataclass(frozen=True, slots=True)
class TeamResult:
    """What one finished play of a team was worth, by role."""

    task_id: str
    sample: int
    """0 for the first play of an evaluation's task, 1 for the second, ..."""
    rewards: Mapping[str, float]
    successes: Mapping[str, bool | None]
    policy_versions: Mapping[str, int]
    trained: frozenset[str]
    """Roles that the play trains: all, less those whose jobs were finished; none in an evaluation."""
    failed: str = ""
    """The error by which its agent failed an evaluation's play; it is worth nothing, and nobody solved it."""


@dataclass(frozen=True, slots=True)
class TeamSummary:
    """What a rollout did: plays that ended, and by role their mean reward and success and how many trained it."""

    plays: int
    reward_mean: Mapping[str, float]
    success_mean: Mapping[str, float | None]
    trained: Mapping[str, int]
    dropped: Mapping[str, int]
    """Plays that were given up, by reason."""


class TeamLoop(PlayLoop[TeamT, Mapping[str, Result]]):
    """The loop around an agent that plays teams."""

    def __init__(
        self,
        play: Callable[[TeamT], Awaitable[Mapping[str, Result]]],
        clients: Mapping[str, AsyncSwarmClient],
        timeout_s: float,
    ) -> None:
        super().__init__(play, timeout_s)
        self._clients = clients
        self.results: list[TeamResult] = []

    def summary(self) -> TeamSummary:
        """Return what was done."""
        roles, results = list(self._clients), self.results
        judged = {role: [float(s) for r in results if (s := r.successes[role]) is not None] for role in roles}
        return TeamSummary(
            plays=len(results),
            reward_mean={role: mean_of([result.rewards[role] for result in results]) or 0.0 for role in roles},
            success_mean={role: mean_of(found) for role, found in judged.items()},
            trained=Counter({role: sum(role in result.trained for result in results) for role in roles}),
            dropped=dict(self.dropped),
        )

    async def _carry(self, episode: TeamT, sample: int, limits: LimitPauses) -> bool:
        try:
            return await super()._carry(episode, sample, limits)
        except (LeaseLost, EpisodeEnded, ServerFailed, AgentFailed) as error:  # what one member lost, none keeps
            await run_shielded(episode.abort(f"{type(error).__name__}: {error}"))
            raise

    async def _handle_failure(self, episode: TeamT, sample: int, error: Exception, limits: LimitPauses) -> bool:
        """An evaluation's play that its agent failed counts, as not solved by anybody."""
        of_evaluation = all(member.kind == "eval" for member in episode.episodes.values())
        if not of_evaluation or is_server_error(error) or find_retry_after_s(error) is not None:
            return await super()._handle_failure(episode, sample, error, limits)
        if not any(member.chats for member in episode.episodes.values()):
            return await super()._handle_failure(episode, sample, error, limits)
        limits.reset()
        said = f"{type(error).__name__}: {error}"
        log.info("event=play_failed task=%s error=%s", episode.task.id, said)
        await self._note(episode, sample, dict.fromkeys(self._clients, (0.0, False)), said)
        return True

    async def _finish(self, episode: TeamT, sample: int, answer: Mapping[str, Result]) -> bool:
        _parse_rewards(answer, list(self._clients))
        await self._require_calls(episode)
        await self._note(episode, sample, answer)
        return True

    async def _note(self, episode: TeamT, sample: int, answer: Mapping[str, Result], failed: str = "") -> None:
        await _end(episode, answer)
        worths, members = _parse_rewards(answer, list(self._clients)), episode.episodes
        self.results.append(
            TeamResult(
                episode.task.id,
                sample,
                {role: reward for role, (reward, _) in worths.items()},
                {role: success for role, (_, success) in worths.items()},
                {role: member.lease.policy_version for role, member in members.items()},
                frozenset(role for role, member in members.items() if member.kind == "train"),
                failed,
            )
        )

    async def _require_calls(self, team: TeamT) -> None:
        """Raise AgentFailed where a member's model was not called: its server would wait for its group's member."""
        for role, episode in team.episodes.items():
            if not episode.chats and not (await self._clients[role].episode(episode.id)).calls:
                raise AgentFailed(
                    f"expected a play to call the model of every member, found one that ended without a call of "
                    f"{role!r}; call it (team[{role!r}]), or leave the role out of the team"
                )


def _parse_rewards(answer: Any, roles: list[str]) -> dict[str, tuple[float, bool | None]]:
    """Return reward and success by role; raise AgentFailed for an answer that does not have one for each."""
    if not isinstance(answer, Mapping):
        found = f"{type(answer).__name__} {answer!r:.80}"
        raise AgentFailed(f"expected a play to return a reward by role, {_format_example(roles)}, found {found}")
    if answer.keys() != set(roles):
        raise AgentFailed(
            f"expected a play to return a reward for each of {', '.join(roles)} and for nobody else, found them for "
            f"{', '.join(map(repr, answer)) or 'nobody'}"
        )
    try:
        return {role: parse_reward(answer[role]) for role in roles}
    except (TypeError, ValueError) as error:
        raise AgentFailed(
            f"expected a reward by role, {_format_example(roles)}, found {dict(answer)!r:.200}: {error}"
        ) from error


def _format_example(roles: list[str]) -> str:
    return "{" + ", ".join(f'"{role}": 1.0' for role in roles) + "}"


async def _end(team: LinkedEpisodes, rewards: Mapping[str, Result]) -> None:
    """End a team; where the decider went away as it decided, find out which way it went."""
    try:
        await team.end(rewards)
    except Unreachable:
        if (await team.settle())[team.decider].state != "ended":
            await team.end(rewards)


WITHDRAW_S = 30.0
"""How long a leader's episode waits for the others' room before it is given back."""
_LONGEST_WAIT_S = 2.0
_ANSWER_S = 0.5
"""How long a cancelled begin is waited for."""


class TeamMembers:
    """Begins the episodes of teams. `lost` counts the plays that were lost so far; `leader` chooses first."""

    def __init__(
        self,
        clients: Mapping[str, AsyncSwarmClient],
        tasks: Sequence[HasId],
        stream: str,
        timeout_s: float,
        *,
        leader: str | None = None,
        lost: Callable[[], int] = lambda: 0,
    ) -> None:
        first = leader or next(iter(clients))
        self.clients = clients
        self.finished: set[str] = set()
        """Roles whose jobs are finished, as far as is known."""
        self._order = [first, *(role for role in clients if role != first)]
        self._tasks = tasks
        self._stream = stream
        self._timeout_s = timeout_s
        self._lost = lost
        self._named: dict[str, StreamTasks[HasId]] = {}

    async def begin_next(self) -> dict[str, Episode[Any]]:
        """Begin an episode of the leader's next task at every member, or at none; the leader's comes first.

        Raises JobFinished once all jobs are finished, Throttled where a member has no room, and what a member's server
        says.
        """
        begun: dict[str, Episode[Any]] = {}
        try:
            leader = await self._lead(begun)
            await self._gather(self._follow(begun, role, leader) for role in self._order if role not in begun)
        except BaseException:
            await _give_back(begun.values())
            raise
        return begun

    async def begin_evaluation(self, task: HasId) -> dict[str, Episode[Any]]:
        """Begin an evaluation episode of a task at every member, or at none."""
        begun: dict[str, Episode[Any]] = {}
        try:
            await self._gather(self._evaluate(begun, role, task) for role in self._order)
        except BaseException:
            await _give_back(begun.values())
            raise
        return begun

    async def _lead(self, begun: dict[str, Episode[Any]]) -> Episode[Any]:
        for role in self._order:
            if role in self.finished:
                continue
            try:
                begun[role] = await self._begin_next(role)
            except JobFinished:
                self._finish(role)
            else:
                return begun[role]
        raise JobFinished("the jobs of all members are finished")

    async def _begin_next(self, role: str) -> Episode[Any]:
        client = self.clients[role]
        if role not in self._named:
            self._named[role] = await client.register_tasks(self._tasks, self._stream)
        allowed = self._timeout_s + CLEANUP_TIMEOUT_S + WITHDRAW_S
        return await _shield_begin(client.begin_next(self._named[role], wait_s=WAIT_S, timeout_s=allowed))

    async def _follow(self, begun: dict[str, Episode[Any]], role: str, leader: Episode[Any]) -> None:
        if role not in self.finished:
            try:
                begun[role] = await self._join(begun, role, leader)
            except JobFinished:
                self._finish(role)
            else:
                return
        await self._evaluate(begun, role, leader.task, self._stream)  # of no evaluation: its partners still learn

    async def _join(self, begun: dict[str, Episode[Any]], role: str, leader: Episode[Any]) -> Episode[Any]:
        """Begin the leader's task at another member, and keep the leases of those begun until there is room."""
        deadline, lost = time.monotonic() + WITHDRAW_S, self._lost()
        wait_s, allowed = min(_LONGEST_WAIT_S, leader.ttl_s / 3), self._timeout_s + CLEANUP_TIMEOUT_S
        begin = partial(self.clients[role].begin, leader.task, stream=self._stream, wait_s=wait_s, timeout_s=allowed)
        while True:
            try:
                return await _shield_begin(begin())
            except Throttled:
                if self._lost() != lost or time.monotonic() > deadline:
                    raise
            others = [each for each in begun.values() if each is not leader]
            await asyncio.gather(leader.heartbeat(), *(each.heartbeat() for each in others))

    async def _evaluate(
        self, begun: dict[str, Episode[Any]], role: str, task: HasId, stream: str = EVALUATION_STREAM
    ) -> None:
        allowed = self._timeout_s + CLEANUP_TIMEOUT_S
        begin = self.clients[role].begin(task, kind="eval", stream=stream, wait_s=WAIT_S, timeout_s=allowed)
        begun[role] = await _shield_begin(begin)

    def _finish(self, role: str) -> None:
        if role not in self.finished:
            self.finished.add(role)
            log.info("event=member_finished role=%r: it plays on as it is, untrained, for the others", role)

    async def _gather(self, begins: Iterable[Any]) -> None:
        """Wait for all begins; raise the first refusal once each of them has an answer, so that none is forgotten."""
        for answer in await asyncio.gather(*begins, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer


async def require_members(clients: Mapping[str, AsyncSwarmClient], leader: str | None = None) -> None:
    """Raise InvalidRequest for clients that can be no team, before anything is begun.

    There must be one at least, each of a server of its own that has a job, and of those that train the group sizes must
    be equal: each task is played as often at one as at the other.
    """
    if not clients:
        raise InvalidRequest("expected a client for each role of the team, found none")
    if leader is not None and leader not in clients:
        raise InvalidRequest(f"expected a decider among {sorted(clients)}, found {leader!r}")
    _require_own_servers(clients)
    statuses = dict(zip(clients, await asyncio.gather(*(c.status() for c in clients.values())), strict=True))
    for role, status in statuses.items():
        if status.group_size is None:
            raise InvalidRequest(f"the server of {role} has no job yet; call ensure_training(job) of its client first")
    sizes = {role: status.group_size for role, status in statuses.items() if not status.finished}
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"{role} {size}" for role, size in sizes.items())
        raise InvalidRequest(
            f"expected one group_size in the jobs of all members, as a team plays each task equally often at every "
            f"server; found {said}; give their jobs the same (episodes_per_step may differ)"
        )


def _require_own_servers(clients: Mapping[str, AsyncSwarmClient]) -> None:
    of: dict[str, str] = {}
    for role, client in clients.items():
        if (other := of.setdefault(client.url, role)) != role:
            raise InvalidRequest(
                f"expected a server of its own for each role, found {other} and {role} both at {client.url}; start "
                "another server, or, where one model plays both, let one agent make all calls in one episode "
                "(client.rollout)"
            )


async def _shield_begin(begin: Coroutine[Any, Any, Episode[Any]]) -> Episode[Any]:
    """Return what is begun; one that is begun while its wait is cancelled is given back, and not left to its lease."""
    beginning = asyncio.create_task(begin)
    try:
        return await asyncio.shield(beginning)
    except asyncio.CancelledError:
        done, _ = await asyncio.wait({beginning}, timeout=_ANSWER_S)
        beginning.cancel()  # one that still waits for room leaves the line
        if done and not beginning.cancelled() and beginning.exception() is None:
            await _give_back([beginning.result()])
        raise


async def _give_back(episodes: Iterable[Episode[Any]]) -> None:
    reason = "another member of its team had no room, or could not begin"
    await run_shielded(*(episode.abort(reason) for episode in episodes))


class Team(LinkedEpisodes):
    """One play of a task by several members: `team["speaker"]` is the episode of that role, `team.task` the task.

    An episode has `base_url`, `api_key` and `model` for any OpenAI-compatible code, and `chat` for none.
    """

    @staticmethod
    @asynccontextmanager
    async def training(
        clients: Mapping[str, AsyncSwarmClient], jobs: Mapping[str, Job]
    ) -> AsyncIterator[Mapping[str, AsyncSwarmClient]]:
        """Have each role's server train the role's job, all booted at once; the clients are closed at the end.

        Raises InvalidRequest where the roles of clients and jobs differ, else what `ensure_training` raises: the first
        that failed, once all have been tried.
        """
        if clients.keys() != jobs.keys():
            raise InvalidRequest(f"expected a job for each of {', '.join(clients)}; found one for {', '.join(jobs)}")
        async with AsyncExitStack() as stack:
            for client in clients.values():
                await stack.enter_async_context(client)
            booted = (clients[role].ensure_training(job) for role, job in jobs.items())
            for found in await asyncio.gather(*booted, return_exceptions=True):
                if isinstance(found, BaseException):
                    raise found
            yield clients

    @staticmethod
    async def rollout(
        clients: Mapping[str, AsyncSwarmClient],
        tasks: Iterable[HasId],
        play: TeamAgent,
        *,
        concurrency: int = 64,
        stream: str = "default",
        timeout_s: float = EPISODE_TIMEOUT_S,
        decider: str | None = None,
    ) -> TeamSummary:
        """Let `play` play the tasks over and over, until the jobs of all members are finished.

        The decider (by default the first role) hands the tasks out by its stream's pass, so that a rollout that is
        started again goes on from the breakpoint; several processes name the same one. A member whose job is finished
        before the others' plays on in evaluation episodes, with the weights it came to. A server that fails ends the
        rollout (ServerFailed): what was begun is aborted everywhere, the others keep what they learned, and the next
        rollout goes on. A server that goes away is waited for, up to two minutes.

        Raises InvalidRequest, before anything is begun, for members that can be no team (none, two roles on one
        server, unequal group sizes, no job); AgentFailed for an answer that is no reward for each role, for a
        member whose model was not called, and after many failures in a row.
        """
        await require_members(clients, decider)
        loop = TeamLoop[Team](play, clients, timeout_s)
        members = TeamMembers(clients, list(tasks), stream, timeout_s, leader=decider, lost=loop.dropped.total)

        async def begin() -> Team:
            begun = await members.begin_next()
            return Team({role: begun[role] for role in clients}, decider=next(iter(begun)))

        await loop.play(itertools.repeat(Place(0, begin)), concurrency)
        return loop.summary()

    @staticmethod
    async def evaluate(
        clients: Mapping[str, AsyncSwarmClient],
        tasks: Iterable[HasId],
        play: TeamAgent,
        *,
        samples: int = 1,
        concurrency: int = 64,
        timeout_s: float = EPISODE_TIMEOUT_S,
    ) -> list[TeamResult]:
        """Let `play` play each task `samples` times in evaluation episodes; results by task, then sample."""
        await require_members(clients)
        known = list(tasks)
        loop = TeamLoop[Team](play, clients, timeout_s)
        members = TeamMembers(clients, known, "", timeout_s)

        def make_begin(task: HasId) -> Callable[[], Awaitable[Team]]:
            async def begin() -> Team:
                begun = await members.begin_evaluation(task)
                return Team({role: begun[role] for role in clients})

            return begin

        await loop.play((Place(sample, make_begin(task)) for task in known for sample in range(samples)), concurrency)
        order = {task.id: place for place, task in enumerate(known)}
        return sorted(loop.results, key=lambda result: (order[result.task_id], result.sample))


TeamAgent = Callable[[Team], Awaitable[Mapping[str, Result]]]
"""An agent that plays a team and returns a reward, or what else an agent may return, by role."""
