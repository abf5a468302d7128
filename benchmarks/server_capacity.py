"""How many model calls does one server process carry, what does it add to a call, and what does a long history cost?

    python benchmarks/server_capacity.py            about six minutes
    python benchmarks/server_capacity.py --quick    about two minutes: shorter stretches, fewer repeats
    python benchmarks/server_capacity.py --json     also writes benchmarks/results/server_capacity.json
    python benchmarks/server_capacity.py --check    exit code 1 unless the goals below are met

The server is `python -m swarm.server` with the fake backend, whose engine answers at once, and with its durable
store; 1,000 training episodes are open and play conversations of 8 turns. Beside it stands a bare FastAPI route
that returns the same bytes, under the same uvicorn settings. Load comes from another process. Both servers are
measured in turns within one run, and only ratios and differences of one run are judged. Beside one process that
makes load, several together are measured, whose calls/s are printed:

- calls/s of the server over calls/s of the bare route, both saturated: at least 0.20;
- p50 latency at half of the server's calls/s, minus the bare route's at the same rate: at most 3 ms;
- p99 latency at that rate over p50, both the server's: at most 8;
- steps per hour of agents whose tools take longer than the server waits for silent ones, over the bound that the
  tools' own time sets: at least 0.90. Four client processes share one stream's tasks (`rig/slow_tools.py`);
- CPU time of a call as its conversation grows to 64 turns of equal length: at most twice that of its first turn.
  This is measured with a real tokenizer and chat template. The history is in every request, so its JSON is read and
  compared with what was served; it is not rendered, not tokenised and not written again. What a token of history and
  what a new token cost is printed beside it.

Memory per open episode is printed, and not judged; so is the longest wait at half of the calls/s, which is a stall.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

import psutil
from rig.frame import circumstances, concluded, figure_lines, parser
from rig.load import Conversation, LoadProcess, connected, request
from rig.servers import ServerProcess, begin, serving, start
from rig.slow_tools import slow_tools

EPISODES = 1000
TURNS = 8
CONNECTIONS = 64
GROWN_TURNS = 64
GROWN_EPISODES = 40
FRESH = (180, 1440, 5760, 11520)
LOADS = 4
RATIO = 0.20
ADDED_MS = 3.0
LATE = 8.0
BOUND = 0.90
GROWTH = 2.0


@dataclass(frozen=True, slots=True)
class Size:
    """How long to measure."""

    repeats: int
    seconds: float
    slow_steps: int


FULL = Size(repeats=7, seconds=6.0, slow_steps=12)
QUICK = Size(repeats=3, seconds=2.0, slow_steps=4)


def main() -> int:
    """Run the benchmark; return the exit code."""
    arguments = parser(__doc__, quick="shorter stretches, fewer repeats").parse_args()
    size = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory(prefix="ajet-capacity-") as folder:
        figures = {**measure(Path(folder), size), **circumstances(arguments)}
    print(f"one server process, {EPISODES} open episodes, {TURNS} turns, on {figures['machine']}\n")
    print("\n".join(figure_lines(figures, full_size="python benchmarks/server_capacity.py")))
    return concluded("server_capacity", figures, goals_missed(figures), arguments)


def measure(folder: Path, size: Size) -> dict[str, Any]:
    """Return all figures."""
    with serving("swarm", folder / "swarm") as server:
        keys, body, memory = _opened(server)
        (folder / "bare").mkdir()
        (folder / "bare" / "body.json").write_bytes(body)
        with serving("bare", folder / "bare") as bare:
            throughput, rate = _throughput(server, bare, keys, size)
            latency = _latency(server, bare, keys, rate / 2, size)
        together = _together(server, keys, size)
    with serving("swarm", folder / "slow") as server:
        slow = slow_tools(server, size.slow_steps)
    growth = _growth(folder, size)
    return {**throughput, **together, **latency, "slow tools": slow, "memory": memory, "growth": growth}


def _opened(server: ServerProcess) -> tuple[list[str], bytes, dict[str, float]]:
    """Open all episodes and let each play one conversation; return their keys, one answer, and the memory it took."""
    process = psutil.Process(server.pid)
    asyncio.run(start(server))
    empty = process.memory_full_info().uss
    keys = asyncio.run(begin(server, EPISODES))
    begun = process.memory_full_info().uss
    with _load(server, keys) as load:
        for turn in range(1, TURNS + 1):
            load.do("turn", turn, "first: ", CONNECTIONS)
    played = process.memory_full_info().uss
    tail = Conversation(TURNS).tail
    body = asyncio.run(_one_answer(server, request(keys[0], "first: ", tail(1))))
    return keys, body, {
        "KiB per open episode, no calls": round((begun - empty) / EPISODES / 1024, 2),
        f"KiB per open episode, {TURNS} turns": round((played - empty) / EPISODES / 1024, 2),
        f"KiB of the last request of {TURNS} turns": round(len(tail(TURNS)) / 1024, 2),
    }  # fmt: skip


async def _one_answer(server: ServerProcess, data: bytes) -> bytes:
    wire = await connected(server.port)
    answer = await wire.ask(data)
    wire.close()
    return answer.partition(b"\r\n\r\n")[2]


@contextlib.contextmanager
def _load(server: ServerProcess, keys: list[str], shape: Conversation | None = None) -> Iterator[LoadProcess]:
    load = LoadProcess(server.port, keys, shape or Conversation(TURNS))
    try:
        yield load
    finally:
        load.close()


def _throughput(
    server: ServerProcess, bare: ServerProcess, keys: list[str], size: Size
) -> tuple[dict[str, Any], float]:
    """Saturate both in turns; return the figures and the server's calls/s."""
    seen: dict[str, list[tuple[float, float]]] = {"server": [], "bare": []}
    with _load(server, keys) as to_server, _load(bare, keys) as to_bare:
        for _ in range(size.repeats):
            for name, target, load in (("bare", bare, to_bare), ("server", server, to_server)):
                before = target.cpu_s()
                tally = load.do("saturate", CONNECTIONS, size.seconds)
                seen[name].append((tally.calls / tally.seconds, (target.cpu_s() - before) / tally.calls))
    rates = {name: median(rate for rate, _ in values) for name, values in seen.items()}
    cpu = {name: median(cpu for _, cpu in values) for name, values in seen.items()}
    pairs = list(zip(seen["server"], seen["bare"], strict=True))
    return {
        "calls per second": {name: round(rate) for name, rate in rates.items()},
        "CPU ms per call": {name: round(1000 * seconds, 3) for name, seconds in cpu.items()},
        "ratio of calls per second": round(median(ours[0] / bare[0] for ours, bare in pairs), 3),
        "ratio of calls per CPU second": round(median(bare[1] / ours[1] for ours, bare in pairs), 3),
    }, rates["server"]


def _together(server: ServerProcess, keys: list[str], size: Size) -> dict[str, Any]:
    """Saturate the server from several processes, each with its own episodes."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(LOADS) as threads:
        loads = [stack.enter_context(_load(server, keys[number::LOADS])) for number in range(LOADS)]
        each = CONNECTIONS // LOADS
        tallies = list(threads.map(lambda load: load.do("saturate", each, size.seconds), loads))
    return {f"calls per second, {LOADS} client processes": round(sum(t.calls / t.seconds for t in tallies))}


def _latency(server: ServerProcess, bare: ServerProcess, keys: list[str], rate: float, size: Size) -> dict[str, Any]:
    """Pace both at the same rate, in turns."""
    seen: dict[str, list[tuple[float, ...]]] = {"server": [], "bare": []}
    with _load(server, keys) as to_server, _load(bare, keys) as to_bare:
        for _ in range(size.repeats):
            for name, load in (("bare", to_bare), ("server", to_server)):
                waits = sorted(load.do("pace", CONNECTIONS, size.seconds, rate).latencies)
                seen[name].append(tuple(waits[int(part * (len(waits) - 1))] for part in (0.5, 0.99, 1.0)))
    added = median(ours[0] - theirs[0] for ours, theirs in zip(seen["server"], seen["bare"], strict=True))
    return {
        "rate of the latencies": round(rate),
        "p50 ms": {name: round(1000 * median(p50 for p50, _, _ in ends), 3) for name, ends in seen.items()},
        "p99 ms": {name: round(1000 * median(p99 for _, p99, _ in ends), 3) for name, ends in seen.items()},
        "longest ms": {name: round(1000 * max(longest for _, _, longest in ends), 3) for name, ends in seen.items()},
        "added p50 ms": round(1000 * added, 3),
        "p99 over p50": round(median(p99 / p50 for p50, p99, _ in seen["server"]), 1),
    }


def _growth(folder: Path, size: Size) -> dict[str, Any]:
    """Return what a call costs by its turn (constant new tokens), by its new tokens (no history), and both slopes."""
    with serving("prose", folder / "prose") as server:
        asyncio.run(start(server))
        keys = asyncio.run(begin(server, GROWN_EPISODES))
        grown = Conversation(GROWN_TURNS)
        by_turn = _costs(server, keys, [(grown, turn) for turn in range(1, GROWN_TURNS + 1)], size)
        by_new = _costs(server, keys, [(Conversation(1, characters), 1) for characters in FRESH], size)
    by_history, by_fresh = (linear_regression(*zip(*pairs, strict=True)) for pairs in (by_turn, by_new))
    last, first = (by_history.intercept + by_history.slope * by_turn[place][0] for place in (-1, 0))
    return {
        "CPU ms per call, by prompt tokens (turns of a conversation)": {
            round(by_turn[turn - 1][0]): round(1000 * by_turn[turn - 1][1], 3) for turn in (1, 2, 4, 8, 16, 32, 48, 64)
        },
        "CPU ms per call, by prompt tokens (all new)": {round(new): round(1000 * s, 3) for new, s in by_new},
        "ns per token of history": round(1e9 * by_history.slope),
        "ns per new token": round(1e9 * by_fresh.slope),
        f"CPU of turn {GROWN_TURNS} over turn 1": round(last / first, 2),
    }


def _costs(
    server: ServerProcess, keys: list[str], calls: list[tuple[Conversation, int]], size: Size
) -> list[tuple[float, float]]:
    """Return prompt tokens and CPU seconds of each call (a shape and a turn): medians of the repeats, made in turns."""
    seen: list[list[tuple[float, float]]] = [[] for _ in calls]
    with contextlib.ExitStack() as stack:
        shapes = dict.fromkeys(shape for shape, _ in calls)
        loads = {shape: stack.enter_context(_load(server, keys, shape)) for shape in shapes}
        for repeat in range(size.repeats):
            for place, (shape, turn) in enumerate(calls):
                before = server.cpu_s()
                tokens = loads[shape].do("turn", turn, f"number {repeat}, {shape.characters}: ", 4)
                seen[place].append((float(tokens), (server.cpu_s() - before) / len(keys)))
    return [(values[0][0], median(cost for _, cost in values)) for values in seen]


def goals_missed(figures: dict[str, Any]) -> list[str]:
    """Return the goals of the module's docstring that `figures` miss."""
    ratio, added, tail = (figures[name] for name in ("ratio of calls per second", "added p50 ms", "p99 over p50"))
    growth = figures["growth"][f"CPU of turn {GROWN_TURNS} over turn 1"]
    bound = figures["slow tools"]["steps per hour over the tools' own bound"]
    goals = (
        (ratio < RATIO, f"{ratio:.3f} of the bare route's calls/s, the goal is {RATIO:.2f}"),
        (added > ADDED_MS, f"p50 {added:.2f} ms above the bare route's, the goal is {ADDED_MS:g}"),
        (tail > LATE, f"p99 is {tail:.1f} times p50, the goal is {LATE:g}"),
        (bound < BOUND, f"{bound:.2f} of the steps per hour that slow tools allow, the goal is {BOUND:.2f}"),
        (growth > GROWTH, f"turn {GROWN_TURNS} costs {growth:.2f} times the first one's CPU, the goal is {GROWTH:g}"),
    )
    return [words for missed, words in goals if missed]


if __name__ == "__main__":
    sys.exit(main())
