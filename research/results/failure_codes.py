"""Why a run can end INVALID: every code, fixed before data, in classes that say what becomes of the run.

Excluded codes are ends that have nothing to do with what was trained: the lock names them as the design's exclusions,
and such a run is left out and counted. Worst codes are trainings that broke down by themselves: the arm did that, so
the run counts, with the metric's worst value. A code in neither class makes a verdict invalid: there is no honest value
for the run, and leaving it out would not be neutral either. A new way to fail needs a new code here, else it would be
an end nobody had announced.
"""

from __future__ import annotations

EXCLUDED_CODES: tuple[str, ...] = (
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
    # the study's budget, and what a person gave up
    "budget_exhausted", "vetoed",
)  # fmt: skip
"""Ends that say nothing about what was trained."""

TRAINING_NAN = "training_nan"
"""Loss or gradient was no finite number: the training broke down, and there is no policy to measure."""
WORST_CODES: tuple[str, ...] = (TRAINING_NAN,)
"""Trainings that broke down by themselves. One that the watchdog stops, as its KL or gradient blew up, is not among
them: the policy it reached is measured."""

GENERATED_CODE_FAILED = "generated_code_failed"
"""A run with generated code that came to an end which such code can bring about (`WITHIN_REACH_OF_CODE`).

It is in no class, so its verdict is invalid. Left out, code could give up the runs that go badly and be judged by the
rest. Counted as worst, a server that died by itself would refute the code, a claim that something gets worse could be
had by ending it, and so could a claim of something better against a control with code; and the value would be one that
nobody measured. Whoever has looked at what happened may accept the code by an amendment.
"""

EVIDENCE_MISSING = "evidence_missing"
"""A file that was collected is not there any more."""
EVIDENCE_CHANGED = "evidence_changed"
"""A file that was collected does not have the hash it was collected with."""
EVIDENCE_CODES: tuple[str, ...] = (EVIDENCE_MISSING, EVIDENCE_CHANGED)
"""What became of evidence after it was collected; in no class, for who spoils evidence must not choose the runs."""

MODEL_CHANGED = "model_changed"
"""The folder of the run's model held something else than when the study named it. In no class, as for evidence: who
changes what is trained must not choose the runs."""

NOT_MEASURABLE = "not_measurable"
"""The files of a whole run do not hold what its metric is read off, such as a fact that some plays do not say. In no
class: which plays lack it may well be the arm's doing."""

INVALID_CODES: tuple[str, ...] = (
    *EXCLUDED_CODES, *WORST_CODES, GENERATED_CODE_FAILED, *EVIDENCE_CODES, MODEL_CHANGED, NOT_MEASURABLE,
)  # fmt: skip
"""Every code of an INVALID run."""

ENGINE_GONE = "engine_gone"
"""An attempt that lost the container engine."""
DISK_FULL = "disk_full"
"""An attempt that had no room on its disk."""
BLAMELESS_CODES: tuple[str, ...] = (ENGINE_GONE, DISK_FULL)
"""Ends of attempts that are no fault of the run: they cost it no try and make it no less valid, and the next launch
waits until there is what was missing."""

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
