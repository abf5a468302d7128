"""`Team`: one agent function plays with several models, each on a server of its own, and all of them learn.

    async def play(team):
        hint = await team["speaker"].chat([...], max_tokens=1)
        answer = await team["listener"].chat([...])
        return {"speaker": reward, "listener": reward}

    clients = {"speaker": AsyncSwarmClient(url_a, token_a), "listener": AsyncSwarmClient(url_b, token_b)}
    async with Team.training(clients, jobs):
        await Team.rollout(clients, tasks, play)

What a play was worth counts at all servers or at none (`swarm.client.teams.linked`). Each server has its own model,
job, optimiser and steps; what they share is the list of tasks and the group size (`swarm.client.teams.members`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from swarm.client.agents import Result
from swarm.client.asynchronous import EPISODE_TIMEOUT_S, AsyncSwarmClient
from swarm.client.episode import HasId
from swarm.client.rollout import Place
from swarm.client.teams.linked import LinkedEpisodes
from swarm.client.teams.loop import TeamLoop, TeamResult, TeamSummary
from swarm.client.teams.members import TeamMembers, require_members
from swarm.errors import InvalidRequest

if TYPE_CHECKING:
    from swarm.job import Job


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

        def beginning(task: HasId) -> Callable[[], Awaitable[Team]]:
            async def begin() -> Team:
                begun = await members.begin_evaluation(task)
                return Team({role: begun[role] for role in clients})

            return begin

        await loop.play((Place(sample, beginning(task)) for task in known for sample in range(samples)), concurrency)
        order = {task.id: place for place, task in enumerate(known)}
        return sorted(loop.results, key=lambda result: (order[result.task_id], result.sample))


TeamAgent = Callable[[Team], Awaitable[Mapping[str, Result]]]
"""An agent that plays a team and returns a reward, or what else an agent may return, by role."""
