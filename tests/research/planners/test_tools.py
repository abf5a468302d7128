"""Looks at a flown study: what they show is what was collected, held to its hashes, quoted and capped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from research.planners.tools import COLUMNS, DATA, MOST_LINES, ToolError
from studies import RunState
from studies.checks.conditions import read_collected
from studies.records.design import SUCCESS, Budget
from tests.research.planners.flights import PLANTED, Landed, landed_study

WISH = {"variable": "group_size", "control": 8, "treatments": [16], "environment": "guess"}


@pytest.fixture(scope="module")
def landed() -> Iterator[Landed]:
    with landed_study() as found:
        yield found


def a_run(landed: Landed) -> RunState:
    return landed.state.runs_in("confirm")[0]


def read(landed: Landed, what: str) -> dict[str, Any]:
    return json.loads(read_collected(landed.folder, a_run(landed).collected[what]))


def refused(landed: Landed, name: str, arguments: Mapping[str, Any]) -> str:
    with pytest.raises(ToolError) as caught:
        landed.looks().answer(name, arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.slow
def test_the_table_of_runs_has_each_run_with_what_was_measured(landed: Landed) -> None:
    shown = landed.looks().answer("runs", {})
    rows = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in shown["rows"]}
    assert set(rows) == {run_id[:12] for run_id in landed.state.every_run}
    run = a_run(landed)
    row = rows[run.run_id[:12]]
    assert (row["arm"], row["seed"], row["status"]) == (run.spec.arm, run.spec.seed, "collected")
    assert row["after"] == round(run.measurements[SUCCESS].value, 4)
    of_arm = landed.looks().answer("runs", {"arm": run.spec.arm, "round": 1})
    assert {row[3] for row in of_arm["rows"]} == {run.spec.arm}
    assert "round 7" in refused(landed, "runs", {"round": 7})


def test_a_curve_is_read_off_the_collected_log_and_the_hidden_one_off_the_episodes(landed: Landed) -> None:
    run = a_run(landed)
    logged = {row["step"]: row["metrics"]["critic/success/mean"] for row in read(landed, "snapshot")["history"]}
    shown = landed.looks().answer("curve", {"run": run.run_id, "metric": "critic/success/mean", "at": [1, 5, 9999]})
    last = max(logged)
    assert shown["points"] == [[step, float(f"{logged[step]:.4g}")] for step in (1, 5, last)]
    spread = landed.looks().answer("curve", {"run": run.run_id[:12], "metric": "critic/success/mean"})
    assert len(spread["points"]) == 12
    assert (spread["points"][0][0], spread["points"][-1][0]) == (1, last)
    after = fmean(episode["success"] for episode in read(landed, "evaluation")["final"]["episodes"])
    hidden = landed.looks().answer("curve", {"run": run.run_id, "metric": SUCCESS})
    assert (hidden["points"][0][0], hidden["points"][-1][1]) == (0, float(f"{after:.4g}"))


def test_a_metric_or_a_run_that_there_is_not_is_refused_with_those_that_there_are(landed: Landed) -> None:
    run = a_run(landed).run_id
    told = refused(landed, "curve", {"run": run, "metric": "critic/succes/mean"})
    assert ("mean critic/success/mean?" in told, "actor/entropy" in told) == (True, True)
    assert "'zz'" in refused(landed, "curve", {"run": "zz", "metric": "x"})
    assert "metric: missing" in refused(landed, "curve", {"run": run})
    assert "seed" in refused(landed, "curve", {"run": run, "metric": "x", "seed": 1})
    assert "configuration" in refused(landed, "price", {**WISH, "variable": "configuration"})
    assert "job_fields; found 'shell'" in refused(landed, "shell", {})
    assert "did you mean group_size" in refused(landed, "job_fields", {"fields": ["steps", "groupsize"]})


def test_words_of_plays_are_quoted_as_data_on_one_line_without_control_characters(landed: Landed) -> None:
    shown = landed.looks().answer("episodes", {"run": a_run(landed).run_id, "which": "random", "count": 2})
    assert shown["notice"] == DATA
    said = {entry["said"][1]["text"] for entry in shown["quoted"]}
    assert said == {"Seven.", PLANTED.removesuffix("\x1b[2J\u202e")}  # no terminal sequence, and no override
    assert shown["with_words_kept"] == 2
    tasks = {episode["task_id"] for episode in read(landed, "evaluation")["final"]["episodes"]}
    assert not [task for task in tasks if f'"{task}"' in json.dumps(shown)]  # which tasks they were is not told


def test_lines_are_found_by_their_text_and_no_pattern_hangs(landed: Landed) -> None:
    run = a_run(landed).run_id
    shown = landed.looks().answer("log", {"run": run, "contains": "ACTOR/entropy"})
    steps = landed.state.every_run[run].spec.job["steps"]
    assert shown["lines"] == steps
    assert len(shown["quoted"]) == min(steps, MOST_LINES)
    assert all("actor/entropy" in line for line in shown["quoted"])
    assert landed.looks().answer("log", {"run": run, "contains": "attempt 1: finished"})["lines"] == 1
    assert "holds '(a+)+$'" in refused(landed, "log", {"run": run, "contains": "(a+)+$"})
    assert "100 characters" in refused(landed, "log", {"run": run, "contains": "(a|a)*" * 100})


def test_a_file_that_is_not_what_was_collected_is_not_shown(landed: Landed) -> None:
    run = a_run(landed)
    path = landed.folder / run.collected["evaluation"]["path"]
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"Seven", b"Eight"))
    try:
        assert "was changed" in refused(landed, "episodes", {"run": run.run_id})
    finally:
        path.write_bytes(whole)
    outside = {**run.collected, "evaluation": {**run.collected["evaluation"], "path": "../../../etc/passwd"}}
    stray = replace(landed.state, runs={run.run_id: replace(run, collected=outside)})
    with pytest.raises(ToolError, match="outside"):
        landed.looks(state=stray).answer("episodes", {"run": run.run_id})


def test_the_price_of_a_wish_is_what_its_design_would_be_locked_with(landed: Landed) -> None:
    shown = landed.looks().answer("price", WISH)
    assert shown["can_be_had"] is True
    assert shown["seeds_per_arm"] >= 3
    assert shown["power_at_the_smallest_effect"] >= shown["promised_power"] == 0.8
    assert shown["effect_seen_with_the_promised_power"] <= shown["smallest_effect"] == 0.1
    assert shown["runs_at_most"] == 1 + 2 * shown["seeds_per_arm"]  # first one at a learning rate of 0
    finer = landed.looks().answer("price", {**WISH, "smallest_effect": 0.05})
    assert finer["seeds_per_arm"] > shown["seeds_per_arm"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"treatments": [8]}, "must differ"),
        ({"variable": "dropout"}, "found 'dropout'"),
        ({"variable": "reward", "control": "built-in", "treatments": ["mine"]}, "code"),
        ({"environment": "nowhere"}, "nowhere"),
        ({}, "30 s"),
    ],
)
def test_a_wish_that_cannot_be_had_is_told_why(landed: Landed, change: dict[str, Any], told: str) -> None:
    poor = replace(landed.compiler, budget=Budget(wall_clock_s=30.0))
    compiler = landed.compiler if change else poor
    shown = landed.looks(compiler=lambda: compiler).answer("price", {**WISH, **change})
    assert shown["can_be_had"] is False
    assert told in shown["because"]
