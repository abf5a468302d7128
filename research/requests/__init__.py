"""What somebody asks to be studied, from wherever: a command line or a form in Prefect.

May enter: reading and refusing a request. What becomes of it is in `research.study`.
"""

from research.requests.beginning import begin_study
from research.requests.resumption import isolation_again, planner_again
from research.requests.topic import DEFAULT_BUDGET, TopicRequest, planner_of, planning_by

__all__ = [
    "DEFAULT_BUDGET", "TopicRequest", "begin_study", "isolation_again", "planner_again", "planner_of", "planning_by",
]  # fmt: skip
