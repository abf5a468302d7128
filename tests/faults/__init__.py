"""Faults of real processes on loopback: what is killed where, and what must hold afterwards."""
