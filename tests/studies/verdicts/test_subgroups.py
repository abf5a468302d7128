"""An effect that turns around in every kind of task is found, and no other is taken for it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from studies.verdicts.subgroups import lint_subgroups
from tests.studies.checks.test_confounds import design


def test_an_effect_that_turns_around_in_every_group_is_found() -> None:
    control = {"c0": {"easy": (90, 100), "hard": (30, 100)}}
    treatment = {"t0": {"easy": (160, 190), "hard": (1, 10)}}
    (found,) = lint_subgroups(design(), "h1", control, treatment)
    assert (found.code, found.blocks) == ("subgroup", True)


groups = st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 20), st.integers(20, 20)), min_size=1)


@given(groups, groups)
def test_on_equal_mixes_of_tasks_no_effect_turns_around(left: Any, right: Any) -> None:
    common = left.keys() & right.keys()
    sides = [{"r": {name: arm[name] for name in common}} for arm in (left, right)]
    assert lint_subgroups(design(), "h1", *sides) == ()


def test_an_effect_in_one_group_out_of_two_is_no_paradox() -> None:
    control, treatment = {"c": {"a": (10, 20), "b": (10, 20)}}, {"t": {"a": (20, 20), "b": (9, 20)}}
    assert lint_subgroups(design(), "h1", control, treatment) == ()
