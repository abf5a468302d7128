"""A design that is judged by something other than success: its range, its effect, its noise, its price, its room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from research.design.comparison import StatisticalRequirements
from research.design.compiler import DesignCompiler, accept_hypotheses, seed_source
from research.design.headroom import require_replicable
from research.design.noise_bank import NoiseBank, job_key, metric_key
from research.design.pricing import Estimates, make_pricing
from research.errors import DesignRefused
from research.proposals.actions import Propose, ProposeDesign, ProposedKnob, ProposedReplication, ProposedScreen
from research.proposals.metric_choice import MetricChoice, RequestedMetric
from studies.records.base import digest
from studies.records.design import Arm, Budget, Design, Hypothesis, Metric, NoisePlan
from studies.records.procedure import Noise, Screen
from studies.records.runs import noise_spec, screen_spec, zero_lr_spec
from studies.statistics.proportions import power_of_rates
from swarm.job import Job
from tests.research.banks import group
from tests.research.compiling import assert_refused, compile_design
from tests.research.design.test_headroom import checked
from tests.research.factories import make_claim

CONTROL = Job(group_size=4)
EPISODES = RequestedMetric("episodes", 0.7)


def metric(asked: RequestedMetric = EPISODES) -> Metric:
    return MetricChoice(asked, Estimates().training).metric([CONTROL], 512)


def known(level: float, sd: float, of: Metric | None = None) -> NoiseBank:
    of = of or metric()
    runs = group(1.0, 12, job=CONTROL)
    return NoiseBank(frozenset(
        run.model_copy(update={
            "value": level + (run.value - 0.5) * sd, "job": job_key(CONTROL), "metric": metric_key(of), "initial": None,
        })
        for run in runs
    ))  # fmt: skip


def accepted(direction: str = "decrease", reach: float = 1000.0, **changes: Any) -> tuple[Hypothesis, ...]:
    low, high = (0.0, reach) if direction == "increase" else (-reach, 0.0)
    entry = make_claim(
        "group_size", 4, 16, direction=direction, predicted_low=low, predicted_high=high, probability=0.4, **changes
    )
    return accept_hypotheses(Propose(hypotheses=(entry,)), metric=metric())


def means(bank: NoiseBank, asked: RequestedMetric = EPISODES, effect: float | None = None) -> dict[str, Any]:
    return {
        "price": make_pricing(2), "budget": Budget(wall_clock_s=100_000), "bank": bank,
        "requirements": StatisticalRequirements(effect=effect, metric=asked),
    }  # fmt: skip


WISH = ProposeDesign(environment="guess", seeds_per_arm=3)


def compiled(claims: tuple[Hypothesis, ...], wish: ProposeDesign, **means: Any) -> Design:
    return compile_design("q", claims, wish, draw_seed=seed_source("s", b"x"), **means)


def test_a_time_is_locked_with_its_horizon_effect_and_margin_in_its_unit() -> None:
    bank = known(2500.0, 300.0)
    found = compiled(accepted(), WISH, **means(bank))
    assert found.metric == metric()
    assert found.promise.effect == found.equivalence_margin == 512.0
    assert found.noise.sd == pytest.approx(300.0)
    assert found.scope_reached  # so few runs cannot rule out that others get stuck
    assert found.collapse is None  # a training that reached the threshold reached it, whatever became of it
    assert found.hypotheses[0].statement.startswith("group_size = 16 needs fewer episodes")
    assert "evaluate_after" not in {name for name, value in found.base_job.items() if value}


LENGTHS = RequestedMetric.parse("logged:response_length/mean:last")
ELSEWHERE = ProposedReplication(environment="arith")


def test_answers_are_as_long_as_turns_and_tokens_of_the_plays_let_them() -> None:
    """Of what other players play, of candidates and of games without a bound, it is the context."""
    judge = MetricChoice(LENGTHS, Estimates().training)
    longer = Job(max_tokens=100, environment_args={"max_turns": 3})
    played = [(CONTROL,), (CONTROL, longer), (longer, Job(environment="arith")), ()]
    assert [judge.metric([CONTROL], 512, played=jobs).worst for jobs in played] == [64.0, 300.0, 2048.0, 2048.0]
    settings = means(NoiseBank(), LENGTHS)
    for wish, most in ((WISH, 64.0), (trained(40, replication=ELSEWHERE), 2048.0)):
        assert compiled(accepted(reach=50.0), wish, **settings).metric.worst == most
    draft = DesignCompiler(**settings).compile(accepted(reach=50.0), WISH).draft
    arms = (*draft.comparison.arms[:1], Arm(name="mine", overrides={"agent": "mine"}))
    others = {"comparison": replace(draft.comparison, arms=arms)}, {"screen": Screen.model_construct()}
    assert [replace(draft, **other).played for other in others] == [(), ()]


@pytest.mark.parametrize(("asked", "level", "sd", "told"), [
    ("tokens", 1000.0, 20.0, 1), ("tokens", 1000.0, 200.0, 0), ("success", 0.5, 0.02, 0),
])  # fmt: skip
def test_a_cut_of_tokens_by_which_all_known_runs_are_alike_is_told(
    asked: str, level: float, sd: float, told: int
) -> None:
    """Runs known here lie within two standard deviations of each other, and a tenth of the range counts."""
    judged, claims = RequestedMetric(asked), accepted(reach=0.5)
    compiler = DesignCompiler(**means(known(level, sd, metric(judged)), judged))
    assert len(list(compiler.describe_wide_ranges(compiler.compile(claims, WISH).draft, claims))) == told


def screen_of(field: str, values: tuple[Any, ...], best: float) -> ProposeDesign:
    low, high = sorted((0.0, best))
    knob = ProposedKnob(field=field, values=values)
    screen = ProposedScreen(knobs=(knob,), predicted_low=low, predicted_high=high, probability=0.5)
    return WISH.model_copy(update={"screen": screen})


def trained(steps: int, **more: Any) -> ProposeDesign:
    return WISH.model_copy(update={"steps": steps, **more})


LONGER = make_claim("steps", 20, 80, direction="decrease", predicted_low=-1000.0, predicted_high=0.0)
COLLAPSE, TRANSFER = RequestedMetric("collapse"), RequestedMetric("transfer", of="arith")
SHORT_CURVES = means(NoiseBank(), COLLAPSE) | {"base": Job(episodes_per_step=80, group_size=4)}


@pytest.mark.parametrize(("action", "claims", "means", "told"), [
    (WISH, accepted(), means(known(2500.0, 1500.0)),
     ["an effect of 512 episodes", "is 1,500 episodes", "--effect 1"]),
    (WISH, accepted(), means(known(5120.0, 0.0)),
     ["any run within 5120 episodes", "--metric episodes:0.35", "--set steps=80"]),
    (WISH, accepted("increase"), means(known(5000.0, 30.0)),
     ["5,000 episodes in 12 runs", "120 episodes from the ceiling"]),
    (WISH, accepted(), means(known(300.0, 30.0)), ["floor of 0"]),
    (WISH, accepted(), means(known(2500.0, 300.0)) | {
        "price": make_pricing(2, measured=(checked(CONTROL, success=0.9),))}, ["untrained model solved 0.900"]),
    (ProposeDesign(environment="guess", seeds_per_arm=5),
     accept_hypotheses(Propose(hypotheses=(LONGER,)), metric=metric()), means(known(0.5, 0.0)),
     ["many training episodes", "2,560 to 10,240"]),
    (screen_of("episodes_per_step", (64, 128, 256), -900.0), (), means(NoiseBank()),
     ["many training episodes", "2,560 to 10,240"]),
    (screen_of("episodes_per_step", (16, 64, 128), -1500.0), (), means(NoiseBank()), ["batches of 16 episodes"]),
    (trained(8), accepted(), means(NoiseBank()) | {"base": Job(episodes_per_step=16)}, ["take less than"]),
    (Propose(hypotheses=(make_claim(predicted_high=3.0),)), (), means(NoiseBank(), RequestedMetric("area")),
     ["predicted interval within 1 either"]),
    (screen_of("learning_rate", (3e-4, 1e-3, 3e-3), -0.5), (), means(NoiseBank(), COLLAPSE), ["one short run"]),
    (trained(11), accepted(reach=0.5), SHORT_CURVES, ["12 steps or more"]),  # 880 episodes, in windows of 4 steps
    (trained(40, replication=ProposedReplication(environment="arith")), accepted(reach=0.5),
     means(known(0.5, 0.02, metric(TRANSFER)), TRANSFER), ["another environment than arith"]),
])  # fmt: skip
def test_what_cannot_be_judged_by_the_metric_is_refused(
    action: Any, claims: tuple[Hypothesis, ...], means: dict[str, Any], told: list[str]
) -> None:
    found = assert_refused(action, claims, *told, **means)
    assert "--metric episodes:0.35" not in told or "--" not in found.model_feedback


@pytest.mark.parametrize("other", [
    metric(RequestedMetric("episodes", 0.6)), metric().model_copy(update={"horizon": 9000.0}),
    metric().model_copy(update={"schedule": None}), metric().model_copy(update={"split": "search"}),
    metric(RequestedMetric("success")),
])  # fmt: skip
def test_only_runs_that_were_measured_alike_say_what_the_noise_is(other: Metric) -> None:
    bank = known(2500.0, 300.0)
    assert isinstance(bank.find("guess", CONTROL, metric()), Noise)
    assert isinstance(bank.find("guess", CONTROL, other), str)
    assert bank.levels(CONTROL, other) == ()


def test_a_threshold_that_most_runs_do_not_reach_is_refused_and_their_spread_is_no_noise() -> None:
    entries = sorted(known(4000.0, 300.0).observations, key=lambda entry: entry.seed)
    late = len(entries) // 2 + 1
    mostly = [entry.model_copy(update={"value": 5120.0}) for entry in entries[:late]] + entries[late:]
    bank = NoiseBank(frozenset(mostly))
    assert "Most of the 12 runs" in bank.find("guess", CONTROL, metric())
    assert_refused(WISH, accepted(), f"not reached by most runs within 5120 episodes: {late} of 12", **means(bank))


def test_a_rate_is_sized_by_its_exact_test_without_runs_that_tell_its_noise() -> None:
    collapse = RequestedMetric("collapse")
    found = compiled(accepted(reach=0.5), WISH, **means(NoiseBank(), collapse))
    assert found.test == "boschloo"
    assert len(found.looks) == 1
    assert power_of_rates(0.7, 0.3, len(found.seeds)) >= 0.8
    assert power_of_rates(0.7, 0.3, 20) < 0.8  # more than any other comparison takes
    dear = {**means(NoiseBank(), collapse), "budget": Budget(wall_clock_s=600)}
    assert_refused(WISH, accepted(reach=0.5), f"needs {len(found.seeds)} seeds x 2 arms", "--budget", **dear)


def test_a_screen_of_a_time_is_scored_by_the_area_below_its_threshold() -> None:
    bank = known(2500.0, 300.0).observations
    alike = NoiseBank(frozenset(run.model_copy(update={"job": job_key(Job())}) for run in bank))
    found = compiled((), screen_of("learning_rate", (3e-4, 1e-3, 3e-3), -1500.0), **means(alike))
    steps = found.screen.rungs[0].steps
    run = screen_spec("s", found, "lock", Arm(name="a", overrides={"learning_rate": 3e-4}), steps)
    assert found.metric == metric()
    assert (run.metric.kind, run.metric.split, run.metric.higher_is_better) == ("area", "search", True)
    assert run.metric.horizon == steps * 128
    assert run.job["evaluate_after"] == list(range(4, steps, 4))


def test_a_replication_whose_environment_gives_the_metric_another_range_is_refused() -> None:
    wide = metric(RequestedMetric("reward"))
    require_replicable(wide, wide)
    with pytest.raises(DesignRefused, match="hidden reward is 0 to 1 too; found 0 to 5"):
        require_replicable(wide, wide.model_copy(update={"best": 5.0}))


def test_a_plan_of_an_earlier_version_keeps_its_hash_and_its_runs_their_metric() -> None:
    held = {"environment": "guess", "job": {}, "seeds": [1, 2], "metric_key": "hidden/success", "episodes": 512,
            "plumbing": 3}  # fmt: skip
    plan = NoisePlan.model_validate(held)
    assert digest(plan.model_dump(mode="json")) == digest(held)
    assert noise_spec("s", plan, "lock", 1).metric.meaning.startswith("share of 512 hidden episodes")
    timed = plan.model_copy(update={"metric": metric(), "metric_key": metric().key})
    assert zero_lr_spec("s", timed, "lock", 3).metric.key == "hidden/success"
