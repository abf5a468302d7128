"""The swarm server without its HTTP: one loaded job, its life, and the way from a key to an episode."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

from swarm.backends.factory import make_backend
from swarm.backends.protocols import Backend
from swarm.errors import EngineUnavailable, JobConflict, NotFound, ServerFailed
from swarm.job import Job
from swarm.server.keys import Keys
from swarm.server.rollout import RETRY_AFTER_S
from swarm.server.states import StateMachine, Transition
from swarm.server.tracking import Tracker, make_tracker
from swarm.server.training import Training
from swarm.wire import ServerState, Status

log = logging.getLogger(__name__)


class SwarmServer:
    """Holds at most one job and its training. `directory` gets checkpoints; `models` caches models made on the spot."""

    def __init__(
        self,
        directory: Path,
        models: Path,
        keys: Keys,
        *,
        backends: Callable[[Job, Path], Backend] = make_backend,
        trackers: Callable[[Job], Tracker] = make_tracker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keys = keys
        self.machine = StateMachine(_log_transition)
        self._directory = directory
        self._models = models
        self._backends = backends
        self._trackers = trackers
        self._clock = clock
        self._job: Job | None = None
        self._training: Training | None = None
        self._stopping = asyncio.Lock()

    @property
    def job(self) -> Job:
        """The loaded job; NotFound before one is."""
        if self._job is None:
            raise NotFound("no job is loaded; POST /job")
        return self._job

    @property
    def training(self) -> Training:
        """The running training; raises what a client should hear when there is none."""
        if self.machine.state is ServerState.FAILED:
            raise ServerFailed(f"the server FAILED: {self.machine.reason}")
        if self._training is None:
            raise EngineUnavailable("the engine is off; POST /engine/start", retry_after=RETRY_AFTER_S)
        return self._training

    def load(self, job: Job) -> Status:
        """Load a job; the same one again changes nothing. JobConflict while another one's engine is on."""
        if self.machine.state is ServerState.OFFLINE:
            self._job = job
        elif self._job is None or self._job.digest() != job.digest():
            raise JobConflict("another job is loaded and its engine is on; POST /engine/stop first")
        return self.status()

    async def start(self) -> Status:
        """Boot the loaded job's engine in the background, after a stop that still goes on; no change while it is on."""
        async with self._stopping:
            if self._job is None:
                raise JobConflict("no job is loaded; POST /job first")
            if self.machine.state is ServerState.FAILED:
                raise ServerFailed(f"the server FAILED: {self.machine.reason}; POST /engine/stop first")
            if self.machine.state is ServerState.OFFLINE:
                self._training = self._new_training(self._job)
                self.machine.to(ServerState.BOOTING)
                self._training.start()
        return self.status()

    async def stop(self) -> Status:
        """Finish the tracker, end the backend and go OFFLINE; no change when off.

        Raises ServerFailed, OFFLINE all the same, if tracker or backend did not end well.
        """
        async with self._stopping:
            if self.machine.state is not ServerState.OFFLINE:
                self.machine.to(ServerState.OFFLINE)
            if self._training is not None:
                await self._ended(self._training)
        return self.status()

    async def _ended(self, training: Training) -> None:
        try:
            await training.stop()
        except Exception as error:
            log.error("event=stop_failed error=%r", str(error), exc_info=error)
            found = f"{type(error).__name__}: {error}"
            raise ServerFailed(f"the engine is off, but its last metrics may be lost: {found}") from error
        finally:
            self._training = None

    def status(self) -> Status:
        """Return what the server does now."""
        found = Status(state=self.machine.state, reason=self.machine.reason)
        if self._job is None:
            return found
        job, training = self._job, self._training
        known = {"job_digest": job.digest(), "group_size": job.group_size, "steps": job.steps}
        if training is None:
            return found.model_copy(update=known)
        return found.model_copy(
            update={
                **known,
                "step": training.step,
                "finished": training.finished,
                "policy_version": training.version,
                "open_episodes": len(training.rollout.leases),
                "collected_episodes": training.rollout.groups.collected,
                "needed_episodes": 0 if training.finished else job.episodes_per_step,
                "metrics": {name: value for name, value in training.metrics.items() if math.isfinite(value)},
            }
        )

    def _new_training(self, job: Job) -> Training:
        return Training(
            job,
            self.machine,
            self._directory / "checkpoints",
            lambda: self._backends(job, self._models),
            self._trackers,
            self._clock,
        )


def _log_transition(change: Transition) -> None:
    reason = f" reason={change.reason!r}" if change.reason else ""
    log.info("event=state from=%s to=%s%s", change.source, change.target, reason)
