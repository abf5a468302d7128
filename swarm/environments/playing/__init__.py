"""Playing tasks over a swarm server: the environments' own agent, agents and rewards from files, and evaluation.

May enter: what carries tasks, messages and outcomes between environments and `swarm.client`. Knows no environment by
name.
"""
