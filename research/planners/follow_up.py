"""What the rule planner expects before any run, searches for best values, and asks next.

Expectations are modest guesses written by hand from experience with GRPO: priors, not results. Intervals hold 80 %, in
units of the success rate, for raising a field across its ladder; lowering mirrors them. After a finding:
the same comparison in another environment, then the best value against its untried neighbours, then the next field with
the best value held. After none: a wider part of the ladder, then the next field. A search is followed by a search. Each
question is asked once; one that code refuses is followed by the next.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from research.errors import BadTopic, DesignRefused
from research.files import load_table
from research.planners.context import FieldSpec, PlannerContext
from research.planners.history import CampaignFacts, ClaimFacts, RoundFacts
from research.planners.values import Contrast, ValuePlan, add_required_constants, choose_values, plan_search
from research.proposals.actions import MOST_KNOBS
from research.proposals.arms import Scalar, value_text
from research.proposals.flags import Claim, Shape
from research.proposals.metric_choice import metric_range
from studies.records.design import CONFIGURATION, MODEL, SLOTS, Metric
from studies.verdicts.recipe import rests_on_survivors
from swarm.job import tunables

MOST_NEIGHBOURS = 2
MOST_REPEATED = 1
"""Searches of the same values from the same control, after which they are not searched again."""


class Prior(NamedTuple):
    """Expectation for raising one field."""

    low: float
    high: float
    raises: float
    lowers: float
    because: str


UNDIRECTED = 0.5
"""Probability given to a claim that the topic itself leaves open."""
_A_LITTLE = 0.01
"""How far an interval reaches into the direction of a claim that its prior thinks little of."""
_PRIORS: Mapping[str, Any] = load_table(__package__, "priors.toml")

UNSEEN_CONFOUNDERS: Mapping[str, tuple[str, ...]] = {
    "kl_coef": ("less movement in all, which fewer steps would bring about as well",),
    "learning_rate": ("collapsed runs, which a mean hides",),
}
"""What code does not see by itself (`research.proposals.arms.add_potential_confounders`)."""


def predict_best(fields: Sequence[str]) -> tuple[float, float, float]:
    """Return (low, high, probability) for the best of a screen's candidates, as if priors were independent."""
    known = [find_prior(field) for field in fields]
    none = math.prod((1 - prior.raises / 2) * (1 - prior.lowers / 2) for prior in known)
    return -0.05, max(max(prior.high, -prior.low) for prior in known), round(1 - none, 3)


def find_prior(field: str) -> Prior:
    known = _PRIORS.get(field)
    return Prior(**known) if known else Prior(-0.15, 0.15, 0.2, 0.2, "No prior knowledge of this field.")


def predict(field: str, *, rises: bool, claim: Claim | None) -> tuple[float, float, float]:
    """Return (low, high, probability) for a claim about `field`; an interval reaches a little into what is claimed."""
    prior = find_prior(field)
    low, high = (prior.low, prior.high) if rises else (0.0 - prior.high, 0.0 - prior.low)
    if claim != "increase":
        low = min(low, -_A_LITTLE)
    if claim != "decrease":
        high = max(high, _A_LITTLE)
    if claim is None:
        return low, high, UNDIRECTED
    return low, high, prior.raises if (claim == "increase") == rises else prior.lowers


def scale_to_metric(low: float, high: float, metric: Metric) -> tuple[float, float]:
    """Return an interval of success rates as one of a metric: shares as they are, others by their range."""
    scale = metric_range(metric) if metric.unit else 1.0
    ends = [float(f"{(end if metric.higher_is_better else 0.0 - end) * scale:.6g}") for end in (low, high)]
    return min(ends), max(ends)


class FollowUp(NamedTuple):
    """A question for the next round."""

    plan: ValuePlan
    environment: str
    why: str


class FollowUpFinder:
    """Asks of the rounds that are over what is worth asking next."""

    def __init__(self, context: PlannerContext, campaign: CampaignFacts) -> None:
        self._context = context
        self._specs: Mapping[str, FieldSpec] = {spec.name: spec for spec in context.fields}
        self._rounds, self._last = campaign.rounds, campaign.rounds[-1]
        self._asked = {
            (entry.design.environment, told.claim.variable, frozenset({told.claim.control, told.claim.treatment}))
            for entry in campaign.rounds
            for told in entry.claims
            if _is_single_field(told)
        }
        """Environment, field and values of each comparison of one field."""

    def find(self) -> Iterator[FollowUp]:
        """Yield the questions that no earlier round asked whole, the first being the likeliest."""
        searched = [
            {knob.field: (control[knob.field], frozenset(knob.values)) for knob in entry.searched}
            for entry, control in ((entry, _control_settings(entry)) for entry in self._rounds)
        ]
        for plan, environment, why in self._questions():
            if plan.confirm:
                space = {name: (control, frozenset(values)) for name, control, values in plan.contrasts}
                asked = searched.count(space) > MOST_REPEATED
            else:  # of fields that go together `_ask_elsewhere` itself looks
                pairs = [(name, frozenset({control, v})) for name, control, values in plan.contrasts for v in values]
                asked = plan.shape == "apart" and all((environment, *pair) in self._asked for pair in pairs)
            if not asked:
                yield FollowUp(plan, environment, why)

    def _questions(self) -> Iterator[FollowUp]:
        claims = [told for told in self._last.claims if _is_single_field(told)]
        yield from self._ask_search()
        findings = [told for told in claims if told.found]
        joint = [told for told in self._last.claims if told.found and told.claim.variable == CONFIGURATION]
        for told in (*findings, *joint):
            yield from self._ask_elsewhere(told)
        for told in sorted(claims, key=lambda told: not told.found):
            yield from self._ask_other_values(told)
        varied = {name for past in self._rounds for told in past.claims for name in told.claim.varied}
        plain = tunables().keys() - {"steps"}  # another game is nobody's next question
        able = [spec.name for spec in self._context.fields if spec.name in plain and not spec.is_categorical]
        for name in sorted(able, key=lambda name: -find_prior(name).raises)[:MOST_KNOBS]:
            if name in varied or self._specs[name].given or name in self._context.wanted.held:
                continue
            with suppress(BadTopic, DesignRefused):
                control, *treatments = choose_values(self._specs[name])
                why = f"{name} is the field of which most is expected among those not compared yet."
                contrast = Contrast(name, control, tuple(treatments))
                yield from self._make_follow_up([contrast], self._rounds[0].design.environment, why)

    def _ask_search(self) -> Iterator[FollowUp]:
        searched, environment = self._last.searched, self._last.design.environment
        control, best = _control_settings(self._last), _best_settings(self._last)
        if not searched or (not best and any(told.found for told in self._last.claims)):
            return  # what was found is worse: it would be found again
        places = {
            knob.field: self._effective_value(knob.field, best.get(knob.field, control[knob.field]))
            for knob in searched
        }
        knobs = [Contrast(knob.field, places[knob.field], knob.values) for knob in searched]
        why = "Nothing better was confirmed; the same values are searched once more, on fresh seeds."
        if best:
            knobs = [knob._replace(treatments=self._neighbour_values(knob.field, knob.control)) for knob in knobs]
            why = "A better configuration was confirmed; its neighbours are searched."
        with suppress(BadTopic, DesignRefused):
            knobs = [knob for knob in knobs if len(knob.treatments) > 1]
            plan = plan_search(knobs, self._shared_settings(environment, places), self._specs)
            yield FollowUp(plan, environment, why)

    def _neighbour_values(self, name: str, best: Scalar) -> tuple[Scalar, ...]:
        """Return a value with its neighbours among all that were ever searched; words have none, so all of them."""
        searched = (knob for entry in self._rounds for knob in entry.searched if knob.field == name)
        known = [value for knob in searched for value in knob.values]
        if self._specs[name].is_categorical or isinstance(best, str):
            return tuple(dict.fromkeys(known))
        ladder = sorted({*known, best}, key=float)
        place = ladder.index(best)
        return tuple(ladder[max(0, place - 1) : place + 2])

    def _effective_value(self, name: str, value: Scalar | None) -> Scalar:
        return self._specs[name].default if value is None else value

    def _ask_elsewhere(self, told: ClaimFacts) -> Iterator[FollowUp]:
        """Ask of a finding whether it holds in an environment in which nobody compared the same; twice is enough."""
        claim, here = told.claim, self._last.design.environment
        pair = {str(claim.control), str(claim.treatment)}
        compared = {
            entry.design.environment
            for entry in self._rounds
            for other in entry.claims
            if other.claim.variable == claim.variable and {str(other.claim.control), str(other.claim.treatment)} == pair
        }
        if len(compared) > 1:
            return
        sides = {name: [self._effective_value(name, one) for one in values] for name, values in claim.varied.items()}
        alike = {name: values[0] for name, values in sides.items() if values[0] == values[1]}
        order = sorted(sides.keys() - alike, key=lambda name: (name == claim.moderator, list(sides).index(name)))
        shape: Shape = "interaction" if claim.moderator else "together" if len(order) > 1 else "apart"
        contrasts = tuple(Contrast(name, sides[name][0], (sides[name][1],)) for name in order)
        held = self._shared_settings(here, set(order)) | alike
        for spec in self._context.environments:
            if spec.name not in compared and self._context.wanted.find_conflict(spec.name) is None:
                why = f"What was found of {' and '.join(order)} in {here} is tried in {spec.name}."
                yield from self._make_follow_up(contrasts, spec.name, why, held, shape)

    def _ask_other_values(self, told: ClaimFacts) -> Iterator[FollowUp]:
        """Ask a finding's better value against its untried neighbours, and of no finding the ends of its ladder."""
        name, spec = told.claim.variable, self._specs[told.claim.variable]
        ladder = spec.ladder
        if spec.is_categorical:
            return
        environment = self._last.design.environment
        worse = list(self._find_worse(name, environment))
        open_rungs = tuple(  # none at or beyond one that was worse than another on this side of it
            value for value in ladder if all((bad - good) * (float(value) - bad) < 0 for good, bad in worse)
        )
        if told.found:
            best = _better_value(told, self._last)
            if not _is_taken(told, self._last):
                return
            place = ladder.index(best) if best in ladder else len(ladder) + 1
            near = [ladder[index] for index in (place + 1, place - 1) if 0 <= index < len(ladder)]
            tried = {value for _, field, values in self._asked if field == name for value in values}
            near = [value for value in near if value in open_rungs and value not in tried]
            contrast = Contrast(name, best, tuple(near[:MOST_NEIGHBOURS]))
            why = f"{name} = {value_text(best)} was the better value; its neighbours are compared with it."
        else:
            contrast = Contrast(name, (open_rungs or ladder)[0], () if spec.apart else open_rungs[1:][-1:])
            pair = f"{value_text(told.claim.control)} and {value_text(told.claim.treatment)}"
            why = f"{name} was not told apart between {pair}; the ends of its ladder are compared."
        if contrast.treatments:
            yield from self._make_follow_up([contrast], environment, why)

    def _find_worse(self, name: str, environment: str) -> Iterator[tuple[float, float]]:
        """Yield of each two values of a field the better and the worse: which collapses more often, else which lost."""
        for entry in (entry for entry in self._rounds if entry.design.environment == environment):
            for told in entry.claims:
                claim, verdict = told.claim, told.verdict
                if verdict is None or claim.variable != name or claim.kind != "difference":
                    continue
                values = [float(self._effective_value(name, value)) for value in (claim.control, claim.treatment)]
                fell = [rate.count / max(1, rate.of) for rate in verdict.collapses] or [0.0, 0.0]
                if fell[0] != fell[1]:
                    yield values[fell[0] > fell[1]], values[fell[0] < fell[1]]
                elif told.found:
                    wins = verdict.estimate is not None and _is_better(verdict.estimate, entry)
                    yield values[wins], values[not wins]

    def _make_follow_up(
        self, contrasts: Sequence[Contrast], environment: str, why: str, held: Mapping[str, Scalar] | None = None,
        shape: Shape = "apart",
    ) -> Iterator[FollowUp]:  # fmt: skip
        if held is None:
            held = self._shared_settings(environment, {contrast.field for contrast in contrasts})
        with suppress(BadTopic, DesignRefused):  # values that make no job together
            constants, adjusted = add_required_constants(contrasts, held, self._specs, shape)
            yield FollowUp(ValuePlan(tuple(contrasts), constants, adjusted, shape), environment, why)

    def _shared_settings(self, environment: str, free: Collection[str]) -> dict[str, Scalar]:
        """Return what the first round held and the better values found here, which may be worse elsewhere."""
        first = self._rounds[0]
        kept = {MODEL}.union(*(told.claim.varied for told in first.claims))
        base = first.design.base_job
        held: dict[str, Scalar | None] = {
            name: base[name]
            for name, spec in self._specs.items()
            if name not in kept and name in base and base[name] not in (None, spec.default)
        }
        for entry in (entry for entry in self._rounds if entry.design.environment == environment):
            held |= _best_settings(entry) if entry.searched else {
                told.claim.variable: _better_value(told, entry)
                for told in entry.claims
                if _is_single_field(told) and told.claim.kind == "difference" and _is_taken(told, entry)
            }  # fmt: skip
        return {name: self._effective_value(name, value) for name, value in held.items() if name not in free}


def _better_value(told: ClaimFacts, entry: RoundFacts) -> Any:
    assert told.verdict is not None
    better = _is_better(told.verdict.estimate or 0.0, entry)
    return told.claim.treatment if better else told.claim.control


def _is_taken(told: ClaimFacts, entry: RoundFacts) -> bool:
    """Return whether a finding is a reason to take its better value, and no finding on those that survived it."""
    return told.found and told.verdict is not None and not rests_on_survivors(told.verdict, entry.design.metric)


def _is_better(estimate: float, entry: RoundFacts) -> bool:
    return (estimate > 0) == entry.design.metric.higher_is_better


def _control_settings(entry: RoundFacts) -> dict[str, Any]:
    return {**entry.design.base_job, **entry.design.arm(entry.design.control_arm).job_overrides}


def _best_settings(entry: RoundFacts) -> dict[str, Scalar | None]:
    better = []
    for told in entry.claims:
        estimate = None if told.verdict is None else told.verdict.estimate
        if told.found and estimate and _is_better(estimate, entry):
            better.append((abs(estimate), {name: sides[1] for name, sides in told.claim.varied.items()}))
    return max(better, key=lambda side: side[0])[1] if better else {}


def _is_single_field(told: ClaimFacts) -> bool:
    return told.claim.variable not in (CONFIGURATION, MODEL, *SLOTS) and told.claim.matched == "steps"
