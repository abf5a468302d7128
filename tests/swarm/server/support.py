"""A whole swarm server with a fake backend on a real loopback socket, and a plain client for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn

from swarm.backends.fake import FakeBackend, Script, number_script
from swarm.backends.protocols import Backend
from swarm.job import Job
from swarm.rollout.keys import ServerDirectory
from swarm.rollout.rollout import Rollout
from swarm.server import Keys, SwarmServer, make_app
from swarm.server.connections import LimitedHttp
from swarm.server.routes import openapi
from swarm.training.trackers import Tracker

DEADLINE_S = 180.0
MODEL = "fake"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class RecordingTracker:
    """Keeps what is logged, and by which thread; merged, as W&B does, in `steps`."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.steps: dict[int, dict[str, float]] = {}
        self.threads: set[str] = set()
        self.finished = 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.threads.add(threading.current_thread().name)
        self.logged.append((step, dict(metrics)))
        self.steps[step] = {**self.steps.get(step, {}), **metrics}

    def finish(self) -> None:
        self.finished += 1


@dataclass(frozen=True)
class Operation:
    """One call as the OpenAPI document has it; `keys`: the roles and uses of keys that may make it."""

    name: str
    method: str
    path: str
    keys: frozenset[str]
    takes_input: bool


def operations() -> list[Operation]:
    found = []
    for path, methods in openapi()["paths"].items():
        for method, told in methods.items():
            rules = [rule for rules in told.get("security", ()) for rule in rules.items()]
            keys = frozenset(key for use, roles in rules for key in roles or [use])
            query = any(one["in"] == "query" for one in told.get("parameters", ()))
            found.append(Operation(told["operationId"], method.upper(), path, keys, query or "requestBody" in told))
    return found


@dataclass
class Answer:
    status: int
    body: Any
    headers: dict[str, str]

    @property
    def code(self) -> str | None:
        return self.body["error"]["code"] if "error" in self.body else None

    @property
    def message(self) -> str:
        return str(self.body["error"]["message"])

    @property
    def text(self) -> str:
        return str(self.body["choices"][0]["message"]["content"])


@dataclass
class Served:
    server: SwarmServer
    url: str
    http: aiohttp.ClientSession
    backends: list[FakeBackend] = field(default_factory=list)
    model: str = MODEL
    """What requests name: another backend's model has another name."""

    @property
    def backend(self) -> FakeBackend:
        return self.backends[-1]

    @property
    def admin(self) -> str:
        return self.server.keys.role_key("admin")

    async def call(
        self, method: str, path: str, key: str | None = None, body: Any = None, raw: Any = b"", **headers: str
    ) -> Answer:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers |= {"authorization": f"Bearer {key}"} if key else {}
        data = {"json": body} if body is not None else {"data": raw}
        async with self.http.request(method, self.url + path, headers=headers, **data) as response:
            answered = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, await response.json(content_type=None), answered)

    async def post(self, path: str, key: str | None = None, body: Any = None) -> Answer:
        return await self.call("POST", path, key, body)

    async def begin(self, task: str = "t", **fields: Any) -> dict[str, Any]:
        answer = await self.post("/episodes", self.admin, {"task_id": task, "wait_s": 10.0, **fields})
        assert answer.status == 200, answer
        return dict(answer.body)

    async def begin_batch(self, tasks: str = "aabb") -> list[dict[str, Any]]:
        leases = [await self.begin(task) for task in tasks]
        for lease in leases:
            assert (await self.chat(lease)).status == 200
        return leases

    async def chat(
        self, lease: dict[str, Any], *texts: str, headers: Mapping[str, str] | None = None, **fields: Any
    ) -> Answer:
        messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts or ("hi",))]
        body = {"model": self.model, "messages": messages, **fields}
        return await self.call("POST", "/v1/chat/completions", lease["api_key"], body, **(headers or {}))

    async def verb(self, lease: dict[str, Any], verb: str, body: Any = None) -> Answer:
        return await self.post(f"/episodes/{lease['episode_id']}/{verb}", lease["lease_token"], body)

    async def end(self, lease: dict[str, Any], reward: float = 1.0, **fields: Any) -> Answer:
        return await self.verb(lease, "end", {"reward": reward, **fields})

    async def status(self) -> dict[str, Any]:
        return dict((await self.call("GET", "/status", self.admin)).body)

    async def until(self, **wanted: Any) -> dict[str, Any]:
        return dict(await eventually(self.status, lambda status: wanted.items() <= status.items()))

    @property
    def rollout(self) -> Rollout:
        return self.server.training.rollout

    async def get(self, path: str, role: Any = "admin") -> Any:
        answer = await self.call("GET", path, self.server.keys.role_key(role))
        assert answer.status == 200, answer
        return answer.body

    async def play_step(self, tasks: str = "aabb", turns: int = 1) -> None:
        """Play a batch of episodes at once; every second one succeeds."""
        await asyncio.gather(*(self.play(task, float(number % 2), turns) for number, task in enumerate(tasks)))

    async def play_to(self, step: int) -> None:
        for done in range((await self.status())["step"], step):
            await self.play_step()
            await self.until(step=done + 1, state="ROLLING")

    async def evaluate(self, *outcomes: bool) -> None:
        for success in outcomes:
            lease = await self.begin("t", kind="eval")
            assert (await self.chat(lease)).status == 200
            assert (await self.end(lease, float(success), success=success)).status == 200

    async def play(self, task: str, reward: float = 1.0, turns: int = 1, **fields: Any) -> str:
        lease = await self.begin(task, **fields)
        said = ["hi"]
        for _ in range(turns):
            answer = await self.chat(lease, *said)
            assert answer.status == 200, answer
            said += [answer.text, "more"]
        assert (await self.end(lease, reward, success=reward > 0)).status == 200
        return str(lease["episode_id"])

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self.url.removeprefix("http://").split(":")
        return await asyncio.open_connection(host, int(port))


async def eventually(look: Callable[[], Any], accepted: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            seen = look()
            seen = await seen if asyncio.iscoroutine(seen) else seen
            if accepted(seen):
                return seen
            await asyncio.sleep(0.01)


def job(**fields: Any) -> Job:
    small = {"backend": "fake", "steps": 2, "episodes_per_step": 4, "group_size": 2}
    return Job.model_validate({**small, **fields})


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    wanted: Job | None = None,
    *,
    start: bool = True,
    script: Script = number_script,
    chunk_size: int = 8,
    backend: Callable[[Job], Backend] | None = None,
    tracker: Callable[[Job], Tracker | None] = lambda _: None,
    clock: Callable[[], float] | None = None,
    port: int = 0,
    peers: Sequence[str] = (),
    checkpoint_after_s: float | None = None,
) -> AsyncIterator[Served]:
    """Serve a job (rolling, unless `start` is False) on loopback; port 0 is any free one."""
    made: list[FakeBackend] = []

    def make(loaded: Job, _: Path) -> Backend:
        one = backend(loaded) if backend is not None else FakeBackend(loaded, script=script, chunk_size=chunk_size)
        if isinstance(one, FakeBackend):
            made.append(one)
        return one

    timing: dict[str, Any] = {"checkpoint_after_s": checkpoint_after_s}
    if clock is not None:
        timing["clock"] = clock
    keys = Keys(secret=ServerDirectory(folder).secret())
    server = SwarmServer(folder, folder / "models", keys, backends=make, trackers=tracker, peers=peers, **timing)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    config = uvicorn.Config(
        make_app(server), http=LimitedHttp, log_config=None, lifespan="off", timeout_graceful_shutdown=2
    )
    http_server = uvicorn.Server(config)
    task = asyncio.create_task(http_server.serve(sockets=[sock]))
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await eventually(lambda: http_server.started, bool)
        served = Served(server, url, session, made)
        try:
            if start:
                server.load(wanted or job())
                await server.start()
                await served.until(state="ROLLING")
            yield served
        finally:
            await server.stop()
            await session.close()
            task.cancel()  # uvicorn's own way out takes a quarter of a second
            with contextlib.suppress(asyncio.CancelledError):
                await task
            for listening in http_server.servers:
                listening.close()
            for connection in list(http_server.server_state.connections):
                connection.transport.abort()  # as the death of a process would
