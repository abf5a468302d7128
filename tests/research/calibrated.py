"""Studies with made-up predictions and verdicts in a real event log; nothing in them was measured."""

from __future__ import annotations

from dataclasses import dataclass

from studies import EventLog, EventType
from studies.log.event_log import LOCK_FILE
from studies.records.procedure import Prediction
from studies.records.verdict import Verdict, VerdictName
from tests.studies.synthetic import append, design, hypothesis


@dataclass(frozen=True)
class Came:
    probability: float
    verdict: VerdictName | None
    estimate: float | None = 0.1
    exploratory: bool = False


def write_study(log: EventLog, study: str, *claims: Came, planner: str = "rules", model: str | None = None) -> None:
    """Append a study whose claims predicted an effect between 0 and 0.2, with probability 0.8."""
    created = {
        "topic": "t", "planner": {"name": planner, "model": model},
        "settings": {"budget_s": 600.0, "max_runs": None, "parallel": 2, "approve": "none"},
        "command": ["ajet"], "versions": {}, "machine": {},
    }  # fmt: skip
    append(log, study, EventType.STUDY_CREATED, created, actor="user")
    hypotheses = tuple(
        hypothesis(
            f"h{number}", 4 + number,
            prediction=Prediction(low=0.0, high=0.2, level=0.8, probability=claim.probability),
        )
        for number, claim in enumerate(claims, start=1)
    )  # fmt: skip
    locked = design(hypotheses)
    for entry in hypotheses:
        append(log, study, EventType.HYPOTHESIS_PROPOSED, entry.model_dump(mode="json"))
    lock = {"design": locked.model_dump(mode="json"), "hash": locked.hash(), "file": LOCK_FILE}
    append(log, study, EventType.DESIGN_LOCKED, lock)
    for entry, claim in zip(hypotheses, claims, strict=True):
        if claim.verdict is not None:
            append(log, study, EventType.VERDICT_COMPUTED, verdict_on(entry.id, claim).model_dump(mode="json"))


def verdict_on(name: str, claim: Came) -> Verdict:
    return Verdict(
        hypothesis=name, verdict=claim.verdict, reason="made up", estimate=claim.estimate, low=None, high=None,
        level=0.95, p=None, n_control=3, n_treatment=3, mean_control=None, mean_treatment=None, sd_control=None,
        sd_treatment=None, test="welch", inputs_sha256="0" * 64, within_prediction=None, brier=None,
        exploratory=claim.exploratory,
    )  # fmt: skip
