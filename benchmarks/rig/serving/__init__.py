"""Swarm servers as processes, and clients and load that cost little beside them."""
