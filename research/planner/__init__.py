"""Planners: what may be proposed, what a planner is shown, and the planners that are built in."""
