"""Backends: what generates and what learns, behind two protocols.

Only this folder may import torch, transformers, ray, verl or vllm, and only in the modules of one backend:
importing `swarm.backends` itself stays light.
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
