"""The report says where clients and evaluators ran, and what their containers were refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studies import StudyState
from studies.records.design_parts import EnvironmentRecord
from studies.report import build_report
from studies.report.parts.evidence import Evidence
from studies.report.sections.isolation import brought, sandboxes
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


SHOP = EnvironmentRecord(
    name="shop@0123456789ab", title="a shop", reference="./shop", code="c", data="d", requirements="",
    drawn_by="records", tasks={"train": 8, "search": 2, "hidden": 8}, hidden_apart=True,
)  # fmt: skip
DOCKER, PROCESS = {"kind": "docker", "image": IMAGE}, {"kind": "process"}


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ((DOCKER, DOCKER), "its training tasks, in containers which could not read the hidden tasks."),
        ((PROCESS,), "evaluators alone, but nothing stopped clients, processes of this machine, from looking for them"),
        ((DOCKER, PROCESS), "nothing stopped clients, where they were processes of this machine, from looking"),
        (({},), "its training tasks; hidden tasks were handed to evaluators alone."),
    ],
)
def test_what_kept_hidden_tasks_from_clients_follows_from_where_these_ran(
    study: Synthetic, places: tuple[dict[str, Any], ...], said: str
) -> None:
    study.design = study.design.model_copy(update={"environments": (SHOP,)})
    (remark,) = brought(with_attempts(study, *places), NOTHING)
    assert remark.level == "note"
    assert said in remark.text


def test_code_that_has_its_hidden_tasks_is_a_threat_wherever_it_ran(study: Synthetic) -> None:
    study.design = study.design.model_copy(update={"environments": (SHOP.model_copy(update={"hidden_apart": False}),)})
    (remark,) = brought(with_attempts(study, DOCKER), NOTHING)
    assert remark.level == "threat"
    assert "makes its hidden tasks by itself, or holds them" in remark.text


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
