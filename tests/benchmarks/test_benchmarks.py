"""Each benchmark can be run, its parts compute on a tiny input, and the pages say what was measured."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from dataclasses import replace
from itertools import accumulate
from math import comb
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import answered_by_hand
import house
import openai
import pytest
from performance.headlines import HEADLINES
from performance.page import BENCHMARKS, PAGE, RESULTS, Entry, entries, load, read_history, regressions, render
from simlab.noise import NAMES
from simlab.sim_records import FlightRecord, TemptingCase, flown, score
from simlab.suites import baits, faults, null, traps
from source.packages import circles, module_arrows

ROOT = Path(__file__).parents[2]
MEASURED = [each.name for each in BENCHMARKS if load(each.name) or each.missing is None]
ENTRY = Entry("soak", "kill to serving again, s", "aaa", "2026-01-01", 1.0, 0.3, "lower")


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "benchmarks").glob("*.py")))
def test_a_script_answers_help(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks" / script), run_name="__main__")
    assert ended.value.code == 0
    assert f"usage: {script}" in capsys.readouterr().out


def test_the_page_is_what_the_results_give_today_with_each_command_day_and_commit() -> None:
    page = PAGE.read_text()
    assert page == render(), "run: python benchmarks/run_all.py --render"
    assert set(MEASURED) == {path.stem for path in (ROOT / "benchmarks/results").glob("*.json")}
    for name in MEASURED:
        result = load(name)
        assert result is not None
        assert f"`python benchmarks/{name}.py" in page
        assert f"{result.date} at {result.commit}" in page


def test_the_history_holds_the_headlines_of_todays_results() -> None:
    held = {(entry.benchmark, entry.figure, entry.commit): entry for entry in read_history()}
    for result in filter(None, map(load, HEADLINES)):
        new = entries(result)
        assert new
        assert [entry for entry in new if held.get((entry.benchmark, entry.figure, entry.commit)) != entry] == []


def test_the_page_on_scale_has_the_tables_of_its_results() -> None:
    from scale import text

    figures, page = json.loads((RESULTS / "scale.json").read_text()), (ROOT / "docs/scale.md").read_text()
    assert [line for line in text(figures) if " ".join(line.split()) not in " ".join(page.split())] == []


@pytest.mark.parametrize(("better", "value", "worse"), [
    ("lower", 1.4, False), ("lower", 1.5, True), ("higher", 0.6, False), ("higher", 0.5, True),
])  # fmt: skip
def test_worse_is_what_lies_beyond_the_noise_of_both(better: str, value: float, worse: bool) -> None:
    before, now = replace(ENTRY, better=better), replace(ENTRY, better=better, commit="bbb", value=value)
    assert regressions([before], [now]) == ([(now, before)] if worse else [])


def test_run_all_records_what_is_whole_and_tells_what_failed_or_is_worse(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import run_all

    soak = next(each for each in BENCHMARKS if each.name == "soak")
    found: dict[str, Any] = json.loads((RESULTS / "soak.json").read_text())
    past = tmp_path / "headlines.csv"

    def problems(code: int = 0, **changes: Any) -> list[str]:
        def ended(command: list[str], **_: object) -> SimpleNamespace:
            assert command[1:] == list(soak.command)
            (tmp_path / "soak.json").write_text(json.dumps(found | changes))
            return SimpleNamespace(returncode=code)

        monkeypatch.setattr(subprocess, "run", ended)
        return run_all.measure([soak], tmp_path, past)

    assert [problems(commit="aaa"), problems(commit="bbb")] == [[], []]
    slow = problems(commit="ccc", **{"seconds to roll again": {"median": 5.0, "worst": 6.0}})
    assert [("is worse" in each, "5 at ccc" in each) for each in slow] == [(True, True)]
    assert {each.commit for each in read_history(past)} == {"aaa", "bbb", "ccc"}
    assert "exit code 1" in problems(code=1, commit="ddd")[0]
    assert "full size" in problems(commit="ddd", quick=True)[0]
    assert {each.commit for each in read_history(past)} == {"aaa", "bbb", "ccc"}


def test_the_house_measures_name_each_goal_that_is_missed_and_each_limit_that_is_passed(tmp_path: Path) -> None:
    for path, text in {
        "__init__.py": '"""The door."""\n', "top.py": '"""The top."""\nimport studies.inside.m1\nclass Thing: ...\n',
        "inside/long.py": "class Thing: ...\ndef long(given):\n" + "    print()\n" * 80,
        "inside/m1.py": '"""Imports the top, inside of a function."""\ndef f() -> None:\n    import studies.top\n',
    }.items():  # fmt: skip
        (tmp_path / "studies" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "studies" / path).write_text(text)
    assert list(house.missed(tmp_path, {})) == [
        "over 80 lines: 81 studies/inside/long.py:2 long", "studies: annotated 50.00%",
        "studies: modules with a docstring 75.00%", "class Thing in studies/inside/long.py, studies/top.py",
        "circle of studies.inside.m1, studies.top",
    ]  # fmt: skip
    assert list(circles(module_arrows(tmp_path, "studies"))) == [("studies.inside.m1", "studies.top")]
    median_length = "median length of a function"
    budget = {"limits": {"lines": {"limit": 100, "goal": 50}, median_length: {"limit": 5, "goal": 4}}}
    for lines, median, wrong, good in ((100, 5, 0, 0), (101, 4, 2, 0), (98, 6, 0, 2)):
        values = {"lines": lines, median_length: median}
        assert (len(list(house.worse(values, budget))), len(list(house.better(values, budget)))) == (wrong, good)


def test_an_endpoint_by_hand_replies_with_what_lies_in_its_folder_and_keeps_each_request(tmp_path: Path) -> None:
    answers = {"look": [["price", {"variable": "group_size"}]]}, {"action": "conclude"}, {"content": "So it is."}
    for number, answer in enumerate(answers, start=1):
        (tmp_path / f"000{number}.answer.json").write_text(json.dumps(answer))
    server = answered_by_hand.make_server(tmp_path, 0)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    asked = {"model": "me", "messages": [{"role": "user", "content": "What now?"}]}
    with openai.OpenAI(api_key="x", base_url=f"http://127.0.0.1:{server.server_port}/v1") as client:
        looks, action, words = (client.chat.completions.create(**asked).choices[0].message for _ in answers)
    server.shutdown()
    server.server_close()
    assert looks.tool_calls[0].function.name == "price"
    assert (json.loads(action.content), words.content) == ({"action": "conclude"}, "So it is.")
    assert json.loads((tmp_path / "0003.request.json").read_text()) == asked


def test_figures_carry_the_textbooks_intervals_and_are_held_to_their_bars() -> None:
    from simlab.scores import Bar, SuiteOutcome, clopper_pearson, counted, mean

    assert clopper_pearson(4, 20) == pytest.approx((0.0573340, 0.4366140), abs=1e-6)
    assert (mean("x", [1.0, 2.0, 3.0]).low or 0.0) == pytest.approx(2 - 2.48414, abs=1e-4)
    kept = [counted("x", count, of, Bar("at most", 0.05)).kept for count, of in
            [(40, 1000), (60, 1000), (4, 60), (20, 60), (0, 0)]]  # fmt: skip
    assert kept == [True, False, None, False, False]
    beside = [counted("x", 20, 60, Bar("at most", 0.05), outside=outside) for outside in (False, True)]
    assert len(SuiteOutcome("null", "?", 60, beside).missed) == 1


def test_backends_agree_where_they_differ_by_less_than_the_margin() -> None:
    from rig.verl_agreement import BACKENDS, ServedTraining, of_environment

    for apart, verdict in ((0.0, "equivalent"), (0.3, "supported"), (-0.3, "refuted")):
        done = [
            ServedTraining("guess", backend, seed, 0.3, end, (end - 0.2, end - 0.1), 2e-6, 30.0, 60.0)
            for backend in BACKENDS for seed in range(5)
            for end in [0.7 + 0.01 * ((seed * 3 + (backend == "verl")) % 5) + apart * (backend == "verl")]
        ]  # fmt: skip
        assert {each["verdict"] for each in of_environment("guess", done, 8)["verdicts"].values()} == {verdict}


def test_simulated_studies_and_inquiries_are_judged_by_the_shipped_rules() -> None:
    from rig.campaign_verdicts import PILOTED, InquiryCell, inquiry, overdrawn
    from rig.simulated_verdicts import Procedure, World, promised, simulate

    rules = Procedure("after", 8, margin=promised(8))
    nothing, planted = (simulate(rules, World(), 30, planted=planted).figures() for planted in (False, True))
    assert [nothing["false"][0] <= 0.25, planted["found"][0] >= 0.5, planted["wrong_sign"][0]] == [True, True, 0]
    assert not any(overdrawn(inquiry(InquiryCell("nothing", "plain", noise), 1), 0) for noise in ("normal", PILOTED))
    assert overdrawn(inquiry(InquiryCell("nothing", "plain", ledgers=False), 1), 0)


def test_a_simulated_bank_knows_the_noise_of_its_world_and_what_a_collapse_costs() -> None:
    from simlab.noise import Ugliness
    from simlab.sim_run import Flight, known_noise
    from simlab.worlds import PAIRS

    from studies.records.design import Metric
    from studies.records.procedure import Noise

    world, bank = Ugliness(collapses=(0.3, 0.3), bank=2.0).worlds(PAIRS[0], 1, 0.0)
    flight = Flight("known", PAIRS[0].topic, world, bank_world=bank)
    noise = known_noise(flight).find("guess", flight.job, Metric(meaning="success", episodes=512))
    assert isinstance(noise, Noise)
    assert noise.sd == pytest.approx(0.06, rel=0.4)
    assert (noise.drop or 0.0) > 0.1
    assert Ugliness().worlds(PAIRS[0], 1, 0.0)[1] is None


def test_a_verdict_is_scored_by_the_trainings_that_it_names() -> None:
    from rig.simulated_verdicts import START, World

    stuck = World(stuck=(0.0, 0.1), over_all=True)
    assert stuck.difference("all") == pytest.approx(0) == stuck.difference("started", (False, True))
    assert stuck.difference("started") == pytest.approx(stuck.shift) == pytest.approx((stuck.end - START) / 9)
    both = World(stuck=(0.0, 0.1), collapses=(0.0, 0.2), effect=0.1)
    assert both.difference("started_not_collapsed") == pytest.approx(0.1)
    assert both.difference("all") < both.difference("not_collapsed") < 0.1 > both.difference("started")


@pytest.mark.parametrize(("rules", "seeds", "arms", "margin"), [
    ("budget", 8, 2, 0.1), ("peeker", 8, 2, 0.1), ("pilot", 20, 2, 0.15), ("trend", 20, 3, 0.15),
])  # fmt: skip
def test_simulated_studies_are_sized_and_ended_by_the_shipped_rules(
    rules: Any, seeds: int, arms: int, margin: float
) -> None:
    from rig.simulated_verdicts import Procedure, World, simulate

    procedure = Procedure(rules, seeds, arms - 1, margin)
    nothing, planted = (simulate(procedure, World(), 20, planted=planted).figures() for planted in (False, True))
    assert [nothing["false"][0] <= 0.3, planted["found"][0] >= 0.3, planted["wrong_sign"][0]] == [True, True, 0]
    assert 3 <= planted["seeds"] < seeds


def test_recorded_trainings_need_fewer_runs_by_the_rules_of_today() -> None:
    from runs_needed import PROMISED, STATES, Question, Row, ratio, simulate

    rows = [
        simulate(Row(Question("arith", 0.1, *state), rules, planted=True, studies=8))
        for state in STATES.values() for rules in ("before", "now")
    ]  # fmt: skip
    assert ratio(rows)["most"] < 1
    assert {(row["rules"], row["promised"]) for row in rows} == {("before", PROMISED), ("now", PROMISED)}


@pytest.mark.slow
@pytest.mark.parametrize("planted", [False, True], ids=["of nothing", "of the promised effect"])
def test_a_whole_simulated_study_claims_nothing_false(planted: bool) -> None:
    from simlab.sim_records import flown
    from simlab.suites import effects, null

    place = effects.SIZES.index(effects.EFFECT / effects.TOTAL_SD)
    flight = effects.flights(1, place)[0] if planted else null.flights(1, first=1, cells=["noise 1:2"])[0]
    record = flown(flight)
    assert record.claims, record.refused
    assert [claim for claim in record.claims if claim.false or claim.falsely_equivalent] == []
    assert {claim.verdict for claim in record.claims} == {"refuted" if planted else "equivalent"}
    assert record.launched_runs == record.accounted_runs > 0
    assert not record.duplicates + record.orphans


def most(of: int, rate: float) -> int:
    """Return the largest count that events of this rate stay within, at 99.9 %."""
    chances = (comb(of, count) * rate**count * (1 - rate) ** (of - count) for count in range(of + 1))
    return next((count for count, within in enumerate(accumulate(chances)) if within >= 0.999), of)


def least(of: int, rate: float) -> int:
    """Return the smallest count that events of this rate reach, at 99.9 %."""
    return of - most(of, 1 - rate)


def accounted(records: list[FlightRecord]) -> bool:
    """Say whether every launched run is there once, and none after its study."""
    return all(one.launched_runs == one.accounted_runs and not one.duplicates + one.orphans for one in records)


@pytest.mark.slow
def test_nothing_is_seldom_called_something_and_intervals_hold_the_truth() -> None:
    records = [flown(flight) for flight in null.flights(1, first=1, cells=NAMES[::2])]
    judged = [record for record in records if record.claims]
    assert len(judged) >= 0.7 * len(records), [record.refused for record in records]
    assert sum(any(claim.false for claim in one.claims) for one in judged) <= most(len(judged), null.MOST_FALSE)
    covered = [claim.covered for one in judged for claim in one.claims if claim.covered is not None]
    assert sum(covered) >= least(len(covered), 0.93) > 0
    assert accounted(records)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*baits.CASES, *traps.CASES], ids=lambda case: case.name)
def test_no_confound_passes_for_an_effect_and_nothing_forged_or_demanded_for_a_result(case: TemptingCase) -> None:
    found = score(case, 0)
    assert found.score != "fooled", found
    assert found.score == "detected" or case in baits.CASES or not case.named_by, found


@pytest.mark.slow
def test_a_killed_controller_changes_nothing_and_whatever_breaks_every_run_is_accounted_for() -> None:
    survived = [faults.survive(kill) for kill in faults.kills(faults.study, 0, every=61)]
    assert survived
    assert all(one and one.same and not one.duplicates and not one.orphans for one in survived), survived
    records = [flown(flight) for flight in faults.broken(8)]
    assert accounted(records)
    assert not any(claim.difference * claim.truth < 0 for record in records for claim in record.claims)
