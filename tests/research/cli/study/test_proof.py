"""`ajet study verify` and `export`, and what list, show, resume and report say of a study that is not what it was."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from research.installation.home import Home
from studies import EventType
from studies.log.event_log import LOCK_FILE
from studies.proof import Proof, verify
from studies.proof.export import EVENTS
from studies.proof.verify import Rows
from tests.research.cli.conftest import Ajet
from tests.studies.proof.forging import payload_of, rehashed, with_payload
from tests.studies.synthetic import STUDY, Synthetic


def store(rows: list[dict[str, object]]) -> None:
    with closing(sqlite3.connect(Home.locate().path / "ajet.db")) as database, database:
        database.execute("DELETE FROM events")
        names = ", ".join(rows[0])
        places = ", ".join("?" for _ in rows[0])
        database.executemany(f"INSERT INTO events ({names}) VALUES ({places})", [tuple(row.values()) for row in rows])


def flip_the_verdict(finished: Synthetic) -> None:
    rows = finished.log.stored(STUDY)
    for number, row in enumerate(rows):
        if row["type"] == EventType.VERDICT_COMPUTED:
            rows[number] = with_payload(row, payload_of(row) | {"verdict": "refuted"})
    store(rehashed(rows))


def forge_outcomes(finished: Synthetic) -> None:
    path = next((finished.folder / "runs").rglob("evaluation.json"))
    path.write_text(path.read_text().replace('"success":false', '"success":true', 9))


def edit_the_lock(finished: Synthetic) -> None:
    path = finished.folder / LOCK_FILE
    path.write_text(path.read_text().replace('"alpha":0.05', '"alpha":0.5'))


FORGERIES = [flip_the_verdict, forge_outcomes, edit_the_lock]


def test_a_study_verifies_and_ends_with_its_head(ajet: Ajet, finished: Synthetic) -> None:
    shown = ajet("study", "show").out
    head = finished.state().head_hash
    assert (f"head  {head}  " in shown, f"study verify {STUDY} --head {head[:16]})" in shown) == (True, True)
    assert json.loads(ajet("study", "show", "--json").out)["head"] == head
    ended = ajet("study", "verify", STUDY, "--head", head[:16])
    assert (ended.code, ended.err) == (0, "")
    for part in (
        f"study {STUDY} verifies\nhead  {head}\n",
        "20 files",
        "20 measurements",
        "1 verdict",
        "2 pages",
        "3 figures",
        "5 rebuilt",
    ):
        assert part in ended.out, part


@pytest.mark.parametrize("forge", FORGERIES)
def test_what_was_forged_is_named_with_exit_code_1_and_no_verdict_is_shown(
    ajet: Ajet, finished: Synthetic, forge: object
) -> None:
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
    said = "can be relied on until"
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


def test_a_report_that_is_built_again_is_what_the_log_says(ajet: Ajet, finished: Synthetic) -> None:
    count = finished.state().event_count
    assert ajet("study", "report", "--build").code == 0
    assert finished.state().event_count == count, "it came out as the log says it is"
    assert ajet("study", "amend", "--note", "read again").code == 0
    assert ajet("study", "report", "--build").code == 0
    assert finished.state().event_count == count + 2
    assert ajet("study", "verify").code == 0


@pytest.mark.slow
def test_an_export_verifies_anywhere_and_a_change_of_it_is_named(
    ajet: Ajet, finished: Synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out" / "kept"
    head = finished.state().head_hash
    exported = ajet("study", "export", STUDY, str(folder))
    assert (exported.code, exported.err, f"--head {head[:16]}" in exported.out) == (0, "", True)
    monkeypatch.setenv("AJET_HOME", str(tmp_path / "elsewhere"))
    shutil.rmtree(Home.locate().path, ignore_errors=True)
    assert ajet("study", "verify", str(folder), "--head", head).code == 0
    assert not Home.locate().path.exists(), "nothing is written"
    assert {path.name for path in folder.rglob("*")} >= {"README.md", EVENTS, LOCK_FILE, "report.md", "report.html"}
    for name in (EVENTS, "report.md"):
        path = folder / name
        before = path.read_bytes()
        digit = next(place for place in range(len(before) - 1, 0, -1) if before[place : place + 1].isdigit())
        path.write_bytes(before[:digit] + (b"1" if before[digit : digit + 1] != b"1" else b"2") + before[digit + 1 :])
        ended = ajet("study", "verify", str(folder))
        assert (ended.code, (name if name != EVENTS else "event ") in ended.out) == (1, True)
        path.write_bytes(before)


def test_an_export_is_whole_or_not_there(ajet: Ajet, finished: Synthetic, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    ajet("study", "export", STUDY, str(there)).refused("not there yet")
    forge_outcomes(finished)
    refused = ajet("study", "export", STUDY, str(tmp_path / "new"))
    assert (refused.code, "nothing was exported" in refused.err) == (1, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "there"]


def test_bad_input_is_one_line(
    ajet: Ajet, finished: Synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, said in {
        ("--head", "xyz"): "hexadecimal", ("--head", "abc"): "hexadecimal", (".",): "events.jsonl",
        ("nothing-of-that-name",): "one study named",
    }.items():  # fmt: skip
        ajet("study", "verify", *arguments).refused(said)


def test_a_line_of_an_exported_log_that_is_no_event_is_named(ajet: Ajet, finished: Synthetic, tmp_path: Path) -> None:
    assert ajet("study", "export", STUDY, str(tmp_path / "kept")).code == 0
    log = tmp_path / "kept" / EVENTS
    lines = log.read_text().split("\n")
    named = [lines[0].replace(f'"study":"{STUDY}"', f'"study":{odd}') for odd in ("[" * 200_000, '"\\ud800"')]
    for number, line in ((5, lines[4][:-9]), *((1, line) for line in named)):  # no JSON, and what no reader can hold
        log.write_text("\n".join([*lines[: number - 1], line, *lines[number:]]))
        ended = ajet("study", "verify", str(tmp_path / "kept"))
        assert (ended.code, f"events.jsonl, line {number}: " in ended.out) == (1, True)


def test_an_export_with_a_link_or_a_pipe_is_refused_in_one_line(
    ajet: Ajet, finished: Synthetic, tmp_path: Path
) -> None:
    assert ajet("study", "export", STUDY, str(tmp_path / "kept")).code == 0
    for name in ("README.md", LOCK_FILE, "report.md", "runs/pipe"):
        path = tmp_path / "kept" / name
        before = path.read_bytes() if path.exists() else None
        for put in (lambda place: place.symlink_to("/dev/zero"), os.mkfifo):
            path.unlink(missing_ok=True)
            put(path)
            ajet("study", "verify", str(tmp_path / "kept")).refused("plain files", str(path))
        path.unlink()
        if before is not None:
            path.write_bytes(before)
    assert ajet("study", "verify", str(tmp_path / "kept")).code == 0, "it was all that was wrong"


def test_what_is_changed_between_verifying_and_exporting_is_not_exported(
    ajet: Ajet, finished: Synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verified_then_written(name: str, rows: Rows, folder: Path) -> Proof:
        proof = verify(name, rows, folder)
        (folder / "report.md").write_text("another report")
        return proof

    monkeypatch.setattr("research.cli.reports.verify_study", verified_then_written)
    ajet("study", "export", STUDY, str(tmp_path / "kept")).refused("changed meanwhile")
    assert not (tmp_path / "kept").exists()
