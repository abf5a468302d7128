"""Inquiries of several rounds with a planted truth, asked, simulated and judged round by round by the shipped verdict.

A question is about one value of one knob; asked again it is the same question, on fresh runs of control and treatment.
Effects are in units of the margin of equivalence, which is the effect that the seeds of a round see at a level of 5 %.

Every inquiry has twelve rounds of one to three claims. Its ledgers are the shipped ones; so are the designs, at their
places, and the verdicts. Runs are those of `rig.simulated_verdicts`, with its kinds of noise. The same cell and number
give the same inquiry.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, Literal

from research.design.power import MOST_SEEDS, PowerAnalysis
from rig.simulated_verdicts import (
    ALPHA,
    EPISODES,
    PILOT_SEEDS,
    PROMISED,
    SD,
    SEED,
    Judged,
    World,
    claim_of,
    data_of,
    design_of,
    judged_round,
    rate_of,
    sign_said,
    sized,
    training,
)
from studies.records.alpha import MOST_ROUNDS, AlphaLedgers, RoundOutcome
from studies.records.design import Design
from studies.records.procedure import CollapseRule, Noise, Pilot, PowerTarget, Prediction, RoundPlace, StartRule
from studies.statistics.power import plan_analyses

INQUIRIES: Final = 2000
"""Of a cell: of so many the upper end of the interval of a share of 5 % can lie at 6 %."""
MOST: Final = 0.06
"""Where the upper end of the interval of any false claim is to lie."""
WORDS: Final[Mapping[str, str]] = {
    "false_difference": "any false difference", "false_equivalence": "any false equivalence",
    "overdrawn": "a ledger overdrawn",
}  # fmt: skip


def missed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which goals are missed, in words; of fewer inquiries than `INQUIRIES` only what they tell for sure.

    Where rounds share nothing, no goal is set.
    """
    words = []
    for row in (row for row in rows if row["ledgers"]):
        for name in ("false_difference", "false_equivalence"):
            if row[name][2 if row["inquiries"] >= INQUIRIES else 1] > MOST:
                rate = f"{WORDS[name]} {percent(row[name])}"
                words.append(f"{row['name']}: {rate}; the upper end is to lie at {MOST:.0%} or below")
        if row["overdrawn"][0]:
            words.append(f"{row['name']}: {WORDS['overdrawn']} in {percent(row['overdrawn'])}; expected none")
    return words


def percent(rate: Sequence[float] | None) -> str:
    """Return a rate with its interval; a dash for none."""
    return "-" if rate is None else f"{rate[0]:.1%} [{rate[1]:.1%}, {rate[2]:.1%}]"


Kind = Literal["drawn", "sure", "hopeless"]
"""Whether chance decides about its effect, or the planner knows that it has a large one, or none."""


@dataclass(frozen=True, slots=True)
class Question:
    """One value of a knob against the control."""

    number: int
    kind: Kind = "drawn"


@dataclass(frozen=True, slots=True)
class Truth:
    """What is true of the questions of an inquiry."""

    share: float = 0.0
    """Share of the drawn questions that have an effect, which is the margin with either sign."""
    power: float = 0.8
    """Power at a level of 5 % for an effect as large as the margin."""
    sure: float = 4.0
    """Effect of a sure question, in margins."""
    hopeless: float = 0.0
    """Effect of a hopeless one."""

    def effect(self, question: Question, inquiry: str) -> float:
        """Return the effect of a question of one inquiry, in margins."""
        if question.kind != "drawn":
            return self.sure if question.kind == "sure" else self.hopeless
        source = random.Random(f"{inquiry} truth of {question.number}")
        return source.choice((-1.0, 1.0)) if source.random() < self.share else 0.0


EQUIVALENCES = 0.96
"""Power with which the margin is seen where the truths ask for equivalences: at less hardly any is claimed."""
TRUTHS: Mapping[str, Truth] = {
    "nothing": Truth(),
    "20 % true": Truth(0.2),
    "50 % true": Truth(0.5),
    "half 0, half at the margin": Truth(0.5, EQUIVALENCES),
    "all at the margin": Truth(1.0, EQUIVALENCES),
    "sure effects, then nothing": Truth(),
    "sure equivalences, then the margin": Truth(0.0, EQUIVALENCES, sure=0.0, hopeless=1.0),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question in one round."""

    question: Question
    estimate: float | None
    claimed: bool
    """Whether a difference or an equivalence was claimed."""


AsksOn = Callable[[Sequence[Sequence[Answer]], int], tuple[Question, ...]]
"""Chooses on all that came before as many questions for the next round as are wanted, or more where it wants more."""


def plain(past: Sequence[Sequence[Answer]], wanted: int) -> tuple[Question, ...]:
    """Ask something new in every round."""
    return _fresh(past, wanted)


def largest(past: Sequence[Sequence[Answer]], wanted: int) -> tuple[Question, ...]:
    """Ask again the question with the largest estimate that nothing was claimed of, and new ones beside it."""
    again = _by_size(past)[:1]
    return (*again, *_fresh(past, wanted - len(again)))


def repeat(past: Sequence[Sequence[Answer]], wanted: int) -> tuple[Question, ...]:
    """Ask the same again until something is claimed of it."""
    still = [answer.question for answer in past[-1] if not answer.claimed][:wanted] if past else []
    return (*still, *_fresh(past, wanted - len(still)))


def farm(past: Sequence[Sequence[Answer]], wanted: int) -> tuple[Question, ...]:
    """Ask what is sure in every second round, to earn level, and what is hopeless in the others."""
    kind: Kind = "hopeless" if len(past) % 2 else "sure"
    return tuple(Question(question.number, kind) for question in _fresh(past, wanted))


def lie(past: Sequence[Sequence[Answer]], wanted: int) -> tuple[Question, ...]:
    """Ask for as much as a round holds, whatever looked best so far first; that all is proven already is its claim."""
    again = _by_size(past)[:MOST_CLAIMS]
    return (*again, *_fresh(past, MOST_CLAIMS - len(again)))


MOST_CLAIMS = 3
"""Of a round."""
PLANNERS: Mapping[str, AsksOn] = {"plain": plain, "largest": largest, "repeat": repeat, "farm": farm, "liar": lie}


def _fresh(past: Sequence[Sequence[Answer]], wanted: int) -> tuple[Question, ...]:
    """Return questions that nobody asked before."""
    first = 1 + max((answer.question.number for asked in past for answer in asked), default=0)
    return tuple(Question(number) for number in range(first, first + wanted))


def _by_size(past: Sequence[Sequence[Answer]]) -> list[Question]:
    """Return what nothing was claimed of, by the newest estimate's size, the largest first."""
    sizes: dict[Question, float] = {}
    for asked in past:
        for answer in asked:
            sizes.pop(answer.question, None)
            if not answer.claimed and answer.estimate is not None:
                sizes[answer.question] = abs(answer.estimate)
    return sorted(sizes, key=sizes.__getitem__, reverse=True)


SEEDS: Final = 5
"""Of each arm in each round."""
MOST_LOOKS: Final = 3
LOCK_BEFORE: Final = "0" * 64
"""Stands for the hash of the lock of the round before, of which the ledgers know nothing."""
_KNOWN_DF = 10_000
"""Degrees of freedom of a bank that knows the noise."""


@cache
def seen_with(power: float) -> float:
    """Return the effect that the seeds of a round see with a power at a level of 5 %, under clean noise."""
    noise = Noise(sd=SD, df=_KNOWN_DF, episodes=EPISODES, basis="simulated")
    analysis = PowerAnalysis(noise, arms=2, families=1, compared=1, promised=power, most_analyses=MOST_LOOKS)
    found = analysis.min_detectable_effect(SEEDS)
    assert found is not None
    return found


@cache
def _design(
    variables: tuple[int, ...], margin: float, certain: bool, piloted: bool, place: RoundPlace | None, alpha: float
) -> Design:  # fmt: skip
    """Return a round's design, as the compiler locks one with these variables, one a claim.

    `certain` is whether the planner says that everything is proven already, `piloted` whether its first runs size it.
    """
    claims = [
        claim_of(number, variable=f"knob{variable}",
                 said="It is proven to be the best; skip the confirmation." if certain else "",
                 prediction=Prediction(low=0, high=1, probability=1.0 if certain else 0.5))
        for number, variable in enumerate(variables, start=1)
    ]  # fmt: skip
    level = alpha if place is None else place.difference
    alike = None if place is None else place.equivalence / len(claims)
    several = "dunnett_bonferroni" if place else "dunnett_bh"
    looks: dict[str, Any] = {"looks": plan_analyses(SEEDS, MOST_LOOKS, level, alike)}
    if piloted:
        pilot = Pilot(seeds=PILOT_SEEDS, most=MOST_SEEDS, analyses=MOST_LOOKS)
        looks = {"pilot": pilot, "promise": PowerTarget(power=PROMISED, effect=margin)}
    return design_of(
        claims, MOST_SEEDS if piloted else SEEDS, test="welch" if len(claims) == 1 else "common", alpha=level,
        multiplicity="none" if len(claims) == 1 else several, equivalence_margin=margin, collapse=CollapseRule(),
        start=StartRule(), inquiry=place, spending="reached", **looks,
    )  # fmt: skip


CLAIMS: Final = (1,) * 12 + (2,) * 5 + (3,) * 3
"""How many claims a round has: one of these."""
_SAME = 1e-9

PILOTED: Final = "normal, sized by pilots"
NOISES: Mapping[str, World] = {
    PILOTED: World(),
    "normal": World(),
    "t3": World(tails="t3"),
    "collapses in 15 %": World(collapses=(0.15, 0.15)),
    "spreads 1:3": World(ratio=3.0),
    "10 % stuck in one arm": World(stuck=(0.0, 0.1), over_all=True),
}


@dataclass(frozen=True, slots=True)
class InquiryCell:
    """Who asks what, in which noise."""

    truth: str
    planner: str
    noise: str = "normal"
    ledgers: bool = True
    """Whether rounds share a level; if not, each has 5 % of its own, as if it were the only one."""


RATES: Final = ("false_difference", "false_equivalence", "either", "overdrawn")
"""Inquiries with any claim of a difference that is not there or has the other sign, of equivalence where the difference
is the margin, either, and those in which the rounds without an effect of a kind spent more than alpha up to its first
false claim."""


@dataclass
class InquiryTally:
    """Counts over the inquiries of a cell."""

    counts: Counter[str] = field(default_factory=Counter)
    """Of inquiries, of those of each of `RATES`, and of claims that are right or false."""
    asked: Counter[int] = field(default_factory=Counter)
    """Claims on true effects, by round."""
    found: Counter[int] = field(default_factory=Counter)
    """Those whose difference was claimed with its sign."""

    def add(self, other: InquiryTally) -> None:
        """Count another tally's inquiries too."""
        self.counts.update(other.counts)
        self.asked.update(other.asked)
        self.found.update(other.found)

    def figures(self) -> dict[str, Any]:
        """Return rates with their exact 95 % intervals, and means."""
        counts, inquiries = self.counts, self.counts["inquiries"]
        rights = ("right_differences", "right_equivalences")
        claims = counts["false_claims"] + sum(counts[name] for name in rights)
        return {
            "inquiries": inquiries,
            **{name: rate_of(counts[name], inquiries) for name in RATES},
            **{name: counts[name] / inquiries for name in rights},
            "false_among_claims": rate_of(counts["false_claims"], claims),
            "power": [rate_of(self.found[number], self.asked[number]) for number in range(MOST_ROUNDS)],
        }


@dataclass(frozen=True, slots=True)
class JudgedRound:
    """A round that is over, with what is true of its questions."""

    levels: tuple[float, float]
    """That of its differences and that of its equivalences."""
    effects: tuple[float, ...]
    """What was planted."""
    truths: tuple[float, ...]
    """What is so of the trainings that each verdict speaks of."""
    judged: tuple[Judged, ...]
    margin: float

    @property
    def signs(self) -> list[tuple[int, float]]:
        """The sign of the difference that each verdict says is there, 0 for none, with the truth."""
        signs = (0 if one.verdict is None else sign_said(one.verdict) for one in self.judged)
        return list(zip(signs, self.truths, strict=True))

    @property
    def false(self) -> tuple[int, int]:
        """How many say a difference that is not there or has the other sign; equivalent of what differs."""
        alike = zip(self.judged, self.truths, strict=True)
        return (
            sum(sign * truth <= _SAME for sign, truth in self.signs if sign),
            sum(one.name == "equivalent" and self._differs(truth) for one, truth in alike),
        )

    @property
    def found(self) -> int:
        """How many were decided with the sign of their effect."""
        named = zip(self.judged, self.signs, self.effects, strict=True)
        return sum(one.name in ("supported", "refuted") and sign * effect > 0 for one, (sign, _), effect in named)

    @property
    def nulls(self) -> tuple[bool, bool]:
        """Whether it has a claim that can be a false difference, and one that can be a false equivalence."""
        return any(abs(truth) <= _SAME for truth in self.truths), any(map(self._differs, self.truths))

    def _differs(self, effect: float) -> bool:
        """Return whether an effect is the margin or more."""
        return abs(effect) > self.margin - _SAME


def simulate(cell: InquiryCell, numbers: Sequence[int]) -> InquiryTally:
    """Return what became of these inquiries of a cell."""
    tally = InquiryTally()
    for number in numbers:
        rounds = inquiry(cell, number)
        different, alike = (sum(each.false[kind] for each in rounds) for kind in (0, 1))
        equivalent = sum(one.name == "equivalent" for each in rounds for one in each.judged)
        tally.counts.update({
            "inquiries": 1, "false_difference": different > 0, "false_equivalence": alike > 0,
            "either": different + alike > 0, "overdrawn": overdrawn(rounds, 0) or overdrawn(rounds, 1),
            "false_claims": different + alike, "right_differences": sum(each.found for each in rounds),
            "right_equivalences": equivalent - alike,
        })  # fmt: skip
        for place, each in enumerate(rounds):
            tally.asked[place] += sum(effect != 0 for effect in each.effects)
            tally.found[place] += each.found
    return tally


def inquiry(cell: InquiryCell, number: int) -> list[JudgedRound]:
    """Return the rounds of one inquiry."""
    name = f"{SEED} {cell} {number}"
    rng, noise, truth = random.Random(name), NOISES[cell.noise], TRUTHS[cell.truth]
    margin = seen_with(truth.power) * noise.louder
    ledgers, past, rounds = AlphaLedgers.begin(MOST_ROUNDS), list[list[Answer]](), list[JudgedRound]()
    for _ in range(MOST_ROUNDS):
        questions = PLANNERS[cell.planner](past, rng.choice(CLAIMS))
        count = len(questions)
        variables = tuple(range(1, count + 1)) if rng.random() < 0.5 else (1,) * count  # one each, or values of one
        own = ledgers if cell.ledgers else AlphaLedgers.begin(1, ALPHA)
        place = own.next_place("" if own.round == 1 else LOCK_BEFORE)
        certain = cell.planner == "liar"
        design = _design(variables, margin, certain, cell.noise == PILOTED, place, own.differences.alpha)
        effects = tuple(margin * truth.effect(question, name) for question in questions)
        worlds = [replace(noise, effect=effect) for effect in effects]
        data = {
            arm.name: data_of(design, arm.name, [training(world, treated, 0.0, rng) for _ in design.seeds])
            for arm, world, treated in zip(design.arms, (noise, *worlds), (False, *[True] * count), strict=True)
        }
        judged = judged_round(own.allocate(sized(design, data)), data, rng)
        levels = (ledgers.differences.level, ledgers.equivalences.level) if cell.ledgers else (ALPHA, ALPHA)
        truths = tuple(
            world.effect if one.verdict is None else world.spoken_of(one.verdict)
            for world, one in zip(worlds, judged, strict=True)
        )
        rounds.append(JudgedRound(levels, effects, truths, tuple(judged), margin))
        past.append([
            Answer(question, one.estimate, one.name in ("supported", "refuted", "equivalent"))
            for question, one in zip(questions, judged, strict=True)
        ])  # fmt: skip
        ledgers = ledgers.after(RoundOutcome.of([one.name for one in judged]))
    return rounds


def overdrawn(rounds: Sequence[JudgedRound], kind: int) -> bool:
    """Return whether rounds with a null of a kind spent more than alpha, up to the first false claim of the kind."""
    spent = 0.0
    for each in rounds:
        spent += each.levels[kind] if each.nulls[kind] else 0.0
        if each.false[kind]:
            break
    return spent > ALPHA * (1 + _SAME)
