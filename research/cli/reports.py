"""Report, verify, export."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from research.cli.app import Json, Name, answer, open_study
from research.controller import interventions
from research.controller.session import require_files
from research.errors import BadInput
from research.installation.home import Home
from research.installation.studies import find_study
from research.shown.study import describe_resume, report_paths
from research.text import warn
from studies import EventLog, StudyState, fold
from studies.log.event import find_corruption
from studies.log.reviews import ReviewLog
from studies.proof import Proof
from studies.proof import export as export_study
from studies.proof import verify as verify_study
from studies.proof.export import is_export, read_export, read_exported_reviews

DRIFTED: Final = 1
"""Exit code of a study that is not what it says."""
_HEAD = re.compile(r"[0-9a-fA-F]{8,64}")


def verify(
    name: Annotated[
        str | None,
        typer.Argument(help="Study id or its beginning, or the folder of an export; the newest study when left out."),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="The head hash a study ended with, or its first digits (8 to 64)."),
    ] = None,
    json: Json = False,
) -> None:
    """Compute every number, hash, lock, level and verdict of a study again from its files and its log.

    Each thing that is not what it must be is named. Nothing is written, so a read-only disk will do. A change is found
    unless it was carried through all that follows from it; `--head` finds a log that was cut off or written anew.

    Exit codes: 0 it holds; 1 it does not; 2 bad input.

    Examples:
        ajet study verify
        ajet study verify larger-group --head 3f9a1c5502de
        ajet study verify studies/gallery/learning-rate-in-guess --json
    """
    if head is not None and not _HEAD.fullmatch(head):
        raise BadInput(f"expected 8 to 64 hexadecimal digits of a head hash; found {head[:80]!r}")
    proof, _ = _prove(name, head)
    told = {"study": proof.study, "holds": proof.holds, "head": proof.head}
    answer(json, {**told, "drifts": proof.drifts, "held": proof.held, "notes": proof.notes}, _lines(proof))
    if not proof.holds:
        raise typer.Exit(DRIFTED)


def _prove(name: str | None, head: str | None = None) -> tuple[Proof, list[dict[str, Any]]]:
    if name is not None and (exported := Path(name)).is_dir() and (is_export(exported) or "/" in name or name == "."):
        folder = exported
        study, rows, known = read_export(folder)
        reviews, broken = read_exported_reviews(folder)
        known = known + broken
    else:
        (study, rows, reviews, folder), known = _read_from_home(name), []
    return verify_study(study, rows, folder, head=head, known=known, reviews=reviews), rows


def open_verified(name: str) -> StudyState:
    """Return a study of this home, or of the folder of an export; raise BadInput unless it verifies."""
    proof, rows = _prove(name)
    if not proof.holds:
        raise BadInput(f"expected a study that verifies; found {proof.drifts[0]}; see: ajet study verify {name}")
    return fold(find_corruption(proof.study, rows)[0])


def export(
    name: Annotated[str, typer.Argument(help="Study id or its beginning.")],
    to: Annotated[
        Path | None, typer.Argument(help="A folder that is not there yet; the study's id when left out.")
    ] = None,
    json: Json = False,
) -> None:
    """Export a study to a folder that verifies elsewhere: its log, lock, runs' files, report and figures.

    A study that does not verify is not exported. No secret is in a study's log or files, but the command that was typed
    and people's notes are.

    Exit codes: 0 exported; 1 the study does not verify; 2 bad input.

    Examples:
        ajet study export larger-group
        ajet study export larger-group studies/gallery/larger-group
    """
    study, rows, reviews, folder = _read_from_home(name)
    to = to or Path(study)
    proof = verify_study(study, rows, folder, reviews=reviews)
    if not proof.holds:
        answer(False, None, _lines(proof))
        warn(f"study {study} does not verify; nothing was exported")
        raise typer.Exit(DRIFTED)
    names = export_study(study, rows, folder, to, reviews)
    answer(
        json,
        {"study": study, "folder": str(to), "files": names, "head": proof.head},
        f"exported {len(names)} files to {to}",
        f"head  {proof.head}  (verify it with: ajet study verify {to} --head {proof.head[:16]})",
    )
    if not json:  # the folders of the installation, and of its owner
        own = {str(Home.locate().path), str(Path.home())} - {"/"}
        texts = [(to / name).read_text(encoding="utf-8", errors="replace") for name in names]
        if places := sorted(place for place in own if any(place in text for text in texts)):
            warn(f"the log names folders of this machine, {places[0]} among them; it is exported whole")


def _read_from_home(name: str | None) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]], Path]:
    home = Home.locate().for_reading()
    log = EventLog(home.database)
    study = find_study(log, name)
    require_files(home, log, study)
    reviews = ReviewLog(log, study).read_unverified()  # before the log, which has the heads that they name
    return study, log.read_unverified(study), reviews, home.study(study)


def _lines(proof: Proof) -> Iterator[str]:
    for drift in proof.drifts:
        yield f"drift  {drift}"
    several = {what: "pages of the report" if what == "page" else f"{what}s" for what in proof.held}
    counted = ", ".join(f"{n} {what if n == 1 else several[what]}" for what, n in proof.held.items())
    yield f"{'held' if proof.holds else 'held otherwise'}  {counted or 'nothing'}"
    for sentence in proof.notes:
        yield f"note  {sentence}"
    yield f"study {proof.study} {'verifies' if proof.holds else 'does not verify'}"
    yield f"head  {proof.head}"


def report(
    name: Name = None,
    build: Annotated[bool, typer.Option("--build", help="Build it again.")] = False,
    json: Json = False,
) -> None:
    """Say where a study's report is; with --build, make it again from the log and the hashed files.

    A page that was changed by hand is kept under another name. Whether a report holds says `ajet study verify`.

    Examples:
        ajet study report
        ajet study report larger-group --build --json
    """
    home, log, state = open_study(name)
    folder = home.study(state.id)
    require_files(home, log, state.id)
    if build:
        made = interventions.build_report_again(home, log, state.id)
        for line in made.backups:
            warn(line)
    paths = {"markdown": str(made.markdown), "html": str(made.html)} if build else report_paths(state, folder)
    if paths is None:
        finish = f"finish it with: ajet study resume {state.id}"
        more = describe_resume(state) if state.status == "stopped" else finish
        raise BadInput(f"study {state.id} has no report yet (it is {state.status}); {more}")
    if missing := [path for path in paths.values() if not Path(path).exists()]:
        raise BadInput(f"expected the report at {missing[0]}; it is gone; `ajet study report {state.id} --build`")
    answer(json, {"study": state.id, **paths}, *paths.values())
