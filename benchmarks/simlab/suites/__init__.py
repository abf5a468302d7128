"""Suites: each asks one question of the whole system, and counts the answers over many flights."""
