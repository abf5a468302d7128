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
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rig.frame import tell
from rig.training import BENCHMARKS, judged, made, serving

from research.environments.install import load_environment
from research.installation.home import Home
from swarm.client import AsyncSwarmClient
from swarm.environments.play import agent_of
from swarm.environments.registry import BUILT_IN
from swarm.job import Job, TinyModel

TASKS = ("arith", "guess", "market")
ALPHA, MARGIN = 0.05, 0.1
EXAMPLE = BENCHMARKS.parent / "examples" / "cocktail"
JOINT = "joint"
_LOOK_S = 0.02


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
        before, joint, alone = asyncio.run(_all_trained(Path(folder), size))
    tasks = {task: _figures(task, before[task], joint, alone[task], size) for task in TASKS}
    return {
        "seeds": list(range(size.seeds)),
        "size": asdict(size),
        "margin": MARGIN,
        "level_of_each": ALPHA / len(TASKS),
        "tasks": tasks,
        "seconds_of_a_training": {
            name: round(fmean(run.seconds for run in runs), 1) for name, runs in {JOINT: joint, **alone}.items()
        },
        "goals": {f"{task}: joint as good as alone": tasks[task]["verdict"] == "equivalent" for task in TASKS},
    }


def _figures(
    task: str, before: float, joint: Sequence[TrainedArm], alone: Sequence[TrainedArm], size: Size
) -> dict[str, Any]:
    arms = {"single": alone, JOINT: joint}
    verdict = judged(
        task, {arm: {seed: run.success[task] for seed, run in enumerate(runs)} for arm, runs in arms.items()},
        meaning="success on held-out tasks", episodes=size.held_out, test="welch", alpha=ALPHA / len(TASKS),
        margin=MARGIN,
    )  # fmt: skip
    of_arms = {
        arm: {
            "success": [run.success[task] for run in runs], "tokens": [run.tokens[task] for run in runs],
            "steps": [run.steps for run in runs],
        }
        for arm, runs in arms.items()
    }  # fmt: skip
    return {"before": before, **of_arms, **verdict}


async def _all_trained(
    folder: Path, size: Size
) -> tuple[dict[str, float], list[TrainedArm], dict[str, list[TrainedArm]]]:
    """Bring the mix and make its model; return success before training, the joint trainings, and those of each task."""
    home = Home(folder, f"sqlite:///{folder / 'ajet.db'}").prepare()
    environment = load_environment(str(EXAMPLE), None, home, tell).name
    made(environment, home.models, TinyModel(warm_start_steps=size.warm_start_steps), environments=home.environments)
    (folder / "training.json").write_text(json.dumps({"models": str(home.models)}))
    joint, alone = list[TrainedArm](), {task: list[TrainedArm]() for task in TASKS}
    with serving(folder) as (_, url, token):
        async with AsyncSwarmClient(url, token) as client:
            bench = Bench(client, folder / "steps.jsonl", environment, size)
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
        playing = asyncio.gather(*(self._play(task, seed) for task in tasks))
        if wanted:
            # a file tells nobody of a new line
            while any(self._tokens(tasks)[task] < wanted[task] for task in tasks):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)
            playing.cancel()
        with suppress(asyncio.CancelledError):
            await playing
        while (status := await self.client.status()).state == "WEIGHT_SYNCING" or status.updating:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        success = {task: await self.success(task) for task in tasks}
        run = TrainedArm(self._tokens(tasks), success, len(self._steps()), round(time.monotonic() - began, 1))
        tell(f"{'+'.join(tasks)}, seed {seed}: {json.dumps(asdict(run))}")
        return run

    async def success(self, task: str) -> float:
        """Return the share of held-out tasks that the present policy solves."""
        environment = BUILT_IN[task]
        held_out = random.Random(0).sample(list(environment.tasks("hidden")), self.size.held_out)
        results = await self.client.evaluate(agent_of(environment), held_out)
        return fmean(bool(result.success) for result in results)

    async def _play(self, task: str, seed: int) -> None:
        environment = BUILT_IN[task]
        tasks = list(environment.tasks("train"))
        random.Random(seed).shuffle(tasks)
        await self.client.rollout(agent_of(environment), tasks, concurrency=64, stream=task)

    def _tokens(self, tasks: Sequence[str]) -> dict[str, float]:
        steps = self._steps()
        return {task: sum(metrics[f"stream/{task}/tokens/trained"] for metrics in steps) for task in tasks}

    def _steps(self) -> list[dict[str, float]]:
        text = self.lines.read_text() if self.lines.exists() else ""
        return [json.loads(line)["metrics"] for line in text.splitlines(keepends=True) if line.endswith("\n")]
