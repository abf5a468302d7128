"""The local backend: one torch module shared by engine and learner (CPU, or one GPU where there is one).

Models are read from folders, never from a hub, so Hugging Face's libraries are told to stay offline before any
of them is imported.

May enter: in this folder what puts the backend together and says what it began with. Sampling goes to `generating`,
updates to `learning`, what both need of the weights to `model`, and what another backend could use to
`swarm.backends.algorithms` or `swarm.backends.rendering`.
"""

import os

from swarm.backends.local.backend import LocalBackend

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

__all__ = ["LocalBackend"]
