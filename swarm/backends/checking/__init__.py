"""Checking: a model folder loaded as a server loads it, and what it then does, measured on a few short episodes.

May enter: what measures a started local backend, in a process of its own (`main.py`). What it found is a
`swarm.models.ModelCheck`; how the backend checks itself is in `swarm.backends.local`.
"""
