"""Planners: what a planner is shown, and the seam that every planner stands behind."""

from research.planner.digest import Digest
from research.planner.protocol import Check, Planner, PlannerTurn

__all__ = ["Check", "Digest", "Planner", "PlannerTurn"]
