"""Clients of a swarm server as containers behind gateways and as plain processes, started alike for comparison."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from anyio.from_thread import BlockingPortal

from rig.servers import ServerProcess
from sandboxes import DockerSandbox, Handle, Limits, ProcessSandbox, SandboxSpec
from sandboxes.docker.engine import ContainerEngine
from sandboxes.gateway.gateway import PORTS, SERVER_PORT, Gateway
from sandboxes.gateway.reverse_proxy import PLACEHOLDER, Upstream

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
FILES = {"first_call.py": (HERE / "first_call.py").read_bytes(), "calls.py": (HERE / "fast_calls.py").read_bytes()}
TASKS = json.dumps([{"id": f"task-{number}", "data": {}} for number in range(4)]).encode()
EVALUATE = ("-m", "swarm.environments", "evaluate", "--episodes", "1", "--concurrency", "1")


class Place(Protocol):
    """Where clients run."""

    def run(self, name: str, arguments: tuple[str, ...], files: Mapping[str, bytes]) -> Handle:
        """Start `python ARGUMENTS`, in which /input/ and {server} stand for its files and the server."""
        ...


class Containers:
    """Clients in containers, each behind a gateway of its own."""

    def __init__(
        self, folder: Path, engine: ContainerEngine, image: str, server: ServerProcess, portal: BlockingPortal
    ) -> None:
        self._sandbox = DockerSandbox(folder / "containers", engine)
        self._folder, self._image, self._server, self._portal = folder, image, server, portal
        self._gateways: list[Gateway] = []

    def exchange(self, name: str) -> Path:
        """Serve the exchange folder of a client; return it."""
        folder = self._folder / "exchange" / name
        upstream = Upstream(self._server.url, self._server.token, lambda _: None)
        gateway = Gateway(folder, upstream=upstream, log=self._folder / f"{name}.jsonl")
        self._portal.call(gateway.__aenter__)
        self._gateways.append(gateway)
        return folder

    def run(self, name: str, arguments: tuple[str, ...], files: Mapping[str, bytes]) -> Handle:
        """Start a container."""
        server = f"http://127.0.0.1:{SERVER_PORT}"
        return self._sandbox.run(
            SandboxSpec(
                name=name, command=("python3", *(part.format(server=server) for part in arguments)),
                directory=self._folder, environment={"AJET_TOKEN": PLACEHOLDER}, time_limit_s=600.0,
                limits=Limits(cpus=float(os.cpu_count() or 1)), image=self._image, files=files,
                exchange=self.exchange(name), ports={SERVER_PORT: PORTS[SERVER_PORT]},
            )
        )  # fmt: skip

    def end(self) -> None:
        """End and remove all containers, and their gateways."""
        self._sandbox.reap({})
        for gateway in self._gateways:
            self._portal.call(gateway.__aexit__, None, None, None)
        self._gateways.clear()


class Processes:
    """Clients as plain processes of the process sandbox."""

    def __init__(self, folder: Path, python: str, server: ServerProcess) -> None:
        self._sandbox = ProcessSandbox(folder / "processes")
        self._folder, self._python, self._server = folder, python, server

    def run(self, name: str, arguments: tuple[str, ...], files: Mapping[str, bytes]) -> Handle:
        """Start a process."""
        own = self._folder / "files" / name
        own.mkdir(parents=True)
        for path, data in files.items():
            (own / path).write_bytes(data)
        placed = (part.format(server=self._server.url).replace("/input/", f"{own}/") for part in arguments)
        return self._sandbox.run(
            SandboxSpec(
                name=name, command=(self._python, *placed), directory=REPOSITORY,
                environment={"AJET_TOKEN": self._server.token}, time_limit_s=600.0, trusted=True,
            )
        )  # fmt: skip


def first_call(place: Place, name: str) -> Handle:
    """Start a client that makes one model call."""
    out = ("--out", "/workspace/results/out.json") if isinstance(place, Containers) else ("--out", "/input/out.json")
    arguments = (*EVALUATE, "--server", "{server}", "--tasks", "/input/tasks.json", *out)
    files = {"tasks.json": TASKS, "first_call.py": FILES["first_call.py"]}
    return place.run(name, (*arguments, "--agent", "/input/first_call.py:agent"), files)


def said(handle: Handle, mark: str, until_s: float = 120.0) -> dict[str, float]:
    """Wait for the line of JSON that begins with `mark`; raises RuntimeError when it ends without one."""
    until = time.monotonic() + until_s
    while time.monotonic() < until:
        ended = handle.poll()
        text = handle.logs()
        for line in text.splitlines():
            if line.startswith(mark):
                return dict(json.loads(line.removeprefix(mark)))
        if ended is not None:
            raise RuntimeError(f"{handle.name} ended as {ended} and said:\n{text}")
        time.sleep(0.1)
    raise RuntimeError(f"{handle.name} said nothing in {until_s:.0f} s")
