"""An agent at work in the foreground: in a container behind a gateway, or as a plain process of the user.

Both are `Playing`s: what they say is taken piece by piece, and leaving their context ends them, as does the death of
this process: the process watches a pipe, the container its door. The process is kept
from nothing; it is for the user's own code. The container holds the light client, the agent's files and the tasks;
the server's token stays outside.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from research.admission import Admission
from research.agent_order import AgentOrder, Confinement, Server
from research.growing_text import news
from sandboxes import ContainerHandle, Exit, SandboxSpec
from sandboxes.archive import pack
from sandboxes.containers import DockerSandbox
from sandboxes.engine import Engine
from sandboxes.gateway import EGRESS_PORT, PLACEHOLDER, PORTS, SERVER_PORT, Gateway, Upstream
from swarm.environments.lifeline import VARIABLE
from swarm.environments.tasks_file import to_json
from swarm.wire import EVALUATION_STREAM

P = ParamSpec("P")
T = TypeVar("T")
GRACE_S = 5.0
LOOK_S = 0.25
"""How often a container is asked for what it has said."""
LOG_TAIL_BYTES = 256 << 10
RESULT = "result.json"
RESULT_BYTES = 16 << 20
_PROXY = f"http://127.0.0.1:{EGRESS_PORT}"
PROXIED = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), _PROXY),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
}


class Playing(Protocol):
    """An agent at work."""

    async def wait(self) -> Exit | None:
        """Wait a moment; return how it ended, or None while it runs."""
        ...

    async def said(self) -> str:
        """Return what it has said since the last time."""
        ...

    async def result(self) -> dict[str, Any] | None:
        """Return the summary or evaluation it left, once it has ended."""
        ...

    @property
    def refused(self) -> Mapping[str, int]:
        """What it asked for and did not get, by reason."""
        ...


class ProcessPlaying:
    """A plain process."""

    def __init__(self, process: asyncio.subprocess.Process, result: Path, time_limit_s: float | None) -> None:
        self._process = process
        self._result = result
        self._deadline = asyncio.get_running_loop().time() + (float("inf") if time_limit_s is None else time_limit_s)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._heard = ""
        self._reader = asyncio.create_task(self._read())
        self.refused: Mapping[str, int] = {}

    async def wait(self) -> Exit | None:
        """Wait a moment; return how it ended, or None while it runs."""
        with suppress(TimeoutError):
            code = await asyncio.wait_for(self._process.wait(), LOOK_S)
            await asyncio.wait({self._reader}, timeout=1.0)
            return Exit("finished" if code == 0 else "error", code)
        if asyncio.get_running_loop().time() > self._deadline:
            await self.end()
            return Exit("timeout", None)
        return None

    async def said(self) -> str:
        """Return what it has said since the last time."""
        said, self._heard = self._heard, ""
        return said

    async def result(self) -> dict[str, Any] | None:
        """Return the summary or evaluation it left."""
        return json.loads(self._result.read_bytes()) if self._result.exists() else None

    async def end(self) -> None:
        """End it and all it started."""
        self._signal(signal.SIGTERM)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), GRACE_S)
        finally:
            self._signal(signal.SIGKILL)
            await self._process.wait()
            await asyncio.wait({self._reader}, timeout=1.0)
            self._reader.cancel()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while piece := await self._process.stdout.read(1 << 16):
            self._heard += self._decoder.decode(piece)


@asynccontextmanager
async def in_process(
    order: AgentOrder, server: Server, folder: Path, environment: Mapping[str, str]
) -> AsyncIterator[ProcessPlaying]:
    """Play in a plain process; `folder` takes its tasks and its result."""
    tasks, result = folder / "tasks.json", folder / RESULT
    tasks.write_text(to_json(order.tasks), encoding="utf-8")
    code = str(order.code.folder) if order.code else ""
    with _lifeline() as held:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *order.arguments(server=server.url, code=code, tasks=str(tasks), out=str(result)),
            env={"PYTHONUNBUFFERED": "1", **os.environ, **environment, "AJET_TOKEN": server.token, VARIABLE: str(held)},
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            start_new_session=True, pass_fds=(held,),
        )  # fmt: skip
        playing = ProcessPlaying(process, result, order.time_limit_s)
        try:
            yield playing
        finally:
            await playing.end()


@contextmanager
def _lifeline() -> Iterator[int]:
    """Yield the reading end of a pipe that ends with this process, or with the block."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


@dataclass(frozen=True, slots=True)
class Within:
    """The engine and the image of a container, and where its folder is."""

    engine: Engine
    image: str
    containers: Path


class ContainerPlaying:
    """A container, spoken to in a thread of its own, for the engine's SDK blocks."""

    def __init__(self, sandbox: DockerSandbox, gateway: Gateway) -> None:
        self._sandbox = sandbox
        self._gateway = gateway
        self._thread = ThreadPoolExecutor(1, "engine")
        self._handle: ContainerHandle | None = None
        self._seen = ""

    async def start(self, spec: SandboxSpec) -> None:
        """Launch it."""
        self._handle = await self._do(self._sandbox.run, spec)

    async def wait(self) -> Exit | None:
        """Wait a moment; return how it ended, or None while it runs."""
        return await self._do(self._launched.wait, LOOK_S)

    async def said(self) -> str:
        """Return what it has said since the last time."""
        now = await self._do(self._launched.logs, tail_bytes=LOG_TAIL_BYTES)
        fresh, self._seen = news(self._seen, now), now
        return fresh

    async def result(self) -> dict[str, Any] | None:
        """Return the summary or evaluation it left, whatever its code made of it."""
        found = (await self._do(self._launched.results)).get(RESULT)
        with suppress(ValueError, RecursionError):
            value = json.loads(found.path.read_bytes()) if found else None
            return value if isinstance(value, dict) else None
        return None

    @property
    def refused(self) -> Mapping[str, int]:
        """What it asked for and did not get, by reason."""
        return self._gateway.refused

    async def end(self, labels: Mapping[str, str]) -> None:
        """End and remove it, also when it was being launched."""
        try:
            # Made though a second signal comes while it waits for its turn.
            await asyncio.shield(asyncio.wrap_future(self._thread.submit(self._sandbox.reap, labels)))
        finally:
            self._thread.shutdown()

    @property
    def _launched(self) -> ContainerHandle:
        assert self._handle is not None
        return self._handle

    async def _do(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(self._thread.submit(call, *args, **kwargs))


@asynccontextmanager
async def in_container(
    order: AgentOrder, server: Server, folder: Path, given: Confinement, within: Within, environment: Mapping[str, str]
) -> AsyncIterator[ContainerPlaying]:
    """Play in a container; `folder` takes its sockets and the log of its connections to the Internet."""
    spec = container_spec(order, given, folder, within.image, environment)
    ids = {task.id for task in order.tasks}
    admission = (
        Admission("train", ids, order.stream) if order.action == "play" else Admission("eval", ids, EVALUATION_STREAM)
    )
    gateway = Gateway(
        folder / "exchange",
        upstream=Upstream(server.url, server.token, admission),
        allow=given.allow,
        log=folder / "egress.log",
    )
    async with gateway:
        playing = ContainerPlaying(DockerSandbox(within.containers, within.engine), gateway)
        try:
            await playing.start(spec)
            yield playing
        finally:
            await playing.end(spec.labels)
            if not (within.containers / spec.name / "started.json").exists():
                shutil.rmtree(within.containers / spec.name, ignore_errors=True)  # no record of what never was


def container_spec(
    order: AgentOrder, given: Confinement, folder: Path, image: str, environment: Mapping[str, str]
) -> SandboxSpec:
    """Return what runs in the container."""
    files = {"tasks.json": to_json(order.tasks).encode()}
    if order.code is not None:
        files |= {f"agent/{path}": content for path, content in order.code.packed().items()}
    arguments = order.arguments(
        server=f"http://127.0.0.1:{SERVER_PORT}",
        code="/input/agent",
        tasks="/input/tasks.json",
        out=f"/workspace/results/{RESULT}",
    )
    ports = PORTS if given.allow else {SERVER_PORT: PORTS[SERVER_PORT]}
    return SandboxSpec(
        name=folder.name,
        command=("python3", *arguments),
        directory=folder,
        environment={**environment, **(PROXIED if given.allow else {}), "AJET_TOKEN": PLACEHOLDER},
        labels={"client": folder.name},
        time_limit_s=order.time_limit_s,
        limits=given.limits,
        image=image,
        archive=pack(files),
        results={RESULT: RESULT_BYTES},
        tied=True,
        exchange=folder / "exchange",
        ports=ports,
        gpus=given.gpus,
    )
