"""The client on asyncio: give a server its job, begin episodes, roll an agent out, evaluate it."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import quote, urlencode

from pydantic import ValidationError

from swarm.client.agents import Agent, EpisodeResult, RolloutSummary
from swarm.client.episode import Episode, HasId, TaskT
from swarm.client.rollout import GOODBYE_S, WAIT_S, Place, RolloutLoop, once_the_engine_is_on
from swarm.client.stream_tasks import StreamTasks
from swarm.client.succession import Succession
from swarm.client.transport import Transport
from swarm.errors import (
    EngineUnavailable,
    InvalidRequest,
    JobConflict,
    NotFound,
    ServerFailed,
    Unreachable,
    wrong_value,
)
from swarm.wire import (
    EVALUATION_STREAM,
    BeginRequest,
    CheckpointList,
    EpisodeKind,
    EpisodeList,
    EpisodeRecord,
    Lease,
    Released,
    ReleaseRequest,
    ServerState,
    SharesRequest,
    Status,
    StreamList,
    TaskList,
    TaskListKnown,
)

if TYPE_CHECKING:
    from swarm.job import Job

log = logging.getLogger(__name__)

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

    `token` is a role token of the server (admin for jobs, client for episodes); `owner` is shown in its logs, with a
    mark by which a client that is started again takes over from one that was killed (`swarm.client.succession`).
    """

    def __init__(self, url: str, token: str, *, owner: str | None = None) -> None:
        self._transport = Transport(url)
        self._token = token
        self._succession = Succession(url, owner or f"{socket.gethostname()}:{os.getpid()}")

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
        self._succession.leave()
        await self._transport.close()

    async def status(self, *, within_s: float | None = None) -> Status:
        """Return what the server is doing; Unreachable where it does not say so `within_s`, if that is given."""
        try:
            async with asyncio.timeout(within_s):
                return Status.model_validate(await self._transport.call("GET", "/status", self._token))
        except TimeoutError:
            raise Unreachable(f"the swarm server at {self.url} did not answer within {within_s:g} s") from None

    async def job(self) -> Job | None:
        """Return the loaded job, or None."""
        from swarm.job import Job  # not at the top: most clients never ask, and a container starts anew each time

        try:
            return Job.recorded(await self._transport.call("GET", "/job", self._token))
        except NotFound:
            return None

    async def ensure_training(self, job: Job, *, timeout_s: float = 600.0) -> Status:
        """Make the server train `job` and return once it serves; nothing happens if it does so already.

        Raises JobConflict when it trains another job, ServerFailed when booting fails, EngineUnavailable when it
        does not serve within `timeout_s`.
        """
        status = await self.status()
        if status.state is ServerState.OFFLINE:
            await self._transport.call("POST", "/job", self._token, json.dumps(job.value()).encode())
            await self._transport.call("POST", "/engine/start", self._token, b"")
        return await self._serving(job, timeout_s)

    async def stop(self) -> Status:
        """Stop the engine: tracking is finished, the server is OFFLINE."""
        return Status.model_validate(await self._transport.call("POST", "/engine/stop", self._token, b""))

    async def begin(
        self,
        task: TaskT,
        *,
        kind: EpisodeKind = "train",
        stream: str = "default",
        wait_s: float = 0.0,
        timeout_s: float | None = None,
    ) -> Episode[TaskT]:
        """Begin one episode of a task; raises Throttled when there is no room within `wait_s`.

        Who begins training episodes by hand plays each task `group_size` times: a group that nobody goes on
        with is dropped after `lease_ttl_s`. `timeout_s` is how long the episode may take (`swarm.wire.BeginRequest`).
        """
        try:
            asked = BeginRequest(
                task_id=task.id, stream=stream, kind=kind, owner=self.owner, wait_s=wait_s, timeout_s=timeout_s
            )
        except ValidationError as error:
            raise wrong_value(error) from None
        return Episode(self._transport, await self._begin(asked), task)

    async def begin_next(
        self, tasks: StreamTasks[TaskT], *, wait_s: float = 0.0, timeout_s: float | None = None
    ) -> Episode[TaskT]:
        """Begin one training episode of the stream's next place, whose task the server chooses; raises as `begin`.

        First what was begun by anybody and not brought to its end, then the next task of the pass. The stream's list
        is named before: `name_tasks`.
        """
        lease = await self._begin(
            BeginRequest(tasks=tasks.digest, stream=tasks.stream, owner=self.owner, wait_s=wait_s, timeout_s=timeout_s)
        )
        return Episode(self._transport, lease, tasks[lease.task_id])

    async def name_tasks(self, tasks: Iterable[TaskT], stream: str = "default") -> StreamTasks[TaskT]:
        """Name the tasks of a stream, in the order in which they are to be played; any number of clients share them.

        A stream has one list for ever: JobConflict where it has other tasks, ValueError for none. The order counts
        that came first.
        """
        named = StreamTasks(stream, tasks)
        if not (await self._named(named.request(with_ids=False))).known:
            await self._named(named.request(with_ids=True))
        return named

    @property
    def owner(self) -> str:
        """Who begins the client's episodes, as the server's records have it."""
        return self._succession.owner

    async def take_over(self) -> None:
        """Have the server give up what killed clients of this machine left open; beginning an episode does it too."""
        await self._succession.enter(self._release)

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

        The server hands the places out (`name_tasks`), so that any number of clients share one pass over the tasks, and
        a restarted one goes on from the breakpoint; JobConflict where the stream has other tasks.
        An agent that raises, or takes longer than `timeout_s`, gives up its episode; it is counted and played
        again. A server that goes away is waited for, up to two minutes. Raises AgentFailed after many failures in a
        row, ServerFailed at once, and Unreachable once the server has been away for too long.
        """
        if (await self.status()).group_size is None:
            raise InvalidRequest("the server has no job yet; call ensure_training(job) first")
        known = list(tasks)
        named = await once_the_engine_is_on(lambda: self.name_tasks(known, stream))
        rollout = RolloutLoop(agent, timeout_s)
        begin = partial(self.begin_next, named, wait_s=WAIT_S, timeout_s=timeout_s + GOODBYE_S)
        await rollout.play(itertools.repeat(Place(0, begin)), concurrency)
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
        rollout = RolloutLoop(agent, timeout_s)
        begin = partial(
            self.begin, kind="eval", stream=EVALUATION_STREAM, wait_s=WAIT_S, timeout_s=timeout_s + GOODBYE_S
        )
        places = (Place(sample, partial(begin, task)) for task in known for sample in range(samples))
        await rollout.play(places, concurrency)
        order = {task.id: place for place, task in enumerate(known)}
        return sorted(rollout.results, key=lambda result: (order[result.task_id], result.sample))

    async def _begin(self, asked: BeginRequest) -> Lease:
        await self.take_over()
        body = asked.model_dump_json(exclude_none=True).encode()
        return Lease.model_validate(await self._transport.call("POST", "/episodes", self._token, body))

    async def _named(self, asked: TaskList) -> TaskListKnown:
        body = asked.model_dump_json(exclude_none=True).encode()
        return TaskListKnown.model_validate(await self._transport.call("POST", "/streams/tasks", self._token, body))

    async def _release(self, secret: str) -> Released:
        body = ReleaseRequest(secret=secret).model_dump_json().encode()
        found = Released.model_validate(await self._transport.call("POST", "/owners/release", self._token, body))
        log.info("event=took_over episodes=%d", found.episodes)
        return found

    async def _serving(self, job: Job, timeout_s: float) -> Status:
        deadline = time.monotonic() + timeout_s
        known = {job.digest()}
        while True:
            status = await self.status()
            if status.job_digest not in known:  # also when another client's job came between this one's two calls
                await self._require(job, status)
                known.add(str(status.job_digest))
            if status.state in _SERVING:
                return status
            if status.state is ServerState.FAILED:
                raise ServerFailed(f"the server failed: {status.reason}")
            if time.monotonic() > deadline:
                raise EngineUnavailable(f"the server is still {status.state} after {timeout_s:g} s")
            await asyncio.sleep(_POLL_S)

    async def _require(self, job: Job, status: Status) -> None:
        """Raise JobConflict unless the loaded job means what this one does, though another release digested it."""
        try:
            loaded = await self.job()
        except ValidationError:  # it says what this release does not know
            loaded = None
        if loaded is None or not job.same(loaded):
            differs = "" if loaded is None else f" (this one has {', '.join(job.differences(loaded))})"
            raise JobConflict(
                f"the server at {self.url} trains job {str(status.job_digest)[:12]}, not {job.digest()[:12]}{differs}; "
                "stop it first (`ajet swarm stop`, or the client's stop()), or use another server"
            )
