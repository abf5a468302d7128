"""Simulated studies that end before all their runs are made, judged by the shipped verdict run by run.

Two arms take turns. `budget`: the study ends after a number of runs that nothing in the data moved, each number as
likely as any other. `peeker`: somebody looks after every run at what the verdict would be if the study ended now, and
ends it as soon as that is what they want to see. `planned`: nothing ends it. The same seed gives the same studies.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from rig.simulated_verdicts import SEED, World, claim_of, design_of, promised, rate_of, sign_said, training
from studies.records.alpha import AlphaAllocation, AlphaLedgers
from studies.records.design import Design
from studies.records.verdict import Ended, Verdict
from studies.statistics.comparison import Test
from studies.statistics.sizing import plan_analyses
from studies.verdicts.inputs import ArmData
from studies.verdicts.rules import LEAST_KEPT, judge

End = Literal["planned", "budget", "peeker"]
_MOST_LOOKS = 3
_DECIDED = ("supported", "refuted", "equivalent")


@dataclass(frozen=True)
class LastLooks:
    """What ends the studies of a row, and what is true in them."""

    seeds: int
    end: End
    spending: Literal["planned", "reached"] = "reached"
    """How the lock pays for an end before a look: by the level planned for its seeds, or by what was reached."""
    test: Test = "welch"
    world: World = field(default_factory=World)
    alike: bool = False
    """Whether the margin of equivalence is planted and an equivalence is looked for; else nothing, and a difference."""

    @property
    def margin(self) -> float | None:
        return promised(self.seeds) * self.world.louder if self.alike else None


@cache
def _stake(row: LastLooks) -> AlphaAllocation:
    design = design_of(
        [claim_of(1)], row.seeds, test=row.test, looks=plan_analyses(row.seeds, _MOST_LOOKS), spending=row.spending,
        equivalence_margin=row.margin,
    )  # fmt: skip
    return AlphaLedgers.begin(1, design.alpha).allocate(design)


def simulate(row: LastLooks, studies: int) -> dict[str, Any]:
    """Return how often a false claim was made, with its exact 95 % limits, and what the studies came to."""
    rngs = [random.Random(f"{SEED} last looks {row} {number}") for number in range(studies)]
    verdicts = [play(row, rng) for rng in rngs]
    false = [v.verdict == "equivalent" if row.alike else sign_said(v) != 0 for v in verdicts]
    return {
        "seeds": row.seeds, "end": row.end, "spending": row.spending, "test": row.test, "alike": row.alike,
        "studies": studies, "false": rate_of(sum(false), studies),
        "runs": sum(v.n_control + v.n_treatment for v in verdicts) / studies,
        "cut": sum(v.last is not None for v in verdicts) / studies, "level": sum(v.level for v in verdicts) / studies,
    }  # fmt: skip


def play(row: LastLooks, rng: random.Random) -> Verdict:
    """Return the verdict that a study ends with."""
    stake, treated = (
        _stake(row),
        row.world if row.margin is None else replace(row.world, effect=row.margin),
    )
    design, values = stake.design, dict[str, list[float]](control=[], arm1=[])
    least = 2 * LEAST_KEPT
    stop = rng.randint(least, 2 * row.seeds) if row.end == "budget" else 0
    look = 1
    for made in range(1, 2 * row.seeds + 1):
        if made % 2:
            shared = rng.gauss(0, 1)
        arm = "control" if made % 2 else "arm1"
        values[arm].append(training(treated, arm == "arm1", shared, design.shared_seeds, rng).value)
        if made == 2 * design.looks[look - 1].seeds:
            found = judge(stake, "h1", _data(design, values), look=look)
            look += 1
            if found.final:
                return found
        elif row.end == "peeker" and made >= least:
            found = _ended(row, stake, values, look, "hand")
            if found.verdict in (_DECIDED[2:] if row.alike else _DECIDED[:2]):
                return found
        if made == stop:
            return _ended(row, stake, values, look, "budget")
    raise AssertionError("the last look is final")


def _ended(
    row: LastLooks, stake: AlphaAllocation, values: Mapping[str, Sequence[float]], look: int, ended: Ended
) -> Verdict:
    data = _data(stake.design, values)
    return judge(stake, "h1", data, look=look, ended=ended if row.spending == "reached" else None)


def _data(design: Design, values: Mapping[str, Sequence[float]]) -> dict[str, ArmData]:
    return {
        name: ArmData({f"{name}-{n}": value for n, value in enumerate(own)},
                      {f"{name}-{n}": seed for n, (_, seed) in enumerate(zip(own, design.seeds, strict=False))})
        for name, own in values.items()
    }  # fmt: skip
