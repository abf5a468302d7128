"""All studies in lists; those that nothing was added to as they were kept."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from research.installation.home import Home
from research.installation.studies import RESULTS_VERSION, cached_studies
from studies import EventLog, StudyState

FILE: Final = "listed.json"
CORRUPT: Final = "corrupt"
"""Status of a study whose log cannot be read."""
_FORM: Final = f"4, results {RESULTS_VERSION}"
"""The first number is that of what is kept of a study."""


class ListedStudy(NamedTuple):
    """One study: its line for people, and its summary for scripts."""

    row: tuple[str, ...]
    summary: Mapping[str, Any]


def read_listing(home: Home, log: EventLog) -> list[ListedStudy]:

    def content(state: StudyState) -> dict[str, Any]:
        from research.shown.study import list_row, summary  # what is told of a study, and reads reports for it

        folder = home.study(state.id)
        return {"row": list_row(state, folder), "summary": summary(state, folder)}

    def corrupt(study: str, reason: str) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "study": study, "topic": None, "status": CORRUPT, "reason": reason, "asks": None, "planner_asks": [],
            "declined": False, "said": None, "planner": None, "planner_spent": [], "design_hash": None, "runs": {},
            "progress": None, "verdicts": [], "head": None, "report": None, "elapsed_s": None,
        }  # fmt: skip
        return {"row": [study, CORRUPT, "", "", "", reason], "summary": fields}

    contents = cached_studies(home, log, FILE, _FORM, content, corrupt).values()
    return [ListedStudy(tuple(each["row"]), each["summary"]) for each in contents]
