"""Whole inquiries with a planted truth: asked, simulated and judged round by round, and what they come to.

Every inquiry has twelve rounds of one to three claims. Its ledgers are the shipped ones; so are the designs, at their
places, and the verdicts. Runs are those of `rig.verdicts.planted`, with its kinds of noise. The same cell and number
give the same inquiry.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rig.inquiries.questions import PLANNERS, TRUTHS, Answer, Question
from rig.inquiries.rounds import SEEDS, WHOLE_LEVEL, Judged, RoundShape, judged_round, next_stake, seen_with
from rig.verdicts.planted import SEED, World, data_of, rate_of, sign_said, training
from studies.records.alpha import MOST_ROUNDS, AlphaLedgers, RoundOutcome

CLAIMS: Final = (1,) * 12 + (2,) * 5 + (3,) * 3
"""How many claims a round has: one of these."""
_SAME = 1e-9

NOISES: Mapping[str, World] = {
    "normal": World(),
    "t3": World(tails="t3"),
    "collapses in 15 %": World(collapses=(0.15, 0.15)),
    "spreads 1:3": World(ratio=3.0),
}


@dataclass(frozen=True, slots=True)
class InquiryCell:
    """Who asks what, in which noise."""

    truth: str
    planner: str
    noise: str = "normal"
    ledgers: bool = True
    """Whether rounds share a level; if not, each has 5 % of its own, as if it were the only one."""


@dataclass
class InquiryTally:
    """Counts over the inquiries of a cell."""

    inquiries: int = 0
    false_difference: int = 0
    """Inquiries with any claim of a difference that is not there, or has the other sign."""
    false_equivalence: int = 0
    """Inquiries with any claim of equivalence where the difference is the margin."""
    either: int = 0
    overdrawn: int = 0
    """Inquiries in which the rounds without an effect of a kind spent more than alpha up to its first false claim."""
    right_differences: int = 0
    right_equivalences: int = 0
    false_claims: int = 0
    asked: list[int] = field(default_factory=lambda: [0] * MOST_ROUNDS)
    """Claims on true effects, by round."""
    found: list[int] = field(default_factory=lambda: [0] * MOST_ROUNDS)
    """Those whose difference was claimed with its sign."""

    def add(self, other: InquiryTally) -> None:
        """Count another tally's inquiries too."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.asked = [a + b for a, b in zip(self.asked, other.asked, strict=True)]
        self.found = [a + b for a, b in zip(self.found, other.found, strict=True)]

    def figures(self) -> dict[str, Any]:
        """Return rates with their exact 95 % intervals, and means."""
        claims = self.right_differences + self.right_equivalences + self.false_claims
        return {
            "inquiries": self.inquiries,
            **{name: rate_of(getattr(self, name), self.inquiries) for name in RATES},
            "right_differences": self.right_differences / self.inquiries,
            "right_equivalences": self.right_equivalences / self.inquiries,
            "false_among_claims": rate_of(self.false_claims, claims),
            "power": [rate_of(found, asked) for found, asked in zip(self.found, self.asked, strict=True)],
        }


RATES: Final = ("false_difference", "false_equivalence", "either", "overdrawn")
_COUNTS: Final = (*RATES, "inquiries", "right_differences", "right_equivalences", "false_claims")


@dataclass(frozen=True, slots=True)
class JudgedRound:
    """A round that is over, with what is true of its questions."""

    levels: tuple[float, float]
    """That of its differences and that of its equivalences."""
    effects: tuple[float, ...]
    judged: tuple[Judged, ...]
    margin: float

    @property
    def said(self) -> list[int]:
        """The sign of the difference that each verdict says is there; 0 for none."""
        return [0 if one.verdict is None else sign_said(one.verdict) for one in self.judged]

    @property
    def false_differences(self) -> int:
        """How many say a difference that is not there, or has the other sign."""
        return sum(sign * effect <= 0 for sign, effect in zip(self.said, self.effects, strict=True) if sign)

    @property
    def false_equivalences(self) -> int:
        """How many say equivalent of what differs by the margin or more."""
        named = zip(self.judged, self.effects, strict=True)
        return sum(one.name == "equivalent" and self._differs(effect) for one, effect in named)

    @property
    def right(self) -> tuple[int, int]:
        """How many differences were claimed with their sign, and how many equivalences rightly."""
        alike = sum(one.name == "equivalent" for one in self.judged) - self.false_equivalences
        return sum(self.found), alike

    @property
    def found(self) -> list[bool]:
        """Of each claim, whether it was decided with the sign of its effect."""
        return [
            one.name in ("supported", "refuted") and sign * effect > 0
            for one, sign, effect in zip(self.judged, self.said, self.effects, strict=True)
        ]

    @property
    def nulls(self) -> tuple[bool, bool]:
        """Whether it has a claim that can be a false difference, and one that can be a false equivalence."""
        return any(effect == 0 for effect in self.effects), any(map(self._differs, self.effects))

    def _differs(self, effect: float) -> bool:
        return abs(effect) > self.margin - _SAME


def simulate(cell: InquiryCell, numbers: Sequence[int]) -> InquiryTally:
    """Return what became of these inquiries of a cell."""
    tally = InquiryTally()
    for number in numbers:
        _count(tally, inquiry(cell, number))
    return tally


def inquiry(cell: InquiryCell, number: int) -> list[JudgedRound]:
    """Return the rounds of one inquiry."""
    name = f"{SEED} {cell} {number}"
    rng, noise, truth = random.Random(name), NOISES[cell.noise], TRUTHS[cell.truth]
    margin = seen_with(truth.power) * noise.louder
    ledgers, past, rounds = AlphaLedgers.begin(MOST_ROUNDS), list[list[Answer]](), list[JudgedRound]()
    for _ in range(MOST_ROUNDS):
        questions = PLANNERS[cell.planner](past, rng.choice(CLAIMS))
        shape = RoundShape(_variables(len(questions), rng), margin, certain=cell.planner == "liar")
        stake = next_stake(ledgers if cell.ledgers else AlphaLedgers.begin(1, WHOLE_LEVEL), shape)
        effects = tuple(margin * truth.effect(question, name) for question in questions)
        data = _simulated(stake.design.hypotheses, effects, noise, rng)
        judged = judged_round(stake, {arm: data_of(stake.design, arm, runs) for arm, runs in data.items()}, rng)
        levels = (ledgers.differences.level, ledgers.equivalences.level) if cell.ledgers else (WHOLE_LEVEL, WHOLE_LEVEL)
        rounds.append(JudgedRound(levels, effects, tuple(judged), margin))
        past.append(_answers(questions, judged))
        ledgers = ledgers.after(RoundOutcome.of([one.name for one in judged]))
    return rounds


def overdrawn(rounds: Sequence[JudgedRound], kind: int, alpha: float = WHOLE_LEVEL) -> bool:
    """Return whether rounds with a null of a kind spent more than alpha, up to the first false claim of the kind."""
    spent = 0.0
    for each in rounds:
        spent += each.levels[kind] if each.nulls[kind] else 0.0
        if (each.false_differences, each.false_equivalences)[kind]:
            break
    return spent > alpha * (1 + _SAME)


def _variables(claims: int, rng: random.Random) -> tuple[int, ...]:
    """Return whether a round's claims are about values of one variable or about one variable each."""
    return tuple(range(1, claims + 1)) if rng.random() < 0.5 else (1,) * claims


def _simulated(claims: Sequence[Any], effects: Sequence[float], noise: World, rng: random.Random) -> dict[str, Any]:
    """Return fresh runs of the control and of each claim's arm, as many as the last look sees."""
    seeds = range(SEEDS)
    found = {"control": [training(noise, False, 0.0, False, rng) for _ in seeds]}
    for claim, effect in zip(claims, effects, strict=True):
        own = replace(noise, effect=effect)
        found[f"arm-{claim.id}"] = [training(own, True, 0.0, False, rng) for _ in seeds]
    return found


def _answers(questions: Sequence[Question], judged: Sequence[Judged]) -> list[Answer]:
    pairs = zip(questions, judged, strict=True)
    return [
        Answer(question, one.estimate, one.name in ("supported", "refuted", "equivalent")) for question, one in pairs
    ]


def _count(tally: InquiryTally, rounds: Sequence[JudgedRound]) -> None:
    different, alike = (
        sum(each.false_differences for each in rounds), sum(each.false_equivalences for each in rounds),
    )  # fmt: skip
    tally.inquiries += 1
    tally.false_difference += different > 0
    tally.false_equivalence += alike > 0
    tally.either += different + alike > 0
    tally.false_claims += different + alike
    tally.overdrawn += overdrawn(rounds, 0) or overdrawn(rounds, 1)
    for number, each in enumerate(rounds):
        differences, equivalences = each.right
        tally.right_differences += differences
        tally.right_equivalences += equivalences
        tally.asked[number] += sum(effect != 0 for effect in each.effects)
        tally.found[number] += sum(each.found)
