"""The client on asyncio: give a server its job, begin episodes, roll an agent out, evaluate it."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import quote, urlencode

from pydantic import ValidationError

from swarm.client.agents import Agent, EpisodeResult, RolloutSummary
from swarm.client.episode import Episode, HasId, TaskT
from swarm.client.rollout import Rollout, evaluation_places, once_the_engine_is_on, training_places
from swarm.client.transport import Transport
from swarm.errors import EngineUnavailable, InvalidRequest, JobConflict, NotFound, ServerFailed
from swarm.wire import (
    BeginRequest,
    CheckpointList,
    EpisodeKind,
    EpisodeList,
    EpisodeRecord,
    Lease,
    ServerState,
    SharesRequest,
    Status,
    StreamList,
    StreamStatus,
)

if TYPE_CHECKING:
    from swarm.job import Job

_SERVING = {ServerState.ROLLING, ServerState.ROLLING_POST, ServerState.WEIGHT_SYNCING}
_POLL_S = 0.2
EPISODE_TIMEOUT_S = 600.0
ExportFormat = Literal["openenv", "parquet"]


@dataclass(frozen=True, slots=True)
class NamedTask:
    """A task that is nothing but its id."""

    id: str


class AsyncSwarmClient:
    """A client of one swarm server; use as an async context manager.

        async with AsyncSwarmClient(url, token) as client:
            await client.ensure_training(job)
            await client.rollout(agent, tasks, concurrency=64)

    `token` is a role token of the server (admin for jobs, client for episodes); `owner` is shown in its logs.
    """

    def __init__(self, url: str, token: str, *, owner: str | None = None) -> None:
        self._transport = Transport(url)
        self._token = token
        self._owner = owner or f"{socket.gethostname()}:{os.getpid()}"

    async def __aenter__(self) -> Self:
        self._transport.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def url(self) -> str:
        """The server's address."""
        return self._transport.url

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    async def status(self) -> Status:
        """Return what the server is doing."""
        return Status.model_validate(await self._transport.call("GET", "/status", self._token))

    async def job(self) -> Job | None:
        """Return the loaded job, or None."""
        from swarm.job import Job  # not at the top: most clients never ask, and a container starts anew each time

        try:
            return Job.model_validate(await self._transport.call("GET", "/job", self._token))
        except NotFound:
            return None

    async def ensure_training(self, job: Job, *, timeout_s: float = 600.0) -> Status:
        """Make the server train `job` and return once it serves; nothing happens if it does so already.

        Raises JobConflict when it trains another job, ServerFailed when booting fails, EngineUnavailable when it
        does not serve within `timeout_s`.
        """
        status = await self.status()
        if status.state is ServerState.OFFLINE:
            await self._transport.call("POST", "/job", self._token, job.model_dump_json().encode())
            await self._transport.call("POST", "/engine/start", self._token, b"")
        return await self._serving(job.digest(), timeout_s)

    async def stop(self) -> Status:
        """Stop the engine: tracking is finished, the server is OFFLINE."""
        return Status.model_validate(await self._transport.call("POST", "/engine/stop", self._token, b""))

    async def begin(
        self, task: TaskT, *, kind: EpisodeKind = "train", stream: str = "default", wait_s: float = 0.0
    ) -> Episode[TaskT]:
        """Begin one episode of a task; raises Throttled when there is no room within `wait_s`.

        Who begins training episodes by hand plays each task `group_size` times: a group that nobody goes on
        with is dropped after `lease_ttl_s`.
        """
        asked = BeginRequest(task_id=task.id, stream=stream, kind=kind, owner=self._owner, wait_s=wait_s)
        answer = await self._transport.call("POST", "/episodes", self._token, asked.model_dump_json().encode())
        return Episode(self._transport, Lease.model_validate(answer), task)

    async def episodes(self, limit: int = 100) -> EpisodeList:
        """Return the newest episodes."""
        return EpisodeList.model_validate(await self._transport.call("GET", f"/episodes?limit={limit}", self._token))

    async def episode(self, episode: str) -> EpisodeRecord:
        """Return one episode with every token; raises NotFound if there is none of this id."""
        path = f"/episodes/{quote(episode, safe='')}"
        return EpisodeRecord.model_validate(await self._transport.call("GET", path, self._token))

    async def export(self, to: Path, format: ExportFormat = "openenv", episode: str | None = None) -> int:
        """Write one episode, or all the server knows, to a file; return its bytes."""
        asked = {"format": format, **({"episode": episode} if episode is not None else {})}
        return await self._transport.download(f"/samples?{urlencode(asked)}", self._token, to)

    async def checkpoints(self) -> CheckpointList:
        """Return the checkpoints that are kept, the newest first."""
        return CheckpointList.model_validate(await self._transport.call("GET", "/checkpoints", self._token))

    async def streams(self) -> StreamList:
        """Return where every stream stands."""
        return StreamList.model_validate(await self._transport.call("GET", "/streams", self._token))

    async def share(self, shares: Mapping[str, float]) -> StreamList:
        """Give streams new shares, by name and in any unit, from the next group that begins (needs the admin role)."""
        try:
            asked = SharesRequest(shares=shares)
        except ValidationError as error:
            raise InvalidRequest(f"expected a share above 0 for each stream, found {dict(shares)!r}") from error
        body = asked.model_dump_json().encode()
        return StreamList.model_validate(await self._transport.call("POST", "/streams", self._token, body))

    async def rollout(
        self,
        agent: Agent,
        tasks: Iterable[HasId],
        *,
        concurrency: int = 64,
        stream: str = "default",
        timeout_s: float = EPISODE_TIMEOUT_S,
    ) -> RolloutSummary:
        """Let `agent` play the tasks, each once per place in its group, over and over, until the job is finished.

        Begins where its stream stands (`streams`), with the groups that lack members, so that a restarted client goes
        on from the breakpoint.
        An agent that raises, or takes longer than `timeout_s`, gives up its episode; it is counted and played
        again. A server that goes away is waited for, up to two minutes. Raises AgentFailed after many failures in a
        row, ServerFailed at once, and Unreachable once the server has been away for too long.
        """
        group_size = (await self.status()).group_size
        if group_size is None:
            raise InvalidRequest("the server has no job yet; call ensure_training(job) first")
        rollout = Rollout(self, agent, "train", stream, timeout_s)
        at = await self._place(stream)
        await rollout.play(training_places(tasks, group_size, at.cursor, at.unfinished), concurrency)
        return rollout.summary()

    async def evaluate(
        self,
        agent: Agent,
        tasks: Iterable[HasId],
        *,
        samples: int = 1,
        concurrency: int = 64,
        timeout_s: float = EPISODE_TIMEOUT_S,
    ) -> list[EpisodeResult]:
        """Let `agent` play each task `samples` times in evaluation episodes; results by task, then sample."""
        known = list(tasks)
        rollout = Rollout(self, agent, "eval", "evaluation", timeout_s)
        await rollout.play(evaluation_places(known, samples), concurrency)
        order = {task.id: place for place, task in enumerate(known)}
        return sorted(rollout.results, key=lambda result: (order[result.task_id], result.sample))

    async def _place(self, stream: str) -> StreamStatus:
        """Return where a stream stands; wait for an engine that boots."""
        known = await once_the_engine_is_on(self.streams)
        begun = (found for found in known.streams if found.name == stream)
        return next(begun, StreamStatus(name=stream, share=None, cursor=0, groups_open=0, groups_trained=0))

    async def _serving(self, digest: str, timeout_s: float) -> Status:
        deadline = time.monotonic() + timeout_s
        while True:
            status = await self.status()
            if status.job_digest != digest:  # also when another client's job came between this one's two calls
                raise JobConflict(
                    f"the server at {self.url} trains job {str(status.job_digest)[:12]}, not {digest[:12]}; "
                    "stop its engine first, or use another server"
                )
            if status.state in _SERVING:
                return status
            if status.state is ServerState.FAILED:
                raise ServerFailed(f"the server failed: {status.reason}")
            if time.monotonic() > deadline:
                raise EngineUnavailable(f"the server is still {status.state} after {timeout_s:g} s")
            await asyncio.sleep(_POLL_S)
