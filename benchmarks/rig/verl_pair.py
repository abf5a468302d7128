"""Both backends in one process, step by step in turns: what boot, rollout, update and publication take.

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rig.in_process import Played, Player
from swarm.backends.protocols import Backend, Batch
from swarm.environments.base import Task
from swarm.job import Job, TinyModel

FULL, QUICK = (12, 128), (2, 16)
"""Rounds, and episodes of each."""


def job_of(backend: str, rounds: int, episodes: int) -> Job:
    """Return the job of both: `guess`, linear rows."""
    return Job(
        environment="guess", backend=backend, model=TinyModel(head_size=32), merging="linear", device="cpu",
        episodes_per_step=episodes, steps=rounds,
    )  # fmt: skip


async def measured(rounds: int, episodes: int, models: Path) -> dict[str, Any]:
    """Return all figures of both backends."""
    from swarm.backends.local.backend import LocalBackend
    from swarm.backends.verl.backend import VerlBackend
    from swarm.backends.verl.cluster import set_ray_environment

    set_ray_environment(None)  # before anything imports Ray
    jobs = {name: job_of(name, rounds, episodes) for name in ("verl", "local")}
    backends: dict[str, Backend] = {
        "verl": VerlBackend(jobs["verl"], models), "local": LocalBackend(jobs["local"], models),
    }  # fmt: skip
    boots = {}
    try:
        for name, backend in backends.items():
            begun = time.perf_counter()
            await backend.start()
            boots[name] = time.perf_counter() - begun
        players = {name: Player(jobs[name], backend) for name, backend in backends.items()}
        tasks, done = players["local"].tasks(), []
        for number in range(1, rounds + 1):
            order = ("local", "verl") if number % 2 else ("verl", "local")
            chosen = list(itertools.islice(tasks, jobs["local"].tasks_per_step))
            done.append(await _round(number, order, backends, players, chosen))
            print(f"{time.strftime('%H:%M:%S')} round {number} of {rounds}", file=sys.stderr, flush=True)
    finally:
        for backend in backends.values():
            await backend.stop()
    return {"boot, s": boots, "rounds": done}


async def _round(
    number: int, order: Sequence[str], backends: dict[str, Backend], players: dict[str, Player], tasks: list[Task]
) -> dict[str, Any]:
    played, rollout, update = dict[str, list[Played]](), dict[str, Any](), dict[str, Any]()
    for name in order:
        begun = time.perf_counter()
        played[name] = await players[name].played(number, tasks)
        rollout[name] = {"seconds": time.perf_counter() - begun, **_counts(played[name])}
    batch = Batch(number, tuple(one.episode for one in played[order[0]]))
    for name in order:
        update[name] = await asyncio.to_thread(_update, backends[name], batch)
    return {"batch of": order[0], "rollout": rollout, "update": update}


def _counts(played: Sequence[Played]) -> dict[str, int]:
    rows = [row for one in played for row in one.episode.rows]
    calls = sum(sum(now > before for before, now in itertools.pairwise((0, *row.sampled))) for row in rows)
    return {"calls": calls, "sampled": sum(sum(row.sampled) for row in rows)}


def _update(backend: Backend, batch: Batch) -> dict[str, float]:
    begun = time.perf_counter()
    metrics = backend.learner.update(batch)
    learned = time.perf_counter()
    backend.publish()
    return {
        "update, s": learned - begun,
        "publish, s": time.perf_counter() - learned,
        "ids": float(metrics["tokens/forward"]),
        "difference": float(metrics["training/rollout_probs_diff_max"]),
    }


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
        absent = subprocess.run([python, "-P", "-c", look], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return f"no environment of the backend verl is at {python}: make setup-verl, or set {VARIABLE}"
    return f"{python} finds no {absent}: make setup-verl, or set {VARIABLE}" if absent else None


def require_verl() -> str:
    """Return that Python; raise SystemExit where it lacks what is needed."""
    if (reason := missing()) is not None:
        raise SystemExit(reason)
    return verl_python()


def main(folder: Path) -> None:
    """Measure what a folder's order says."""
    order = json.loads((folder / "order.json").read_text())
    figures = asyncio.run(measured(*(QUICK if order["quick"] else FULL), Path(order["models"])))
    (folder / "measured.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
