"""The screen: which candidate is tried next, which runs are due, who goes on, who is kept.

The first candidates are spread over the knobs, the rest are asked of the response surface. A failed run has the worst
score. Candidates are ranked by the surface's mean, which draws a lucky score back to what all others say; those of a
plain grid by the raw score.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Never

from research.errors import NotReady
from studies.records.base import JsonValue
from studies.records.design import Arm
from studies.records.procedure import Screen, Selection

Allowed = Callable[[Mapping[str, JsonValue]], bool]
"""Whether a combination of knob values is a job at all."""
_Point = tuple[int, ...]
_NAME = re.compile(r"[a-z0-9][a-z0-9_.=+-]{0,63}")
Scores = Mapping[str, float | None]
"""The metric of each candidate whose run is over, None where nothing could be measured."""


@dataclass(frozen=True, slots=True)
class ScreenProgress:
    """A screen as far as it went: the candidates asked so far, and the scores of those whose run is over."""

    screen: Screen
    control: Mapping[str, JsonValue]
    """The control's value of each knob: it is never a candidate."""
    asked: tuple[Arm, ...] = ()
    scores: Scores = field(default_factory=dict)
    higher_is_better: bool = True
    allowed: Allowed = bool

    def __post_init__(self) -> None:
        if len(self.screen.rungs) > 1:
            self._refuse()

    def _refuse(self) -> Never:
        raise NotReady(
            f"expected a screen of one length by a bound of the response surface; found {len(self.screen.rungs)} by "
            f"{self.screen.sampler}, which an older ajet locked; finish it there, or ask again"
        )

    def next_candidate(self) -> Arm | None:
        """Return the next candidate; None when enough were asked, or every combination was."""
        from research.design.samplers import choose_balanced, choose_by_surface, list_free  # they take long to import

        screen, index, points = self.screen, len(self.asked), self._points
        inside = all(knob.field in self.control and self.control[knob.field] in knob.values for knob in screen.knobs)
        taken = [*points.values(), *([self._point(self.control)] if inside else [])]
        if index >= screen.candidates or not (
            free := list_free(screen, taken, lambda point: self.allowed(self._values(point)), index)
        ):
            return None
        known = self._known_scores()
        if screen.sampler == "grid":
            point = min(free)
        elif screen.sampler != "surface" or screen.bound is None:
            self._refuse()
        elif index < screen.initial or not known:
            point = choose_balanced(taken, free)
        else:
            scores = {point: known.get(name) for name, point in points.items()}
            point = choose_by_surface(screen, scores, free, last=index >= screen.candidates - screen.confirmed)
        values = self._values(point)
        name = "+".join(f"{field}={str(value).lower()}" for field, value in values.items())
        return Arm(name=name if _NAME.fullmatch(name) else f"candidate-{index + 1}", overrides=values)

    def select(self) -> Selection:
        """Return what a screen that is over led to, the best first and no failed one; raise ValueError for none."""
        ranks = self._known_scores()
        if self.screen.sampler == "surface" and ranks:
            from research.design.samplers import Surface

            points = [self._points[name] for name in ranks]
            surface = Surface(self.screen.knobs, points, [*ranks.values()])
            ranks = dict(zip(ranks, surface.predict_scores(points), strict=True))
        sign = 1.0 if self.higher_is_better else -1.0
        ranks = {name: sign * score for name, score in sorted(ranks.items(), key=lambda entry: -entry[1])}
        kept = tuple(name for name in ranks if self.scores[name] is not None)[: self.screen.confirmed]
        if not kept:
            raise ValueError("expected a candidate that was measured; found none")
        by = "the response surface's mean" if self.screen.sampler == "surface" else "the score"
        reason = (
            f"the best {len(kept)} of {len(self.asked)} candidates by {by} after {self.screen.rungs[-1].steps} steps, "
            f"seed {self.screen.seed}"
        )
        return Selection(kept=kept, scores=ranks, reason=reason)

    def _values(self, point: _Point) -> dict[str, JsonValue]:
        return {knob.field: knob.values[at] for knob, at in zip(self.screen.knobs, point, strict=True)}

    def _point(self, values: Mapping[str, JsonValue]) -> _Point:
        return tuple(knob.values.index(values[knob.field]) for knob in self.screen.knobs)

    @property
    def _points(self) -> dict[str, _Point]:
        return {arm.name: self._point(arm.overrides) for arm in self.asked}

    def _known_scores(self) -> dict[str, float]:
        """Return the score of each candidate that has one, turned so that higher is better, the failed worst."""
        sign = 1.0 if self.higher_is_better else -1.0
        there = {arm.name: self.scores[arm.name] for arm in self.asked if arm.name in self.scores}
        worst = min((sign * score for score in there.values() if score is not None), default=0.0)
        return {name: worst if score is None else sign * score for name, score in there.items()}
