"""Whether a baseline leaves room for the effect that is looked for, up or down to the bounds of its measure.

A share of solved tasks ends at 0 and at 1. Where runs of the very job of the control are known (A/A runs of this study,
or earlier ones), a claim that an effect lies upwards needs that much room above their mean, and one downwards below.
Runs that are all 0 or all 1 do not vary, so that no noise is known either: they are refused in any direction. A search
claims that its best candidate is better. What would help is offered in the order in which it is likely to; whether the
longer, shorter or finer comparison is affordable then is judged when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Final

from research.design.comparison import UnsizedDesign
from research.errors import DesignRefused
from research.noise.bank import NoiseBank
from studies.records.design import Metric
from swarm.environments.registry import environments

FLOOR: Final = 0.0
CEILING: Final = 1.0
LEAST_RUNS: Final = 2
"""Runs of the control's job that say where it stands."""
_FINEST: Final = 0.01
"""Smallest effect that is offered."""


def require_headroom(unsized: UnsizedDesign, bank: NoiseBank, metric: Metric, directions: Sequence[str]) -> None:
    """Raise DesignRefused where the control's level is known and an effect in one of `directions` does not fit."""
    job = unsized.comparison.base
    known = bank.levels(job, metric)
    if len(known) < LEAST_RUNS:
        return
    level = fmean(known)
    at_bound = min(known) == max(known) and level in (FLOOR, CEILING)
    cramped = [way for way in directions if _room(level, way) < unsized.effect - 1e-9]
    if at_bound or cramped:
        up = level >= CEILING if at_bound else cramped[0] == "increase"
        raise _refused(unsized, level, len(known), up=up, at_bound=at_bound)


def _room(level: float, direction: str) -> float:
    return CEILING - level if direction == "increase" else level - FLOOR


def _refused(unsized: UnsizedDesign, level: float, runs: int, *, up: bool, at_bound: bool) -> DesignRefused:
    where, bound = ("ceiling", CEILING) if up else ("floor", FLOOR)
    room = abs(bound - level)
    said = (
        f"the control itself stands at the {where}: all {runs} runs of its job come to {level:g}, so that "
        f"nothing can be seen of what another setting changes"
        if at_bound
        else f"the control itself comes to {level:.3f} in {runs} runs of its job, {room:.3f} from the {where} of "
        f"{bound:g}: an effect of {unsized.effect:g} does not fit between"
    )
    steps = _other_steps(unsized, fewer=up)
    finer = None if at_bound or room < _FINEST else int(room / _FINEST) * _FINEST
    flags = "; or ".join(_flags(unsized, steps, finer))
    suggestions = "; or ".join([*_suggestions(steps, finer), "decline, and say why"])
    return DesignRefused(f"{said}: {flags}", for_planner=f"{said}: {suggestions}")


def _other_steps(unsized: UnsizedDesign, *, fewer: bool) -> int | None:
    """Return the length of training that may leave the bound; None where the length is varied, or none is shorter."""
    steps = unsized.comparison.base.steps
    if any("steps" in arm.overrides for arm in unsized.comparison.arms) or (fewer and steps == 1):
        return None
    return steps // 2 if fewer else 2 * steps


def _flags(unsized: UnsizedDesign, steps: int | None, finer: float | None) -> Iterator[str]:
    if steps is not None:
        yield f"train {'fewer' if steps < unsized.comparison.base.steps else 'more'} steps, --set steps={steps}"
    others = [name for name in environments() if name != unsized.comparison.base.environment]
    if others:
        yield f"choose another environment, --env {others[0]}"
    if finer is not None:
        yield f"look for a smaller effect, --effect {finer:g}, which needs more seeds"


def _suggestions(steps: int | None, finer: float | None) -> Iterator[str]:
    if steps is not None:
        yield f"design {steps} steps"
    yield "choose another environment, unless one is named"
    if finer is not None:
        yield f"name a smaller smallest_effect, {finer:g} at most"
