"""Checks: what the data themselves say against a comparison, by rules that no verdict is needed for."""
