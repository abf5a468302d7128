"""`ajet study list`: all studies, those that nothing was added to as they were kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from rich.text import Text

from research.cli.app import Json, columns, console, print_json
from research.cli.lookup import open_installation
from research.installation.home import Home
from research.installation.studies import RESULTS_VERSION, StudyCache, StudyReading
from studies import EventLog, LogCorrupt, fold

FILE: Final = "listed.json"
_FORM: Final = f"2, results {RESULTS_VERSION}"
"""The first number is that of what is kept of a study."""


class ListedStudy(NamedTuple):
    """One study: its line for people, and its summary for scripts."""

    row: tuple[str, ...]
    summary: Mapping[str, Any]


def read_listing(
    home: Home, log: EventLog, on_progress: Callable[[int, int], None] = lambda done, of: None
) -> list[ListedStudy]:
    """Return all studies, newest first; `on_progress` hears of those that are read anew (`StudyCache.contents`)."""
    keeping = StudyCache(FILE, _FORM, lambda study: _read_study(home, log, study))
    found = keeping.contents(home, log, on_progress).values()
    return [ListedStudy(tuple(content["row"]), content["summary"]) for content in found]


def _read_study(home: Home, log: EventLog, study: str) -> StudyReading:
    from research.cli.studies import StudyLine, unreadable_line  # what is told of a study, and reads reports for it

    try:
        line = StudyLine(fold(log.read(study)), home.study(study))
    except LogCorrupt as error:
        content = _json_row(*unreadable_line(study, error))
        return StudyReading(lambda: content)
    return StudyReading(lambda: _json_row(line.row(), line.summary()), line.state.head_hash, line.evidence_files())


def _json_row(row: tuple[str, ...], summary: Mapping[str, Any]) -> dict[str, Any]:
    return {"row": list(row), "summary": dict(summary)}


def list_studies(json: Json = False) -> None:
    """List all studies, newest first; one whose log cannot be read is shown as `corrupt`, with the reason.

    What nothing was added to since the last list is not read again; `ajet study verify` reads all of a study.

    Examples:

        ajet study list

        ajet study list --json
    """
    home, log = open_installation()
    studies = _read_with_spinner(home, log, json)
    if json:
        print_json([line.summary for line in studies])
        return
    table = columns(("study", "status", "runs", "verdicts", "created", "topic"), [line.row for line in studies])
    console().print(table if studies else 'no study yet; begin one with: ajet research "..."')


def _read_with_spinner(home: Home, log: EventLog, json: bool) -> list[ListedStudy]:
    if json or not console().is_terminal:
        return read_listing(home, log)
    with console().status("reading studies") as status:
        return read_listing(home, log, lambda done, of: status.update(Text(f"reading study {done + 1} of {of}")))
