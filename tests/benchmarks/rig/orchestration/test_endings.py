"""What no study may end with is said, whichever part of the books is wrong; an end that is whole says nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rig.orchestration.endings import Ending, differences

from studies import StudyState
from tests.studies.synthetic import Synthetic


@pytest.fixture
def state(tmp_path: Path) -> StudyState:
    synthetic = Synthetic(tmp_path)
    synthetic.create()
    synthetic.lock()
    return synthetic.state()


def test_each_kind_of_fault_is_said(state: StudyState) -> None:
    over = replace(state, worked_s=state.budget_s + 1)
    said = list(Ending(over, {}, ["a file changed"], ["trained twice"], ["s-1-a1"], ["prefect server"]).faults())
    for words in ("the study is", "no report", "charged", "verify: a file changed", "trained twice", "s-1-a1 holds",
                  "outlived its installation: prefect server"):  # fmt: skip
        assert any(words in each for each in said), words


def test_an_end_differs_by_its_design_and_not_from_itself(state: StudyState) -> None:
    end = Ending(state, {}, [], [], [])
    assert list(differences(end, end)) == []
    other = Ending(replace(state, design_hash="another"), {}, [], [], [])
    assert list(differences(end, other)) == ["the designs differ"]
