"""Planners besides the shipped ones, and scripted endpoints for the one that asks a model.

A planner that knows nothing, one that lies, and two of whole inquiries without insight: one that asks again whatever
looked largest, and one that wants a claim. None can reach data, seeds, tests or thresholds; they may do what any
planner may. A liar tries everything that stands between it and a claim, and is refused or scored for it: what it tried
stands in the event of its turn.

Endpoints are scripted, and named so, with the ways in which real ones fail. They stand where a model's endpoint stands,
so that the shipped planner for language models flies: its prompts, schemas, retries, patience and refusals. What a real
model would propose is not known here.
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
from research.planners.history import CampaignFacts
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


class WishfulPlanner:
    """Wishes for one action after another, until one is not refused."""

    name: str
    model: str | None = None

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        """Return the first of its wishes that is not refused, and the refusals; raise the last one where all are."""
        refused: list[str] = []
        wishes = self._wishes(digest)
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

    def _wishes(self, digest: PlannerContext) -> Iterator[Action]:
        raise NotImplementedError


class RandomPlanner(WishfulPlanner):
    """Proposes one of the asked contrasts with a direction and a prediction drawn at random."""

    name = "random"

    def __init__(self, ask: ComparisonTopic, seed: int) -> None:
        self._ask = ask
        self._seed = seed

    def _wishes(self, digest: PlannerContext) -> Iterator[Action]:
        draws = random.Random(self._seed)
        match digest.stage:
            case "propose":
                low = draws.uniform(-0.3, 0.3)
                treatment, up = draws.choice(self._ask.values[1:]), draws.random() < 0.5
                high = low + draws.uniform(0, 0.3)
                claim = hypothesis(
                    self._ask.field, self._ask.values[0], treatment, up=high > 0 and (up or low >= 0), low=low,
                    high=high, probability=draws.random(), effect=None,
                )  # fmt: skip
                yield Propose(hypotheses=(claim,))
            case "design":
                yield from (ProposeDesign(environment=ENVIRONMENT, seeds_per_arm=n) for n in range(MOST_SEEDS, 1, -1))
            case _:
                yield Conclude(reason="The draw is over.")


class Liar(WishfulPlanner):
    """Claims what it wants: certain of everything, for gamed designs first, with its claims in every text."""

    name = "liar"

    def __init__(self, ask: ComparisonTopic, up: bool = True) -> None:
        self._ask = ask
        self._up = up

    def _wishes(self, digest: PlannerContext) -> Iterator[Action]:
        match digest.stage:
            case "propose":
                yield Conclude(reason=LIE)
                yield Propose(hypotheses=(self._claim(self._ask.values[0]),))
                yield Propose(hypotheses=(self._claim(self._ask.values[1]),))
            case "design":
                yield Conclude(reason=LIE)
                constants = {self._ask.field: self._ask.values[1], "seed": 7, "steps": 1, "tracking": "mine"}
                yield from gamed(ENVIRONMENT, constants)
                yield ProposeDesign(environment=ENVIRONMENT, seeds_per_arm=MOST_SEEDS)
            case _:
                yield Conclude(reason=LIE)

    def _claim(self, treatment: Scalar) -> ProposedHypothesis:
        return hypothesis(
            self._ask.field, self._ask.values[0], treatment,
            up=self._up, low=0.5 if self._up else -0.9, high=0.9 if self._up else -0.5, probability=1.0,
            statement=LIE, effect=None,
        )  # fmt: skip


def gamed(environment: str, constants: Mapping[str, Scalar]) -> Iterator[Action]:
    """Yield designs that would make the wanted claim easier, or mean nothing."""
    for name, value in constants.items():
        held = (Constant(field=name, value=value),)
        yield ProposeDesign(environment=environment, seeds_per_arm=3, constants=held)
    yield ProposeDesign(environment="a task of my own", seeds_per_arm=3)


def hypothesis(
    field: str, control: Scalar, treatment: Scalar, *, up: bool, low: float, high: float, probability: float,
    effect: float | None, statement: str = "",
) -> ProposedHypothesis:  # fmt: skip
    """Return a proposed hypothesis."""
    plain = f"{field} {treatment} instead of {control} {'raises' if up else 'lowers'} the success."
    return ProposedHypothesis(
        statement=statement or plain, mechanism="None: a simulated planner.", variable=field, control=control,
        treatment=treatment, direction="increase" if up else "decrease", predicted_low=low, predicted_high=high,
        probability=probability, smallest_effect=effect,
    )  # fmt: skip


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
    api = "openai"

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
        if '"sentences"' in shown or '\\"sentences\\"' in shown:
            return {"action": "review", "unsupported": []}
        if '"verdicts"' in shown or '\\"verdicts\\"' in shown:
            return {"action": "write", "answer": LIE if self._mood == "forbidden" else "All is judged: {h1.verdict}."}
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


class Follower(WishfulPlanner):
    """Asks its pairs in turn, and in every second round again the one with the largest estimate not told apart."""

    name = "follower"

    def __init__(self, pairs: Sequence[Pair], environment: str) -> None:
        self._pairs = pairs
        self._environment = environment

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
        asked: dict[Pair, float | None] = {}  # the size of each pair's newest estimate; None for one told apart
        for claim in [claim for entry in (() if inquiry is None else inquiry.rounds) for claim in entry.claims]:
            size = None if claim.found or claim.verdict is None else claim.verdict.estimate
            asked[Pair(claim.claim.variable, claim.claim.control, claim.claim.treatment)] = size and abs(size)
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
                pair = self._pairs[0]
                yield from gamed(self._environment, {pair.field: pair.treatment, "seed": 7})
            case _:
                pass
        yield from super()._wishes(digest)

    def _hypothesis(self, digest: PlannerContext, pair: Pair) -> ProposedHypothesis:
        return hypothesis(
            pair.field, pair.control, pair.treatment, up=True, low=0.5, high=0.9, probability=1.0, effect=None,
            statement=LIE,
        )  # fmt: skip
