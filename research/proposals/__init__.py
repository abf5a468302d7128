"""Typed proposals, by flags or by a planner."""
