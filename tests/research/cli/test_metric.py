"""`ajet metric`, and metrics that packages from outside bring."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from studies.metrics import registry
from tests.outside import install
from tests.research.cli.conftest import Ajet

VARY = ("--vary", "learning_rate=0.001,0.003", "--env", "guess")
METRIC = '''
from studies.metrics import Asked, MetricKind, Results, Value
from studies.metrics.base import before_and_after
from studies.records.design import Metric


class Lost(MetricKind):
    """Hidden success lost on the way."""

    name, title, words = "lost", "hidden success that is lost on the way", ("lost on the way",)

    def define(self, asked):
        return Metric(key="hidden/lost", kind=self.name, name="hidden success lost", meaning="what is lost",
                      episodes=asked.episodes, higher_is_better=False, worst=1.0, best=0.0)

    def measure(self, metric, run):
        return {**before_and_after(metric, run), metric.key: Value(0.0, 1)}
'''


def test_metrics_are_listed_and_explained(ajet: Ajet) -> None:
    listed = {entry["name"]: entry for entry in json.loads(ajet("metric", "list", "--json").out)}
    assert {"success", "episodes", "area"} <= listed.keys()
    assert listed["episodes"]["ask"] == "--metric episodes:THRESHOLD"
    assert listed["area"]["ask"] == "--metric area[:THRESHOLD]", "as it needs none"
    assert "episodes:THRESHOLD" in ajet("metric", "list").out
    for name, part in {"episodes": "faster", "reward": "unit    reward", "fact": "unit    the fact's own"}.items():
        assert part in ajet("metric", "explain", name).out
    ajet("metric", "explain", "episode").refused("episodes")


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Install a package of metrics for the length of a test; return its folder."""

    def make(name: str, place: str) -> Path:
        folder = install(tmp_path / "outside", {"ajet.metrics": {name: place}}, f"metrics-{name}")
        monkeypatch.syspath_prepend(str(folder))
        registry.kinds.cache_clear()
        return folder

    yield make
    registry.kinds.cache_clear()


def test_a_package_from_outside_brings_a_metric_that_a_plan_asks_for(ajet: Ajet, outside: Callable[..., Path]) -> None:
    (outside("lost", "metric_from_outside:Lost") / "metric_from_outside.py").write_text(METRIC)
    found = ajet("study", "plan", *VARY, "--metric", "lost", "--json").data
    assert (found["metric"]["key"], found["noise_runs_first"]) == ("hidden/lost", 6)
    assert found["hypotheses"][0]["direction"] == "decrease"
    topic = ajet("study", "plan", "is less lost on the way with lr 1e-3 than 3e-3 on guess?", "--json").out
    assert json.loads(topic)["metric_chosen_for"] == "lost on the way"
    assert "an installed package" in ajet("metric", "explain", "lost").out


@pytest.mark.slow
def test_a_broken_package_is_told_where_metrics_are_listed_and_stops_no_other_plan(
    ajet: Ajet, outside: Callable[..., Path]
) -> None:
    outside("broken", "nowhere:Lost")
    listed = ajet("metric", "list")
    assert "episodes:THRESHOLD" in listed.out
    assert listed.refused("'broken'", "metrics-broken", "nowhere:Lost", "ModuleNotFoundError", code=0)
    assert ajet("study", "plan", *VARY, "--json").code == 0
    ajet("study", "plan", *VARY, "--metric", "broken").refused("nowhere:Lost")
