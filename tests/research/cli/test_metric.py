"""`ajet metric`, and `--metric` of a plan: what a study is judged by, and the one line that a wrong one ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies.metrics import registry
from tests.outside import install
from tests.research.cli.conftest import Ajet

VARY = ("--vary", "learning_rate=0.001,0.003", "--env", "guess")
METRIC = '''
from studies.metrics import Asked, MetricKind, Results, Value
from studies.metrics.kinds.base import before_and_after
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


def test_a_plan_says_by_what_its_runs_are_judged_and_what_comes_first(ajet: Ajet) -> None:
    ended = ajet("study", "plan", *VARY, "--metric", "episodes:0.8")
    said = " ".join(ended.out.split())
    assert ended.code == 0, ended.err
    assert "asked --vary learning_rate=0.001,0.003 --env guess --metric episodes:0.8" in said
    assert "metric episodes to 0.8 hidden success" in said
    assert "lower is better" in said
    assert "range 5,120 to 0 episodes effect 512 episodes" in said
    assert "schedule 64 hidden episodes about every 512 training episodes" in said
    assert "needs fewer episodes to 0.8 hidden success than learning_rate = 0.001, by 512 episodes or more" in said
    assert "first 6 A/A runs" in said


def test_evaluations_during_training_are_priced(ajet: Ajet) -> None:
    plain = json.loads(ajet("study", "plan", *VARY, "--json").out)
    timed = json.loads(ajet("study", "plan", *VARY, "--metric", "episodes:0.8", "--json").out)
    of_a_run = [plan["stages"][-1]["seconds_per_run"] for plan in (plain, timed)]
    assert of_a_run[1] == pytest.approx(of_a_run[0] + 9 * 64 * 3.1 * 0.0014)


def test_a_topic_that_says_faster_asks_for_speed_and_the_plan_says_so(ajet: Ajet) -> None:
    topic = "Does a larger group size make GRPO learn the guessing game faster?"
    found = json.loads(ajet("study", "plan", topic, "--budget", "40m", "--json").out)
    assert found["metric"]["key"] == "hidden/episodes_to_0.6"
    assert found["metric_chosen_for"] == "faster"
    assert found["hypotheses"][0]["direction"] == "decrease"
    assert found["hypotheses"][0]["prediction"]["low"] < 0
    assert found["not_tested"] == []
    out = ajet("study", "plan", topic, "--budget", "40m").out
    assert "chosen  for 'faster', as --metric episodes:0.6; another by --metric" in out
    other = json.loads(ajet("study", "plan", topic, "--metric", "success", "--budget", "40m", "--json").out)
    assert other["metric"]["key"] == "hidden/success"
    assert "'faster'" in other["not_tested"][0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--metric", "episode:0.7"), "did you mean episodes?"),
        (("--metric", "episodes"), "expected a threshold"),
        (("--metric", "episodes:1.2"), "between 0 and 1"),
        (("--metric", "success:0.7"), "expected success alone"),
        (("--metric", "fact:guesses"), "declare it in the environment"),
        (("--metric", "episodes:0.7", "--effect", "6000"), "below 5120 episodes"),
        (("--metric", "episodes:0.7", "--effect", "0.1"), "above 5.12 and below 5120 episodes"),
        (("--metric", "episodes:0.7", "--effect", "-512"), "above 0, in the unit of --metric episodes:0.7; found -512"),
        (("--metric", "episodes:70%x"), "write a number"),
        (("--metric", "tokens:70%"), "1 or more, such as 200; found 0.7"),
        (("--metric", "success", "--metric", "area"), "expected one metric; found --metric success and --metric area"),
        (("--metric", "episodes:0.7", "--set", "steps=2"), "expected trainings of 3 steps or more"),
        (("--metric", "episodes:0.7", "--set", "episodes_per_step=8", "--set", "steps=12"), "take less than"),
    ],
)
def test_a_metric_that_cannot_be_ends_with_a_line(ajet: Ajet, arguments: tuple[str, ...], said: str) -> None:
    ended = ajet("study", "plan", *VARY, *arguments)
    assert ended.code == 2
    assert said in ended.line


@pytest.mark.parametrize(
    "arguments",
    [
        ("--vary", "steps=20,80", "--env", "guess"),
        (*VARY, "--set", "steps=2"),
        (*VARY, "--set", "episodes_per_step=8", "--set", "steps=12"),
    ],
)
def test_of_a_comparison_that_no_run_can_be_judged_by_no_plan_is_shown(ajet: Ajet, arguments: tuple[str, ...]) -> None:
    for more in ((), ("--json",)):
        ended = ajet("study", "plan", *arguments, "--metric", "episodes:0.7", *more)
        assert (ended.code, ended.out) == (2, "")
        assert ended.line.startswith("ajet: expected")


def test_metrics_are_listed_and_explained(ajet: Ajet) -> None:
    listed = {entry["name"]: entry for entry in json.loads(ajet("metric", "list", "--json").out)}
    assert {"success", "episodes", "area"} <= listed.keys()
    assert listed["episodes"]["ask"] == "--metric episodes:THRESHOLD"
    assert "episodes:THRESHOLD" in ajet("metric", "list").out
    explained = ajet("metric", "explain", "episodes").out
    assert "faster" in explained
    assert "to 0.6, unless" in explained
    assert ajet("metric", "explain", "episode").code == 2
    assert listed["area"]["ask"] == "--metric area[:THRESHOLD]", "as it needs none"
    assert "unit    reward" in ajet("metric", "explain", "reward").out
    assert "unit    the fact's own" in ajet("metric", "explain", "fact").out


def test_a_package_from_outside_brings_a_metric_that_a_plan_asks_for(
    ajet: Ajet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install(tmp_path / "outside", {"ajet.metrics": {"lost": "metric_from_outside:Lost"}}, "metrics-outside")
    (folder / "metric_from_outside.py").write_text(METRIC)
    monkeypatch.syspath_prepend(str(folder))
    registry.kinds.cache_clear()
    try:
        found = json.loads(ajet("study", "plan", *VARY, "--metric", "lost", "--json").out)
        assert (found["metric"]["key"], found["noise_runs_first"]) == ("hidden/lost", 6)
        assert found["hypotheses"][0]["direction"] == "decrease"
        topic = ajet("study", "plan", "is less lost on the way with lr 1e-3 than 3e-3 on guess?", "--json").out
        assert json.loads(topic)["metric_chosen_for"] == "lost on the way"
        assert "an installed package" in ajet("metric", "explain", "lost").out
    finally:
        registry.kinds.cache_clear()


def test_a_broken_package_is_told_where_metrics_are_listed_and_stops_no_other_plan(
    ajet: Ajet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install(tmp_path / "outside", {"ajet.metrics": {"broken": "nowhere:Lost"}}, "metrics-broken")
    monkeypatch.syspath_prepend(str(folder))
    registry.kinds.cache_clear()
    try:
        listed = ajet("metric", "list")
        assert (listed.code, "episodes:THRESHOLD" in listed.out) == (0, True)
        assert "'broken' of metrics-broken (nowhere:Lost) to load; found ModuleNotFoundError" in listed.line
        assert ajet("study", "plan", *VARY, "--json").code == 0
        asked = ajet("study", "plan", *VARY, "--metric", "broken")
        assert asked.code == 2
        assert "nowhere:Lost" in asked.line
    finally:
        registry.kinds.cache_clear()
