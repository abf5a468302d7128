"""Teams: one agent plays with several models, each on its own server; all learn or none.

    await Team.rollout(clients, tasks, play)     # play(team) returns a reward for each role

Two phases end a team: every server writes down that its episode may end (prepare), then the decider is committed, which
decides the team, then the others. If the client dies the servers find the decision themselves (`swarm.rollout.teams`)
or another client calls `settle`. The leader's server chooses the task; the others begin it by name.

An answer that is no reward for each role, or a member whose model was never called, ends the rollout. What may pass
(exception, timeout, NaN, lost lease) aborts that team's episodes, is counted and played again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from swarm import errors
from swarm.client.async_client import EPISODE_TIMEOUT_S, AsyncSwarmClient
from swarm.client.episode import AgentFailed, Episode, HasId, Result, end_request, parse_reward
from swarm.client.rollout import WAIT_S, Place, PlayLoop, StreamTasks, mean_of, retry_until_ready, run_shielded
from swarm.client.transport import Transport
from swarm.wire import EVALUATION_STREAM, Ack

T = TypeVar("T")
log = logging.getLogger(__name__)
RETRY_TIMEOUT_S: Final = 60.0
"""Seconds for which a server that does not answer is asked again."""
WITHDRAW_S = 30.0
"""How long a leader's episode waits for the others' room before it is given back."""
_LONGEST_WAIT_S: Final = 2.0
_ANSWER_S: Final = 0.5
"""How long a cancelled begin is waited for."""
_NO_TEAM: Final = "another member of its team had no room, or could not begin"
_PASSING: Final = (errors.Unreachable, errors.EngineUnavailable, errors.Throttled)
_OVER: Final = (errors.LeaseLost, errors.EpisodeEnded, errors.NotFound)


@dataclass(frozen=True, slots=True)
class TeamResult:
    """What one finished play of a team was worth, by role."""

    task_id: str
    sample: int
    """0 for the first play of an evaluation's task, 1 for the second, ..."""
    rewards: Mapping[str, float]
    successes: Mapping[str, bool | None]
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


class Team:
    """One play of a task by several members: `team["speaker"]` is the episode of that role, `team.task` the task. The
    first one, or the one named `decider`, decides for all: let it be of the server that is the least likely to go away,
    as the team is aborted where that is gone for longer than its `lease_ttl_s` between the phases. `patience_s`: how
    long a server that does not answer is waited for, in each phase."""

    def __init__(
        self, episodes: Mapping[str, Episode[Any]], *, decider: str | None = None, patience_s: float = RETRY_TIMEOUT_S
    ) -> None:
        if not episodes:
            raise errors.InvalidRequest("expected the episodes of a team by role, found none")
        self.episodes = dict(episodes)
        self._trained = [role for role, episode in self.episodes.items() if episode.kind == "train"]
        able = self._trained or list(self.episodes)
        self.decider = decider or able[0]
        if self.decider not in able:
            raise errors.InvalidRequest(f"expected a decider among {sorted(able)}, found {self.decider!r}")
        self.task: Any = self.episodes[self.decider].task
        """The task that the team plays."""
        self._patience_s = patience_s
        self._deciding = False

    def __getitem__(self, role: str) -> Episode[Any]:
        return self.episodes[role]

    @property
    def ttl_s(self) -> float:
        """Seconds without a call or heartbeat after which one of the episodes may be lost."""
        return min(episode.ttl_s for episode in self.episodes.values())

    @property
    def last_call(self) -> float:
        """When the server last heard of the episode that was silent for the longest time (monotonic seconds)."""
        return min(episode.last_call for episode in self.episodes.values())

    async def heartbeat(self, by: Transport | None = None) -> None:
        """Keep all leases alive that can be; what is lost is met by who plays."""
        for failure in await asyncio.gather(*(e.heartbeat(by) for e in self.episodes.values()), return_exceptions=True):
            if isinstance(failure, BaseException) and not isinstance(failure, errors.SwarmError):
                raise failure

    async def end(self, rewards: Mapping[str, Result]) -> Mapping[str, Ack]:
        """End all episodes with their rewards, or none; return what each server says, by role: `prepared` belongs to
        one that went away after the team was decided, and ends its episode once it is back. Raises TeamAborted when one
        could not be ended (all are aborted then), InvalidRequest for rewards that do not fit, with all episodes still
        open, and Unreachable when the decider's server went away as it decided: `settle` finds out which way it went.
        """
        if rewards.keys() != self.episodes.keys():
            raise errors.InvalidRequest(
                f"expected a reward for each of {sorted(self.episodes)}, found {sorted(rewards)}"
            )
        ends: dict[str, dict[str, Any]] = {}
        for role, result in rewards.items():
            reward, success = parse_reward(result)
            own = {name: getattr(result, name, None) for name in ("by_call", "by_agent")}
            ends[role] = {"reward": reward, "success": success, **own}
            end_request(**ends[role])  # refuses before anything is sent
        decided: dict[str, Ack] = {}
        if self._trained:
            await self._prepare(ends)
            self._deciding = True
            try:
                await self._retry(self.episodes[self.decider].commit)
            except _OVER as error:
                await self.abort("its team was aborted")
                raise errors.TeamAborted(f"the team's time was up before it was decided: {error}") from error
            decided = await self._pass_on(ended=True)
        return decided | await self._end_evaluations(ends)

    async def abort(self, reason: str = "", *, failed: bool = False) -> Mapping[str, Ack]:
        """Give all episodes up; return what each server says, by role (`open` for one that does not answer). A team
        that was decided by then is ended all the same; where nobody knows, the others are left as they are."""
        if not self._deciding:
            return await self._pass_on(ended=False, reason=reason, failed=failed)
        first = await self._tell(self.decider, ended=False, reason=reason)
        if first.state in ("open", "prepared"):
            return {role: Ack(episode_id=self.episodes[role].id, state="prepared") for role in self._trained}
        return await self._pass_on(ended=first.state == "ended", reason=reason)

    async def settle(self) -> Mapping[str, Ack]:
        """Ask what was decided, wherever this team was left, and pass it on; what is undecided is left as it is."""
        try:
            state = (await self._retry(self.episodes[self.decider].outcome)).state
        except errors.NotFound:
            state = "aborted"
        if state in ("open", "prepared"):
            return {role: await self._retry(self.episodes[role].outcome) for role in self._trained}
        return await self._pass_on(ended=state == "ended")

    async def _prepare(self, ends: Mapping[str, Mapping[str, Any]]) -> None:
        async def prepare(role: str) -> None:
            link = None if role == self.decider else self.episodes[self.decider]
            await self._retry(partial(self.episodes[role].prepare, **ends[role], decider=link))

        results = await asyncio.gather(*map(prepare, self._trained), return_exceptions=True)
        for role, error in zip(self._trained, results, strict=True):
            if error is not None:
                with suppress(errors.SwarmError):
                    await self.abort(f"{role} could not be prepared")
                if not isinstance(error, errors.SwarmError):
                    raise error
                raise errors.TeamAborted(f"{role} could not be ended, so the whole team is aborted: {error}") from error

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
            except (errors.EpisodeEnded, errors.LeaseLost):
                return await self._retry(episode.outcome, patience_s)
        except errors.NotFound:
            return Ack(episode_id=episode.id, state="aborted")
        except _PASSING:
            return Ack(episode_id=episode.id, state="prepared" if ended else "open")

    async def _end_evaluations(self, ends: Mapping[str, Mapping[str, Any]]) -> dict[str, Ack]:
        roles = [role for role in self.episodes if role not in self._trained]

        async def end(role: str) -> Ack:
            try:
                return await self._retry(partial(self.episodes[role].end, **ends[role]))
            except (*_OVER, *_PASSING) as error:
                if not self._trained:
                    raise errors.TeamAborted(f"{role} could not be ended: {error}") from error
                return Ack(episode_id=self.episodes[role].id, state="fenced")

        return dict(zip(roles, await asyncio.gather(*map(end, roles)), strict=True))

    async def _retry(self, call: Callable[[], Awaitable[T]], patience_s: float | None = None) -> T:
        return await retry_until_ready(call, _PASSING, self._patience_s if patience_s is None else patience_s)

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
        """Let `play` play the tasks over and over, until the jobs of all members are finished. The decider (by default
        the first role) hands the tasks out by its stream's pass; several processes name the same one. A member whose
        job is finished before the others' plays on in evaluation episodes, with the weights it came to. A server that
        fails ends the rollout (ServerFailed), and the next rollout goes on; one that goes away is waited for, up to two
        minutes. Raises InvalidRequest, before anything is begun, for members that can be no team (none, two roles on
        one server, unequal group sizes, no job); AgentFailed for an answer that is no reward for each role, for a
        member whose model was not called, and after many failures in a row."""
        await _require_members(clients, decider)
        loop = _TeamLoop(play, clients, timeout_s, list(tasks), stream, decider)
        await loop.play(itertools.repeat(Place(0, loop.begin)), concurrency)
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
        await _require_members(clients)
        known = list(tasks)
        loop = _TeamLoop(play, clients, timeout_s)
        begins = (Place(sample, partial(loop.begin, task)) for task in known for sample in range(samples))
        await loop.play(begins, concurrency)
        order = {task.id: place for place, task in enumerate(known)}
        return sorted(loop.results, key=lambda result: (order[result.task_id], result.sample))


TeamAgent = Callable[[Team], Awaitable[Mapping[str, Result]]]
"""An agent that plays a team and returns a reward, or what else an agent may return, by role."""


class _TeamLoop(PlayLoop[Team, Mapping[str, Result]]):
    """The loop around an agent that plays teams; it begins an episode at every member, or at none."""

    def __init__(
        self,
        play: TeamAgent,
        clients: Mapping[str, AsyncSwarmClient],
        timeout_s: float,
        tasks: Sequence[HasId] = (),
        stream: str = EVALUATION_STREAM,
        leader: str | None = None,
    ) -> None:
        super().__init__(play, timeout_s)
        self._clients = clients
        self._order = sorted(clients, key=lambda role: role != leader)
        self._finished: set[str] = set()
        """Roles whose jobs are finished, as far as is known."""
        self._tasks = tasks
        self._stream = stream
        self._named: dict[str, StreamTasks[HasId]] = {}
        self.results: list[TeamResult] = []

    async def begin(self, task: HasId | None = None) -> Team:
        """Begin an evaluation episode of a task at every member, or one of the leader's next task, whose comes first.
        Raises JobFinished once all jobs are finished, Throttled where a member has no room, and what a server says."""
        begun: dict[str, Episode[Any]] = {}
        decider = None
        try:
            if task is None:
                decider = await self._lead(begun)
                begins = [self._follow(begun, role, begun[decider]) for role in self._order if role != decider]
            else:
                begins = [self._evaluate(begun, role, task) for role in self._order]
            for answer in await asyncio.gather(*begins, return_exceptions=True):
                if isinstance(answer, BaseException):
                    raise answer
        except BaseException:
            await run_shielded(*(episode.abort(_NO_TEAM) for episode in begun.values()))
            raise
        return Team({role: begun[role] for role in self._clients}, decider=decider)

    async def _lead(self, begun: dict[str, Episode[Any]]) -> str:
        for role in self._order:
            if role in self._finished:
                continue
            client = self._clients[role]
            try:
                if role not in self._named:
                    self._named[role] = await client.register_tasks(self._tasks, self._stream)
                allowed_s = self.allowed_s + WITHDRAW_S
                begin = client.begin_next(self._named[role], wait_s=WAIT_S, timeout_s=allowed_s)
                begun[role] = await _shield_begin(begin)
                return role
            except errors.JobFinished:
                self._note_finished(role)
        raise errors.JobFinished("the jobs of all members are finished")

    async def _follow(self, begun: dict[str, Episode[Any]], role: str, leader: Episode[Any]) -> None:
        """Begin the leader's task at another member, and keep the leases of those begun until there is room."""
        deadline, lost = time.monotonic() + WITHDRAW_S, self.dropped.total()
        wait_s = min(_LONGEST_WAIT_S, leader.ttl_s / 3)
        begin = partial(self._clients[role].begin, leader.task, stream=self._stream, timeout_s=self.allowed_s)
        while role not in self._finished:
            try:
                begun[role] = await _shield_begin(begin(wait_s=wait_s))
                return
            except errors.JobFinished:
                self._note_finished(role)
            except errors.Throttled:
                if self.dropped.total() != lost or time.monotonic() > deadline:
                    raise
                await asyncio.gather(*(episode.heartbeat() for episode in begun.values()))
        await self._evaluate(begun, role, leader.task)  # of no evaluation: its partners still learn

    async def _evaluate(self, begun: dict[str, Episode[Any]], role: str, task: HasId) -> None:
        begin = partial(self._clients[role].begin, task, kind="eval", stream=self._stream)
        begun[role] = await _shield_begin(begin(wait_s=WAIT_S, timeout_s=self.allowed_s))

    def _note_finished(self, role: str) -> None:
        if role not in self._finished:
            self._finished.add(role)
            log.info("event=member_finished role=%r: it plays on as it is, untrained, for the others", role)

    def summary(self) -> TeamSummary:
        roles, results = list(self._clients), self.results
        judged = {role: [float(s) for r in results if (s := r.successes[role]) is not None] for role in roles}
        return TeamSummary(
            plays=len(results),
            reward_mean={role: mean_of([result.rewards[role] for result in results]) or 0.0 for role in roles},
            success_mean={role: mean_of(found) for role, found in judged.items()},
            trained=Counter({role: sum(role in result.trained for result in results) for role in roles}),
            dropped=dict(self.dropped),
        )

    def _worst_answer(self, episode: Team, error: Exception) -> Mapping[str, Result] | None:
        members = episode.episodes.values()
        known = all(member.kind == "eval" for member in members) and any(member.chats for member in members)
        return dict.fromkeys(self._clients, (0.0, False)) if known else None

    async def _finish(
        self, episode: Team, sample: int, answer: Mapping[str, Result], failed: Exception | None = None
    ) -> bool:
        worths, members = _parse_rewards(answer, list(self._clients)), episode.episodes
        for role, member in members.items() if failed is None else ():
            if not member.chats and not (await self._clients[role].episode(member.id)).calls:
                raise AgentFailed(  # its server would wait for its group's member
                    f"expected a play to call the model of every member, found one that ended without a call of "
                    f"{role!r}; call it (team[{role!r}]), or leave the role out of the team"
                )
        try:
            await episode.end(answer)
        except errors.Unreachable:  # the decider went away as it decided: which way?
            if (await episode.settle())[episode.decider].state != "ended":
                await episode.end(answer)
        self.results.append(
            TeamResult(
                episode.task.id,
                sample,
                {role: reward for role, (reward, _) in worths.items()},
                {role: success for role, (_, success) in worths.items()},
                frozenset(role for role, member in members.items() if member.kind == "train"),
                f"{type(failed).__name__}: {failed}" if failed else "",
            )
        )
        return True


def _parse_rewards(answer: Any, roles: list[str]) -> dict[str, tuple[float, bool | None]]:
    example = "{" + ", ".join(f'"{role}": 1.0' for role in roles) + "}"
    if not isinstance(answer, Mapping):
        found = f"{type(answer).__name__} {answer!r:.80}"
        raise AgentFailed(f"expected a play to return a reward by role, {example}, found {found}")
    if answer.keys() != set(roles):
        raise AgentFailed(
            f"expected a play to return a reward for each of {', '.join(roles)} and for nobody else, found them for "
            f"{', '.join(map(repr, answer)) or 'nobody'}"
        )
    try:
        return {role: parse_reward(answer[role]) for role in roles}
    except (TypeError, ValueError) as error:
        raise AgentFailed(f"expected a reward by role, {example}, found {dict(answer)!r:.200}: {error}") from error


async def _require_members(clients: Mapping[str, AsyncSwarmClient], leader: str | None = None) -> None:
    """Raise InvalidRequest for clients that can be no team, before anything is begun."""
    if not clients:
        raise errors.InvalidRequest("expected a client for each role of the team, found none")
    if leader is not None and leader not in clients:
        raise errors.InvalidRequest(f"expected a decider among {sorted(clients)}, found {leader!r}")
    urls: dict[str, str] = {}
    for role, client in clients.items():
        if (other := urls.setdefault(client.url, role)) != role:
            raise errors.InvalidRequest(
                f"expected a server of its own for each role, found {other} and {role} both at {client.url}; start "
                "another server, or, where one model plays both, let one agent make all calls in one episode "
                "(client.rollout)"
            )
    statuses = dict(zip(clients, await asyncio.gather(*(c.status() for c in clients.values())), strict=True))
    for role, status in statuses.items():
        if status.group_size is None:
            raise errors.InvalidRequest(
                f"the server of {role} has no job yet; call ensure_training(job) of its client first"
            )
    sizes = {role: status.group_size for role, status in statuses.items() if not status.finished}
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{role} {size}" for role, size in sizes.items())
        raise errors.InvalidRequest(
            f"expected one group_size in the jobs of all members, as a team plays each task equally often at every "
            f"server; found {found}; give their jobs the same (episodes_per_step may differ)"
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
            await run_shielded(beginning.result().abort(_NO_TEAM))
        raise
