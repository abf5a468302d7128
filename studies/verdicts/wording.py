"""The sentence beside a verdict: the rule that decided, with the numbers it looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from studies.records.design import Hypothesis, Kind, Metric
from studies.records.sentences import effect_of, metric_name, named_value, setting
from studies.records.verdict import CollapseRate, Equivalence, ReachedRate, VerdictName
from studies.statistics.comparison import Test
from studies.statistics.samples import SAME
from studies.verdicts.finding import Unseen

_TESTS: Final = {
    "welch": "Welch's test", "common": "the t-test with the variance of all arms",
    "pooled": "the pooled t-test", "paired": "the t-test of runs paired by seed", "boschloo": "Boschloo's exact test",
    "contrast": "Welch's test of the contrast",
}  # fmt: skip


_ESTIMANDS: Final = {
    "difference": "difference", "interaction": "difference of differences", "trend": "rise over the ladder",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TestUsed:
    """How the numbers of a sentence came about."""

    test: Test | Literal["boschloo"]
    instead: str
    """Why it is not the locked test; empty where it is."""
    arms: int
    """Arms that the control was compared with, of the claim's variable."""
    claims: int
    """Variables that the study makes claims about."""
    look: int
    looks: int
    unit: str = ""
    """What the metric is counted in; empty for a share."""
    kind: Kind = "difference"

    @property
    def of(self) -> str:
        """What an interval is of."""
        return _ESTIMANDS[self.kind]

    @property
    def told(self) -> str:
        """The test, and what the level was corrected for."""
        shared = [f"shared among {self.claims} variables"] if self.claims > 1 else []
        corrected = [f"corrected for {self.arms} arms"] if self.arms > 1 else []
        return ", ".join([self._tested, *corrected, *shared, *self._looked])

    @property
    def told_alone(self) -> str:
        """The test and the look: equivalence is not corrected for other claims."""
        return ", ".join([self._tested, *self._looked])

    @property
    def _tested(self) -> str:
        return _TESTS[self.test] + (f" as {self.instead}" if self.instead else "")

    @property
    def _looked(self) -> list[str]:
        return [f"look {self.look} of {self.looks}"] if self.looks > 1 else []


def holds_zero(ends: tuple[float, float], level: float, how: TestUsed) -> str:
    """Return why the verdict is inconclusive."""
    return f"The {_span(ends, level, how.told, how)} holds 0."


def beyond_zero(ends: tuple[float, float], level: float, predicted: bool, how: TestUsed) -> str:
    """Return why the verdict is supported or refuted."""
    side = "above" if ends[0] > 0 else "below"
    said = "the predicted side" if predicted else "against the prediction"
    return f"The whole {_span(ends, level, how.told, how)} lies {side} 0, {said}."


def effect_told(claim: Hypothesis, estimate: float, metric: Metric) -> str:
    """Return what an interaction or a trend was found to be, as a sentence to lead with; empty for a difference."""
    if claim.kind == "difference":
        return ""
    size = _in(
        f"{abs(estimate):,.0f}" if metric.unit and abs(estimate) >= _WHOLE else f"{abs(estimate):.3f}", metric.unit
    )
    if claim.kind == "trend":
        ends = " to ".join(named_value(claim.variable, value) for value in (claim.control, claim.treatment))
        moved = "rises" if estimate > 0 else "falls"
        return f"From {claim.variable} = {ends} the {metric_name(metric)} {moved} by {size} along a straight line. "
    low, high = (setting(claim.moderator, value) for value in claim.varied[claim.moderator])
    larger = "larger" if estimate > 0 else "smaller"
    return f"The {effect_of(claim)} is {larger} by {size} with {high} than with {low}. "


def inside(same: Equivalence, level: float, how: TestUsed) -> str:
    """Return why the verdict is equivalent."""
    return (
        f"The whole {_span((same.low, same.high), level, how.told_alone, how)} lies inside the equivalence margin "
        f"of {_in(f'{same.margin:g}', how.unit)} to both sides of 0."
    )


def small(ends: tuple[float, float], level: float, how: TestUsed) -> str:
    """Return what is said beside `equivalent` where the difference is no zero."""
    return f" It is smaller than what matters, and not zero: the {_span(ends, level, how.told, how)} leaves 0 out."


def not_collapsed(rates: Sequence[CollapseRate]) -> str:
    """Return of which trainings a verdict speaks, and what it leaves open about the others."""
    counts = " and ".join(f"{rate.count} of {rate.of}" for rate in rates)
    most = " and ".join(f"{100 * rate.upper:.0f} %" for rate in rates)
    said = f" It speaks of trainings that do not collapse: {counts} did, and rates up to {most} are not ruled out."
    if len({(rate.count, rate.of) for rate in rates}) > 1:
        said += " Which trainings survive may differ between the arms."
    return said


def of_all(rates: Sequence[CollapseRate]) -> str:
    """Return why a verdict speaks of all trainings."""
    most = " and ".join(f"{100 * rate.upper:.0f} %" for rate in rates)
    return (
        f" It holds for all trainings: collapses at the highest rates that are not ruled out ({most}) change nothing."
    )


def of_those_there(unseen: Sequence[Unseen], metric: Metric) -> str:
    """Return of which trainings a verdict on a time speaks, and what it leaves open about the others."""
    share, least = there(metric), [one.undoes for one in unseen if one.undoes is not None]
    undone = f", and {_share(min(least))} would undo it" if least else ""
    alone = f" with {unseen[0].arm}" if len(unseen) == 1 else ""
    return f" It speaks of trainings{alone} that {share}: that {_open(unseen)} never do is not ruled out{undone}."


def of_all_times(unseen: Sequence[Unseen], metric: Metric) -> str:
    """Return why a verdict on a time speaks of all trainings."""
    alone = f" with {unseen[0].arm}" if len(unseen) == 1 else ""
    said = f"that {_open(unseen)}{alone} never {there(metric)} is not ruled out"
    return f" It holds for all trainings: {said}, and would undo nothing."


def there(metric: Metric) -> str:
    """Return what trainings do whose value is not where it is cut."""
    return "get there" if metric.threshold is not None else "stay below the cut"


def _open(unseen: Sequence[Unseen]) -> str:
    if len(unseen) == 1:
        return f"up to {_share(unseen[0].upper)}"
    return "up to " + " and ".join(f"{_share(one.upper)} with {one.arm}" for one in unseen)


def _share(value: float) -> str:
    return f"{100 * value:.0f} %" if value >= _PERCENT else f"{100 * value:.1f} %"


def too_few_left(rates: Sequence[CollapseRate], least: int) -> str:
    """Return why nothing is said about the mean of what is left."""
    left = " and ".join(f"{rate.of - rate.count} of {rate.of}" for rate in rates)
    return f"A mean is judged from {least} trainings of each arm that did not collapse; found {left}."


def too_few(counts: Sequence[int]) -> str:
    """Return why arms of these sizes, the control's first, cannot be compared."""
    if len(counts) > 2:
        return f"The test needs at least 2 valid runs in each arm; found {', '.join(map(str, counts))}."
    control, treatment = counts
    return (
        f"The test needs at least 2 valid runs in each arm; found {control} in the control arm "
        f"and {treatment} in the treatment arm."
    )


def violated(violations: Sequence[str]) -> str:
    """Return why a comparison says nothing about its variable."""
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    return f"The arms differ in more than the hypothesis declares{more}, and no amendment accepts it: {violations[0]}."


def same_in_all_runs(control: float, treatment: float, test: Test) -> tuple[VerdictName, str]:
    """Return what follows when neither arm varies."""
    if abs(treatment - control) <= SAME:
        said = f"Every run of both arms gave the same value ({control:.3f}); there is no difference to test."
        return "inconclusive", said
    said = (
        f"No run differs from its arm (control {control:.3f}, treatment {treatment:.3f}): without variance "
        f"{_TESTS[test]} does not exist, so the locked rule cannot decide."
    )
    return "invalid", said


def same_in_all_arms(effect: float) -> tuple[VerdictName, str]:
    """Return what follows when no arm of a contrast varies; `effect` is what their values amount to."""
    if abs(effect) <= SAME:
        return "inconclusive", "No run differs from its arm, and the arms' values amount to no effect."
    said = (
        f"No run differs from its arm (effect {effect:+.3f}): without variance {_TESTS['contrast']} does not exist, so"
    )
    return "invalid", f"{said} the locked rule cannot decide."


def same_in_all_pairs(difference: float) -> tuple[VerdictName, str]:
    """Return what follows when every pair of runs differs by the same."""
    if abs(difference) <= SAME:
        return "inconclusive", "Every pair of runs with one seed gave the same value; there is no difference to test."
    said = (
        f"Every pair of runs with one seed differs by the same ({difference:+.3f}): without variance the paired test "
        "does not exist, so the locked rule cannot decide."
    )
    return "invalid", said


def rates_apart(counts: tuple[Count, Count], p: float, level: float, predicted: bool, how: TestUsed) -> str:
    """Return why two rates are told apart."""
    said = "the predicted side" if predicted else "against the prediction"
    return f"{_rates_said(counts)}: {how.told} gives p = {p:.2g}, not above the level {level:.4g}; {said}."


def rates_not_told_apart(counts: tuple[Count, Count], p: float, level: float, how: TestUsed) -> str:
    """Return why the verdict on two rates is inconclusive."""
    return f"{_rates_said(counts)}: {how.told} gives p = {p:.2g}, above the level {level:.4g}."


def not_reached(rates: Sequence[ReachedRate], metric: Metric) -> str:
    """Return why nothing is claimed of a time: who did not get there, and with which limits who did."""
    cut = f"{metric.cut_at:,.0f} {metric.unit}"
    told = " and ".join(
        f"{rate.count} of {rate.of} with {rate.arm} (95 % limits {rate.low:.2f} to {rate.high:.2f})" for rate in rates
    )
    if metric.threshold is None:
        return f"More than half of an arm lies at {cut}, where it is cut, so that no mean is compared; below: {told}."
    within, goal = f"within {cut}", f"hidden success of {metric.threshold:g}"
    if not any(rate.count for rate in rates):
        return f"Not reached by any arm {within}: {goal} was reached by {told}."
    missed = " and ".join(
        f"{rate.of - rate.count} of {rate.of} runs with {rate.arm}" for rate in rates if 2 * rate.count < rate.of
    )
    return f"Not reached by {missed} {within}, so that no time is compared: {goal} was reached by {told}."


Count = tuple[int, int]
"""How many of how many."""


def _rates_said(counts: tuple[Count, Count]) -> str:
    (a, n), (b, m) = counts
    return f"{b} of {m} against {a} of {n}"


def _span(ends: tuple[float, float], level: float, told: str, how: TestUsed) -> str:
    low, high = ends_in_digits(ends, how.unit)
    return f"{level * 100:.4g} % interval of the {how.of} ({low} to {_in(high, how.unit)}; {told})"


def ends_in_digits(ends: tuple[float, float], unit: str = "") -> tuple[str, str]:
    """Return the signed ends of an interval, both with the digits of the larger; more where one would look like 0."""
    places = decimals(max(map(abs, ends))) if unit else 3
    while places < _MOST_PLACES and any(end and abs(end) < 0.5 * 10**-places for end in ends):
        places += 1
    low, high = (f"{end:+,.{places}f}" if end else f"{0:.{places}f}" for end in ends)
    return low, high


def decimals(value: float) -> int:
    """Return the decimals of what is counted in a unit: three digits in all, and every one of a large number's."""
    return next((places for least, places in ((99.95, 0), (9.995, 1), (0.9995, 2)) if abs(value) >= least), 3)


def _in(value: str, unit: str) -> str:
    return f"{value} {unit}" if unit else value


_PERCENT: Final = 0.01
_MOST_PLACES: Final = 6
_WHOLE: Final = 100
"""Episodes and the like from which on no fractions are told."""
