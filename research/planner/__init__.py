"""Planners: what a planner is shown, and the seam that every planner stands behind.

May enter: what holds for every planner. One planner's own code is in `research.rule_planner` or `research.llm_planner`;
the actions that planners return are in `research.proposals`.
"""

from research.planner.digest import Digest
from research.planner.protocol import Check, Planner, PlannerTurn

__all__ = ["Check", "Digest", "Planner", "PlannerTurn"]
