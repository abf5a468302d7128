"""How far a study is: runs that are over, of the most that it may come to.

The most is what the locked design comes to if every look, the whole screen and the replication are made: a study that
ends early needs fewer, and none is counted before it is possible. Of an inquiry the rounds before are counted with what
they took, and those to come not at all: nobody knows yet what they ask. Everything that shows progress counts here.
"""

from __future__ import annotations

from dataclasses import dataclass

from research.scheduling.required_runs import RequiredRun, is_over, later_runs, noise_runs, planned
from studies import StudyState

_ALMOST = 99.0
"""Most per cent before a study is concluded: what is left after the last run is to judge and to report."""


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """Runs `done` of at most `most`, of all rounds so far; `most` is None while the round has no plan of any run."""

    done: int
    most: int | None
    concluded: bool
    design_open: bool
    """Whether the design is not locked yet, so that what is counted is the A/A runs before it."""
    round: int = 1
    rounds: int = 1
    """Most rounds."""
    before: int = 0
    """Runs of other rounds, among those done."""

    @property
    def percent(self) -> float:
        """Per cent of the most runs, of an inquiry of the most rounds; 100 for a concluded study alone."""
        if self.concluded:
            return 100.0
        runs = max(1, (self.most or 0) - self.before)
        done = 0 if self.rounds > 1 and self.design_open else self.done - self.before
        return min(_ALMOST, 100.0 * ((self.round - 1) * runs + done) / (runs * self.rounds))

    def __str__(self) -> str:
        if self.concluded:
            return f"{self.done} runs done{self._in_rounds()}, concluded"
        where = "" if self.rounds == 1 else f"round {self.round} of at most {self.rounds}: "
        if self.most is None:
            return f"{where}planning"
        if self.design_open:
            made, of = self.done - self.before, self.most - self.before
            return f"{where}{made} of {of} A/A runs done, the design comes after them"
        return f"{where}{self.done} of at most {self.most} runs done{' in all rounds so far' if self.before else ''}"

    def _in_rounds(self) -> str:
        return "" if self.rounds == 1 else f" in {self.round} {'round' if self.round == 1 else 'rounds'}"


def progress_of(state: StudyState) -> StudyProgress:
    """Count a study's runs."""
    done = sum(is_over(run) for run in state.runs.values())
    before = sum(is_over(run) for run in state.every_run.values()) - done
    concluded = state.concluded_reason is not None
    most = done if concluded else _most(state, done)
    return StudyProgress(
        done + before, None if most is None else most + before, concluded, design_open=state.locked_design is None,
        round=state.round, rounds=state.most_rounds, before=before,
    )  # fmt: skip


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
