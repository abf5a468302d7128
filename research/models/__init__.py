"""Models of this installation: those that can be fetched, those that are here, what a check found of one.

May enter: what brings a model folder here or starts something that looks at one; each loads nothing itself, but starts
a process under `swarm.backends`. What can be told of a folder by its files alone is in `swarm.models`. To make another
model fetchable: one entry of `FETCHABLE` (`registry.py`).
"""
