"""What a user's job fixes, and what may be named beside it."""

from __future__ import annotations

import pytest

from research.errors import DesignRefused
from research.installation.base_job import find_fixed_fields, require_agreement
from swarm.job import Job

BASE = Job(steps=80, group_size=4, weight_decay=0.1)


def test_a_field_is_fixed_where_it_is_said_be_it_as_in_every_other_job() -> None:
    assert find_fixed_fields(Job()) == {}
    assert find_fixed_fields(Job(learning_rate=Job().learning_rate)) == {"learning_rate": Job().learning_rate}
    assert find_fixed_fields(Job(seed=4)) == {}, "a study draws its seeds"
    assert find_fixed_fields(BASE) == {"steps": 80, "group_size": 4, "weight_decay": 0.1}


def test_the_value_itself_and_free_fields_may_be_named_and_no_other_value() -> None:
    require_agreement(BASE, {"steps": [80], "learning_rate": [1e-3]})
    require_agreement(BASE, {"group_size": [4, 16]})
    require_agreement(None, {"steps": [3]})
    with pytest.raises(DesignRefused, match="expected group_size = 4, which the job"):
        require_agreement(BASE, {"group_size": [8, 16]})


def test_the_default_itself_is_held_where_the_job_says_it() -> None:
    usual = Job().learning_rate
    require_agreement(Job(), {"learning_rate": [3e-3, 1e-2]})
    require_agreement(Job(learning_rate=usual), {"learning_rate": [usual, 3e-3]})
    with pytest.raises(DesignRefused, match=r"expected learning_rate = 0\.001, which the job"):
        require_agreement(Job(learning_rate=usual), {"learning_rate": [3e-3, 1e-2]})
