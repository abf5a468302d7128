"""Codes with which an attempt ends: every one is announced in the lock, and has a way on with a reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from research.runs.resume import WAYS, decide_resume
from research.runs.workers import FAILURES
from research.scheduler.steps import BUDGET_CODE
from studies.log.study import AttemptState, RunState
from studies.records.runs import BLAMELESS_CODES, EVIDENCE_CODES, INVALID_CODES, WITHIN_REACH_OF_CODE, WORST_CODES
from tests.research.factories import make_order, with_run

RESEARCH = Path(__file__).parents[3] / "research"
RAISED = re.compile(r"""(?:AttemptFailed|CollectError)\(\s*f?"([a-z_{}.]+)"\s*,""")
RETURNED = re.compile(r"""(?:return|,) "(?:failed|lost|timeout)", "([a-z_]+)",""")
NAMED = re.compile(r"""\bcode="([a-z_]+)",""")


def test_no_code_is_raised_that_the_lock_does_not_name() -> None:
    used = {BUDGET_CODE}
    for path in [*(RESEARCH / "runs").glob("*.py"), RESEARCH.parent / "studies/checks/evidence.py"]:
        source = path.read_text()
        for pattern in (RAISED, RETURNED, NAMED):
            used |= set(pattern.findall(source))
    used |= {f"{who}_{failure}" for who in ("client", "evaluator") for failure in FAILURES.values()}
    used -= {"{who}_{worker.failure}", "ok", "stopped", *BLAMELESS_CODES}
    assert {"server_died", "client_died", "foreign_results", "lost", "attempt_died"} <= used
    assert used <= set(INVALID_CODES)


def test_what_a_client_can_do_to_its_attempt_is_known_to_be_within_its_reach() -> None:
    assert set(INVALID_CODES) >= WITHIN_REACH_OF_CODE
    by_clients = {code for code in INVALID_CODES if code.startswith(("client_", "server_"))}
    assert by_clients - WITHIN_REACH_OF_CODE == {"client_killed"}, "nothing inside ends a container from outside"


def ended(code: str, resumes: int | None = None, **job: Any) -> RunState:
    order = make_order()
    spec = with_run(order, job={**order.spec.job, **job}).spec
    first, second = (
        AttemptState(1, "a1", "", "lost", "lost"),
        AttemptState(2, "a2", "", "failed", code, resumes=resumes),
    )
    return RunState(spec.run_id, spec, (first, second))


def test_every_end_that_can_be_has_a_way_on_and_a_reason() -> None:
    assert WAYS.keys() == {*INVALID_CODES, *BLAMELESS_CODES, "stopped"}
    assert all(WAYS[code][1] and decide_resume(ended(code)).why for code in WAYS)


BESIDE = ("lost", "stopped", "client_killed", "evaluator_died", "disk_full", "engine_gone")
PERHAPS = ("server_died", "server_silent", "timeout", "attempt_died", "steps_missing")
IN_DOUBT = ("foreign_training", "server_refused", "server_failed", *WORST_CODES, *EVIDENCE_CODES, "never heard of")


@pytest.mark.parametrize("code", [*BESIDE, *PERHAPS, *IN_DOUBT])
def test_what_lay_beside_the_server_is_gone_on_from_and_what_its_record_may_have_caused_once(code: str) -> None:
    first, again = decide_resume(ended(code)), decide_resume(ended(code, resumes=1))
    assert (first.resumes, again.resumes) == (code not in IN_DOUBT, code in BESIDE)
    assert ("attempt 2" in again.why) == (code in PERHAPS)


def test_a_training_that_is_to_stand_still_is_seen_from_its_first_step() -> None:
    assert not decide_resume(ended("lost", learning_rate=0)).resumes
