"""The local backend: loads a model and makes its engine, learner and renderer.

Promises: nothing heavy is imported or loaded before `start`, and then in a thread, so that a server answers while
torch loads; whatever is wrong with the model is one BackendError. Does not know HTTP, episodes or steps.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from swarm.backends.protocols import Engine, Learner
from swarm.errors import InvalidRequest
from swarm.job import Job, PathModel, TinyModel
from swarm.models import model_place, require_model_folder
from swarm.rendering.messages import BackendError, Message

if TYPE_CHECKING:
    from swarm.backends.local.engine import LocalEngine
    from swarm.backends.local.learner import LocalLearner
    from swarm.backends.local.policy import Policy
    from swarm.rendering.renderer import HFRenderer


PROBS_TOLERANCE: Final = {"float32": 1e-3, "bfloat16": 0.1}
"""Largest accepted difference of a sampled token's two probabilities, by the type of activations, which engine and
learner round at different places: far above that of the default tiny model on a CPU, below 1e-6 and 0.01."""
_CONVERSATION: Final[tuple[Message, ...]] = (
    {"role": "user", "content": "Which of these words comes last: river, lamp, green? Answer with that word alone."},
    {"role": "assistant", "content": "green"},
    {"role": "user", "content": "And how many days does it take to walk from here to the sea and back again?"},
)
log = logging.getLogger(__name__)


EngineT = TypeVar("EngineT", bound=Engine)
LearnerT = TypeVar("LearnerT", bound=Learner)


@dataclass(frozen=True, slots=True)
class Parts(Generic[EngineT, LearnerT]):
    """What a backend has once it is started."""

    engine: EngineT
    learner: LearnerT
    renderer: HFRenderer
    provenance: Mapping[str, str]


class ModelBackend(Generic[EngineT, LearnerT]):
    """What the backends of a real model share of `Backend`; models made on the spot are kept under `models`."""

    def __init__(self, job: Job, models: Path) -> None:
        self.job = job
        self._models = models
        model = job.model
        self.model_name = Path(model.path).name if isinstance(model, PathModel) else f"tiny-{job.environment}"
        self.probs_tolerance = PROBS_TOLERANCE[job.dtype]
        self._started: Parts[EngineT, LearnerT] | None = None

    @property
    def _parts(self) -> Parts[EngineT, LearnerT]:
        if self._started is None:
            raise BackendError(f"the {self.job.backend} backend is not started: await start() first")
        return self._started

    @property
    def engine(self) -> EngineT:
        return self._parts.engine

    @property
    def learner(self) -> LearnerT:
        return self._parts.learner

    @property
    def renderer(self) -> HFRenderer:
        return self._parts.renderer

    @property
    def provenance(self) -> Mapping[str, str]:
        return self._parts.provenance


class LocalBackend(ModelBackend["LocalEngine", "LocalLearner"]):
    """Implements `Backend` by one module in this process."""

    @property
    def policy(self) -> Policy:
        return self.learner.policy

    def publish(self) -> None:
        """Do nothing: engine and learner share one module, so that an update serves as soon as it is made."""

    async def start(self) -> None:
        if self._started is None:
            self._started = await asyncio.to_thread(_load, self.job, self._models)
            await self._started.engine.start()

    async def stop(self) -> None:
        parts, self._started = self._started, None
        if parts is not None:
            await parts.engine.stop()

    def weights(self) -> str | None:
        from swarm.backends.local.loading import serving_hash

        return serving_hash(self.policy.model)

    def failure(self) -> str | None:
        return self._started.engine.failure() if self._started else None


def _load(job: Job, models: Path) -> Parts[LocalEngine, LocalLearner]:
    was_enabled = gc.isenabled()
    gc.disable()  # torch and transformers make very many objects, all of which stay
    try:
        return _load_parts(job, models)
    finally:
        if was_enabled:
            gc.enable()


def _load_parts(job: Job, models: Path) -> Parts[LocalEngine, LocalLearner]:
    # Read when torch is first imported. Threads that spin while they wait for one another take the cores from whoever
    # would let the last one end: beside other work two of them took more than twenty times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    from transformers.utils.logging import disable_progress_bar

    from swarm.backends.local.batcher import Batcher
    from swarm.backends.local.engine import LocalEngine
    from swarm.backends.local.kv_cache import count_slots
    from swarm.backends.local.learner import LocalLearner
    from swarm.backends.local.loading import load_policy, provenance
    from swarm.backends.local.reference import check_rows, check_slots
    from swarm.rendering.guides import Guides
    from swarm.rendering.renderer import load_renderer

    disable_progress_bar()
    folder = base_model(job, models)
    renderer = load_renderer(folder)
    policy = load_policy(
        folder, job, ids=renderer.ids, text=renderer.encode(renderer.render(_CONVERSATION, generation_prompt=True))
    )
    check_rows(policy, job.max_context)
    check_slots(policy)
    slots = count_slots(policy.cache_shape, policy.dtype, job.max_context, job.kv_cache_bytes, job.max_concurrency)
    batcher = Batcher(policy, slots=slots, positions=job.max_context, seed=job.seed)
    guides = Guides(renderer.encoder, renderer.stop_ids, policy.vocab_size) if find_spec("llguidance") else None
    engine = LocalEngine(policy, batcher, job.max_context, guides=guides)
    learner = LocalLearner(policy, job, {"sampling": batcher.generator})
    return Parts(engine, learner, renderer, provenance(policy.model, renderer.template))


def base_model(job: Job, models: Path) -> Path:
    """Return the folder of the model that the job's training begins with, made if need be; raise BackendError."""
    if job.start_from is None:
        return _ensure_model(job, models)
    from swarm.backends.local.loading import require_compatible_start

    start, bare = model_place(job.start_from, models), job.model.model_copy(update={"warm_start_steps": 0})
    require_compatible_start(start, _ensure_model(job.model_copy(update={"model": bare}), models))
    return start


def _ensure_model(job: Job, models: Path) -> Path:
    if isinstance(job.model, TinyModel):
        from swarm.backends.tiny_model import ensure_tiny, require_context

        require_context(job.max_context)  # before its making, which takes a while
        try:
            return ensure_tiny(job.model, job.environment, models, _log_warm_start)
        except (OSError, InvalidRequest) as error:
            raise BackendError(f"the tiny model could not be made under {models}: {error}") from error
    try:
        require_model_folder(folder := model_place(job.model.path, models))
    except InvalidRequest as error:
        raise BackendError(str(error)) from error
    if job.model.warm_start_steps:
        from swarm.backends.local.warm_start import ensure_warm_start

        try:
            return ensure_warm_start(job, models, _log_warm_start)
        except (OSError, InvalidRequest) as error:
            raise BackendError(f"the model could not be warm-started under {models}: {error}") from error
    return folder


def _log_warm_start(done: int, of: int) -> None:
    if 10 * done // of > 10 * (done - 1) // of:
        log.info("event=warm_start step=%d/%d", done, of)
