"""Writing down that a study begins."""

from __future__ import annotations

from pathlib import Path

from research.environments.record import brought_among
from research.installation.home import Home, home_error
from research.models.checking import checks_in
from research.study.session import StudyRequest, create_study
from studies import EventLog


def begin_study(home: Home, log: EventLog, study: str, request: StudyRequest) -> None:
    """Append `study.created`; the environments that it names are there and unchanged, and are not removed after it.

    Its folder is made first: it says to which of the installations that may share the log the study belongs. Raises
    BadEnvironment, InvalidRequest or HomeError.
    """
    with home.beginning():
        for brought in brought_among(request.wanted.brought):
            brought.require_unchanged()
        _make(home.study(study))
        create_study(log, study, request, checks_in(home.models))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise home_error(folder, error) from error
