"""A call of the model: its prompt, its sampling plan, its answers, and retries of the same request.

May enter: what happens between a request that was read and its reply. Wire formats are in `swarm.server.dialects`,
routes and statuses in `swarm.server.http`, the episode of a call in `swarm.server.episodes`.
"""
