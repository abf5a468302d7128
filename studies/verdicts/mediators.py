"""Mediators: whether what a treatment is said to act by moved with it, by code, at the look that decided its claim.

Fixed-sequence gatekeeping. A mediator is tested only where its claim's difference was shown, at that look and its
level, in the locked order, until one does not move as expected. The first of claim and mediators whose null hypothesis
is true is rejected falsely with no more than the claim's level, whatever stands behind it; that each has the claim's
own boundaries at every look is the overall hierarchical test, which keeps the level where testing the next one at the
full level of the moment would not (Hung, Wang & O'Neill 2007, J Biopharm Stat 17:1201; Glimm, Maurer & Bretz 2010, Stat
Med 29:219). That one did *not* move has the level of a claim of no difference, of which each claim and mediator has a
part of its own (`Design.likenesses`).

A mediator that moved is consistent with the mechanism and no proof of it; one that provably did not speaks against it.
The runs are those of the claim's own mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from studies.records.design import Mediator
from studies.records.verdict import Mediation, Moved
from studies.statistics.comparison import Comparison, compare, contrast, is_equivalent, two_one_sided
from studies.verdicts.inputs import ArmData, Finding, JudgeInput

SHARE: Final = 0.1
"""Of its range, the smallest move of a mediator that matters where none is named."""


def judge_mediators(case: JudgeInput, finding: Finding, level: float) -> tuple[Mediation, ...]:
    """Return what became of a claim's mediators, in their order; `level` is that of each of them."""
    return tuple(_judge_in_order(case, finding, level))


def _judge_in_order(case: JudgeInput, finding: Finding, level: float) -> Iterator[Mediation]:
    shown = finding.verdict in ("supported", "refuted")
    stopped = "" if shown else "the claim's own difference was not shown"
    for mediator in case.claim.mediators:
        if stopped:
            yield Mediation(metric=mediator.metric, expected=mediator.direction, result="untested", why=stopped)
            continue
        found = _judge(case, mediator, level)
        yield found
        if found.result != "moved":
            stopped = f"{mediator.metric}, which comes before it, did not move as expected"


def _judge(case: JudgeInput, mediator: Mediator, level: float) -> Mediation:
    arms = {name: _measured(arm, mediator.metric) for name, arm in case.arms.items()}
    counted = [len(runs.values) for runs in case.runs()]
    measured = replace(case, data={**case.data, **arms})
    runs = measured.runs()
    told = {"metric": mediator.metric, "expected": mediator.direction}
    told_counts: dict[str, Any] = {**told, "n_control": len(runs[0].values), "n_treatment": len(runs[-1].values)}
    if (lost := sum(counted) - sum(len(arm.values) for arm in runs)) > 0:
        why = f"{lost} of the {sum(counted)} runs that the claim rests on do not tell it"
        return Mediation(**told_counts, result="untested", why=why)
    result = _compare(measured)
    if result is None:
        return Mediation(**told_counts, result="open", why="no run differs from its arm, so that there is no test")
    low, high = result.interval(1 - level)
    metric = case.design.metric.beside[mediator.metric]
    margin = mediator.smallest_effect or SHARE * abs(metric.best - metric.worst)
    same = two_one_sided(result, margin, case.alpha_alike)
    side = None if low <= 0 <= high else "increase" if low > 0 else "decrease"
    name: Moved = "open"
    why = "neither a move nor that there is none that matters was shown"
    if side is not None:
        name, why = ("moved" if side == mediator.direction else "opposite"), ""
    elif is_equivalent(same):
        name, why = "alike", ""
    return Mediation(
        **told_counts, result=name, why=why, estimate=result.estimate, low=low, high=high, level=1 - level, p=result.p,
        equivalence=same,
    )  # fmt: skip


def _measured(arm: ArmData, name: str) -> ArmData:
    """Return an arm with what a mediator measured in the place of the metric; what broke down has nothing."""
    return replace(arm, values=dict(arm.beside.get(name, {})), worst={})


def _compare(case: JudgeInput) -> Comparison | None:
    """Return the comparison of the claim's arms by its own kind of test; exact tests of rates have Welch's for it."""
    runs, test = case.runs(), case.design.test
    if test == "contrast":
        return contrast([arm.numbers for arm in runs], case.weights)
    return compare("paired" if test == "paired" else "welch", *runs)
