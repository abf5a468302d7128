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


def has_to_be_measured(name: str) -> bool:
    """Say whether a benchmark needs nothing but the project, or was measured although it does."""
    return results.load(name) is not None or any(each.name == name and each.missing is None for each in BENCHMARKS)


MEASURED = [each for each in BENCHMARKS if has_to_be_measured(each.name)]


@pytest.mark.parametrize("benchmark", MEASURED, ids=lambda each: each.name)
def test_each_section_names_its_command_day_and_commit(benchmark: Benchmark) -> None:
    name = benchmark.name
    result = results.load(name)
    assert result is not None
    assert f"`python benchmarks/{name}.py" in PAGE.read_text()
    assert f"measured {result.date} at commit {result.commit}" in PAGE.read_text().replace("\n", " ")


def test_every_script_that_writes_results_is_on_the_page() -> None:
    writing = {path.stem for path in (ROOT / "benchmarks/results").glob("*.json")}
    assert {each.name for each in MEASURED} == writing
    assert all((ROOT / "benchmarks" / f"{each.name}.py").exists() for each in BENCHMARKS)


def test_the_history_holds_the_headlines_of_todays_results() -> None:
    held = {(each.benchmark, each.figure, each.commit): each for each in history.read()}
    for name in filter(has_to_be_measured, OF):
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


def test_the_section_and_the_headlines_of_a_pretrained_model(tmp_path: Path) -> None:
    figures = {
        "date": "2026-01-02", "commit": "abc", "quick": False, "model": "smollm2-135m", "rounds": 3, "steps": 3,
        "rows": [
            {"variant": f"{name}-{threads}", "code": "here", "rollout": 7.25, "rollout cpu": 14.0, "update": 21.5,
             "update cpu": 40.0, "fed": 12345.0}
            for name in ("fp32", "bf16", "lora") for threads in (1, 2)
        ],
    }  # fmt: skip
    (tmp_path / "real_model.json").write_text(json.dumps(figures))
    page = render(tmp_path)
    assert "measured 2026-01-02 at commit abc" in page.replace("\n", " ")
    assert "| all weights, bfloat16 | 2 | 7.2 | 21.5 | 12,345 |" in page
    found = results.load("real_model", tmp_path)
    assert found is not None
    assert [each.name for each in headlines(found)] == [
        "smollm2-135m, fp32-2: rollout, s", "smollm2-135m, fp32-2: update, s",
        "smollm2-135m, lora-2: rollout, s", "smollm2-135m, lora-2: update, s",
    ]  # fmt: skip


def test_a_quick_result_is_not_shown(tmp_path: Path) -> None:
    figures = json.loads((results.RESULTS / "overlap.json").read_text())
    (tmp_path / "overlap.json").write_text(json.dumps(figures | {"quick": True}))
    assert "## " not in render(tmp_path)
    (tmp_path / "overlap.json").write_text(json.dumps(figures))
    assert "What does rollout beside learning bring?" in render(tmp_path)
