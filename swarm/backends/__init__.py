"""Engines and learners."""

from swarm.backends.protocols import Backend, Batch, Chunk, Engine, GenerationRequest, Learner, Sampling, TrainEpisode
from swarm.rendering.messages import BackendError, Renderer
from swarm.timelines.node import TrainRow

__all__ = [
    "Backend",
    "BackendError",
    "Batch",
    "Chunk",
    "Engine",
    "GenerationRequest",
    "Learner",
    "Renderer",
    "Sampling",
    "TrainEpisode",
    "TrainRow",
]
