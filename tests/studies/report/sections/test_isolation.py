"""The report says where clients and evaluators ran, and what their containers were refused."""

from __future__ import annotations

from typing import Any

import pytest

from studies import StudyState
from studies.records.design_parts import EnvironmentRecord
from studies.report.parts.evidence import Evidence
from studies.report.sections.isolation import brought, sandboxes
from tests.golden import assert_golden
from tests.studies.report.pages import pages
from tests.studies.synthetic import Synthetic

pytestmark = pytest.mark.usefixtures("undrawn")
IMAGE, OTHER = ("sha256:" + digits * 32 for digits in ("ab", "cd"))
DOCKER, ANOTHER, PROCESS = {"kind": "docker", "image": IMAGE}, {"kind": "docker", "image": OTHER}, {"kind": "process"}
NOTHING = Evidence({})


def with_attempts(study: Synthetic, *sandboxes: dict[str, Any], **end: Any) -> StudyState:
    """Return a study whose first runs had an attempt each, in these sandboxes."""
    for spec, sandbox in zip(study.begin(study.design), sandboxes, strict=False):
        study.launch(spec, sandbox=sandbox)
        study.end(spec, **end)
        study.collect(spec)
    return study.state()


def texts(state: StudyState) -> list[str]:
    return [f"{remark.level}: {remark.text}" for remark in sandboxes(state, NOTHING)]


def test_the_image_of_containers_is_named_in_full(study: Synthetic) -> None:
    (text,) = texts(with_attempts(study, DOCKER, DOCKER))
    assert_golden(text)
    markdown, page = pages(study)
    assert IMAGE in markdown
    assert IMAGE in page.text
    assert "| Image |" not in markdown, "one image of all runs needs no column"


def test_each_run_names_its_image_where_they_differ_which_is_a_threat(study: Synthetic) -> None:
    state = with_attempts(study, DOCKER, ANOTHER)
    assert [text.split(":")[0] for text in texts(state)] == ["note", "note", "threat"]
    markdown, page = pages(study)
    assert "| Image |" in markdown
    assert "Image" in page.words


def test_processes_are_said_to_be_not_isolated(study: Synthetic) -> None:
    (text,) = texts(with_attempts(study, PROCESS))
    assert_golden(text)


SHOP = EnvironmentRecord(
    name="shop@0123456789ab", title="a shop", reference="./shop", code="c", data="d", requirements="",
    drawn_by="records", tasks={"train": 8, "search": 2, "hidden": 8}, hidden_apart=True,
)  # fmt: skip


@pytest.mark.parametrize(
    "places", [(DOCKER, DOCKER), (PROCESS,), (DOCKER, PROCESS), ({},)], ids=["docker", "process", "both", "unknown"]
)
def test_what_kept_hidden_tasks_from_clients_follows_from_where_these_ran(
    study: Synthetic, places: tuple[dict[str, Any], ...]
) -> None:
    study.design = study.design.model_copy(update={"environments": (SHOP,)})
    (remark,) = brought(with_attempts(study, *places), NOTHING)
    assert remark.level == "note"
    assert_golden(remark.text)


def test_code_that_has_its_hidden_tasks_is_a_threat_wherever_it_ran(study: Synthetic) -> None:
    study.design = study.design.model_copy(update={"environments": (SHOP.model_copy(update={"hidden_apart": False}),)})
    (remark,) = brought(with_attempts(study, DOCKER), NOTHING)
    assert remark.level == "threat"
    assert_golden(remark.text)


def test_what_containers_were_refused_is_counted_over_all_attempts(study: Synthetic) -> None:
    state = with_attempts(study, DOCKER, DOCKER, refused={"client: a task it was not given": 2})
    assert_golden(texts(state)[-1])


def test_a_log_that_does_not_say_makes_no_claim(study: Synthetic) -> None:
    assert texts(study.whole()) == []
    assert "| Image |" not in pages(study)[0]
