"""The verl backend: learners and replicas of one policy on Ray.

Nothing heavy is imported before `start`; a version serves once every replica has confirmed it, or the backend is broken
and says why; where they share devices, learners and replicas use them in turns.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarm.backends.local.backend import ModelBackend, Parts
from swarm.backends.protocols import RequestLost
from swarm.backends.verl.engine import SeedSequence, make_engine
from swarm.backends.verl.vllm import ReplicaSpec
from swarm.job import Job
from swarm.rendering.messages import BackendError

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from swarm.backends.verl.cluster import Cluster
    from swarm.backends.verl.engine import ReplicatedEngine
    from swarm.backends.verl.learner import VerlLearner
    from swarm.rendering.renderer import HFRenderer


class VerlBackend(ModelBackend["ReplicatedEngine", "VerlLearner"]):
    """Implements `Backend` by actors on Ray."""

    _cluster: Cluster

    async def start(self) -> None:
        if self._started is None:
            self._cluster, self._started = await _start(self.job, self._models)

    async def stop(self) -> None:
        parts, self._started = self._started, None
        if parts is not None:
            await _shut_down(self._cluster, parts.engine, parts.learner)

    def weights(self) -> str | None:
        return _hash_weights(self.learner)

    def publish(self) -> None:
        weights, ranks = self.learner.export_version(), self.learner.group
        try:
            self.engine.publish(self.learner.version, weights)
        except BackendError as error:
            if not isinstance(error, RequestLost):  # of an engine that was stopped
                ranks.call("alive", [()] * ranks.world, timeout_s=60.0)  # a rank that died is why: it held the weights
            raise

    def failure(self) -> str | None:
        if self._started is None:
            return None
        if (gone := self._cluster.failure()) is not None:
            self.engine.fail(gone)
        return gone or self.learner.group.poll_failure() or self.engine.failure()


async def _start(job: Job, models: Path) -> tuple[Cluster, Parts[ReplicatedEngine, VerlLearner]]:
    making = asyncio.ensure_future(asyncio.to_thread(_prepare, job, models))
    try:
        folder, renderer, cluster = await asyncio.shield(making)
    except asyncio.CancelledError:  # the cluster that the thread joins is left again
        making.add_done_callback(partial(_end_unwanted, end=lambda made: made[2].leave()))
        raise
    # a GPU draws for each seed apart, and so slower
    draws = SeedSequence(job.seed) if cluster.device == "cpu" else None
    learning = asyncio.ensure_future(asyncio.to_thread(_learner, job, folder, cluster, draws))
    engine: ReplicatedEngine | None = None
    serving: asyncio.Future[None] | None = None
    try:
        spec = ReplicaSpec(str(folder), job, cluster.device, job.seed)
        engine = make_engine(spec, cluster.fields.replicas, cluster.replica_options, draws, cluster.failure)
        if cluster.fields.colocated:  # what an engine finds free is its: by then the learner is on the host
            await asyncio.shield(learning)
        serving = asyncio.ensure_future(engine.start())
        done, _ = await asyncio.wait({serving, learning}, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        learner = learning.result()
        if cluster.fields.colocated:
            learner.use_devices = partial(_use_devices, learner, engine)
        weights = await asyncio.to_thread(_hash_weights, learner)
    except BaseException:  # whoever cancels the boot wants no cluster that goes on
        # its thread cannot be cancelled; it fails once Ray is left
        learning.add_done_callback(partial(_end_unwanted, end=lambda made: made.stop()))
        if serving is not None:
            serving.cancel()
            await asyncio.wait({serving})
        await _shut_down(cluster, engine, None)
        raise
    template = hashlib.sha256(renderer.template.encode()).hexdigest()
    return cluster, Parts(engine, learner, renderer, {"weights": weights, "template": template})


def _end_unwanted(making: asyncio.Future[Any], end: Callable[[Any], None]) -> None:
    if not making.cancelled() and making.exception() is None:
        end(making.result())


def _prepare(job: Job, models: Path) -> tuple[Path, HFRenderer, Cluster]:
    """Return the model's folder, its renderer and the cluster; raise BackendError for the first that cannot be had."""
    from swarm.backends.verl.cluster import Cluster, set_ray_environment, warn_of_versions

    set_ray_environment(job.verl_fields.address)  # before anything imports Ray
    from swarm.backends.local.backend import base_model
    from swarm.backends.verl.adapter import check as check_verl
    from swarm.backends.verl.vllm import check as check_vllm
    from swarm.rendering.renderer import load_renderer

    _log.info("event=versions verl=%r engine=%r", check_verl(), check_vllm())
    if odd := warn_of_versions():
        _log.warning("event=versions_not_run reason=%r", odd)
    folder = base_model(job, models)
    return folder, load_renderer(folder), Cluster.join(job)


def _learner(job: Job, folder: Path, cluster: Cluster, draws: SeedSequence | None) -> VerlLearner:
    from swarm.backends.verl.learner import TrainerGroup, VerlLearner

    try:
        trainers, device = cluster.fields.trainers, cluster.device
        group = TrainerGroup(folder, job, trainers, device, cluster.rank_options, cluster.failure)
    except SystemExit as error:  # what Ray raises in who waits as it is left; out of a task it would end the process
        raise BackendError("Ray was left while the learner's ranks came up") from error
    return VerlLearner(job, group, draws)


@contextmanager
def _use_devices(learner: VerlLearner, engine: ReplicatedEngine) -> Iterator[None]:
    """Have the devices for the learner alone within. What fails leaves replicas that serve the weights of before; where
    they do not, the engine is over, and no request waits for ever."""
    try:
        engine.sleep()
        yield
    except BaseException as error:
        try:
            engine.publish(learner.version, learner.export_version())
        except Exception as also:  # noqa: BLE001 - whatever it was: what rests would have requests wait
            engine.fail(f"{error}; the replicas, which rested meanwhile, could not be woken: {also}")
        raise


async def _shut_down(cluster: Cluster, engine: ReplicatedEngine | None, learner: VerlLearner | None) -> None:
    if engine is not None:
        await engine.stop()
    if learner is not None:
        await asyncio.to_thread(learner.stop)
    await asyncio.to_thread(cluster.leave)


def _hash_weights(learner: VerlLearner) -> str:
    import ray

    from swarm.backends.local.loading import hash_stream

    return hash_stream((pair for bucket in learner.export_weights() for pair in ray.get(bucket).items()), zero=0)
