"""All studies of an installation in a line each, in the time that it takes to look for what is new.

What a study's log and files came to is kept in `listed.json` of the installation, with the hash of the log's head,
which vouches for all before it, and with size and times of each file that a verdict was checked against. It is taken
from there as long as all of these are the same, and computed anew where any of them moved. So the list is always that
of the log which the head stands for; whether each event of it is still as it was is for `ajet study verify` to say. A
log that cannot be read is kept nowhere, and read each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from research.cli.study.summary import CORRUPT, short_verdicts, summary, unreadable
from research.files import write_bytes
from research.installation.home import Home
from research.noise.bank import RESULTS_VERSION
from research.study.progress import progress_of
from studies import EventLog, LogCorrupt, StudyState, fold
from studies.records.base import Record

FILE = "listed.json"
_FORM = f"1, ajet {version('ajet')}, results {RESULTS_VERSION}"
"""What has to be the same for what was kept to be what would be computed; the first number is that of this file."""


class ListedStudy(NamedTuple):
    """One study: its line for people, and its summary for scripts."""

    row: tuple[str, ...]
    summary: Mapping[str, Any]


class _Entry(Record):
    """What is kept of one study."""

    head: str
    stamps: dict[str, list[int] | None]
    row: tuple[str, ...]
    summary: dict[str, Any]


class _Kept(Record):
    """What is kept of an installation's studies."""

    form: str
    home: str
    studies: dict[str, _Entry]


def listed(home: Home, log: EventLog, told: Callable[[int, int], None] = lambda done, of: None) -> list[ListedStudy]:
    """Return all studies, newest first; `told` hears how many of those that are read anew are done, and of how many."""
    heads, before = log.heads(), _read(home)
    found: dict[str, ListedStudy] = {}
    entries = {study: entry for study, entry in before.items() if _holds(entry, heads.get(study), home.study(study))}
    anew = [study for study in heads if study not in entries]
    for done, study in enumerate(anew):
        told(done, len(anew))
        try:
            entries[study] = _computed(home, log, study)
        except LogCorrupt as error:
            found[study] = ListedStudy((study, CORRUPT, "", "", "", str(error)), unreadable(study, error))
    if entries != before:
        _write(home, entries)
    return [found.get(study) or ListedStudy(entries[study].row, entries[study].summary) for study in heads]


def _holds(entry: _Entry, head: str | None, folder: Path) -> bool:
    """Return whether neither the log nor a file moved since."""
    return entry.head == head and entry.stamps == _stamps(folder, [name for name in entry.stamps if name])


def _computed(home: Home, log: EventLog, study: str) -> _Entry:
    state, folder = fold(log.read(study)), home.study(study)
    stamps = _stamps(folder, _checked(state))  # before they are read: what changes meanwhile is read again
    return _Entry(head=state.head_hash, stamps=stamps, row=_row(state, folder), summary=summary(state, folder))


def _row(state: StudyState, folder: Path) -> tuple[str, ...]:
    done = progress_of(state)
    status = "declined" if state.declined else state.status
    runs = f"{done.done}/{done.most or 0}"
    return state.id, status, runs, short_verdicts(state, folder), state.created[:16], state.topic


def _checked(state: StudyState) -> list[str]:
    """Return the files of a study's folder that a verdict is checked against before it is shown."""
    if not state.verdicts:
        return []
    evaluations = (run.collected["evaluation"]["path"] for run in state.runs.values() if run.collected is not None)
    return [*([] if state.lock_file is None else [state.lock_file]), *evaluations]


def _stamps(folder: Path, names: list[str]) -> dict[str, list[int] | None]:
    """Return size, times and place on the disk of files, None for one that cannot be had; of the folder, that it is."""
    return {name: _stamp(folder / name) for name in names} | {"": [1] if folder.is_dir() else None}


def _stamp(path: Path) -> list[int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _read(home: Home) -> dict[str, _Entry]:
    """Return what was kept; nothing where that is of another version or place, or no such file."""
    try:
        kept = _Kept.model_validate_json((home.path / FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return kept.studies if (kept.form, kept.home) == (_FORM, str(home.path)) else {}


def _write(home: Home, entries: dict[str, _Entry]) -> None:
    """Keep what was found; a disk that takes nothing only makes the next list slow."""
    kept = _Kept(form=_FORM, home=str(home.path), studies=entries)
    with suppress(OSError):
        write_bytes(home.path / FILE, kept.model_dump_json().encode(), durable=False)  # in the order of its fields
