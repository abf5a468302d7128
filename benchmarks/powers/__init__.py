"""Proofs that what the swarm promises holds, a module for each promise with `measure(quick)`.

May enter: what one proof needs. What several need is in `rig`.
"""
