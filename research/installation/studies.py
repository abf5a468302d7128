"""All studies, cached by head of log.

What a study's log and files came to is kept in a file of the installation, with the hash of the log's head, which
vouches for all before it, and with size and times of each file that a verdict was checked against. It is computed anew
where any of these moved; whether each event is still as it was is for `ajet study verify` to say. A log that cannot be
read is kept nowhere, and read each time.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from research.errors import BadInput
from research.files import write_bytes
from research.installation.home import Home
from studies import EventLog, LogCorrupt, StudyState, fold
from studies.records.base import Record

RESULTS_VERSION: Final = 1
"""Raised whenever environments, training or evaluation change what a job comes to: older runs say nothing then."""
VERSION_KEY: Final = "results"
"""Where `study.created` has the results version, beside the versions of packages."""
FIRST_VERSION: Final = 1
"""The results version of studies whose logs name none, as they were begun before there was a second."""


def every_study(log: EventLog) -> Iterator[tuple[str, StudyState | LogCorrupt]]:
    """Yield each study's name and state, or what is wrong with its log, the newest first."""
    for study in log.studies():
        try:
            yield study, fold(log.read(study))
        except LogCorrupt as error:
            yield study, error


def readable_studies(log: EventLog) -> Iterator[StudyState]:
    for _, state in every_study(log):
        if isinstance(state, StudyState):
            yield state


def find_study(log: EventLog, name: str | None) -> str:
    """Return the id of the study that `name` names or begins; the newest when it is None."""
    known = log.studies()
    if not known:
        raise BadInput('there is no study yet; begin one with: ajet research "..."')
    if name is None:
        return known[0]
    fitting = [one for one in known if one == name] or [one for one in known if name and one.startswith(name)]
    if len(fitting) != 1:
        found = "none" if not fitting else ", ".join(fitting[:5])
        raise BadInput(f"expected one study named {name!r}, found {found}; `ajet study list` shows all")
    return fitting[0]


class _Entry(Record):
    head: str
    stamps: dict[str, list[int] | None]
    content: dict[str, Any]


class _CacheFile(Record):
    form: str
    home: str
    studies: dict[str, _Entry]


def cached_studies(
    home: Home, log: EventLog, file: str, form: str, content: Callable[[StudyState], Mapping[str, Any]],
    corrupt: Callable[[str, str], Mapping[str, Any]],
) -> dict[str, Mapping[str, Any]]:  # fmt: skip
    """Return what each study comes to, as JSON values that are kept in a `file` of the installation, the newest first.
    `content` says it of a study, `corrupt` of one whose log cannot be read. What another `form` was kept by is left."""
    heads, path = log.heads(), home.path / file
    form = f"{form}, ajet {version('ajet')}"
    try:
        kept = _CacheFile.model_validate_json(path.read_bytes())
        before = kept.studies if (kept.form, kept.home) == (form, str(home.path)) else {}
    except (OSError, ValueError):  # there is no such file, or one of another version
        before = {}
    entries = {
        name: entry
        for name, entry in before.items()
        if entry.head == heads.get(name)
        and entry.stamps == _stamps(home.study(name), [name for name in entry.stamps if name])
    }
    contents: dict[str, Mapping[str, Any]] = {name: entry.content for name, entry in entries.items()}
    for study in [study for study in heads if study not in entries]:
        try:
            state = fold(log.read(study))
        except LogCorrupt as error:
            contents[study] = corrupt(study, str(error))
            continue
        stamps = _stamps(home.study(study), _evidence_files(state))  # before: what changes meanwhile is read again
        contents[study] = content(state)
        entries[study] = _Entry(head=state.head_hash, stamps=stamps, content=dict(contents[study]))
    if entries != before:
        made = _CacheFile(form=form, home=str(home.path), studies=entries)
        with suppress(OSError):  # a disk that takes nothing only makes the next look slow
            write_bytes(path, made.model_dump_json().encode(), durable=False)  # in its fields' order
    return {study: contents[study] for study in heads}


def _evidence_files(state: StudyState) -> list[str]:
    rounds = [entry for entry in state.rounds if entry.verdicts]
    locks = [entry.lock_file for entry in rounds if entry.lock_file is not None]
    runs = (run for entry in rounds for run in entry.runs.values())
    return [*locks, *(run.collected["evaluation"]["path"] for run in runs if run.collected is not None)]


def _stamps(folder: Path, names: Sequence[str]) -> dict[str, list[int] | None]:
    """Return size, times and place on the disk of files, None for one that cannot be had; of the folder, that it is."""
    stamps: dict[str, list[int] | None] = {"": [1] if folder.is_dir() else None}
    for name in names:
        try:
            found = os.stat(os.path.join(folder, name))  # of thousands: paths as objects take as long as the looks
            stamps[name] = [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
        except OSError:
            stamps[name] = None
    return stamps
