"""Backends: an engine that generates and a learner that trains one policy, behind the protocols of `protocols.py`.

Only this folder may import torch, transformers, ray, verl or vllm, and only in the modules of one backend:
importing `swarm.backends` itself stays light. `local` is the backend for training, `fake` a scripted one for tests of
the server; `algorithms`, `rendering` and `tiny` serve any backend.
"""

from swarm.backends.protocols import (
    Backend,
    BackendError,
    Batch,
    Chunk,
    Engine,
    Learner,
    Renderer,
    Sampling,
    TrainEpisode,
    TrainRow,
)

__all__ = [
    "Backend",
    "BackendError",
    "Batch",
    "Chunk",
    "Engine",
    "Learner",
    "Renderer",
    "Sampling",
    "TrainEpisode",
    "TrainRow",
]
