"""Both backends in one process, step by step in turns.

Both backends in one process, step by step in turns: what boot, rollout, update and publication take.

    python -m rig.verl_pair FOLDER    measures what FOLDER/order.json says; writes FOLDER/measured.json

Runs where the backend `verl` does. In each round both play the same tasks, then both learn one batch, of the one's
episodes and then of the other's: so that both learners take the same steps on the same ids.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import (
    Any,
    Final,
)

from rig.in_process import Played, Player
from rig.spans import update_parts
from rig.verl_clock import ClockedVerl
from rig.verl_scale import published, swept
from swarm.backends.local.backend import LocalBackend
from swarm.backends.protocols import Backend, Batch
from swarm.environments.base import Task
from swarm.job import Job, TinyModel

LARGE = TinyModel(hidden_size=512, layers=8, head_size=32, warm_start_steps=0)
"""A model of some 80 MB, for what a byte costs on its way."""
RELAYED = (64, 256)
"""Orders at once, and tokens of each, by which a token's way is timed."""


@dataclass(frozen=True, slots=True)
class PairSize:
    """How much to measure."""

    rounds: int
    episodes: int
    swept: tuple[tuple[int, int], ...]
    repeats: int


FULL = PairSize(12, 128, ((64, 64), (256, 64), (64, 256), (256, 256), (64, 1024), (512, 128)), 5)
QUICK = PairSize(2, 16, ((8, 32), (32, 32), (8, 128)), 1)


@dataclass(frozen=True, slots=True)
class Rolled:
    """A rollout of one step."""

    seconds: float
    calls: int
    sampled: int
    context: int
    """Ids of prompts, each as often as it was sent."""


def job_of(backend: str, size: PairSize, model: TinyModel | None = None) -> Job:
    """Return the job of both: `guess`, linear rows."""
    return Job(
        environment="guess", backend=backend, model=model or TinyModel(head_size=32), merging="linear", device="cpu",
        episodes_per_step=size.episodes, steps=size.rounds,
    )  # fmt: skip


async def measured(size: PairSize, models: Path) -> dict[str, Any]:
    """Return all figures of both backends."""
    verl, local = ClockedVerl(job_of("verl", size), models), LocalBackend(job_of("local", size), models)
    boots = {"verl": await _seconds("boot", verl.start), "local": await _seconds("boot of local", local.start)}
    try:
        rounds = await _rounds(verl, local, size)
        found = {
            "boot, s": boots,
            "rounds": rounds,
            "sweep": await _told("updates of several sizes", swept, verl, size.swept, size.repeats),
            "publish, small": await _told("publications", published, verl, size.repeats),
            "token on its way, s": await _told("tokens on their way", verl.handle.relayed, *RELAYED),
        }
    finally:
        await verl.backend.stop()
        await local.stop()
    return {**found, "publish, large": await _large(size, models)}


async def _large(size: PairSize, models: Path) -> dict[str, float]:
    verl = ClockedVerl(job_of("verl", size, LARGE), models)
    await _seconds("boot of a larger model", verl.start)
    try:
        found: dict[str, float] = await _told("publications of the larger model", published, verl, size.repeats)
        return found
    finally:
        await verl.backend.stop()


async def _rounds(verl: ClockedVerl, local: LocalBackend, size: PairSize) -> list[dict[str, Any]]:
    backends: dict[str, Backend] = {"local": local, "verl": verl.backend}
    players = {name: Player(job_of(name, size), backend) for name, backend in backends.items()}
    tasks = players["local"].tasks()
    found = []
    for number in range(1, size.rounds + 1):
        order = ("local", "verl") if number % 2 else ("verl", "local")
        chosen = list(itertools.islice(tasks, job_of("local", size).tasks_per_step))
        found.append(await _round(number, order, verl, local, players, chosen))
        _tell(f"round {number} of {size.rounds}")
    return found


async def _round(
    number: int, order: Sequence[str], verl: ClockedVerl, local: LocalBackend, players: dict[str, Player],
    tasks: list[Task],
) -> dict[str, Any]:  # fmt: skip
    played, rolled = dict[str, list[Played]](), dict[str, Any]()
    for name in order:
        begun = time.perf_counter()
        played[name] = await players[name].played(number, tasks)
        rolled[name] = asdict(_rolled(time.perf_counter() - begun, played[name]))
    ways = await asyncio.to_thread(verl.handle.latencies)
    batch = Batch(number, tuple(one.episode for one in played[order[0]]))
    updated = dict[str, dict[str, float]]()
    for name in order:
        learn = partial(_update_of_verl, verl) if name == "verl" else partial(_update_of_local, local)
        updated[name] = await asyncio.to_thread(learn, batch)
    return {"batch of": order[0], "rollout": rolled, "update": updated, "call on its way, s": median(ways)}


def _rolled(seconds: float, played: Sequence[Played]) -> Rolled:
    rows = [row for one in played for row in one.episode.rows]
    sampled = sum(sum(row.sampled) for row in rows)
    calls = sum(sum(now > before for before, now in itertools.pairwise((0, *row.sampled))) for row in rows)
    return Rolled(seconds, calls, sampled, sum(len(row.ids) for row in rows) - sampled)


def _update_of_local(local: LocalBackend, batch: Batch) -> dict[str, float]:
    begun = time.perf_counter()
    found = local.learner.update(batch)
    learned = time.perf_counter()
    local.publish()
    done = time.perf_counter()
    return {"update, s": learned - begun, "publish, s": done - learned, **_counts(found)}


def _update_of_verl(verl: ClockedVerl, batch: Batch) -> dict[str, Any]:
    verl.taken()
    with verl.clocked():
        begun = time.perf_counter()
        found = verl.backend.learner.update(batch)
        learned = time.perf_counter()
    parts = update_parts(*verl.taken(), learned - begun)
    before = time.perf_counter()
    verl.backend.publish()
    publish = time.perf_counter() - before
    return {"update, s": learned - begun, "publish, s": publish, "parts": parts, **_counts(found)}


def _counts(found: Any) -> dict[str, float]:
    wanted = {
        "ids": "tokens/forward", "trained": "tokens/trained", "difference": "training/rollout_probs_diff_max",
    }  # fmt: skip
    return {name: float(found[key]) for name, key in wanted.items()}


async def _told(what: str, work: Callable[..., Any], *arguments: Any) -> Any:
    _tell(what)
    return await asyncio.to_thread(work, *arguments)


async def _seconds(what: str, work: Callable[[], Awaitable[None]]) -> float:
    _tell(what)
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


def _tell(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def main(folder: Path) -> None:
    """Measure what a folder's order says."""
    order = json.loads((folder / "order.json").read_text())
    found = asyncio.run(measured(QUICK if order["quick"] else FULL, Path(order["models"])))
    (folder / "measured.json").write_text(json.dumps(found))


VARIABLE: Final = "AJET_VERL_PYTHON"
_CHECKOUT: Final = Path(__file__).parents[2]


def verl_python() -> str:
    """Return what the variable names, or else that of `make setup-verl`, whether it is there or not."""
    return os.path.abspath(os.environ.get(VARIABLE) or _CHECKOUT / ".venv-verl" / "bin" / "python")


def missing() -> str | None:
    """Return what is needed to run the backend `verl` and is not here, None where all is."""
    python = verl_python()
    look = "from importlib.util import find_spec as f; print(*[n for n in ('ray', 'verl', 'vllm') if f(n) is None])"
    try:
        found = subprocess.run([python, "-P", "-c", look], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return f"no environment of the backend verl is at {python}: make setup-verl, or set {VARIABLE}"
    return f"{python} finds no {found}: make setup-verl, or set {VARIABLE}" if found else None


def require_verl() -> str:
    """Return that Python; raise SystemExit where it lacks what is needed."""
    if (reason := missing()) is not None:
        raise SystemExit(reason)
    return verl_python()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
