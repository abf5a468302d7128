"""What is measured and recorded of environments is found again; records of versions without them open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from research.environments.catalog import MeasuredEnvironment, all_measured, conditions_of, differences, keep, model_key
from research.environments.reference import client_files, records_of, requirements_of
from research.installation.home import Home
from research.runs.files import AttemptSpec
from studies.records.base import digest
from studies.records.design import Design
from studies.records.procedure import EnvironmentRecord
from swarm.job import Job, PathModel, TinyModel
from tests.research import designs
from tests.research.factories import make_home, make_order


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path)


def measured(environment: str = "shop@1", **facts: Any) -> MeasuredEnvironment:
    return MeasuredEnvironment(environment=environment, measured_at="2026-01-01", **facts)


def test_a_measurement_is_found_by_its_environment_and_model(home: Home) -> None:
    alone, tiny = measured(calls_per_episode=2.5), measured(model=model_key(TinyModel()), base_success=0.25)
    for each in (tiny, alone):
        keep(home, each)
    assert all_measured(home, "shop@1") == (alone, tiny)
    assert all_measured(home, "shop@2") == ()


def test_a_measurement_takes_the_place_of_one_under_the_same_conditions_alone(home: Home) -> None:
    def known(success: float, **fields: Any) -> MeasuredEnvironment:
        job = Job.model_validate(fields)
        return measured(model=model_key(job.model), base_success=success, job=conditions_of(job))

    for each in (known(0.1), known(0.2, max_tokens=64), known(0.3), known(0.4, max_tokens=64, steps=3)):
        keep(home, each)
    assert {each.base_success for each in all_measured(home, "shop@1")} == {0.3, 0.4}


def test_a_file_that_lacks_a_condition_is_read_and_holds_for_no_job(home: Home) -> None:
    lacking = measured(model=model_key(TinyModel()), base_success=0.1, job={"max_tokens": Job().max_tokens})
    keep(home, lacking)
    assert all_measured(home, "shop@1") == (lacking,)
    assert "max_context None, not 2048" in differences(lacking, Job())


def test_a_later_release_may_say_more_and_a_broken_file_says_nothing(home: Home) -> None:
    path = keep(home, measured())
    path.write_text(path.read_text().replace("{", '{"watts": 3,', 1))
    assert len(all_measured(home, "shop@1")) == 1
    path.write_text("{")
    assert all_measured(home, "shop@1") == ()


def test_a_models_folder_is_known_by_what_it_computes_with_wherever_it_lies(tmp_path: Path) -> None:
    for name, weights in (("one", b"1"), ("same", b"1"), ("other", b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(weights)
    (tmp_path / "same" / "README.md").write_text("words")
    one, same, other = (model_key(PathModel(path=str(tmp_path / name))) for name in ("one", "same", "other"))
    assert one == same != other
    assert model_key(TinyModel()) != model_key(TinyModel(seed=1))


SHOP = EnvironmentRecord(
    name="shop@0123456789ab", title="a shop", reference="./shop", code="c", data="d", requirements="",
    drawn_by="seeds", tasks={"train": 8, "search": 2, "hidden": 8}, hidden_apart=True,
)  # fmt: skip


def test_a_design_on_built_in_environments_is_locked_as_it_was_before_there_were_others() -> None:
    older = designs.design(16).model_dump(mode="json")
    assert "environments" not in older
    assert Design.model_validate(older) == designs.design(16)


def test_what_an_environment_consists_of_is_part_of_the_lock() -> None:
    design = designs.design(16)
    locked = design.model_copy(update={"environments": (SHOP,)})
    other = design.model_copy(update={"environments": (SHOP.model_copy(update={"data": "e"}),)})
    found = {digest(each.model_dump(mode="json")) for each in (design, locked, other)}
    assert len(found) == 3
    assert Design.model_validate(locked.model_dump(mode="json")) == locked


def test_an_attempt_of_a_version_without_them_opens() -> None:
    written = make_order().model_dump(mode="json")
    for name in ("environments", "packages"):
        del written[name]
    opened = AttemptSpec.model_validate(written)
    assert (opened.environments, opened.packages) == ("", ())


def test_built_in_ones_are_recorded_nowhere_and_need_nothing() -> None:
    assert records_of(["guess", "arith"]) == ()
    assert requirements_of(["guess"]) == ""
    assert client_files("guess", "in") == {}
