"""Containers on this machine's engine."""
