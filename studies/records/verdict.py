"""What the data say about one hypothesis, as code computed it: a verdict with every number that it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from studies.records.base import EvolvingRecord, Record
from studies.records.design_parts import Phase

VerdictName = Literal["supported", "refuted", "equivalent", "inconclusive", "invalid"]
Scope = Literal["all", "not_collapsed", "reached"]
"""What a verdict speaks of: all trainings, those that do not collapse, or, of an arm that was seen to reach a threshold
in every run, those that do."""


class Equivalence(Record):
    """Two one-sided tests: whether the difference is surely inside the margin."""

    margin: float
    low: float
    high: float
    """Ends of the interval of level 1 - 2 alpha."""
    p: float
    """The larger of the two one-sided p-values."""


class CollapseRate(Record):
    """How many of an arm's trainings collapsed, with exact limits (Clopper & Pearson 1934, Biometrika 26)."""

    arm: str
    count: int = Field(ge=0)
    of: int = Field(ge=0)
    low: float
    high: float
    """Ends of the 95 % interval of the rate."""
    upper: float
    """One-sided upper 95 % limit: a higher rate is ruled out."""


class ReachedRate(Record):
    """How many of an arm's trainings reached a threshold within the horizon, with exact 95 % limits."""

    arm: str
    count: int = Field(ge=0)
    of: int = Field(ge=0)
    low: float
    high: float


class ArmMean(Record):
    """One arm of a contrast, as it entered."""

    arm: str
    weight: float
    """What its mean counts in the estimate."""
    n: int = Field(ge=0)
    mean: float | None
    sd: float | None


class Verdict(EvolvingRecord):
    """What the data say about one hypothesis, computed by code under the locked design."""

    added_fields: ClassVar = frozenset({"scope", "collapses", "reached", "arms"})

    hypothesis: str
    verdict: VerdictName
    reason: str
    """One sentence that states the rule that decided."""
    estimate: float | None
    """Mean of treatment runs minus mean of control runs; None when it cannot be computed."""
    low: float | None
    high: float | None
    level: float
    p: float | None
    n_control: int
    n_treatment: int
    mean_control: float | None
    mean_treatment: float | None
    sd_control: float | None
    sd_treatment: float | None
    test: str
    inputs_sha256: str
    """Hash of the exact inputs (run ids and values per arm, alpha, hypothesis)."""
    within_prediction: bool | None
    """Whether the estimate fell into the predicted interval."""
    brier: float | None
    """(probability - outcome)^2 with outcome 1 for supported, 0 for refuted; None otherwise."""
    phase: Phase = "confirm"
    look: int = Field(default=1, ge=1)
    """Which look it was computed at, 1 for the first or only one."""
    final: bool = True
    """Whether no later look will replace it."""
    p_adjusted: float | None = None
    """p corrected for the other arms of its variable; None where there is nothing to correct."""
    df: float | None = None
    """Degrees of freedom of the test."""
    sd_pooled: float | None = None
    """The common standard deviation that the test used; None for Welch's and the paired test."""
    equivalence: Equivalence | None = None
    excluded: Mapping[str, int] = {}
    """Runs left out, by `ARM: CODE`."""
    counted_as_worst: Mapping[str, int] = {}
    """Runs that count with the worst value, by `ARM: CODE`."""
    violations: tuple[str, ...] = ()
    """What the confound linter found in the runs, one line each."""
    exploratory: bool = False
    """Whether an amendment after the first result touched it: it is no test of the locked claim any more."""
    scope: Scope = "all"
    """What it speaks of; all trainings in designs that lock neither a rule of collapse nor `scope_reached`."""
    collapses: tuple[CollapseRate, ...] = ()
    """Of the control and of the treatment; empty for a design without a rule of collapse."""
    reached: tuple[ReachedRate, ...] = ()
    """Of the control and of the treatment, where a time to a threshold is judged."""
    arms: tuple[ArmMean, ...] = ()
    """Of an interaction or a trend, all its arms, the control first: the estimate is their weighted sum, and no
    difference of the first and the last, which stand as control and treatment. Empty for a difference."""

    @property
    def nonzero(self) -> bool:
        """Whether its interval leaves zero out: an equivalent difference may be small and yet not none."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high
