"""Which candidate a screen tries next: the first ones spread over the knobs, the rest asked of its sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from research.screening.points import Allowed, anything, arm_of, generator, points_of, space_of
from research.screening.rungs import Scores, scored
from research.screening.samplers import SAMPLERS, Known, spread_out
from studies.procedure import Screen
from studies.records import Arm, JsonValue


def next_candidate(
    screen: Screen,
    control: Mapping[str, JsonValue],
    asked: Sequence[Arm],
    scores: Scores,
    *,
    higher_is_better: bool = True,
    allowed: Allowed = anything,
) -> Arm | None:
    """Return the next candidate of a screen; None when enough were asked, or every combination was.

    `control` holds the control's value of each knob (`control_values`): it is never a candidate. `allowed` says whether
    a combination is a job at all. It may be asked while earlier candidates still run.
    """
    if len(asked) >= screen.candidates:
        return None
    space, index = space_of(screen, control, allowed), len(asked)
    points = points_of(space, asked)
    free = space.pool(generator(screen.seed, index), without=points)
    if not free:
        return None
    told = scored(asked, 0, scores, higher_is_better=higher_is_better)
    last = index >= screen.candidates - screen.confirmed
    values = tuple(told.get(arm.name) for arm in asked)
    known = Known(space, screen.seed, tuple(points), values, last, screen.bound)
    begins = index < screen.initial and screen.sampler in ("tpe", "surface")
    return arm_of(space, (spread_out if begins else SAMPLERS[screen.sampler])(known, free), index)
