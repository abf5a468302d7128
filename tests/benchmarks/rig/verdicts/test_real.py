"""Studies of real noise draw what was recorded: spread as it was, no difference but the planted one."""

from __future__ import annotations

import json
from statistics import fmean, pvariance, variance

import pytest
from rig.frame import RESULTS
from rig.verdicts.planted import Procedure, promised
from rig.verdicts.real import DATA, as_published, games, resampled

PROCEDURE = Procedure("after", 5, margin=promised(5))


def test_the_runs_are_named_with_where_they_come_from_and_their_licence() -> None:
    held = json.loads(DATA.read_text())
    assert "google/dopamine" in held["source"]
    assert "Apache License 2.0" in held["licence"]
    assert len(games()) == 60
    assert all(len(game.runs) == 6 and all(len(runs) == 5 for runs in game.runs.values()) for game in games())


def test_residuals_spread_as_the_runs_do_and_have_no_mean() -> None:
    for game in games():
        for agent, runs in game.runs.items():
            found = game.residuals[agent]
            assert fmean(found) == pytest.approx(0, abs=1e-9)
            assert pvariance(found) == pytest.approx(variance(runs), abs=1e-12)
        assert 0 < game.sd < 1
        assert game.df == 24


@pytest.mark.parametrize("way", ["agent", "game", "normal five"])
def test_studies_of_real_noise_are_judged_by_the_shipped_rules(way: str) -> None:
    nothing, planted = (resampled(PROCEDURE, way, 60, planted=planted) for planted in (False, True))  # type: ignore[arg-type]
    assert nothing["false_claim"][0] <= 0.2
    assert nothing["found"][0] == 0
    assert planted["found"][0] >= 0.4
    assert planted["wrong_sign"][0] <= 0.05


def test_one_seed_contradicts_the_five_less_often_where_they_are_claimed_to_differ() -> None:
    found = as_published(PROCEDURE)
    assert found["pairs"] == 900
    assert found["one_seed_contradicts_a_claim"] < found["one_seed_contradicts"] < 0.5


def test_what_is_published_has_all_that_was_drawn() -> None:
    held = json.loads((RESULTS / "real_noise.json").read_text())
    kinds = {(row["way"], row["n"], row["rules"], row["planted"]) for row in held["resampled"]}
    assert len(kinds) == 36
    assert [entry["rules"] for entry in held["published"]] == ["before", "after"]
