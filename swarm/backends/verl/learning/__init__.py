"""Learning by verl's engine on Ray: rows become verl's batches, ranks compute gradients and hold the sharded weights.

May enter: what changes a policy's weights across ranks. It knows nothing of requests. Every touch of verl's own names
is in `adapter.py`, for functions that a job names in `named.py`, and for the platform that verl lacks in
`cpu_platform.py`.
"""
