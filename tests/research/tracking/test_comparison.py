"""W&B's copy of a log is the same, lacks something, or differs: never the one for the other."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.results.wandb_reader import TrackedRun
from research.tracking.comparison import compare, online_run

STEPS = 5


def logged() -> TrackedRun:
    history = {step: {"loss": 1.0 / step, "steps": float(step)} for step in range(1, STEPS + 1)}
    config = {"run_id": "r1", "lr": 0.1}
    return TrackedRun(project="ajet", group="s1", id="r1-a1", config=config, history=history, not_finite={3: ["kl"]})


def told() -> dict[str, Any]:
    """What the API says of a perfect copy: with W&B's own fields, and NaN as text."""
    log = logged()
    rows: list[dict[str, Any]] = [{"_step": step, "_runtime": 3, **row} for step, row in log.history.items()]
    rows[2]["kl"] = "NaN"
    return {"id": log.id, "group": log.group, "config": {**log.config, "_wandb": {"t": 1}}, "rows": rows}


def standing(found: dict[str, Any]) -> tuple[str, str]:
    return compare(logged(), online_run(found))


def test_a_copy_with_wandbs_own_fields_is_the_same() -> None:
    assert standing(told()) == ("same", "")


def test_a_run_that_is_not_there_lacks() -> None:
    how, reason = compare(logged(), None)
    assert (how, "no such run" in reason) == ("lacking", True)


@given(st.sets(st.integers(0, STEPS - 1), min_size=1))
def test_whatever_rows_are_not_there_yet_the_copy_lacks_and_names_the_first(gone: set[int]) -> None:
    found = told()
    found["rows"] = [row for at, row in enumerate(found["rows"]) if at not in gone]
    how, reason = standing(found)
    assert how == "lacking"
    assert reason == f"W&B has {STEPS - len(gone)} of {STEPS} steps; step {min(gone) + 1} is not there"


@given(st.integers(0, STEPS - 1), st.sampled_from(["loss", "steps"]), st.floats(0.01, 10.0))
def test_an_edited_number_differs_and_is_named(at: int, key: str, by: float) -> None:
    found = told()
    found["rows"][at][key] += by
    how, reason = standing(found)
    assert how == "differs"
    assert reason.startswith(f"step {at + 1}: {key} is ")


@given(st.integers(0, STEPS - 1))
def test_a_row_that_stands_there_twice_differs_even_if_it_says_the_same(at: int) -> None:
    found = told()
    found["rows"].append(copy.deepcopy(found["rows"][at]))
    how, reason = standing(found)
    assert (how, reason.startswith(f"step {at + 1} "), "more than once" in reason) == ("differs", True, True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda found: found["config"].update(lr=0.2), "config lr is 0.2 at W&B, 0.1 in the log"),
        (lambda found: found["config"].update(more=1), "config more is 1 at W&B, None in the log"),
        (lambda found: found.update(group="other"), "its group is 'other' at W&B, 's1' in the log"),
        (lambda found: found["rows"].append({"_step": 9, "loss": 1.0}), "step 9 was never logged"),
        (lambda found: found["rows"][0].update(extra=1.0), "step 1: extra is 1 at W&B, not there in the log"),
        (lambda found: found["rows"][0].pop("loss"), "step 1: loss is not there at W&B, 1 in the log"),
        (lambda found: found["rows"][2].update(kl=0.5), "step 3: kl is 0.5 at W&B, not there in the log"),
        (lambda found: found["rows"][2].pop("kl"), "step 3: kl is a finite number in one of the two only"),
    ],
)
def test_every_other_change_differs_and_is_said(change: Any, reason: str) -> None:
    found = told()
    change(found)
    assert standing(found) == ("differs", reason)


def test_a_config_that_has_not_come_yet_lacks() -> None:
    found = told()
    del found["config"]["lr"]
    assert standing(found)[0] == "lacking"
    assert "config lr" in standing(found)[1]


def test_what_is_no_history_is_refused() -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        online_run({**told(), "rows": [{"loss": 1.0}]})


def test_what_holds_nothing_is_not_sent_and_does_not_lack() -> None:
    log = logged()
    log.config["streams"] = {}
    assert compare(log, online_run(told())) == ("same", "")
