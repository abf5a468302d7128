"""The data of figures, where it depends on which values of a metric are better."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from studies.records.design import Metric
from studies.report.figures.series import screening
from tests.studies.measured import metric
from tests.studies.synthetic import hypothesis


def screened(chosen: Metric) -> Any:
    """Return as much of a study as the figure of its screen reads: two candidates, with a run each."""
    values = {"low": 0.2, "high": 0.8}
    spec = SimpleNamespace(job={"steps": 8}, metric=chosen)
    runs = {
        name: (SimpleNamespace(spec=spec, status="collected", measurements={chosen.key: SimpleNamespace(value=value)}),)
        for name, value in values.items()
    }
    arms = {name: SimpleNamespace(name=name, overrides={"group_size": hypothesis().control}) for name in values}
    return SimpleNamespace(
        candidates=arms, runs_of=lambda name, _phase: runs[name], selection=None,
        locked_design=SimpleNamespace(metric=chosen),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "first", "named"),
    [
        ("success", "high", "success on the search tasks"),
        ("collapse", "low", "share of trainings that collapse on the search tasks"),
    ],
)
def test_a_screen_s_figure_begins_with_the_better_candidate(kind: str, first: str, named: str) -> None:
    found = screening(screened(metric(kind)))
    assert found is not None
    assert found.candidates[0].name == first
    assert found.measured == named
