"""A mutation test of honesty: whatever stored number, hash, lock, file or sentence is changed, `verify` names it.

What it cannot see is stated here too: a log whose end was hashed anew is told from the true one by a head hash alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from studies import EventType
from studies.proof import Proof, read_export, verify
from studies.proof.verify import _same_numbers
from tests.studies.proof import forging
from tests.studies.proof.conftest import Kept

pytestmark = pytest.mark.slow

Forge = Callable[[], Any]
few = settings(
    max_examples=12, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
FOLLOWS = {
    "design.locked": ("design", "hash"),
    "hypothesis.proposed": (),
    "run.planned": ("run_id", "spec"),
    "measurement.recorded": ("value", "n", "key", "run_id", "sha256"),
    "verdict.computed": (
        "verdict", "estimate", "low", "high", "level", "p", "df", "sd_pooled", "n_control", "n_treatment",
        "mean_control", "mean_treatment", "sd_control", "sd_treatment", "inputs_sha256", "equivalence", "look",
        "final", "exploratory", "reason", "test", "brier", "within_prediction", "hypothesis", "phase",
    ),
    "run.collected": ("run_id", "attempt", "snapshot", "evaluation"),
}  # fmt: skip
"""What of events follows from something else that is stored, by type of event."""
CONDITIONS = ("steps", "episodes", "tokens", "wall_s", "initial_success", "evaluation_tasks", "evaluation_episodes",
              "checkpoint", "judge_errors")  # fmt: skip


def places(proof: Proof) -> str:
    return "\n".join(str(drift) for drift in proof.drifts)


def leaf_of(kept: Kept, data: st.DataObject, rows: list[int]) -> tuple[int, tuple[str | int, ...], Any]:
    number = data.draw(st.sampled_from(rows), "event")
    at, leaf = data.draw(st.sampled_from(list(forging.leaves(forging.payload_of(kept.rows[number])))), "leaf")
    return number, at, leaf


def test_the_study_itself_holds_in_everything(kept: Kept) -> None:
    proof = kept.verified(head=kept.rows[-1]["hash"])
    assert places(proof) == ""
    assert proof.held == {
        "event": 49, "head": 1, "lock": 1, "file": 12, "measurement": 12, "verdict": 1, "page": 2, "figure": 4,
        "rebuilt file": 6,
    }  # fmt: skip


def with_changed(kept: Kept, number: int, at: tuple[str | int, ...], leaf: Any) -> list[dict[str, Any]]:
    row = kept.rows[number]
    changed_row = forging.with_payload(row, forging.with_leaf(forging.payload_of(row), at, forging.changed(leaf)))
    return [*kept.rows[:number], changed_row, *kept.rows[number + 1 :]]


@few
@given(data=st.data())
def test_a_change_of_any_stored_value_of_any_event_is_named(kept: Kept, data: st.DataObject) -> None:
    number, at, leaf = leaf_of(kept, data, list(range(len(kept.rows))))
    rows = with_changed(kept, number, at, leaf)
    assert f"event {number + 1} (" in places(kept.verified(rows))


@few
@given(data=st.data())
def test_a_change_of_any_field_of_any_event_is_named(kept: Kept, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(kept.rows) - 1))
    field = data.draw(st.sampled_from(["study", "seq", "ts", "actor", "type", "prev_hash", "hash"]))
    rows = list(kept.rows)
    rows[number] = {**rows[number], field: forging.changed(rows[number][field])}
    assert not kept.verified(rows).holds


@few
@given(data=st.data())
def test_any_other_byte_in_any_file_is_named_by_the_files_name(kept: Kept, forge: Forge, data: st.DataObject) -> None:
    names = sorted(path.relative_to(kept.folder).as_posix() for path in kept.folder.rglob("*") if path.is_file())
    name = data.draw(st.sampled_from([name for name in names if name != "lock"]))
    with forge() as folder:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(forging.with_other_byte(content, data.draw(st.integers(0, len(content) - 1))))
        assert name in places(kept.verified(folder=folder))


@pytest.mark.parametrize("name", ["design.lock", "report.md", "report.html", "figures/predictions.svg", "runs"])
def test_a_file_that_is_gone_is_named(kept: Kept, forge: Forge, name: str) -> None:
    with forge() as folder:
        path = next((folder / name).rglob("*.json")) if name == "runs" else folder / name
        path.unlink()
        assert path.relative_to(folder).as_posix() in places(kept.verified(folder=folder))


@few
@given(data=st.data())
def test_a_changed_value_in_a_chain_hashed_anew_is_named(kept: Kept, data: st.DataObject) -> None:
    """The report names the head of what it reports on, so it vouches for every event before it."""
    number, at, leaf = leaf_of(kept, data, list(range(len(kept.rows) - 2)))
    assert not kept.verified(forging.rehashed(with_changed(kept, number, at, leaf))).holds


def following(kept: Kept) -> list[tuple[int, tuple[str | int, ...], Any]]:
    return [
        (number, at, leaf)
        for number, row in enumerate(kept.rows)
        for at, leaf in forging.leaves(forging.payload_of(row))
        if at[0] in FOLLOWS.get(row["type"], ())
        or (row["type"] == "run.collected" and at[0] == "conditions" and at[1] in CONDITIONS)
    ]


@few
@given(data=st.data())
def test_what_follows_from_something_is_named_even_with_chain_and_report_brought_into_line(
    kept: Kept, forge: Forge, data: st.DataObject
) -> None:
    number, at, leaf = data.draw(st.sampled_from(following(kept)))
    with forge() as folder:
        rows = forging.rehashed_with_report(with_changed(kept, number, at, leaf), folder)
        assert not kept.verified(rows, folder).holds, (number, at)


def with_evaluation(kept: Kept, forge: Forge, change: Callable[[bytes], bytes]) -> tuple[str, str]:
    """Return a run, and what is found where its evaluation was changed, and its hash in the log."""
    with forge() as folder:
        path = min((folder / "runs").rglob("evaluation.json"))
        before = path.read_bytes()
        path.write_bytes(change(before))
        old, new = (hashlib.sha256(content).hexdigest() for content in (before, change(before)))
        rows = [{**row, "payload": row["payload"].replace(old, new)} for row in kept.rows]
        return path.parent.name, places(kept.verified(forging.rehashed_with_report(rows, folder), folder))


def test_what_was_forged_with_all_hashes_is_named_by_what_it_should_be(kept: Kept, forge: Forge) -> None:
    (number,) = (n for n, row in enumerate(kept.rows) if row["type"] == EventType.VERDICT_COMPUTED)
    rows = list(kept.rows)
    rows[number] = forging.with_payload(rows[number], forging.payload_of(rows[number]) | {"verdict": "supported"})
    with forge() as folder:
        flipped = places(kept.verified(forging.rehashed_with_report(rows, folder), folder))
    assert "verdict is 'supported'" in flipped
    assert "'equivalent' computed" in flipped
    run, outcome = with_evaluation(kept, forge, lambda old: old.replace(b'"success":false', b'"success":true', 1))
    assert f"of run {run}: " in outcome
    assert "by its evaluation" in outcome
    _, elsewhere = with_evaluation(kept, forge, lambda old: old[:-1] + b',"study":"another-one"}')
    assert "study is 'another-one'" in elsewhere
    with forge() as folder:
        page = folder / "report.md"
        page.write_text(page.read_text().replace("0.448", "0.848"), newline="\n")
        edited = places(kept.verified(forging.rehashed_with_report(kept.rows, folder), folder))
    assert "report.md: line " in edited
    assert "0.848" in edited


EXPORTS = Path(__file__).parents[2] / "recorded" / "2026-11-24"


@pytest.mark.parametrize(("name", "head"), json.loads((EXPORTS / "heads.json").read_text()).items())
def test_an_export_of_an_earlier_version_holds_up_to_its_head(name: str, head: str, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xf", EXPORTS / f"{name}.tar.xz", "--no-same-owner", "-C", tmp_path], check=True)
    study, rows, broken = read_export(tmp_path / name)
    assert verify(study, rows, tmp_path / name, head=head, known=broken).drifts == ()


def test_a_head_that_was_kept_names_a_tail_cut_off_or_a_log_written_anew_and_counts_what_came_after(kept: Kept) -> None:
    head = kept.rows[-1]["hash"]
    assert all("cut off" in places(kept.verified(kept.rows[:-cut], head=head[:16])) for cut in (1, 2, 20))
    anew = forging.rehashed([*kept.rows[:-1], {**kept.rows[-1], "ts": "2031-01-01T00:00:00.000Z"}])
    assert kept.verified(anew).holds  # all that follows was computed anew: nothing inside can show it
    assert not kept.verified(anew, head=head).holds
    earlier = kept.verified(head=kept.rows[-3]["hash"].upper())
    assert earlier.holds
    assert any("2 of 49 events" in sentence for sentence in earlier.notes)


def test_a_report_that_says_other_sources_made_it_is_not_compared_and_strange_numbers_are_told(
    kept: Kept, forge: Forge
) -> None:
    with forge() as folder:
        page = folder / "report.md"
        page.write_text(page.read_text().replace("0.448", "0.8481"), newline="\n")
        *rows, report = kept.rows
        payload = forging.payload_of(report) | {"made_by": {"ajet": "0.0.1", "sources": "0" * 16, "matplotlib": "3.0"}}
        again = forging.rehashed_with_report([*rows, forging.with_payload(report, payload)], folder)
        proof = kept.verified(again, folder)
    assert any("other sources (ajet 0.0.1)" in sentence for sentence in proof.notes)
    assert any("0.8481" in sentence for sentence in proof.notes)


@pytest.mark.parametrize("path", ["../outside.md", "/etc/hostname", "figures/../../outside.svg"])
def test_no_file_outside_the_folder_is_read(kept: Kept, path: str) -> None:
    *rows, report = kept.rows
    payload = forging.payload_of(report)
    payload["figures"][0]["path"] = path
    found = places(kept.verified(forging.rehashed([*rows, forging.with_payload(report, payload)])))
    assert f"report.built, {path}: expected" in found


def test_a_runs_file_outside_the_folder_is_named_and_read_by_nobody(kept: Kept, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    os.mkfifo(outside)
    number = next(n for n, row in enumerate(kept.rows) if row["type"] == "run.collected")
    payload, rows = forging.payload_of(kept.rows[number]), list(kept.rows)
    payload["evaluation"]["path"] = str(outside)
    rows[number] = forging.with_payload(rows[number], payload)
    proof = kept.verified(forging.rehashed(rows))
    assert f"{outside}: it lies outside" in places(proof)
    assert any("not built again" in sentence for sentence in proof.notes)


def test_a_reason_in_other_digits_is_the_same_and_one_with_other_numbers_is_not() -> None:
    written = "interval (-1.681 to +1,294 episodes)"
    assert _same_numbers(written, "interval (-2 to +1,294 episodes)")
    assert not _same_numbers(written, "interval (-3 to +1,294 episodes)")
    assert not _same_numbers(written, "interval (-2 to +294 episodes)")
