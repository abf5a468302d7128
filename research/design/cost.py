"""What a study may still spend, and what its stages cost: the price of a design before it is locked.

A design is priced at its worst: every seed of every arm, the whole screen, and the replication. Runs go in waves of as
many as the machine makes at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from research.design.pricing import Pricing
from research.durations import format_flag, format_seconds
from studies.records.design import Budget


@dataclass(frozen=True, slots=True)
class Stage:
    """Runs of one kind, and the seconds of the slowest of them."""

    name: str
    runs: int
    seconds_per_run: float


@dataclass(frozen=True, slots=True)
class BudgetCheck:
    """What may be spent, and what things cost."""

    price: Pricing
    budget: Budget
    seconds_left: float | None = None
    """What remains of the budget's wall clock; None for all of it."""
    runs_made: int = 0
    """Runs that the study has made already."""

    @property
    def left(self) -> float:
        """Seconds that may still be spent."""
        total = self.budget.wall_clock_s
        return total if self.seconds_left is None else min(total, self.seconds_left)

    def cost(self, stages: Sequence[Stage]) -> float:
        """Return the seconds of the stages, one after the other, and of what a study takes besides its runs."""
        waves = sum(math.ceil(stage.runs / self.price.parallel) * stage.seconds_per_run for stage in stages)
        return waves + self.price.overhead_s

    def affords(self, stages: Sequence[Stage]) -> bool:
        """Return whether time and runs suffice."""
        return not self.lacks_runs(stages) and self.cost(stages) <= self.left

    def lacks_runs(self, stages: Sequence[Stage]) -> bool:
        """Return whether the stages have more runs than may be made."""
        most = self.budget.max_runs
        return most is not None and self._runs(stages) > most

    def flags(self, stages: Sequence[Stage]) -> str:
        """Return the flags with which the stages are afforded; empty where they are already."""
        spent, need = self.budget.wall_clock_s - self.left, self.cost(stages)
        found = [f"--budget {format_flag(need + spent)}"] if need > self.left else []
        found += [f"--max-runs {self._runs(stages)}"] if self.lacks_runs(stages) else []
        return " ".join(found)

    def priced(self, stages: Sequence[Stage]) -> str:
        """Say what the stages cost on this machine."""
        runs = sum(stage.runs for stage in stages)
        slowest = max(stage.seconds_per_run for stage in stages)
        return (
            f"{runs} runs need about {format_seconds(self.cost(stages))} on this machine "
            f"({format_seconds(slowest)} a run, {self.price.parallel} at once)"
        )

    def stated(self) -> str:
        """Say what the budget is and what of it is spent."""
        spent = self.budget.wall_clock_s - self.left
        spent_text = f" ({format_seconds(spent)} of it spent)" if spent >= 1 else ""
        limit = f" and {self.budget.max_runs} runs" if self.budget.max_runs is not None else ""
        made = f" ({self.runs_made} of them made)" if limit and self.runs_made else ""
        return f"the budget is {format_seconds(self.budget.wall_clock_s)}{spent_text}{limit}{made}"

    def _runs(self, stages: Sequence[Stage]) -> int:
        return self.runs_made + sum(stage.runs for stage in stages)
