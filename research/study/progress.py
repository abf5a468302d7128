"""How far a study is: runs that are over, of the most that it may come to.

The most is what the locked design comes to if every look, the whole screen and the replication are made: a study that
ends early needs fewer, and none is counted before it is possible. Everything that shows progress counts here.
"""

from __future__ import annotations

from dataclasses import dataclass

from research.scheduling.required_runs import RequiredRun, is_over, later_runs, noise_runs, planned
from studies import StudyState

_ALMOST = 99.0
"""Most per cent before a study is concluded: what is left after the last run is to judge and to report."""


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """Runs `done` of at most `most`; `most` is None before there is a plan of any run."""

    done: int
    most: int | None
    concluded: bool
    design_open: bool
    """Whether the design is not locked yet, so that what is counted is the A/A runs before it."""

    @property
    def percent(self) -> float:
        """Per cent of the most, 100 for a concluded study alone."""
        if self.concluded:
            return 100.0
        return min(_ALMOST, 100.0 * self.done / self.most) if self.most else 0.0

    def __str__(self) -> str:
        if self.concluded:
            return f"{self.done} runs done, concluded"
        if self.most is None:
            return "planning"
        if self.design_open:
            return f"{self.done} of {self.most} A/A runs done, the design comes after them"
        return f"{self.done} of at most {self.most} runs done"


def progress_of(state: StudyState) -> StudyProgress:
    """Count a study's runs."""
    done = sum(is_over(run) for run in state.runs.values())
    concluded = state.concluded_reason is not None
    most = done if concluded else _most(state, done)
    return StudyProgress(done, most, concluded, design_open=state.locked_design is None)


def _most(state: StudyState, done: int) -> int | None:
    design, noise = state.design, state.noise_plan
    if design is None:
        return None if noise is None else done + _open(state, set(noise_runs(noise)))
    if design.screen is not None:
        before = sum(is_over(run) for run in state.runs_in("noise"))
        return max(done, before + design.price.runs)
    return done + _open(state, set(later_runs(state, design)))


def _open(state: StudyState, required: set[RequiredRun]) -> int:
    """Return how many of the required runs are not over."""
    runs = planned(state)
    return sum(1 for required_run in required if required_run not in runs or not is_over(runs[required_run]))
