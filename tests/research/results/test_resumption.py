"""Which ends of an attempt are gone on from: every code has an answer and a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from research.results.failure_codes import BLAMELESS_CODES, EVIDENCE_CODES, INVALID_CODES, WORST_CODES
from research.results.resumption import WAYS, way_on
from studies.log.study_state import AttemptState, RunState
from studies.records.design import Metric, RunSpec

SPEC = RunSpec(
    study="s1", design_hash="d" * 64, arm="a", seed=1, environment="guess", job={"learning_rate": 0.001},
    metric=Metric(meaning="share of hidden tasks solved", episodes=64),
)  # fmt: skip


def ended(code: str, resumes: int | None = None, **job: Any) -> RunState:
    """Return a run whose second attempt ended so, after it went on from the first, or not."""
    first = AttemptState(1, "a1", "", "lost", "lost")
    spec = SPEC.model_copy(update={"job": {**SPEC.job, **job}})
    return RunState(spec.run_id, spec, (first, AttemptState(2, "a2", "", "failed", code, resumes=resumes)))


@pytest.mark.parametrize("code", [*INVALID_CODES, *BLAMELESS_CODES, "stopped"])
def test_every_end_has_a_way_on_and_a_reason(code: str) -> None:
    assert WAYS[code][1]
    assert way_on(ended(code)).why


def test_no_way_is_known_of_an_end_that_cannot_be() -> None:
    assert WAYS.keys() == {*INVALID_CODES, *BLAMELESS_CODES, "stopped"}


@pytest.mark.parametrize("code", ["lost", "stopped", "client_killed", "evaluator_died", "disk_full", "engine_gone"])
def test_what_lay_beside_the_server_is_gone_on_from_however_often(code: str) -> None:
    assert way_on(ended(code)).goes_on
    assert way_on(ended(code, resumes=1)).goes_on


@pytest.mark.parametrize("code", ["server_died", "server_silent", "timeout", "attempt_died", "steps_missing"])
def test_what_the_record_may_have_caused_is_gone_on_from_once(code: str) -> None:
    assert way_on(ended(code)).goes_on
    again = way_on(ended(code, resumes=1))
    assert not again.goes_on
    assert "attempt 2 had gone on from another" in again.why


@pytest.mark.parametrize(
    "code", ["foreign_training", "server_refused", "server_failed", *WORST_CODES, *EVIDENCE_CODES, "never heard of"]
)
def test_a_record_in_doubt_is_not_gone_on_from(code: str) -> None:
    assert not way_on(ended(code)).goes_on


def test_a_training_that_is_to_stand_still_is_seen_from_its_first_step() -> None:
    assert not way_on(ended("lost", learning_rate=0)).goes_on


def test_the_lineage_of_a_run_is_what_its_last_attempt_went_on_from() -> None:
    run = ended("lost", resumes=1)
    anew, last = AttemptState(3, "a3", ""), AttemptState(4, "a4", "", resumes=3)
    assert [attempt.number for attempt in run.lineage] == [1, 2]
    assert [attempt.number for attempt in replace(run, attempts=(*run.attempts, anew, last)).lineage] == [3, 4]
    assert replace(run, attempts=()).lineage == ()
