"""The example of docs/metrics.md is a metric: it loads, defines itself and reads a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from research.scheduling.required_runs import EVERY_RUN
from studies.metrics import Asked, Results, kind_named, registry
from studies.metrics.reading import defined, values_of
from tests.outside import install

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_pages_example_is_a_kind_that_reads_a_run() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    made: dict[str, Any] = {}
    exec(code, made)
    assert len(code.splitlines()) <= 25
    kind = made["Hardest"]()
    metric = kind.define(Asked(measures="it is solved", episodes=20, horizon=100))
    plays = [{"success": n >= 10, "reward": 0.0} for n in range(20)]
    run = Results({"policy_version": 0, "episodes": plays}, {"policy_version": 3, "episodes": plays})
    assert kind.measure(metric, run)[metric.key] == (1.0, 2)


def test_the_pages_example_leaves_a_run_measured_where_its_package_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (table,) = re.findall(r'entry-points."(ajet.metrics)"\]\nhardest = "shop_metrics:Hardest"', page)
    folder = install(tmp_path / "shop", {table: {"hardest": "shop_metrics:Hardest"}}, "shop-metrics")
    (folder / "shop_metrics.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))
    registry.kinds.cache_clear()
    try:
        metric = defined(kind_named("hardest"), Asked(measures="it is solved", episodes=20, horizon=100))
        plays = [{"success": n >= 10, "reward": 0.0} for n in range(20)]
        run = Results({"policy_version": 0, "episodes": plays}, {"policy_version": 3, "episodes": plays})
        assert len(values_of(metric, run)) > EVERY_RUN
    finally:
        registry.kinds.cache_clear()


def test_the_page_names_every_kind() -> None:
    page = PAGE.read_text()
    assert [name for name in registry.BUILT_IN if f"| `{name}" not in page] == []
