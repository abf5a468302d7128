"""Takes over what an ended attempt's server kept: its folder is moved into the next attempt's, so that it has one user.

Only what is whole enough to be gone on from is taken: the evaluations before and during training, which cannot be made
again once the weights have moved, and a server's folder that no living server holds and that has the metrics of every
step, which servers of earlier versions did not keep. The moving is done after the event that names it and before the
attempt is started, and may be done again after a crash: the folder is moved last.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from filelock import FileLock, Timeout
from pydantic import ValidationError

from research.files import read_json, write_bytes
from research.results.attempt_files import AttemptFolder, Evaluation, read_progress
from research.results.during import read_during, to_keep
from research.results.resumption import way_on
from studies import RunState

LETS_GO_S = 10.0
"""For a killed server to be gone: a kernel takes a moment to clear a large one away."""
FolderOf = Callable[[int], AttemptFolder]
"""Returns the folder of a run's attempt by its number."""


class Beginning(NamedTuple):
    """How an attempt begins: from the server of attempt `resumes`, None where from nothing."""

    resumes: int | None = None
    initial_sha256: str = ""
    """Of the evaluation before training that is kept."""
    during_sha256: str = ""
    """Of the evaluations during training that are kept; empty where there are none."""
    why: str = ""
    """Why so, where there was an earlier attempt."""


def beginning(run: RunState, folder_of: FolderOf) -> Beginning:
    """Return how the next attempt at a run begins; all its earlier ones are over and their processes ended."""
    if not run.attempts:
        return Beginning()
    way = way_on(run)
    if not way.goes_on:
        return Beginning(why=way.why)
    holder = _holder(run, folder_of)
    if holder is None:
        return Beginning(why="no earlier attempt left a server's folder")
    if not _kept_metrics(folder_of(holder)):
        return Beginning(why="nothing says that its server kept what it measured, as those of older versions did not")
    sha256 = _initial_evaluation(folder_of(holder))
    if sha256 is None:
        return Beginning(why="it did not come to the end of its evaluation before training")
    during = _during(folder_of(holder), run)
    if during is None:
        return Beginning(why="its evaluations during training were lost with what made them")
    if _is_held(folder_of(holder)):
        return Beginning(why="a server still holds its folder")
    return Beginning(holder, sha256, during, way.why)


def take_over(source: AttemptFolder, into: AttemptFolder) -> None:
    """Move the server's folder, and copy the evaluations made so far; no change where that was done. OSError.

    What is not there any more is not taken: the attempt finds out, and ends by it.
    """
    if into.server.exists():
        return
    with suppress(FileNotFoundError):
        write_bytes(into.evaluation("initial"), source.evaluation("initial").read_bytes())
        if (kept := to_keep(source)) is not None:
            write_bytes(into.kept, kept.read_bytes())
        os.rename(source.server, into.server)


def _holder(run: RunState, folder_of: FolderOf) -> int | None:
    """Return the attempt in whose folder the training lies: the last, or where that never began the one before it."""
    number: int | None = run.attempts[-1].number
    went_on_from = {attempt.number: attempt.resumes for attempt in run.attempts}
    while number is not None and not folder_of(number).server.is_dir():
        number = went_on_from.get(number)
    return number


def _kept_metrics(folder: AttemptFolder) -> bool:
    """Return whether an attempt's server was one that keeps what it measures: since then specs say `resumes`."""
    try:
        return "resumes" in (read_json(folder.spec) or {})
    except (OSError, ValueError):
        return False


def _initial_evaluation(folder: AttemptFolder) -> str | None:
    """Return the sha256 of a finished evaluation before training; None where there is none."""
    try:
        data = folder.evaluation("initial").read_bytes()
        Evaluation.model_validate_json(data)
    except (OSError, ValidationError):
        return None
    return hashlib.sha256(data).hexdigest()


def _during(folder: AttemptFolder, run: RunState) -> str | None:
    """Return the sha256 of the evaluations during training, empty for none; None where some are known to be lost.

    A container that was killed itself hands nothing over. How far training came after the last sign of life, the
    server will tell.
    """
    path, progress = to_keep(folder), read_progress(folder)
    try:
        made = set() if path is None else {evaluation.policy_version for evaluation in read_during(path)}
    except (OSError, ValueError):
        return None
    reached = 0 if progress is None else progress.step
    if any(version < reached and version not in made for version in run.spec.job.get("evaluate_after", ())):
        return None
    return "" if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


def _is_held(folder: AttemptFolder) -> bool:
    """Return whether a server lives in a folder: it holds this lock for as long."""
    try:
        with FileLock(folder.server / "server.lock", timeout=LETS_GO_S):
            return False
    except Timeout:
        return True
