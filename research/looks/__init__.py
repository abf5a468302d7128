"""Looks: what a planner may look at in what the harness collected of its study, read-only, quoted and capped.

May enter: what one look shows, and how collected files are read for it. The seam that planners know is in
`research.planner.looks`; how often a model may look is in `research.llm_planner`.
"""

from research.looks.desk import StudyLooks

__all__ = ["StudyLooks"]
