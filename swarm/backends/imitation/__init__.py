"""Imitation: the warm start of a model from a folder, on demonstrations of the environment that it is then trained on.

May enter: what makes such a model. Once made it is a folder like that of any other model; the warm start of tiny models
is in `swarm.backends.tiny`.
"""
