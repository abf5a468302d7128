"""An attempt in this process: its server and its workers are fakes, and what it does about them is its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self

from research.files import write_json
from research.runs.attempt import Attempt
from research.runs.files import AttemptFolder, AttemptSpec, Role, evaluation_of
from research.runs.workers import DIED
from swarm.environments.play import EvaluationsFile
from swarm.errors import Unreachable
from swarm.job import Job
from swarm.wire import EpisodeList, ServerState, Status
from tests.research.factories import with_run
from tests.research.fakes import evaluation

Play = Callable[["FakeAttempt"], Awaitable[int]]


class FakeServer:
    failure = DIED

    def __init__(self, order: AttemptSpec, step: int = 0) -> None:
        self.steps = order.job.steps
        self.step = step
        self.facts: dict[str, Any] = {}
        self.evaluated: set[int] = set()
        self.died = asyncio.Event()
        self.asked: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def status(self) -> Status:
        if self.died.is_set():
            raise Unreachable("nobody answers")
        known = {"state": ServerState.ROLLING, "step": self.step, "policy_version": self.step, "steps": self.steps}
        return Status.model_validate({**known, "finished": self.step == self.steps, **self.facts})

    async def reach(self, step: int) -> None:
        while self.step < step:  # noqa: ASYNC110  -- whoever trains tells nobody
            await asyncio.sleep(0)

    async def ensure_training(self, job: Job, *, timeout_s: float) -> Status:
        self.asked.append("train")
        return await self.status()

    async def episodes(self, limit: int) -> EpisodeList:
        return EpisodeList(episodes=())

    async def stop(self) -> None:
        self.asked.append("stop")

    async def wait(self) -> int:
        await self.died.wait()
        return -9

    def describe_end(self) -> str:
        return "killed by signal 9"


async def train(attempt: FakeAttempt) -> int:
    server = attempt.server
    while server.step < server.steps:
        await asyncio.sleep(0)
        if server.step not in attempt.order.evaluate_after or server.step in server.evaluated:
            server.step += 1
    return 0


async def for_ever(attempt: FakeAttempt) -> int:
    await asyncio.Event().wait()
    return 0


def evaluate(role: Role) -> Play:
    async def play(attempt: FakeAttempt) -> int:
        order = attempt.order
        elsewhere = order.other_environment if role == "evaluator-other" else None
        spec = with_run(order, environment=elsewhere or order.spec.environment).spec
        write_json(attempt.folder.evaluation(evaluation_of(role)), evaluation(spec, attempt.server.step, 0.5))
        return 0

    return play


async def evaluate_during(attempt: FakeAttempt) -> int:
    spec, path, server = attempt.order.spec, attempt.folder.evaluation("during"), attempt.server
    assert spec.metric.schedule is not None
    file = EvaluationsFile(path)
    for version in attempt.order.evaluate_after:
        await server.reach(version)
        if server.step == version:
            made = evaluation(spec, version, 0.5, spec.metric.schedule.episodes, spec.task_seed + version)
            write_json(path, file.add(made))
            server.evaluated.add(version)
    return 0


class FakeWorker:
    failure = DIED

    def __init__(self, work: asyncio.Task[int]) -> None:
        self.work = work

    async def wait(self) -> int:
        await asyncio.wait({self.work})
        return -15 if self.work.cancelled() else self.work.result()

    async def stop(self) -> None:
        self.work.cancel()

    def describe_end(self) -> str:
        return "its last words"


class FakeAttempt(Attempt):
    """An attempt whose server is a fake, and whose workers play as `plays` says: with a name of a role's last part."""

    def __init__(self, folder: AttemptFolder, order: AttemptSpec, step: int = 0, **plays: Play) -> None:
        super().__init__(folder, order)
        self.folder, self.order = folder, order
        self.server = FakeServer(order, step)
        self.started: list[Role] = []
        self._at_work: list[FakeWorker] = []
        self._plays = {"client": train, "during": evaluate_during, **plays}

    async def _start_server(self, *_: object) -> Any:
        return self.server, self.server, {"client": "c", "admin": "a"}  # whoever connects to it has it

    def _workers(self, *_: object) -> Any:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._at_work:
            await worker.stop()
            await worker.wait()

    async def start(self, role: Role) -> FakeWorker:
        self.started.append(role)
        play = self._plays.get(role.rpartition("-")[2]) or evaluate(role)
        self._at_work.append(FakeWorker(asyncio.create_task(play(self))))  # type: ignore[arg-type]
        return self._at_work[-1]

    def refused(self) -> dict[str, int]:
        return {}

    @property
    def playing(self) -> int:
        return sum(not worker.work.done() for worker in self._at_work)
