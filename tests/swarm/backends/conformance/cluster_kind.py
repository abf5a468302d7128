"""The kind of the backend `verl`, in the environment where its packages are (`make test-verl`), and its actors.

Nothing here imports Ray as it is imported: a whole backend gives that a token first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from swarm.backends.protocols import Backend
from swarm.backends.verl.backend import VerlBackend
from swarm.rendering.messages import BackendError
from tests.swarm.backends.conformance.kinds import Kind, Oracle


def pids(actors: Sequence[Any]) -> list[int]:
    """The processes of Ray's actors."""
    import ray

    found: list[int] = ray.get([actor.__ray_call__.remote(lambda _: os.getpid()) for actor in actors], timeout=60)
    return found


def exported(learner: Any) -> dict[str, Tensor]:
    import ray

    return {name: tensor for bucket in learner.export_weights() for name, tensor in ray.get(bucket).items()}


def _published_oracle(backend: Backend) -> Oracle:
    """Ask a plain transformers model with the weights that the learner publishes now."""
    own, models = cast(VerlBackend, backend), list[Any]()

    def present() -> Any:
        from transformers import AutoModelForCausalLM

        if not models:
            folder = Path(own.job.model.path)
            models.append(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())
        missing, unknown = models[0].load_state_dict(exported(own.learner), strict=False)
        assert (list(missing), list(unknown)) == ([], [])
        return models[0]

    return Oracle(present)


def _publish_too_little(backend: Backend) -> None:
    """Publish a version that lacks all weights: no replica may serve it, nor go on with the older one in its name."""
    import ray

    own = cast(VerlBackend, backend)
    with suppress(BackendError):
        own.engine.publish(own.learner.version + 1, [ray.put({})])


VERL = Kind(
    "verl", {"backend": "verl", "device": "cpu"}, _published_oracle, _publish_too_little,
    {"trees": "verl's engine computes each row by itself, and a job that asks for trees is refused"}, tolerance=1e-4,
    model="wide", slow=True,
)  # fmt: skip
