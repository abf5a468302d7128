"""Both backends in one process, step by step in turns: what boot, rollout, update and publication take.

    python -m rig.verl_pair FOLDER    measures what FOLDER/order.json says; writes FOLDER/measured.json

Runs where the backend `verl` does. In each round both play the same tasks, then both learn one batch, of the one's
episodes and then of the other's: so that both learners take the same steps on the same ids. Then: what the backend's
own work costs, by updates of several sizes whose arithmetic a clock in the rank leaves out, publications, and tokens.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from random import Random
from statistics import median
from timeit import timeit
from types import SimpleNamespace
from typing import Any, Final

from rig.in_process import Played, Player
from swarm.backends.protocols import Backend, Batch, Chunk, Sampling, TrainEpisode
from swarm.environments.base import Task
from swarm.job import Job, TinyModel
from swarm.timelines.node import TrainRow

FULL, QUICK = (12, 128), (2, 16)
"""Rounds, and episodes of each."""
SIZES, REPEATS = ((8, 64, 2048), (256, 64, 2048), (64, 256, 512), (64, 256, 2048), (64, 256, 16384)), 5
"""Rows of updates, ids of each row and `micro_batch_tokens`; times that each is made, beside a first one."""
LARGE = TinyModel(hidden_size=1024, layers=10, head_size=64, warm_start_steps=0)
"""A model of 100M parameters and more, for what a byte costs on its way."""


def job_of(backend: str, rounds: int, episodes: int, **more: Any) -> Job:
    """Return the job of both: `guess`, linear rows."""
    fields = {"model": TinyModel(head_size=32), "steps": rounds, "episodes_per_step": episodes, **more}
    return Job(environment="guess", backend=backend, merging="linear", device="cpu", **fields)


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
        own: dict[str, Any] = {
            "updates": await asyncio.to_thread(_own_seconds, backends["verl"]),
            "publications": [await asyncio.to_thread(_publish, backends["verl"])],
            "a token, s": await _token_seconds(64, 256),
        }
    finally:
        for backend in backends.values():
            await backend.stop()
    large = VerlBackend(job_of("verl", rounds, episodes, model=LARGE, dtype="bfloat16"), models)
    await large.start()
    try:
        own["publications"].append(await asyncio.to_thread(_publish, large))
    finally:
        await large.stop()
    return {"boot, s": boots, "rounds": done, "own": own}


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


def _clock(rank: Any) -> None:
    """Have a rank sum up in `spent` the seconds of what any learner computes."""
    import torch

    from swarm.backends.verl.worker import ObjectiveLoss

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            begun, found = time.perf_counter(), function(*arguments, **named)
            rank.spent += time.perf_counter() - begun
            return found

        return called

    rank.spent, engine = 0.0, rank._engine
    for place, name in (
        (ObjectiveLoss, "__call__"), (torch.Tensor, "backward"), (engine.module, "forward"),
        (engine, "prepare_model_outputs"), (engine, "optimizer_step"),
    ):  # fmt: skip
        setattr(place, name, timed(getattr(place, name)))


def _own_seconds(backend: Any) -> list[dict[str, float]]:
    """Return what updates of several sizes take beside the rank's arithmetic, and their rows, ids and micro-batches."""
    import ray

    learner, (rank,), points = backend.learner, backend.learner.group._actors, []
    ray.get(rank.__ray_call__.remote(_clock))
    for rows, ids, most in SIZES:
        seconds, learner._job = [], backend.job.model_copy(update={"micro_batch_tokens": most})
        for repeat in range(REPEATS + 1):
            batch, spent = _batch(rows, ids, repeat, learner.version), rank.__ray_call__.remote(lambda own: own.spent)
            before, begun = ray.get(spent), time.perf_counter()
            learner.update(batch)
            whole = time.perf_counter() - begun
            seconds.append(whole - ray.get(rank.__ray_call__.remote(lambda own: own.spent)) + before)
        parts = -(-rows // (most // (ids + 1)))
        points.append({"rows": rows, "ids": rows * ids, "micro-batches": parts, "seconds": median(seconds[1:])})
    return points


def _batch(rows: int, ids: int, seed: int, version: int) -> Batch:
    """Return episodes of one row of random ids, the second half of which older weights sampled."""
    drawn, half = Random(seed), ids // 2
    marks = ((0,) * half + (1,) * half, (0.0,) * half + (-4.0,) * half, (-1,) * half + (version - 1,) * half)
    lines = [TrainRow(tuple(drawn.choices(range(5, 60), k=ids)), *marks) for _ in range(rows)]
    each = (TrainEpisode(f"e{n}", f"g{n // 8}", drawn.random(), (line,)) for n, line in enumerate(lines))
    return Batch(version + 1, tuple(each))


def _publish(backend: Any) -> dict[str, float]:
    import ray

    seconds = [timeit(backend.publish, number=1) for _ in range(REPEATS + 1)]
    tensors = [tensor for bucket in backend.learner.export_weights() for tensor in ray.get(bucket).values()]
    return {"bytes": sum({each.data_ptr(): each.nbytes for each in tensors}.values()), "seconds": median(seconds[1:])}


async def _token_seconds(orders: int, tokens: int) -> float:
    """Return what a replica's process takes for a token between vLLM, left out, and whoever takes it."""
    from swarm.backends.verl.replica import GenerateCommand, RequestRunner

    async def stream(name: str, ids: Sequence[int], sampling: Sampling, version: int) -> AsyncIterator[Chunk]:
        for _ in range(sampling.max_tokens):
            yield Chunk((1,), (-1.0,), version)

    runner, taken, begun = RequestRunner(), 0, time.perf_counter()
    runner._model = SimpleNamespace(stream=stream)  # type: ignore[assignment]
    for key in range(orders):
        runner.submit(GenerateCommand(key, (1, 2), Sampling(max_tokens=tokens), 2 + tokens))
    while taken < orders * tokens:
        await runner.outbox.wait(1.0)
        taken += sum(len(each.chunk.ids) for each in runner.outbox.take() if each.chunk)
    return (time.perf_counter() - begun) / taken


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
