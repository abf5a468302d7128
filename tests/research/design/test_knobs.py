"""A knob of the environment as the variable: trained at each arm's value, evaluated at one or at each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from research.controller.options import ResearchOptions
from research.design.comparison import StatisticalRequirements
from research.design.noise_bank import metric_key
from research.errors import BadTopic, DesignRefused
from research.planners.context import field_specs
from research.planners.topic import parse_topic
from research.proposals.actions import (
    Constant,
    EvaluateApart,
    ProposeDesign,
    ProposedKnob,
    ProposedReplication,
    ProposedScreen,
)
from research.proposals.arms import field_value
from research.proposals.flags import RequestedComparison
from research.proposals.metric_choice import RequestedMetric
from research.runs.collect import CollectError, collect
from research.runs.files import AttemptFolder
from research.runs.workers import play_arguments
from studies.checks.confounders import lint_conditions
from studies.metrics import other_environment
from studies.records.design import Design, Metric
from studies.records.runs import Conditions, confirm_spec, screen_spec, shares_untrained, zero_lr_spec
from studies.report.tables import design_facts
from studies.verdicts.inputs import JudgeInput
from studies.verdicts.rules import judge
from swarm.job import Job
from tests.research.compiling import noise_plan
from tests.research.design.test_compiler import BANK, PRICING, accepted, compiled, proposed, told, wish
from tests.research.factories import make_order, with_run
from tests.research.fakes import evaluation, read_fake_tracking, write_results
from tests.studies.synthetic import runs_of, staked

TURNS, HINT = "environment.max_turns", "environment.hint"


def claims(variable: str = TURNS, control: Any = 3, treatment: Any = 6) -> Any:
    return accepted(proposed(variable, control, treatment))


def design(apart: EvaluateApart = False, **changes: Any) -> Design:
    proposal = wish(evaluate_apart=apart, **changes)
    return compiled(hypotheses=claims(), proposal=proposal)


@pytest.mark.parametrize(("apart", "played"), [(False, (3, 3)), (True, (3, 6)), ("both", (3, 3))])
def test_arms_train_at_their_own_value_and_are_evaluated_at_the_control_s_or_their_own_or_both(
    apart: EvaluateApart, played: tuple[int, int]
) -> None:
    found = design(apart)
    runs = [confirm_spec("s", found, "d", arm, found.seeds[0]) for arm in found.arms]
    assert [(run.job[TURNS], run.metric.evaluated(run.job)[TURNS]) for run in runs] == [(3, played[0]), (6, played[1])]
    assert ("each arm at its own" in found.metric.meaning) == (apart is True)
    elsewhere = [other_environment(run.metric, run.job) for run in runs]
    assert elsewhere == [None, "guess" if apart == "both" else None]
    for run, turns in zip(runs, played, strict=True):
        order = with_run(make_order(), job=run.job, metric=run.metric)
        given = {
            role: json.loads(words[words.index("--knobs") + 1]) if "--knobs" in words else {}
            for role in ("client", "evaluator-initial", "evaluator-final", "evaluator-other")
            if (words := play_arguments(order, role, server="http://x", out="o"))  # type: ignore[arg-type]
        }
        own, seen = {"max_turns": run.job[TURNS]}, {"max_turns": turns}
        other = own if apart == "both" else {}
        assert given == {"client": own, "evaluator-initial": seen, "evaluator-final": seen, "evaluator-other": other}
    plan = noise_plan(claims(), wish(evaluate_apart=apart), draw_seed=iter(range(99)).__next__, price=PRICING,
                      budget=found.budget, bank=replace(BANK, checked=frozenset()))  # fmt: skip
    assert plan is not None
    still, *rest = (
        run.model_copy(update={"metric": run.metric.model_copy(update={"task_seed": 1})})
        for run in (zero_lr_spec("s", plan, "n", 1), *runs)
    )
    assert [shares_untrained(run, still) for run in rest] == [True, apart is not True]


@pytest.mark.parametrize("turns", [None, 3])
def test_an_evaluation_that_was_played_at_other_knobs_is_not_the_run_s(turns: int | None, tmp_path: Path) -> None:
    """What is left behind says that nothing was set."""
    order = make_order(**{TURNS: 6})  # type: ignore[arg-type]
    knobs = {} if turns is None else {TURNS: turns}
    order = with_run(order, metric=order.spec.metric.model_copy(update={"knobs": knobs}))
    write_results(folder := AttemptFolder(tmp_path / "attempt"), order, 0.5)
    if turns is None:
        assert collect(folder, order, tmp_path / "study", read_fake_tracking).payload
        return
    with pytest.raises(CollectError, match=r"expected an evaluation of .*'max_turns': 3"):
        collect(folder, order, tmp_path / "study", read_fake_tracking)


@pytest.mark.parametrize("turns", [6, 3])
def test_a_policy_that_is_evaluated_at_its_own_knobs_too_has_both_numbers(turns: int, tmp_path: Path) -> None:
    order = make_order(**{TURNS: 6})  # type: ignore[arg-type]
    order = with_run(order, metric=order.spec.metric.model_copy(update={"knobs": {}, "also_own": True}))
    write_results(folder := AttemptFolder(tmp_path / "attempt"), order, 0.5)
    own = evaluation(order.spec, order.spec.job["steps"], 0.25) | {"knobs": {"max_turns": turns}}
    folder.evaluation("other").write_text(json.dumps(own))
    if turns == 6:
        found = collect(folder, order, tmp_path / "study", read_fake_tracking).measurements
        values = {each.key: each.value for each in found}
        assert (values["hidden/success"], values["hidden/success/at_own_value"]) == (0.5, 0.25)
        return
    with pytest.raises(CollectError, match=r"expected an evaluation of .*'max_turns': 6"):
        collect(folder, order, tmp_path / "study", read_fake_tracking)


@pytest.mark.parametrize("apart", [False, True, "both"])
def test_a_verdict_and_the_report_say_where_the_task_itself_differs(apart: EvaluateApart) -> None:
    found = design(apart)
    arms = {arm.name: runs_of([0.2, 0.21, 0.22], arm.name) for arm in found.arms}
    verdict = judge(JudgeInput(staked(found), "h1", arms, look=1))
    assert ("task itself differs" in verdict.reason) == (apart is True)
    where = "at each arm's own value, too" if apart is True else "at 3 in all arms"
    assert where in str(design_facts(found, None))
    assert ("claims nothing" in str(design_facts(found, None))) == (apart == "both")


@pytest.mark.parametrize("apart", [False, True])
def test_longer_plays_are_what_a_knob_brings_about_and_unlike_beginnings_only_where_the_task_differs(
    apart: bool,
) -> None:
    seen = [Conditions(tokens=tokens, initial_success=start, evaluation_episodes=512, evaluation_tasks="t")
            for tokens, start in ((1000, 0.2), (3000, 0.5))]  # fmt: skip
    found = lint_conditions(design(apart), "h1", *({f"{at}": one} for at, one in enumerate(seen)))
    codes = {violation.code: violation.blocks for violation in found}
    assert codes["unequal_tokens"] is False
    assert codes.get("warm_start", False) == (not apart)


@pytest.mark.parametrize(("proposal", "hypotheses", "expected"), [
    (wish(), claims(treatment=13), "13"), (wish(environment="arith"), claims(HINT, "bounds", "side"), "hint"),
    (wish(replication=ProposedReplication(environment="arith"), constants=(Constant(field=HINT, value="side"),)),
     claims(), "hint"),
    (wish(constants=(Constant(field=TURNS, value=4),)), claims(), "varied by a hypothesis"),
])  # fmt: skip
def test_a_knob_that_an_environment_of_the_design_has_not_is_refused(
    proposal: ProposeDesign, hypotheses: Any, expected: str
) -> None:
    message = told(proposal, hypotheses=hypotheses) or ""
    assert expected in message
    assert "\n" not in message


def test_training_success_is_no_metric_of_arms_that_play_unlike_games() -> None:
    asked = StatisticalRequirements(metric=RequestedMetric("training-area"))
    assert "each arm's own value" in (told(wish(), hypotheses=claims(), requirements=asked) or "")
    assert "each arm's own value" not in (
        told(wish(evaluate_apart=True), hypotheses=claims(), requirements=asked) or ""
    )


def test_candidates_of_a_search_are_all_scored_at_the_control_s_value() -> None:
    knob = ProposedKnob(field=TURNS, values=(3, 5, 6))
    screen = ProposedScreen(knobs=(knob,), predicted_low=0.0, predicted_high=0.2, probability=0.4)
    found = compiled(1e5, hypotheses=(), proposal=wish(screen=screen))
    assert found.arms[0].overrides == {TURNS: 4}
    tried = found.arms[0].model_copy(update={"overrides": {TURNS: 6}})
    spec = screen_spec("s", found, "d", tried, 5)
    assert (spec.job[TURNS], spec.metric.evaluated(spec.job).get(TURNS)) == (6, None)  # the game's own
    there = wish(screen=screen, replication=ProposedReplication(environment="market"))  # where it is another one
    assert compiled(1e6, hypotheses=(), proposal=there).metric.knobs == {TURNS: 4}
    hints = screen.model_copy(update={"knobs": (knob, ProposedKnob(field=HINT, values=("bounds", "side")))})
    assert "hint" in (told(there.model_copy(update={"screen": hints}), hypotheses=()) or "")
    wrong = screen.model_copy(update={"knobs": (knob.model_copy(update={"values": (3, 500)}),)})
    assert "from 1 to 12" in (told(wish(screen=wrong), hypotheses=()) or "")


@pytest.mark.parametrize(("topic", "vary"), [
    ("turn cap 3 vs 6 in guess", (3, 6)), ("Do fewer turns hurt on guess?", (6, 3)),
    ("max_turns 2 vs 5 on market", (2, 5)),
    ("environment.max_turns 3 vs 6 in guess", (3, 6)), ("max_steps 5 vs 15 vs 25 on arith", (5, 15, 25)),
])  # fmt: skip
def test_a_topic_may_be_about_turns(topic: str, vary: tuple[int, ...]) -> None:
    parsed = parse_topic(topic, field_specs(where="guess"))
    assert (dict(parsed.vary), parsed.left) == ({TURNS: vary}, ())


@pytest.mark.parametrize(("evaluate", "held"), [("apart", True), ("both", "both")])
def test_flags_name_a_knob_and_where_it_is_evaluated(evaluate: str, held: EvaluateApart) -> None:
    wanted = RequestedComparison.parse([f"{TURNS}=3,6"], ["environment.hint=side"], evaluate=evaluate)
    assert RequestedComparison.of(wanted.settings()) == wanted
    assert wanted.text() == f"--vary {TURNS}=3,6 --set environment.hint=side --evaluate {evaluate}"
    assert wanted.settings()["wanted"]["evaluate_apart"] == held
    assert "evaluate_apart" not in str(RequestedComparison.parse([f"{TURNS}=3,6"], []).settings())
    assert f"--evaluate {evaluate}" in " ".join(ResearchOptions(topic="t", evaluate=evaluate).command())
    with pytest.raises(BadTopic, match="expected control, apart, both"):
        RequestedComparison.parse([f"{TURNS}=3,6"], [], evaluate="own")
    with pytest.raises(BadTopic, match=f"expected --evaluate {evaluate} where a knob is varied; found group_size"):
        RequestedComparison.parse(["group_size=4,8"], [f"{TURNS}=3"], evaluate=evaluate)


@pytest.mark.parametrize(("name", "value"), [(TURNS, -1), (TURNS, True), (HINT, "none"), ("environment.x", 1)])
def test_a_value_that_no_environment_takes_is_refused(name: str, value: Any) -> None:
    with pytest.raises(DesignRefused, match="expected"):
        field_value(name, value)


def test_what_runs_of_another_game_came_to_is_no_level_of_the_usual_one() -> None:
    metric, job = Metric(meaning="m", episodes=8), Job.model_validate({TURNS: 3}).model_dump(mode="json")
    assert metric_key(metric, Job().model_dump(mode="json")) == metric_key(metric) != metric_key(metric, job)
    assert metric_key(metric.model_copy(update={"knobs": {}}), job) == metric_key(metric)
