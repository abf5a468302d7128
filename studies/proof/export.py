"""A study as a folder that verifies elsewhere: log, lock, runs' files and report.

What is in it is what `verify` reads, byte for byte. Planning turns, attempts' own folders and the installation's
secrets stay where they are. The folder is there whole or not at all.
"""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, Final

from studies.errors import StudiesError
from studies.log.event import FIELDS, find_corruption
from studies.log.event_log import lock_name
from studies.log.fold import fold
from studies.log.study import StudyState
from studies.proof.evidence import FILES, Discrepancy
from studies.proof.verify import Rows
from studies.records.alpha import MOST_ROUNDS
from studies.records.base import canonical
from studies.records.design import MOST_REPAIRS
from studies.report.build import PAGES, file_hashes

EVENTS: Final = "events.jsonl"
"""The log: a line of canonical JSON for each event, oldest first; `payload` is the JSON value itself."""
REVIEWS: Final = "reviews.jsonl"
"""What its readers said, in the same form; not there where they said nothing."""
README: Final = "README.md"
_NUMBERED = re.compile(r"[^\W_]*\d[^\W_]*")


def export(study: str, rows: Rows, folder: Path, to: Path, reviews: Rows = ()) -> tuple[str, ...]:
    """Write a study to the new folder `to` and return the paths in it; StudiesError when that cannot be."""
    if to.exists():
        raise StudiesError(f"expected a folder that is not there yet; found {to}. Name another, or remove it")
    state = fold(find_corruption(study, rows)[0])
    draft = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        texts = {EVENTS: _lines(rows), README: readme(state, reviews)} | ({REVIEWS: _lines(reviews)} if reviews else {})
        for name, text in texts.items():
            (draft / name).write_text(text, encoding="utf-8", newline="\n")
        known = _files(state, folder)
        names = [name for name, sha256 in known.items() if sha256 or (folder / name).is_file()]
        for name in names:
            path, copy = folder / name, draft / name
            data = path.read_bytes()
            if known[name] and hashlib.sha256(data).hexdigest() != known[name]:
                raise StudiesError(
                    f"expected {path} as the log says it is; it was changed meanwhile. Verify, and export again"
                )
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(data)
        draft.rename(to)
    except OSError as error:
        raise StudiesError(f"could not export to {to}: {error.strerror or error}. Nothing was left there") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return (*texts, *names)


def _lines(rows: Rows) -> str:
    return "".join(f"{canonical({**row, 'payload': json.loads(row['payload'])})}\n" for row in rows)


def read_export(folder: Path) -> tuple[str, list[dict[str, Any]], list[Discrepancy]]:
    """Return the study of an exported folder, its events, and broken lines; StudiesError for what is no plain file."""
    locks = (lock_name(number, repair) for number in range(1, MOST_ROUNDS + 1) for repair in range(MOST_REPAIRS + 1))
    for name in (EVENTS, REVIEWS, README, *locks, *PAGES, "figures", "runs"):
        for place in (folder / name, *(folder / name).rglob("*")):
            if place.is_symlink() or (place.exists() and not place.is_file() and not place.is_dir()):
                raise StudiesError(
                    f"expected plain files in an export; found {place}, which is none. Copy the export whole"
                )
    rows, drifts = _read_lines(folder / EVENTS)
    if not rows:
        raise StudiesError(f"expected the events of a study in {folder / EVENTS}; found none that can be read")
    return str(rows[0]["study"]), rows, drifts + _check_readme(folder, rows)


def read_exported_reviews(folder: Path) -> tuple[list[dict[str, Any]], list[Discrepancy]]:
    """Return the reviews of an exported folder, and broken lines; none where no file of them lies there."""
    return _read_lines(folder / REVIEWS) if (folder / REVIEWS).exists() else ([], [])


def _read_lines(path: Path) -> tuple[list[dict[str, Any]], list[Discrepancy]]:
    try:
        lines = path.read_bytes().decode(errors="replace").removesuffix("\n").split("\n")
    except OSError as error:
        raise StudiesError(
            f"expected an exported study with its {path.name} in {path.parent}; {error.strerror}"
        ) from error
    rows, drifts = list[dict[str, Any]](), list[Discrepancy]()
    for number, line in enumerate(lines, start=1):
        place = f"{path.name}, line {number}"
        try:
            found = json.loads(line)
            row = {name: found[name] for name in FIELDS} | {"payload": canonical(found["payload"])}
            exact = canonical(found).encode() == line.encode() and len(found) == len(row)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            drifts.append(Discrepancy(place, f"it cannot be read ({type(error).__name__}: {error})"))
            continue
        rows.append(row)
        if not exact:
            drifts.append(Discrepancy(place, "it is not as an export writes it"))
    return rows, drifts


def _check_readme(folder: Path, rows: Rows) -> list[Discrepancy]:
    try:
        said = (folder / README).read_text(encoding="utf-8", errors="replace")
        reviews, _ = read_exported_reviews(folder)
        expected = readme(fold(find_corruption(str(rows[0]["study"]), rows)[0]), reviews)
    except (OSError, StudiesError):
        return []  # without it, or without a log that can be followed, there is nothing to compare
    for chain, name, lead in ((rows, EVENTS, "--head "), (reviews, REVIEWS, "up to ")):
        if chain and f"{lead}{chain[-1]['hash']}" not in said:
            return [Discrepancy(README, f"it does not name the head of {name}, {str(chain[-1]['hash'])[:12]}")]
    strange = sorted(set(_NUMBERED.findall(said)) - set(_NUMBERED.findall(expected)))
    return [Discrepancy(README, f"it holds {', '.join(strange)}, which the log does not give")] if strange else []


def is_export(folder: Path) -> bool:
    return (folder / EVENTS).is_file()


def readme(state: StudyState, reviews: Rows = ()) -> str:
    later = ", ".join(f"`{each.lock_file}`" for each in state.rounds[1:] if each.lock_file)
    return "\n".join((
        f"# Study {state.id}", "", f"> {' '.join(state.topic.split())}", "",
        "Verify it, in this folder or in a copy of it:", "",
        f"    ajet study verify . --head {state.head_hash}", "",
        "That computes every number, hash, level and verdict again from these files and writes nothing. The head hash",
        "must come from somewhere else than this folder to prove that nobody computed all of it anew.", "",
        f"- `{EVENTS}`: the event log, {state.event_count} events, each with the hash of the one before it",
        *([f"- `{REVIEWS}`: what its readers said, {len(reviews)} up to {reviews[-1]['hash']}"] if reviews else []),
        "- `design.lock`: the design as it was locked before the first run that counts",
        *([f"- {later}: those of later rounds, each with the hash of the one before it"] if later else []),
        "- `runs/`: of each run what the tracker logged (snapshot) and each episode's outcome (evaluation)",
        "- `report.md`, `report.html`, `figures/`: the report", "",
        "The log holds the command that was typed, people's notes, the planner's words, the versions of libraries and",
        "what the machine is; it is whole, because a chain of hashes cannot be left in part.", "",
    ))  # fmt: skip


def _files(state: StudyState, folder: Path) -> dict[str, str | None]:
    files: dict[str, str | None] = dict(lock for each in state.every_round for lock in each.locks)
    for run in state.every_run.values():
        for record in (run.collected[kind] for kind in FILES) if run.collected else ():
            files[str(record["path"])] = str(record["sha256"]) if run.invalid is None else None
    report = file_hashes(state.newest_report)
    drawn = sorted(f"figures/{path.name}" for path in (folder / "figures").glob("*.svg")) if report else []
    return files | report | {name: None for name in drawn if name not in report}
