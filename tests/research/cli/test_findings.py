"""`ajet findings` and `ajet study recipe`: what a person and a script see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from research.installation.base_job import read_job
from research.installation.home import Home
from tests.research.cli.conftest import Ajet
from tests.research.factories import make_study
from tests.research.in_rounds import InRounds
from tests.studies.synthetic import STUDY


@pytest.fixture
def asked_on(home: Path) -> Iterator[InRounds]:
    study = InRounds.of(Home.locate().prepare())
    with closing(study.log):
        study.two_rounds()
        yield study


def test_an_empty_home_is_told_in_one_line(ajet: Ajet) -> None:
    ended = ajet("findings")
    assert (ended.code, ended.out.count("\n")) == (0, 1)
    assert json.loads(ajet("findings", "--json").out) == {"findings": [], "contradictions": [], "left_out": {}}


def test_findings_of_all_rounds_are_listed_whole_as_json_and_screened_by_words(ajet: Ajet, asked_on: InRounds) -> None:
    (found,) = ajet("findings", "r2h1", "--json").data["findings"]
    assert (found["study"], found["round"], found["verdict"]) == (STUDY, 2, "supported")
    assert found["low"] < found["estimate"] < found["high"]
    assert found["conditions"]["environment"] == "guess"
    out = ajet("findings").out
    for part in (f"{STUDY}/1/h1", f"{STUDY}/2/r2h1", "Whether group_size = 32 raises"):
        assert part in out
    out = ajet("findings", "group size", "32").out
    assert (f"{STUDY}/2/r2h1" in out, f"{STUDY}/1/h1" in out) == (True, False)
    ended = ajet("findings", "temperature", "arith")
    assert (ended.code, ended.out.startswith("none of 2 findings")) == (0, True)


def test_a_contradiction_is_shown_below_with_what_differs(ajet: Ajet, asked_on: InRounds) -> None:
    make_study(study="other", log=asked_on.log, means={"group_size=4": 0.7, "group_size=16": 0.5}).whole()
    out = ajet("findings").out
    assert f"contradiction  {STUDY}/1/h1 against other/1/h1; " in out
    (entry,) = json.loads(ajet("findings", "--json").out)["contradictions"]
    assert entry == {"one": [f"{STUDY}/1/h1"], "other": ["other/1/h1"], "differ": []}


def test_a_recipe_is_a_job_file_and_its_evidence_stands_beside_it(
    ajet: Ajet, asked_on: InRounds, tmp_path: Path
) -> None:
    ended = ajet("study", "recipe", STUDY[:4])
    (tmp_path / "job.json").write_text(ended.out)
    job = read_job(tmp_path / "job.json")
    assert (job.group_size, job.environment, job.tracking) == (32, "guess", None)
    lock = str(asked_on.state().design_hash)
    for part in (
        "group_size = 32", "group_size = 16", f"{STUDY}, round 2, r2h1 supported +0.151 [", f"lock {lock[:16]}",
    ):  # fmt: skip
        assert part in ended.line
    ended = ajet("study", "recipe", "--json")
    told = json.loads(ended.out)
    assert (ended.err, told["study"], told["job"]["group_size"]) == ("", STUDY, 32)
    (evidence,) = told["evidence"]
    assert (evidence["round"], evidence["verdict"], evidence["lock"]) == (2, "supported", asked_on.state().design_hash)
    assert evidence["better_than"] == {"group_size": 16}


def test_a_recipe_of_no_study_or_of_one_whose_log_cannot_be_read_is_one_line(ajet: Ajet, asked_on: InRounds) -> None:
    with asked_on.log.transaction("write") as connection:
        connection.exec_driver_sql("UPDATE events SET hash = 'x' WHERE seq > 5")
    ajet("study", "recipe", "nothing").refused("'nothing'")
    ended = ajet("study", "recipe")
    assert (ended.refused() != "", ended.out) == (True, "")
    assert f"left out  {STUDY}: " in ajet("findings").out
