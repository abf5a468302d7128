"""The same training by the local backend alone: engine, learner and call trees in one process, without a server.

    python -m rig.in_process run FOLDER    trains what FOLDER/training.json says; writes FOLDER/trained.json

Nothing is durable here and no episode has a lease: what this saves is what the swarm server costs.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rig.workloads import Step, Trained
from swarm.backends.local.backend import LocalBackend
from swarm.backends.protocols import Backend, Batch, GenerationRequest, Sampling, TrainEpisode
from swarm.environments.base import Outcome, PlainEnvironment, Task, said
from swarm.environments.registry import BUILT_IN
from swarm.job import Job
from swarm.rendering.messages import Message
from swarm.timelines import CallTree, linear_rows


@dataclass(frozen=True, slots=True)
class Played:
    """An episode and what came of it."""

    episode: TrainEpisode
    outcome: Outcome


class Player:
    """Plays a job's environment with the engine of a backend that is started."""

    def __init__(self, job: Job, backend: Backend) -> None:
        self._job = job
        self._backend = backend
        self._environment: PlainEnvironment = BUILT_IN[job.environment]

    def tasks(self) -> Iterator[Task]:
        """Yield the training tasks in the order of the job's seed, over and over."""
        tasks = list(self._environment.tasks("train"))
        random.Random(self._job.seed).shuffle(tasks)
        return itertools.cycle(tasks)

    async def played(self, step: int, tasks: Sequence[Task]) -> list[Played]:
        """Play a group of each task, all at once."""
        places = [(task, sample) for task in tasks for sample in range(self._job.group_size)]
        return await asyncio.gather(*(self.play(f"{step}-{task.id}", task, sample) for task, sample in places))

    async def play(self, group: str, task: Task, sample: int) -> Played:
        """Play a task once, as the job samples."""
        game, tree = self._environment.game(task), CallTree(self._backend.renderer)
        episode = f"{group}-{sample}"
        messages: list[Message] = [*game.opening()]
        heard = True
        while heard:
            text = await self._said(tree, episode, messages)
            following = game.answer(said(text))
            heard = bool(following)
            messages += [said(text), *following]
        outcome = game.outcome()
        return Played(TrainEpisode(episode, group, outcome.reward, linear_rows(tree.nodes)), outcome)

    async def _said(self, tree: CallTree, episode: str, messages: list[Message]) -> str:
        renderer, job = self._backend.renderer, self._job
        prompt = tree.prompt(messages)
        sampling = Sampling(job.max_tokens, job.temperature, stop_ids=tuple(renderer.stop_ids))
        ids: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        async for chunk in self._backend.engine.generate(
            GenerationRequest(f"{episode}/{len(tree.nodes)}", prompt.prompt_ids, sampling)
        ):
            ids += chunk.ids
            logprobs += chunk.logprobs
            versions += [chunk.version] * len(chunk.ids)
        text = renderer.decode(ids)
        answer = {"role": "assistant", "content": text}
        node = tree.make_node(prompt, ids, logprobs, versions, text=renderer.decode(ids, special=True))
        tree.keep(prompt, node, answer)
        return text


class InProcess:
    """Plays and learns, one step after another."""

    def __init__(self, job: Job, models: Path) -> None:
        self._job = job
        self._backend = LocalBackend(job, models)
        self._player = Player(job, self._backend)
        self._steps: list[Step] = []

    async def train(self, between: Callable[[int], Awaitable[None]] | None = None) -> Trained:
        """Carry the whole job out; `between` is awaited before the first step, with 0, and after each step."""
        await self._backend.start()
        try:
            began, before = time.perf_counter(), time.process_time()
            tasks = self._player.tasks()
            for step in range(self._job.steps + 1):
                if step:
                    await self._step(step, list(itertools.islice(tasks, self._job.tasks_per_step)), began)
                if between:
                    await between(step)
            return Trained(tuple(self._steps), time.process_time() - before)
        finally:
            await self._backend.stop()

    async def solved(self, tasks: Sequence[Task]) -> int:
        """Play each task once with the present weights, as the job samples, and return how many are solved."""
        played = await asyncio.gather(*(self._player.play(f"evaluation-{task.id}", task, 0) for task in tasks))
        return sum(bool(one.outcome.success) for one in played)

    async def _step(self, step: int, tasks: list[Task], began: float) -> None:
        started = time.perf_counter()
        played = await self._player.played(step, tasks)
        rolled = time.perf_counter()
        batch = Batch(step, tuple(one.episode for one in played))
        await asyncio.to_thread(self._backend.learner.update, batch)
        now = time.perf_counter()
        self._steps.append(
            Step(
                at=now - began,
                reward=sum(one.outcome.reward for one in played) / len(played),
                success=sum(bool(one.outcome.success) for one in played) / len(played),
                generate_s=rolled - started,
                update_s=now - rolled,
            )
        )


def _run(folder: Path) -> Trained:
    order = json.loads((folder / "training.json").read_text())
    return asyncio.run(InProcess(Job.model_validate(order["job"]), Path(order["models"])).train())


if __name__ == "__main__":
    _run(Path(sys.argv[2])).write(Path(sys.argv[2]) / "trained.json")
