"""Is one model that learns three tasks together as good at each as three models that learn one each, at equal tokens?

`measure(quick)`: for each of 5 seeds a joint training of `arith`, `guess` and `market` as three streams with a third of
each batch, and three trainings of one of them alone. All begin with the same tiny model, warm-started on the mix of
`examples/cocktail`, and have the same job but for streams and batch. A training of one task has batches of as many
groups of it as the joint one, and ends with the step in which it has trained as many tokens of the task as the joint
training of its seed: what differs is that the joint model is updated by the other two tasks' episodes as well, in the
same number of updates. The tokens of both are in the figures.

A real swarm server in a process of its own carries out one training after the other, played by the built-in agents over
HTTP. After each its policy plays held-out tasks (the split `hidden`, the same for all), sampling as in training.
Success is judged task by task by the shipped verdict on a two-armed design: Welch's test over the seeds, three designs
that share a level of 5 % (Bonferroni), equal within `MARGIN`. The weights before training are measured once, for scale.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import JsonValue
from rig.training import BENCHMARKS, BOOT_S, ONE_THREAD

from research.environments.install import load_environment
from research.installation.home import Home
from studies.records.alpha import allocate_single_round
from studies.records.design import Arm, Budget, Design, Hypothesis, Metric, Price
from studies.records.procedure import InterimAnalysis, Prediction
from studies.verdicts.inputs import ArmData
from studies.verdicts.rules import judge
from swarm.client import AsyncSwarmClient
from swarm.environments.play import agent_of
from swarm.environments.registry import get_built_in
from swarm.job import Job, TinyModel

TASKS = ("arith", "guess", "market")
ALPHA, MARGIN = 0.05, 0.1
EXAMPLE = BENCHMARKS.parent / "examples" / "cocktail"
JOINT = "joint"
_TOGETHER: dict[str, JsonValue] = dict.fromkeys(TASKS, 1)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is trained and played. `groups` are those of one task in a batch."""

    seeds: int
    steps: int
    groups: int
    group_size: int
    held_out: int
    warm_start_steps: int


FULL = Size(seeds=5, steps=32, groups=4, group_size=8, held_out=96, warm_start_steps=1200)
QUICK = Size(seeds=3, steps=2, groups=1, group_size=2, held_out=4, warm_start_steps=10)


@dataclass(frozen=True, slots=True)
class TrainedArm:
    """One training: tokens trained of each task, success on its held-out tasks, steps, and seconds of wall clock."""

    tokens: Mapping[str, float]
    success: Mapping[str, float]
    steps: int
    seconds: float


def measure(quick: bool) -> dict[str, Any]:
    """Return the figures as JSON values."""
    size = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="ajet-cocktail-") as folder:
        place, environment = _prepared(Path(folder), size)
        before, joint, alone = asyncio.run(_all_trained(place, environment, size))
    return {
        "seeds": list(range(size.seeds)),
        "size": {name: getattr(size, name) for name in Size.__slots__},
        "margin": MARGIN,
        "level_of_each": ALPHA / len(TASKS),
        "tasks": {task: _figures(task, before[task], joint, alone[task]) for task in TASKS},
        "seconds_of_a_training": {
            name: round(fmean(run.seconds for run in runs), 1) for name, runs in {JOINT: joint, **alone}.items()
        },
    }


def _figures(task: str, before: float, joint: Sequence[TrainedArm], alone: Sequence[TrainedArm]) -> dict[str, Any]:
    verdict = judge(
        allocate_single_round(_design(task, len(joint))),
        task,
        {"single": _arm("single", [run.success[task] for run in alone]),
         JOINT: _arm(JOINT, [run.success[task] for run in joint])},
        look=1,
    )  # fmt: skip
    kept = ("verdict", "reason", "estimate", "low", "high", "level", "p", "test", "equivalence")
    return {
        "before": before,
        JOINT: {"success": [run.success[task] for run in joint], "tokens": [run.tokens[task] for run in joint]},
        "single": {
            "success": [run.success[task] for run in alone],
            "tokens": [run.tokens[task] for run in alone],
            "steps": [run.steps for run in alone],
        },
        **{name: value for name, value in verdict.model_dump(mode="json").items() if name in kept},
    }


def _arm(name: str, values: Sequence[float]) -> ArmData:
    runs = {f"{name}-{seed}": value for seed, value in enumerate(values)}
    return ArmData(runs, {run: seed for seed, run in enumerate(runs)})


def _design(task: str, seeds: int) -> Design:
    claim = Hypothesis(
        id=task, statement=f"Training {task} with two other tasks beside it makes it better at {task}.",
        variable="streams", control={task: 1}, treatment=_TOGETHER, direction="increase",
        prediction=Prediction(low=-MARGIN, high=MARGIN, probability=0.5),
    )  # fmt: skip
    level = ALPHA / len(TASKS)
    return Design(
        question=f"Is a model that learns three tasks at once better at {task} than one that learns it alone?",
        environment=task, base_job={}, control_arm="single", hypotheses=(claim,),
        arms=(Arm(name="single", overrides={"streams": {task: 1}}), Arm(name=JOINT, overrides={"streams": _TOGETHER})),
        seeds=tuple(range(1, seeds + 1)), metric=Metric(meaning="success on held-out tasks", episodes=FULL.held_out),
        test="welch", alpha=level, looks=(InterimAnalysis(seeds=seeds, alpha=level),), equivalence_margin=MARGIN,
        budget=Budget(wall_clock_s=1), price=Price(runs=1, parallel=1, seconds_per_run=1, total_s=1, basis="none"),
        multiplicity="none", shared_seeds=False,
    )  # fmt: skip


def _prepared(folder: Path, size: Size) -> tuple[Path, str]:
    """Bring the mix and make the model of it; return where, and the mix's whole name."""
    home = Home(folder, f"sqlite:///{folder / 'ajet.db'}").prepare()
    environment = load_environment(str(EXAMPLE), None, home, _tell).name
    _tell("making the tiny model of the mix")
    spec = TinyModel(warm_start_steps=size.warm_start_steps)
    words = ("--environment", environment, "--environments", str(home.environments), "--models", str(home.models))
    subprocess.run(
        [sys.executable, "-m", "swarm.backends.tiny_model", *words, "--spec", spec.model_dump_json()],
        check=True, cwd=BENCHMARKS, stdout=subprocess.DEVNULL, env={**os.environ, **ONE_THREAD},
    )  # fmt: skip
    return folder, environment


async def _all_trained(
    place: Path, environment: str, size: Size
) -> tuple[dict[str, float], list[TrainedArm], dict[str, list[TrainedArm]]]:
    """Return success before training, the joint trainings by seed, and those of each task by seed."""
    joint, alone = list[TrainedArm](), {task: list[TrainedArm]() for task in TASKS}
    with _server(place) as (url, token):
        async with AsyncSwarmClient(url, token) as client:
            bench = Bench(client, place / "steps.jsonl", environment, size)
            await client.ensure_training(bench.job(TASKS, 0, 1))
            before = {task: await bench.success(task) for task in TASKS}
            for seed in range(size.seeds):
                joint.append(await bench.train(TASKS, seed, {}))
                for task in TASKS:
                    alone[task].append(await bench.train((task,), seed, joint[seed].tokens))
    return before, joint, alone


@dataclass(frozen=True, slots=True)
class Bench:
    """A server, and the file with a line of metrics for each step of its present training."""

    client: AsyncSwarmClient
    lines: Path
    environment: str
    size: Size

    def job(self, tasks: Sequence[str], seed: int, steps: int) -> Job:
        """Return the job of a training of these tasks, each with as many groups in a batch."""
        size = self.size
        return Job(
            environment=self.environment, model=TinyModel(warm_start_steps=size.warm_start_steps), seed=seed,
            steps=steps, streams=dict.fromkeys(tasks, 1.0), max_tokens=12, checkpoint_every=1000,
            episodes_per_step=size.groups * size.group_size * len(tasks), group_size=size.group_size,
        )  # fmt: skip

    async def train(self, tasks: Sequence[str], seed: int, wanted: Mapping[str, float]) -> TrainedArm:
        """Carry out one training, all of its steps, or until it has trained so many tokens of each task."""
        began = time.monotonic()
        await self.client.stop()
        await self.client.ensure_training(self.job(tasks, seed, self.size.steps if not wanted else 4 * self.size.steps))
        playing = asyncio.gather(*(_play(self.client, task, seed) for task in tasks))
        if wanted:
            await self._until(lambda: all(self._tokens(tasks)[task] >= wanted[task] for task in tasks))
            playing.cancel()
        with suppress(asyncio.CancelledError):
            await playing
        await self._at_rest()
        success = {task: await self.success(task) for task in tasks}
        run = TrainedArm(self._tokens(tasks), success, len(_steps(self.lines)), round(time.monotonic() - began, 1))
        _tell(f"{'+'.join(tasks)}, seed {seed}: {json.dumps(asdict(run))}")
        return run

    async def success(self, task: str) -> float:
        """Return the share of held-out tasks that the present policy solves."""
        environment = get_built_in(task)
        held_out = random.Random(0).sample(list(environment.tasks("hidden")), self.size.held_out)
        results = await self.client.evaluate(agent_of(environment), held_out)
        return fmean(bool(result.success) for result in results)

    def _tokens(self, tasks: Sequence[str]) -> dict[str, float]:
        steps = _steps(self.lines)
        return {task: sum(metrics[f"stream/{task}/tokens/trained"] for metrics in steps) for task in tasks}

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():  # noqa: ASYNC110  -- a file tells nobody of a new line
            await asyncio.sleep(0.02)

    async def _at_rest(self) -> None:
        """Wait until a step that is being made is done."""
        while (status := await self.client.status()).state == "WEIGHT_SYNCING" or status.updating:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _play(client: AsyncSwarmClient, task: str, seed: int) -> None:
    environment = get_built_in(task)
    tasks = list(environment.tasks("train"))
    random.Random(seed).shuffle(tasks)
    await client.rollout(agent_of(environment), tasks, concurrency=64, stream=task)


@contextmanager
def _server(folder: Path) -> Iterator[tuple[str, str]]:
    (folder / "training.json").write_text(json.dumps({"models": str(folder / "models")}))
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "rig.training", "serve", str(folder)],
            cwd=BENCHMARKS, stdout=log, stderr=log, env={**os.environ, **ONE_THREAD},
        )  # fmt: skip
    address, deadline = folder / "server" / "server.json", time.monotonic() + BOOT_S
    try:
        while not address.exists():
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the swarm server did not start:\n{(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)
        token = json.loads((folder / "server" / "tokens.json").read_text())["admin"]
        yield str(json.loads(address.read_text())["url"]), str(token)
    finally:
        server.terminate()
        server.wait(60)


def _steps(lines: Path) -> list[dict[str, float]]:
    text = lines.read_text() if lines.exists() else ""
    return [json.loads(line)["metrics"] for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
