from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from research.installation.base_job import read_job
from research.installation.home import Home
from studies.metrics import registry
from tests.outside import install
from tests.research.cli.conftest import Ajet
from tests.research.factories import make_study
from tests.research.in_rounds import InRounds
from tests.studies.synthetic import STUDY


@pytest.fixture
def asked_on(home: Path) -> Iterator[InRounds]:
    study = InRounds.of(Home.locate().prepare())
    with closing(study.log):
        study.two_rounds()
        yield study


def test_findings_of_all_rounds_are_listed_whole_as_json_and_screened_by_words(ajet: Ajet, asked_on: InRounds) -> None:
    (found,) = ajet("findings", "r2h1", "--json").data["findings"]
    assert (found["study"], found["round"], found["verdict"]) == (STUDY, 2, "supported")
    assert found["low"] < found["estimate"] < found["high"]
    assert found["conditions"]["environment"] == "guess"
    out = ajet("findings").out
    for part in (f"{STUDY}/1/h1", f"{STUDY}/2/r2h1", "Whether group_size = 32 raises"):
        assert part in out
    out = ajet("findings", "group size", "32").out
    assert (f"{STUDY}/2/r2h1" in out, f"{STUDY}/1/h1" in out) == (True, False)
    ended = ajet("findings", "temperature", "arith")
    assert (ended.code, ended.out.startswith("none of 2 findings")) == (0, True)


def test_a_contradiction_is_shown_below_with_what_differs(ajet: Ajet, asked_on: InRounds) -> None:
    make_study(study="other", log=asked_on.log, means={"group_size=4": 0.7, "group_size=16": 0.5}).whole()
    out = ajet("findings").out
    assert f"contradiction  {STUDY}/1/h1 against other/1/h1; " in out
    (entry,) = ajet("findings", "--json").data["contradictions"]
    assert entry == {"one": [f"{STUDY}/1/h1"], "other": ["other/1/h1"], "differ": []}


def test_a_recipe_is_a_job_file_with_evidence(ajet: Ajet, asked_on: InRounds, tmp_path: Path) -> None:
    ended = ajet("study", "recipe", STUDY[:4])
    (tmp_path / "job.json").write_text(ended.out)
    job = read_job(tmp_path / "job.json")
    assert (job.group_size, job.environment, job.tracking) == (32, "guess", None)
    lock = str(asked_on.state().design_hash)
    ended.refused(
        "group_size = 32", "group_size = 16", f"{STUDY}, round 2, r2h1 supported +0.151 [", f"lock {lock[:16]}", code=0
    )
    ended = ajet("study", "recipe", "--json")
    told = json.loads(ended.out)
    assert (ended.err, told["study"], told["job"]["group_size"]) == ("", STUDY, 32)
    (evidence,) = told["evidence"]
    assert (evidence["round"], evidence["verdict"], evidence["lock"]) == (2, "supported", asked_on.state().design_hash)
    assert evidence["better_than"] == {"group_size": 16}


def test_a_recipe_of_no_study_or_of_one_whose_log_cannot_be_read_is_one_line(ajet: Ajet, asked_on: InRounds) -> None:
    with asked_on.log.transaction("write") as connection:
        connection.exec_driver_sql("UPDATE events SET hash = 'x' WHERE seq > 5")
    ajet("study", "recipe", "nothing").refused("'nothing'")
    ended = ajet("study", "recipe")
    assert (ended.refused() != "", ended.out) == (True, "")
    assert f"left out  {STUDY}: " in ajet("findings").out


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
    listed = {entry["name"]: entry for entry in ajet("metric", "list", "--json").data}
    assert {"success", "episodes", "area"} <= listed.keys()
    assert listed["episodes"]["ask"] == "--metric episodes:THRESHOLD"
    assert listed["area"]["ask"] == "--metric area[:THRESHOLD]"  # as it needs none
    assert "episodes:THRESHOLD" in ajet("metric", "list").out
    for name, part in {"episodes": "faster", "reward": "unit    reward", "fact": "unit    the fact's own"}.items():
        assert part in ajet("metric", "explain", name).out
    assert "unit    a share" in ajet("metric", "explain", "success-at-tokens").out
    ajet("metric", "explain", "episode").refused("episodes")


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
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
    assert (found["metric"]["key"], found["pilot_runs_first"]) == ("hidden/lost", 8)
    assert found["hypotheses"][0]["direction"] == "decrease"
    topic = ajet("study", "plan", "lost on the way with lr 1e-3 vs 3e-3 on guess", "--json").out
    assert json.loads(topic)["metric_chosen_for"] == "lost on the way"
    assert "an installed package" in ajet("metric", "explain", "lost").out


@pytest.mark.slow
def test_a_broken_package_is_told_and_stops_no_other_plan(ajet: Ajet, outside: Callable[..., Path]) -> None:
    outside("broken", "nowhere:Lost")
    listed = ajet("metric", "list")
    assert "episodes:THRESHOLD" in listed.out
    assert listed.refused("'broken'", "metrics-broken", "nowhere:Lost", "ModuleNotFoundError", code=0)
    assert ajet("study", "plan", *VARY, "--json").code == 0
    ajet("study", "plan", *VARY, "--metric", "broken").refused("nowhere:Lost")
