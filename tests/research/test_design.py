"""The design compiler: sound, affordable, locked; otherwise refused with a price."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from research.arms import lint_arms
from research.budget import parse_budget
from research.design import accept_hypotheses, compile_design, proposed_code, refusal, seed_source
from research.errors import DesignRefused
from research.planner import Conclude, Constant, Propose, ProposeDesign, ProposedHypothesis
from research.pricing import Pricing, make_pricing
from research.steps import run_specs
from studies.records import Budget, Design, Hypothesis
from swarm.job import Job, tunables

PRICING = Pricing(lambda job: 18.4 + job.steps, parallel=2, overhead_s=20.0, basis="made up")


def wish(**changes: Any) -> ProposeDesign:
    return ProposeDesign(**{"environment": "guess", "seeds_per_arm": 5, **changes})


def proposed(variable: str = "group_size", control: Any = 4, treatment: Any = 16) -> ProposedHypothesis:
    return ProposedHypothesis(
        statement="s", mechanism="m", variable=variable, control=control, treatment=treatment,
        direction="increase", predicted_low=-0.1, predicted_high=0.2, probability=0.4,
    )  # fmt: skip


def accepted(*hypotheses: ProposedHypothesis) -> tuple[Hypothesis, ...]:
    return accept_hypotheses(Propose(hypotheses=hypotheses or (proposed(),)))


def compiled(budget_s: float = 600, max_runs: int | None = None, **changes: Any) -> Design:
    settings = {"price": PRICING, "draw_seed": seed_source("study", b"secret"), **changes}
    hypotheses = settings.pop("hypotheses", accepted())
    proposal = settings.pop("proposal", wish())
    budget = Budget(wall_clock_s=budget_s, max_runs=max_runs)
    return compile_design("q", hypotheses, proposal, budget=budget, **settings)


def told(action: Any, budget_s: float = 600, max_runs: int | None = None, **settings: Any) -> str | None:
    hypotheses = settings.pop("hypotheses", accepted())
    budget = Budget(wall_clock_s=budget_s, max_runs=max_runs)
    return refusal(action, hypotheses, price=PRICING, budget=budget, **settings)


def test_hypotheses_get_their_names_and_levels_from_code() -> None:
    first, second = accepted(proposed(), proposed("temperature", 1, 1.3))
    assert (first.id, second.id) == ("h1", "h2")
    assert first.prediction.level == 0.8
    assert isinstance(second.control, float)


def test_a_design_holds_the_whole_comparison() -> None:
    design = compiled(proposal=wish(steps=20, constants=(Constant(field="temperature", value=0.7),)))
    assert [arm.name for arm in design.arms] == ["group_size=4", "group_size=16"]
    assert design.control_arm == "group_size=4"
    assert design.base_job.keys() == Job.model_fields.keys() - {"seed", "tracking"}
    assert (design.base_job["steps"], design.base_job["temperature"]) == (20, 0.7)
    assert (design.metric.key, design.metric.episodes) == ("hidden/success", 512)
    assert design.test == "welch"


def test_as_many_seeds_as_the_budget_affords_up_to_the_wanted() -> None:
    counts = {budget: len(compiled(budget).seeds) for budget in (180, 200, 260, 320, 100_000)}
    assert counts == {180: 2, 200: 3, 260: 4, 320: 5, 100_000: 5}
    assert len(compiled(100_000, proposal=wish(seeds_per_arm=3)).seeds) == 3


def test_max_runs_is_kept() -> None:
    assert len(compiled(max_runs=7).seeds) == 3
    assert told(wish(), max_runs=3) is not None


def test_what_was_spent_before_counts() -> None:
    assert len(compiled(600, seconds_left=200).seeds) == 3
    message = told(wish(), 600, seconds_left=60)
    assert message is not None
    assert "9 min of it spent" in message


def test_an_unaffordable_design_is_refused_with_a_priced_alternative() -> None:
    assert told(wish(), 120) == (
        "3 seeds x 2 arms (6 runs) need about 3 min 15 s on this machine (58 s a run, 2 at once); the budget is 2 min: "
        "use --budget 4m; or train 20 steps instead of 40"
    )


def test_too_few_runs_are_refused_with_the_number_needed() -> None:
    message = told(wish(), 600, 3)
    assert message is not None
    assert message.endswith("the budget is 10 min and 3 runs: use --max-runs 6")


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1, 5000),
    st.integers(1, 9) | st.none(),
    st.integers(1, 4),
    st.floats(0.5, 3000),
    st.integers(2, 5),
    st.floats(0, 1),
)
def test_the_alternative_in_a_refusal_is_affordable(
    budget_s: float, max_runs: int | None, parallel: int, seconds: float, wanted: int, left: float
) -> None:
    price = Pricing(lambda job: seconds, parallel, 20.0, "test")
    arguments: dict[str, Any] = {"price": price, "proposal": wish(seeds_per_arm=wanted)}
    try:
        compiled(budget_s, max_runs, seconds_left=left * budget_s, **arguments)
    except DesignRefused as error:
        budget = re.search(r"--budget (\S+?)(;|$| )", error.message)
        runs = re.search(r"--max-runs (\d+)", error.message)
        assert budget or runs
        more_s = parse_budget(budget[1]) if budget else budget_s
        more_runs = int(runs[1]) if runs else max_runs
        design = compiled(more_s, more_runs, seconds_left=more_s - (1 - left) * budget_s, **arguments)
        assert len(design.seeds) >= min(3, wanted)


@pytest.mark.parametrize(
    ("proposal", "message"),
    [
        (wish(environment="chess"), "'chess'"),
        (wish(constants=(Constant(field="group_size", value=8),)), "cannot be held constant"),
        (wish(constants=(Constant(field="steps", value=8),)), "'steps' twice"),
        (wish(constants=(Constant(field="seed", value=8),)), "can be varied"),
        (wish(constants=(Constant(field="kl_coef", value=99),)), "less than or equal to 10"),
        (wish(constants=(Constant(field="episodes_per_step", value=100),)), "multiple of group_size"),
        (wish(steps=10**9), "steps: expected less than or equal to 1000000"),
    ],
)
def test_unsound_designs_are_refused(proposal: ProposeDesign, message: str) -> None:
    refused = told(proposal)
    assert refused is not None
    assert message in refused
    assert "\n" not in refused
    with pytest.raises(DesignRefused):
        compiled(proposal=proposal)


def test_a_design_before_hypotheses_is_refused() -> None:
    assert "propose some first" in (told(wish(), hypotheses=()) or "")


def test_steps_that_are_compared_may_be_named_at_their_control_value_only() -> None:
    longer = accepted(proposed("steps", 20, 40))
    assert told(wish(steps=20), hypotheses=longer) is None
    assert "cannot be held constant" in (told(wish(steps=40), hypotheses=longer) or "")


def test_hypotheses_that_no_design_could_afford_are_refused_when_proposed() -> None:
    three = Propose(hypotheses=(proposed(), proposed("group_size", 4, 8), proposed("temperature", 1.0, 1.3)))
    assert told(three) is None
    message = told(three, max_runs=7)
    assert message is not None
    assert message.endswith("propose fewer hypotheses")
    assert told(Propose(hypotheses=(proposed(),)), max_runs=7) is None


def test_hypotheses_that_need_other_constants_are_judged_with_the_design() -> None:
    thirds = proposed("group_size", 3, 6)
    assert told(Propose(hypotheses=(thirds,))) is None
    assert told(wish(constants=(Constant(field="episodes_per_step", value=126),)), hypotheses=accepted(thirds)) is None


def test_a_conclusion_is_never_refused() -> None:
    assert told(Conclude(reason="done")) is None


def test_a_check_draws_no_seeds_and_agrees_with_the_compiler() -> None:
    assert told(wish()) is None
    assert compiled().seeds == tuple(_first(seed_source("study", b"secret"), 5))


def _first(draw: Callable[[], int], count: int) -> list[int]:
    return [draw() for _ in range(count)]


def test_seeds_depend_on_secret_and_study_and_on_nothing_else() -> None:
    seeds = _first(seed_source("a", b"secret"), 20)
    assert seeds == _first(seed_source("a", b"secret"), 20)
    assert len(set(seeds)) == 20
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert not set(seeds) & set(_first(seed_source("b", b"secret"), 20))
    assert not set(seeds) & set(_first(seed_source("a", b"other"), 20))


def test_repeated_draws_are_drawn_again() -> None:
    draws = iter([7, 7, 7, 8, 9, 9, 10, 11])
    assert compiled(draw_seed=lambda: next(draws)).seeds == (7, 8, 9, 10, 11)


def test_a_source_that_repeats_for_ever_is_an_error() -> None:
    with pytest.raises(ValueError, match="fewer than 5 different"):
        compiled(draw_seed=lambda: 7)


@st.composite
def designs(draw: st.DrawFn) -> Design:
    """Designs of one to three hypotheses on ladders, with any budget that affords them."""
    chosen = draw(st.lists(st.sampled_from(sorted(tunables())), min_size=1, max_size=3, unique=True))
    ladders = [draw(st.permutations(tunables()[field].ladder)) for field in chosen]
    hypotheses = accepted(*(proposed(f, ladder[0], ladder[1]) for f, ladder in zip(chosen, ladders, strict=True)))
    steps = None if "steps" in chosen else draw(st.none() | st.integers(1, 100))
    proposal = wish(
        environment=draw(st.sampled_from(["guess", "arith"])), seeds_per_arm=draw(st.integers(2, 5)), steps=steps
    )
    price = make_pricing(draw(st.integers(1, 8)))
    try:
        return compiled(
            draw(st.floats(60, 20_000)), draw(st.none() | st.integers(2, 30)), hypotheses=hypotheses,
            proposal=proposal, price=price, draw_seed=seed_source("s", draw(st.binary(min_size=8, max_size=8))),
        )  # fmt: skip
    except DesignRefused:
        assume(False)
        raise


@settings(max_examples=100, deadline=None)
@given(designs())
def test_every_design_is_affordable_by_its_own_price(design: Design) -> None:
    assert design.price.total_s <= design.budget.wall_clock_s
    assert design.price.runs == len(design.arms) * len(design.seeds)
    assert design.budget.max_runs is None or design.price.runs <= design.budget.max_runs


@settings(max_examples=100, deadline=None)
@given(designs())
def test_arms_differ_from_the_control_in_exactly_the_declared_variable(design: Design) -> None:
    def job(variable: str, value: Any) -> Job:
        return Job.model_validate({**design.base_job, **design.arm_with(variable, value).overrides})

    for entry in design.hypotheses:
        control, treatment = job(entry.variable, entry.control), job(entry.variable, entry.treatment)
        assert design.arm_with(entry.variable, entry.control).name == design.control_arm
        assert lint_arms(control, treatment, entry.variable) == []
        assert getattr(treatment, entry.variable) == entry.treatment


@settings(max_examples=100, deadline=None)
@given(designs())
def test_seeds_are_distinct_and_enough(design: Design) -> None:
    assert 2 <= len(design.seeds) == len(set(design.seeds)) <= 5


@settings(max_examples=100, deadline=None)
@given(designs())
def test_the_lock_survives_serialising(design: Design) -> None:
    assert Design.model_validate_json(design.model_dump_json()).hash() == design.hash()
    assert Design.model_validate(design.model_dump(mode="json")).hash() == design.hash()


@settings(max_examples=60, deadline=None)
@given(designs(), designs())
def test_locks_differ_exactly_when_designs_do(left: Design, right: Design) -> None:
    assert (left.hash() == right.hash()) == (left.model_dump() == right.model_dump())


@pytest.mark.parametrize(
    "change",
    [
        {"question": "another"}, {"environment": "arith"}, {"alpha": 0.01}, {"seeds": (1, 2, 3)},
        {"exclusions": ("NAN",)}, {"max_attempts": 1}, {"budget": Budget(wall_clock_s=601)},
        {"base_job": {**compiled().base_job, "temperature": 0.7}},
    ],
)  # fmt: skip
def test_any_change_changes_the_lock(change: dict[str, Any]) -> None:
    design = compiled()
    assert design.model_copy(update=change).hash() != design.hash()


SOURCE = "def reward(task, messages, outcome):\n    return outcome['reward']\n"


def rewarding(name: str = "dense", **changes: Any) -> ProposedHypothesis:
    return proposed("reward", "built-in", name).model_copy(update={"code": SOURCE, **changes})


def test_a_design_holds_the_code_that_its_arms_name() -> None:
    proposal = Propose(hypotheses=(rewarding(), proposed("group_size", 4, 16)))
    design = compiled(1000, hypotheses=accept_hypotheses(proposal), code=proposed_code(proposal))
    assert design.code == {"dense": SOURCE}
    assert [arm.name for arm in design.arms] == ["control", "reward=dense", "group_size=16"]
    assert "reward" not in design.base_job


def test_runs_with_code_cost_what_others_cost() -> None:
    proposal = Propose(hypotheses=(rewarding(),))
    coded = compiled(hypotheses=accept_hypotheses(proposal), code=proposed_code(proposal))
    plain = compiled()
    assert coded.price == plain.price
    assert coded.seeds == plain.seeds


def test_each_run_of_a_design_carries_the_code_of_its_arm() -> None:
    proposal = Propose(hypotheses=(rewarding(),))
    design = compiled(hypotheses=accept_hypotheses(proposal), code=proposed_code(proposal))
    specs = list(run_specs("s", design))
    assert {spec.arm: spec.code for spec in specs} == {"reward=built-in": None, "reward=dense": SOURCE}
    assert all(Job.model_validate(spec.job) for spec in specs)
    assert len({spec.run_id for spec in specs}) == len(specs)


@pytest.mark.parametrize(
    ("hypothesis", "told"),
    [
        (rewarding(code=None), "code: expected def reward"),
        (rewarding(code="def other(): pass"), "found no such function"),
        (proposed().model_copy(update={"code": SOURCE}), "expected null beside the variable group_size"),
        (rewarding("Bad Name"), "a short name"),
    ],
)
def test_code_that_is_missing_misplaced_or_not_well_formed_is_refused(
    hypothesis: ProposedHypothesis, told: str
) -> None:
    message = refused(Propose(hypotheses=(hypothesis,)), code_allowed=True)
    assert told in message


def test_code_is_refused_where_runs_are_in_no_containers() -> None:
    proposal = Propose(hypotheses=(rewarding(),))
    assert told(proposal, code_allowed=True) is None
    message = refused(proposal)
    assert "runs in containers only" in message
    assert "--sandbox docker" in message


def refused(action: Any, **settings: Any) -> str:
    message = told(action, **settings)
    assert message is not None
    return message
