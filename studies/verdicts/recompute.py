"""Whether a recorded verdict follows from the runs: it is computed anew and compared."""

from __future__ import annotations

import math
from typing import Final

from studies.log.study_state import StudyState
from studies.records.verdict import Verdict
from studies.verdicts.judge import judge_hypothesis

_NUMBERS: Final = ("estimate", "low", "high", "p", "p_adjusted")


def verdict_follows(state: StudyState, verdict: Verdict) -> bool:
    """Return whether computing `verdict` anew from the state's runs gives the same inputs and the same numbers.

    One that is invalid for a reason from outside the runs (a lock or a file that was changed) is computed again with
    that reason: it claims nothing.
    """
    if state.design is None:
        return False
    outside = (None, verdict.reason) if verdict.verdict == "invalid" else (None,)
    return any(_same(verdict, _again(state, verdict, reason)) for reason in outside)


def _again(state: StudyState, verdict: Verdict, lock_error: str | None) -> Verdict:
    return judge_hypothesis(state, verdict.hypothesis, look=verdict.look, phase=verdict.phase, lock_error=lock_error)


def _same(a: Verdict, b: Verdict) -> bool:
    close = all(_close(getattr(a, name), getattr(b, name)) for name in _NUMBERS)
    return close and (a.verdict, a.inputs_sha256) == (b.verdict, b.inputs_sha256)


def _close(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
