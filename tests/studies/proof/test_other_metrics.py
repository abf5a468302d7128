"""A study that is judged by its course is exported, holds elsewhere, and one changed play of it is named."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from studies import EventType
from studies.proof import Proof, export, exported, verify
from studies.report import build_report
from tests.studies.measured import MeasuredStudy, measured_design, metric
from tests.studies.proof.forging import payload_of, rehashed, with_payload

KINDS = (("episodes", 0.7), ("seconds", 0.7), ("area", 0.7), ("area", None))


def sent(folder: Path, kind: str, threshold: float | None) -> Path:
    """Return the export of a study that is judged by a metric."""
    made = MeasuredStudy(folder / "home")
    asked = metric(kind, threshold)
    made.whole(measured_design(asked, scope_reached=asked.cut_at is not None))
    made.append(EventType.REPORT_BUILT, **build_report(made.state(), made.folder).payload(made.folder))
    export(made.study, made.log.stored(made.study), made.folder, folder / "sent")
    return folder / "sent"


def held(folder: Path) -> Proof:
    study, rows, broken = exported(folder)
    return verify(study, rows, folder, known=broken)


def turned(folder: Path) -> Path:
    """Turn the first play of the second evaluation during a training around, and return the file."""
    path = sorted((folder / "runs").rglob("*evaluation*"))[0]
    value = json.loads(path.read_text())
    play = value["during"][1]["episodes"][0]
    play["success"] = not play["success"]
    path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize(("kind", "threshold"), KINDS)
def test_an_export_holds_and_one_play_that_was_turned_is_named_by_its_file(
    tmp_path: Path, kind: str, threshold: float | None
) -> None:
    folder = sent(tmp_path, kind, threshold)
    assert held(folder).drifts == ()
    path = turned(folder)
    places = [drift.place for drift in held(folder).drifts]
    assert path.relative_to(folder).as_posix() in places


def test_a_turned_play_whose_hash_was_forged_too_is_found_by_the_number_that_follows(tmp_path: Path) -> None:
    folder = sent(tmp_path, "area", None)
    before = json.loads(sorted((folder / "runs").rglob("*evaluation*"))[0].read_text())
    path = turned(folder)
    name, sha256 = path.relative_to(folder).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()
    study, rows, _ = exported(folder)
    forged = rehashed([with_payload(row, _forged(payload_of(row), before["run_id"], name, sha256)) for row in rows])
    said = [str(drift) for drift in verify(study, forged, folder).drifts]
    assert any(before["run_id"] in line and "hidden/area" in line for line in said), said


def _forged(payload: Any, run_id: str, name: str, sha256: str) -> Any:
    """Return an event's payload with the new hash of an evaluation wherever the old one stood."""
    if payload.get("run_id") != run_id:
        return payload
    if payload.get("evaluation", {}).get("path") == name:
        return {**payload, "evaluation": {**payload["evaluation"], "sha256": sha256}}
    return {**payload, "sha256": sha256} if "key" in payload else payload
