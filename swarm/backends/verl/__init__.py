"""The backend for people who outgrow one machine: verl's learners, and vLLM, spread over Ray.

Promises: what a step learns is what the local backend learns from the same batch, whatever is spread where; a version
serves only once all replicas confirmed it. What is private to verl or vLLM is touched in one place each
(`learning/adapter.py`, `generating/engines/`).

May enter: what asks for devices and puts learners and engines on them. The loss, advantages and metrics are those of
`swarm.backends.algorithms`, rendering is `swarm.backends.rendering`. Importing this imports neither ray, verl nor vllm:
`backend.py` does when it is started.
"""
