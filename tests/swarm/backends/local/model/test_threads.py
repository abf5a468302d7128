"""Threads: as many as the model keeps busy of the cores that are its own, and a person's word before all of that."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from research.installation.threads import keep_to_one_thread, shared_by
from swarm.backends.local.model import threads as module
from swarm.backends.local.model.threads import A_THREAD, RUNS_AT_ONCE, SET_BY_HAND, choose_threads, threads

TINY, REAL = 130_000, 135_000_000


@pytest.mark.parametrize(
    ("parameters", "runs", "cores", "expected"),
    [(TINY, 1, 64, 1), (REAL, 1, 2, 2), (REAL, 2, 2, 1), (REAL, 3, 8, 2), (REAL, 9, 2, 1), (REAL, 1, 64, 27)],
)
def test_a_server_takes_its_share_of_the_cores_and_no_more_than_it_can_use(
    parameters: int, runs: int, cores: int, expected: int
) -> None:
    assert threads(parameters, {SET_BY_HAND: "1", RUNS_AT_ONCE: str(runs)}, cores) == expected


def test_without_a_word_from_anybody_the_machine_is_its_own() -> None:
    assert threads(REAL, {}, 4) == 4


@given(st.integers(0, 10**12), st.integers(1, 500))
def test_what_a_person_set_stands(parameters: int, cores: int) -> None:
    assert threads(parameters, {SET_BY_HAND: "3"}, cores) is None


@given(st.integers(0, 10**12), st.integers(1, 64), st.integers(1, 500))
def test_runs_at_once_never_take_more_than_the_machine_has_or_one_thread_each(
    parameters: int, runs: int, cores: int
) -> None:
    found = threads(parameters, {RUNS_AT_ONCE: str(runs)}, cores)
    assert found is not None
    assert found == 1 or (found * runs <= cores and found * A_THREAD <= parameters)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    monkeypatch.setattr(module, "_cores", lambda: 6)
    monkeypatch.delenv(SET_BY_HAND, raising=False)
    monkeypatch.delenv(RUNS_AT_ONCE, raising=False)
    return found


def test_a_study_s_server_is_told_with_how_many_runs_it_shares_the_machine(
    told: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in shared_by(2).items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.INFO):
        choose_threads(REAL)
    assert told == [3]
    assert "event=threads" in caplog.text
    assert "chosen by the model's size" in caplog.text
    assert "cores=6 runs_at_once=2" in caplog.text


def test_the_command_line_s_own_thread_is_not_the_server_s(told: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {})
    keep_to_one_thread()
    choose_threads(REAL)
    assert told == [6]


def test_a_number_set_by_hand_reaches_the_server_of_a_study_as_it_is(
    told: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("os.environ", {SET_BY_HAND: "5"})
    keep_to_one_thread()
    assert shared_by(3) == {}
    with caplog.at_level(logging.INFO):
        choose_threads(TINY)
    assert told == []
    assert "OMP_NUM_THREADS is set" in caplog.text
