"""Clients of a swarm server as containers behind gateways and as plain processes, started alike for comparison."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import (
    Any,
    Protocol,
    TypeVar,
)

import psutil

from rig.servers import ServerProcess
from sandboxes import DockerSandbox, Handle, Limits, ProcessSandbox, SandboxSpec
from sandboxes.docker.archive import pack
from sandboxes.docker.engine import ContainerEngine
from sandboxes.gateway.gateway import PORTS, SERVER_PORT, Gateway
from sandboxes.gateway.reverse_proxy import PLACEHOLDER, Upstream

T = TypeVar("T")
HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
FILES = {"first_call.py": (HERE / "first_call.py").read_bytes(), "calls.py": (HERE / "fast_calls.py").read_bytes()}
TASKS = json.dumps([{"id": f"task-{number}", "data": {}} for number in range(4)]).encode()
EVALUATE = ("-m", "swarm.environments", "evaluate", "--episodes", "1", "--concurrency", "1")


class Loop:
    """An event loop in a thread of its own, which serves the gateways."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gateways", daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """End the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Place(Protocol):
    """Where clients run."""

    def run(self, name: str, arguments: tuple[str, ...], files: Mapping[str, bytes], **environment: str) -> Handle:
        """Start `python ARGUMENTS`, in which /input/ and {server} stand for its files and the server."""
        ...

    def memory(self) -> dict[str, float]:
        """Return what those that run take of memory, in MiB each, as different counters see it."""
        ...

    def end(self) -> None:
        """End and remove all of them."""
        ...


class Containers:
    """Clients in containers, each behind a gateway of its own."""

    def __init__(self, folder: Path, engine: ContainerEngine, image: str, server: ServerProcess, loop: Loop) -> None:
        self._sandbox = DockerSandbox(folder / "containers", engine)
        self._folder, self._engine, self._image, self._server, self._loop = folder, engine, image, server, loop
        self._gateways: list[Gateway] = []

    def exchange(self, name: str) -> Path:
        """Serve the exchange folder of a client; return it."""
        folder = self._folder / "exchange" / name
        upstream = Upstream(self._server.url, self._server.token, lambda _: None)
        gateway = Gateway(folder, upstream=upstream, log=self._folder / f"{name}.jsonl")
        self._loop.do(gateway.__aenter__())
        self._gateways.append(gateway)
        return folder

    def run(self, name: str, arguments: tuple[str, ...], files: Mapping[str, bytes], **environment: str) -> Handle:
        """Start a container."""
        server = f"http://127.0.0.1:{SERVER_PORT}"
        return self._sandbox.run(
            SandboxSpec(
                name=name,
                command=("python3", *(part.format(server=server) for part in arguments)),
                directory=self._folder,
                environment={"AJET_TOKEN": PLACEHOLDER, **environment},
                time_limit_s=600.0,
                limits=Limits(cpus=float(os.cpu_count() or 1)),
                image=self._image,
                archive=pack(files),
                exchange=self.exchange(name),
                ports={SERVER_PORT: PORTS[SERVER_PORT]},
            )
        )

    def memory(self) -> dict[str, float]:
        """Return the control group's view, and the host's: PSS of all processes, the engine's shim included."""
        api, pids, usage = self._engine.client.api, list[int](), list[float]()
        for container in api.containers(filters={"label": f"ajet.installation={self._sandbox.installation}"}):
            found = api.stats(container["Id"], stream=False, one_shot=True)["memory_stats"]
            usage.append(found["usage"] - found["stats"].get("total_cache", found["stats"].get("file", 0)))
            pids.append(int(api.inspect_container(container["Id"])["State"]["Pid"]))
        inside = [psutil.Process(pid) for pid in pids]
        shims = [psutil.Process(process.ppid()) for process in inside]
        return {
            "cgroup, without page cache": round(sum(usage) / len(usage) / 2**20, 1),
            "host, processes in it": _pss([child for process in inside for child in _family(process)], len(pids)),
            "host, the engine's shim": _pss(shims, len(pids)),
        }

    def end(self) -> None:
        """End and remove all containers, and their gateways."""
        self._sandbox.reap({})
        for gateway in self._gateways:
            self._loop.do(gateway.__aexit__(None, None, None))
        self._gateways.clear()


class Processes:
    """Clients as plain processes of the process sandbox."""

    def __init__(self, folder: Path, python: str, server: ServerProcess) -> None:
        self._sandbox = ProcessSandbox(folder / "processes")
        self._folder, self._python, self._server = folder, python, server

    def run(self, name: str, arguments: tuple[str, ...], files: Mapping[str, bytes], **environment: str) -> Handle:
        """Start a process."""
        own = self._folder / "files" / name
        own.mkdir(parents=True)
        for path, data in files.items():
            (own / path).write_bytes(data)
        placed = (part.format(server=self._server.url).replace("/input/", f"{own}/") for part in arguments)
        return self._sandbox.run(
            SandboxSpec(
                name=name,
                command=(self._python, *placed),
                directory=REPOSITORY,
                environment={"AJET_TOKEN": self._server.token, **environment},
                time_limit_s=600.0,
                trusted=True,
            )
        )

    def memory(self) -> dict[str, float]:
        """Return the host's view: PSS of all processes, the sandbox's shim included."""
        mine = str(self._folder / "processes")
        shims = [p for p in psutil.process_iter(["cmdline"]) if any(mine in part for part in p.info["cmdline"] or ())]
        return {"host, processes in it": _pss([one for shim in shims for one in _family(shim)], len(self._running()))}

    def end(self) -> None:
        """End all processes."""
        for handle in self._running():
            handle.stop()

    def _running(self) -> list[Handle]:
        return [handle for handle in self._sandbox.list() if handle.poll() is None]


def _family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def _pss(processes: list[psutil.Process], count: int) -> float:
    """Return MiB for each of `count`: pages that several share count in parts."""
    return round(sum(process.memory_full_info().pss for process in set(processes)) / count / 2**20, 1)


def first_call(place: Place, name: str, **environment: str) -> Handle:
    """Start a client that makes one model call."""
    out = ("--out", "/workspace/results/out.json") if isinstance(place, Containers) else ("--out", "/input/out.json")
    arguments = (*EVALUATE, "--server", "{server}", "--tasks", "/input/tasks.json", *out)
    files = {"tasks.json": TASKS, "first_call.py": FILES["first_call.py"]}
    return place.run(name, (*arguments, "--agent", "/input/first_call.py:agent"), files, **environment)


def said(handle: Handle, mark: str, until_s: float = 120.0) -> dict[str, float]:
    """Wait for the line of JSON that begins with `mark`; raises RuntimeError when it ends without one."""
    for _ in _ticks(until_s):
        ended = handle.poll()
        text = handle.logs()
        for line in text.splitlines():
            if line.startswith(mark):
                return dict(json.loads(line.removeprefix(mark)))
        if ended is not None:
            raise RuntimeError(f"{handle.name} ended as {ended} and said:\n{text}")
    raise RuntimeError(f"{handle.name} said nothing in {until_s:.0f} s")


def _ticks(seconds: float) -> Iterator[int]:
    pause = threading.Event()
    for tick in range(int(seconds / 0.1)):
        yield tick
        pause.wait(0.1)


@contextmanager
def at_once(count: int) -> Iterator[Callable[[list[Callable[[], T]]], list[T]]]:
    """Yield what does several things at once, `count` at most."""
    with ThreadPoolExecutor(count) as pool:
        yield lambda works: list(pool.map(lambda work: work(), works))
