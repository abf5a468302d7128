"""What looks save on average, against a simulation of the walk they stop."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from research.design.cost import Stage
from research.design.power import planned_looks
from research.planning.preview import expected_seeds, run_hours
from studies.records.design_parts import Look
from tests.lazily import lazy

stats = lazy("scipy.stats")
SD = 0.03


def simulated(looks: tuple[Look, ...], effect: float, studies: int = 4000) -> float:
    """Return the mean number of seeds at which a study with known noise would stop."""
    source, ends = random.Random(1), []
    for _ in range(studies):
        differences = [source.gauss(effect, SD * 2**0.5) for _ in range(looks[-1].seeds)]
        for look in looks:
            z = fmean(differences[: look.seeds]) / (SD * (2 / look.seeds) ** 0.5)
            if abs(z) > stats.norm.isf(look.alpha / 2):
                break
        ends.append(look.seeds)
    return fmean(ends)


@pytest.mark.parametrize("effect", [0.0, 0.03, 0.06, 0.2])
def test_expected_seeds_are_those_of_a_simulation(effect: float) -> None:
    looks = planned_looks(9, 3)
    assert expected_seeds(looks, effect, SD) == pytest.approx(simulated(looks, effect), abs=0.15)


def test_one_look_saves_nothing() -> None:
    assert expected_seeds(planned_looks(3, 3), 0.5, SD) == 3


def test_run_hours_are_those_of_all_runs() -> None:
    assert run_hours([Stage("a", 10, 36.0), Stage("b", 1, 3600.0)]) == pytest.approx(1.1)
