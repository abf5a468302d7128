"""The report says where clients and evaluators ran, and what their containers were refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studies import StudyState
from studies.report import build_report
from studies.report.parts.evidence import Evidence
from studies.report.sections.isolation import sandboxes
from tests.studies.synthetic import Synthetic

IMAGE = "sha256:" + "ab" * 32
OTHER = "sha256:" + "cd" * 32
NOTHING = Evidence({})


@pytest.fixture
def study(tmp_path: Path) -> Synthetic:
    return Synthetic(tmp_path)


def with_attempts(study: Synthetic, *sandboxes: dict[str, Any], **end: Any) -> StudyState:
    """Return a study whose first runs had an attempt each, in these sandboxes."""
    study.create()
    study.lock()
    specs = study.plan()
    for spec, sandbox in zip(specs, sandboxes, strict=False):
        study.launch(spec, sandbox=sandbox)
        study.end(spec, **end)
        study.collect(spec)
    return study.state()


def texts(state: StudyState) -> list[str]:
    return [f"{remark.level}: {remark.text}" for remark in sandboxes(state, NOTHING)]


def test_the_image_of_containers_is_named_in_full(study: Synthetic) -> None:
    state = with_attempts(study, {"kind": "docker", "image": IMAGE}, {"kind": "docker", "image": IMAGE})
    (text,) = texts(state)
    assert text.startswith(f"note: Client and evaluators of 2 attempts ran in containers of image {IMAGE}")
    report = build_report(state, study.folder)
    for page in (report.markdown.read_text(), report.html.read_text()):
        assert IMAGE in page
        assert "| Image |" not in page, "one image of all runs needs no column"
        assert ">Image<" not in page


def test_each_run_names_its_image_where_they_differ(study: Synthetic) -> None:
    state = with_attempts(study, {"kind": "docker", "image": IMAGE}, {"kind": "docker", "image": OTHER})
    report = build_report(state, study.folder)
    assert "| Image |" in report.markdown.read_text()
    assert ">Image<" in report.html.read_text()


def test_processes_are_said_to_be_not_isolated(study: Synthetic) -> None:
    (text,) = texts(with_attempts(study, {"kind": "process"}))
    assert "1 attempt ran as processes of this machine, which isolates nothing" in text


def test_a_change_of_sandbox_within_a_study_is_a_threat(study: Synthetic) -> None:
    state = with_attempts(study, {"kind": "docker", "image": IMAGE}, {"kind": "docker", "image": OTHER})
    assert [text.split(":")[0] for text in texts(state)] == ["note", "note", "threat"]


def test_what_containers_were_refused_is_counted_over_all_attempts(study: Synthetic) -> None:
    sandbox = {"kind": "docker", "image": IMAGE}
    state = with_attempts(study, sandbox, sandbox, refused={"client: a task it was not given": 2})
    assert "4 requests of containers were refused" in texts(state)[-1]
    assert "client: a task it was not given (4)" in texts(state)[-1]


def test_a_log_that_does_not_say_makes_no_claim(study: Synthetic) -> None:
    state = study.whole()
    assert texts(state) == []
    assert "| Image |" not in build_report(state, study.folder).markdown.read_text()
