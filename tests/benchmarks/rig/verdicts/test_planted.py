"""Simulated studies are what their cell says: the planted truth is true, and the rules are those that are locked."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rig.frame import RESULTS
from rig.verdicts.planted import (
    DROP,
    LOST,
    START,
    Procedure,
    World,
    _bank,
    data_of,
    drawn,
    promised,
    simulate,
    training,
)
from verdicts import CELLS, missed

RATES = st.floats(0.0, 0.4)


@given(effect=st.floats(-0.2, 0.2), rates=st.tuples(RATES, RATES), over_all=st.booleans())
def test_the_effect_is_planted_in_the_mean_that_is_named(
    effect: float, rates: tuple[float, float], over_all: bool
) -> None:
    world = World(effect=effect, collapses=rates, over_all=over_all)
    assert (world.of_all if over_all else world.shift) == pytest.approx(effect)
    if not any(rates):
        assert world.shift == pytest.approx(world.of_all)


def test_the_mean_of_all_trainings_is_what_the_simulated_ones_come_to() -> None:
    world, rng = World(effect=0.1, collapses=(0.3, 0.1)), random.Random(1)
    control, treatment = (
        fmean(training(world, treated, 0.0, False, rng).value for _ in range(20_000)) for treated in (False, True)
    )
    assert treatment - control == pytest.approx(world.of_all, abs=0.01)


def test_collapses_are_told_from_the_course_and_holding_runs_are_not() -> None:
    rng, procedure = random.Random(2), Procedure("after", 5)
    design = procedure.design(*_bank(rng, World()))
    told = []
    for rate in (0.0, 1.0):
        runs = [training(World(collapses=(rate, rate)), False, 0.0, False, rng) for _ in range(1000)]
        told.append(len(data_of(design, "control", runs).collapsed))
    assert told[0] <= 10
    assert told[1] >= 950


def test_what_a_collapse_costs_is_what_the_bank_says_of_it() -> None:
    assert pytest.approx(fmean(LOST) * (World().end - START)) == DROP


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_todays_rules_are_locked_and_those_of_before_are_as_they_were(seeds: int) -> None:
    before, after = (Procedure(rules, seeds) for rules in ("before", "after"))
    assert after.test == "welch"
    assert replace(after, treatments=4).test == "common"
    assert before.test == "pooled"
    assert after.looks[0].seeds >= 3
    noise, drop = _bank(random.Random(3), World(collapses=(0.2, 0.2)))
    new, old = after.design(noise, drop), before.design(noise, drop)
    assert new.collapse is not None
    assert not new.shared_seeds
    assert old.collapse is None
    assert old.shared_seeds
    assert Procedure("before", 5).looks[0].seeds == 2


def test_the_promised_effect_shrinks_with_the_seeds() -> None:
    assert promised(3) > promised(5) > promised(8)


def test_a_mixture_is_a_function_of_its_number() -> None:
    assert drawn(4) == drawn(4)
    assert len({drawn(number) for number in range(30)}) == 30


def test_the_promised_effect_is_found_and_nothing_is_not() -> None:
    procedure = Procedure("after", 8, margin=promised(8))
    nothing, planted = (simulate(procedure, World(), 60, planted=planted).figures() for planted in (False, True))
    assert nothing["false"][0] <= 0.2
    assert nothing["equivalent"][0] >= 0.5
    assert planted["found"][0] >= 0.6
    assert planted["wrong_sign"][0] == 0


def test_the_published_rows_have_every_cell_before_and_after() -> None:
    rows = json.loads((RESULTS / "verdicts.json").read_text())["rows"]
    for arms in (2, 5):
        kinds = {(row["cell"], row["rules"]) for row in rows if row["arms"] == arms and row["rules"] != "paired"}
        assert kinds == {(cell, rules) for cell in CELLS for rules in ("before", "after")}
    assert all(isinstance(line, str) for line in missed(rows))
