"""Where a study ends between two looks, the level of what is there follows from the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from studies import EventType
from studies.log.study import BUDGET_RULE
from studies.records.design import Design
from studies.records.procedure import CollapseRule, InterimAnalysis, Pilot
from studies.records.verdict import Verdict
from studies.statistics.power import last_level, spend_alpha
from studies.verdicts.inputs import ArmData, JudgeInput
from studies.verdicts.judge import judge_hypothesis
from studies.verdicts.rules import judge
from tests.golden import assert_golden
from tests.studies.synthetic import Synthetic, design, hypothesis, staked
from tests.studies.verdicts.test_estimands import contrast_lock, crossed, trend

LOOKS = tuple(
    look.model_copy(update={"equivalence": own.alpha})
    for look, own in zip(spend_alpha((4, 6, 8), 0.031), spend_alpha((4, 6, 8), 0.05), strict=True)
)
PLAN = tuple((look.seeds, look.alpha) for look in LOOKS)
ALIKE = tuple((look.seeds, look.alike) for look in LOOKS)


def locked(**changes: Any) -> Design:
    given = {"seeds": 8, "test": "welch", "looks": LOOKS, "spending": "reached"}
    return design(**(given | {"exclusions": ("lost", "budget_exhausted"), "equivalence_margin": 0.3} | changes))


def arms(chosen: Design, *counts: int, collapsed: bool = False) -> dict[str, ArmData]:
    """Return the first runs of each arm, in the order of the lock's seeds, with values that differ a little."""
    found = {}
    for at, (arm, count) in enumerate(zip(chosen.arms, counts, strict=True), start=2):
        seeds = {f"{arm.name}-{n}": seed for n, seed in enumerate(chosen.seeds_of(arm.name, chosen.seeds[:count]))}
        fell = {list(seeds)[-1]: "it fell"} if collapsed and at == 2 else {}
        values = {run: 0.4 + 0.01 * (n**at % 7) for n, run in enumerate(seeds)}
        found[arm.name] = ArmData(values, seeds, collapsed=fell)
    return found


def judged(chosen: Design, data: dict[str, ArmData], **options: Any) -> Verdict:
    return judge(JudgeInput(staked(chosen), "h1", data, **({"look": 2, "ended": "budget"} | options)))


def lose(data: dict[str, ArmData], arm: str, run: str) -> dict[str, ArmData]:
    values = {name: value for name, value in data[arm].values.items() if name != run}
    return {**data, arm: ArmData(values, data[arm].seeds, excluded={run: "lost"})}


PAIRED, OWN = locked(test="paired"), locked(shared_seeds=False)
COUNTS: dict[str, tuple[Design, dict[str, ArmData], tuple[float, ...], float]] = {
    "arms alike": (OWN, arms(OWN, 5, 5), (4.0,), 5.0),
    "arms of other numbers": (locked(), arms(locked(), 6, 5), (4.0,), 60 / 11),
    "no run since the last look": (locked(), arms(locked(), 4, 4), (4.0,), 4.0),
    "a run that was lost": (OWN, lose(arms(OWN, 5, 5), "group_size=16", "group_size=16-1"), (24 / 7,), 40 / 9),
    "a run that collapsed": (locked(collapse=CollapseRule()), arms(locked(), 5, 5, collapsed=True), (4.0,), 40 / 9),
    "pairs": (PAIRED, lose(arms(PAIRED, 6, 5), "group_size=4", "group_size=4-0"), (3.0,), 4.0),
    "an interaction": (contrast_lock(crossed(), 8, looks=LOOKS, spending="reached"), {}, (4.0,), 4 / (3 / 5 + 1 / 6)),
    "a trend, of which the middle counts for nothing": (
        contrast_lock(trend(), 8, looks=LOOKS, spending="reached"), {}, (4.0,), 60 / 11),
}  # fmt: skip


@pytest.mark.parametrize("ended", ["budget", "hand"])
@pytest.mark.parametrize("name", COUNTS)
def test_both_levels_follow_from_the_runs_that_enter(name: str, ended: Any) -> None:
    chosen, data, made, count = COUNTS[name]
    found = judged(chosen, data or arms(chosen, *([6] + [5] * (len(chosen.arms) - 1))), ended=ended)
    assert found.last is not None
    expected = [last_level(plan, made, count, whole=ended == "budget") for plan in (PLAN, ALIKE)]
    assert [found.last.alpha, found.last.equivalence] == pytest.approx(expected)
    assert found.level == pytest.approx(1 - expected[0])
    assert found.equivalence is not None


def test_the_sentence_says_where_it_ended_and_a_planned_look_says_what_it_always_did() -> None:
    data = arms(locked(), 6, 5)
    found = [judged(locked(), data, ended=ended) for ended in ("budget", "hand", None)]
    assert_golden("\n".join(verdict.reason for verdict in found))
    assert [verdict.last is None for verdict in found] == [False, False, True]
    assert len({verdict.inputs_sha256 for verdict in found}) == 3
    old = judged(locked(spending="planned"), data, ended=None)
    assert old.model_dump(exclude={"inputs_sha256"}) == found[2].model_dump(exclude={"inputs_sha256"})
    assert "last" not in old.model_dump()


def test_a_look_that_has_all_its_runs_is_the_planned_one_unless_a_budget_leaves_those_after_it_out() -> None:
    ends = [("budget", 3, 8), ("hand", 3, 8), ("hand", 2, 6), ("budget", 2, 6)]
    found = [judged(locked(), arms(locked(), runs, runs), ended=ended, look=look) for ended, look, runs in ends]
    assert [verdict.last is None for verdict in found] == [True, True, True, False]
    assert [verdict.level for verdict in found[:3]] == [1 - LOOKS[2].alpha, 1 - LOOKS[2].alpha, 1 - LOOKS[1].alpha]
    assert found[3].level < 1 - LOOKS[1].alpha


def test_claims_that_share_a_level_share_that_of_their_last_look() -> None:
    claims = (hypothesis("h1", 16), hypothesis("h2", 8))
    chosen = locked(hypotheses=claims, multiplicity="dunnett_bonferroni")
    found = judged(chosen, arms(chosen, 6, 5, 4), ended="hand")
    assert found.last is not None
    assert 1 - found.level == pytest.approx(found.last.alpha) == last_level(PLAN, (4.0,), 60 / 11, whole=False)
    assert found.p is not None
    assert found.p_adjusted > found.p
    rates = locked(test="boschloo", looks=spend_alpha((4, 6, 8)), equivalence_margin=None)
    assert judged(rates, arms(rates, 5, 5)).level == pytest.approx(
        1 - last_level(tuple((look.seeds, look.alpha) for look in rates.looks), (4.0,), 5.0, whole=True)
    )


def small(study: Synthetic, **changes: Any) -> Design:
    study.means |= dict.fromkeys(("group_size=16", "group_size=8", "group_size=2"), 0.53)
    return locked(equivalence_margin=0.001, **changes)


def decide(study: Synthetic) -> None:
    study.append(EventType.DECISION_TAKEN, rule=BUDGET_RULE, action="stop", reason="900 s of work are used up")


LATER: dict[str, Callable[[Synthetic], object]] = {
    "nothing": lambda study: None, "another budget": lambda study: study.amend("budget", value=5000.0, lowers=True),
    "a veto": Synthetic.veto,
}  # fmt: skip


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize(("touched", "ended"), [("never", "budget"), ("before", "budget"), ("after", "hand")])
def test_who_ended_it_follows_from_the_log_whatever_comes_later(
    study: Synthetic, touched: str, ended: str, later: str
) -> None:
    study.create()
    study.lock(small(study))
    if touched == "before":
        study.amend("budget", value=800.0, lowers=True)
    specs = study.plan()
    study.run_all(specs[:8])
    study.say("h1", look=1)
    study.run_all(specs[8:11])
    if touched == "after":
        study.amend("budget", value=1.0, lowers=True)
    decide(study)
    (found,) = study.say("h1", look=2)
    assert found.last is not None
    assert (found.last.ended, found.exploratory, found.n_control, found.n_treatment) == (ended, False, 6, 5)
    LATER[later](study)
    assert judge_hypothesis(study.state(), "h1", look=2) == found
    assert study.drifts() == ()


def test_claims_end_each_by_itself_and_one_that_was_settled_keeps_its_own_level(study: Synthetic) -> None:
    claims = tuple(hypothesis(f"h{n}", value) for n, value in enumerate((16, 8, 2), start=1))
    chosen = small(study, hypotheses=claims, multiplicity="dunnett_bonferroni")
    study.means["group_size=16"] = 0.95
    specs = study.begin(chosen)
    study.run_all(specs[:16])
    first = study.say(*(claim.id for claim in claims))
    assert [(v.verdict, v.last) for v in first] == [("supported", None), *[("inconclusive", None)] * 2]
    study.veto("h3")
    study.run_all(specs[16:20])
    decide(study)
    (found,) = study.say("h2", look=2)
    assert found.last is not None
    assert found.last.alpha == pytest.approx(last_level(PLAN, (4.0,), 5.0, whole=True))
    state = study.state()
    assert [judge_hypothesis(state, v.hypothesis, look=v.look) for v in (first[0], found, first[2])] == [
        first[0], found, first[2],
    ]  # fmt: skip


def test_what_is_judged_again_with_more_runs_after_a_last_look_is_exploratory(study: Synthetic) -> None:
    specs = study.begin(small(study))
    study.run_all(specs[:10])
    decide(study)
    study.say("h1", look=2)
    study.amend("budget", value=5000.0, lowers=True)
    study.run_all(specs[10:])
    found = judge_hypothesis(study.state(), "h1", look=3)
    assert (found.exploratory, found.last) == (True, None)


def test_a_claim_whose_last_look_had_all_its_runs_is_exploratory_at_later_ones_too(study: Synthetic) -> None:
    claims = (hypothesis("h1", 16), hypothesis("h2", 8))
    specs = study.begin(small(study, hypotheses=claims, multiplicity="dunnett_bonferroni"))
    missing = next(spec for spec in specs if (spec.arm, spec.seed) == ("group_size=8", study.state().design.seeds[5]))
    for spec in specs[:18]:
        if spec != missing:
            study.run(spec)
    decide(study)
    ends = study.say(*(claim.id for claim in claims), look=2)
    assert [(v.last is not None, v.n_treatment, v.final) for v in ends] == [(True, 6, False), (True, 5, False)]
    study.amend("budget", value=5000.0, lowers=True)
    study.run_all((missing, *specs[18:]))
    assert [judge_hypothesis(study.state(), claim.id, look=3).exploratory for claim in claims] == [True, True]
    assert judge_hypothesis(study.state(), "h1", look=2) == ends[0]


def test_a_look_to_which_no_run_was_added_that_enters_is_the_wider_of_both() -> None:
    same, one = (last_level(PLAN, made, 5.0, whole=True) for made in ((4.0, 4.0), (4.0,)))
    (_, first), (_, second), _ = PLAN
    assert first < second < same < one
    data = arms(PAIRED, 8, 7)
    for lost in ("group_size=4-4", "group_size=4-5"):
        data = lose(data, "group_size=4", lost)
    assert judged(PAIRED, data, look=3).last is not None


def test_a_design_without_looks_has_one_at_all_of_its_seeds() -> None:
    chosen = locked(looks=())
    found = judged(chosen, arms(chosen, 4, 4), look=1, ended="hand")
    assert found.last is not None
    assert found.last.alpha == pytest.approx(spend_alpha((4, 8))[0].alpha / 4)
    assert InterimAnalysis(seeds=8, alpha=0.05).alike == 0.05


def test_a_pilot_that_was_never_sized_has_the_whole_level_or_a_part_of_the_most_that_it_might_have_come_to() -> None:
    chosen = locked(seeds=4, looks=(InterimAnalysis(seeds=4, alpha=0.05),), pilot=Pilot(seeds=4, most=20))
    whole, chosen_moment = (judged(chosen, arms(chosen, 4, 4), look=1, ended=ended) for ended in ("budget", "hand"))
    assert whole.level == pytest.approx(0.95)
    assert chosen_moment.level == pytest.approx(1 - spend_alpha((4, 20))[0].alpha / 4)
    assert_golden(whole.reason)


def test_so_early_an_end_by_hand_shows_no_interval_that_could_tell_nothing() -> None:
    chosen = locked(seeds=20, looks=spend_alpha((7, 14, 20), 0.031))
    found = judged(chosen, arms(chosen, 4, 4), look=1, ended="hand")
    assert found.last is not None
    assert found.last.alpha < 1e-3
    assert (found.verdict, found.low, found.high, found.estimate is None) == ("inconclusive", None, None, False)
    assert judged(chosen, arms(chosen, 4, 4), look=1, ended="budget").low is not None
