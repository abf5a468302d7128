"""The client on asyncio: give a server its job, begin episodes, roll an agent out, evaluate it."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ValidationError

from swarm import errors, wire
from swarm.client.episode import Agent, Episode, EpisodeResult, HasId, Result, RolloutSummary, TaskT
from swarm.client.rollout import WAIT_S, Place, RolloutLoop, StreamTasks, retry_until_ready
from swarm.client.transport import Connectable, Transport
from swarm.snapshot import HistoryPage, Snapshot

if TYPE_CHECKING:
    from swarm.job import Job


_SERVING = {wire.ServerState.ROLLING, wire.ServerState.ROLLING_POST, wire.ServerState.WEIGHT_SYNCING}
_MOST_OWNER = 128
EPISODE_TIMEOUT_S = 600.0
WireT = TypeVar("WireT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class NamedTask:
    """A task that is nothing but its id."""

    id: str


class AsyncSwarmClient(Connectable):
    """A client of one swarm server; use as an async context manager.

        async with AsyncSwarmClient(url, token) as client:
            await client.ensure_training(job)
            await client.rollout(agent, tasks, concurrency=64)

    `token` is a role token of the server (admin for jobs, client for episodes); `owner` is shown in its logs, with the
    mark of a secret that proves who may give its episodes up.
    `code`, the sha256 of the agent's files, labels the episodes it begins.
    """

    def __init__(self, url: str, token: str, *, owner: str | None = None, code: str | None = None) -> None:
        self._transport = Transport(url)
        self._token = token
        self._code = code
        self._secret = secrets.token_hex(32)
        mark = f":{wire.fingerprint(self._secret)}"
        self.url = self._transport.url
        """The server's address."""
        self.owner = (owner or f"{socket.gethostname()}:{os.getpid()}")[: _MOST_OWNER - len(mark)] + mark
        """Who begins the client's episodes, as the server's records have it."""

    async def __aenter__(self) -> Self:
        self._transport.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    async def status(self, *, within_s: float | None = None) -> wire.Status:
        """Return what the server is doing; Unreachable where it does not say so `within_s`, if that is given."""
        return await self._get(wire.Status, "/status", within_s)

    async def job(self) -> Job | None:
        """Return the loaded job, or None."""
        from swarm.job import Job  # not at the top: most clients never ask, and a container starts anew each time

        try:
            return await self._transport.ask(Job.from_record, "GET", "/job", self._token)
        except errors.NotFound:
            return None

    async def ensure_training(self, job: Job, *, timeout_s: float = 600.0) -> wire.Status:
        """Make the server train `job` and return once it serves; nothing happens if it does so already. Raises
        JobConflict when it trains another job, ServerFailed when booting fails, EngineUnavailable when it does not
        serve within `timeout_s`."""
        if (await self.status()).state is wire.ServerState.OFFLINE:
            await self._transport.call("POST", "/job", self._token, json.dumps(job.value()).encode())
            await self._transport.call("POST", "/engine/start", self._token, b"")
        deadline, known = time.monotonic() + timeout_s, {job.digest()}
        while True:
            status = await self.status()
            if status.job_digest not in known:  # also when another client's job came between this one's two calls
                try:
                    loaded = await self.job()
                except errors.UnknownAnswer:  # it says what this release does not know
                    loaded = None
                if loaded is None or not job.equals(loaded):  # two may mean the same: another release digests otherwise
                    differs = "" if loaded is None else f" (this one has {', '.join(job.differences(loaded))})"
                    raise errors.JobConflict(
                        f"the server at {self.url} trains job {str(status.job_digest)[:12]}, not "
                        f"{job.digest()[:12]}{differs}; stop it first (`ajet swarm stop`, or the client's stop()), or "
                        "use another server"
                    )
                known.add(str(status.job_digest))
            if status.state in _SERVING:
                return status
            if status.state is wire.ServerState.FAILED:
                raise errors.ServerFailed(f"the server failed: {status.reason}")
            if time.monotonic() > deadline:
                raise errors.EngineUnavailable(f"the server is still {status.state} after {timeout_s:g} s")
            await asyncio.sleep(0.2)

    async def stop(self) -> wire.Status:
        """Stop the engine: tracking is finished, the server is OFFLINE."""
        return await self._post(wire.Status, "/engine/stop")

    async def begin(
        self,
        task: TaskT,
        *,
        kind: wire.EpisodeKind = "train",
        stream: str = "default",
        wait_s: float = 0.0,
        timeout_s: float | None = None,
    ) -> Episode[TaskT]:
        """Begin one episode of a task; raises Throttled when there is no room within `wait_s`. Who begins training
        episodes by hand plays each task `group_size` times: a group that nobody goes on with is dropped after
        `lease_ttl_s`. `timeout_s` is how long the episode may take (`swarm.wire.BeginRequest`)."""
        try:
            asked = wire.BeginRequest(
                task_id=task.id, stream=stream, kind=kind, owner=self.owner, wait_s=wait_s, timeout_s=timeout_s
            )
        except ValidationError as error:
            raise errors.to_invalid_request(error) from None
        return Episode(self._transport, await self._begin(asked), task)

    async def begin_next(
        self, tasks: StreamTasks[TaskT], *, wait_s: float = 0.0, timeout_s: float | None = None
    ) -> Episode[TaskT]:
        """Begin one training episode of the stream's next place, whose task the server chooses; raises as `begin`.
        First what was begun by anybody and not brought to its end, then the next task of the pass. The stream's list is
        named before: `register_tasks`."""
        asked = wire.BeginRequest(
            tasks=tasks.digest, stream=tasks.stream, owner=self.owner, wait_s=wait_s, timeout_s=timeout_s
        )
        lease = await self._begin(asked)
        return Episode(self._transport, lease, tasks[lease.task_id])

    async def register_tasks(self, tasks: Iterable[TaskT], stream: str = "default") -> StreamTasks[TaskT]:
        """Name the tasks of a stream, in the order in which they are to be played; any number of clients share them. A
        stream has one list for ever: JobConflict where it has other tasks, ValueError for none. The order counts that
        came first."""
        named = StreamTasks(stream, tasks)
        if not (await self._post(wire.TaskListKnown, "/streams/tasks", named.request(with_ids=False))).known:
            await self._post(wire.TaskListKnown, "/streams/tasks", named.request(with_ids=True))
        return named

    async def erase(self, secret: str, episodes: Sequence[str]) -> wire.Erasure:
        """Delete the tokens of episodes whose owner's name has the `fingerprint` of this secret (`swarm.wire`)."""
        asked = wire.EraseRequest(secret=secret, episodes=tuple(episodes))
        return await self._post(wire.Erasure, "/owners/erase", asked)

    async def give_up_open(self, reason: wire.ReleaseReason) -> int:
        """Have the server fence what is open under this client's name, also by others that bear it within theirs.
        Returns how many episodes that were."""
        asked = wire.ReleaseRequest(secret=self._secret, reason=reason)
        return (await self._post(wire.Released, "/owners/release", asked)).episodes

    async def episodes(self, limit: int = 100) -> wire.EpisodeList:
        """Return the newest episodes."""
        return await self._get(wire.EpisodeList, f"/episodes?limit={limit}")

    async def episode(self, episode: str) -> wire.EpisodeRecord:
        """Return one episode with every token; raises NotFound if there is none of this id."""
        return await self._get(wire.EpisodeRecord, f"/episodes/{quote(episode, safe='')}")

    async def export(self, to: Path, episode: str | None = None) -> wire.ExportCounts:
        """Write one episode, or all the server knows, to a file of JSON lines; return what was listed for it."""
        query = "" if episode is None else "?" + urlencode({"episode": episode})
        headers = await self._transport.download(f"/samples{query}", self._token, to)
        return wire.ExportCounts.model_validate_json(headers.get(wire.EXPORT_HEADER, "{}"))

    async def model(self) -> str:
        """Return the name of the model that serves, as calls name it."""
        return await self._transport.ask(lambda told: str(told["data"][0]["id"]), "GET", "/v1/models", self._token)

    async def files(self, under: str = "tracking") -> wire.FileList:
        """Return the server's files below `checkpoints` or `tracking`, or a folder in them (needs the admin role)."""
        return await self._get(wire.FileList, f"/files?{urlencode({'under': under})}")

    async def fetch(self, path: str, to: Path) -> str:
        """Write one of the server's `files` to `to`, whole or not at all; return its sha256. Raises UnknownAnswer where
        what came is not what the server has."""
        headers = await self._transport.download(f"/file?{urlencode({'path': path})}", self._token, to)
        with open(to, "rb") as file:  # noqa: ASYNC230  -- a local file
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != headers.get(wire.FILE_HASH):
            os.unlink(to)
            raise errors.UnknownAnswer(f"expected {path} of the server at {self.url} as it is there; it came changed")
        return found

    async def key(self, role: Literal["client", "viewer"]) -> str:
        """Return a new key of a role, for somebody who may do less (needs the admin role)."""
        return (await self._post(wire.RoleKey, "/keys", wire.KeyRequest(role=role))).key

    async def checkpoints(self) -> wire.CheckpointList:
        """Return the checkpoints that are kept, the newest first."""
        return await self._get(wire.CheckpointList, "/checkpoints")

    async def release(self, training: str) -> wire.FileList:
        """Have the server keep the last weights alone of a training that nobody goes on with, by its job's digest, and
        return what went (needs the admin role). Raises JobConflict while it is on."""
        path = f"/checkpoints?training={training}"
        return await self._transport.ask(wire.FileList.model_validate, "DELETE", path, self._token)

    async def snapshot(self, *, within_s: float | None = None) -> Snapshot:
        """Return what the server does at a glance; NotFound from a server of an earlier release, else as `status`."""
        return await self._get(Snapshot, "/snapshot", within_s)

    async def history(
        self, after: int = 0, keys: Iterable[str] = (), limit: int = 100, *, newest: bool = False
    ) -> HistoryPage:
        """Return what finished steps above `after` measured, at most `limit` of them (500): the first, or the newest.
        Of each all metrics, or those of the keys; `stream/*` names all that begin so. NotFound from a server of an
        earlier release."""
        named = {"keys": ",".join(names)} if (names := list(keys)) else {}
        asked = {"after": after, "limit": limit, **({"newest": "true"} if newest else {}), **named}
        return await self._get(HistoryPage, f"/history?{urlencode(asked)}")

    async def streams(self) -> wire.StreamList:
        """Return where every stream stands."""
        return await self._get(wire.StreamList, "/streams")

    async def share(self, shares: Mapping[str, float]) -> wire.StreamList:
        """Give streams new shares, by name and in any unit, from the next group that begins (needs the admin role)."""
        try:
            asked = wire.SharesRequest(shares=shares)
        except ValidationError as error:
            raise errors.InvalidRequest(f"expected a share above 0 for each stream, found {dict(shares)!r}") from error
        return await self._post(wire.StreamList, "/streams", asked)

    async def advantages(self, given: wire.GivenAdvantages | None = None) -> wire.AwaitedAdvantages:
        """Return the batch that waits for advantages (a job's `external_advantages`), or an empty one; if some are
        `given`, after training took them."""
        if given is None:
            return await self._get(wire.AwaitedAdvantages, "/advantages")
        return await self._post(wire.AwaitedAdvantages, "/advantages", given)

    async def rollout(
        self,
        agent: Agent,
        tasks: Iterable[HasId],
        *,
        concurrency: int = 64,
        stream: str = "default",
        timeout_s: float = EPISODE_TIMEOUT_S,
        choose: Callable[[Sequence[EpisodeResult]], Awaitable[HasId]] | None = None,
    ) -> RolloutSummary:
        """Let `agent` play the tasks, each once per place in its group, over and over, until the job is finished.
        Where it is given, `choose` names the task of each next group in place of the server, from all results so far.

        The server hands the places out (`register_tasks`), so that any number of clients share one pass over the
        tasks, and a restarted one goes on from the breakpoint; JobConflict where the stream has other tasks.
        An agent that raises, or takes longer than `timeout_s`, gives up its episode; it is counted and played
        again; where an API it uses is rate-limited (HTTP 429), after a pause. A server that goes away is waited for, up
        to two minutes. Raises AgentFailed after many failures in a row, and its subclass AgentMisplays at once for an
        agent whose plays can never be trained (`swarm.client.rollout`); ServerFailed at once, and Unreachable once the
        server has been away for too long.
        """
        if (group_size := (await self.status()).group_size) is None:
            raise errors.InvalidRequest("the server has no job yet; call ensure_training(job) first")
        rollout = RolloutLoop(agent, timeout_s)
        if choose is None:
            known = list(tasks)
            named = await retry_until_ready(lambda: self.register_tasks(known, stream))
            begin = partial(self.begin_next, named, wait_s=WAIT_S, timeout_s=rollout.allowed_s)
            places: Iterator[Place[Episode[Any]]] = itertools.repeat(Place(0, begin))
        else:
            chosen = partial(self.begin, stream=stream, wait_s=WAIT_S, timeout_s=rollout.allowed_s)
            places = _places_of_chosen(partial(choose, rollout.results), chosen, group_size)
        await rollout.play(places, concurrency)
        return rollout.summary()

    async def evaluate(
        self,
        agent: Agent,
        tasks: Iterable[HasId],
        *,
        samples: int = 1,
        concurrency: int = 64,
        timeout_s: float = EPISODE_TIMEOUT_S,
        worst: Result = 0.0,
    ) -> list[EpisodeResult]:
        """Let `agent` play each task `samples` times in evaluation episodes; results by task, then sample. A play that
        the agent fails, by an error or by more than `timeout_s`, is worth `worst`, is not solved, and says why
        (`failed`). AgentFailed where plays fail again and again before they call the model."""
        known = list(tasks)
        rollout = RolloutLoop(agent, timeout_s, worst)
        leave_s = rollout.allowed_s
        begin = partial(self.begin, kind="eval", stream=wire.EVALUATION_STREAM, wait_s=WAIT_S, timeout_s=leave_s)
        places = (Place(sample, partial(begin, task)) for task in known for sample in range(samples))
        await rollout.play(places, concurrency)
        order = {task.id: place for place, task in enumerate(known)}
        results = rollout.results
        if any(result.success is None for result in results):  # of an agent that does not say what is solved
            results = [replace(result, success=None) if result.failed else result for result in results]
        return sorted(results, key=lambda result: (order[result.task_id], result.sample))

    async def _get(self, kind: type[WireT], path: str, within_s: float | None = None) -> WireT:
        try:
            async with asyncio.timeout(within_s):
                return await self._transport.ask(kind.model_validate, "GET", path, self._token)
        except TimeoutError:
            raise errors.Unreachable(f"the swarm server at {self.url} did not answer within {within_s:g} s") from None

    async def _post(self, kind: type[WireT], path: str, asked: BaseModel | None = None) -> WireT:
        body = b"" if asked is None else asked.model_dump_json(exclude_none=True).encode()
        return await self._transport.ask(kind.model_validate, "POST", path, self._token, body)

    async def _begin(self, asked: wire.BeginRequest) -> wire.Lease:
        body = asked.model_copy(update={"code": self._code}).model_dump_json(exclude_none=True).encode()
        return await self._transport.ask(wire.Lease.model_validate, "POST", "/episodes", self._token, body, own=False)


def _places_of_chosen(
    choose: Callable[[], Awaitable[HasId]], begin: Callable[[HasId], Awaitable[Episode[Any]]], group_size: int
) -> Iterator[Place[Episode[Any]]]:
    async def begin_chosen(chosen: asyncio.Future[HasId]) -> Episode[Any]:
        return await begin(await asyncio.shield(chosen))

    while True:
        yield from itertools.repeat(Place(0, partial(begin_chosen, asyncio.ensure_future(choose()))), group_size)
