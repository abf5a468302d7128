"""Going on after an ended attempt: whether, what is taken over, and ending its containers.

Going on is no choice between results, because what ended the attempt does not enter the training. It is done wherever
the cause lay beside the server's record, once where the record may be the cause, and not where the record is in doubt.
Taken over are evaluations before and during training, which cannot be made again, and a server's folder that no living
server holds and that has the metrics of every step. Folders are moved, so that each has one user, after the event that
names the move and before the attempt starts; the server's folder moves last, and all may be done again after a crash.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Literal, NamedTuple

from filelock import FileLock, Timeout
from pydantic import ValidationError

from research.files import load_table, read_json, write_bytes
from research.isolation.mode import Containers
from research.runs.files import AttemptFolder, Evaluation, find_kept_file, read_evaluations, read_progress
from sandboxes import SandboxError
from studies import RunState
from studies.records.runs import AttemptFailed


def end_containers(sandbox: Containers, labels: Mapping[str, str], folder: AttemptFolder) -> None:
    sandbox.reap(labels)
    if folder.outcome.exists():  # it took what they had made itself
        return
    from research.runs.workers import EVALUATION, container_name, store_evaluation  # not needed at a start

    handle = sandbox.adopt(container_name(labels, "evaluator-during"))
    if handle is None or EVALUATION not in (results := handle.results()):
        return
    try:
        with suppress(AttemptFailed):  # evaluations that are none are none to go on from
            store_evaluation(results[EVALUATION], folder.evaluation("during"), during=True)
    except OSError as error:
        raise SandboxError(f"cannot keep the evaluations during training in {folder.path}: {error}") from error


ResumeRule = Literal["on", "once", "anew"]
"""What follows an end: it is gone on from; unless that attempt had itself gone on from another; never."""

_ENDS: Final = load_table(__package__, "resume.toml")["ends"]
WAYS: Mapping[str, tuple[ResumeRule, str]] = {code: (e["way"], e["why"]) for e in _ENDS for code in e["codes"].split()}
"""By the code of an attempt's end: what follows, and why."""

LETS_GO_S = 10.0
"""For a killed server to be gone: a kernel takes a moment to clear a large one away."""


class ResumePlan(NamedTuple):
    """How an attempt begins: from the server of attempt `resumes`, None where from nothing."""

    resumes: int | None = None
    initial_sha256: str = ""
    """Of the evaluation before training that is kept, or that is shared."""
    initial_of: str = ""
    """The run that evaluated the untrained policy for it; empty where the evaluation is the run's own."""
    during_sha256: str = ""
    """Of the evaluations during training that are kept; empty where there are none."""
    why: str = ""
    """Why so, where there was an earlier attempt, in a sentence without its full stop."""


def plan_resume(run: RunState, folder_of: Callable[[int], AttemptFolder]) -> ResumePlan:
    """Return how the next attempt at a run begins, by the folders of earlier ones, which are over and their processes
    ended. A server elsewhere has the training itself: the folder says that an attempt began one there."""
    if not run.attempts:
        return ResumePlan()
    last = run.attempts[-1]
    way, why = WAYS.get(last.code, ("anew", "nothing is known of such an end"))
    if run.spec.job.get("learning_rate") == 0:
        return ResumePlan(why="it is to show that nothing moves from its first step to its last")
    if way == "once" and last.resumes is not None:
        return ResumePlan(why=f"{why}, and attempt {last.number} had gone on from another")
    if way == "anew":
        return ResumePlan(why=why)
    number: int | None = last.number  # whose folder has the training: where it never began, the one before
    went_on_from = {attempt.number: attempt.resumes for attempt in run.attempts}
    while number is not None and not folder_of(number).server.is_dir():
        number = went_on_from.get(number)
    if number is None:
        return ResumePlan(why="no earlier attempt left a server's folder")
    folder = folder_of(number)
    try:
        keeps_metrics = "resumes" in (read_json(folder.spec) or {})  # as specs say since servers keep what they measure
    except (OSError, ValueError):
        keeps_metrics = False
    if not keeps_metrics:
        return ResumePlan(why="nothing says that its server kept what it measured, as those of older versions did not")
    try:
        initial = folder.evaluation("initial").read_bytes()
        Evaluation.model_validate_json(initial)
    except (OSError, ValidationError):
        return ResumePlan(why="it did not come to the end of its evaluation before training")
    if (during := _hash_during(folder, run)) is None:
        return ResumePlan(why="its evaluations during training were lost with what made them")
    try:  # a server holds this lock for as long as it lives
        with FileLock(folder.server / "server.lock", timeout=LETS_GO_S):
            shared = next(attempt.initial_of for attempt in run.attempts if attempt.number == number)
            return ResumePlan(number, hashlib.sha256(initial).hexdigest(), shared, during, why)
    except Timeout:
        return ResumePlan(why="a server still holds its folder")


def _hash_during(folder: AttemptFolder, run: RunState) -> str | None:
    """Return the sha256 of the evaluations during training, empty for none; None where some are lost."""
    path, progress = find_kept_file(folder), read_progress(folder)
    try:
        made = set() if path is None else {evaluation.policy_version for evaluation in read_evaluations(path)}
    except (OSError, ValueError):
        return None
    reached = 0 if progress is None else progress.step
    if {version for version in run.spec.job.get("evaluate_after", ()) if version < reached} - made:
        return None
    return "" if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


def transfer_files(source: AttemptFolder, into: AttemptFolder) -> None:
    """Move the server's folder, and copy the evaluations made so far; no change where that was done. OSError. What is
    not there any more is not taken: the attempt finds out, and ends by it."""
    if into.server.exists():
        return
    with suppress(FileNotFoundError):
        write_bytes(into.evaluation("initial"), source.evaluation("initial").read_bytes())
        if (kept := find_kept_file(source)) is not None:
            write_bytes(into.kept, kept.read_bytes())
        os.rename(source.server, into.server)
