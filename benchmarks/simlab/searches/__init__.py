"""Searches on one world at one budget: the shipped one without a study around it, and the baselines beside it."""
