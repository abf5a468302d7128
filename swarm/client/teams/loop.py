"""Playing many teams at once: the loop of `swarm.client.rollout`, where each play is that of a team.

What one play lacks is told at once and ends the rollout, as playing on would not help: an answer that is no reward for
each role, or a member whose model was never called. What may pass (an exception, a timeout, a reward that is NaN, a
member's lease that is lost) gives all episodes of that team up, is counted with its reason, and is played again; in an
evaluation what the agent failed counts, as not solved.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from swarm.client.agents import AgentFailed, Result, worth_of
from swarm.client.asynchronous import AsyncSwarmClient
from swarm.client.failures import LimitPauses, is_servers, limited_s
from swarm.client.rollout import PlayLoop, carried_out, mean_of
from swarm.client.teams.linked import LinkedEpisodes
from swarm.errors import EpisodeEnded, LeaseLost, ServerFailed, Unreachable

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
            await carried_out(episode.abort(f"{type(error).__name__}: {error}"))
            raise

    async def _failed(self, episode: TeamT, sample: int, error: Exception, limits: LimitPauses) -> bool:
        """An evaluation's play that its agent failed counts, as not solved by anybody."""
        of_evaluation = all(member.kind == "eval" for member in episode.episodes.values())
        if not of_evaluation or is_servers(error) or limited_s(error) is not None:
            return await super()._failed(episode, sample, error, limits)
        if not any(member.chats for member in episode.episodes.values()):
            return await super()._failed(episode, sample, error, limits)
        limits.over()
        said = f"{type(error).__name__}: {error}"
        log.info("event=play_failed task=%s error=%s", episode.task.id, said)
        await self._note(episode, sample, dict.fromkeys(self._clients, (0.0, False)), said)
        return True

    async def _finish(self, episode: TeamT, sample: int, answer: Mapping[str, Result]) -> bool:
        _worths(answer, list(self._clients))
        await self._require_calls(episode)
        await self._note(episode, sample, answer)
        return True

    async def _note(self, episode: TeamT, sample: int, answer: Mapping[str, Result], failed: str = "") -> None:
        await _end(episode, answer)
        worths, members = _worths(answer, list(self._clients)), episode.episodes
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


def _worths(answer: Any, roles: list[str]) -> dict[str, tuple[float, bool | None]]:
    """Return reward and success by role; raise AgentFailed for an answer that does not have one for each."""
    if not isinstance(answer, Mapping):
        found = f"{type(answer).__name__} {answer!r:.80}"
        raise AgentFailed(f"expected a play to return a reward by role, {_like(roles)}, found {found}")
    if answer.keys() != set(roles):
        raise AgentFailed(
            f"expected a play to return a reward for each of {', '.join(roles)} and for nobody else, found them for "
            f"{', '.join(map(repr, answer)) or 'nobody'}"
        )
    try:
        return {role: worth_of(answer[role]) for role in roles}
    except (TypeError, ValueError) as error:
        raise AgentFailed(f"expected a reward by role, {_like(roles)}, found {dict(answer)!r:.200}: {error}") from error


def _like(roles: list[str]) -> str:
    return "{" + ", ".join(f'"{role}": 1.0' for role in roles) + "}"


async def _end(team: LinkedEpisodes, rewards: Mapping[str, Result]) -> None:
    """End a team; where the decider went away as it decided, find out which way it went."""
    try:
        await team.end(rewards)
    except Unreachable:
        if (await team.settle())[team.decider].state != "ended":
            await team.end(rewards)
