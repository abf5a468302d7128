"""The step loop: rollout, drain, update, checkpoint, metrics, and again, until the job's last step.

It owns the order in which backend, rollout and tracker work, and moves the state machine with it. Whatever goes
wrong in it, and whatever the watchdog sees, ends in FAILED with the reason; nobody is left waiting. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from swarm.backends.protocols import Backend, BackendError
from swarm.errors import EngineUnavailable, ServerFailed
from swarm.job import Job
from swarm.server.batch import Group
from swarm.server.metrics import batch_metrics, make_batch, samples_of
from swarm.server.rollout import RETRY_AFTER_S, Rollout
from swarm.server.states import StateMachine
from swarm.server.tracking import Tracker, TrackerThread
from swarm.store import FakeStore
from swarm.wire import ServerState

log = logging.getLogger(__name__)

WATCH_S = 0.5
"""Seconds between two looks of the watchdog."""

_RUNNING = frozenset({ServerState.BOOTING, ServerState.ROLLING, ServerState.ROLLING_POST, ServerState.WEIGHT_SYNCING})


class Training:
    """One loaded job being trained, from start to stop."""

    def __init__(
        self,
        job: Job,
        machine: StateMachine,
        checkpoints: Path,
        make_backend: Callable[[], Backend],
        make_tracker: Callable[[Job], Tracker],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job = job
        self.rollout = Rollout(job, machine, FakeStore(), clock)
        self.step = 0
        self.metrics: Mapping[str, float] = {}
        self.version = 0
        """The policy version that serves now."""
        self._machine = machine
        self._checkpoints = checkpoints
        self._make_backend = make_backend
        self._make_tracker = make_tracker
        self._tracker = TrackerThread()
        self._made: Backend | None = None
        self._backend: Backend | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._learning: asyncio.Future[Any] | None = None

    @property
    def backend(self) -> Backend:
        """The backend, once it serves."""
        if self._backend is None:
            raise EngineUnavailable("the engine is still booting; try again", retry_after=RETRY_AFTER_S)
        return self._backend

    @property
    def finished(self) -> bool:
        """The last step is done."""
        return self.rollout.finished

    def start(self) -> None:
        """Begin to boot, in the background."""
        self._spawn(self._boot(), "boot")

    def fail(self, reason: str) -> None:
        """Turn FAILED, and tell everyone who waits."""
        if self._machine.state not in _RUNNING:
            return
        self._machine.to(ServerState.FAILED, reason)
        self.rollout.fail(ServerFailed(f"the server FAILED: {reason}"))
        self._cancel()

    async def stop(self) -> None:
        """End the loop, the tracker and the backend; an update that runs is waited for."""
        self.rollout.fail(EngineUnavailable("the engine was stopped", retry_after=RETRY_AFTER_S))
        self._cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._learning is not None:
            await asyncio.wait({self._learning})
        try:
            await self._tracker.finish()
        finally:
            self._tracker.close()
            if self._made is not None:
                await self._made.stop()

    async def _boot(self) -> None:
        self._made = backend = await asyncio.to_thread(self._make_backend)
        self._spawn(self._watch(backend), "watchdog")  # a backend may die while it boots
        await backend.start()
        self._backend, self.version = backend, backend.learner.version
        await self._tracker.open(lambda: self._make_tracker(self.job))
        self.rollout.renderer = backend.renderer
        self._roll()
        self._spawn(self._sweep(), "sweep")
        self._spawn(self._train(backend), "training")

    async def _train(self, backend: Backend) -> None:
        while self.step < self.job.steps:
            started = time.perf_counter()
            await self.rollout.until(lambda: self.rollout.groups.full)
            self._machine.to(ServerState.ROLLING_POST)
            self.rollout.draining()
            await self.rollout.until(lambda: self.rollout.groups.complete)
            rolled = time.perf_counter()
            await self.rollout.quiet()
            groups = self.rollout.take()
            self._machine.to(ServerState.WEIGHT_SYNCING)
            learned = await self._in_thread(partial(self._learn, backend, groups))
            self.version = backend.learner.version
            timing = {"timing_s/rollout": rolled - started, "timing_s/step": time.perf_counter() - started}
            await self._report({**batch_metrics(groups), **learned, **timing})
            self._roll()
        await self._tracker.finish()
        log.info("event=finished steps=%d", self.step)

    def _learn(self, backend: Backend, groups: tuple[Group, ...]) -> dict[str, float]:
        """Update the policy and write the checkpoint that is due; runs in a thread."""
        step, started = self.step + 1, time.perf_counter()
        metrics = dict(backend.learner.update(make_batch(step, samples_of(groups))))
        metrics["timing_s/update"] = time.perf_counter() - started
        if step % self.job.checkpoint_every == 0 or step == self.job.steps:
            saving = time.perf_counter()
            self._checkpoints.mkdir(parents=True, exist_ok=True)
            backend.learner.save(self._checkpoints / f"step-{step:06d}")
            metrics["timing_s/save"] = time.perf_counter() - saving
        return metrics

    async def _report(self, metrics: Mapping[str, float]) -> None:
        self.step += 1
        self.metrics = {
            **metrics,
            **self.rollout.metrics(),
            "training/global_step": float(self.step),
            "episodes/total": float(self.step * self.job.episodes_per_step),
        }
        await self._tracker.log(self.step, self.metrics)
        log.info(
            "event=step step=%d/%d reward=%.4f success=%.4f rollout_s=%.2f update_s=%.2f",
            self.step,
            self.job.steps,
            metrics["critic/rewards/mean"],
            metrics.get("critic/success/mean", float("nan")),
            metrics["timing_s/rollout"],
            metrics["timing_s/update"],
        )

    def _roll(self) -> None:
        self.rollout.version = self.version
        if self.step >= self.job.steps:
            self.rollout.finish()
        self._machine.to(ServerState.ROLLING)
        self.rollout.gate.open()
        self.rollout.notify()

    async def _watch(self, backend: Backend) -> None:
        while True:
            reason = backend.failure()
            if reason is not None:
                raise BackendError(reason)
            await asyncio.sleep(WATCH_S)

    async def _sweep(self) -> None:
        every = min(0.5, self.job.lease_ttl_s / 4, self.job.drain_timeout_s / 4)
        while True:
            await asyncio.sleep(every)
            self.rollout.sweep()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _in_thread(self, work: Callable[[], dict[str, float]]) -> dict[str, float]:
        self._learning = asyncio.ensure_future(asyncio.to_thread(work))
        return await asyncio.shield(self._learning)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._judge)
        self._tasks.append(task)

    def _judge(self, task: asyncio.Task[None]) -> None:
        """Turn the error a task ended with into FAILED."""
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        known = isinstance(error, BackendError)
        log.error("event=failed task=%s error=%r", task.get_name(), str(error), exc_info=None if known else error)
        self.fail(str(error) if known else f"{task.get_name()}: {type(error).__name__}: {error}")
