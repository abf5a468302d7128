"""Backends: an engine that generates and a learner that trains one policy, behind the protocols of `protocols.py`.

Only this folder may import torch, transformers, ray, verl or vllm, and only in the modules of one backend:
importing `swarm.backends` itself stays light. `local` is the backend for training, `fake` a scripted one for tests of
the server; `algorithms`, `rendering` and `tiny` serve any backend.

May enter: a package for each backend, and packages that serve any of them; in this folder the protocols alone.
Episodes, leases and HTTP are in `swarm.server`. To add a backend from outside: a package with an entry point in
`ajet.backends`, a callable of a job and the folder of models that returns a `Backend` (`protocols.py`); here: the same,
its name in `BUILT_IN_BACKENDS` (`swarm/entry_points.py`) and a branch of `make_backend`
(`swarm/server/service/backend_factory.py`).
"""

from swarm.backends.protocols import (
    Backend,
    BackendError,
    Batch,
    Chunk,
    Engine,
    GenerationRequest,
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
    "GenerationRequest",
    "Learner",
    "Renderer",
    "Sampling",
    "TrainEpisode",
    "TrainRow",
]
