"""Swarm: servers that host a trainable model, and clients that run any agent against them.

Importing this package costs nothing: the client and the environments need aiohttp and pydantic only, and torch,
transformers, ray and verl are imported under `swarm.backends` alone.
"""
