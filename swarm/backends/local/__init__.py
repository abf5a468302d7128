"""One torch module for engine and learner."""

import os

from swarm.backends.local.backend import LocalBackend

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

__all__ = ["LocalBackend"]
