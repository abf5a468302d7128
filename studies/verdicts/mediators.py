"""Mediators: whether what a treatment is said to act by moved with it, by code, at the look that decided its claim.

Fixed-sequence gatekeeping, tested as a whole: a mediator is tested only where its claim's difference was shown, in the
locked order, until one does not move as expected, and has bounds of its own over the looks (an equal part of the level
for each). So the first of claim and mediators whose null hypothesis is true is rejected with no more than the claim's
level, and what stands behind it adds nothing; all of the level at the look where the claim happens to be decided would
not do (Hung, Wang & O'Neill 2007, J Biopharm Stat 17:1201; Glimm, Maurer & Bretz 2010, Stat Med 29:219). That one did
*not* move has the level of a claim of no difference, of which each has a part (`Design.likenesses`). Runs are those of
the claim's own mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from studies.records.design import Mediator
from studies.records.verdict import Mediation, Moved
from studies.statistics.comparison import compare, contrast, is_equivalent, two_one_sided
from studies.verdicts.inputs import JudgeInput

SHARE: Final = 0.1
"""Of its range, the smallest move of a mediator that matters where none is named."""


def judge_mediators(case: JudgeInput, level: float | None) -> Iterator[Mediation]:
    """Yield what became of each mediator of a claim, tested at `level`; None: its difference was not shown."""
    stopped = "" if level is not None else "the claim's own difference was not shown"
    for mediator in case.claim.mediators:
        if level is None or stopped:
            yield Mediation(metric=mediator.metric, expected=mediator.direction, result="untested", why=stopped)
            continue
        yield (found := _judge(case, mediator, level))
        if found.result != "moved":
            stopped = f"{mediator.metric}, which comes before it, did not move as expected"


def _judge(case: JudgeInput, mediator: Mediator, level: float) -> Mediation:
    own = {name: replace(arm, values=arm.beside.get(mediator.metric, {}), worst={}) for name, arm in case.arms.items()}
    runs, counted = replace(case, data={**case.data, **own}).runs(), sum(len(arm.values) for arm in case.runs())
    told = Mediation(
        metric=mediator.metric, expected=mediator.direction, result="untested",
        n_control=len(runs[0].values), n_treatment=len(runs[-1].values),
    )  # fmt: skip
    if (lost := counted - sum(len(arm.values) for arm in runs)) > 0:
        return told.model_copy(update={"why": f"{lost} of the {counted} runs that the claim rests on do not tell it"})
    if case.design.test == "contrast":
        result = contrast([arm.numbers for arm in runs], case.weights)
    else:
        result = compare("paired" if case.design.test == "paired" else "welch", *runs)
    if result is None:
        return told.model_copy(update={"result": "open", "why": "no run differs from its arm: there is no test"})
    (low, high), metric = result.interval(1 - level), case.design.metric.beside[mediator.metric]
    margin = mediator.smallest_effect or SHARE * abs(metric.best - metric.worst)
    same, moved = two_one_sided(result, margin, case.alpha_alike), "increase" if low > 0 else "decrease"
    found: Moved = "open" if low <= 0 <= high else "moved" if moved == mediator.direction else "opposite"
    return told.model_copy(update={
        "result": "alike" if is_equivalent(same) else found, "estimate": result.estimate, "low": low, "high": high,
        "level": 1 - level, "p": result.p, "equivalence": same,
    })  # fmt: skip
