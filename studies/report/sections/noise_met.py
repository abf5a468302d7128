"""The noise that a study met beside the one it was planned on, and the power it really had."""

from __future__ import annotations

import math
from dataclasses import dataclass

from studies.log.study_state import StudyState
from studies.records.design import Design
from studies.statistics.samples import constant, spread_interval
from studies.verdicts.judge import gather
from studies.verdicts.verdict import LEAST_KEPT


@dataclass(frozen=True, slots=True)
class NoiseMet:
    """The spread between seeds within arms, pooled over all of them."""

    planned: float
    """Standard deviation that the bank promised."""
    seen: float
    low: float
    high: float
    """Ends of the 95 % interval of what is behind `seen`, for normal noise."""
    power: float | None
    """Probability of seeing the promised effect at `seen` with the runs that there are; None where nothing was
    promised, or nothing can be judged."""

    @property
    def ratio(self) -> float:
        """How many times the planned noise was met."""
        return self.seen / self.planned


def noise_met(state: StudyState) -> NoiseMet | None:
    """Return the noise that the runs of all arms showed; None where the bank said nothing, or no run can tell."""
    design = state.design
    if design is None or design.noise is None:
        return None
    arms = [
        list((data.kept() if design.collapse is not None else data.runs(design.metric.worst)).numbers)
        for data in gather(state, look=max(1, len(design.looks))).values()
    ]
    told = [values for values in arms if len(values) > 1]
    if not told or all(constant(values) for values in told):
        return None
    df = sum(len(values) - 1 for values in told)
    squares = sum(_squares(values) for values in told)
    low, high = spread_interval(squares, df)
    seen = math.sqrt(squares / df)
    fewest = min([min(v.n_control, v.n_treatment) for v in state.verdicts] or [len(design.seeds)])
    return NoiseMet(design.noise.sd, seen, low, high, _power(design, seen, fewest))


def _squares(values: list[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)


def _power(design: Design, sd: float, runs: int) -> float | None:
    from studies.statistics.power import power, shape_of  # needs scipy, which takes a while

    least = 2 if design.collapse is None else LEAST_KEPT
    if design.promise is None or not design.hypotheses or design.test == "boschloo" or runs < least:
        return None
    shapes = (shape_of(design, claim) for claim in design.hypotheses)
    made = (shape if runs == shape.seeds else shape.with_seeds(runs) for shape in shapes)
    return min(power(shape, design.promise.effect, sd) for shape in made)
