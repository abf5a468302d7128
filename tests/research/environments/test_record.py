"""What a lock and an attempt say of brought environments. Records of versions without them open, and hash the same."""

from __future__ import annotations

from research.environments.record import client_files, records_of, requirements_of
from research.results.attempt_files import AttemptSpec
from studies.records.base import digest
from studies.records.design import Design
from studies.records.design_parts import EnvironmentRecord
from tests.research import designs
from tests.research.factories import make_order

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
