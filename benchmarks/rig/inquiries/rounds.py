"""One round of a simulated inquiry: a real design at its place in real ledgers, judged by the shipped verdict.

The judge is called for every claim at every look, but where its own comparison says at the whole level of the look,
which no correction for other claims raises, that nothing can be claimed yet: it takes most of the time, and would say
`inconclusive`. One in fifty of those is handed to it all the same; anything else that it says ends the simulation.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from research.design.power import PowerAnalysis, plan_analyses
from rig.verdicts.planted import ALPHA, EPISODES, SD, first_runs
from studies.records.alpha import AlphaAllocation, AlphaLedgers
from studies.records.design import Arm, Budget, Design, Hypothesis, Metric, Price
from studies.records.procedure import CollapseRule, Noise, Prediction, RoundPlace
from studies.records.verdict import Verdict
from studies.statistics.comparison import compare
from studies.verdicts.inputs import ArmData
from studies.verdicts.rules import LEAST_KEPT, judge

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
    alike = outside < asked.stake.equivalence(asked.look, "confirm")
    return None if told or alike else found.estimate


WHOLE_LEVEL: Final = ALPHA
"""What each round has of its own where nothing is shared."""
