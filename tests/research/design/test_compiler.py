"""The design compiler: sound, affordable, locked; otherwise refused with a price."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from research.design.comparison import StatisticalRequirements
from research.design.compiler import CompiledDesign, DesignCompiler, accept_hypotheses, seed_source
from research.design.noise_bank import NoiseBank
from research.design.power import MOST_SEEDS
from research.design.pricing import BOTH_EVALUATIONS, Estimates, Pricing
from research.design.sample_size import Unaffordable
from research.errors import DesignRefused
from research.proposals.actions import (
    Action,
    Propose,
    ProposeDesign,
    ProposedHypothesis,
    ProposedKnob,
    ProposedReplication,
    ProposedRule,
    ProposedScreen,
)
from research.proposals.arms import lint_arms
from research.proposals.metric_choice import RequestedMetric
from research.text import parse_budget
from studies.records.alpha import AlphaLedgers, Exploration, RoundOutcome
from studies.records.design import Budget, Design, Hypothesis, Metric
from studies.records.procedure import Extension, Noise, Pilot
from swarm.job import Job
from tests.golden import assert_golden
from tests.research.banks import bank
from tests.research.bench import Knows
from tests.research.compiling import compile_design, noise_plan, refusal
from tests.research.factories import make_claim

BANK = bank(0.02)
AT_TOKENS = RequestedMetric("success-at-tokens", of="9")
LATER = AlphaLedgers.begin(2).after(RoundOutcome.of(()))
LEFT_TO_NO_RULE = (
    ProposedRule(name="futile", when="verdict == 'inconclusive' and p > 0.5", then="settle"),
    ProposedRule(name="go", when="verdict in ('inconclusive', 'invalid') and looks_left > 0", then="continue"),
)
PRICING = Pricing(lambda job: 18.4 + job.steps, parallel=2, overhead_s=20.0, basis="made up")


class Dear(Estimates):
    def evaluations(self, job: Job, episodes: int = BOTH_EVALUATIONS) -> float:
        return 0.2 * episodes


def wish(**changes: Any) -> ProposeDesign:
    return ProposeDesign(**{"environment": "guess", "seeds_per_arm": 5, **changes})


def proposed(variable: str = "group_size", control: Any = 4, treatment: Any = 16) -> ProposedHypothesis:
    return make_claim(variable, control, treatment, predicted_low=-0.1, probability=0.4)


CURRICULUM = make_claim(
    "task_weights", "built-in", "hard", code="def task_weights(history):\n    return [1.0] * len(history)\n"
)


def accepted(*hypotheses: ProposedHypothesis) -> tuple[Hypothesis, ...]:
    return accept_hypotheses(Propose(hypotheses=hypotheses or (proposed(),)))


def compiled(budget_s: float = 600, max_runs: int | None = None, **changes: Any) -> Design:
    settings = {"price": PRICING, "draw_seed": seed_source("study", b"secret"), "bank": BANK, **changes}
    hypotheses = settings.pop("hypotheses", accepted())
    proposal = settings.pop("proposal", wish())
    budget = Budget(wall_clock_s=budget_s, max_runs=max_runs)
    return compile_design("q", hypotheses, proposal, budget=budget, **settings)


def told(action: Any, budget_s: float = 600, max_runs: int | None = None, **settings: Any) -> str | None:
    hypotheses = settings.pop("hypotheses", accepted())
    budget = Budget(wall_clock_s=budget_s, max_runs=max_runs)
    found = objection(action, hypotheses, budget, **settings)
    return None if found is None else found.message


def objection(action: Any, hypotheses: tuple[Hypothesis, ...], budget: Budget, **settings: Any) -> DesignRefused | None:
    return refusal(action, hypotheses, **{"price": PRICING, "budget": budget, "bank": BANK, **settings})


def test_as_many_seeds_as_the_promise_needs_and_never_more() -> None:
    for wanted in (3, 5):
        proposal = wish(seeds_per_arm=wanted)
        assert len(compiled(100_000, proposal=proposal).seeds) == 3
        assert len(compiled(100_000, proposal=proposal, requirements=StatisticalRequirements(effect=0.03)).seeds) == 10


@pytest.mark.parametrize("fixed", [512, 2048])
def test_the_cheapest_episodes_that_keep_the_promise_unless_somebody_fixed_them(fixed: int) -> None:
    half = {"bank": bank(0.03, evaluation_sd=0.02), "budget_s": 100_000.0}

    def sized(effect: float, **more: Any) -> Design:
        return compiled(**half, requirements=StatisticalRequirements(effect=effect, **more))

    usual, chosen = sized(0.05, episodes=512), sized(0.05)
    assert chosen.metric.episodes > 512
    assert len(chosen.seeds) < len(usual.seeds)
    assert chosen.price.total_s < usual.price.total_s
    assert sized(0.05, episodes=fixed).metric.episodes == fixed
    unknown = compiled(100_000, bank=bank(0.03), requirements=StatisticalRequirements(effect=0.05))
    assert unknown.metric.episodes == 512, "what of the noise is evaluation is not known"


def test_where_no_episodes_keep_the_promise_a_refusal_still_names_a_way_and_exploring_is_priced_as_it_is_run() -> None:
    """Plays are dear: the most of them leave no seed affordable, and see least."""
    price = replace(PRICING, seconds_per_run=lambda job: 240.0, estimates=Dear())
    given: dict[str, Any] = {
        "budget_s": 1200.0, "max_runs": None, "spent_s": 0.0, "runs_made": 0, "price": price, "proposal": wish(),
        "bank": bank(0.03, evaluation_sd=0.02), "requirements": StatisticalRequirements(effect=0.01),
        "hypotheses": accepted(proposed()),
    }  # fmt: skip
    with pytest.raises(DesignRefused, match=r"--effect \S+; or see .*--explore, .* about 4 min 20 s$") as refused:
        try_out(given)
    follow_all(refused.value.message, given)


def test_arms_share_seeds_unless_runs_with_one_seed_surely_lie_apart() -> None:
    apart = Noise(sd=0.03, df=20, episodes=512, correlation=-0.8, pairs=40, basis="made up")

    class Apart(Knows):
        def find(self, environment: str, job: Job, metric: Metric, others: Sequence[Job] = ()) -> Noise:
            return apart

    assert (compiled(2000.0).shared_seeds, compiled(2000.0).test) == (True, "welch")
    assert not compiled(2000.0, bank=Apart()).shared_seeds


REFUSALS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("refusals.json").read_text())


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: f"{row['told']}{row.get('planner', '')}")
def test_what_cannot_be_had_is_refused_in_one_line_with_a_way_out(row: dict[str, Any]) -> None:
    """`told` stands in a person's line, `planner` in the one that a planner reads, which names no flag."""
    settings = dict(row)
    names, for_planner, action = settings.pop("told"), settings.pop("planner", ()), settings.pop("action")
    if "hypotheses" in settings:
        usual = proposed().model_dump(mode="json")
        claims = (ProposedHypothesis.model_validate({**usual, **entry}) for entry in settings["hypotheses"])
        settings["hypotheses"] = accepted(*claims) if settings["hypotheses"] else ()
    if "requirements" in settings:
        settings["requirements"] = StatisticalRequirements(**settings["requirements"])
    settings |= {"bank": NoiseBank()} if settings.pop("bank", None) == "empty" else {}
    settings |= {"base": Job(**settings["base"])} if "base" in settings else {}
    hypotheses = settings.pop("hypotheses", accepted())
    budget = Budget(wall_clock_s=settings.pop("budget_s", 600), max_runs=settings.pop("max_runs", None))
    action = TypeAdapter[Any](Action).validate_python(filled(action))
    found = objection(action, hypotheses, budget, **settings)
    assert [name for name in names if name not in found.message] == [], found.message
    assert [name for name in for_planner if name not in found.model_feedback] == [], found.model_feedback
    assert "\n" not in found.message + found.model_feedback
    assert "planner" not in row or not re.search(r"--[a-z]", found.model_feedback)


def filled(action: dict[str, Any]) -> dict[str, Any]:
    if "hypotheses" not in action:
        return action
    usual = proposed().model_dump(mode="json", exclude={"variable", "control", "treatment"})
    return {**action, "hypotheses": [{**usual, **entry} for entry in action["hypotheses"]]}


@st.composite
def situations(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.sampled_from((1, 1, 2, 3)))
    fields = [("group_size", 4, 16), ("temperature", 1.0, 1.3), ("group_size", 4, 8)]
    sd, seconds, budget_s = draw(st.floats(0.004, 0.08)), draw(st.floats(5, 400)), draw(st.floats(30, 20_000))
    return {
        "hypotheses": accepted(*(proposed(*field) for field in fields[:count])),
        "proposal": wish(
            seeds_per_arm=draw(st.integers(3, 5)),
            replication=draw(st.none() | st.just(ProposedReplication(environment="arith"))),
        ),
        "price": Pricing(lambda job: seconds * job.steps / 40, draw(st.integers(1, 4)), 20.0, "test"),
        "bank": bank(
            sd,
            runs=draw(st.sampled_from((6, 10, 40))),
            evaluation_sd=draw(st.none() | st.floats(0.2, 0.99).map(lambda share: share * sd)),
            environments=("guess",),
        ),
        "requirements": StatisticalRequirements(draw(st.floats(0.01, 0.3)), draw(st.sampled_from((0.6, 0.8, 0.9))),
        draw(st.integers(1, 4))), "budget_s": budget_s,
        "max_runs": draw(st.none() | st.integers(4, 60)),
        "spent_s": draw(st.floats(0, 0.9)) * budget_s,
        "runs_made": draw(st.sampled_from((0, 5))),
    }  # fmt: skip


def try_out(given: dict[str, Any]) -> Design:
    left = {name: value for name, value in given.items() if name not in ("budget_s", "max_runs", "spent_s")}
    return compiled(
        given["budget_s"], given["max_runs"], seconds_left=given["budget_s"] - given["spent_s"], **left
    )  # fmt: skip


def try_exploring(given: dict[str, Any]) -> Exploration:
    budget = Budget(wall_clock_s=given["budget_s"], max_runs=given["max_runs"])
    compiler = DesignCompiler(
        price=given["price"], budget=budget, requirements=given["requirements"], bank=NoiseBank(),
        seconds_left=given["budget_s"] - given["spent_s"], runs_made=given["runs_made"], explores=True,
    )  # fmt: skip
    explored = compiler.compile(given["hypotheses"], given["proposal"]).explore("why")
    return explored.plan(seed_source("study", b"secret"), compiler.used)


def follow(offer: str, given: dict[str, Any]) -> dict[str, Any]:
    changed, requirements = dict(given), given["requirements"]
    if found := re.search(r"--budget (\S+)", offer):
        changed["budget_s"] = parse_budget(found[1])
    if found := re.search(r"--max-runs (\d+)", offer):
        changed["max_runs"] = int(found[1])
    if found := re.search(r"--effect (\S+)", offer):
        changed["requirements"] = replace(requirements, effect=float(found[1]))
    if found := re.search(r"--episodes (\d+)", offer):
        changed["requirements"] = replace(requirements, episodes=int(found[1]))
    if found := re.search(r"train (\d+) steps instead", offer):
        changed["proposal"] = given["proposal"].model_copy(update={"steps": int(found[1])})
    if "--explore" in offer:
        changed["explores"] = True
    assert changed != given, f"an offer that changes nothing: {offer}"
    return changed


def follow_all(message: str, given: dict[str, Any]) -> None:
    _, _, offered = message.rpartition(": ")
    offers = offered.split("; or ") if "--" in offered or "train" in offered else []
    assert offers or message.endswith("nothing that a flag sets would do")
    for offer in offers:
        changed = follow(offer, given)
        if changed.pop("explores", False):
            assert try_exploring(changed).metric.split == "search"
        else:
            try_out(changed)


@given(situations())
def test_a_design_keeps_its_promise_fairly_and_as_locked_and_every_alternative_in_a_refusal_is_a_design(
    given: dict[str, Any],
) -> None:
    try:
        design = try_out(given)
    except DesignRefused as error:
        follow_all(error.message, given)
        return
    assert design.price.total_s <= given["budget_s"] - given["spent_s"]
    assert design.promise.effect == pytest.approx(given["requirements"].effect)
    assert design.looks[-1].seeds == len(design.seeds) <= MOST_SEEDS
    assert len(design.looks) <= given["requirements"].analyses
    if given["max_runs"] is not None:
        assert design.price.runs + given["runs_made"] <= given["max_runs"]
    assert len(set(design.seeds)) == len(design.seeds) >= 2
    for entry in design.hypotheses:
        arms = [design.arm_with(entry.variable, value) for value in (entry.control, entry.treatment)]
        control, treatment = (Job.model_validate({**design.base_job, **arm.overrides}) for arm in arms)
        assert arms[0].name == design.control_arm
        assert lint_arms(control, treatment, entry.variable) == []
        assert getattr(treatment, entry.variable) == entry.treatment
    for again in (Design.model_validate_json(design.model_dump_json()), Design.model_validate(design.model_dump())):
        assert (again.hash(), again) == (design.hash(), design)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"proposal": wish(replication=ProposedReplication(environment="arith"))}, "a replication"),
        ({"budget_s": 60.0}, "2 runs need about 78 s"),
        ({"max_runs": 1}, "--max-runs 2"),
    ],
)
def test_one_run_of_each_arm_is_refused_in_one_line_where_it_cannot_be_had(given: dict[str, Any], told: str) -> None:
    usual = {
        "hypotheses": accepted(), "proposal": wish(), "price": PRICING, "requirements": StatisticalRequirements(),
        "budget_s": 600.0, "max_runs": None, "spent_s": 0.0, "runs_made": 0,
    }  # fmt: skip
    assert try_exploring(usual).arms[0].name == "group_size=4"
    with pytest.raises(DesignRefused) as refused:
        try_exploring(usual | given)
    assert told in refused.value.message
    assert "\n" not in refused.value.message
    assert not re.search(r"--[a-z]", refused.value.model_feedback)


SCREEN = ProposedScreen(
    knobs=(ProposedKnob(field="learning_rate", values=(3e-4, 1e-3, 3e-3)),), confirm=1, predicted_low=-0.05,
    predicted_high=0.25, probability=0.4,
)  # fmt: skip


@given(effect=st.floats(min_value=0.1, max_value=1.0, exclude_min=True))
def test_no_proposal_and_no_screen_moves_the_bar_up(effect: float) -> None:
    claim = proposed().model_copy(update={"smallest_effect": effect})
    screen = SCREEN.model_copy(update={"smallest_effect": effect})
    for action, hypotheses in (
        (Propose(hypotheses=(claim,)), ()),
        (wish(), accepted(claim)),
        (Propose(hypotheses=(proposed("temperature", 1.0, 1.3), claim)), ()),
        (wish(screen=screen), ()),
    ):
        assert "at most 0.1, which is the" in (told(action, 10_000, hypotheses=hypotheses) or "")


def test_a_claim_is_worded_by_code_from_its_fields_and_the_planners_words_are_kept_beside() -> None:
    lie = proposed("temperature", 1.0, 1.3).model_copy(update={"statement": "Curricula raise success."})
    (claim,) = accepted(lie)
    assert_golden(claim.statement)
    assert claim.said == "Curricula raise success."
    (silent,) = accepted(proposed().model_copy(update={"statement": ""}))
    assert (silent.said, "said" in silent.model_dump(mode="json")) == ("", False)


@pytest.mark.parametrize(("budget_s", "first", "episodes"), [(600, 4, 1024), (200, 3, 512)])
def test_without_a_word_on_the_noise_the_first_runs_size_the_design(budget_s: float, first: int, episodes: int) -> None:
    design = compiled(budget_s, bank=NoiseBank(), requirements=StatisticalRequirements(analyses=2))
    assert design.pilot == Pilot(seeds=first, most=20, analyses=2)
    assert (design.noise, design.looks, len(design.seeds), design.test) == (None, (), 20, "welch")
    assert (design.price.runs, design.metric.episodes) == (2 * first, episodes), "as many plays as the price says"
    twice = wish(replication=ProposedReplication(environment="arith"))
    again = compiled(1200, bank=NoiseBank(), proposal=twice)
    assert (len(again.replication.seeds), set(again.replication.seeds) & set(again.seeds)) == (20, set())
    assert compiled().pilot is None


def test_a_design_whose_runs_may_be_longer_is_sized_by_its_pilot_and_priced_by_the_longest() -> None:
    asked, longer = StatisticalRequirements(episodes=512, extend_to=80), {"budget_s": 2000}
    design = compiled(**longer, requirements=asked)
    before, last = "logged:critic/success/mean:mean:21-30", "logged:critic/success/mean:mean:31-40"
    assert (design.base_job["steps"], design.pilot.seeds, set(design.metric.beside)) == (40, 4, {before, last})
    assert design.extension == Extension(steps=80, before=before, last=last, rise=0.02)
    assert (design.price.runs, design.price.seconds_per_run) == (16, 18.4 + 80)
    assert design.price.total_s == pytest.approx(20 + 4 * (18.4 + 40) + 4 * (18.4 + 80))
    assert Design.model_validate_json(design.model_dump_json()) == design
    assert compiled(**longer, proposal=wish(extend_to=60), requirements=asked).extension.steps == 60, "a planner asks"
    for declined in ({"proposal": wish(extend_to=40)}, {"ledgers": LATER, "previous": "a" * 64}, {}):
        requirements = asked if declined else StatisticalRequirements()
        assert compiled(**longer, **declined, requirements=requirements).extension is None
    assert StatisticalRequirements.of(asked.settings()) == asked
    assert "extend_to" not in StatisticalRequirements().settings()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"proposal": wish(steps=80)}, "found 80 and 80"),
        ({"proposal": wish(steps=7)}, "found 7 and 80"),
        ({"hypotheses": accepted(proposed("steps", 10, 20))}, "found some that differ in theirs"),
        ({"hypotheses": (), "proposal": wish(screen=SCREEN)}, "found a search"),
        ({"hypotheses": accepted(CURRICULUM)}, "found task_weights"),
        ({"requirements": StatisticalRequirements(extend_to=80, metric=RequestedMetric("area"))}, "found area"),
        ({"requirements": StatisticalRequirements(extend_to=80, metric=RequestedMetric("collapse"))}, "collapse"),
        ({"requirements": StatisticalRequirements(extend_to=80, metric=AT_TOKENS)}, "at 9 trained tokens"),
        ({"budget_s": 300}, "12 runs need about 8 min 10 s"),
    ],
)
def test_runs_that_cannot_be_made_longer_alike_are_refused(changes: dict[str, Any], why: str) -> None:
    settings = {"budget_s": 5000, "requirements": StatisticalRequirements(extend_to=80), **changes}
    with pytest.raises(DesignRefused) as refused:
        compiled(**settings)
    assert why in refused.value.message
    assert "extend_to" in refused.value.model_feedback


@pytest.mark.parametrize("effect", [0.01, 0.03, 0.05])
def test_before_a_pilot_seeds_are_not_taken_to_spread_ever_less_with_the_effect_that_is_asked(effect: float) -> None:
    asked = StatisticalRequirements(effect=effect)
    assert compiled(1e7, bank=NoiseBank(), requirements=asked).metric.episodes == 1024


@pytest.mark.parametrize("kind", ["training-area", "collapse"])
def test_what_is_no_share_of_plays_is_evaluated_as_is_usual(kind: str) -> None:
    judged = StatisticalRequirements(effect=0.45, metric=RequestedMetric.parse(kind))
    dear = replace(PRICING, seconds_per_run=lambda job: 1e4)
    assert compiled(1e7, bank=NoiseBank(), price=dear, requirements=judged).metric.episodes == 512


def test_before_a_lock_a_run_with_a_learning_rate_of_0_comes_first_where_none_was_seen() -> None:
    means = {"price": PRICING, "budget": Budget(wall_clock_s=900), "draw_seed": seed_source("s:noise", b"secret")}
    plan = noise_plan(accepted(), wish(steps=20), bank=NoiseBank(checked=frozenset()), **means)  # type: ignore[arg-type]
    assert plan is not None
    assert (plan.seeds, plan.plumbing is None, plan.environment, plan.episodes) == ((), False, "guess", 1024)
    assert (plan.job["group_size"], plan.job["steps"]) == (4, 20), "the control's job"
    assert "seed" not in plan.job
    assert noise_plan(accepted(), wish(), bank=NoiseBank(), **means) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("budget_s", "seeds"), [(320, 5), (200, 3), (100_000, 10)])
def test_once_runs_were_made_for_it_a_design_shrinks_and_promises_what_it_sees(budget_s: float, seeds: int) -> None:
    fine = {"requirements": StatisticalRequirements(effect=0.03)}
    design = compiled(budget_s, tried=True, **fine)
    promise = design.promise
    assert (len(design.seeds), promise.effect, promise.power == 0.8) == (seeds, 0.03, seeds == 10)
    assert 0 < promise.power <= 0.8
    if seeds < 10:
        assert "--budget" in (told(wish(), budget_s, **fine) or "")
    with pytest.raises(Unaffordable):
        compiled(150, tried=True, **fine)


def test_a_promise_that_nobody_named_shrinks_before_the_first_run_and_one_that_somebody_did_is_refused() -> None:
    loud = replace(bank(0.1), checked=frozenset())
    design = compiled(300, bank=loud)
    assert len(design.seeds) >= 3
    assert design.promise.power < 0.8
    for named in ({"effect": 0.1}, {"power": 0.9}, {"power_named": True}):
        assert told(wish(), 300, bank=loud, requirements=StatisticalRequirements(**named)) is not None


def test_what_the_first_run_showed_too_slow_is_tried_by_the_price_list() -> None:
    slow = {"tried": True, "price": replace(PRICING, times=9.0)}
    assert len(compiled(300, bank=bank(0.1), **slow).seeds) == len(compiled(300, bank=bank(0.1), tried=True).seeds)
    assert compiled(300, bank=NoiseBank(), **slow).pilot == compiled(300, bank=NoiseBank(), tried=True).pilot


def test_a_design_that_was_shrunk_shares_its_level_with_no_other_round() -> None:
    loud = {"price": PRICING, "bank": bank(0.1), "tried": True, "budget": Budget(wall_clock_s=1e6, max_runs=None)}

    def first(rounds: int) -> CompiledDesign:
        return DesignCompiler(**loud, ledgers=AlphaLedgers.begin(rounds)).compile(accepted(), wish())

    assert [first(rounds).analysis.promised == 0.8 for rounds in (1, 4)] == [True, False]
    assert [first(rounds).affords_repeats(rounds) for rounds in (1, 4)] == [True, False]


@pytest.mark.parametrize("change", [
    {"bank": bank(0.031)}, {"bank": bank(0.03, runs=30)}, {"requirements": StatisticalRequirements(effect=0.11)},
    {"requirements": StatisticalRequirements(power=0.85)}, {"requirements": StatisticalRequirements(analyses=1)},
    {"requirements": StatisticalRequirements(episodes=600)},
    {"price": Pricing(lambda job: 19.0, 2, 20.0, "other")}, {"budget_s": 601.0}, {"base": Job(max_tokens=12)},
    {"proposal": wish(replication=ProposedReplication(environment="arith"))},
    {"proposal": wish(decision_table=LEFT_TO_NO_RULE)},
    {"hypotheses": accepted(proposed().model_copy(update={"smallest_effect": 0.09}))},
    {"hypotheses": accepted(proposed().model_copy(update={"kill_if": "verdict == 'inconclusive' and p > 0.5"}))},
    {"hypotheses": accepted(proposed().model_copy(update={"confounds": ("luck",)}))},
    {"hypotheses": accepted(proposed().model_copy(update={"falsifier": "no difference"}))},
    {"hypotheses": accepted(proposed("group_size", 4, 8))},
    {"draw_seed": seed_source("study", b"other")},
])  # fmt: skip
def test_whatever_changes_a_verdict_changes_the_lock(change: dict[str, Any]) -> None:
    budget_s, known = change.pop("budget_s", 2000.0), bank(0.03)
    same = compiled(2000.0, bank=known)
    assert compiled(budget_s, **{"bank": known, **change}).hash() != same.hash()
    assert compiled(2000.0, bank=known, proposal=wish(seeds_per_arm=3)).hash() == same.hash()


def test_seeds_depend_on_secret_and_study_and_on_nothing_else() -> None:
    assert told(wish()) is None  # a check draws none
    assert compiled().seeds == tuple(draw() for draw in [seed_source("study", b"secret")] * 3)
    sources = (("a", b"secret"), ("a", b"secret"), ("b", b"secret"), ("a", b"other"))
    seeds, again, *others = ([draw() for _ in range(20)] for draw in (seed_source(*source) for source in sources))
    assert seeds == again
    assert len(set(seeds)) == 20
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert [set(seeds) & set(other) for other in others] == [set(), set()]


def test_repeated_draws_are_drawn_again() -> None:
    draws = iter([7, 7, 7, 8, 8, 9])
    assert compiled(draw_seed=lambda: next(draws)).seeds == (7, 8, 9)
    with pytest.raises(ValueError, match="fewer than 3 different"):
        compiled(draw_seed=lambda: 7)
