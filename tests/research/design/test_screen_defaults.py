from __future__ import annotations

import pytest

from research.design.comparison import default_screen, default_seeds
from research.design.screening import steps_in_all
from studies.records.procedure import Knob, Screen


def the_screen(knobs: str, runs: float, steps: int = 20, telling: int | None = None) -> Screen:
    screen = default_screen(
        [Knob(field=name, values=(1, 2, 3, 4)) for name in knobs], runs, steps=steps, telling=telling
    )
    assert screen is not None
    return screen


@pytest.mark.parametrize("runs", [12, 20, 40, 80])
def test_the_usual_screen_and_its_confirmation_fit_the_budget(runs: int) -> None:
    screen = the_screen("abcd", runs)
    assert steps_in_all(screen) / 20 + (1 + screen.confirmed) * default_seeds(runs, screen.confirmed) <= runs
    assert [rung.steps for rung in screen.rungs] == [10]
    assert screen.bound is not None
    assert screen.initial <= screen.candidates


def test_a_screen_has_no_more_candidates_than_there_are_combinations() -> None:
    assert the_screen("a", 100).candidates == 3
    assert default_screen([Knob(field="a", values=(1, 2, 3, 4))], 100, steps=20, points=2) is None


def test_short_runs_that_are_known_to_tell_go_first_and_fit_the_budget_too() -> None:
    plain, telling = the_screen("abc", 24, 32), the_screen("abc", 24, 32, telling=4)
    assert telling.candidates > plain.candidates
    assert [rung.steps for rung in telling.rungs] == [4, 32]
    assert steps_in_all(telling) / 32 + (1 + telling.confirmed) * default_seeds(24) <= 24
