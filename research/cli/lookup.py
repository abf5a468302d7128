"""Which study of this installation a command means."""

from __future__ import annotations

from typing import Annotated

import typer

from research.installation.home import Home
from research.installation.studies import find_study
from studies import EventLog, StudyState, fold

Name = Annotated[str | None, typer.Argument(help="Study id or its beginning; the newest when left out.")]


def open_installation() -> tuple[Home, EventLog]:
    home = Home.locate().for_reading()
    return home, EventLog(home.database)


def open_study(name: str | None) -> tuple[Home, EventLog, StudyState]:
    """Return the study that is meant, with the installation and log that it is of; raise BadInput."""
    home, log = open_installation()
    return home, log, fold(log.read(find_study(log, name)))
