"""When a run is given up, and by which code: a pure function of its attempts and of what was collected of it.

A failure of a machine is tried again, up to the locked number of attempts. Not tried again is what another try would
turn into a choice: a training that broke down by itself, evidence that was spoiled, files that do not hold what the
metric is read off, and an end that generated code can bring about, for each of them could be wished for until a better
result comes.
"""

from __future__ import annotations

from typing import NamedTuple

from research.results.failure_codes import (
    EVIDENCE_CODES,
    GENERATED_CODE_FAILED,
    NOT_MEASURABLE,
    WITHIN_REACH_OF_CODE,
    WORST_CODES,
)
from research.scheduling.steps import FAILURES
from studies.log.study_state import RunState


class GivenUp(NamedTuple):
    """Why a run has no result that could be analysed."""

    code: str
    reason: str


def given_up(run: RunState, max_attempts: int) -> GivenUp | None:
    """Return why a run whose last attempt ended, or that was collected, is to be given up; None if it is not."""
    if run.collected is not None:
        return _ended_by_alarm(run)
    last = run.attempts[-1]
    if last.status not in FAILURES:
        return None
    if last.code in (*WORST_CODES, *EVIDENCE_CODES, NOT_MEASURABLE):
        return GivenUp(last.code, f"not tried again: {last.reason}")
    if run.spec.code is not None and last.code in WITHIN_REACH_OF_CODE:
        reason = f"not tried again, as generated code may have brought {last.code} about: {last.reason}"
        return GivenUp(GENERATED_CODE_FAILED, reason)
    failures = sum(attempt.status in FAILURES for attempt in run.attempts)
    if failures < max_attempts:
        return None
    return GivenUp(last.code, f"{failures} attempts failed, the last one: {last.reason}")


def _ended_by_alarm(run: RunState) -> GivenUp | None:
    """Return the alarm of a collected run after which its measurement means nothing; old logs have no alarms."""
    raised = (run.collected or {}).get("alarms", ())
    ending = next((alarm for alarm in raised if alarm["effect"] in ("worst", "exclude")), None)
    return None if ending is None else GivenUp(ending["code"], ending["sentence"])
