"""What a list says of one study, read from its log and checked against its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from research.cli.study.shown import summary as summaries
from research.installation.kept_studies import checked_files
from research.study.progress import progress_of
from studies import LogCorrupt, StudyState


@dataclass(frozen=True)
class Line:
    """One study: its line for people, and its summary for scripts; `folder` is the study's."""

    state: StudyState
    folder: Path

    def row(self) -> tuple[str, ...]:
        """Return its id, status (with the round), runs, verdicts, when it was created, and its topic."""
        state, done = self.state, progress_of(self.state)
        where = "" if state.most_rounds == 1 else f" (round {state.round}/{state.most_rounds})"
        status = f"{'declined' if state.declined else state.status}{where}"
        runs, verdicts = f"{done.done}/{done.most or done.done}", summaries.short_verdicts(state, self.folder)
        return state.id, status, runs, verdicts, state.created[:16], state.topic

    def summary(self) -> dict[str, Any]:
        """Return what `--json` prints of it."""
        return summaries.summary(self.state, self.folder)

    def checked(self) -> list[str]:
        """Return the files of the study's folder that a verdict is checked against before it is shown."""
        return checked_files(self.state)


def unreadable(study: str, error: LogCorrupt) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return row and summary of a study whose log is corrupt: what is wrong with it, and nothing else."""
    row = (study, summaries.CORRUPT, "", "", "", str(error))
    return row, summaries.unreadable(study, error)
