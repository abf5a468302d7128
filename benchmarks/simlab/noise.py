"""Ugly data: worlds whose noise is not what tests rest on, each kind alone and mixtures that are drawn at random.

Promises. A cell is one kind of ugliness; the last cell draws a mixture of all of them from each study's seed, so that
nobody can tune to one. A cell says nothing of the difference between the arms: a suite plants that, in the trainings
that start and do not collapse. All of it is planted on the first treatment that is asked about; a second one is like
the control.

Does not know. How often real trainings are so.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from simlab.worlds import Collapse, ComparisonTopic, MainEffect, Planted

EPISODES = 512
STEPS = 20
"""Long enough for a training curve of which a fall can be told."""
LOST = (0.6, 1.3)
"""Shares of its gain that a collapsed run loses: from 1 on it ends below its beginning."""
MIXTURE = "mixture"
_EVALUATION_SD = math.sqrt(0.25 / EPISODES)
_TOTAL_SD = 0.05
"""Noise of a run, evaluation included: half of the rule planner's smallest effect of interest."""
_QUIET_SD = 0.03
"""The same where an arm is louder, or the bank's word is, so that a study is affordable."""
_CEILING, _CEILING_SD = 0.93, 0.012
"""Highest mean success near the ceiling, and the noise between seeds there."""


@dataclass(frozen=True, slots=True)
class Ugliness:
    """What is ugly about a world; by default nothing."""

    collapses: tuple[float, float] = (0.0, 0.0)
    """Rates of collapse of the control and of the treatment."""
    ratio: float = 1.0
    """Noise of the treatment over that of the control."""
    tails: Literal["normal", "t3", "skewed"] = "normal"
    """Skewed: the treatment's alone."""
    correlation: float = 0.0
    """Of runs of the two arms that share a seed."""
    stuck: float = 0.0
    """Rate of the treatment's trainings that stay where they began."""
    ceiling: bool = False
    """Whether the better arm is near the top of the measure."""
    bank: float | None = None
    """Noise of the runs that the bank knows over that of the control; None where it knows none, and a pilot sizes."""
    bank_sees: bool = True
    """Whether the bank's runs collapse as the control's do."""

    def loudness(self, ask: ComparisonTopic) -> float:
        """Return the noise of a difference over that which the bank promises: an effect is so much harder to see.

        A pilot promises by what it meets.
        """
        world, bank = self.worlds(ask, seed=0, shift=0.0)
        if bank is None:
            return 1.0
        control, treatment = (math.hypot(world.seed_sd * loud, _EVALUATION_SD) for loud in (1.0, self.ratio))
        return math.sqrt((control**2 + treatment**2) / 2) / math.hypot(bank.seed_sd, _EVALUATION_SD)

    def worlds(self, ask: ComparisonTopic, seed: int, shift: float) -> tuple[Planted, Planted | None]:
        """Return the world in which the first treatment is better by `shift`, and that of the bank's runs, if any.

        `shift` is of trainings that do not collapse.
        """
        treated, (rate, treated_rate) = ask.values[1], self.collapses
        total = _TOTAL_SD if self.ratio <= 1 and (self.bank or 1.0) <= 1 else _QUIET_SD
        world = Planted(
            seed=seed, knobs=ask.knobs, base=ask.base, effects=(MainEffect(ask.field, {treated: shift}),),
            centre=_CEILING - max(0.0, shift) if self.ceiling else 0.5 - shift / 2,
            seed_sd=_CEILING_SD if self.ceiling else _between_seeds(total),
            tails=self.tails,
            louder=MainEffect(ask.field, {treated: self.ratio - 1}) if self.ratio != 1 else None,
            pairing=self.correlation, episodes=EPISODES, steps=STEPS,
            collapse=Collapse(rate, MainEffect(ask.field, {treated: treated_rate - rate}), lost=LOST),
            stuck=MainEffect(ask.field, {treated: self.stuck}) if self.stuck else None,
        )  # fmt: skip
        if self.bank is None:
            return world, None
        total = math.hypot(world.seed_sd, _EVALUATION_SD) * self.bank
        collapse = world.collapse if self.bank_sees else replace(world.collapse, probability=0.0, more=None)
        return world, replace(world, seed_sd=_between_seeds(total), collapse=collapse)


CELLS: Mapping[str, Ugliness] = {
    "clean": Ugliness(),
    "collapses alike": Ugliness(collapses=(0.15, 0.15)),
    "collapses in one arm": Ugliness(collapses=(0.0, 0.15)),
    "collapses the bank never saw": Ugliness(collapses=(0.15, 0.15), bank=1.0, bank_sees=False),
    "noise 1:2": Ugliness(ratio=2.0),
    "noise 1:5": Ugliness(ratio=5.0),
    "heavy tails": Ugliness(tails="t3"),
    "correlation 0.6": Ugliness(correlation=0.6),
    "correlation -0.6": Ugliness(correlation=-0.6),
    "near the ceiling": Ugliness(ceiling=True),
    "bank half the truth": Ugliness(bank=0.5),
    "bank twice the truth": Ugliness(bank=2.0),
    "stuck in one arm": Ugliness(stuck=0.1),
    "skewed in one arm": Ugliness(tails="skewed", ratio=3.0),
}
"""Each kind alone."""
NAMES = (*CELLS, MIXTURE)
OUT_OF_SCOPE = frozenset({"correlation -0.6"})
"""Arms share seeds, and Welch's test errs by more than it says where that makes them differ by more: its bars are told
beside those that verdicts are to keep."""


def ugliness(cell: str, seed: int) -> Ugliness:
    """Return what is ugly in a cell; the mixture has every kind in scope, more or less of it, in some studies."""
    if cell != MIXTURE:
        return CELLS[cell]
    source = random.Random(f"{MIXTURE}:{seed}")
    ceiling = source.random() < 0.2
    rates = [source.uniform(0.0, 0.3) if source.random() < 0.5 else 0.0 for _ in range(2)]
    loud, known = source.random() < 0.5, source.random() < 0.5
    return Ugliness(
        collapses=(rates[0], rates[1]),
        ratio=source.uniform(1.0, 5.0) if loud and not ceiling else 1.0,
        tails="t3" if source.random() < 0.3 and not ceiling else "normal",
        correlation=source.uniform(0.0, 0.6),
        ceiling=ceiling,
        bank=2 ** source.uniform(-1.0, 1.0) if known else None,
        bank_sees=source.random() < 0.5,
    )


def _between_seeds(total: float) -> float:
    """Return the noise between seeds that comes to `total` with that of the evaluation."""
    return math.sqrt(max(0.0, total**2 - _EVALUATION_SD**2))
