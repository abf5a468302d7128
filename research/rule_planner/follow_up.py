"""What the rule planner asks next, from what the rounds before found: written rules, no insight.

After a finding: the same comparison in another environment; then its best value against its untried neighbours on the
ladder; then the next field, with the best value held. After none: the same field over a wider part of its ladder; then
the next field. A search is followed by a search: near the best where something was confirmed, once more over the same
values on fresh seeds where nothing was; where it was asked what is best, other environments come after that. Fields
come by what is expected of them. Each question is asked once; one that code refuses is followed by the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from research.errors import BadTopic, DesignRefused
from research.planner.digest import Digest, FieldFacts
from research.planner.inquiry import ClaimFacts, InquiryFacts, RoundFacts
from research.proposals.arms import Scalar, value_text
from research.proposals.flags import Shape
from research.rule_planner.search import Search, SearchedField, fields_that_matter, search_around
from research.rule_planner.values import Contrast, ValuePlan, plan_values, with_required_constants
from research.topic.reading import FieldReading
from studies.records.design import CONFIGURATION, MODEL, REWARD

MOST_NEIGHBOURS = 2
MOST_REPEATED = 1
"""Searches of the same values from the same control, after which they are not searched again."""


@dataclass(frozen=True, slots=True)
class FollowUp:
    """A question for the next round."""

    plan: ValuePlan | Search
    environment: str
    why: str
    """Why it is asked, in a sentence."""


def follow_ups(digest: Digest, inquiry: InquiryFacts) -> Iterator[FollowUp]:
    """Yield the questions that the rules ask next, the first choice first."""
    asker = _Asker(digest, inquiry)
    for found in asker.questions():
        if not asker.was_asked(found):
            yield found


@dataclass(frozen=True, slots=True)
class _Comparison:
    """What one claim compared, where."""

    environment: str
    field: str
    values: frozenset[Scalar]


class _Asker:
    def __init__(self, digest: Digest, inquiry: InquiryFacts) -> None:
        self._facts: Mapping[str, FieldFacts] = {facts.name: facts for facts in digest.fields}
        self._digest = digest
        self._rounds = inquiry.rounds
        self._last = inquiry.rounds[-1]
        self._asked = {_compared(entry, told) for entry in inquiry.rounds for told in entry.claims if _plain(told)}

    def was_asked(self, found: FollowUp) -> bool:
        """Return whether an earlier round compared all of it; of fields that go together the asker itself looks."""
        if isinstance(found.plan, Search):
            return self._was_searched(found.plan)
        return found.plan.shape == "apart" and all(
            _Comparison(found.environment, contrast.field, frozenset({contrast.control, value})) in self._asked
            for contrast in found.plan.contrasts
            for value in contrast.treatments
        )

    def questions(self) -> Iterator[FollowUp]:
        claims = [told for told in self._last.claims if _plain(told)]
        findings = [told for told in claims if told.found]
        yield from self._search_on()
        for told in findings:
            yield from self._elsewhere(told)
        for told in self._last.claims:
            if told.found and told.claim.variable == CONFIGURATION:
                yield from self._whole_elsewhere(told)
        for told in findings:
            yield from self._near(told)
        for told in claims:
            if not told.found:
                yield from self._wider(told)
        yield from self._other_fields()

    def _search_on(self) -> Iterator[FollowUp]:
        """Search near the best of a search that found something, and the same values again after one that did not."""
        searched = self._last.searched
        if not searched:
            return
        control, found = _control(self._last), _best_of(self._last)
        best = {knob.field: self._said(knob.field, found.get(knob.field, control[knob.field])) for knob in searched}
        if not found:
            if any(told.found for told in self._last.claims):
                return  # what was found is worse: it would be found again
            knobs = [SearchedField(knob.field, best[knob.field], knob.values) for knob in searched]
            why = "Nothing better was confirmed; the same values are searched once more, on fresh seeds."
        else:
            knobs = [SearchedField(name, value, self._values_near(name, value)) for name, value in best.items()]
            why = "A better configuration was confirmed; its neighbours are searched."
        held = {name: value for name, value in self._held(self._last.design.environment).items() if name not in best}
        with suppress(BadTopic, DesignRefused):
            knobs = [knob for knob in knobs if len(knob.values) > 1]
            yield FollowUp(search_around(knobs, held, self._facts), self._last.design.environment, why)

    def _values_near(self, name: str, best: Scalar) -> tuple[Scalar, ...]:
        """Return a value with its neighbours among all that were ever searched; words have none, so all of them."""
        known = [value for entry in self._rounds for knob in entry.searched if knob.field == name
                 for value in knob.values]  # fmt: skip
        if self._facts[name].of_words or isinstance(best, str):
            return tuple(dict.fromkeys(known))
        ladder = sorted({*known, best}, key=float)
        place = ladder.index(best)
        return tuple(ladder[max(0, place - 1) : place + 2])

    def _said(self, name: str, value: Scalar | None) -> Scalar:
        """Return a value as it is compared: an unset field is what it amounts to."""
        return self._facts[name].default if value is None else value

    def _was_searched(self, plan: Search) -> bool:
        """Return whether the same values were searched from the same control twice, or once near a best."""
        wanted = {knob.field: (knob.control, frozenset(knob.values)) for knob in plan.knobs}
        return sum(_searched(entry) == wanted for entry in self._rounds) > MOST_REPEATED

    def _elsewhere(self, told: ClaimFacts) -> Iterator[FollowUp]:
        """Ask whether a finding holds in another environment, once."""
        pair = told.claim.variable, frozenset({told.claim.control, told.claim.treatment})
        if sum((entry.field, entry.values) == pair for entry in self._asked) > 1:
            return
        here = self._last.design.environment
        name = told.claim.variable
        sides = (self._said(name, told.claim.control), self._said(name, told.claim.treatment))
        contrast = Contrast(name, sides[0], (sides[1],), None)
        for facts in self._digest.environments:
            if facts.name != here and self._digest.wanted.refuses(facts.name) is None:
                why = f"What was found of {told.claim.variable} in {here} is tried in {facts.name}."
                yield from self._follow_up([contrast], facts.name, why, held_in=here)

    def _whole_elsewhere(self, told: ClaimFacts) -> Iterator[FollowUp]:
        """Ask whether a finding about several fields holds in another environment, once: with all its arms."""
        asked = {
            entry.design.environment
            for entry in self._rounds
            for other in entry.claims
            if (other.claim.control, other.claim.treatment) == (told.claim.control, told.claim.treatment)
        }
        if len(asked) > 1:
            return
        sides = {name: [self._said(name, value) for value in told.claim.varied[name]] for name in told.claim.varied}
        alike = {name: values[0] for name, values in sides.items() if values[0] == values[1]}
        varied = {name: values for name, values in sides.items() if name not in alike}
        usual: Shape = "together" if len(varied) > 1 else "apart"
        shape: Shape = "interaction" if told.claim.moderator else usual
        order = sorted(varied, key=lambda name: name == told.claim.moderator)
        contrasts = tuple(Contrast(name, varied[name][0], (varied[name][1],), None) for name in order)
        here = self._last.design.environment
        held = {name: value for name, value in (self._held(here) | alike).items() if name not in varied}
        for facts in self._digest.environments:
            if facts.name in asked or self._digest.wanted.refuses(facts.name) is not None:
                continue
            with suppress(BadTopic, DesignRefused):
                constants, adjusted = with_required_constants(contrasts, held, self._facts, shape)
                why = f"What was found of {' and '.join(order)} is tried in {facts.name}."
                yield FollowUp(ValuePlan(contrasts, constants, adjusted, shape), facts.name, why)

    def _near(self, told: ClaimFacts) -> Iterator[FollowUp]:
        """Ask whether a neighbour of the better value on the ladder is better still."""
        name, best = told.claim.variable, _better(told, self._last)
        ladder = self._facts[name].ladder
        if best not in ladder or self._facts[name].of_words:
            return
        place = ladder.index(best)
        near = [ladder[index] for index in (place + 1, place - 1) if 0 <= index < len(ladder)]
        tried = {value for entry in self._asked if entry.field == name for value in entry.values}
        if untried := tuple(value for value in near if value not in tried)[:MOST_NEIGHBOURS]:
            why = f"{name} = {value_text(best)} was the better value; its neighbours are compared with it."
            yield from self._follow_up([Contrast(name, best, untried, None)], self._last.design.environment, why)

    def _wider(self, told: ClaimFacts) -> Iterator[FollowUp]:
        """Ask for the same field over the whole of its ladder, where a part of it showed nothing."""
        name = told.claim.variable
        facts = self._facts[name]
        if facts.of_words or facts.apart or len(facts.ladder) < 2:
            return
        low, high = facts.ladder[0], facts.ladder[-1]
        pair = f"{value_text(told.claim.control)} and {value_text(told.claim.treatment)}"
        why = f"{name} was not told apart between {pair}; the ends of its ladder are compared."
        yield from self._follow_up([Contrast(name, low, (high,), None)], self._last.design.environment, why)

    def _other_fields(self) -> Iterator[FollowUp]:
        """Ask of the fields that no round was about, with the better value of each finding held."""
        varied = {name for entry in self._rounds for told in entry.claims for name in told.claim.varied}
        environment = self._rounds[0].design.environment
        for reading in fields_that_matter(self._digest.fields):
            if reading.field in varied or self._is_the_user_s(reading.field):
                continue
            with suppress(BadTopic, DesignRefused):
                [contrast] = plan_values([FieldReading(reading.field)], self._facts).contrasts
                why = f"{reading.field} is the field of which most is expected among those not compared yet."
                yield from self._follow_up([contrast], environment, why)

    def _is_the_user_s(self, name: str) -> bool:
        """Return whether the user set a field, which then is what it is in all arms."""
        return self._facts[name].given or name in self._digest.wanted.held

    def _follow_up(
        self, contrasts: Sequence[Contrast], environment: str, why: str, held_in: str | None = None
    ) -> Iterator[FollowUp]:
        """Yield a question with what findings in its environment say to hold, or those in `held_in`."""
        varied = {contrast.field for contrast in contrasts}
        held = {name: value for name, value in self._held(held_in or environment).items() if name not in varied}
        with suppress(BadTopic, DesignRefused):  # values that make no job together
            constants, adjusted = with_required_constants(contrasts, held, self._facts)
            yield FollowUp(ValuePlan(tuple(contrasts), constants, adjusted), environment, why)

    def _held(self, environment: str) -> dict[str, Scalar]:
        """Return what all arms share: what the first round held, and the better value of each finding in a place.

        What is better in one environment may be worse in another.
        """
        first = self._rounds[0]
        varied = {name for told in first.claims for name in told.claim.varied}
        base = first.design.base_job
        held = {
            name: base[name]
            for name, facts in self._facts.items()
            if name not in varied | {MODEL} and name in base and base[name] not in (None, facts.default)
        }
        for entry in (entry for entry in self._rounds if entry.design.environment == environment):
            if entry.searched:
                held |= {name: self._said(name, value) for name, value in _best_of(entry).items()}
                continue
            found = [told for told in entry.claims if _plain(told) and told.found and told.claim.kind == "difference"]
            held |= {told.claim.variable: self._said(told.claim.variable, _better(told, entry)) for told in found}
        return held


def _better(told: ClaimFacts, entry: RoundFacts) -> Scalar:
    """Return the better value of a finding, by the metric of its own round."""
    assert told.verdict is not None
    assert told.verdict.estimate is not None
    higher = told.verdict.estimate > 0
    best = higher == entry.design.metric.higher_is_better
    value: Scalar = told.claim.treatment if best else told.claim.control
    return value


def _searched(entry: RoundFacts) -> dict[str, tuple[Scalar, frozenset[Scalar]]] | None:
    """Return what a round searched, by field: the control's value, and the values tried; None where it did not."""
    control = _control(entry)
    return {knob.field: (control[knob.field], frozenset(knob.values)) for knob in entry.searched} or None


def _control(entry: RoundFacts) -> dict[str, Any]:
    """Return every job field of a round's control arm."""
    return {**entry.design.base_job, **entry.design.arm(entry.design.control_arm).job_overrides}


def _best_of(entry: RoundFacts) -> dict[str, Scalar | None]:
    """Return the values of the searched configuration of which most was confirmed; nothing where none is better."""
    better = []
    for told in entry.claims:
        estimate = None if told.verdict is None else told.verdict.estimate
        if told.found and estimate and (estimate > 0) == entry.design.metric.higher_is_better:
            better.append((abs(estimate), {name: sides[1] for name, sides in told.claim.varied.items()}))
    return max(better, key=lambda found: found[0])[1] if better else {}


def _plain(told: ClaimFacts) -> bool:
    """Return whether a claim is about one field whose values are numbers or words."""
    return told.claim.variable not in (CONFIGURATION, MODEL, REWARD) and told.claim.matched == "steps"


def _compared(entry: RoundFacts, told: ClaimFacts) -> _Comparison:
    return _Comparison(
        entry.design.environment, told.claim.variable, frozenset({told.claim.control, told.claim.treatment})
    )
