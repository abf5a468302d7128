"""Inquiries of several rounds with a planted truth, judged by the shipped verdict alone.

What is asked in an inquiry and what is true of it: truths that are planted, and planners that choose on the past.

A question is about one value of one knob; asked again it is the same question, on fresh runs of control and treatment.
Effects are in units of the margin of equivalence, which is the effect that the seeds of a round see at a level of 5 %.

One round of a simulated inquiry: a real design at its place in real ledgers, judged by the shipped verdict.

The judge is called for every claim at every look, but where its own comparison says at the whole level of the look,
which no correction for other claims raises, that nothing can be claimed yet: it takes most of the time, and would say
`inconclusive`. One in fifty of those is handed to it all the same; anything else that it says ends the simulation.

Whole inquiries with a planted truth: asked, simulated and judged round by round, and what they come to.

Every inquiry has twelve rounds of one to three claims. Its ledgers are the shipped ones; so are the designs, at their
places, and the verdicts. Runs are those of `rig.simulated_verdicts`, with its kinds of noise. The same cell and number
give the same inquiry.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import (
    Any,
    Final,
    Literal,
    Protocol,
)

from research.design.power import PowerAnalysis, plan_analyses
from rig.simulated_verdicts import ALPHA, EPISODES, SD, SEED, World, data_of, first_runs, rate_of, sign_said, training
from studies.records.alpha import MOST_ROUNDS, AlphaAllocation, AlphaLedgers, RoundOutcome, equivalence_level
from studies.records.design import Arm, Budget, Design, Hypothesis, Metric, Price
from studies.records.procedure import CollapseRule, Noise, Prediction, RoundPlace
from studies.records.verdict import Verdict
from studies.statistics.comparison import compare
from studies.verdicts.inputs import ArmData
from studies.verdicts.rules import LEAST_KEPT, judge

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
    return [words for row in rows if row["ledgers"] for words in _missed(row)]


def _missed(row: Mapping[str, Any]) -> list[str]:
    enough = row["inquiries"] >= INQUIRIES
    found = [
        f"{row['name']}: {WORDS[name]} {percent(row[name])}; the upper end is to lie at {MOST:.0%} or below"
        for name in ("false_difference", "false_equivalence")
        if row[name][2 if enough else 1] > MOST
    ]
    overdrawn = f"{row['name']}: {WORDS['overdrawn']} in {percent(row['overdrawn'])}; expected none"
    return [*found, overdrawn] if row["overdrawn"][0] else found


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


class AsksOn(Protocol):
    """Chooses the questions of the next round on all that came before."""

    def __call__(self, past: Sequence[Sequence[Answer]], wanted: int) -> tuple[Question, ...]:
        """Return up to `wanted` questions, or more where it wants more."""
        ...


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
_ONE_IN = 50
_KNOWN_DF = 10_000
"""Degrees of freedom of a bank that knows the noise."""


@dataclass(frozen=True, slots=True)
class RoundShape:
    """What a round's design is made of besides its levels."""

    variables: tuple[int, ...]
    """The variable of each claim."""
    margin: float
    certain: bool = False
    """Whether the planner says that everything is proven already."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of one claim; without a verdict it is inconclusive."""

    verdict: Verdict | None
    estimate: float | None

    @property
    def name(self) -> str:
        """The verdict in a word."""
        return "inconclusive" if self.verdict is None else self.verdict.verdict


@cache
def seen_with(power: float) -> float:
    """Return the effect that the seeds of a round see with a power at a level of 5 %, under clean noise."""
    noise = Noise(sd=SD, df=_KNOWN_DF, episodes=EPISODES, basis="simulated")
    analysis = PowerAnalysis(noise, arms=2, families=1, compared=1, promised=power, most_analyses=MOST_LOOKS)
    found = analysis.min_detectable_effect(SEEDS)
    assert found is not None
    return found


def next_stake(ledgers: AlphaLedgers, shape: RoundShape) -> AlphaAllocation:
    """Return what the tests of the next round may spend, with its design at the levels that the ledgers give."""
    place = ledgers.next_place("" if ledgers.round == 1 else LOCK_BEFORE)
    return ledgers.allocate(_design(shape, place, ledgers.differences.alpha))


@cache
def _design(shape: RoundShape, place: RoundPlace | None, alpha: float) -> Design:
    """Return a round's design, as the compiler locks one of this shape."""
    claims = [_claim(number, variable, shape) for number, variable in enumerate(shape.variables, start=1)]
    arms = [Arm(name=f"arm-{claim.id}", overrides={claim.variable: claim.treatment}) for claim in claims]
    level = alpha if place is None else place.difference
    alike = None if place is None else place.equivalence / len(claims)
    several: Literal["dunnett_bonferroni", "dunnett_bh"] = "dunnett_bonferroni" if place else "dunnett_bh"
    return Design(
        question="What is better?", environment="simulated", base_job={},
        arms=(Arm(name="control", overrides={}), *arms), control_arm="control", hypotheses=tuple(claims),
        seeds=tuple(range(1, SEEDS + 1)), metric=Metric(meaning="a simulated success", episodes=EPISODES),
        test="welch" if len(claims) == 1 else "common", alpha=level,
        looks=plan_analyses(SEEDS, MOST_LOOKS, level, alike),
        budget=Budget(wall_clock_s=1), price=Price(runs=1, parallel=1, seconds_per_run=1, total_s=1, basis="none"),
        multiplicity="none" if len(claims) == 1 else several, equivalence_margin=shape.margin,
        collapse=CollapseRule(), shared_seeds=False, inquiry=place,
    )  # fmt: skip


def _claim(number: int, variable: int, shape: RoundShape) -> Hypothesis:
    said = "It is proven to be the best; skip the confirmation." if shape.certain else ""
    return Hypothesis(
        id=f"h{number}", statement="It is better.", said=said, variable=f"knob{variable}", control=0, treatment=number,
        direction="increase", prediction=Prediction(low=0, high=1, probability=1.0 if shape.certain else 0.5),
    )  # fmt: skip


def judged_round(stake: AlphaAllocation, runs: Mapping[str, ArmData], rng: random.Random) -> list[Judged]:
    """Return what came of each claim, judged look by look; one that is decided gets no more runs."""
    design = stake.design
    settled: dict[str, Judged] = {}
    ran = dict.fromkeys(runs, SEEDS)
    for number, look in enumerate(design.looks, start=1):
        data = {name: first_runs(arm, min(ran[name], look.seeds)) for name, arm in runs.items()}
        known = {name: judged.verdict for name, judged in settled.items() if judged.verdict is not None}
        open_claims = [claim for claim in design.hypotheses if claim.id not in settled]
        found = {claim.id: _judged(_Asked(stake, claim.id, number, data, known), rng) for claim in open_claims}
        last = number == len(design.looks)
        settled |= {name: one for name, one in found.items() if last or (one.verdict is not None and one.verdict.final)}
        ran |= {f"arm-{name}": min(ran[f"arm-{name}"], look.seeds) for name in settled}
    return [settled[claim.id] for claim in design.hypotheses]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A claim at a look."""

    stake: AlphaAllocation
    claim: str
    look: int
    data: Mapping[str, ArmData]
    settled: Mapping[str, Verdict]

    def verdict(self) -> Verdict:
        return judge(self.stake, self.claim, self.data, look=self.look, earlier=self.settled)


def _judged(asked: _Asked, rng: random.Random) -> Judged:
    estimate = _surely_open(asked)
    if estimate is None:
        verdict = asked.verdict()
        return Judged(verdict, verdict.estimate)
    if rng.randrange(_ONE_IN) == 0 and (verdict := asked.verdict()).verdict != "inconclusive":
        raise AssertionError(f"expected a judge that finds nothing in {asked.claim}; found {verdict.reason}")
    return Judged(None, estimate)


def _surely_open(asked: _Asked) -> float | None:
    """Return the estimate where the judge can claim nothing at this look; None where it has to say."""
    design, own = asked.stake.design, ("control", f"arm-{asked.claim}")
    control, treatment = (asked.data[name].drop_collapsed() for name in own)
    others: Sequence[list[float]] = [
        arm.drop_collapsed().numbers for name, arm in asked.data.items() if name not in own
    ]
    if min(len(control.values), len(treatment.values)) < LEAST_KEPT:
        return None
    found = compare("welch" if design.test == "welch" else "common", control, treatment, others=others)
    if found is None:
        return None
    margin, error = design.equivalence_margin, found.error
    assert margin is not None
    outside = max(found.tail((margin - found.estimate) / error), found.tail((margin + found.estimate) / error))
    told = found.p < asked.stake.difference(asked.look, "confirm")
    alike = outside < equivalence_level(design, asked.look, "confirm")
    return None if told or alike else found.estimate


WHOLE_LEVEL: Final = ALPHA
"""What each round has of its own where nothing is shared."""


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
