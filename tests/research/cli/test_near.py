"""A name that is nearly right is answered with the right one, wherever names are refused."""

from __future__ import annotations

import pytest

from research.errors import DesignRefused
from research.proposals.arms import compare, field_value
from research.spelling import did_you_mean, meant_in
from swarm.job import tunables
from tests.research.cli.conftest import Ajet


@pytest.mark.parametrize("name", sorted(tunables()))
def test_a_letter_less_or_another_case_still_finds_the_field(name: str) -> None:
    assert did_you_mean(name[:-1], tunables()) == f"; did you mean {name}?"
    assert did_you_mean(name.upper(), tunables()) == f"; did you mean {name}?"


def test_what_is_near_nothing_is_answered_with_nothing() -> None:
    assert did_you_mean("weather", tunables()) == ""
    assert meant_in("the meaning of life", list(tunables())) == ""


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("research", "grop_size 4 vs 8"), "group_size"),
        (("research", "lerning rate 0.001 vs 0.003 on guess"), "learning_rate"),
        (("research", "group size 4 vs 8", "--planner", "rule"), "rules"),
        (("study", "plan", "group size 4 vs 8", "--env", "arit"), "arith"),
        (("job", "explain", "grup_size"), "group_size"),
    ],
)
def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(
    ajet: Ajet, arguments: tuple[str, ...], meant: str
) -> None:
    ended = ajet(*arguments)
    assert ended.code == 2
    assert f"did you mean {meant}?" in ended.line


def test_a_planners_field_that_is_nearly_right_is_refused_with_the_right_one() -> None:
    with pytest.raises(DesignRefused, match=r"did you mean temperature\?"):
        field_value("temprature", 1.0)
    with pytest.raises(DesignRefused, match=r"did you mean guess\?"):
        compare("gues", (), {})
