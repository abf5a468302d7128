"""Agents of a user's own, run in the foreground on a swarm server: `ajet client run`."""
