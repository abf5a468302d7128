"""`ajet study plan`: what a person and a script see before anything is run; refusals are in test_refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from research.design.noise_bank import NoiseBank
from tests.golden import assert_golden
from tests.research.banks import bank
from tests.research.cli.conftest import Ajet
from tests.research.model_folders import model_at

TOPIC = "group size 4 vs 16 on guess"
VARY = ("--vary", "learning_rate=0.001,0.003")


@pytest.fixture
def known_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the shipped bank say that the noise of `guess` is 0.03 and that of `arith` unknown."""
    shipped = bank(0.03, evaluation_sd=0.025, environments=("guess",))
    monkeypatch.setattr("research.design.noise_bank.shipped_bank", lambda: shipped)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two models, which the command is called in."""
    monkeypatch.chdir(tmp_path)
    model_at(tmp_path / "mine")
    model_at(tmp_path / "theirs", b"v")
    return tmp_path


def planned(ajet: Ajet, *arguments: str, code: int = 0) -> dict[str, Any]:
    ended = ajet("study", "plan", *arguments, "--json")
    found: dict[str, Any] = json.loads(ended.out)
    assert (ended.code, found["accepted"]) == (code, code == 0), ended.err
    return found


@pytest.mark.usefixtures("known_noise")
def test_a_person_sees_hypotheses_arms_seeds_looks_test_noise_power_and_price(ajet: Ajet) -> None:
    ended = ajet("study", "plan", TOPIC)
    assert ended.code == 0
    for part in (
        "hypothesis h1  group_size = 16 raises", "group_size: fewer different tasks are in a step",
        "arms  group_size=4 vs group_size=16", "seeds  5 of each arm; looked at after 3 seeds", "test  Welch's t",
        "noise  sd 0.030 between seeds, of which evaluation 0.025; 19 degrees of freedom", "the design",
        "confirm    10", "run-hours", "the budget is 12 min", "with a difference of 0.1, as looks may end it",
    ):  # fmt: skip
        assert part in ended.out, part


def keys(value: Any, at: str = "") -> set[str]:
    """Return where values stand in JSON; of a list's items those of all together."""
    if isinstance(value, dict):
        return set().union(*(keys(part, f"{at}.{name}") for name, part in value.items()), {at})
    return set().union(*(keys(part, f"{at}[]") for part in value), {at}) if isinstance(value, list) else {at}


@pytest.mark.usefixtures("known_noise")
def test_a_script_finds_what_it_found_before(ajet: Ajet) -> None:
    assert_golden("\n".join(sorted(keys(planned(ajet, TOPIC)))))


@pytest.mark.slow
@pytest.mark.usefixtures("known_noise")
def test_nothing_is_run(ajet: Ajet, home: Path) -> None:
    found = planned(ajet, TOPIC)
    assert found["design"]["looks"][-1]["seeds"] == 5
    assert (ajet("study", "list", "--json").data, (home / "studies").exists()) == ([], False)


@pytest.mark.slow
@pytest.mark.usefixtures("known_noise")
def test_power_grows_with_seeds_and_the_design_keeps_its_promise(ajet: Ajet) -> None:
    for topic in ("How many seeds do I need to compare lr 1e-3 and 3e-3?", "how many runs for larger groups"):
        assert planned(ajet, topic)["power_curve"]
    found = planned(ajet, TOPIC, "--effect", "0.05", "--power", "0.9", "--budget", "30m")
    powers = [row["power"] for row in found["power_curve"]]
    assert powers == sorted(powers)
    (chosen,) = (row for row in found["power_curve"] if row["seeds"] == found["seeds"])
    assert chosen["power"] >= 0.9
    assert chosen["seconds"] == pytest.approx(found["total_s"])
    assert found["expected"][1]["runs"] < found["expected"][0]["runs"] <= chosen["runs"]


@pytest.mark.slow
@pytest.mark.usefixtures("known_noise")
def test_a_refused_design_is_shown_with_what_it_could_see_and_ends_in_one_line(ajet: Ajet) -> None:
    asked = (TOPIC, "--effect", "0.03", "--budget", "5m")
    ended = ajet("study", "plan", *asked)
    assert ("not affordable" in ended.out, "would be needed:" in ended.out) == (True, True)
    found = planned(ajet, *asked, code=2)
    assert ended.refused("an effect of 0.03", "power 0.8", found["refused"])
    assert (found["design"], bool(found["power_curve"])) == (None, True)


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["guess", "arith", None])
def test_a_refusal_quotes_the_noise_of_the_environment_asked_for(ajet: Ajet, environment: str | None) -> None:
    topic = "group size 4 vs 8" + (f" on {environment}" if environment else "")
    for command in (("research", "--no-prefect"), ("study", "plan")):
        ended = ajet(*command, topic, "--effect", "0.01")
        assert (ended.code, f"between seeds in {environment or 'guess'} is" in ended.err) == (2, True)


@pytest.mark.slow
def test_a_study_that_no_environment_affords_is_refused_by_the_prices_of_its_own(
    ajet: Ajet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of arith costs less than one of guess; what a refusal offers is accepted."""
    monkeypatch.setattr("research.design.noise_bank.shipped_bank", lambda: bank(0.03, environments=("arith", "guess")))
    topic = "group size 4 vs 16 on arith"
    found = planned(ajet, topic, "--budget", "30s", code=2)
    assert "seeds in arith" in found["refused"]
    assert found["power_curve"]
    assert found["stages"][0]["seconds_per_run"] == planned(ajet, topic)["stages"][0]["seconds_per_run"]
    (offered,) = re.findall(r"use --budget (\w+)", found["refused"])
    assert planned(ajet, topic, "--budget", offered)["design"]["environment"] == "arith"


@pytest.mark.usefixtures("known_noise")
def test_without_a_word_on_the_noise_the_runs_that_would_come_first_are_priced(
    ajet: Ajet, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = planned(ajet, "group size 4 vs 16", "--env", "arith")
    assert (found["noise_runs_first"], found["noise"], found["power_curve"]) == (6, None, [])
    assert [stage["name"] for stage in found["stages"]] == ["A/A", "confirm"]
    assert "runs of arith" in found["no_noise_because"]
    assert "first  6 A/A runs" in ajet("study", "plan", "group size 4 vs 16", "--env", "arith").out
    monkeypatch.setattr("research.design.noise_bank.shipped_bank", NoiseBank)  # what the home knows takes its place
    assert planned(ajet, TOPIC)["noise"] is None


@pytest.mark.slow
@pytest.mark.usefixtures("known_noise")
def test_a_search_is_planned_with_its_screen(ajet: Ajet) -> None:
    asked = ("What is the best learning rate and group size in guess?", "--budget", "30m")
    found = planned(ajet, *asked)
    assert found["design"]["screen"]["candidates"] == 11
    assert [stage["name"] for stage in found["stages"]] == ["screen, 20 steps", "confirm"]
    assert "11 candidates over learning_rate, group_size" in ajet("study", "plan", *asked).out
    chosen = next(row for row in found["power_curve"] if row["seeds"] == found["seeds"])
    assert chosen["runs"] == sum(stage["runs"] for stage in found["stages"])
    assert chosen["seconds"] == pytest.approx(found["total_s"])
    assert all(entry["seconds"] <= found["total_s"] + 1e-6 for entry in found["expected"])


@pytest.mark.slow
def test_a_plan_begins_with_what_is_asked_and_what_is_tested(ajet: Ajet) -> None:
    flags = ("--vary", "group_size=4,16", "--set", "steps=80", "--env", "guess", "--budget", "30m")
    found = planned(ajet, *flags)
    assert found["asked"] == "--vary group_size=4,16 --set steps=80 --env guess"
    (tested,) = found["tested"]
    assert tested.startswith("Whether group_size = 16 changes")
    assert found["not_tested"] == found["unequal"] == []
    assert found["design"]["base_job"]["steps"] == 80
    first, second, *_ = ajet("study", "plan", *flags).out.splitlines()
    assert (first[:36], second[:31]) == ("asked  --vary group_size=4,16 --set ", "tested  Whether group_size = 16")


@pytest.mark.slow
def test_a_plan_says_what_of_a_topic_is_not_tested_and_what_the_arms_do_not_share(ajet: Ajet) -> None:
    asked = ("is a batch of 256 faster than 64 on guess?", "--metric", "success", "--budget", "1h")
    found = planned(ajet, *asked)
    assert "'faster'" in found["not_tested"][0]
    (clause,) = found["unequal"]
    assert clause.startswith("training episodes: 2,560 with episodes_per_step=64, 10,240 with")
    assert "unequal  the arms" in ajet("study", "plan", *asked).out
    assert planned(ajet, "batch 64 vs 256 on guess with equal episodes", "--budget", "1h")["unequal"] == []


@pytest.mark.slow
def test_a_plan_says_by_what_its_runs_are_judged_and_what_comes_first(ajet: Ajet) -> None:
    asked = (*VARY, "--env", "guess", "--metric", "episodes:0.8")
    said = " ".join(ajet("study", "plan", *asked).out.split())
    for part in (
        f"asked {' '.join(asked)}", "metric episodes to 0.8 hidden success", "lower is better",
        "range 5,120 to 0 episodes effect 512 episodes",
        "schedule 64 hidden episodes about every 512 training episodes",
        "needs more or fewer episodes to 0.8 hidden success than learning_rate = 0.001, by 512 episodes or more",
        "first 6 A/A runs",
    ):  # fmt: skip
        assert part in said, part
    of_a_run = [planned(ajet, *flags)["stages"][-1]["seconds_per_run"] for flags in (asked[:-2], asked)]
    assert of_a_run[1] == pytest.approx(of_a_run[0] + 9 * 64 * 3.1 * 0.0014), "evaluations while it trains are priced"


@pytest.mark.slow
def test_a_topic_that_says_faster_asks_for_speed_and_the_plan_says_so(ajet: Ajet) -> None:
    asked = ("Does a larger group size make GRPO learn the guessing game faster?", "--budget", "40m")
    found = planned(ajet, *asked)
    (claim,) = found["hypotheses"]
    assert (found["metric"]["key"], found["metric_chosen_for"]) == ("hidden/episodes_to_0.6", "faster")
    assert (claim["direction"], claim["prediction"]["low"] < 0, found["not_tested"]) == ("decrease", True, [])
    assert "for 'faster', as --metric episodes:0.6; another by --metric" in ajet("study", "plan", *asked).out
    other = planned(ajet, *asked, "--metric", "success")
    assert (other["metric"]["key"], "'faster'" in other["not_tested"][0]) == ("hidden/success", True)


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_the_job_lies_under_all_arms_and_a_topic_compares_with_what_it_has(ajet: Ajet) -> None:
    def with_job(*asked: str, **fields: Any) -> dict[str, Any]:
        Path("job.json").write_text(json.dumps(fields))
        return planned(ajet, *asked, "--job", "job.json", "--budget", "4h")

    found = with_job(*VARY, steps=7, environment="arith", max_context=128, group_size=4)
    assert found["job"] == {"steps": 7, "environment": "arith", "max_context": 128, "group_size": 4}
    base = found["design"]["base_job"]
    assert (base["environment"], base["steps"], base["max_context"]) == ("arith", 7, 128)
    found = with_job("does a group size of 16 help on arith?", group_size=2)
    assert found["arms"] == ["group_size=2", "group_size=16"]
    for rate, arms in {0.002: ["learning_rate=0.002", "learning_rate=0.003"],
                       0.003: ["learning_rate=0.0003", "learning_rate=0.003"]}.items():  # fmt: skip
        assert with_job("does a larger learning rate help on arith?", learning_rate=rate)["arms"] == arms


@pytest.mark.usefixtures("place")
def test_a_plan_says_which_model_is_trained_and_that_its_price_is_a_guess(ajet: Ajet) -> None:
    out = ajet("study", "plan", *VARY, "--model-path", "mine", "--env", "arith", "--budget", "4h").out
    assert "job  model = mine" in out
    assert "unusual learning_rate 0.001 is far from 2e-05" in " ".join(out.split())
    assert "here: estimated from 6 parameters" in " ".join(out.split())
    asked = ("--vary", "group_size=4,16", "--model-path", "mine", "--env", "arith", "--budget", "4h")
    assert "assumed learning_rate = 2e-05" in " ".join(ajet("study", "plan", *asked).out.split())


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    "asked",
    [
        ("--vary", "model=mine,theirs", "--env", "arith"),
        ("Which of my two models learns more on arith, ./mine or ./theirs?",),
        ("which of these models learns more on arith: ./mine or ./theirs",),
    ],
)
def test_models_are_compared_by_flags_and_by_a_topic_that_names_their_folders(
    ajet: Ajet, asked: tuple[str, ...]
) -> None:
    found = planned(ajet, *asked, "--budget", "4h")
    assert (found["arms"], found["not_tested"]) == (["model=mine", "model=theirs"], [])
    assert ("changes the gain" in found["tested"][0], found["noise_runs_first"] > 0) == (True, True)
