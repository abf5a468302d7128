"""`ajet study plan`: what a person and a script see before anything is run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from research.noise.bank import NoiseBank
from tests.research.banks import bank
from tests.research.cli.conftest import Ajet

TOPIC = "group size 4 vs 16 on guess"


@pytest.fixture(autouse=True)
def known_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the shipped bank say that the noise of `guess` is 0.03 and that of `arith` unknown."""
    shipped = bank(0.03, evaluation_sd=0.025, environments=("guess",))
    monkeypatch.setattr("research.noise.bank.shipped_bank", lambda: shipped)


def planned(ajet: Ajet, *arguments: str, code: int = 0) -> dict[str, Any]:
    ended = ajet("study", "plan", *arguments, "--json")
    assert ended.code == code
    found: dict[str, Any] = json.loads(ended.out)
    assert found["accepted"] == (code == 0)
    return found


def test_a_person_sees_hypotheses_arms_seeds_looks_test_noise_power_and_price(ajet: Ajet, home: Path) -> None:
    ended = ajet("study", "plan", TOPIC)
    assert ended.code == 0
    for part in (
        "hypothesis h1  group_size = 16 raises", "group_size: fewer different tasks are in a step",
        "arms  group_size=4 vs group_size=16", "seeds  5 of each arm; looked at after 3 seeds", "test  Welch's t",
        "noise  sd 0.030 between seeds, of which evaluation 0.025; 19 degrees of freedom", "the design",
        "confirm    10", "run-hours", "the budget is 12 min", "with a difference of 0.1, as looks may end it",
    ):  # fmt: skip
        assert part in ended.out, part


def test_nothing_is_run_and_no_study_is_created(ajet: Ajet, home: Path) -> None:
    assert planned(ajet, TOPIC)["design"]["looks"][-1]["seeds"] == 5
    assert json.loads(ajet("study", "list", "--json").out) == []
    assert not (home / "studies").exists()


def test_the_curve_is_drawn_into_the_home_and_named(ajet: Ajet, home: Path) -> None:
    found = planned(ajet, TOPIC)
    svg, png = (Path(path) for path in found["pictures"])
    assert svg.parent == png.parent == home / "plans"
    assert "promised" in svg.read_text()
    assert png.read_bytes().startswith(b"\x89PNG")
    assert f"curve  {home / 'plans'}" in ajet("study", "plan", TOPIC).out


def test_power_grows_with_seeds_and_the_design_keeps_its_promise(ajet: Ajet) -> None:
    found = planned(ajet, TOPIC, "--effect", "0.05", "--power", "0.9", "--budget", "30m")
    powers = [row["power"] for row in found["power_curve"]]
    assert powers == sorted(powers)
    (chosen,) = (row for row in found["power_curve"] if row["seeds"] == found["seeds"])
    assert chosen["power"] >= 0.9
    assert chosen["seconds"] == pytest.approx(found["total_s"])
    assert found["expected"][1]["runs"] < found["expected"][0]["runs"] <= chosen["runs"]


def test_a_refused_design_is_shown_with_what_it_could_see_and_ends_in_one_line(ajet: Ajet) -> None:
    ended = ajet("study", "plan", TOPIC, "--effect", "0.03", "--budget", "5m")
    assert ended.code == 2
    assert "not affordable" in ended.out
    assert "What would be needed:" in ended.out
    assert ended.line.startswith("ajet: an effect of 0.03 with power 0.8 needs ")
    found = planned(ajet, TOPIC, "--effect", "0.03", "--budget", "5m", code=2)
    assert found["refused"] in ended.line
    assert found["design"] is None
    assert found["power_curve"]


def test_a_study_that_no_environment_affords_is_refused_by_the_prices_of_its_own(
    ajet: Ajet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of arith costs less than one of guess; what a refusal offers is accepted."""
    monkeypatch.setattr("research.noise.bank.shipped_bank", lambda: bank(0.03, environments=("arith", "guess")))
    topic = "group size 4 vs 16 on arith"
    found = planned(ajet, topic, "--budget", "30s", code=2)
    assert "the noise between seeds in arith is" in found["refused"]
    assert found["power_curve"]
    assert found["stages"][0]["seconds_per_run"] == planned(ajet, topic)["stages"][0]["seconds_per_run"]
    (offered,) = re.findall(r"use --budget (\w+)", found["refused"])
    assert planned(ajet, topic, "--budget", offered)["design"]["environment"] == "arith"


def test_without_a_word_on_the_noise_the_runs_that_would_come_first_are_priced(ajet: Ajet) -> None:
    found = planned(ajet, "group size 4 vs 16", "--env", "arith")
    assert (found["noise_runs_first"], found["noise"], found["power_curve"]) == (6, None, [])
    assert [stage["name"] for stage in found["stages"]] == ["A/A", "confirm"]
    assert "no two runs of arith" in found["no_noise_because"]
    assert "first  6 A/A runs" in ajet("study", "plan", "group size 4 vs 16", "--env", "arith").out


def test_what_the_home_knows_takes_the_shipped_runs_place(ajet: Ajet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("research.noise.bank.shipped_bank", NoiseBank)
    assert planned(ajet, TOPIC)["noise"] is None


def test_a_search_is_planned_with_its_screen(ajet: Ajet) -> None:
    found = planned(ajet, "What is the best learning rate and group size in guess?", "--budget", "30m")
    assert found["design"]["screen"]["candidates"] == 11
    assert [stage["name"] for stage in found["stages"]] == ["screen, 20 steps", "confirm"]
    out = ajet("study", "plan", "What is the best learning rate and group size in guess?", "--budget", "30m").out
    assert "control vs the best one of 11 candidates over learning_rate, group_size" in out
    chosen = next(row for row in found["power_curve"] if row["seeds"] == found["seeds"])
    assert chosen["runs"] == sum(stage["runs"] for stage in found["stages"])
    assert chosen["seconds"] == pytest.approx(found["total_s"])
    assert all(entry["seconds"] <= found["total_s"] + 1e-6 for entry in found["expected"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("",), "expected a topic"),
        (("the meaning of life",), "expected a topic that names something to vary"),
        ((TOPIC, "--env", "chess"), "expected an environment: guess, arith, market"),
        ((TOPIC, "--budget", "soon"), "expected a budget"),
        ((TOPIC, "--effect", "0"), "expected a smallest effect above 0 and below 1"),
        ((TOPIC, "--effect", "1"), "expected a smallest effect above 0 and below 1"),
        ((TOPIC, "--effect", "nan"), "expected a smallest effect above 0 and below 1"),
        ((TOPIC, "--power", "2"), "expected a power from 0.5 to 0.99"),
        ((TOPIC, "--looks", "0"), "expected 1 to 5 looks"),
        ((TOPIC, "--episodes", "1"), "expected 64 to 8192 evaluation episodes"),
        ((TOPIC, "--planner", "oracle"), "oracle"),
        (("group size 8 vs 8 on guess",), "group"),
        ((TOPIC, "--budget", "20s"), "use --budget"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line(ajet: Ajet, arguments: tuple[str, ...], said: str) -> None:
    ended = ajet("study", "plan", *arguments)
    assert ended.code == 2
    assert said in ended.line


@pytest.mark.parametrize("flag", [("--effect", "1"), ("--power", "0"), ("--looks", "9"), ("--episodes", "7")])
def test_research_refuses_the_same_terms_before_a_study_exists(ajet: Ajet, home: Path, flag: tuple[str, str]) -> None:
    ended = ajet("research", TOPIC, *flag)
    assert ended.code == 2
    assert "expected" in ended.line
    assert not home.exists()
