"""Mediators: tested behind their claim, in order, at its level, on its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from studies.records.design import Design, Mediator, Metric
from studies.records.procedure import CollapseRule, InterimAnalysis
from studies.statistics.power import spend_alpha
from studies.verdicts.inputs import ArmData, JudgeInput
from studies.verdicts.rules import judge
from tests.studies.measured import metric
from tests.studies.synthetic import design, hypothesis, runs_of, staked, studies

NAMES = ("logged:actor/entropy:last:0..3", "logged:actor/grad_norm:last:0..9", "logged:critic/success/mean:last")
LOW, HIGH = [0.50, 0.52, 0.51, 0.49, 0.53], [0.71, 0.74, 0.70, 0.76, 0.73]
STILL = [1.0, 1.02, 0.98, 1.01, 0.99]


def locked(*names: str, treatments: Sequence[int] = (8,), **changes: Any) -> Design:
    beside = {name: metric("logged", of=name.partition(":")[2]) for name in names}
    mediators = tuple(Mediator(metric=name, direction="increase") for name in names)
    claims = tuple(hypothesis(f"h{n}", value, mediators=mediators) for n, value in enumerate(treatments, start=1))
    own = Metric(meaning="m", episodes=64, beside=beside)
    return design(claims, metric=own, equivalence_margin=0.05, **{"test": "welch", **changes})


def arm(name: str, values: Sequence[float], *beside: Sequence[float], **more: Any) -> ArmData:
    runs = runs_of(list(values), name, **more)
    told = {key: dict(zip(runs.values, own, strict=False)) for key, own in zip(NAMES, beside, strict=False)}
    return replace(runs, beside=told)


def results(chosen: Design, control: ArmData, treatment: ArmData) -> list[str]:
    arms = {"group_size=4": control, "group_size=8": treatment}
    return [found.result for found in judge(JudgeInput(staked(chosen), "h1", arms, look=1)).mediators]


UP = [value + 1 for value in STILL]
DOWN = [value - 1 for value in STILL]


@pytest.mark.parametrize(
    ("control", "treatment", "found"),
    [
        ((LOW, STILL, STILL, LOW), (HIGH, UP, UP, HIGH), ["moved", "moved", "moved"]),
        ((LOW, STILL, STILL, LOW), (HIGH, UP, DOWN, HIGH), ["moved", "opposite", "untested"]),
        ((LOW, STILL, STILL, LOW), (HIGH, STILL, UP, HIGH), ["alike", "untested", "untested"]),
        ((LOW, STILL, [0, 9, 4, 1, 6], LOW), (HIGH, UP, [1, 8, 5, 0, 7], HIGH), ["moved", "open", "untested"]),
        ((LOW, [1.0] * 5, STILL, LOW), (HIGH, [1.0] * 5, UP, HIGH), ["open", "untested", "untested"]),
        ((LOW, STILL, STILL, LOW), (LOW, UP, UP, HIGH), ["untested", "untested", "untested"]),
        ((HIGH, STILL, STILL, LOW), (LOW, UP, UP, HIGH), ["moved", "moved", "moved"]),
        ((LOW, STILL[:4], STILL, LOW), (HIGH, UP, UP, HIGH), ["untested", "untested", "untested"]),
    ],
)  # fmt: skip
def test_mediators_are_tested_in_order_behind_a_difference_up_to_the_first_that_did_not_move_as_expected(
    control: Any, treatment: Any, found: list[str]
) -> None:
    assert results(locked(*NAMES), arm("c", *control), arm("t", *treatment)) == found


def test_a_mediator_is_of_the_runs_of_the_mean_and_its_values_are_what_the_verdict_follows_from() -> None:
    chosen = locked(NAMES[0], collapse=CollapseRule(), shared_seeds=False)
    fell = {"collapsed": {"t-5": "it fell"}}
    arms = {
        "group_size=4": arm("c", LOW, STILL), "group_size=8": arm("t", [*HIGH, 0.1], [*UP, 99.0], **fell),
    }  # fmt: skip
    case = JudgeInput(staked(chosen), "h1", arms, look=1)
    (found,) = judge(case).mediators
    assert (found.result, found.n_treatment, round(found.estimate or 0, 9)) == ("moved", 5, 1.0)
    other = replace(case, data={**arms, "group_size=4": arm("c", LOW, DOWN)})
    assert judge(other).inputs_sha256 != judge(case).inputs_sha256


def test_each_mediator_has_a_part_of_the_level_of_equivalences_and_is_measured() -> None:
    chosen = locked(NAMES[0])
    assert chosen.likenesses == 2
    with pytest.raises(ValueError, match="measured"):
        locked(*NAMES).model_copy(update={"metric": Metric(meaning="m", episodes=64)}).model_validate(
            locked(*NAMES).model_dump() | {"metric": Metric(meaning="m", episodes=64).model_dump()}
        )


FALSE = {"all null": (0.0, 0.0, 0.0), "an effect that nothing mediates": (9.0, 0.0, 9.0),
         "the first moves": (9.0, 9.0, 0.0), "power of a half": (1.3, 0.0, 0.0)}  # fmt: skip


@studies(quick=24, full=1_500)
@pytest.mark.parametrize("treatments", [(8,), (8, 16)])
@pytest.mark.parametrize("world", FALSE)
def test_no_more_studies_make_a_false_claim_for_the_mediators_that_stand_behind_it(
    world: str, treatments: tuple[int, ...], studies: int
) -> None:
    """Two looks at the bounds of the claim; a study errs where the claim or a mediator moves that does not."""
    stops = spend_alpha((4, 8), 0.05)
    looks = tuple(InterimAnalysis(seeds=look.seeds, alpha=look.alpha, equivalence=look.alpha) for look in stops)
    rule = "none" if len(treatments) == 1 else "dunnett_bonferroni"
    chosen = locked(NAMES[0], NAMES[1], treatments=treatments, seeds=8, looks=looks, multiplicity=rule)
    studies //= len(treatments)
    effects, random, wrong = FALSE[world], Random(f"{world}{treatments}"), 0
    for _ in range(studies):
        drawn = {
            name.name: [[random.gauss(shift if n else 0.0, 1.0) for _ in range(8)] for shift in effects]
            for n, name in enumerate(chosen.arms)
        }
        wrong += _errs(chosen, drawn, effects)
    assert wrong <= 0.05 * studies + 3 * (0.05 * 0.95 * studies) ** 0.5


def _errs(chosen: Design, drawn: dict[str, list[list[float]]], effects: tuple[float, ...]) -> bool:
    for claim in chosen.hypotheses:
        for look, stop in enumerate(chosen.looks, start=1):
            arms = {name: arm(name, *(own[: stop.seeds] for own in values)) for name, values in drawn.items()}
            verdict = judge(JudgeInput(staked(chosen), claim.id, arms, look=look))
            if verdict.verdict in ("supported", "refuted"):
                moved = [True, *(found.result in ("moved", "opposite") for found in verdict.mediators)]
                if any(shown and not effect for shown, effect in zip(moved, effects, strict=False)):
                    return True
                break
    return False
