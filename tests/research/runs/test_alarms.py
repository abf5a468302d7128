"""The watchdog's rules: each fires on what it is for, none on a healthy training, and a stricter limit never less."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.checks.alarms import DEFAULT_WATCHDOG, NOT_FINITE, AbortWatch, find_abort_alarm, find_alarms
from studies.records.procedure import Watchdog

HEALTHY: list[dict[str, Any]] = json.loads((Path(__file__).parent / "healthy_history.json").read_text())
"""What a real training of the tiny model on `guess` logged: 20 steps of 32 episodes."""
OFF = Watchdog()


def rows(count: int = 12, **series: Sequence[float]) -> list[dict[str, Any]]:
    """Return the healthy history with metrics replaced from some step on to the end (`ppo_kl=[5, 5, 5]`)."""
    names = {name.split("/")[-1]: name for name in HEALTHY[0]["metrics"]}
    changed = [{"step": row["step"], "metrics": dict(row["metrics"])} for row in HEALTHY[:count]]
    for short, values in series.items():
        for row, value in zip(changed[-len(values) :], values, strict=True):
            row["metrics"][names.get(short, short)] = value
    return changed


@pytest.mark.parametrize(
    ("broken", "code", "effect"),
    [
        ({"ppo_kl": [2.0, 2.0, 2.0]}, "kl_blow_up", "abort"),
        ({"ppo_kl": [-2.0, -2.0, -2.0]}, "kl_blow_up", "abort"),
        ({"grad_norm": [90.0, 90.0, 90.0]}, "gradient_blow_up", "abort"),
        ({"entropy": [0.01, 0.02, 0.01]}, "entropy_collapse", "note"),
        ({"constant_groups": [4.0, 4.0, 4.0]}, "constant_groups", "note"),
        ({"step": [20.0, 20.0, 20.0]}, "throughput_drop", "note"),
        ({"response_length/mean": [60.0, 60.0, 60.0]}, "length_explosion", "note"),
    ],
)
def test_each_limit_that_is_broken_for_long_enough_is_named(
    broken: dict[str, list[float]], code: str, effect: str
) -> None:
    (found,) = find_alarms(rows(**broken), DEFAULT_WATCHDOG)
    assert (found.code, found.effect, found.step) == (code, effect, 12)
    for values in broken.values():
        del values[0]
    assert find_alarms(rows(**broken), DEFAULT_WATCHDOG) == ()  # two steps are no trend


def test_a_number_that_is_none_is_named_at_once() -> None:
    history = [*rows(), {"step": 13, "metrics": {NOT_FINITE: 1.0}}]
    (found,) = find_alarms(history, OFF)
    assert (found.code, found.effect, found.step) == ("training_nan", "worst", 13)
    logged: list[dict[str, Any]] = rows()
    logged[4]["not_finite"] = ["actor/pg_loss", "timing_s/gen"]
    assert find_alarms(logged, OFF)[0].sentence == "actor/pg_loss at step 5 is no finite number"


def test_a_healthy_real_training_raises_nothing_and_a_reward_that_rises_while_hidden_success_falls_is_named() -> None:
    assert find_alarms(HEALTHY, DEFAULT_WATCHDOG, 0.328125, 0.671875) == ()
    assert [alarm.code for alarm in find_alarms(HEALTHY, DEFAULT_WATCHDOG, 0.5, 0.3)] == ["reward_hacking"]
    assert find_alarms(HEALTHY, DEFAULT_WATCHDOG, 0.5, None) == (), "nobody knows yet"
    flat = [{"step": n, "metrics": {"critic/rewards/mean": 0.5}} for n in range(1, 9)]
    assert find_alarms(flat, DEFAULT_WATCHDOG, 0.5, 0.3) == ()  # training that fails is no hacking


def test_episodes_without_a_reward_are_counted_step_by_step() -> None:
    history = rows()
    for place, row in enumerate(history):
        row["metrics"]["lease/aborted"] = 10.0 * max(0, min(place, 4) - 1)  # 10 more at each of three steps
    (found,) = find_alarms(history, DEFAULT_WATCHDOG)
    assert (found.code, found.step) == ("judge_outage", 5)


wild = st.floats(0, 50, allow_nan=False)
histories = st.lists(
    st.fixed_dictionaries(dict.fromkeys(HEALTHY[0]["metrics"] | {"lease/aborted": 0.0}, wild)), max_size=14
).map(lambda entries: [{"step": n, "metrics": metrics} for n, metrics in enumerate(entries, 1)])
LOOSER: Mapping[str, bool] = {
    "kl": True, "grad_norm": True, "entropy_share": False, "length_factor": True, "constant_groups": True,
    "reward_gap": True, "throughput_share": False, "judge_errors": True, "patience": True,
}  # fmt: skip


@given(histories, st.sampled_from(sorted(LOOSER)), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_a_looser_limit_never_raises_more(history: list[dict[str, Any]], name: str, one: float, other: float) -> None:
    def limited(share: float) -> Watchdog:
        scale = {"length_factor": 1 + 10 * share, "patience": 1 + round(5 * share), "grad_norm": 10 * share}
        return DEFAULT_WATCHDOG.model_copy(update={name: scale.get(name, share)})

    low, high = sorted((one, other))
    loose, strict = (high, low) if LOOSER[name] else (low, high)
    fewer = {alarm.code: alarm.step for alarm in find_alarms(history, limited(loose), 0.5, 0.4)}
    more = {alarm.code: alarm.step for alarm in find_alarms(history, limited(strict), 0.5, 0.4)}
    assert fewer.keys() <= more.keys()
    assert all(more[code] <= step for code, step in fewer.items())


@given(histories, st.integers(0, 14))
def test_what_was_heard_while_training_is_heard_again_when_it_is_over(history: list[dict[str, Any]], seen: int) -> None:
    """The rules that stop a training look at no later step, so that the collector finds what the attempt found."""
    early = find_abort_alarm(find_alarms(history[:seen], DEFAULT_WATCHDOG))
    late = find_abort_alarm(find_alarms(history, DEFAULT_WATCHDOG))
    assert early is None or early == late


@given(histories, st.sampled_from([None, 25.0]), st.sampled_from([None, 1.2]), st.integers(1, 3))
def test_rows_that_are_looked_at_once_as_they_come_are_found_to_break_the_same(
    history: list[dict[str, Any]], kl: float | None, grad_norm: float | None, patience: int
) -> None:
    limits = DEFAULT_WATCHDOG.model_copy(update={"kl": kl, "grad_norm": grad_norm, "patience": patience})
    watch = AbortWatch(limits)
    found = next((row["step"] for row in history if watch.add(row)), None)
    alarm = find_abort_alarm(find_alarms(history, limits))
    assert found == (None if alarm is None else alarm.step)
