"""Containers or processes for clients."""
