"""Environments that people bring to an installation: found by what they type, copied, drawn once, and named by hash.

May enter: what turns a reference into a brought environment of this installation, and what is measured of one. What an
environment is, and what runs its code, is `swarm.environments`.
"""
