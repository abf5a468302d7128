from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from studies.checks.conditions import claim_of, pairs_of
from studies.checks.confounders import lint_jobs
from studies.records.alpha import allocate_single_round
from studies.records.design import Arm, Design, Hypothesis
from studies.records.procedure import CollapseRule
from studies.records.statements import sentences, statement_of
from studies.records.verdict import Verdict
from studies.report.next_question import reached_power
from studies.report.wording import finding
from studies.statistics.sequential import spend_alpha
from studies.verdicts.inputs import ArmData
from studies.verdicts.rules import judge
from studies.verdicts.wording import deciding_interval
from tests.golden import assert_golden
from tests.lazily import lazy
from tests.studies.synthetic import base_job, design, hypothesis, runs_of, studies

stats = lazy("scipy.stats")
A, B = "group_size", "learning_rate"
MEANS = (0.50, 0.52, 0.50, 0.72)


def crossed(**changes: Any) -> Hypothesis:
    return hypothesis(
        "h1", {A: 16, B: 0.003}, variable="configuration", control={A: 4, B: 0.001}, moderator=B, **changes
    )


def trend(**changes: Any) -> Hypothesis:
    return hypothesis("h1", 16, variable=A, control=4, ladder=(4, 8, 16), **changes)


def locked(claim: Hypothesis, seeds: int = 5, **changes: Any) -> Design:
    arms = tuple(
        Arm(name=f"arm-{number}", overrides=dict(value) if claim.moderator else {A: value})
        for number, value in enumerate(claim.settings)
    )
    given = {"control_arm": "arm-0", "test": "contrast", "equivalence_margin": 0.1, **changes}
    plain = design(seeds=seeds).model_dump()
    return Design.model_validate({**plain, "hypotheses": (claim,), "arms": arms, **given})


def runs(means: Sequence[float], seeds: int = 5, sd: float = 0.01, seed: int = 1, **left: int) -> dict[str, ArmData]:
    """Return the runs of each arm; `arm_1=2` lets two of that one collapse."""
    draw = random.Random(seed)
    found = {}
    for number, mean in enumerate(means):
        name = f"arm-{number}"
        gone = {f"{name}-{n}": "fell" for n in range(left.get(f"arm_{number}", 0))}
        found[name] = runs_of([draw.gauss(mean, sd) for _ in range(seeds)], name, collapsed=gone)
    return found


def judged(claim: Hypothesis, data: dict[str, ArmData], **changes: Any) -> Verdict:
    return judge(allocate_single_round(locked(claim, **changes)), claim.id, data, look=1)


def test_an_interaction_is_the_difference_of_two_differences() -> None:
    found = judged(crossed(), runs(MEANS))
    assert found.verdict == "supported"
    assert found.estimate == pytest.approx(0.20, abs=0.02)
    assert [arm.weight for arm in found.arms] == [1, -1, -1, 1]
    assert found.estimate == pytest.approx(sum(arm.weight * (arm.mean or 0) for arm in found.arms))
    assert_golden(found.reason)


def test_a_smaller_effect_refutes_and_equal_effects_are_equivalent() -> None:
    found = judged(crossed(), runs((0.5, 0.7, 0.5, 0.5)))
    assert found.verdict == "refuted"
    assert_golden(found.reason)
    alike = judged(crossed(sought="equivalence"), runs((0.5, 0.6, 0.7, 0.8)))  # each field matters, and alone
    assert alike.verdict == "equivalent"


def test_a_trend_is_the_rise_of_a_straight_line() -> None:
    found = judged(trend(), runs((0.5, 0.55, 0.6)))
    assert found.verdict == "supported"
    assert found.estimate == pytest.approx(0.1, abs=0.02)
    assert_golden(found.reason)


def test_each_of_the_arms_needs_three_trainings_that_did_not_collapse() -> None:
    rule = {"collapse": CollapseRule()}
    enough = judged(crossed(), runs(MEANS, arm_1=2), **rule)
    assert enough.verdict == "supported"
    assert [arm.n for arm in enough.arms] == [5, 3, 5, 5]
    assert [rate.count for rate in enough.collapses] == [0, 2, 0, 0]
    assert enough.scope == "not_collapsed"
    few = judged(crossed(), runs(MEANS, arm_2=3), **rule)
    assert few.verdict == "inconclusive"
    assert_golden(few.reason)


def test_all_trainings_are_spoken_of_only_where_collapses_of_both_leading_arms_could_not_undo_it() -> None:
    means, count = (0.5, 0.5, 0.5, 0.9), 60
    small = {"collapse": CollapseRule(drop=0.1), "seeds": count}
    assert judged(crossed(), runs(means, seeds=count), **small).scope == "all"
    dear = {"collapse": CollapseRule(drop=5.0), "seeds": count}
    assert judged(crossed(), runs(means, seeds=count), **dear).scope == "not_collapsed"


def test_two_runs_in_each_arm_are_the_least_and_no_variance_is_no_test() -> None:
    assert "found 1, 1, 1, 1" in judged(crossed(), runs(MEANS, seeds=1)).reason
    apart = judged(crossed(), runs(MEANS, sd=0.0))
    assert (apart.verdict, apart.p) == ("invalid", None)
    assert apart.estimate == pytest.approx(0.2)
    assert judged(crossed(), runs((0.5,) * 4, sd=0.0)).verdict == "inconclusive"


def test_an_arm_that_lost_too_many_runs_makes_the_whole_invalid() -> None:
    data = runs(MEANS)
    data["arm-2"] = ArmData({}, {}, excluded={f"x-{n}": "lost" for n in range(5)})
    found = judged(crossed(), data, exclusions=("lost",), most_excluded=0.2)
    assert found.verdict == "invalid"
    assert_golden(found.reason)


@studies(40, 400)
def test_no_more_interactions_are_claimed_than_the_level_allows(studies: int) -> None:
    """Over three looks and at unlike noise; the bound comes up once in a thousand times at a true rate of 5.5 %."""
    looks, rng, claims = spend_alpha((3, 5, 7)), random.Random(5), 0
    stake = allocate_single_round(locked(crossed(), seeds=7, looks=looks, equivalence_margin=None))
    for _ in range(studies):
        whole = [[rng.gauss(0.5, sd) for _ in range(7)] for sd in (0.03, 0.03, 0.06, 0.06)]
        for number, look in enumerate(looks, start=1):
            data = {f"arm-{at}": runs_of(values[: look.seeds], str(at)) for at, values in enumerate(whole)}
            if judge(stake, "h1", data, look=number).verdict in ("supported", "refuted"):
                claims += 1
                break
    assert claims <= stats.binom.ppf(0.999, studies, 0.055)


def test_every_two_arms_may_differ_only_in_what_tells_them_apart() -> None:
    chosen = locked(crossed())
    pairs = pairs_of(chosen, chosen.hypotheses[0])
    assert len(pairs) == 6
    assert claim_of(chosen, "h1", ("arm-0", "arm-1"))[1] == {A}
    assert claim_of(chosen, "h1", ("arm-0", "arm-2"))[1] == {B}
    assert claim_of(chosen, "h1", ("arm-1", "arm-2"))[1] == {A, B}
    jobs = [[base_job(**arm.overrides)] for arm in chosen.arms]
    assert not any(lint_jobs(chosen, "h1", jobs[0], jobs[at], ("arm-0", f"arm-{at}")) for at in (1, 2, 3))
    (found,) = lint_jobs(chosen, "h1", jobs[0], [{**jobs[1][0], B: 0.003}], ("arm-0", "arm-1"))
    assert found.blocks
    assert found.sentence.startswith(f"arm-0 has {B} 0.001, arm-1 has 0.003")


def test_claims_say_what_they_are() -> None:
    assert_golden("\n".join([statement_of(crossed()), statement_of(trend(direction="decrease"))]))
    assert_golden("\n".join(sentences([crossed(), crossed(sought="equivalence"), trend()], "guess", 0.1)))


def test_a_report_tells_all_four_means_and_what_it_could_see() -> None:
    chosen, verdict = locked(crossed()), judged(crossed(), runs(MEANS))
    assert_golden(finding(crossed(), verdict, chosen.metric, deciding_interval(chosen, verdict)))
    assert reached_power(chosen, crossed(), verdict).detectable > 0


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"moderator": "epochs"}, "two fields"),
        ({"control": {A: 4}, "treatment": {A: 16}, "moderator": A}, "two fields"),
        ({"moderator": "", "ladder": (4, 16)}, "one field"),
    ],
)
def test_what_is_neither_is_no_record(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        Hypothesis.model_validate({**crossed().model_dump(), **changes})


def test_a_contrast_is_locked_with_its_own_test() -> None:
    with pytest.raises(ValidationError, match="as a contrast"):
        locked(crossed(), test="welch")
