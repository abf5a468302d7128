"""Worlds with a mechanism, and who finds it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from simlab.mechanisms import CONSTANT, ENTROPY, MECHANISMS, WORDS, admitted, mechanical, takes_length_out
from simlab.planners import LIE
from simlab.researchers import EASIER_TASKS, LARGER_GROUPS, NO_LENGTH, RATE, Hostile, Idea
from simlab.sim_run import FlightResult, fly
from simlab.suites.mechanisms import (
    ROUNDS,
    MechanismInquiry,
    figures,
    flight,
    flown_planners,
    list_numbers,
    row,
    scored,
)

from research.planners.endpoint import Recorder
from research.planners.llm import LlmPlanner
from swarm.environments.registry import environments

LEVERS = {"constant groups": LARGER_GROUPS, "gamed reward": NO_LENGTH, "curriculum": EASIER_TASKS}


def flown(mechanism: str, planner: str, number: int, *, report: bool = False) -> tuple[FlightResult, MechanismInquiry]:
    with admitted():
        landed = fly(replace(flight(mechanism, planner, number), report=report))
        return landed, scored(mechanism, planner, landed)


def sides(idea: Idea) -> tuple[dict[str, object], dict[str, object]]:
    return {}, {idea.variable: idea.code or idea.treatment}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_lever_moves_success_by_what_runs_show_and_nothing_else_does(mechanism: str) -> None:
    world, own = mechanical(mechanism, 1), LEVERS.get(mechanism)
    for idea in (*LEVERS.values(), RATE, Idea("entropy_coef", 0.0, 0.01)):
        control, treatment = sides(idea)
        gain = world.true_value(treatment) - world.true_value(control)
        assert (gain > 0.12) if idea == own else gain == pytest.approx(0)
        if idea == own:
            assert world.moves(idea.metric, control, treatment) < 0
            assert world.moves(f"logged:{ENTROPY}:last", control, treatment) == 0
    larger, bonus = (sides(idea) for idea in (LARGER_GROUPS, Idea("entropy_coef", 0.0, 0.01)))
    moved = [world.moves(f"logged:{CONSTANT}:last", *larger) < 0, world.moves(f"logged:{ENTROPY}:last", *bonus) > 0]
    assert moved == [mechanism in ("constant groups", "decoy"), mechanism != "nothing"]


def test_what_a_world_logs_and_shows_is_what_it_says_of_its_configurations() -> None:
    world, usual = mechanical("gamed reward", 1), {"batch/groups": 32.0, "critic/success/mean": 0.3}
    for source, words in (("built-in", 150), ("=success", 35)):
        logged = world.logged({"reward": source}, 7, world.steps, usual)
        played = [world.play({"reward": source}, 7, world.steps, n, success=False) for n in range(200)]
        assert sum(each["facts"][WORDS] for each in played) / 200 == pytest.approx(words, abs=20)
        assert logged["critic/rewards/mean"] == pytest.approx(0.3 + words / 200, abs=0.1)
    curriculum = mechanical("curriculum", 1)
    assert list(curriculum.solvable(["essay-0", "essay-1", "essay-2"])) == [0, 2]


@pytest.mark.parametrize(("source", "cures"), [
    ("=success", True), ("=reward - words / 200", True), ("=success - 0.01 * words", True), ("=reward", False),
    ("=reward - words / 400", False), ("=0 - words", False), ("=success / turns if words < 100 else 2", False),
    ("def reward(task, messages, outcome):\n    return float(outcome['success'])\n", True),
    ("def reward(task, messages, outcome):\n    return outcome['reward']\n", False),
])  # fmt: skip
def test_a_reward_cures_where_it_takes_the_length_out_and_still_pays_for_success(source: str, cures: bool) -> None:
    assert takes_length_out(source) == cures


def test_shares_are_of_inquiries_and_a_model_flies_where_there_is_a_recording() -> None:
    one = MechanismInquiry(
        "decoy", "rules", 4, named=False, lever=False, false_differences=0, false_mediators=1, moved=1, rounds=4,
        refusals=0, looks=0, run_hours=1.0, hours=0.5, refused=None,
    )  # fmt: skip
    other = replace(one, mechanism="curriculum", named=True, lever=True, false_mediators=0)
    wrong, named, lever, *_ = figures([one, other])
    assert [each.value for each in (wrong, named, lever)] == [0.5, 1.0, 1.0]
    assert (row([one])["false mediators"], row([one])["without a claim"]) == (1, 0)
    assert "recorded" not in flown_planners({})
    assert "recorded" in flown_planners({"AJET_PLANNER_REPLAY": "conversations"})


@pytest.mark.slow
def test_a_researcher_by_script_names_the_mechanism_that_its_looks_point_to() -> None:
    landed, found = flown("gamed reward", "scripted", 1)
    assert (found.named, found.false, found.refused) == (True, False, None)
    assert landed.state.rounds[0].hypotheses[0].variable == "reward"
    assert "essays" not in environments()


@pytest.mark.slow
def test_a_model_that_was_recorded_in_an_inquiry_flies_it_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = flight("nothing", "recorded", 1)
    said = tmp_path / f"{own.name}.jsonl"
    asked = replace(own, planner=lambda clock: LlmPlanner("recorded", Recorder(Hostile(), said)))
    monkeypatch.setenv("AJET_PLANNER_REPLAY", str(tmp_path))
    with admitted():
        first, again = fly(asked).state, fly(own).state
    assert [entry.verdicts for entry in again.rounds] == [entry.verdicts for entry in first.rounds]
    assert again.planner["model"] == "recorded"
    assert [list(list_numbers(name, "recorded", 3)) for name in ("nothing", "decoy")] == [[1], []]


@pytest.mark.slow
def test_a_hostile_planner_gets_no_mechanism_no_other_metric_and_no_false_verdict_past_the_page() -> None:
    landed, found = flown("decoy", "hostile", 2, report=True)
    assert (found.named, found.false, found.refused) == (False, False, None)
    assert found.looks <= 8 * len(landed.state.planner_acts)
    assert found.rounds <= ROUNDS
    refused = [why for act in landed.state.planner_acts for why in act.rejected]
    assert any("no look is left" in why for why in refused)
    assert any("which the user asks for" in why for why in refused)
    assert landed.report is not None
    assert "against a control nobody uses" in landed.report
    assert LIE not in landed.report.split("## ")[0]
