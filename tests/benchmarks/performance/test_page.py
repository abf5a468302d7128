"""`docs/performance.md` is what `--render` makes of the results that are there, and says when they were measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from performance import history, results
from performance.catalogue import BENCHMARKS, Benchmark
from performance.headlines import OF, headlines
from performance.page import PAGE, render

ROOT = Path(__file__).parents[3]


def test_the_page_is_what_the_results_give_today() -> None:
    assert PAGE.read_text() == render(), "run: python benchmarks/run_all.py --render"


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda each: each.name)
def test_each_section_names_its_command_day_and_commit(benchmark: Benchmark) -> None:
    name = benchmark.name
    result = results.load(name)
    assert result is not None
    assert f"`python benchmarks/{name}.py" in PAGE.read_text()
    assert f"measured {result.date} at commit {result.commit}" in PAGE.read_text().replace("\n", " ")


def test_every_script_that_writes_results_is_on_the_page() -> None:
    writing = {path.stem for path in (ROOT / "benchmarks/results").glob("*.json")}
    assert {each.name for each in BENCHMARKS} == writing
    assert all((ROOT / "benchmarks" / f"{name}.py").exists() for name in writing)


def test_the_history_holds_the_headlines_of_todays_results() -> None:
    held = {(each.benchmark, each.figure, each.commit): each for each in history.read()}
    for name in OF:
        result = results.load(name)
        assert result is not None
        assert headlines(result)
        for entry in history.entries(result):
            assert held[entry.benchmark, entry.figure, entry.commit] == entry


def test_a_figure_that_is_worse_is_marked(tmp_path: Path) -> None:
    past = tmp_path / "headlines.csv"
    soak = results.load("soak")
    assert soak is not None
    now = next(each for each in history.entries(soak) if each.figure == "kill to serving again, s")
    for before, marked in ((now.value, False), (now.value / 3, True)):
        past.unlink(missing_ok=True)
        history.append(
            [history.Entry(now.benchmark, now.figure, "before", "2026-01-01", before, 0.0, "lower"), now], past
        )
        row = re.search(r"\| kill to serving again, s \|.*", render(past=past))
        assert row is not None
        assert ("**worse**" in row[0]) is marked


def test_a_quick_result_is_not_shown(tmp_path: Path) -> None:
    figures = json.loads((results.RESULTS / "overlap.json").read_text())
    (tmp_path / "overlap.json").write_text(json.dumps(figures | {"quick": True}))
    assert "## " not in render(tmp_path)
    (tmp_path / "overlap.json").write_text(json.dumps(figures))
    assert "What does rollout beside learning bring?" in render(tmp_path)
