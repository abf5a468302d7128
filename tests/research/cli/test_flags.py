"""A comparison by flags: what it plans, what the log keeps of it, and the one line that a wrong flag ends with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.research.cli.conftest import Ajet


def planned(ajet: Ajet, *arguments: str) -> dict[str, Any]:
    ended = ajet("study", "plan", *arguments, "--json")
    assert ended.code == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


def test_a_plan_begins_with_what_is_asked_and_what_is_tested(ajet: Ajet) -> None:
    flags = ("--vary", "group_size=4,16", "--set", "steps=80", "--env", "guess", "--budget", "30m")
    found = planned(ajet, *flags)
    assert found["asked"] == "--vary group_size=4,16 --set steps=80 --env guess"
    assert found["tested"] == [
        "Whether group_size = 16 raises the hidden success by 0.1 or more, compared with group_size = 4, in guess."
    ]
    assert found["not_tested"] == found["unequal"] == []
    assert found["design"]["base_job"]["steps"] == 80
    out = ajet("study", "plan", *flags).out
    assert out.startswith("asked  --vary group_size=4,16")
    assert out.splitlines()[1].startswith("tested  Whether group_size = 16")


def test_a_plan_says_what_of_a_topic_is_not_tested_and_what_the_arms_do_not_share(ajet: Ajet) -> None:
    topic = "is a batch of 256 faster than 64 on guess?"
    found = planned(ajet, topic, "--metric", "success", "--budget", "1h")
    assert "'faster'" in found["not_tested"][0]
    (clause,) = found["unequal"]
    assert clause.startswith("training episodes: 2,560 with episodes_per_step=64, 10,240 with")
    assert (
        "unequal  the arms differ in training episodes"
        in ajet("study", "plan", topic, "--metric", "success", "--budget", "1h").out
    )
    assert planned(ajet, "batch 64 vs 256 on guess with equal episodes", "--budget", "1h")["unequal"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "expected a topic, found nothing"),
        (("group size 4 vs 8", "--vary", "group_size=4,16"), "expected a topic or --vary; found both"),
        (("--vary", "group_size"), "found 'group_size'; write the field, an equals sign and values"),
        (("--vary", "group_size=4"), "expected two values of group_size"),
        (("--vary", "group_size=4,4"), "expected different values"),
        (("--vary", "group_size=4,many"), "group_size: expected a number"),
        (("--vary", "group_size=4,[16]"), "expected a value of group_size"),
        (("--vary", "grup_size=4,16"), "did you mean group_size?"),
        (("--vary", "group_size=4,16", "--vary", "group_size=4,8"), "found one twice"),
        (("--vary", "group_size=4,16", "--set", "group_size=8"), "found one twice"),
        (("--set", "steps=80"), "expected --set beside --vary"),
        (("--vary", "group_size=4,16", "--env", "gues"), "did you mean guess?"),
        (("--vary", "group_size=4,16", "--planner", "llm"), "expected --vary without a planner"),
        (("group size 4 vs 16 on guess", "--env", "arith"), "a topic that names guess"),
        (("--vary", "group_size=2,4,8,16,32"), "at most 3 comparisons"),
    ],
)  # fmt: skip
def test_a_wrong_flag_ends_with_one_line_and_leaves_nothing(
    ajet: Ajet, home: Path, arguments: tuple[str, ...], said: str
) -> None:
    ended = ajet("study", "plan", *arguments)
    assert ended.code == 2
    assert said in ended.line


@pytest.mark.parametrize(
    "topic", ["How many seeds do I need to compare lr 1e-3 and 3e-3?", "how many runs for larger groups"]
)
def test_how_many_runs_a_comparison_needs_is_answered_by_a_plan(ajet: Ajet, home: Path, topic: str) -> None:
    ended = ajet("research", topic)
    assert ended.code == 2
    assert "which a table answers" in ended.line
    assert "ajet study plan" in ended.line
    assert not home.exists()
    assert planned(ajet, topic)["power_curve"]


@pytest.mark.parametrize("topic", ["group size 4 vs 16 with Qwen2.5-0.5B", "the meaning of life", "grop size 4 vs 8"])
def test_a_topic_that_no_plan_can_be_about_leaves_no_study_behind(ajet: Ajet, home: Path, topic: str) -> None:
    assert ajet("research", topic).code == 2
    assert not home.exists()
