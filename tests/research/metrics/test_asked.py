"""A metric as a flag names it and as a study keeps it; what it is of an environment and its jobs."""

from __future__ import annotations

import pytest

from research.design.comparison import StatisticalRequirements
from research.errors import BadMetric, DesignRefused
from research.proposals.metric_choice import AskedMetric, MetricChoice, default_effect, scheduled
from studies.records.design import GAIN, SUCCESS, Schedule
from swarm.job import Job

JOB = Job(steps=40, episodes_per_step=128, environment="guess")


def judge(asked: str | None = None, training_s: float = 30.0) -> MetricChoice:
    return MetricChoice(None if asked is None else AskedMetric.named(asked), lambda job: training_s)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("success", AskedMetric("success")), ("area", AskedMetric("area")), ("area:0.6", AskedMetric("area", 0.6)),
        ("episodes:0.7", AskedMetric("episodes", 0.7)), ("episodes:70%", AskedMetric("episodes", 0.7)),
        ("fact:guesses", AskedMetric("fact", of="guesses")),
    ],
)  # fmt: skip
def test_a_flag_names_a_kind_with_its_parameters(text: str, asked: AskedMetric) -> None:
    assert AskedMetric.named(text) == asked
    assert AskedMetric.named(asked.text) == asked


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("episode:0.7", "did you mean episodes"), ("speed", "they are success, gain"),
        ("success:0.7", "expected success alone"), ("episodes:", "expected episodes:THRESHOLD"),
        ("episodes:soon", "found the threshold 'soon'"),
    ],
)  # fmt: skip
def test_what_no_metric_is_called_or_takes_is_refused_in_a_line(text: str, said: str) -> None:
    with pytest.raises(BadMetric, match=said) as refused:
        AskedMetric.named(text)
    assert "\n" not in refused.value.message


def test_a_study_keeps_what_was_asked_and_an_older_one_asked_for_nothing() -> None:
    asked = AskedMetric("episodes", 0.7, words="faster")
    kept = StatisticalRequirements(effect=256.0, metric=asked).settings()
    assert StatisticalRequirements.of(kept) == StatisticalRequirements(effect=256.0, metric=asked)
    older = {"effect": 0.1, "power": 0.8, "looks": 3, "episodes": 512}
    assert StatisticalRequirements.of(older).metric is None


def test_nobody_asked_for_a_metric_is_success_and_of_models_its_gain() -> None:
    assert judge().metric([JOB], 512).key == SUCCESS
    assert judge().metric([JOB], 512, models=True).key == GAIN
    assert judge("success").metric([JOB], 512, models=True).key == SUCCESS


def test_episodes_are_cut_at_the_longest_training() -> None:
    metric = judge("episodes:0.7").metric([JOB, JOB.model_copy(update={"steps": 80})], 512)
    assert (metric.worst, metric.best, metric.horizon) == (10_240.0, 0.0, 10_240.0)
    assert not metric.higher_is_better
    assert default_effect(metric) == 1024.0


def test_seconds_are_cut_where_no_small_change_of_a_price_moves_them() -> None:
    horizons = {judge("seconds:0.7", seconds).metric([JOB], 512).horizon for seconds in (27.0, 30.0, 34.0)}
    assert horizons == {70.0}
    measured = judge("seconds:0.7").metric([JOB], 512)
    again = MetricChoice(AskedMetric("seconds", 0.7), lambda job: 90.0, measured_by=measured)
    assert again.metric([JOB], 512) == measured


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("episodes", "expected a threshold"), ("episodes:1.5", "between 0 and 1"), ("area:0", "between 0 and 1"),
        ("fact:guesses", "facts = "),
    ],
)  # fmt: skip
def test_what_an_environment_does_not_give_is_refused_in_a_line(text: str, said: str) -> None:
    with pytest.raises(DesignRefused, match=said) as refused:
        judge(text).metric([JOB], 512)
    assert "\n" not in refused.value.message


def test_a_run_is_evaluated_by_the_schedule_and_another_as_it_was() -> None:
    metric = judge("episodes:0.7").metric([JOB], 512)
    assert metric.schedule == Schedule(every=512, episodes=64)
    assert scheduled(JOB, metric).evaluate_after == tuple(range(4, 40, 4))
    assert scheduled(JOB, judge().metric([JOB], 512)) == JOB
