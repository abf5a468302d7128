"""Why a run can end INVALID: every code, fixed before data.

An INVALID run has no result that could be analysed, so it drops out of its verdict; the lock names these codes
as the design's exclusions, and the report shows each such run with its code. A new way to fail needs a new code
here, else it would be an exclusion nobody had announced.
"""

from __future__ import annotations

INVALID_CODES: tuple[str, ...] = (
    # the attempt's processes
    "boot_failed", "server_died", "server_failed", "server_silent", "server_refused",
    "client_died", "client_stopped", "evaluator_died", "evaluator_failed",
    "attempt_died", "outcome_unreadable", "launch_failed", "lost", "timeout",
    # its containers
    "client_out_of_memory", "client_timeout", "client_killed",
    "evaluator_out_of_memory", "evaluator_timeout", "evaluator_killed", "container_refused",
    # its results
    "tracking_unreadable", "foreign_results", "foreign_training", "steps_missing",
    "evaluation_unreadable", "evaluation_incomplete",
    # the study's budget
    "budget_exhausted",
)  # fmt: skip

ENGINE_GONE = "engine_gone"
"""An attempt that lost the container engine: no fault of the run, so it costs it no try and makes it no less valid."""


WITHIN_REACH_OF_CODE = frozenset({
    "client_died", "client_stopped", "client_out_of_memory", "client_timeout", "timeout",
    "server_died", "server_failed", "server_silent", "server_refused", "foreign_training",
})  # fmt: skip
"""Ends that code in a client may bring about. A run with generated code gets no other try after one of them: else the
code could give up tries that go badly, and keep the best of several."""


class AttemptFailed(Exception):
    """An attempt cannot go on; `code` says what failed, in one word of the protocol."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
