"""Drives a screen to its end, as a study does, with a function in the place of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from research.design.screen_defaults import BOUND
from research.screening import Trial, due, next_candidate, select
from studies.records.base import JsonValue
from studies.records.design import Arm
from studies.records.design_parts import Knob, Rung, Screen, Selection

Truth = Callable[[Mapping[str, JsonValue], int], float | None]
"""The score of a candidate's job fields at a rung."""

LADDERS = (
    Knob(field="a", values=(1, 2, 4, 8)),
    Knob(field="b", values=(0.1, 0.2, 0.4)),
    Knob(field="c", values=(False, True)),
)
CONTROL: dict[str, JsonValue] = {"a": 1, "b": 0.1, "c": False}


def a_screen(sampler: str = "surface", candidates: int = 12, keeps: tuple[int, ...] = (2,), seed: int = 1) -> Screen:
    """Return a screen by a sampler; `bound` is the surface's upper bound, `surface` its expected improvement."""
    rungs = tuple(Rung(steps=10 * (at + 1), keep=keep) for at, keep in enumerate(keeps))
    named, bound = ("surface", BOUND) if sampler == "bound" else (sampler, None)
    return Screen.model_validate(
        {"knobs": LADDERS, "sampler": named, "bound": bound, "candidates": candidates, "initial": 4, "rungs": rungs,
         "seed": seed}
    )  # fmt: skip


@dataclass
class Driven:
    """What a screen asked and saw."""

    asked: list[Arm] = field(default_factory=list)
    scores: dict[tuple[str, int], float | None] = field(default_factory=dict)
    selection: Selection | None = None

    @property
    def kept(self) -> tuple[str, ...]:
        assert self.selection is not None
        return self.selection.kept

    def at(self, rung: int) -> set[str]:
        return {name for name, own in self.scores if own == rung}


def drive(screen: Screen, truth: Truth, *, at_once: int = 1, higher_is_better: bool = True) -> Driven:
    """Run a screen with `at_once` runs side by side, whose scores all come in before the next are asked."""
    driven = Driven()
    while True:
        fresh = []
        while len(fresh) < at_once and (arm := _ask(screen, driven, higher_is_better)):
            driven.asked.append(arm)
            fresh.append(arm)
        trials = due(screen, CONTROL, driven.asked, driven.scores, higher_is_better=higher_is_better)
        if not fresh and not trials:
            break
        _finish(driven, trials, truth)
    driven.selection = select(screen, driven.asked, driven.scores, higher_is_better=higher_is_better)
    return driven


def _ask(screen: Screen, driven: Driven, higher_is_better: bool) -> Arm | None:
    return next_candidate(screen, CONTROL, driven.asked, driven.scores, higher_is_better=higher_is_better)


def _finish(driven: Driven, trials: tuple[Trial, ...], truth: Truth) -> None:
    places = {arm.name: arm.overrides for arm in driven.asked}
    for trial in trials:
        driven.scores[trial] = truth(places[trial.candidate], trial.rung)
