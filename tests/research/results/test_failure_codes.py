"""Every code with which a run can end INVALID is announced in the lock."""

from __future__ import annotations

import re
from pathlib import Path

from research.attempts.containers import FAILURES
from research.results.failure_codes import BLAMELESS_CODES, INVALID_CODES, WITHIN_REACH_OF_CODE
from research.scheduling.steps import BUDGET_CODE

RESEARCH = Path(__file__).parents[3] / "research"
RAISED = re.compile(r"""(?:AttemptFailed|CollectError|TrackingUnreadable)\(\s*f?"([a-z_{}.]+)"\s*,""")
RETURNED = re.compile(r"""(?:return|,) "(?:failed|lost|timeout)", "([a-z_]+)",""")
NAMED = re.compile(r"""\bcode="([a-z_]+)",""")


def test_no_code_is_raised_that_the_lock_does_not_name() -> None:
    used = {BUDGET_CODE}
    for path in [*(RESEARCH / "attempts").glob("*.py"), *(RESEARCH / "results").glob("*.py")]:
        source = path.read_text()
        for pattern in (RAISED, RETURNED, NAMED):
            used |= set(pattern.findall(source))
    used = {code for found in used for code in expanded(found)} - {"ok", "stopped", *BLAMELESS_CODES}
    assert {"server_died", "client_died", "foreign_results", "lost", "attempt_died"} <= used
    assert used <= set(INVALID_CODES)


def test_what_is_no_fault_of_a_run_is_no_end_of_one() -> None:
    assert not set(BLAMELESS_CODES) & set(INVALID_CODES)


def expanded(code: str) -> set[str]:
    """Return the codes that a worker's failure makes, or the code itself."""
    if code != "{who}_{worker.failure}":
        return {code}
    return {f"{who}_{failure}" for who in ("client", "evaluator") for failure in set(FAILURES.values())}


def test_what_a_client_can_do_to_its_attempt_is_known_to_be_within_its_reach() -> None:
    assert set(INVALID_CODES) >= WITHIN_REACH_OF_CODE
    by_clients = {code for code in INVALID_CODES if code.startswith(("client_", "server_"))}
    assert by_clients - WITHIN_REACH_OF_CODE == {"client_killed"}, "nothing inside ends a container from outside"
