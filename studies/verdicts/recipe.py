"""The best recipe that an inquiry confirmed: per job field the value shown to be better.

A value enters where the interval of its comparison leaves zero out, on the fresh seeds of a round; of several values of
one field in a round the one with the largest difference. A later round replaces it where it found another value better
than that very one; two that contradict each other leave neither; what was not shown again is taken back. Each setting
(environment, model, metric) has a recipe of its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from studies.log.study import StudyState
from studies.records.base import JsonValue, canonical
from studies.records.design import BUILT_IN, NO_CODE, Design, Hypothesis, Metric
from studies.records.statements import setting
from studies.records.verdict import Verdict

Follows = Callable[[StudyState, Verdict], bool]
"""Whether a verdict of a round still follows from its files."""


@dataclass(frozen=True, slots=True)
class BetterValue:
    """A comparison of which the last confirmation showed a better value, on fresh seeds."""

    round: int
    design: Design
    claim: Hypothesis
    verdict: Verdict
    fields: Mapping[str, JsonValue]
    """What the better arm sets (`reward` for one), as far as no later round set it otherwise."""
    over: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class ExcludedClaim:
    """What a round showed, and why it is no part of the recipe, or what is not known of it: a clause."""

    round: int
    claim: Hypothesis
    why: str


@dataclass(slots=True)
class SettingRecipe:
    """What was confirmed in one setting."""

    environment: str
    metric: Metric
    base: Mapping[str, JsonValue]
    """The job under all arms of the first design here, with its environment."""
    rounds: list[int] = field(default_factory=list)
    left: list[ExcludedClaim] = field(default_factory=list)
    _chosen: dict[str, BetterValue] = field(default_factory=dict)
    _past: list[BetterValue] = field(default_factory=list)

    @property
    def values(self) -> tuple[BetterValue, ...]:
        """What was confirmed, in the order of the rounds, each with the fields that are still its own."""
        kept = []
        for value in {id(value): value for value in self._chosen.values()}.values():
            own = {name: held for name, held in value.fields.items() if self._chosen.get(name) is value}
            kept.append(replace(value, fields=own, over={name: value.over[name] for name in own}))
        return tuple(sorted(kept, key=lambda value: value.round))

    def take(self, state: StudyState, design: Design, follows: Follows) -> None:
        self.rounds.append(state.round)
        better, taken = [], set[str]()
        for claim in design.hypotheses:
            verdict = state.verdict_on(claim.id)
            if verdict is None or not state.is_settled(claim.id):
                continue
            if verdict.verdict not in ("supported", "refuted") or not follows(state, verdict):
                if claim.kind == "difference":
                    self._take_back(state.round, claim)
            elif why := _why_left(design, claim, verdict):
                self.left.append(ExcludedClaim(state.round, claim, why))
            elif not verdict.exploratory and verdict.nonzero:
                better.append(_better(state.round, design, claim, verdict))
        for value in sorted(better, key=lambda value: -abs(value.verdict.estimate or 0.0)):
            if not taken & value.fields.keys():
                taken |= value.fields.keys()
                self._take(value)

    def _take(self, value: BetterValue) -> None:
        now = {name: self._chosen[name].fields[name] if name in self._chosen else self.base.get(name, BUILT_IN)
               for name in value.fields}  # fmt: skip
        before = [name for name in value.fields if name in self._chosen]
        compared, why = _same(now, value.over) or _same(now, value.fields), ""
        if before and any(_same(past.fields, value.over) and _same(past.over, value.fields) for past in self._past):
            why = "contradicts an earlier round; neither value is taken for it"
            self._chosen = {name: known for name, known in self._chosen.items() if name not in value.fields}
        elif before and not compared:
            why = f"is left out, as {format_fields(now)} was not compared with it"
        else:
            self._chosen |= dict.fromkeys(value.fields, value)
            fixed = f"{format_fields(now)}, as the job under all arms has it,"
            why = "" if compared else f"is taken though {fixed} was not compared with it"
        self.left += [ExcludedClaim(value.round, value.claim, why)] if why else []
        self._past.append(value)

    def _take_back(self, number: int, claim: Hypothesis) -> None:
        for value in {id(value): value for value in self._chosen.values()}.values():
            pairs = [{canonical(one.control), canonical(one.treatment)} for one in (value.claim, claim)]
            if value.claim.variable == claim.variable and pairs[0] == pairs[1]:
                why = f"was not shown again in round {number}, on fresh seeds: it is no part of a recipe"
                self.left.append(ExcludedClaim(value.round, value.claim, why))
                self._chosen = {name: known for name, known in self._chosen.items() if known is not value}


def _why_left(design: Design, claim: Hypothesis, verdict: Verdict) -> str:
    if claim.unused_control:
        return "is against a control nobody uses"
    if apart := design.metric.evaluates_apart(claim.declared):
        return f"is of arms that are each evaluated at its own {' and '.join(apart)}"
    if design.metric.evaluate_by:
        return "is of arms that are each evaluated by its own agent"
    if claim.kind != "difference":
        return "is an interaction or a trend, and no value of a job"
    survivors = rests_on_survivors(verdict, design.metric)
    return "is of trainings that did not collapse, and of the better value more did" if survivors else ""


def recipes(rounds: Sequence[StudyState], follows: Follows = lambda state, verdict: True) -> tuple[SettingRecipe, ...]:
    found: dict[str, SettingRecipe] = {}
    for state, design in ((state, state.design) for state in rounds if state.design is not None):
        measured = [getattr(design.metric, name) for name in ("key", "kind", "threshold", "of")]
        key = canonical([design.environment, design.base_job.get("model"), *measured])
        base = {**design.base_job, "environment": design.environment}
        found.setdefault(key, SettingRecipe(design.environment, design.metric, base)).take(state, design, follows)
    return tuple(found.values())


def rests_on_survivors(verdict: Verdict, metric: Metric) -> bool:
    """Return whether trainings of the better of two arms collapsed more often than those of the other."""
    rates = [rate.count / max(1, rate.of) for rate in verdict.collapses]
    if len(rates) != 2 or verdict.estimate is None:
        return False
    treatment_wins = (verdict.estimate > 0) == metric.higher_is_better
    return rates[treatment_wins] > rates[not treatment_wins]


def find_untested_pairs(
    values: Sequence[BetterValue], designs: Mapping[int, Design]
) -> Iterator[tuple[BetterValue, BetterValue]]:
    """Yield each pair of values that were never confirmed together: not all arms of the later one had the earlier."""
    for at, earlier in enumerate(values):
        for later in values[at + 1 :]:
            if later.round == earlier.round or not holds(designs[later.round], earlier):
                yield earlier, later


def holds(design: Design, value: BetterValue) -> bool | None:
    """Return whether all arms of a design had a value; None where it compares the field itself."""
    if {name for arm in design.arms for name in arm.overrides} & value.fields.keys():
        return None
    return all(canonical(design.base_job.get(name)) == canonical(held) for name, held in value.fields.items())


def format_fields(fields: Mapping[str, JsonValue]) -> str:
    return ", ".join(setting(name, value) for name, value in fields.items())


def _better(number: int, design: Design, claim: Hypothesis, verdict: Verdict) -> BetterValue:
    arms = design.arm(design.control_arm), design.arm_with(claim.variable, claim.treatment)
    sides = [
        {name: {**NO_CODE, **design.base_job, **arm.overrides}.get(name) for name in sorted(claim.declared)}
        for arm in arms
    ]
    treatment_wins = ((verdict.estimate or 0.0) > 0) == design.metric.higher_is_better
    return BetterValue(number, design, claim, verdict, sides[treatment_wins], sides[not treatment_wins])


def _same(left: Mapping[str, JsonValue], right: Mapping[str, JsonValue]) -> bool:
    return canonical(dict(left)) == canonical(dict(right))
