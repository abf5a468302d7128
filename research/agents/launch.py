"""A running agent in the foreground: in a container, or as a plain process of the user, which is not isolated.

Of both the output is read piece by piece, and leaving its context ends it, as does the death of this process: the
agent's process watches a pipe, the container its gateway. The server's token stays outside of the container.
"""

import asyncio
import codecs
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from research.agents.request import AgentRequest
from research.environments.catalog import client_files, write_client_files
from research.installation.servers import ServerConnection
from research.isolation.access_policy import AccessPolicy
from research.isolation.mode import EngineThread
from research.own_process import bypass_proxy
from sandboxes import ContainerHandle, Exit, SandboxSpec
from sandboxes.docker.container import DockerSandbox
from sandboxes.docker.engine import ContainerEngine
from sandboxes.gateway.egress import Destination
from sandboxes.gateway.gateway import EGRESS_PORT, PORTS, SERVER_PORT, Gateway
from sandboxes.gateway.reverse_proxy import PLACEHOLDER, Upstream
from sandboxes.spec import Limits, added_text
from swarm.environments.custom import to_json
from swarm.environments.processes import VARIABLE, watchdog_pipe
from swarm.wire import EVALUATION_STREAM

GRACE_S = 5.0
LOOK_S = 0.25
"""Seconds between two reads of a container's output."""
LOG_TAIL_BYTES = 256 << 10
RESULT = "result.json"
ENVIRONMENTS = "environments"
"""Where a brought environment lies in what is given."""
PROXIED = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), f"http://127.0.0.1:{EGRESS_PORT}"),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
}


@dataclass(frozen=True, slots=True)
class AgentPlacement:
    """Where an agent is to run, and what a container of it may take and reach; without an engine a plain process."""

    folder: Path
    environment: Mapping[str, str]
    limits: Limits = field(default_factory=Limits)
    allow: tuple[Destination, ...] = ()
    gpus: tuple[str, ...] = ()
    engine: ContainerEngine | None = None
    image: str | None = None
    containers: Path = Path()
    """The root of the containers' folders."""


class ProcessAgent:
    """A plain process."""

    def __init__(self, process: asyncio.subprocess.Process, result: Path, time_limit_s: float | None) -> None:
        self._process, self._result = process, result
        self._deadline = asyncio.get_running_loop().time() + (float("inf") if time_limit_s is None else time_limit_s)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._output = ""
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

    async def read_output(self) -> str:
        said, self._output = self._output, ""
        return said

    async def result(self) -> dict[str, Any] | None:
        """Return the summary or evaluation it left, once it has ended."""
        return json.loads(self._result.read_bytes()) if self._result.exists() else None

    async def end(self, grace_s: float = GRACE_S) -> None:
        """End it and all it started; what has not ended within `grace_s` is killed."""
        self._signal(signal.SIGTERM)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace_s)
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
            self._output += self._decoder.decode(piece)


@asynccontextmanager
async def run_in_process(
    request: AgentRequest, server: ServerConnection, place: AgentPlacement
) -> AsyncIterator[ProcessAgent]:
    """Run an agent in a plain process; its folder takes what it is given, a brought environment too, and its result."""
    folder = place.folder
    tasks, result, environments = folder / "tasks.json", folder / RESULT, folder / ENVIRONMENTS
    tasks.write_text(to_json(request.tasks), encoding="utf-8")
    if request.environment is not None:
        write_client_files(request.environment, environments)
    code = str(request.code.folder) if request.code else ""
    own = {"PYTHONUNBUFFERED": "1", **os.environ, **place.environment, "AJET_TOKEN": server.token}
    bypass_proxy(own, urlsplit(server.url).hostname or "")
    with watchdog_pipe() as held:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *request.arguments(
                server=server.url, code=code, tasks=str(tasks), out=str(result), environments=str(environments),
            ),
            env={**own, VARIABLE: str(held)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            start_new_session=True, pass_fds=(held,),
        )  # fmt: skip
        agent = ProcessAgent(process, result, request.time_limit_s)
        try:
            yield agent
        finally:
            await agent.end()


@dataclass(eq=False)
class ContainerAgent:
    """A container; the calls to its engine are made in a thread."""

    _handle: ContainerHandle
    _thread: EngineThread
    _gateway: Gateway
    _seen: str = ""

    async def wait(self) -> Exit | None:
        return await self._thread.do(self._handle.wait, LOOK_S)

    async def read_output(self) -> str:
        now = await self._thread.do(self._handle.logs, tail_bytes=LOG_TAIL_BYTES)
        fresh, self._seen = added_text(self._seen, now), now
        return fresh

    async def result(self) -> dict[str, Any] | None:
        """Return the summary or evaluation it left; None for anything but a JSON object."""
        found = (await self._thread.do(self._handle.results)).get(RESULT)
        with suppress(ValueError, RecursionError):
            value = json.loads(found.read_bytes()) if found else None
            return value if isinstance(value, dict) else None
        return None

    @property
    def refused(self) -> Mapping[str, int]:
        return self._gateway.refused


RunningAgent = ProcessAgent | ContainerAgent


@asynccontextmanager
async def run_in_container(
    request: AgentRequest, server: ServerConnection, place: AgentPlacement
) -> AsyncIterator[ContainerAgent]:
    """Run an agent in a container; its folder takes its sockets and the log of its connections to the Internet."""
    assert place.engine is not None
    spec, folder = container_spec(request, place), place.folder
    ids = {task.id for task in request.tasks}
    trains, stream = not request.asked.evaluates, request.asked.stream
    access = AccessPolicy("train" if trains else "eval", ids, stream if trains else EVALUATION_STREAM)
    upstream, log = Upstream(server.url, server.token, access), folder / "egress.log"
    async with Gateway(folder / "exchange", upstream=upstream, allow=place.allow, log=log) as gateway:
        sandbox, thread = DockerSandbox(place.containers, place.engine), EngineThread()
        try:
            yield ContainerAgent(await thread.do(sandbox.run, spec), thread, gateway)
        finally:  # also when it was being launched
            try:
                await thread.do_shielded(sandbox.reap, spec.labels)
            finally:
                thread.close()
            if not (place.containers / spec.name / "started.json").exists():
                shutil.rmtree(place.containers / spec.name, ignore_errors=True)  # it never started: nothing to keep


def container_spec(request: AgentRequest, place: AgentPlacement) -> SandboxSpec:
    folder = place.folder
    files = {"tasks.json": to_json(request.tasks).encode()}
    if request.environment is not None:
        files |= client_files(request.environment, ENVIRONMENTS)
    if request.code is not None:
        files |= {f"agent/{path}": content for path, content in request.code.read().items()}
    arguments = request.arguments(
        server=f"http://127.0.0.1:{SERVER_PORT}", code="/input/agent", tasks="/input/tasks.json",
        out=f"/workspace/results/{RESULT}", environments=f"/input/{ENVIRONMENTS}",
    )  # fmt: skip
    return SandboxSpec(
        name=folder.name, command=("python3", *arguments), directory=folder,
        environment={**place.environment, **(PROXIED if place.allow else {}), "AJET_TOKEN": PLACEHOLDER},
        labels={"client": folder.name}, time_limit_s=request.time_limit_s, limits=place.limits, image=place.image,
        files=files, results={RESULT: 16 << 20}, tied=True, exchange=folder / "exchange",
        ports=PORTS if place.allow else {SERVER_PORT: PORTS[SERVER_PORT]}, gpus=place.gpus,
    )  # fmt: skip
