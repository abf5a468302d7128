"""The findings of all studies of an installation, in the time that it takes to look for what is new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from research.findings.known import KnownFinding
from research.installation.home import Home
from research.installation.kept_studies import StudyKeeping, StudyReading, checked_files
from research.noise.results_version import RESULTS_VERSION
from studies import EventLog, LogCorrupt, fold

FILE: Final = "findings.json"
_FORM: Final = f"1, results {RESULTS_VERSION}"
"""The first number is that of what is kept of a study."""


@dataclass(frozen=True, slots=True)
class KnownFindings:
    """What is known, the newest study first, each study's rounds in order."""

    findings: tuple[KnownFinding, ...]
    left_out: Mapping[str, str]
    """Studies whose log cannot be read, with what is wrong."""


def known_findings(
    home: Home, log: EventLog, told: Callable[[int, int], None] = lambda done, of: None
) -> KnownFindings:
    """Return the findings of an installation; a study of which nothing moved is not read again.

    `told` hears how many of those that are read anew are done, and of how many.
    """
    contents = StudyKeeping(FILE, _FORM, lambda study: _read_anew(home, log, study)).contents(home, log, told)
    found = (entry for content in contents.values() for entry in content.get("findings", ()))
    left_out = {study: str(content["corrupt"]) for study, content in contents.items() if "corrupt" in content}
    return KnownFindings(tuple(map(KnownFinding.model_validate, found)), left_out)


def _read_anew(home: Home, log: EventLog, study: str) -> StudyReading:
    from research.findings.reading import findings_of  # what judges studies; what was kept needs none of it

    try:
        state = fold(log.read(study))
    except LogCorrupt as error:
        told: dict[str, Any] = {"corrupt": str(error)}
        return StudyReading(lambda: told)
    return StudyReading(
        lambda: {"findings": [entry.model_dump(mode="json") for entry in findings_of(state, home.study(study))]},
        state.head_hash,
        checked_files(state),
    )
