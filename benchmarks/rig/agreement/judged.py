"""The verdict on two backends: the project's own, on trainings that share their seeds in pairs.

A claim for each environment and each of `MARGINS`: that of a two-armed study with the test `paired`, judged by
`studies.verdicts`. The backends agree where every one of them is `equivalent`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from rig.agreement.margins import ALPHA, MARGINS
from rig.agreement.served import Backend, ServedTraining
from rig.pages.curves import interval
from studies.records.alpha import allocate_single_round
from studies.records.design import Arm, Budget, Design, Hypothesis, Metric, Price
from studies.records.procedure import InterimAnalysis, Prediction
from studies.verdicts.inputs import ArmData
from studies.verdicts.rules import judge

MEASURES: Final[Mapping[str, Callable[[ServedTraining], float]]] = {
    "end": lambda training: training.end,
    "curve": lambda training: training.curve,
}
MEANINGS: Final = {"end": "success on held-out tasks after the last step", "curve": "mean training success"}
_KEPT: Final = ("verdict", "reason", "estimate", "low", "high", "level", "p", "test", "equivalence")


def of_environment(environment: str, trainings: Sequence[ServedTraining], held_out: int) -> dict[str, Any]:
    """Return the figures of one environment: both arms, what training gained in each, and the verdicts."""
    own = [training for training in trainings if training.environment == environment]
    arms = {backend: _arm(own, backend) for backend in ("local", "verl")}
    return {
        "arms": {backend: _figures(arm) for backend, arm in arms.items()},
        "verdicts": {name: _verdict(environment, name, arms, held_out) for name in MEASURES},
    }


def _arm(trainings: Sequence[ServedTraining], backend: str) -> list[ServedTraining]:
    return sorted((each for each in trainings if each.backend == backend), key=lambda each: each.seed)


def _figures(arm: Sequence[ServedTraining]) -> dict[str, Any]:
    return {
        **{name: interval([measure(each) for each in arm]).figures() for name, measure in MEASURES.items()},
        "before": interval([each.before for each in arm]).figures(),
        "gain": interval([each.end - each.before for each in arm]).figures(),
        "success by step": [list(each.success) for each in arm],
        "largest difference of a probability": max(each.largest_difference for each in arm),
        "seconds": {name: round(fmean(getattr(each, name) for each in arm), 1) for name in ("boot_s", "train_s")},
    }


def _verdict(
    environment: str, measure: str, arms: Mapping[str, Sequence[ServedTraining]], held_out: int
) -> dict[str, Any]:
    seeds = len(arms["local"])
    data = {
        backend: ArmData(
            {f"{backend}-{each.seed}": MEASURES[measure](each) for each in arm},
            {f"{backend}-{each.seed}": each.seed for each in arm},
        )
        for backend, arm in arms.items()
    }
    found = judge(allocate_single_round(_design(environment, measure, seeds, held_out)), measure, data, look=1)
    told = found.model_dump(mode="json")
    return {"margin": MARGINS[measure], **{name: told[name] for name in _KEPT}}


def _design(environment: str, measure: str, seeds: int, held_out: int) -> Design:
    names: tuple[Backend, ...] = ("local", "verl")
    margin = MARGINS[measure]
    claim = Hypothesis(
        id=measure, statement=f"The backend verl learns {environment} better than local: {MEANINGS[measure]}.",
        variable="backend", control="local", treatment="verl", direction="increase",
        prediction=Prediction(low=-margin, high=margin, probability=0.05),
    )  # fmt: skip
    return Design(
        question=f"Does the backend verl learn {environment} as local does?", environment=environment, base_job={},
        control_arm="local", hypotheses=(claim,),
        arms=tuple(Arm(name=name, overrides={"backend": name}) for name in names),
        seeds=tuple(range(1, seeds + 1)), metric=Metric(meaning=MEANINGS[measure], episodes=held_out),
        test="paired", alpha=ALPHA, looks=(InterimAnalysis(seeds=seeds, alpha=ALPHA),), equivalence_margin=margin,
        budget=Budget(wall_clock_s=1), price=Price(runs=1, parallel=1, seconds_per_run=1, total_s=1, basis="none"),
        multiplicity="none", shared_seeds=True,
    )  # fmt: skip
