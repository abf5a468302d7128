"""One finding: what code judged of a claim, with the conditions under which it was judged. Negative ones are too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from studies.records.base import JsonValue, Record, canonical
from studies.records.design_parts import Phase

KnownVerdict = Literal["supported", "refuted", "equivalent", "inconclusive", "invalid", "does not follow"]
"""A verdict, or that it does not follow from the files any more: then nothing else is said of it."""


class FindingConditions(Record):
    """Where a finding holds."""

    environment: str
    model: str
    """What people call the model that is trained."""
    model_key: str
    """Key of the model and of what trains it, as in the noise bank."""
    metric: str
    """Key of the metric with all that its values depend on."""
    metric_name: str
    job: str
    """Digest of the job under all arms, whatever the compared fields, the seed and the schedule of evaluations are."""
    fields: Mapping[str, JsonValue]
    """What that job has otherwise than a job that says nothing, but for model, environment and compared fields."""


class KnownFinding(Record):
    """A verdict that stands, of any study and round."""

    study: str
    round: int
    hypothesis: str
    phase: Phase
    """`replicate` for the same comparison in another setting."""
    claim: str
    """What was put to the test, a sentence by code."""
    variable: str
    control: JsonValue
    treatment: JsonValue
    verdict: KnownVerdict
    estimate: float | None
    """Treatment minus control, in the metric's own unit; None where there is none."""
    low: float | None
    high: float | None
    level: float | None
    """Level of the interval that decided, from `low` to `high`."""
    n_control: int
    n_treatment: int
    exploratory: bool
    """Whether an amendment after the first result touched it."""
    lock: str
    """Hash of the lock that it was judged under."""
    conditions: FindingConditions
    doubt: str = ""
    """Why the verdict does not follow; empty where it does."""

    @property
    def name(self) -> str:
        """What it is cited by: study, round and claim."""
        again = "" if self.phase == "confirm" else f"/{self.phase}"
        return f"{self.study}/{self.round}/{self.hypothesis}{again}"

    @property
    def compared(self) -> tuple[str, tuple[str, ...], str]:
        """What was compared, whichever arm was the control: variable, values in a fixed order, metric."""
        values = sorted((self.control, self.treatment), key=_place)
        return self.variable, tuple(map(canonical, values)), self.conditions.metric

    @property
    def sign(self) -> int:
        """1 where the later value, in the order of `compared`, is said to have the higher metric, -1 where the lower
        one, 0 where no difference is claimed."""
        if self.verdict not in ("supported", "refuted") or not self.estimate:
            return 0
        return 1 if (self.estimate > 0) == self._in_order else -1

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval, turned to be of the later value minus the earlier one in the order of `compared`."""
        if self.low is None or self.high is None:
            return None
        return (self.low, self.high) if self._in_order else (-self.high, -self.low)

    @property
    def _in_order(self) -> bool:
        return _place(self.treatment) >= _place(self.control)


def _place(value: JsonValue) -> tuple[bool, float, str]:
    """Return where a value stands among others: numbers by size, then all else by its text."""
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, canonical(value)
