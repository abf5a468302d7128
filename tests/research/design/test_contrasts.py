"""Fields that differ together in one arm, interactions and trends: arms of their own, sized by their own variance."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from pydantic import ValidationError

from research.design.comparison import StatisticalRequirements
from research.design.compiler import DesignCompiler, accept_hypotheses, collect_code
from research.design.noise_bank import NoiseBank
from research.errors import DesignRefused
from research.proposals.actions import Constant, Propose, ProposeDesign
from research.proposals.metric_choice import RequestedMetric
from studies.records.design import Budget, Design, Hypothesis
from studies.records.statements import sentences
from studies.verdicts.inputs import JudgeInput
from studies.verdicts.rules import judge
from swarm.environments.registry import environments
from tests.golden import assert_golden
from tests.research.banks import bank, group
from tests.research.compiling import assert_refused, compile_design
from tests.research.fakes import PRICING
from tests.studies.synthetic import runs_of, staked

LONG, WIDE = {"episodes_per_step": 64, "steps": 80}, {"episodes_per_step": 256, "steps": 20}
A, B = "group_size", "learning_rate"
LOW, HIGH = {A: 4, B: 1e-3}, {A: 16, B: 3e-3}
WISH = ProposeDesign(environment="guess")


def entry(control: Any = LONG, treatment: Any = WIDE, **changes: Any) -> dict[str, Any]:
    return {
        "mechanism": "m", "variable": "configuration", "control": control, "treatment": treatment,
        "direction": "increase", "predicted_low": -0.1, "predicted_high": 0.2, "probability": 0.5, **changes,
    }  # fmt: skip


def crossed(**changes: Any) -> dict[str, Any]:
    return entry(**{"control": LOW, "treatment": HIGH, "moderator": B, **changes})


def trend(*ladder: Any, **changes: Any) -> dict[str, Any]:
    return entry(**{"variable": A, "control": ladder[0], "treatment": ladder[-1], "ladder": ladder, **changes})


def asked(*entries: dict[str, Any]) -> Propose:
    return Propose.model_validate({"action": "propose", "hypotheses": list(entries) or [entry()]})


def means(sd: float, budget_s: float = 1e6) -> dict[str, Any]:
    return {"price": PRICING, "budget": Budget(wall_clock_s=budget_s), "bank": bank(sd)}


def compiled(*entries: dict[str, Any], sd: float = 0.02, **wish: Any) -> Design:
    chosen, draw = WISH.model_copy(update={"seeds_per_arm": 3, **wish}), itertools.count(1).__next__
    return compile_design("q", accept_hypotheses(asked(*entries)), chosen, draw_seed=draw, **means(sd))


@pytest.mark.parametrize(("entries", "told"), [
    ([entry(treatment={"episodes_per_step": 256, "epochs": 2})], "the same fields in control and treatment"),
    ([entry({"steps": 80}, {"steps": 20})], "at least 2 items"), ([entry(4, 16)], "found none and none"),
    ([entry(variable="steps")], "name the variable 'configuration'"),
    ([crossed(moderator="epochs")], "moderator: expected one of the two fields"),
    ([entry({**LOW, "epochs": 1}, {**HIGH, "epochs": 2}, moderator=B)], "moderator: expected one of the two"),
    ([crossed(), trend(4, 8, 16)], "takes arms of its own: expected it alone"),
    ([trend(4, 16)], "ladder: expected 3 to 8 values"),
    ([trend(4, 8, 16, control=8)], "ladder: expected 3 to 8 values from control to treatment"),
    ([trend(4, 16, 8)], "expected numbers from the lowest to the highest"),
    ([trend("grpo", "rloo", "gspo", variable="algorithm")], "expected numbers from the lowest to the highest"),
    ([crossed(matched="episodes")], "expected equal steps"),
    ([trend(4, 8, 16, contrast=[-1, 0.5, 0.4])], "in sum 0"), ([trend(4, 8, 16, contrast=[-1, 1])], "in sum 0"),
    ([trend(4, 8, 16, contrast=[0, 0, 0])], "in sum 0"), ([trend(4, 8, 16, contrast=[-0.2, 0, 0.2])], "sum 1 to 2"),
    ([trend(4, 8, 16, contrast=[-9, 4, 5])], "0 in sum 1 to 2"),
    ([trend(4, 8, 4, contrast=[-1, 2, -1])], "different settings"),
    ([trend(4, 8, 16, contrast=[-1, 0, 1]), trend(4, 16, 8, contrast=[-1, 0, 1])], "contrasts of one ladder"),
    ([trend(4, 8, 16, contrast=[-1, 0, 1]), trend(4, 8, 16)], "contrasts of one ladder"),
])  # fmt: skip
def test_sides_that_do_not_match_and_what_is_no_contrast_are_no_proposal(entries: list[Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        asked(*entries)


def test_matched_data_is_locked_as_two_arms_that_differ_in_both_fields() -> None:
    design = compiled()
    assert [dict(arm.overrides) for arm in design.arms] == [LONG, WIDE]
    assert [arm.name for arm in design.arms] == ["episodes_per_step=64+steps=80", "episodes_per_step=256+steps=20"]
    claim = design.hypotheses[0]
    assert_golden(claim.statement)
    assert_golden(sentences([claim])[0])
    unmatched = compiled(entry(LONG, {**WIDE, "steps": 40})).hypotheses[0]
    for known, feared in ((claim, False), (unmatched, True)):  # both arms of the first train on 5,120
        assert any("more episodes" in fear for fear in known.confounds) == feared


def test_an_interaction_locks_four_arms_and_one_claim() -> None:
    design = compiled(crossed())
    assert [dict(arm.overrides) for arm in design.arms] == [LOW, {A: 16, B: 1e-3}, {A: 4, B: 3e-3}, HIGH]
    assert list(design.contrast_of(design.hypotheses[0]).values()) == [1, -1, -1, 1]
    assert (design.test, design.multiplicity, design.control_arm) == ("contrast", "none", design.arms[0].name)
    assert_golden(design.hypotheses[0].statement)
    assert design.price.runs >= 4 * len(design.seeds)


CELLS = [dict(zip((A, B, "epochs"), cell, strict=True)) for cell in itertools.product((4, 16), (1e-3, 3e-3), (1, 2))]


def effect(*fields: str) -> dict[str, Any]:
    """Return a main effect, or an interaction, over the eight arms of a factorial of three fields."""
    signs = [math.prod(1 if cell[field] == CELLS[-1][field] else -1 for field in fields) for cell in CELLS]
    return entry(CELLS[0], CELLS[-1], ladder=CELLS, contrast=[sign / 4 for sign in signs])


def test_a_factorial_locks_its_arms_once_and_up_to_three_effects_that_share_the_level() -> None:
    design = compiled(effect(A), effect(B), effect(A, B))
    assert [dict(arm.overrides) for arm in design.arms] == CELLS
    assert (design.test, design.multiplicity, len(design.hypotheses)) == ("contrast", "dunnett_bonferroni", 3)
    assert [claim.family for claim in design.hypotheses] == ["h1", "h2", "h3"]
    assert all(abs(sum(design.contrast_of(claim).values())) < 1e-12 for claim in design.hypotheses)
    alone = compiled(effect(A))
    assert (alone.multiplicity, len(alone.seeds)) <= ("none", len(design.seeds))
    assert "by the weights" in sentences(design.hypotheses)[0]
    arms = {
        arm.name: runs_of([0.5 + 0.2 * (arm.overrides[A] == 16) + n / 500 for n in range(len(design.seeds))], arm.name)
        for arm in design.arms
    }
    first, *others = (judge(JudgeInput(staked(design), claim.id, arms)) for claim in design.hypotheses)
    assert (first.verdict, round(first.estimate or 0.0, 6)) == ("supported", 0.2)
    assert first.level == pytest.approx(1 - design.looks[0].alpha / 3)
    assert {verdict.verdict for verdict in others} <= {"equivalent", "inconclusive"}


def test_a_lock_of_many_settings_with_long_names_can_be_read_again() -> None:
    names = ("episodes_per_step", B, "environment.max_turns", "temperature")
    values = ((64, 128), (1e-3, 3e-3), (3, 6), (0.75,))
    cells = [dict(zip(names, cell, strict=True)) for cell in itertools.product(*values)]
    cells[-1]["temperature"] = 1.25
    design = compiled(entry(cells[0], cells[-1], ladder=cells, contrast=[-0.25] * 4 + [0.25] * 4))
    assert Design.model_validate_json(design.model_dump_json()) == design


def test_doses_may_be_weighed_by_any_shape_and_up_to_eight_of_them_by_a_line() -> None:
    design = compiled(trend(2, 4, 8, 16, contrast=[-1, 1 / 3, 1 / 3, 1 / 3]))
    assert next(iter(design.contrast_of(design.hypotheses[0]).values())) == -1
    rates = [1e-4, 3e-4, 5e-4, 1e-3, 2e-3, 3e-3, 4e-3, 5e-3]
    assert len(compiled(trend(*rates, variable=B)).arms) == 8


def test_code_stands_against_the_built_in_alone_and_is_judged_by_nothing_that_it_makes_itself() -> None:
    ladder = entry(
        "built-in", "b", variable="reward", ladder=["built-in", "a", "b"], contrast=[-1, 0.5, 0.5], code="=1"
    )
    with pytest.raises(DesignRefused, match="and a treatment; found a ladder"):
        compiled(ladder)
    own = "logged:critic/rewards/mean:last"
    flat = entry("built-in", "b", variable="reward", code="=1")
    judged = means(0.06) | {"requirements": StatisticalRequirements(metric=RequestedMetric.parse(own))}
    assert_refused(WISH, accept_hypotheses(asked(flat)), "which the code of reward makes itself", **judged)
    acting = accept_hypotheses(asked({**flat, "mediators": [{"metric": own, "direction": "increase"}]}))
    assert_refused(WISH, acting, "which the code of reward makes itself", **means(0.06))


def acting(*names: str, **changes: Any) -> tuple[Hypothesis, ...]:
    moves = [{"metric": name, "direction": "increase"} for name in names]
    return accept_hypotheses(asked(entry(4, 16, variable=A, mediators=moves, **changes)))


@pytest.fixture
def guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(environments()["guess"]), "facts", {"guesses": (4.0, 1.0)})


@pytest.mark.usefixtures("guesses")
def test_a_mediator_may_be_a_fact_of_some_steps_where_the_claims_metric_is_evaluated_at_them() -> None:
    name = "fact:guesses:mean:1-20"
    area = means(0.06) | {"requirements": StatisticalRequirements(metric=RequestedMetric("area"))}
    assert_refused(WISH, acting(name), "take fact:guesses", "--metric area", **means(0.06))
    assert_refused(WISH, acting("fact:guesses:first1"), "steps that tell guesses", "10 steps that do, 4 to 40", **area)
    assert_refused(WISH, acting("logged:actor/entropy:mean:900-999:0..1"), "that tell actor/entropy", **means(0.06))
    assert_refused(WISH, acting("logged:actor/entropy:first99:0..1"), "found 40 steps that do", **means(0.06))
    draw = itertools.count(1).__next__
    metric = compile_design("q", acting(name), WISH, draw_seed=draw, **area).metric
    assert metric.beside[name].schedule == metric.schedule is not None
    for other in ("fact:guesses", "fact:guesses:last"):
        known = compile_design("q", acting(other), WISH, draw_seed=draw, **means(0.06)).metric.beside[other]
        assert (known.key, known.schedule) == ("hidden/fact/guesses", None)


@pytest.mark.parametrize(("ends", "smallest", "warned"), [
    ("0..9", None, True), ("0..1", None, False), ("0..9", 0.01, False),
])  # fmt: skip
def test_a_range_by_which_all_that_runs_differ_by_would_count_as_none_is_told(
    ends: str, smallest: float | None, warned: bool
) -> None:
    """Runs known here lie within 0.6 of each other."""
    name = f"logged:actor/entropy:last:{ends}"
    claims = acting(name)
    moved = claims[0].mediators[0].model_copy(update={"smallest_effect": smallest})
    claims = (claims[0].model_copy(update={"mediators": (moved,)}),)
    known = [
        each.model_copy(update={"metric": "hidden:logged/actor/entropy/last"}) for each in group(0.3, 12, name="e")
    ]
    settings = means(0.02)
    compiler = DesignCompiler(**settings | {"bank": settings["bank"].merge(NoiseBank(frozenset(known)))})
    told = list(compiler.describe_wide_ranges(compiler.compile(claims, WISH).draft, claims))
    assert [("all 12 runs" in line, "\n" in line) for line in told] == [(True, False)] * warned


@pytest.mark.parametrize(("one", "settings", "told"), [
    (crossed(), means(0.06, 100.0), ["two differences has 2 times the variance", "seeds x 4 arms"]),
    (crossed(), means(0.5), ["no 20 seeds see", "2 times the variance"]),
    (trend(2, 4, 8, 16), means(0.06, 50.0), ["the rise over 4 values has 0.9 times the variance"]),
    (crossed(), means(0.02) | {"requirements": StatisticalRequirements(metric=RequestedMetric.parse("collapse"))},
     ["judged by counting"]),
])  # fmt: skip
def test_a_refusal_says_why_a_contrast_is_dear_or_cannot_be(
    one: dict[str, Any], settings: dict[str, Any], told: list[str]
) -> None:
    assert_refused(WISH, accept_hypotheses(asked(one)), *told, **settings)


@pytest.mark.parametrize(("algorithm", "known"), [("grpo", True), ("rloo", False)])
def test_a_lock_names_as_built_in_only_what_the_jobs_algorithm_does(algorithm: str, known: bool) -> None:
    code = "def advantage(rewards, groups): return rewards"
    proposal = asked(entry(variable="advantage", control="built-in", treatment="centred", code=code))
    held = {"constants": (Constant(field="algorithm", value=algorithm),)}
    draw, wish = itertools.count(1).__next__, WISH.model_copy(update=held)
    claims, sources = accept_hypotheses(proposal), collect_code(proposal)
    design = compile_design("q", claims, wish, draw_seed=draw, code=sources, **means(0.02))
    assert ("advantage" in design.built_in) == known
