"""A check of an environment: drawn twice, played by players that learn nothing, and with a model on a real server.

May enter: what measures an environment, and what is wrong with one. What was measured is kept by
`research.environments.measured`.
"""
