"""Simulated studies with a planted difference, judged by the shipped verdict look by look, as the study loop does.

All numbers are in standard deviations between seeds. The same seed gives the same studies.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from studies.procedure import Look, Noise, Prediction
from studies.records import Arm, Budget, Design, Hypothesis, Metric, Price, Verdict
from studies.statistics import rate_interval
from studies.statistics.comparison import Test, compare
from studies.statistics.verdict import ArmData, judge

SEED = 20261120
ALPHA = 0.05
BANK_DF = 20
_FAR_DOWN = 6.0
"""Standard deviations by which a collapsed run falls."""


@dataclass(frozen=True)
class Procedure:
    """A design whose error rates are measured: one claim on each treatment arm."""

    name: str
    test: Test
    looks: tuple[Look, ...]
    treatments: int = 1
    variables: int = 1
    bank: bool = True
    correlation: float = 0.0

    def design(self, noise: Noise | None) -> Design:
        """Return the design that is judged by; `noise` is what the bank says."""
        arms = [Arm(name="control", overrides={})]
        claims = []
        for n in range(1, self.treatments + 1):
            variable = f"knob{n % self.variables}"
            arms.append(Arm(name=f"arm{n}", overrides={variable: n}))
            claims.append(_claim(f"h{n}", variable, n))
        return Design(
            question="Is any arm better?", environment="simulated", base_job={}, arms=tuple(arms),
            control_arm="control", hypotheses=tuple(claims), seeds=tuple(range(1, self.looks[-1].seeds + 1)),
            metric=Metric(meaning="a made-up score", episodes=1), test=self.test, alpha=ALPHA, looks=self.looks,
            budget=Budget(wall_clock_s=1), price=Price(runs=1, parallel=1, seconds_per_run=1, total_s=1, basis="none"),
            noise=noise if self.bank else None,
            multiplicity="dunnett_bh" if self.treatments > 1 else "none",
        )  # fmt: skip


@dataclass(frozen=True)
class World:
    """What is true: the difference of arm 1, and what is not as the test would have it."""

    effect: float = 0.0
    ratio: float = 1.0
    """Noise of arm 1 over that of the others."""
    bank: float = 1.0
    """What the bank says of the noise, over the truth."""
    collapse: float = 0.0
    """Probability of a run to collapse, in every arm."""

    @property
    def sd(self) -> float:
        """Noise of an arm other than arm 1."""
        return float((1 + self.collapse * (1 - self.collapse) * _FAR_DOWN**2) ** 0.5)


@dataclass
class Tally:
    """Counts over the simulated studies of one procedure in one world."""

    studies: int = 0
    any_false: int = 0
    claimed: int = 0
    """Studies in which the claim on arm 1 was made in the right direction."""
    wrong_sign: int = 0
    covered: int = 0
    """Final intervals of arm 1 that hold the true difference."""
    levels: float = 0.0
    """Sum of the levels those intervals state."""
    seeds: int = 0
    fell_back: int = 0
    false_shares: list[float] = field(default_factory=list)
    """Share of the claims made that are false, by study."""

    def add(self, verdicts: Sequence[Verdict], world: World) -> None:
        """Count one study by its final verdicts, that on arm 1 first."""
        made = [v for v in verdicts if v.verdict in ("supported", "refuted")]
        first = verdicts[0]
        false = [v for v in made if v is not first or not world.effect or v.verdict == "refuted"]
        self.studies += 1
        self.any_false += bool(false)
        self.false_shares.append(len(false) / len(made) if made else 0.0)
        self.claimed += first.verdict == "supported"
        self.wrong_sign += bool(world.effect) and first.verdict == "refuted"
        self.covered += first.low is not None and first.high is not None and first.low <= world.effect <= first.high
        self.levels += first.level
        self.seeds += first.n_treatment
        self.fell_back += first.test == "welch"

    def figures(self) -> dict[str, Any]:
        """Return rates with their 95 % Wilson intervals, and means."""
        return {
            "studies": self.studies,
            "false_claim": _rate(self.any_false, self.studies),
            "false_discovery": sum(self.false_shares) / self.studies,
            "claimed": _rate(self.claimed, self.studies),
            "wrong_sign": _rate(self.wrong_sign, self.studies),
            "coverage": _rate(self.covered, self.studies),
            "level": self.levels / self.studies,
            "seeds": self.seeds / self.studies,
            "fell_back": self.fell_back / self.studies,
        }


def simulate(procedure: Procedure, world: World, studies: int, *, seed: int = SEED) -> Tally:
    """Return what became of so many studies; the same seed gives the same studies."""
    rng, tally = random.Random(f"{seed} {procedure.name} {world}"), Tally()
    for _ in range(studies):
        design = procedure.design(_bank(rng, world))
        tally.add(_study(design, _runs(design, procedure, world, rng)), world)
    return tally


def compared(test: Test, seeds: int, arms: int, world: World, studies: int) -> dict[str, Any]:
    """Return how often one comparison of equal means is claimed, and how often Welch's test was made instead.

    It is the two arms' comparison alone, without looks or other claims: fast enough for many studies.
    """
    procedure = Procedure("", test, (Look(seeds=seeds, alpha=ALPHA),), treatments=arms - 1)
    rng, design, claimed, welch = random.Random(f"{SEED} {test} {seeds} {arms} {world}"), procedure.design(None), 0, 0
    for _ in range(studies):
        control, treatment, *others = (
            _data(name, values).runs(0) for name, values in _runs(design, procedure, world, rng).items()
        )
        found = compare(test, control, treatment, others=[o.numbers for o in others], noise=_bank(rng, world))
        assert found is not None
        low, high = found.interval(1 - ALPHA)
        claimed += not low <= world.effect <= high if not world.effect else low > 0
        welch += found.test == "welch"
    what = "claimed" if world.effect else "false_claim"
    return {"test": test, "n": seeds, "arms": arms, **vars(world), "studies": studies,
            what: _rate(claimed, studies), "fell_back": welch / studies}  # fmt: skip


def _study(design: Design, runs: dict[str, list[float]]) -> list[Verdict]:
    """Judge look by look; a hypothesis that is decided gets no more runs."""
    settled: dict[str, Verdict] = {}
    for number, look in enumerate(design.looks, start=1):
        seen = {arm.name: look.seeds for arm in design.arms}
        seen |= {f"arm{name[1:]}": verdict.n_treatment for name, verdict in settled.items()}
        data = {name: _data(name, runs[name][:count]) for name, count in seen.items()}
        open_claims = [claim.id for claim in design.hypotheses if claim.id not in settled]
        found = [judge(design, name, data, look=number, earlier=settled) for name in open_claims]
        settled |= {verdict.hypothesis: verdict for verdict in found if verdict.final}
    return [settled[claim.id] for claim in design.hypotheses]


def _runs(design: Design, procedure: Procedure, world: World, rng: random.Random) -> dict[str, list[float]]:
    """Return the values of every arm's runs by seed; runs of one seed share a part of their noise."""
    shared = [rng.gauss(0, procedure.correlation**0.5) for _ in design.seeds]
    own = (1 - procedure.correlation) ** 0.5
    return {arm.name: [_value(common, own, arm.name == "arm1", world, rng) for common in shared] for arm in design.arms}


def _value(common: float, own: float, treated: bool, world: World, rng: random.Random) -> float:
    noise = (common + rng.gauss(0, own)) * (world.ratio if treated else 1.0)
    fallen = _FAR_DOWN if rng.random() < world.collapse else 0.0
    return noise - fallen + (world.effect if treated else 0.0)


def _bank(rng: random.Random, world: World) -> Noise:
    """Return a bank that was itself estimated, from `BANK_DF` degrees of freedom."""
    measured = (sum(rng.gauss(0, 1) ** 2 for _ in range(BANK_DF)) / BANK_DF) ** 0.5
    return Noise(sd=world.bank * world.sd * measured, df=BANK_DF, episodes=1, basis="simulated")


def _data(name: str, values: Sequence[float]) -> ArmData:
    runs = {f"{name}-{n}": value for n, value in enumerate(values)}
    return ArmData(runs, {run: n for n, run in enumerate(runs)})


def _claim(name: str, variable: str, value: int) -> Hypothesis:
    return Hypothesis(
        id=name, statement="It is better.", variable=variable, control=0, treatment=value, direction="increase",
        prediction=Prediction(low=0, high=1, probability=0.5),
    )  # fmt: skip


def _once(seeds: int) -> tuple[Look, ...]:
    return (Look(seeds=seeds, alpha=ALPHA),)


def _rate(count: int, n: int) -> list[float]:
    found = rate_interval(count, n)
    assert found is not None
    return [found.mean, found.low, found.high]
