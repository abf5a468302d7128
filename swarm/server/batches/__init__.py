"""Batches: groups, streams, passes over tasks, and which episodes make a step."""
