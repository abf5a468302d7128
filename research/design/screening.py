"""The screen: which candidate is tried next, which runs are due, who goes on, who is kept.

The first candidates are spread over the knobs, the rest are asked of the response surface. Rungs are synchronous
(successive halving): one begins when the one before it is over (Jamieson & Talwalkar 2016). A failed run has the worst
score of its rung. Candidates are ranked by the surface's mean, which draws a lucky score back to what all others say;
those of a plain grid by the raw score.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from research.errors import NotReady
from studies.records.base import JsonValue
from studies.records.design import Arm
from studies.records.procedure import Rung, Screen, Selection


class Trial(NamedTuple):
    """One screening run: a candidate at a rung, trained `screen.rungs[rung].steps` steps with the screen's seed."""

    candidate: str
    rung: int


Allowed = Callable[[Mapping[str, JsonValue]], bool]
"""Whether a combination of knob values is a job at all."""
_Point = tuple[int, ...]
_NAME = re.compile(r"[a-z0-9][a-z0-9_.=+-]{0,63}")
Scores = Mapping[tuple[str, int], float | None]
"""The metric of each trial that is over, None where nothing could be measured; a trial still running is left out."""


@dataclass(frozen=True, slots=True)
class ScreenProgress:
    """A screen as far as it went: the candidates asked so far, and the trials that are over."""

    screen: Screen
    control: Mapping[str, JsonValue]
    """The control's value of each knob: it is never a candidate."""
    asked: tuple[Arm, ...] = ()
    scores: Scores = field(default_factory=dict)
    higher_is_better: bool = True
    allowed: Allowed = bool

    def next_candidate(self) -> Arm | None:
        """Return the next candidate; None when enough were asked, or every combination was."""
        from research.design.samplers import choose_balanced, choose_by_surface  # they take long to import

        screen, index = self.screen, len(self.asked)
        if index >= screen.candidates or not (free := self._free_points()):
            return None
        known, points = self._scores_at(0), self._points
        if screen.sampler == "grid":
            point = min(free)
        elif screen.sampler != "surface" or screen.bound is None:
            raise NotReady(
                f"expected a screen by a bound of the response surface; found one by {screen.sampler}, which an older "
                "ajet locked; finish it there, or ask again"
            )
        elif index < screen.initial or not known:
            point = choose_balanced([*points.values(), *self._control_point], free)
        else:
            scores = {point: known.get(name) for name, point in points.items()}
            point = choose_by_surface(screen, scores, free, last=index >= screen.candidates - screen.confirmed)
        values = self._values(point)
        name = "+".join(f"{field}={str(value).lower()}" for field, value in values.items())
        return Arm(name=name if _NAME.fullmatch(name) else f"candidate-{index + 1}", overrides=values)

    def due_trials(self) -> tuple[Trial, ...]:
        """Return the trials without a score that belong to the rung at hand, running ones included.

        Empty: more must be asked (`next_candidate`), or, where that gives None, `select` may be called.
        """
        if first := self._missing([arm.name for arm in self.asked], 0):
            return first
        if len(self.asked) < self.screen.candidates and self._free_points():
            return ()
        rungs = range(1, len(self.screen.rungs))
        return next(filter(None, (self._missing(self._survivors(rung - 1), rung) for rung in rungs)), ())

    def select(self) -> Selection:
        """Return what a screen that is over led to; raise ValueError where no candidate was measured to the end."""
        last = len(self.screen.rungs) - 1
        if not (kept := self._survivors(last)):
            raise ValueError("expected a candidate that was measured at the screen's last rung; found none")
        by = "the response surface's mean" if self.screen.sampler == "surface" else "the score"
        reason = (
            f"the best {len(kept)} of {len(self.asked)} candidates by {by} after {self.screen.rungs[-1].steps} steps, "
            f"seed {self.screen.seed}"
        )
        return Selection(kept=kept, scores=dict(self._rank(last)), reason=reason)

    def ended(self) -> ScreenProgress:
        """Return the screen that ends now: of the candidates with a score, up to the last rung that was gone through.

        `select` may be called on it.
        """
        tried = replace(self, asked=tuple(arm for arm in self.asked if (arm.name, 0) in self.scores))
        entering, last = tuple(arm.name for arm in tried.asked), 0
        for rung in range(len(self.screen.rungs)):
            if self._missing(entering, rung) or not (entering := tried._survivors(rung)):
                break
            last = rung
        rungs = (*self.screen.rungs[:last], Rung(steps=self.screen.rungs[last].steps, keep=self.screen.confirmed))
        counts = {"candidates": len(tried.asked), "rungs": rungs}
        return replace(tried, screen=self.screen.model_copy(update=counts))

    def _values(self, point: _Point) -> dict[str, JsonValue]:
        return {knob.field: knob.values[at] for knob, at in zip(self.screen.knobs, point, strict=True)}

    def _point(self, values: Mapping[str, JsonValue]) -> _Point:
        """Return the point of knob values; raise ValueError where one is on no ladder."""
        return tuple(knob.values.index(values[knob.field]) for knob in self.screen.knobs)

    @property
    def _points(self) -> dict[str, _Point]:
        return {arm.name: self._point(arm.overrides) for arm in self.asked}

    @property
    def _control_point(self) -> tuple[_Point, ...]:
        """Return the control's point alone; none where one of its values is on no ladder."""
        inside = all(
            knob.field in self.control and self.control[knob.field] in knob.values for knob in self.screen.knobs
        )
        return (self._point(self.control),) if inside else ()

    def _free_points(self) -> list[_Point]:
        from research.design.samplers import list_free

        taken = [*self._points.values(), *self._control_point]
        return list_free(self.screen, taken, lambda point: self.allowed(self._values(point)), len(self.asked))

    def _missing(self, names: Iterable[str], rung: int) -> tuple[Trial, ...]:
        return tuple(Trial(name, rung) for name in names if (name, rung) not in self.scores)

    def _survivors(self, rung: int) -> tuple[str, ...]:
        """Return the candidates that go on from a rung that is over, the best first; a failed one never does."""
        measured = [name for name, _ in self._rank(rung) if self.scores[name, rung] is not None]
        return tuple(measured[: self.screen.rungs[rung].keep])

    def _scores_at(self, rung: int) -> dict[str, float]:
        """Return the score of each candidate that is over at a rung, turned so that higher is better, the failed
        worst.
        """
        sign = 1.0 if self.higher_is_better else -1.0
        there = {arm.name: self.scores[arm.name, rung] for arm in self.asked if (arm.name, rung) in self.scores}
        worst = min((sign * score for score in there.values() if score is not None), default=0.0)
        return {name: worst if score is None else sign * score for name, score in there.items()}

    def _rank(self, rung: int) -> list[tuple[str, float]]:
        """Return the candidates over at a rung with what they are ranked by, in the metric's own direction, best first.

        That is their score, or the surface's mean at the rung, which has seen the rungs before.
        """
        ranks = self._scores_at(rung)
        if self.screen.sampler == "surface" and ranks:
            from research.design.samplers import Surface

            points = self._points
            rows = [(points[name], at, score) for at in range(rung + 1) for name, score in self._scores_at(at).items()]
            surface = Surface(self.screen.knobs, *zip(*rows, strict=True))
            ranks = dict(zip(ranks, surface.predict_scores([points[name] for name in ranks], rung), strict=True))
        sign = 1.0 if self.higher_is_better else -1.0
        return [(name, sign * score) for name, score in sorted(ranks.items(), key=lambda entry: -entry[1])]
