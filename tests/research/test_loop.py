"""Driving a study: until it is done, or stopped cleanly when it is interrupted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from threading import Event

import pytest

from research.errors import ModelFailed
from research.loop import drive
from studies import StudyState
from tests.studies.synthetic import Synthetic


@dataclass
class Outcome:
    state: StudyState
    done: bool


class ModelBreaks:
    """A loop whose tick is making a model when it ends; Ctrl-C comes with it or not."""

    def __init__(self, state: StudyState, interrupted: Event, *, by_user: bool) -> None:
        self.stopped: list[str] = []
        self._state = state
        self._interrupted = interrupted
        self._by_user = by_user

    def tick(self) -> Outcome:
        if self._by_user:
            self._interrupted.set()
        raise ModelFailed("its process ended with -2")

    def stop(self, reason: str) -> Outcome:
        self.stopped.append(reason)
        return Outcome(self._state, True)


@pytest.fixture
def state(tmp_path: Path) -> StudyState:
    synthetic = Synthetic(tmp_path)
    synthetic.create()
    return synthetic.state()


def test_ctrl_c_while_the_model_is_made_stops_the_study_cleanly(state: StudyState) -> None:
    interrupted = Event()
    loop = ModelBreaks(state, interrupted, by_user=True)
    assert drive(loop, [], interrupted) is state
    assert loop.stopped == ["interrupted by the user"]


def test_a_model_that_cannot_be_made_is_an_error(state: StudyState) -> None:
    interrupted = Event()
    loop = ModelBreaks(state, interrupted, by_user=False)
    with pytest.raises(ModelFailed):
        drive(loop, [], interrupted)
    assert loop.stopped == []
