"""Algorithms: advantages, losses, corrections and metrics, as any backend may use them.

May enter: functions and running sums of rewards, rows and flat tensors. No models, optimisers or layouts of forwards.
"""
