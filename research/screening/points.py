"""The space that a screen searches: every combination of its knobs' values but the control's, as points and as arms.

A point holds, for each knob, a position on its ladder. Spaces too large to be listed are sampled.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

from studies.records.base import JsonValue
from studies.records.design import Arm, Design
from studies.records.design_parts import Knob, Screen

if TYPE_CHECKING:
    import numpy as np

Point = tuple[int, ...]
"""A position on the ladder of each knob, in the order of the screen's knobs."""
Allowed = Callable[[Mapping[str, JsonValue]], bool]
"""Whether a combination of knob values is a job at all."""

MOST_LISTED = 2048
"""Points looked at in one ask; a larger space is sampled."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_.=+-]{0,63}")


def anything(values: Mapping[str, JsonValue]) -> bool:
    """Allow every combination."""
    return bool(values)


def control_values(design: Design) -> dict[str, JsonValue]:
    """Return what the control arm of a design holds for each knob of its screen."""
    (control,) = design.arms
    held = {**design.base_job, **control.overrides}
    return {knob.field: held[knob.field] for knob in design.screen.knobs} if design.screen else {}


def generator(seed: int, index: int) -> np.random.Generator:
    """Return the source of chance of one ask: it follows from the screen's seed and how many were asked before."""
    import numpy as np

    return np.random.default_rng(int(hashlib.sha256(f"{seed}:{index}".encode()).hexdigest()[:16], 16))


@dataclass(frozen=True)
class Space:
    """The knobs of a screen, and what is no candidate among their combinations."""

    knobs: tuple[Knob, ...]
    control: Mapping[str, JsonValue]
    allowed: Allowed = anything

    @property
    def size(self) -> int:
        """How many combinations there are, the control and the forbidden ones included."""
        return math.prod(len(knob.values) for knob in self.knobs)

    def values(self, point: Point) -> dict[str, JsonValue]:
        """Return the job fields of a point."""
        return {knob.field: knob.values[at] for knob, at in zip(self.knobs, point, strict=True)}

    def point(self, overrides: Mapping[str, JsonValue]) -> Point:
        """Return the point of an arm's overrides; raise ValueError where a value is on no ladder."""
        return tuple(knob.values.index(overrides[knob.field]) for knob in self.knobs)

    @cached_property
    def control_point(self) -> Point | None:
        """Return the control's point; None where one of its values is on no ladder."""
        inside = all(knob.field in self.control and self.control[knob.field] in knob.values for knob in self.knobs)
        return self.point(self.control) if inside else None

    def candidate(self, point: Point) -> bool:
        """Whether a point may be tried: it is a job, and not the control's."""
        return point != self.control_point and self.allowed(self.values(point))

    def candidates(self) -> list[Point]:
        """Return all points that may be tried, in the order of the ladders; only for a space that can be listed."""
        return [point for point in self._all() if self.candidate(point)]

    def pool(self, random: np.random.Generator, without: Iterable[Point]) -> list[Point]:
        """Return the points to choose among, in an order by chance: all, or a sample of a large space."""
        taken = set(without)
        drawn = self.candidates() if self.size <= MOST_LISTED else self._sample(random)
        free = [point for point in drawn if point not in taken]
        return [free[at] for at in random.permutation(len(free))]

    def _all(self) -> Iterable[Point]:
        return product(*(range(len(knob.values)) for knob in self.knobs))

    def _sample(self, random: np.random.Generator) -> list[Point]:
        sizes = [len(knob.values) for knob in self.knobs]
        rows = random.integers(0, sizes, size=(MOST_LISTED, len(sizes))).tolist()
        return [point for point in dict.fromkeys(map(tuple, rows)) if self.candidate(point)]


def space_of(screen: Screen, control: Mapping[str, JsonValue], allowed: Allowed = anything) -> Space:
    """Return the space that a screen searches."""
    return Space(screen.knobs, control, allowed)


def arm_of(space: Space, point: Point, index: int) -> Arm:
    """Return the candidate at a point, named by its values where that makes a name, else by its number from 0."""
    values = space.values(point)
    name = "+".join(f"{field}={str(value).lower()}" for field, value in values.items())
    return Arm(name=name if _NAME.fullmatch(name) else f"candidate-{index + 1}", overrides=values)


def points_of(space: Space, arms: Sequence[Arm]) -> list[Point]:
    """Return the points of candidates asked before."""
    return [space.point(arm.overrides) for arm in arms]
