"""Looks at a flown study: what they show is what was collected, held to its hashes, quoted and capped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.planners import looks
from research.planners.analysis import AnalyseRequest, collect_inputs
from research.planners.looks import _estimate_pass, _show_source, collect_recorded
from research.planners.tools import COLUMNS, DATA, MOST_LINES, ToolError
from research.proposals.actions import Propose, ProposedHypothesis
from studies import RunState, StudyState
from studies.checks.conditions import read_collected
from studies.records.design import SUCCESS, Budget
from swarm.environments.custom import CustomEnvironment
from swarm.environments.registry import get_environment
from swarm.job import Job, PathModel
from tests.research.planners.flights import PLANTED, Landed, landed_study, priced

WISH = priced(8, 16)


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


def test_an_analysis_is_given_runs_curves_and_plans_and_nothing_of_a_hidden_task(landed: Landed) -> None:
    files = collect_inputs(landed.looks())
    run = a_run(landed)
    assert {"runs.json", "plans.json", "verdicts.json", f"curves/{run.run_id}.json"} <= files.keys()
    row = next(row for row in json.loads(files["runs.json"]) if row["run"] == run.run_id)
    assert row["measurements"][SUCCESS] == run.measurements[SUCCESS].value
    tasks = {play["task_id"] for play in read(landed, "evaluation")["final"]["episodes"]}
    whole = b"".join(files.values()).decode()
    assert not any(f'"{task}"' in whole for task in tasks)
    assert (PLANTED in whole, "task_seed" in whole, "plays/" in whole) == (False, False, False)
    asked = AnalyseRequest(why="x", source="def analyse(folder): ...")
    with pytest.raises(ToolError, match="--sandbox docker"):
        asked.answer(landed.looks())


def test_code_is_tried_on_search_plays_alone_the_newest_first(landed: Landed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert collect_recorded(landed.state, landed.folder, a_run(landed).spec.environment) == []
    (one, other, *_), (hidden, *_) = (get_environment("guess").tasks(split) for split in ("search", "hidden"))

    def part(task: str, sample: int, **more: Any) -> dict[str, Any]:
        play = {"task_id": task, "sample": sample, "reward": 0.5, "success": True, "facts": {"tries": 1.0}, **more}
        said = {"task_id": task, "messages": [{"role": "user", "content": "Guess."}]}
        return {"episodes": [play], "transcripts": [said]}

    def run(split: str, environment: str, *parts: Any) -> tuple[int, Any]:
        spec = SimpleNamespace(metric=SimpleNamespace(split=split), environment=environment)
        return 1, SimpleNamespace(collected={"evaluation": {}} if parts else None, spec=spec, parts=parts)

    def parts(folder: Path, run: Any) -> Any:
        if run.parts == ("gone",):
            raise ToolError("gone")
        return run.parts

    runs = [
        run("search", "guess", part(one.id, 0), part(other.id, 1)), run("hidden", "guess", part(one.id, 0)),
        run("search", "market", part(one.id, 0)), run("search", "guess"), run("search", "guess", "gone"),
        run("search", "guess", part(hidden.id, 0), part(other.id, 0), part(one.id, 0, failed="no answer")),
        run("search", "guess", part(one.id, 0, facts={})),
    ]  # fmt: skip
    monkeypatch.setattr(type(get_environment("guess")), "facts", {"tries": (1, 0)})
    monkeypatch.setattr("research.planners.tools.list_runs", lambda state: runs)
    monkeypatch.setattr("research.planners.tools.list_parts", parts)
    found = collect_recorded(landed.state, landed.folder, "guess")
    told = [(play["task_id"], play["sample"], len(play["messages"]), play["data"]) for play in found]
    assert told == [(other.id, 0, 1, other.data), (other.id, 1, 0, other.data), (one.id, 0, 1, one.data)]
    group = [part(one.id, sample)["episodes"][0] for sample in range(3)]
    runs[:] = [run("search", "guess", {"episodes": [*group, *part(other.id, 0)["episodes"]]}), *runs[:1]]
    for most, newest in (
        (2, [other.id, one.id]),
        (4, [other.id, one.id]),
        (6, [other.id, one.id, *[one.id] * 3, other.id]),
    ):
        monkeypatch.setattr(looks, "MOST_RECORDED", most)  # of a group all or nothing
        assert [play["task_id"] for play in collect_recorded(landed.state, landed.folder, "guess")] == newest


@pytest.mark.slow
def test_the_table_of_runs_has_each_run_with_what_was_measured(landed: Landed) -> None:
    shown = landed.looks().answer("runs", {})
    rows = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in shown["rows"]}
    assert set(rows) == {run_id[:12] for run_id in landed.state.every_run}
    run = a_run(landed)
    row = rows[run.run_id[:12]]
    told = (row["arm"], row["seed"], row["tasks"], row["status"])
    assert told == (run.spec.arm, run.spec.seed, "hidden", "collected")
    assert row["solved_after"] == round(run.measurements[SUCCESS].value, 4)
    of_arm = landed.looks().answer("runs", {"arm": run.spec.arm, "round": 1})
    assert {row[3] for row in of_arm["rows"]} == {run.spec.arm}
    assert "round 7" in refused(landed, "runs", {"round": 7})


def test_a_curve_is_read_off_the_collected_log_and_the_hidden_one_off_the_episodes(landed: Landed) -> None:
    run = a_run(landed)
    logged = {row["step"]: row["metrics"]["critic/success/mean"] for row in read(landed, "snapshot")["history"]}
    wish = {"arms": [run.run_id[:12]], "metrics": ["critic/success/mean", "success", "constant_groups"]}
    shown = landed.looks().answer("curves", wish)["arms"][run.run_id[:12]]
    trained, last = shown["critic/success/mean"], max(logged)
    assert (len(trained), trained[0][0], trained[-1][0], shown["runs"]) == (12, 1, last, 1)
    assert [[step, value, sd, n] for step, value, sd, n in trained] == [
        [step, float(f"{logged[step]:.4g}"), None, 1] for step, *_ in trained
    ]
    after = fmean(episode["success"] for episode in read(landed, "evaluation")["final"]["episodes"])
    assert (shown["success"][0][0], shown["success"][-1][1]) == (0, float(f"{after:.4g}"))
    assert {value for _, value, *_ in shown["constant_groups"]} == {0.0}


def test_two_arms_are_shown_side_by_side_over_the_seeds_of_their_latest_lock(landed: Landed) -> None:
    arms = [arm.name for arm in landed.state.design.arms]
    shown = landed.looks().answer("curves", {"arms": arms, "metrics": ["success"]})["arms"]
    for arm in arms:
        measured = list(landed.state.values(arm, SUCCESS).values())
        step, mean, sd, seeds = shown[arm]["success"][-1]
        assert (step, seeds, shown[arm]["phase"]) == (20, len(measured), "confirm")
        assert (mean, sd) == pytest.approx((fmean(measured), stdev(measured)), rel=1e-3)
    assert arms[0] in refused(landed, "curves", {"arms": ["nobody"], "metrics": ["success"]})


def test_tasks_are_counted_by_kind_and_by_what_became_of_them_and_no_name_of_one_is_told(landed: Landed) -> None:
    arm = a_run(landed).spec.arm
    shown = landed.looks().answer("tasks", {"arms": [arm]})["quoted"][arm]
    values = list(landed.state.values(arm, SUCCESS).values())
    plays = sum(count for *_, count in shown["kinds"].values())
    assert plays == len(values) * len(read(landed, "evaluation")["final"]["episodes"])
    assert sum(share * count for _, share, count in shown["kinds"].values()) / plays == pytest.approx(
        fmean(values), rel=1e-3
    )
    assert sum(shown[f"share_{name}"] for name in ("gained", "lost", "kept")) == pytest.approx(1, abs=1e-3)
    assert [entry[0] for entry in shown["worst"]] == list(range(1, 21))
    assert [entry[3] for entry in shown["worst"]] == sorted(entry[3] for entry in shown["worst"])
    assert shown["pass_at"]["after"]["1"][0] == pytest.approx(fmean(values), rel=0.05)
    assert sum(shown["rewards"]["after"].values()) == plays
    groups = shown["reward_groups"]["after"]
    assert sum(count for count, _ in groups.values()) == shown["pass_at"]["after"]["2"][1]
    assert all(constant == 0 for mean, (_, constant) in groups.items() if 0 < mean < 1)
    assert all(constant == count for mean, (count, constant) in groups.items() if mean in (0, 1))
    assert not [task.id for task in get_environment("guess").tasks("hidden") if f'"{task.id}"' in json.dumps(shown)]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=8))
def test_pass_at_k_is_the_mean_over_all_choices_of_k_plays(tasks: list[tuple[int, int]]) -> None:
    counted = [(n, min(n, solved)) for n, solved in tasks]
    part = {
        "episodes": [
            {"task_id": f"t{index}", "success": play < solved}
            for index, (n, solved) in enumerate(counted)
            for play in range(n)
        ]
    }
    shown = _estimate_pass([part])
    for k in (1, 2, 4):
        chances = [
            fmean(any(play < solved for play in chosen) for chosen in combinations(range(n), k))
            for n, solved in counted
            if n >= k
        ]
        assert (str(k) in shown) == bool(chances)
        if chances:
            assert shown[str(k)] == pytest.approx([fmean(chances), len(chances)], rel=1e-3)


@pytest.mark.parametrize("name", ["guess", "arith", "market"])
def test_an_environment_is_shown_before_any_run_by_a_training_task_and_its_oracle(landed: Landed, name: str) -> None:
    fresh = StudyState(id="fresh")
    looks = landed.looks(state=fresh)
    assert set(looks.offered) >= {"price", "environment", "model"}
    assert not set(looks.offered) & {"runs", "episodes", "curves", "tasks"}
    shown = looks.answer("environment", {"name": name})
    environment, quoted = get_environment(name), shown["quoted"]
    assert (shown["notice"], quoted["success_means"]) == (DATA, environment.measures)
    assert sum(quoted["training_tasks_by_kind"].values()) in (0, shown["tasks"]["train"])
    [*_, last] = quoted["play_of_the_oracle"]
    assert (quoted["opening"][0], last["role"]) == (quoted["play_of_the_oracle"][0], "assistant")
    assert bool(quoted["tools"]) == bool(environment.game(environment.tasks("train")[0]).tools)
    text = json.dumps(shown)
    assert not [task.id for task in environment.tasks("hidden") if f'"{task.id}"' in text]
    assert "nowhere" in refused(landed, "environment", {"name": "nowhere"})


GENERATED = "class Shop(Environment):\n    def generate(self, seed):\n        return Task(str(seed))\n\u202e"
LISTED = "class Shop(Environment):\n    def records(self):\n        return [Task('hidden-one')]\n"


@pytest.mark.parametrize(
    ("source", "apart", "told"),
    [(GENERATED, False, "def generate"), (LISTED, True, "hidden-one"), (LISTED, False, "may stand in it"),
     (GENERATED + "#" * 9_000, False, "characters in 1 files")],
)  # fmt: skip
def test_a_source_is_shown_where_it_is_small_and_spells_out_no_hidden_task(source: str, apart: bool, told: str) -> None:
    class Brought(CustomEnvironment):
        def __init__(self) -> None:
            self.manifest = SimpleNamespace(hidden_apart=apart)  # type: ignore[assignment]

        def code(self) -> Mapping[str, bytes]:
            return {"environment.py": source.encode(), "tasks.json": b'["hidden-one"]'}

    shown = json.dumps(_show_source(Brought()), ensure_ascii=False)
    assert (told in shown, "\u202e" in shown, "tasks.json" in shown) == (True, False, False)
    assert ("hidden-one" in shown) == (source == LISTED and apart)


def test_the_model_is_shown_by_its_sizes_and_a_folder_by_its_configuration(landed: Landed, tmp_path: Path) -> None:
    usual = replace(landed.compiler, base=Job())
    tiny = landed.looks(compiler=lambda: usual).answer("model", {})
    assert (tiny["name"], tiny["made_as"]["layers"], tiny["check"]) == ("tiny", 2, None)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps({"num_hidden_layers": 3, "vocab_size": 9, "secret": 1}))
    job = landed.compiler.base.model_copy(update={"model": PathModel(path="mine", sha256="0" * 64)})
    looks = landed.looks(compiler=lambda: replace(landed.compiler, base=job), models=tmp_path)
    shown = looks.answer("model", {})
    assert (shown["name"], shown["configuration"]) == ("mine", {"num_hidden_layers": "3", "vocab_size": "9"})
    assert "'theirs'" in refused(landed, "model", {"name": "theirs"})


def test_a_metric_or_a_run_that_there_is_not_is_refused_with_those_that_there_are(landed: Landed) -> None:
    run = a_run(landed).run_id
    told = refused(landed, "curves", {"arms": [run], "metrics": ["critic/succes/mean"]})
    assert ("mean critic/success/mean?" in told, "actor/entropy" in told) == (True, True)
    assert "'zz'" in refused(landed, "episodes", {"run": "zz"})
    assert "metrics: missing" in refused(landed, "curves", {"arms": [run]})
    assert "seed" in refused(landed, "curves", {"arms": [run], "metrics": ["x"], "seed": 1})
    assert "tasks; found 'shell'" in refused(landed, "shell", {})
    assert "did you mean group_size" in refused(landed, "job_fields", {"fields": ["steps", "groupsize"]})


def test_words_of_plays_are_quoted_as_data_on_one_line_without_control_characters(landed: Landed) -> None:
    shown = landed.looks().answer("episodes", {"run": a_run(landed).run_id, "which": "any", "count": 2})
    assert (shown["notice"], shown["split"]) == (DATA, "hidden")
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
    finer = landed.looks().answer("price", priced(8, 16, smallest_effect=0.05))
    assert finer["seeds_per_arm"] > shown["seeds_per_arm"]


_PAIR = [{"field": "group_size", "value": 4}, {"field": "learning_rate", "value": 0.001}]
_OTHER = [{"field": "group_size", "value": 16}, {"field": "learning_rate", "value": 0.003}]


def test_what_can_be_proposed_can_be_priced_whatever_its_kind(landed: Landed) -> None:
    wishes = {
        2: [priced(_PAIR, _OTHER, variable="configuration"), priced(8, 16, metric="area")],
        3: [priced(4, 8, 16)],
        4: [
            priced(_PAIR, _OTHER, variable="configuration", moderator="group_size"),
            priced(2, 16, ladder=[2, 4, 8, 16], direction="decrease"),
        ],
    }
    for arms, of in wishes.items():
        for wish in of:
            shown = landed.looks().answer("price", wish)
            assert shown.get("arms") == arms or "needs" in shown["because"]


@pytest.mark.parametrize(("wish", "because"), [
    (priced(8, 8), "must differ"), (priced(8, 16, variable="dropout"), "found 'dropout'"),
    (priced("built-in", "mine", variable="prompt"), "containers"),
    (priced(8, 16, environment="nowhere"), "nowhere"),
    (priced(8, 16, variable="configuration"), "configuration"), (priced("a", "b", variable="model"), "models"),
    (priced(8, 16, metric="nope"), "nope"), (priced(8, 16, smallest_effect=5.0), "at most"),
    (priced(8, 16, smallest_effect=1e-300), "seeds"), (priced(8, 10**300), "group_size"), (priced(8), "neither"),
    (priced(8, 16, steps=0), "steps"), (priced(True, 16), "number"),
    (priced(8, 16, constants=[{"field": "seed", "value": 1}]), "seed"), (priced(8, 16, search=True), "both"),
    (priced(8, 16, constants=[{"field": "group_size", "value": 2}]), "constant"), ({}, "missing"),
    ({"propose": {"hypotheses": [3]}, "design": None}, "hypotheses"), ({"propose": 7, "design": []}, "propose"),
])  # fmt: skip
def test_a_price_that_cannot_be_had_says_why_and_nothing_else_comes_of_it(
    landed: Landed, wish: dict[str, Any], because: str
) -> None:
    shown = landed.looks().answer("price", wish)
    assert (shown["can_be_had"], because in shown["because"]) == (False, True), shown


@given(st.recursive(st.none() | st.floats() | st.text(max_size=5), lambda v: st.lists(v) | st.dictionaries(
    st.sampled_from([*ProposedHypothesis.model_fields, *Propose.model_fields, "environment", "field"]), v,
), max_leaves=6), st.sampled_from(["propose", "design", "hypotheses", *ProposedHypothesis.model_fields]))  # fmt: skip
def test_no_value_anywhere_in_a_wish_for_a_price_is_more_than_refused(landed: Landed, junk: Any, place: str) -> None:
    claim = {**WISH["propose"]["hypotheses"][0], place: junk}
    wish = {**WISH, place: junk} if place in WISH else {**WISH, "propose": {"hypotheses": [claim]}}
    wish = {**WISH, "propose": {"hypotheses": junk}} if place == "hypotheses" else wish
    assert landed.looks().answer("price", wish)["can_be_had"] in (True, False)


def test_a_price_that_cannot_be_had_says_when_it_could(landed: Landed) -> None:
    poor = replace(landed.compiler, budget=Budget(wall_clock_s=30.0))
    shown = landed.looks(compiler=lambda: poor).answer("price", WISH)
    assert (shown["can_be_had"], "budget" in shown["could_be_had"]) == (False, True)
    assert "containers" in landed.looks().answer("price", priced("built-in", "a", variable="prompt"))["could_be_had"]
