"""Swarm: servers that host a trainable model, and clients that run any agent against them.

Importing this package costs nothing: the client and the environments need aiohttp and pydantic only, and
torch, transformers, ray and verl are imported under `swarm.backends` alone.

Packages of what serves, samples, trains or plays; in this folder itself only what server and client share.
What plans or judges studies goes to `research` and `studies`, what runs containers to `sandboxes`.
"""
