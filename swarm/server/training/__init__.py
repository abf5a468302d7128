"""Training: the step loop, its checkpoints, metrics and trackers.

May enter: what happens to a batch once it is complete, and what is recorded of a step. Which episodes make a batch is
in `swarm.server.batches`; losses and advantages are in `swarm.backends.algorithms`.
"""
