"""What is asked of real actors; nothing here imports Ray, to which a whole backend gives a token first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torch import Tensor


def pids(actors: Sequence[Any]) -> list[int]:
    """The processes of Ray's actors."""
    import ray

    found: list[int] = ray.get([actor.__ray_call__.remote(lambda _: os.getpid()) for actor in actors], timeout=60)
    return found


def exported(learner: Any) -> dict[str, Tensor]:
    import ray

    buckets: Sequence[dict[str, Tensor]] = ray.get(list(learner.export_weights()))
    return {name: tensor for bucket in buckets for name, tensor in bucket.items()}
