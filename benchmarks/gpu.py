"""Does it hold on a GPU what it does on a CPU, and how fast is it there?

    make gpu                              on the first python3 whose torch finds a GPU, at most eight minutes
    make gpu DRY=FILE                     a dry run on a CPU, at most three: every part at a tiny size
    python benchmarks/gpu.py --json       the same with this Python: writes benchmarks/results/gpu.json
    python benchmarks/gpu.py --part NAME  only this part (again: --part ...); a file of the others is added to

It needs torch and transformers and nothing else: no installation, no network (PYTHONPATH is the repository). What a
part needs beside them and does not find stands in the file as `not run`; a part has a share of the eight minutes, and
what it found when that was over, or when it failed, is kept. Each result is written as soon as it is there; until a
part has its first, what an earlier run found on this GPU and torch stays, with its commit and day. In order:

- conformance: the invariants of the suite of all backends on a small Qwen3, in fp32, in bf16 and with an adapter:
  log-probs beside a plain forward, greedy answers, an update's gradient beside plain autograd, what is served after it;
- generation: tokens per second of our engine, of transformers' continuous batching and its `generate`, over the same
  weights, for requests that all come at once; log-probs of each beside a plain forward;
- steps: whole GRPO steps, 64 episodes in groups of 8, engine and learner in one process, beside TRL's GRPOTrainer;
- updates: `benchmarks/train_step.py` at full length: unmerged (a row for each call), linear (a row for each
  conversation), tree (what a group shares once; a GPU trains none, and says why), at 4, 10 and 20 turns;
- study: a tiny one to its verdict, of real trainings;
- verl: the backend `verl`: answers beside a plain forward, one update, its publication;
- suite: `tests/swarm/backends/conformance` itself.

Generation, steps and updates are of a Qwen3 of about 0.5 billion random weights in bfloat16; each row has its memory.

Goals: every check holds; merged updates are faster than unmerged ones in every workload, at least 5 times at T = 20;
our engine is ahead of both others at every load; steps are at least as fast as TRL's. A part that was cut or not begun,
a row that failed, and one that is needed for a goal and not there miss it, too.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rig.bare import Bench, end_with, missing, stand_in
from rig.frame import RESULTS, moment, show_table, tell, write

LIMIT_S = 450.0
"""Of all parts together: eight minutes, less what it takes to find a Python, to start and to write."""
START_S = 20.0
"""Fewest seconds with which a part is begun."""
LOOK_S = 120.0
"""Most seconds until torch is imported, for the first time on its machine, and has looked for the device."""
AT_20 = 5.0
TOLERANCE = 0.25
"""Most that a log-prob may be off a plain forward's, in bfloat16: the bound of the engine's own check."""
NAMING = ("dtype", "adapter", "check", "what", "requests", "who", "workload", "layout", "topic")
"""What a row is named by: a part may yield it again, when there is more in it."""
NEEDED: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "updates": lambda row: (row["T"], row["layout"]) == (20, "linear"),
    "generation": lambda row: row["requests"] == row.get("of at most") and len(row["off a plain forward"]) == 3,
    "steps": lambda row: row["who"] == "ours",
}
"""Which row of a part its goal is about."""
OWN = RESULTS / "gpu.json"
PATIENCE = 4.0
"""How many times as long a dry run may take, on a machine with other work."""
_FORK = multiprocessing.get_context("fork")
"""A part is a fork of this process, which uses no device: it ends with all memory that it has, or is ended."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is measured by one function of `rig`, in at most `seconds`, where the packages of `needs` are installed."""

    place: str
    seconds: float
    needs: tuple[str, ...] = ()


_HARNESS = ("aiohttp", "fastapi", "jinja2", "openai", "psutil", "pydantic", "scipy", "sqlalchemy", "statsmodels",
            "typer", "uvicorn", "wandb")  # fmt: skip
PARTS: Mapping[str, Part] = {
    "conformance": Part("rig.gpu_conformance:conformance", 100),
    "generation": Part("rig.gpu_speed:generation", 120),
    "steps": Part("rig.gpu_speed:steps", 90),
    "updates": Part("rig.gpu_speed:updates", 110),
    "study": Part("rig.gpu_whole:study", 120, _HARNESS),
    "verl": Part("rig.gpu_whole:verl", 150, ("ray", "verl", "vllm", "pydantic", "psutil")),
    "suite": Part("rig.gpu_whole:suite", 120, ("pytest", "pytest_asyncio", "pytest_timeout", "xdist", *_HARNESS)),
}


def main() -> int:
    """Run the benchmark; return the exit code."""
    arguments = _arguments()
    end_in_order()
    begun = time.monotonic()
    bare, patience = stand_in(), PATIENCE if arguments.device == "cpu" else 1.0
    if arguments.device == "cpu":  # once for all; else each part does, as what may have seen a GPU is not forked
        importlib.import_module("rig.gpu_speed")
    *_, (kind, here) = forked(_device, Bench(arguments.device, time.monotonic() + LOOK_S))
    if kind != "row":
        print(
            f"gpu: expected a GPU, found none by torch of {sys.executable} ({here}); name a Python that finds one "
            "(make gpu GPU_BIN=/path/to/venv/bin), or make a dry run (make gpu DRY=/tmp/gpu.json)"
        )
        return 2
    names = [name for name in PARTS if not arguments.part or name in arguments.part]
    figures = _kept(arguments.json, here) | {
        **here, "dry run": arguments.device == "cpu", "quick": arguments.device == "cpu",
        "jobs": "not validated: no pydantic" if bare else "validated",
    }  # fmt: skip
    for name in names:
        ends = min(time.monotonic() + patience * PARTS[name].seconds, begun + patience * LIMIT_S)
        carry_out(name, Bench(arguments.device, ends), figures, arguments.json)
    for name in names:
        show(name, figures)
    wrong, missed = broken(figures, names), goals_missed(figures, names) if arguments.check else []
    for words in (*wrong, *missed):
        print(words)
    return 1 if wrong or missed else 0


def end_in_order() -> None:
    """Let what ends this process by a signal end the part that runs, too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda found, _: sys.exit(128 + found))


def carry_out(name: str, bench: Bench, figures: dict[str, Any], file: Path | None) -> None:
    """Measure a part, and write what it finds into the figures and their file as soon as it is there."""
    begun, part = time.monotonic(), PARTS[name]
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    absent, now = missing(part.needs), moment()
    if not rows_of(figures, name):
        figures[name] = {"not run": absent} if absent else []
    if not absent or not rows_of(figures, name):
        for about in ("failed", "cut"):
            figures[about].pop(name, None)
    if absent:
        tell(f"{name}: {absent}")
    elif bench.left < START_S:
        figures["cut"][name] = f"not begun: the other parts took {LIMIT_S:.0f} s"
    else:
        tell(f"{name}: at most {bench.left:.0f} s")
        module, function = part.place.split(":")
        with closing(forked(lambda given: getattr(importlib.import_module(module), function)(given), bench)) as found:
            for kind, value in found:
                if kind == "row":
                    rows[tuple(value.get(key) for key in NAMING)] = value
                    figures[name] = [*rows.values()]
                    figures["at"][name] = now
                else:
                    figures[kind][name] = value
                figures["seconds"][name] = round(time.monotonic() - begun, 1)
                _store(file, figures, now)
    _store(file, figures, now)


def forked(work: Callable[[Bench], Iterator[dict[str, Any]]], bench: Bench) -> Iterator[tuple[str, Any]]:
    """Do work in a fork of this process; yield its rows, and "failed" or "cut" with the reason where it did not end."""
    receiver, sender = _FORK.Pipe(duplex=False)
    child = _FORK.Process(target=_work, args=(work, bench, sender, os.getpid()))
    child.start()
    assert child.pid
    sender.close()
    over = False
    try:
        while receiver.poll(max(0.0, bench.left)):
            yield receiver.recv()
        yield "cut", "what is here was found within its time; the rest was not"
    except EOFError:
        over = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT) is not None  # the number stays its own
    finally:
        with suppress(ProcessLookupError):  # not a group of its own yet
            os.killpg(child.pid, signal.SIGKILL)
        child.kill()
        child.join()
    if over and child.exitcode:
        yield "failed", f"its process ended with {child.exitcode}"


def _work(work: Callable[[Bench], Iterator[dict[str, Any]]], bench: Bench, sender: Connection, parent: int) -> None:
    end_with(parent)
    os.setsid()
    try:
        for row in work(bench):
            sender.send(("row", row))
    except Exception as error:  # noqa: BLE001 - the process's edge: the reason goes to whoever started it
        traceback.print_exc()
        sender.send(("failed", f"{type(error).__name__}: {error}".splitlines()[0][:300]))
    sender.close()
    os._exit(0)  # without waiting for threads of others


def _device(bench: Bench) -> Iterator[dict[str, Any]]:
    """Yield what is measured; raise RuntimeError where there is none."""
    import torch

    versions = {name: _version(name) for name in ("torch", "transformers", "peft", "trl", "verl", "vllm")}
    name, memory_gib = platform.processor() or platform.machine(), None
    if bench.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        name, memory_gib = properties.name, round(properties.total_memory / 2**30)
    yield {
        "gpu": name, "GiB": memory_gib, "torch": torch.__version__, "cpus": os.cpu_count(),
        "versions": {"python": platform.python_version(), **versions},
    }  # fmt: skip


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _kept(file: Path | None, here: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an earlier run wrote on this very card and torch, each part with its own commit and day."""
    found: dict[str, Any] = json.loads(file.read_text()) if file and file.exists() else {}
    if (found.get("gpu"), found.get("torch")) != (here["gpu"], here["torch"]):
        found = {}
    kept = {name: found[name] for name in (*PARTS, "note") if name in found}
    kept |= {about: found.get(about, {}) for about in ("failed", "cut", "at", "seconds")}
    for name in PARTS:
        if rows_of(found, name):
            kept["at"].setdefault(name, {key: found.get(key) for key in ("commit", "date")})
    return kept


def _store(file: Path | None, figures: dict[str, Any], now: Mapping[str, Any]) -> None:
    """Write the figures, of the commit and day of their oldest rows; their note goes with the last rows before now."""
    dates = [figures["at"][name] for name in PARTS if rows_of(figures, name)]
    figures |= min(dates, key=lambda at: (at["date"] or "", at == now), default=now)
    if all(at == now for at in dates):
        figures.pop("note", None)
    if file:
        write(file, figures)


def broken(figures: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return what failed, and which checks do not hold."""
    wrong = [f"{name}: {words}" for name, words in figures["failed"].items()]
    return wrong + [
        f"{name}: {' '.join(str(row[key]) for key in NAMING if key in row)} does not hold: {row}"
        for name in names for row in rows_of(figures, name) if row.get("holds") is False
    ]  # fmt: skip


def rows_of(figures: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    """Return the rows of a part; none where it was not run."""
    found = figures.get(name, ())
    return () if isinstance(found, Mapping) else found


def goals_missed(figures: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the goals that are missed, but for checks: those of all rows, and of what parts of `names` lack."""
    missed = [f"{name}: {figures['cut'][name]}" for name in names if name in figures["cut"]]
    missed += [
        f"{name}: {row}" for name in names for row in rows_of(figures, name)
        if {"cut", "failed"} & row.keys() and row.get("holds") is not False
    ]  # fmt: skip
    missed += [
        f"{name}: expected a row that its goal is about, found none"
        for name, is_needed in NEEDED.items() if name in names and not any(map(is_needed, rows_of(figures, name)))
    ]  # fmt: skip
    for row in rows_of(figures, "updates"):
        least = AT_20 if row["T"] == 20 else 1.0
        if row["layout"] == "linear" and row.get("wall ratio", 0.0) <= least:
            missed.append(
                f"{row['workload']}, {row['layout']}: {row.get('wall ratio')} times as fast, not over {least}"
            )
    for row in rows_of(figures, "generation"):
        speeds = row["tokens per second"]
        missed += [
            f"{row['requests']} requests: {speeds.get('ours')} tokens per second, {name} has {speeds[name]}"
            for name in ("continuous", "padded") if speeds.get(name, 0) >= speeds.get("ours", 0)
        ]  # fmt: skip
        missed += [
            f"{row['requests']} requests: log-probs of {name} are {off} off a plain forward's"
            for name, off in row["off a plain forward"].items() if off > TOLERANCE
        ]  # fmt: skip
    rates = {row["who"]: row["steps per minute"] for row in rows_of(figures, "steps") if "steps per minute" in row}
    if rates.get("trl", 0.0) > rates.get("ours", 0.0):
        missed.append(f"steps per minute: {rates}")
    return missed


def show(name: str, figures: Mapping[str, Any]) -> None:
    """Print a part's rows: what is a number or a word."""
    rows = [
        {key: _cell(value) for key, value in row.items() if not isinstance(value, list)}
        for row in rows_of(figures, name)
    ]
    title = f"{name}, {figures['seconds'].get(name, 0)} s"
    for about in ("failed", "cut"):
        if name in figures[about]:
            title += f"; {about}: {figures[about][name]}"
    if isinstance(figures[name], Mapping):
        title += f"; not run: {figures[name]['not run']}"
    if not rows:
        print(f"\n{title}")
        return
    columns = list(dict.fromkeys(key for row in rows for key in row))
    show_table(title, columns, [[row.get(key, "") for key in columns] for row in rows], left=2)


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_cell(own)}" for key, own in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run, whose figures are none"
    )
    options.add_argument(
        "--json", type=Path, nargs="?", const=OWN, metavar="FILE", help=f"write the figures ({OWN.name})"
    )
    options.add_argument("--part", action="append", choices=tuple(PARTS), help="what alone is measured")
    options.add_argument("--check", action="store_true", help="exit code 1 when a goal is missed")
    found = options.parse_args()
    if found.device == "cpu" and found.json and found.json.resolve() == OWN.resolve():
        options.error(f"a dry run has no figures: expected --json FILE, found {OWN}")
    return found


if __name__ == "__main__":
    sys.exit(main())
