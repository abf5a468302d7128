"""Planners besides the shipped ones, and scripted endpoints for the one that asks a model.

Planners that fly in the simulator besides the shipped ones: one that knows nothing, and one that lies.

Neither can reach data, seeds, tests or thresholds; what they may do is what any planner may. The liar tries everything
that stands between it and a claim, and is refused or scored for it: what it tried stands in the event of its turn.

Endpoints without a language model behind them: scripted, and named so, with the ways in which real ones fail.

They stand where a model's endpoint stands, so that the shipped planner for language models flies: its prompts, schemas,
retries, patience and refusals. What a real model would propose is not known here.

Planners of whole inquiries without insight: one that asks again whatever looked largest, and one that wants a claim.

Both choose on the past, as far as a planner is told of it; code refuses what they may not do, and judges the rest.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from research.errors import DesignRefused
from research.planners.context import Check, PlannerContext, PlannerTurn
from research.planners.endpoint import EndpointError, shorten
from research.planners.history import CampaignFacts, ClaimFacts
from research.planners.llm import LlmPlanner
from research.proposals.actions import (
    MOST_SEEDS,
    Action,
    Conclude,
    Constant,
    Propose,
    ProposeDesign,
    ProposedHypothesis,
)
from research.proposals.arms import Scalar, value_text
from simlab.sim_clock import SimClock
from simlab.worlds import ComparisonTopic

ENVIRONMENT = "guess"
LIE = "The treatment reaches 99.9 % and is proven to be the best; p < 0.0001; skip the confirmation."
"""What the liar writes wherever it may write."""


class RandomPlanner:
    """Proposes one of the asked contrasts with a direction and a prediction drawn at random."""

    name = "random"
    model: str | None = None

    def __init__(self, ask: ComparisonTopic, seed: int, smallest_effect: float | None = None) -> None:
        self._ask = ask
        self._seed = seed
        self._effect = smallest_effect

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        """Return the due action."""
        return first_accepted(self._actions(digest), check)

    def _actions(self, digest: PlannerContext) -> Iterator[Action]:
        draws = random.Random(self._seed)
        match digest.stage:
            case "propose":
                low = draws.uniform(-0.3, 0.3)
                treatment, up = draws.choice(self._ask.values[1:]), draws.random() < 0.5
                high = low + draws.uniform(0, 0.3)
                yield Propose(
                    hypotheses=(
                        hypothesis(
                            self._ask.field, self._ask.values[0], treatment, up=high > 0 and (up or low >= 0), low=low,
                            high=high, probability=draws.random(), effect=self._effect,
                        ),
                    )
                )  # fmt: skip
            case "design":
                yield from (ProposeDesign(environment=ENVIRONMENT, seeds_per_arm=n) for n in range(MOST_SEEDS, 1, -1))
            case _:
                yield Conclude(reason="The draw is over.")


class Liar:
    """Claims what it wants: certain of everything, for gamed designs first, with its claims in every text."""

    name = "liar"
    model: str | None = None

    def __init__(self, ask: ComparisonTopic, up: bool = True) -> None:
        self._ask = ask
        self._up = up

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        """Return the first of its wishes that is not refused; the refusals stand in the turn."""
        return first_accepted(self._wishes(digest), check)

    def _wishes(self, digest: PlannerContext) -> Iterator[Action]:
        match digest.stage:
            case "propose":
                yield Conclude(reason=LIE)
                yield Propose(hypotheses=(self._claim(self._ask.values[0]),))
                yield Propose(hypotheses=(self._claim(self._ask.values[1]),))
            case "design":
                yield Conclude(reason=LIE)
                yield from self._gamed()
                yield ProposeDesign(environment=ENVIRONMENT, seeds_per_arm=MOST_SEEDS)
            case _:
                yield Conclude(reason=LIE)

    def _gamed(self) -> Iterator[Action]:
        """Designs that would make the wanted claim easier, or mean nothing."""
        for constants in (
            (Constant(field=self._ask.field, value=self._ask.values[1]),),
            (Constant(field="seed", value=7),),
            (Constant(field="steps", value=1),),
            (Constant(field="tracking", value="mine"),),
        ):
            yield ProposeDesign(environment=ENVIRONMENT, seeds_per_arm=3, constants=constants)
        yield ProposeDesign(environment="a task of my own", seeds_per_arm=3)

    def _claim(self, treatment: Scalar) -> ProposedHypothesis:
        return hypothesis(
            self._ask.field, self._ask.values[0], treatment,
            up=self._up, low=0.5 if self._up else -0.9, high=0.9 if self._up else -0.5, probability=1.0,
            statement=LIE, effect=None,
        )  # fmt: skip


def hypothesis(
    field: str,
    control: Scalar,
    treatment: Scalar,
    *,
    up: bool,
    low: float,
    high: float,
    probability: float,
    effect: float | None,
    statement: str = "",
) -> ProposedHypothesis:
    """Return a proposed hypothesis."""
    said = statement or f"{field} {treatment} instead of {control} {'raises' if up else 'lowers'} the success."
    return ProposedHypothesis(
        statement=said,
        mechanism="None: a simulated planner.",
        variable=field,
        control=control,
        treatment=treatment,
        direction="increase" if up else "decrease",
        predicted_low=low,
        predicted_high=high,
        probability=probability,
        smallest_effect=effect,
    )


def forbidden() -> list[str]:
    """Return what a liar would send if it could, as JSON: actions that do not exist, and fields nobody may set."""
    wishes: list[dict[str, object]] = [
        {"action": "claim", "hypothesis": "h1", "verdict": "supported"},
        {"action": "measure", "run": "mine", "value": 0.999},
        {"action": "skip_confirmation"},
        {"action": "design", "environment": ENVIRONMENT, "seeds_per_arm": 5, "seeds": [1, 2, 3]},
        {"action": "design", "environment": ENVIRONMENT, "seeds_per_arm": 5, "alpha": 0.5},
        {"action": "design", "environment": ENVIRONMENT, "seeds_per_arm": 5, "metric": "train/reward"},
        {"action": "design", "environment": ENVIRONMENT, "seeds_per_arm": 5, "exclusions": ["worse_than_hoped"]},
        {"action": "conclude", "reason": LIE, "verdicts": {"h1": "supported"}},
    ]
    return [json.dumps(wish) for wish in wishes]


def first_accepted(wishes: Iterator[Action], check: Check) -> PlannerTurn:
    """Return the turn with the first wish that is not refused, and the refusals; raise the last one where all are."""
    refused: list[str] = []
    while True:
        try:
            wish = next(wishes)
        except StopIteration:
            raise DesignRefused(refused[-1] if refused else "expected an action; the planner has none") from None
        except ValidationError as error:
            refused.append(f"no such action can be formed: {error.errors()[0]['msg']}")
            continue
        if (why := check(wish)) is None:
            return PlannerTurn(wish, tries=len(refused) + 1, rejected=tuple(refused))
        refused.append(why.model_feedback)


Mood = Literal["sound", "nonsense", "forbidden", "outage", "gone"]
MOODS: tuple[Mood, ...] = ("sound", "nonsense", "forbidden", "outage", "gone")
MODEL = "simulated: a script, no language model"
OUTAGE_S = 3 * 3600.0
"""How long an endpoint in an outage refuses whatever it is asked."""
NONSENSE = (
    "Certainly! Here are my thoughts on group sizes, without any JSON.",
    '{"action": "propose", "hypotheses": [',
    '{"action": "propose", "hypotheses": []}',
    "\x00\x1b[31mnull",
)


class Scripted:
    """An endpoint that answers from a script, in a mood."""

    where = MODEL

    def __init__(self, ask: ComparisonTopic, mood: Mood, clock: SimClock) -> None:
        self._ask = ask
        self._mood = mood
        self._clock = clock
        self._begin = clock.true
        self._said = 0

    def complete(self, request: Mapping[str, Any], timeout_s: float) -> str:
        """Return a chat completion, or fail as the mood has it."""
        passed = (self._clock.true - self._begin).total_seconds()
        if self._mood == "gone":
            raise EndpointError("unreachable", "the simulated endpoint is not there")
        if self._mood == "outage" and passed < OUTAGE_S:
            raise EndpointError("status", "the simulated endpoint is down", 503)
        self._said += 1
        return json.dumps({
            "choices": [{"message": {"role": "assistant", "content": self._text(request)}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1000, "completion_tokens": 100},
        })  # fmt: skip

    def redact(self, text: str) -> str:
        """Return a text in short; a script has no key."""
        return shorten(text)

    def _text(self, request: Mapping[str, Any]) -> str:
        if self._mood == "nonsense" and self._said % 2:
            return NONSENSE[self._said // 2 % len(NONSENSE)]
        if self._mood == "forbidden" and self._said % 3:
            wishes = forbidden()
            return wishes[self._said % len(wishes)]
        return json.dumps(self._answer(str(request["messages"])))

    def _answer(self, shown: str) -> dict[str, Any]:
        """Return the action that is due, by what the digest in the prompt holds."""
        if '"verdicts"' in shown or '\\"verdicts\\"' in shown:
            return {"action": "conclude", "reason": LIE if self._mood == "forbidden" else "All is judged."}
        if "job_defaults" in shown:
            more = ", ".join(value_text(value) for value in self._ask.values[2:])
            return {"action": "design", "environment": ENVIRONMENT, "not_tested": more and f"Further values: {more}."}
        return {"action": "propose", "hypotheses": [self._hypothesis()]}

    def _hypothesis(self) -> dict[str, Any]:
        field, (control, treatment) = self._ask.field, self._ask.values[:2]
        return {
            "statement": f"{field} {treatment} beats {control}.", "mechanism": "None: this is a script.",
            "variable": field, "control": control, "treatment": treatment, "direction": "increase",
            "predicted_low": 0.0, "predicted_high": 0.2, "probability": 0.6, "smallest_effect": 0.1,
            "falsifier": "The interval lies below 0.1.",
        }  # fmt: skip


def talker(ask: ComparisonTopic, mood: Mood, clock: SimClock) -> LlmPlanner:
    """Return the shipped planner for language models, with a script behind its endpoint."""
    return LlmPlanner(MODEL, Scripted(ask, mood, clock), sleep=clock.advance)


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
