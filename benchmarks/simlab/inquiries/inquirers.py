"""Planners of whole inquiries without insight: one that asks again whatever looked largest, and one that wants a claim.

Both choose on the past, as far as a planner is told of it; code refuses what they may not do, and judges the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from research.planners.context import PlannerContext
from research.planners.history import CampaignFacts, ClaimFacts
from research.planners.protocol import Check, PlannerTurn
from research.proposals.actions import Action, Conclude, Constant, Propose, ProposeDesign, ProposedHypothesis
from research.proposals.arms import Scalar
from simlab.planners.simulated import LIE, first_accepted, hypothesis


@dataclass(frozen=True, slots=True)
class Pair:
    """Two values of a field."""

    field: str
    control: Scalar
    treatment: Scalar


class Follower:
    """Asks its pairs in turn, and in every second round again the one with the largest estimate not told apart."""

    name = "follower"
    model: str | None = None

    def __init__(self, pairs: Sequence[Pair], environment: str) -> None:
        self._pairs = pairs
        self._environment = environment

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        """Return the first of its wishes that is not refused; the refusals stand in the turn."""
        return first_accepted(self._wishes(digest), check)

    def _wishes(self, digest: PlannerContext) -> Iterator[Action]:
        match digest.stage:
            case "propose":
                for pair in self._by_hope(digest.campaign):
                    yield self._proposal(digest, pair)
            case "design":
                yield ProposeDesign(environment=self._environment, seeds_per_arm=5)
            case _:
                yield Conclude(reason="The luck is over.")

    def _proposal(self, digest: PlannerContext, pair: Pair) -> Propose:
        return Propose(hypotheses=(self._hypothesis(digest, pair),))

    def _hypothesis(self, digest: PlannerContext, pair: Pair) -> ProposedHypothesis:
        return hypothesis(
            pair.field, pair.control, pair.treatment, up=True, low=0.0, high=0.3, probability=0.6, effect=digest.effect
        )

    def _by_hope(self, inquiry: CampaignFacts | None) -> list[Pair]:
        """Return the pairs as it wishes to ask them: something new, and in every second round the largest again."""
        asked = {} if inquiry is None else _estimates(inquiry)
        largest = sorted(asked, key=lambda pair: asked[pair] or 0.0, reverse=True)
        hopeful = [pair for pair in largest if asked[pair] is not None]
        fresh = [pair for pair in self._pairs if pair not in asked]
        found = [pair for pair in largest if asked[pair] is None]
        odd = inquiry is None or inquiry.round % 2 == 1
        return [*fresh, *hopeful, *found] if odd else [*hopeful, *fresh, *found]


class InquiringLiar(Follower):
    """The same, certain of everything, with gamed designs first and its claim in every text it may write."""

    name = "liar"

    def _wishes(self, digest: PlannerContext) -> Iterator[Action]:
        match digest.stage:
            case "propose":
                first = self._pairs[0]
                yield self._proposal(digest, Pair(first.field, first.control, first.control))
            case "design":
                yield from self._gamed()
            case _:
                pass
        yield from super()._wishes(digest)

    def _gamed(self) -> Iterator[Action]:
        """Designs that would make the wanted claim easier, or mean nothing."""
        pair = self._pairs[0]
        wished = (Constant(field=pair.field, value=pair.treatment), Constant(field="seed", value=7))
        for constant in wished:
            yield ProposeDesign(environment=self._environment, seeds_per_arm=3, constants=(constant,))
        yield ProposeDesign(environment="a task of my own", seeds_per_arm=3)

    def _hypothesis(self, digest: PlannerContext, pair: Pair) -> ProposedHypothesis:
        return hypothesis(
            pair.field, pair.control, pair.treatment, up=True, low=0.5, high=0.9, probability=1.0, effect=None,
            statement=LIE,
        )  # fmt: skip


def _estimates(inquiry: CampaignFacts) -> Mapping[Pair, float | None]:
    """Return the size of the newest estimate of each pair that was asked; None for one that was told apart."""
    return {_pair(told): _open_size(told) for entry in inquiry.rounds for told in entry.claims}


def _pair(told: ClaimFacts) -> Pair:
    return Pair(told.claim.variable, told.claim.control, told.claim.treatment)


def _open_size(told: ClaimFacts) -> float | None:
    if told.found or told.verdict is None or told.verdict.estimate is None:
        return None
    return abs(told.verdict.estimate)
