"""The local backend: one torch module shared by engine and learner (CPU, or one GPU where there is one)."""

from swarm.backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]
