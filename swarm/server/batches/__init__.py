"""Batches: groups, streams, passes over tasks, and which episodes make a step.

May enter: how episodes become groups, groups a batch, and tasks the turns of a stream. Leases and the end of an episode
are in `swarm.server.episodes`; what is done with a batch is in `swarm.server.training`.
"""
