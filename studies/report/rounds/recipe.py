"""The best recipe that an inquiry confirmed: of each variable the value that was shown to be better, and by how much.

Only what the last confirmation of a comparison showed counts: one that a later round tried again on fresh seeds and did
not show again is taken back. Each setting (environment, model, metric) has a recipe of its own. Whether several better
values are better together is known only where each was compared with those before it in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from studies.log.study_state import StudyState
from studies.records.base import JsonValue, canonical
from studies.records.design import CONFIGURATION, Design, Hypothesis, Metric
from studies.records.verdict import Verdict

_SHOWS = ("supported", "refuted")


@dataclass(frozen=True, slots=True)
class BetterValue:
    """A comparison of which the last confirmation showed a better value, on fresh seeds."""

    round: int
    design: Design
    claim: Hypothesis
    verdict: Verdict
    better: JsonValue
    other: JsonValue

    @property
    def overrides(self) -> dict[str, JsonValue]:
        """The job fields that the better value sets."""
        if self.claim.variable == CONFIGURATION and isinstance(self.better, dict):
            return dict(self.better)
        return {self.claim.variable: self.better}


@dataclass(slots=True)
class SettingRecipe:
    """What was confirmed in one setting."""

    environment: str
    metric: Metric
    values: dict[str, BetterValue] = field(default_factory=dict)
    """By variable; in the order in which they were confirmed last."""
    taken_back: list[tuple[BetterValue, int]] = field(default_factory=list)
    """What was shown once and not again by the round of this number."""

    @property
    def together(self) -> bool:
        """Whether each value was compared with all that were confirmed before it in place."""
        values = list(self.values.values())
        return all(
            _in_place(later.design, name, value)
            for place, later in enumerate(values)
            for earlier in values[:place]
            for name, value in earlier.overrides.items()
        )

    def take(self, state: StudyState, design: Design, claim: Hypothesis, verdict: Verdict) -> None:
        """Take the verdict of a later round into account."""
        known = self.values.get(claim.variable)
        pair = {canonical(claim.control), canonical(claim.treatment)}
        if verdict.verdict in _SHOWS and not verdict.exploratory and verdict.estimate is not None:
            if known is None or canonical(known.better) in pair or _goes_on(known, claim):
                self.values.pop(claim.variable, None)
                shown = _shown(state.round, design, claim, verdict, verdict.estimate)
                self.values[claim.variable] = shown if known is None else _with_the_rest(shown, known)
        elif known is not None and pair == {canonical(known.claim.control), canonical(known.claim.treatment)}:
            self.taken_back.append((self.values.pop(claim.variable), state.round))


def recipes(rounds: Sequence[StudyState]) -> tuple[SettingRecipe, ...]:
    """Return what was confirmed, setting by setting, in the order in which settings were first tried."""
    found: dict[str, SettingRecipe] = {}
    for state in rounds:
        if (design := state.design) is None:
            continue
        key = canonical([design.environment, design.base_job.get("model"), design.metric.key])
        recipe = found.setdefault(key, SettingRecipe(design.environment, design.metric))
        for claim in design.hypotheses:
            verdict = state.verdict_on(claim.id)
            if claim.kind != "difference":
                continue  # of an interaction or a trend no arm is said to be the better one
            if verdict is not None and state.is_settled(claim.id):
                recipe.take(state, design, claim, verdict)
    return tuple(found.values())


def _shown(number: int, design: Design, claim: Hypothesis, verdict: Verdict, estimate: float) -> BetterValue:
    wins = (estimate > 0) == design.metric.higher_is_better
    better, other = (claim.treatment, claim.control) if wins else (claim.control, claim.treatment)
    return BetterValue(number, design, claim, verdict, better, other)


def _goes_on(known: BetterValue, claim: Hypothesis) -> bool:
    """Return whether a claim on a configuration has the known one as a side, as far as it names its fields."""
    if claim.variable != CONFIGURATION:
        return False
    have = known.overrides
    sides = (side for side in (claim.control, claim.treatment) if isinstance(side, dict))
    return any(all(canonical(have.get(name)) == canonical(value) for name, value in side.items()) for side in sides)


def _with_the_rest(shown: BetterValue, known: BetterValue) -> BetterValue:
    """Return a better configuration with the values of the known one that its round did not vary, but held."""
    if shown.claim.variable != CONFIGURATION:
        return shown
    held = {**shown.design.base_job, **shown.design.arm(shown.design.control_arm).overrides}
    rest = {name: value for name, value in known.overrides.items() if canonical(held.get(name)) == canonical(value)}
    return replace(shown, better={**rest, **shown.overrides})


def _in_place(design: Design, name: str, value: JsonValue) -> bool:
    """Return whether the control of a design, with which its other arms are compared, has a value."""
    held = {**design.base_job, **design.arm(design.control_arm).overrides}
    return name in held and canonical(held[name]) == canonical(value)
