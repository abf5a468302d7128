"""Planners: what may be proposed, what a planner is shown, and the planners that are built in."""

from research.planner.actions import Action, Conclude, Constant, Propose, ProposeDesign, ProposedHypothesis
from research.planner.digest import Digest
from research.planner.factory import PLANNERS, make_planner
from research.planner.protocol import Check, Planner, PlannerTurn

__all__ = [
    "PLANNERS",
    "Action",
    "Check",
    "Conclude",
    "Constant",
    "Digest",
    "Planner",
    "PlannerTurn",
    "Propose",
    "ProposeDesign",
    "ProposedHypothesis",
    "make_planner",
]
