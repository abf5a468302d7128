"""Algorithms: advantages, losses, corrections and metrics, as any backend may use them.

May enter: functions and running sums of rewards, rows and flat tensors. No models, optimisers or layouts of forwards.
To add an advantage estimator: its name in `Job.algorithm` (`swarm/job.py`), a case of `advantages` (`advantages.py`)
and a row of docs/algorithms.md.
"""
