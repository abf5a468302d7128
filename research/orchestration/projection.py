"""What a study's flow run shows: a row for each attempt, artifacts for what was found, and log lines.

A projection of the state and of the attempts' own files: what changed since the last time is published, and counts as
such once the server took it. Where nothing happened, only the progress of running attempts is read.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from research.installation.home import attempt_in
from research.orchestration.shown.artifacts import DESCRIPTIONS, StudyArtifact, artifacts
from research.orchestration.shown.curves import LiveCurves
from research.orchestration.shown.rows import TaskRow, attempt_key, left, not_needed, rows
from research.orchestration.shown.training import (
    TrainingLine,
    end_told,
    progress_told,
    states_told,
    tracked_in,
    tracked_told,
)
from research.results.attempt_files import AttemptFolder, read_progress
from research.study.progress import StudyProgress, progress_of
from research.study.progress_lines import progress_lines
from studies import RunState, StudyState
from studies.log.study_state import AttemptState

if TYPE_CHECKING:
    from research.orchestration.flow_run import FlowRun  # imports Prefect, which reads its settings then

REDRAW_S: Final = 30.0
"""Least seconds between two drawings of a study that is under way: each takes half a second."""


class Projection:
    """Publishes to the flow run of a session that began at `since`; `folder` is the study's."""

    def __init__(self, flow_run: FlowRun, since: StudyState, folder: Path) -> None:
        self._flow_run = flow_run
        self._since = since
        self._folder = folder
        self._state: StudyState | None = None
        self._rows: dict[str, TaskRow] = {}
        self._artifacts = _Published(flow_run, since.id)
        self._curves = LiveCurves(folder)
        self._trainings = _Trainings(flow_run, since, folder, self._curves)
        self._redrawn = -REDRAW_S
        past = progress_lines(since) if since.resumed_count else ()
        self._told = {key for key, _ in past}

    def tell(self, state: StudyState, *, over: bool = False) -> None:
        """Publish what is new; once the session is `over`, no row stays open."""
        if over or state is not self._state or self._flow_run.doubtful:
            self._put_rows(state, over)
            self._publish(state)
            self._log(state)
        if self._trainings.tell(state):
            self._publish(state)
        self._draw(state, at_once=over)
        self._state = state

    def _put_rows(self, state: StudyState, over: bool) -> None:
        """Put all rows: those that are told already cost nothing."""
        now = {row.key: left(row, state.last_ts) if over else row for row in rows(state, self._since)}
        for key, row in self._rows.items():
            if key not in now:
                now[key] = not_needed(row, state.last_ts) if row.open else row
        self._flow_run.put(now.values())
        self._rows = now
        self._trainings.say((row.key, line) for row in now.values() for line in states_told(row))

    def _publish(self, state: StudyState) -> None:
        self._artifacts.progress(progress_of(state))
        for artifact in artifacts(state, self._folder, self._trainings.located):
            self._artifacts.publish(artifact)

    def _draw(self, state: StudyState, at_once: bool) -> None:
        now = time.monotonic()
        if not at_once and now - self._redrawn < REDRAW_S:
            return
        self._curves.read(state)
        version = self._curves.version(state)
        if any(version):
            draw = StudyArtifact("curves", "markdown", version, lambda: self._curves.markdown(state), replaces=True)
            self._artifacts.publish(draw)
            self._redrawn = now

    def _log(self, state: StudyState) -> None:
        lines = {key: line for key, line in progress_lines(state) if key not in self._told}
        if lines:
            self._flow_run.log(lines.values())
            self._told |= lines.keys()


class _Published:
    """The artifacts of a study, named as Prefect allows; one that did not change is not published again."""

    def __init__(self, flow_run: FlowRun, study: str) -> None:
        self._flow_run = flow_run
        self._study = study.lower().replace("_", "-")
        self._versions: dict[str, Hashable] = {}
        self._shown: dict[str, UUID] = {}

    def publish(self, artifact: StudyArtifact) -> None:
        if self._versions.get(artifact.name) != artifact.version:
            before = self._shown.get(artifact.name) if artifact.replaces else None
            self._show(artifact.name, artifact.type, artifact.make(), DESCRIPTIONS[artifact.name], before)
            self._versions[artifact.name] = artifact.version

    def progress(self, now: StudyProgress) -> None:
        """Publish how far the study is; its description counts the runs."""
        if self._versions.get("progress") != now:
            self._show("progress", "progress", now.percent, str(now), self._shown.get("progress"))
            self._versions["progress"] = now

    def _show(self, name: str, type: str, data: object, description: str, before: UUID | None) -> None:
        key = f"{self._study}-{name}"
        self._shown[name] = self._flow_run.publish(key, type, data, description, before)


class _Trainings:
    """Tells of each attempt of a session what its own files say of its progress, each line once."""

    def __init__(self, flow_run: FlowRun, since: StudyState, folder: Path, curves: LiveCurves) -> None:
        self._flow_run = flow_run
        self._folder = folder
        self._curves = curves
        self._over = {(attempt.name, attempt.url) for _, _, attempt in _tries(since) if attempt.status is not None}
        """Attempts of which nothing more is told, unless they get another page at W&B."""
        self._open: list[tuple[int, RunState, AttemptState]] = []
        self._told: set[tuple[str, str]] = set()
        self._logs: dict[str, str | None] = {}
        self._state: StudyState | None = None

    def tell(self, state: StudyState) -> bool:
        """Read what running attempts and those that just ended say, and tell what is new.

        Return whether the W&B log of one was found.
        """
        known = len(self._logs)
        if state is not self._state:
            self._open = [one for one in _tries(state) if (one[2].name, one[2].url) not in self._over]
            self._state = state
        self.say(line for one in self._open for line in self._lines(*one))
        self._over |= {(attempt.name, attempt.url) for _, _, attempt in self._open if attempt.status is not None}
        self._open = [one for one in self._open if one[2].status is None]
        return len(self._logs) > known

    def say(self, lines: Iterable[tuple[str, TrainingLine]]) -> None:
        """Write lines to the logs of rows, by the rows' keys, but for those that were written before."""
        new = {(key, line.key): (key, line) for key, line in lines if (key, line.key) not in self._told}
        if new:
            self._flow_run.log_trainings(new.values())
            self._told |= new.keys()

    def located(self, run: RunState, attempt: AttemptState) -> str | None:
        """Return where the W&B log of an attempt is; looked up until it is found, or the attempt is over."""
        if attempt.name not in self._logs:
            found = tracked_in(self._files(run, attempt), self._folder)
            if found is None and attempt.status is None:
                return None
            self._logs[attempt.name] = found
        return self._logs[attempt.name]

    def _lines(self, round: int, run: RunState, attempt: AttemptState) -> Iterator[tuple[str, TrainingLine]]:
        folder, key = self._files(run, attempt), attempt_key(run, attempt.number, round)
        progress = read_progress(folder)
        if progress is not None:
            self._curves.see(run.run_id, attempt.number, progress)
            yield from ((key, line) for line in progress_told(attempt, progress))
        yield from ((key, line) for line in tracked_told(attempt, self.located(run, attempt)))
        if attempt.status is not None:
            yield from ((key, line) for line in end_told(attempt, folder))

    def _files(self, run: RunState, attempt: AttemptState) -> AttemptFolder:
        return AttemptFolder(attempt_in(self._folder, run.run_id, attempt.number))


def _tries(state: StudyState) -> Iterator[tuple[int, RunState, AttemptState]]:
    """Yield each attempt with the round and the run that it is of."""
    for entry in state.every_round:
        yield from ((entry.round, run, attempt) for run in entry.runs.values() for attempt in run.attempts)
