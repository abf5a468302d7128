"""The landscapes that are shipped are whole and say where they are from; what is computed from one is right."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from simlab.worlds.landscape import FORMAT, Landscape, names

from swarm.environments import get_environment
from swarm.job import Job
from tests.lazily import lazy

stats = lazy("scipy.stats")


@pytest.fixture(scope="module", params=names())
def shipped(request: pytest.FixtureRequest) -> Landscape:
    return Landscape.load(request.param)


def small(**changes: Any) -> dict[str, Any]:
    """Two learning rates and two group sizes with three seeds: twelve runs of two steps, of ten tasks each."""
    value = {
        "format": FORMAT,
        "environment": "guess",
        "knobs": {"learning_rate": [0.001, 0.1], "group_size": [4, 8]},
        "seeds": [1, 2, 3],
        "rungs": [1, 2],
        "plays": {"hidden": 10, "search": 10, "train": 8},
        "job": {"steps": 2},
        "provenance": {},
        "runs": {
            "before": [3] * 12,
            "after": [4, 5, 6, 7, 8, 9, 0, 0, 0, 2, 3, 4],
            "search": [[1, 4], [2, 5], [3, 6], [4, 7], [5, 8], [6, 9], [9, 0], [9, 0], [9, 1], [7, 2], [8, 2], [8, 2]],
            "train": [[2, 4]] * 12,
            "seconds": [1.0, 2.0, 3.0] * 4,
        },
    }
    return {**value, **changes}


@pytest.fixture
def landscape() -> Landscape:
    return Landscape.of(small())


BEST = {"learning_rate": 0.001, "group_size": 8}


def test_a_landscape_of_sums_is_shipped() -> None:
    assert "arith" in names()


def test_a_shipped_grid_is_whole(shipped: Landscape) -> None:
    places = list(itertools.product(*shipped.knobs.values()))
    assert set(shipped.runs) == set(itertools.product(places, shipped.seeds))
    assert len(shipped.runs) == len(shipped.configurations()) * len(shipped.seeds) >= 200


def test_a_shipped_values_denominators_are_the_environments_splits(shipped: Landscape) -> None:
    environment = get_environment(shipped.environment)
    assert shipped.plays.hidden == len(environment.tasks("hidden"))
    assert shipped.plays.search == len(environment.tasks("search"))
    assert shipped.plays.train == shipped.job["episodes_per_step"]
    for one, seed in itertools.product(shipped.configurations(), shipped.seeds):
        assert 0 <= shipped.value(one, seed) <= 1
        assert (shipped.value(one, seed) * shipped.plays.hidden) == pytest.approx(shipped.run(one, seed).after)
        assert all(0 <= shipped.rung_value(one, seed, rung) <= 1 for rung in shipped.rungs)
        assert len(shipped.curve(one, seed)) == shipped.job["steps"]


def test_a_shipped_configuration_is_a_job(shipped: Landscape) -> None:
    jobs = [Job.model_validate({**shipped.job, **one}) for one in shipped.configurations()]
    assert len({job.digest() for job in jobs}) == len(jobs)
    assert {job.steps for job in jobs} == {shipped.rungs[-1]}


def test_a_shipped_landscape_says_where_it_is_from(shipped: Landscape) -> None:
    assert {"command", "machine", "versions", "commit", "date"} <= set(shipped.provenance)


def test_a_shipped_landscape_is_worth_searching(shipped: Landscape) -> None:
    """The best is well above the untrained model, something collapses, and the best rate is at no end of the ladder."""
    best, top = shipped.best()
    sd, df = shipped.noise()
    before = shipped.before(best, shipped.seeds[0])
    worst = min(map(shipped.mean, shipped.configurations()))
    assert top > before + 5 * sd
    assert worst < before
    assert best["learning_rate"] not in (shipped.knobs["learning_rate"][0], shipped.knobs["learning_rate"][-1])
    assert df == len(shipped.configurations()) * (len(shipped.seeds) - 1)


def test_a_later_rung_of_a_shipped_landscape_tells_more_of_the_end(shipped: Landscape) -> None:
    first, last = shipped.rungs[0], shipped.rungs[-1]
    assert 0 < shipped.rung_correlation(first) < shipped.rung_correlation(last) <= 1


def test_values_are_shares_of_what_was_played(landscape: Landscape) -> None:
    assert landscape.value(BEST, 2) == 0.8
    assert landscape.before(BEST, 2) == 0.3
    assert landscape.rung_value(BEST, 2, 1) == 0.5
    assert landscape.curve(BEST, 2) == (0.25, 0.5)
    assert landscape.mean(BEST) == pytest.approx(0.8)
    assert landscape.seconds(BEST) == 2.0


def test_the_best_is_the_configuration_of_the_highest_mean(landscape: Landscape) -> None:
    found, mean = landscape.best()
    assert found == BEST
    assert mean == max(landscape.mean(one) for one in landscape.configurations())


def test_noise_is_pooled_within_configurations(landscape: Landscape) -> None:
    sd, df = landscape.noise()
    assert sd == pytest.approx(math.sqrt((0.01 + 0.01 + 0.0 + 0.01) / 4))
    assert df == 8


@pytest.mark.parametrize("seed", [None, 1, 3])
@pytest.mark.parametrize("rung", [1, 2])
def test_the_rank_correlation_is_spearmans(landscape: Landscape, rung: int, seed: int | None) -> None:
    seeds = landscape.seeds if seed is None else (seed,)
    every = landscape.configurations()
    early = [sum(landscape.rung_value(one, own, rung) for own in seeds) for one in every]
    expected = stats.spearmanr(early, [landscape.mean(one) for one in every]).statistic
    assert landscape.rung_correlation(rung, seed) == pytest.approx(expected)


def test_no_rank_correlates_where_all_are_equal() -> None:
    runs = {**small()["runs"], "search": [[5, 5]] * 12}
    assert math.isnan(Landscape.of(small(runs=runs)).rung_correlation(1))


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda one: one.value({**BEST, "group_size": 5}, 1), "group_size"),
        (lambda one: one.value({"group_size": 4}, 1), "learning_rate"),
        (lambda one: one.value({**BEST, "epochs": 1}, 1), "epochs"),
        (lambda one: one.value(BEST, 9), "seeds"),
        (lambda one: one.rung_value(BEST, 1, 3), "rungs"),
    ],
)
def test_what_was_not_recorded_is_refused(landscape: Landscape, ask: Callable[[Landscape], object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ask(landscape)


def test_an_unknown_landscape_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="arith"):
        Landscape.load("chess")


def _without_a_run() -> dict[str, Any]:
    runs = small()["runs"]
    return small(runs={**runs, "after": runs["after"][:-1]})


def _with(column: str, value: object) -> dict[str, Any]:
    runs = json.loads(json.dumps(small()["runs"]))
    runs[column][3] = value
    return small(runs=runs)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (_without_a_run(), "expected 12 runs"),
        (small(seeds=[1, 2]), "expected 8 runs"),
        (_with("after", 11), "record it again"),
        (_with("search", [1]), "record it again"),
        (_with("train", [1, 2, 3]), "record it again"),
        (small(format=FORMAT + 1), "format"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(value: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Landscape.of(value)
