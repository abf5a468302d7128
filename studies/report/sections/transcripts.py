"""Two plays of one run before and after training, quoted: what the policy said, not what anybody says of it.

Words in them are a model's. They are text to be escaped, and nothing is computed from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from studies.log.study_state import RunState, StudyState
from studies.report.parts.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Play:
    """One play of a hidden task: which run played it, when, and its messages as (role, words)."""

    title: str
    messages: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """All of it as plain text, a paragraph for each message."""
        return "\n\n".join(f"{role}: {words}" for role, words in self.messages)


def transcripts(state: StudyState, evidence: Evidence) -> tuple[Play, ...]:
    """Return the plays kept of the first run that kept any, treatment arms first; empty where none did."""
    control = state.design.control_arm if state.design is not None else ""
    runs = [run for run in state.runs.values() if run.run_id in evidence.runs]
    for run in sorted(runs, key=lambda run: (run.spec.phase != "confirm", run.spec.arm == control)):
        if kept := evidence.runs[run.run_id].transcripts:
            return tuple(_play(run, when, entry) for when, entry in kept)
    return ()


def _play(run: RunState, when: str, entry: Mapping[str, Any]) -> Play:
    messages = tuple((str(message["role"]), str(message["content"])) for message in entry["messages"])
    said = {"initial": "before training", "final": "after training"}[when]
    return Play(f"{entry['task_id']}, {said} (run {run.run_id}, {run.spec.arm})", messages)
