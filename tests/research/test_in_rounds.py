"""What consumes a study's runs and verdicts sees those of all its rounds; a study of one round is as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from research.cli.studies import render_ending, render_opening, show
from research.controller.progress import progress_of
from research.design.noise_bank import NoiseBank
from research.installation.home import Home
from research.shown.study import list_row, summary
from studies.proof import DOES_NOT_FOLLOW
from tests.research.in_rounds import MOST, WHY, InRounds
from tests.studies.synthetic import STUDY


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.locate({"AJET_HOME": str(tmp_path / "home")}).prepare()


@pytest.fixture
def asked_on(home: Home) -> Iterator[InRounds]:
    found = InRounds.of(home)
    with closing(found.log):
        found.two_rounds()
        yield found


def printed(*what: object) -> str:
    console = Console(width=300)
    with console.capture() as shown:
        console.print(*what)
    return shown.get()


def test_the_bank_knows_the_runs_of_all_rounds_and_of_one_that_came_to_no_lock(asked_on: InRounds) -> None:
    asked_on.begin_next()
    noise = {spec.run_id for spec in asked_on.noise()}
    before = NoiseBank.of_study(asked_on.state())
    assert asked_on.conclude().given_up
    found = NoiseBank.of_study(asked_on.state())
    assert noise <= {seen.run for seen in found.observations}
    assert len(found.observations) == len(before.observations) == 22
    assert len({seen.group for seen in found.observations}) == 5  # an arm of two rounds is two groups


def test_progress_counts_all_rounds_and_never_falls(home: Home) -> None:
    study = InRounds.of(home)
    study.create()
    shares: list[float] = []

    def look() -> str:
        now = progress_of(study.state())
        shares.append(now.percent)
        return str(now)

    look()
    study.ask()
    look()
    for spec in study.plan():
        study.run(spec)
        look()
    study.judge()
    study.begin_next()
    assert look() == f"round 2 of at most {MOST}: planning"
    assert len(list(study.noise())) == 2
    assert look() == f"round 2 of at most {MOST}: 2 of 2 runs done, the design comes after them"
    study.ask(16, 32)
    assert look() == f"round 2 of at most {MOST}: 12 of at most 22 runs done in all rounds so far"
    study.answer()
    study.conclude()
    assert look() == "22 runs done in 2 rounds, concluded"
    assert (shares, shares.count(100.0)) == (sorted(shares), 1)


def test_a_verdict_of_an_earlier_round_whose_files_changed_is_doubted_everywhere(asked_on: InRounds) -> None:
    (asked_on.folder / "design.lock").write_text("{}")
    state = asked_on.state()
    assert list_row(state, asked_on.folder)[3] == f"{DOES_NOT_FOLLOW} | supported"
    assert [entry["verdict"] for entry in summary(state, asked_on.folder)["verdicts"]] == [DOES_NOT_FOLLOW, "supported"]
    assert f"round 1, h1: {DOES_NOT_FOLLOW}" in printed(render_ending(state, asked_on.folder))


def test_show_tells_each_round(
    asked_on: InRounds, home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AJET_HOME", str(home.path))
    show(STUDY, json=True)
    told = json.loads(capsys.readouterr().out)
    assert [entry["why_asked"] for entry in told["rounds"]] == ["", WHY]
    assert [entry["hypotheses"][0]["id"] for entry in told["rounds"]] == ["h1", "r2h1"]
    assert [run["round"] for run in told["run_table"]] == [1] * 10 + [2] * 10
    state = asked_on.state()
    shown = printed(render_ending(state, asked_on.folder), *render_opening(state))
    for part in (
        "round 1, h1: ", "tested in round 1  Whether group_size = 16",
        "tested in round 2  Whether group_size = 32",
    ):  # fmt: skip
        assert part in shown, part
