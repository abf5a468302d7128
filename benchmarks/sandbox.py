"""What does a container cost a client, against a plain process: to start, and on each call?

    python benchmarks/sandbox.py            about six minutes; needs a Docker Engine and a base image
    python benchmarks/sandbox.py --quick    about one minute: fewer repeats, shorter stretches
    python benchmarks/sandbox.py --json     also writes benchmarks/results/sandbox.json
    python benchmarks/sandbox.py --check    exit code 1 unless the goal below is met

The server is `python -m swarm.server` with the fake backend, whose engine answers at once. Containers are those of a
real run: the client image (warm: it is there), an archive of tasks and code, a gateway of their own. Processes are
those of the process sandbox, speaking to the server themselves. All comparisons are made in turns within one run.

- Start: seconds from the launch to the first model call, of `swarm.environments evaluate` with an agent that makes one,
  and where they go: until the launch returns, until the client's Python begins, imports, until the call.
- Calls: calls/s and median latency of one client at 1, 8 and 64 connections: a process at the server, a process at a
  gateway's socket, a container behind relay and gateway. Ratios are medians over the repeats.

Goal: a median of under 1 s from a container's launch to its first model call.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from anyio.from_thread import start_blocking_portal
from rig.contained_clients import FILES, Containers, Place, Processes, first_call, said
from rig.frame import circumstances, concluded, figure_lines, parser, tell
from rig.load import ASKED, HEAD, Conversation
from rig.servers import ServerProcess, begin, serving, start

from research.installation.home import Home
from research.isolation.client_image import ensure_client_image
from sandboxes import SandboxError
from sandboxes.docker.engine import connect

STARTS_GOAL_S = 1.0
CONNECTIONS = (1, 8, 64)
WAYS = ("process", "process at the gateway", "container")


@dataclass(frozen=True, slots=True)
class Size:
    """How much to measure."""

    starts: int
    repeats: int
    seconds: float


FULL = Size(starts=15, repeats=5, seconds=3.0)
QUICK = Size(starts=3, repeats=1, seconds=1.0)


@dataclass(frozen=True, slots=True)
class Bench:
    """The server, and the two places where clients of it run."""

    server: ServerProcess
    containers: Containers
    processes: Processes

    @property
    def places(self) -> Mapping[str, Place]:
        """By the name that figures bear."""
        return {"process": self.processes, "container": self.containers}


def main() -> int:
    """Run the benchmark; return the exit code."""
    arguments = parser(__doc__, quick="fewer repeats, shorter stretches").parse_args()
    size = QUICK if arguments.quick else FULL
    began = time.monotonic()
    with bench() as made:
        figures: dict[str, Any] = {"start": starts(made, size), "calls": calls(made, size)}
    figures |= {"seconds in all": round(time.monotonic() - began), **circumstances(arguments)}
    print(f"clients in containers against plain processes, on {figures['machine']}\n")
    print("\n".join(figure_lines(figures, full_size="python benchmarks/sandbox.py")))
    return concluded("sandbox", figures, goals_missed(figures), arguments)


@contextmanager
def bench() -> Iterator[Bench]:
    """Start the server, and find the engine and its client image."""
    engine = connect(os.environ)
    with tempfile.TemporaryDirectory(prefix="ajet-sandbox-") as place:
        folder = Path(place)
        image = ensure_client_image(engine, Home.locate().prepare(), tell)
        with serving("swarm", folder / "swarm") as server, start_blocking_portal() as portal:
            asyncio.run(start(server))
            containers = Containers(folder, engine, image.id, server, portal)
            try:
                yield Bench(server, containers, Processes(folder, sys.executable, server))
            finally:
                containers.end()


def starts(made: Bench, size: Size) -> dict[str, Any]:
    """Start clients in turns; one before them is not counted."""
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in made.places}
    for number in range(size.starts + 1):
        for name, place in made.places.items():
            seen[name].append(_start(place, f"start-{name}-{number}"))
        tell(f"start {number} of {size.starts}: {json.dumps({name: found[-1] for name, found in seen.items()})}")
    stages = {name: _medians(found[1:]) for name, found in seen.items()}
    pairs = zip(seen["container"][1:], seen["process"][1:], strict=True)
    added = median(ours["to the first call"] - theirs["to the first call"] for ours, theirs in pairs)
    return {"seconds": stages, "added seconds": round(added, 3)}


def _start(place: Place, name: str) -> dict[str, float]:
    began = time.time()
    handle = first_call(place, name)
    launched = time.time()
    stamps = said(handle, "FIRST CALL")
    handle.wait(30)
    places = [began, launched, max(launched, stamps["began"]), stamps["imported"], stamps["calls"]]
    parts = ("launch", "until Python begins", "imports", "until the call")
    stages = {part: places[number + 1] - places[number] for number, part in enumerate(parts)}
    return {name: round(took, 3) for name, took in {**stages, "to the first call": stamps["calls"] - began}.items()}


def _medians(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(median(one[name] for one in found), 3) for name in found[0]}


def calls(made: Bench, size: Size) -> dict[str, Any]:
    """Let a client call as fast as it is answered: each way, with each number of connections, in turns."""
    keys = asyncio.run(begin(made.server, max(CONNECTIONS)))
    exchange = made.containers.exchange("calls")
    seen: dict[tuple[str, int], list[dict[str, float]]] = {}
    for repeat in range(size.repeats):
        for connections in CONNECTIONS:
            order = _order(keys, connections, size.seconds)
            for way in WAYS:
                place: Place = made.containers if way == "container" else made.processes
                address = str(exchange / "server.sock") if way == WAYS[1] else "{server}"
                name = f"calls-{WAYS.index(way)}-{connections}-{repeat}"
                arguments = ("/input/calls.py", address, "/input/order.json")
                handle = place.run(name, arguments, {"calls.py": FILES["calls.py"], "order.json": order})
                seen.setdefault((way, connections), []).append(said(handle, "CALLS"))
                handle.wait(30)
        tell(f"calls {repeat + 1} of {size.repeats}")
    return {f"{connections} connections": _compared(seen, connections) for connections in CONNECTIONS}


def _order(keys: list[str], connections: int, seconds: float) -> bytes:
    body = [(HEAD + ASKED).decode(), Conversation(1).tail(1).decode()]
    return json.dumps({"keys": keys, "concurrency": connections, "seconds": seconds, "body": body}).encode()


def _compared(seen: Mapping[tuple[str, int], list[dict[str, float]]], connections: int) -> dict[str, Any]:
    rates = {way: [one["calls"] / one["seconds"] for one in seen[way, connections]] for way in WAYS}
    waits = {way: [1000 * one["p50"] for one in seen[way, connections]] for way in WAYS}
    return {
        "calls per second": {way: round(median(found)) for way, found in rates.items()},
        "p50 ms": {way: round(median(found), 3) for way, found in waits.items()},
        "ratio of calls per second": {
            way: round(median(a / b for a, b in zip(rates[way], rates[WAYS[0]], strict=True)), 3) for way in WAYS[1:]
        },
        "added p50 ms": {
            way: round(median(a - b for a, b in zip(waits[way], waits[WAYS[0]], strict=True)), 3) for way in WAYS[1:]
        },
    }


def goals_missed(figures: Mapping[str, Any]) -> list[str]:
    """Return the goal of the module's docstring if `figures` miss it."""
    found = figures["start"]["seconds"]["container"]["to the first call"]
    if found < STARTS_GOAL_S:
        return []
    return [f"{found:.3f} s from a container's launch to its first model call, the goal is {STARTS_GOAL_S:g} s"]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SandboxError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
