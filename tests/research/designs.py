"""Locked designs for tests of the loop: small, with every stage that a study can have."""

from __future__ import annotations

from typing import Any

from studies.records.design import Arm, Budget, Design, Hypothesis, Metric, NoisePlan, Price, RunSpec
from studies.records.procedure import (
    Extension,
    InterimAnalysis,
    Noise,
    Pilot,
    PowerTarget,
    Prediction,
    Replication,
    Rule,
    Rung,
    Screen,
    ScreenField,
)
from studies.records.runs import EXCLUDED_CODES, WORST_CODES
from tests.research.fakes import BASE

EPISODES = 32
SHORT, LONG = 2, 3
RISE_OF = tuple(f"logged:critic/success/mean:mean:{step}-{step}" for step in (1, SHORT))
CONTROL = Arm(name="group_size=8", overrides={"group_size": 8})
TABLE = (
    Rule(name="found", when="verdict == 'supported'", then="replicate"),
    Rule(name="decided", when="verdict in ('refuted', 'equivalent')", then="settle"),
    Rule(name="look-again", when="verdict in ('inconclusive', 'invalid') and looks_left > 0", then="continue"),
    Rule(name="out-of-looks", when="verdict in ('inconclusive', 'invalid') and looks_left == 0", then="settle"),
)


def rate(spec: RunSpec) -> float:
    """Return the success of a run: a group of 16 gains a quarter, which the noise of `design` shows at its third look.

    Seeds differ by up to three episodes, so that there is a variance.
    """
    gain = {16: 8, 4: -4, 32: 2}.get(spec.job["group_size"], 0)
    return (12 + gain + spec.seed % 4) / EPISODES


def base_job() -> dict[str, Any]:
    return BASE.model_dump(mode="json", exclude={"seed", "tracking"})


def claim(treatment: int = 16, name: str = "h1", **changes: Any) -> Hypothesis:
    values: dict[str, Any] = {
        "id": name, "statement": "A larger group helps.", "variable": "group_size", "control": 8,
        "treatment": treatment, "direction": "increase",
        "prediction": Prediction(low=0.0, high=0.6, probability=0.7),
    }  # fmt: skip
    return Hypothesis(**(values | changes))


def design(*treatments: int, **changes: Any) -> Design:
    """Return a design that compares group sizes with 8, in three looks of 2, 3 and 4 seeds."""
    claims = tuple(claim(value, f"h{number}") for number, value in enumerate(treatments, start=1))
    arms = (CONTROL, *(Arm(name=f"group_size={value}", overrides={"group_size": value}) for value in treatments))
    values: dict[str, Any] = {
        "question": "Does a larger group help?", "environment": "guess", "base_job": base_job(), "arms": arms,
        "control_arm": CONTROL.name, "hypotheses": claims, "seeds": (101, 102, 103, 104),
        "metric": Metric(meaning="share of hidden episodes solved", episodes=EPISODES), "test": "pooled",
        "exclusions": EXCLUDED_CODES, "counted_as_worst": WORST_CODES, "budget": Budget(wall_clock_s=600),
        "price": Price(runs=8, parallel=2, seconds_per_run=10.0, total_s=40.0, basis="made up"),
        "promise": PowerTarget(power=0.8, effect=0.1),
        "noise": Noise(sd=0.15, df=20, episodes=EPISODES, basis="made up"),
        "looks": (InterimAnalysis(seeds=2, alpha=0.0001), InterimAnalysis(seeds=3, alpha=0.0005),
                  InterimAnalysis(seeds=4, alpha=0.04)), "decision_table": TABLE, "most_excluded": 0.5,
        "spending": "reached",
    }  # fmt: skip
    return Design(**(values | changes))


def screened(**changes: Any) -> Design:
    screen = Screen(
        knobs=(ScreenField(field="group_size", values=(4, 8, 16, 32)),), sampler="grid", candidates=3, initial=1,
        rungs=(Rung(steps=1, keep=1),), seed=7,
    )  # fmt: skip
    return design(**{"arms": (CONTROL,), "hypotheses": (), "screen": screen, **changes})


def piloted(*treatments: int, **changes: Any) -> Design:
    """Return a design of up to 7 seeds that its first 3 size."""
    pilot = {"pilot": Pilot(seeds=3, most=7), "seeds": tuple(range(101, 108)), "looks": (), "noise": None}
    tests = {"test": "welch" if len(treatments) < 2 else "common"}
    return design(*treatments, **{**pilot, **tests, **changes})


def extending(*treatments: int, rise: float = 0.05) -> Design:
    """Return a design of 2 steps, or 3; fake trainings rise by 0.1 from each step to the next."""
    beside = {
        name: Metric(key=f"logged/{at}", kind="logged", of=name.partition(":")[2], meaning="-", episodes=EPISODES)
        for at, name in enumerate(RISE_OF)
    }
    return piloted(
        *(treatments or (16,)), base_job={**base_job(), "steps": SHORT},
        metric=Metric(meaning="share of hidden episodes solved", episodes=EPISODES, beside=beside),
        extension=Extension(steps=LONG, before=RISE_OF[0], last=RISE_OF[1], rise=rise),
    )  # fmt: skip


def every_stage() -> Design:
    return screened(replication=Replication(environment="arith", seeds=(201, 202)))


def noise_plan() -> NoisePlan:
    return NoisePlan(environment="guess", job=base_job(), seeds=(1, 2), metric_key="hidden/success", episodes=EPISODES)
