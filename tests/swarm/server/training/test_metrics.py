"""What a batch says of its episodes' lengths and ages."""

from __future__ import annotations

import pytest

from swarm.server.batches.group import Group
from swarm.server.training.metrics import batch_metrics
from swarm.store import Sample
from swarm.timelines import Drift, Node
from tests.swarm.server.support import job

AGE = "training/off_policy/trajectory_staleness"


def group(*episodes: list[tuple[int, ...]]) -> Group:
    """A group whose episodes have calls that sampled tokens of these policy versions."""
    samples = []
    for number, calls in enumerate(episodes):
        nodes = tuple(
            Node(index, None, (1,), (2,) * len(versions), (-0.1,) * len(versions), versions, "", Drift.START)
            for index, versions in enumerate(calls)
        )
        samples.append(Sample(f"e{number}", "a", "default", "me", "a#1", float(number), None, 1.0, nodes))
    return Group("a#1", "a", "default", 0.0, ended=samples)


def test_an_episodes_age_is_told_by_its_youngest_and_by_its_oldest_token() -> None:
    metrics = batch_metrics(job(), 6, [group([(3, 4), (5,)], [(4, 4)])])
    assert {name: value for name, value in metrics.items() if name.startswith(AGE)} == {
        f"{AGE}/mean": 0.5,
        f"{AGE}/min": 0.0,
        f"{AGE}/max": 1.0,
        f"{AGE}_worst/mean": 1.5,
        f"{AGE}_worst/min": 1.0,
        f"{AGE}_worst/max": 2.0,
    }


def test_calls_that_sampled_all_they_might_are_counted_as_clipped() -> None:
    metrics = batch_metrics(job(max_tokens=2), 1, [group([(0, 0), (0,)], [(0,), (0,)])])
    assert metrics["response_length/clip_ratio"] == 0.25
    assert metrics["tokens/trained"] == 5


def of_stream(stream: str, *rewards: float, success: bool | None = None) -> Group:
    node = Node(0, None, (1,), (2, 3), (-0.1, -0.1), (0, 0), "", Drift.START)
    samples = [
        Sample(f"{stream}-{n}", "t", stream, "me", f"{stream}#1", reward, success, 1.0, (node,))
        for n, reward in enumerate(rewards)
    ]
    return Group(f"{stream}#1", "t", stream, 0.0, ended=samples)


def test_each_stream_has_its_own_curves() -> None:
    groups = [of_stream("math", 1.0, 0.0, success=True), of_stream("math", 1.0, 1.0), of_stream("web", 0.5, 0.5)]
    found = batch_metrics(job(), 1, groups, ["math", "web"])
    assert {name: value for name, value in found.items() if name.startswith("stream/math/")} == {
        "stream/math/groups": 2,
        "stream/math/episodes": 4,
        "stream/math/share": pytest.approx(2 / 3),
        "stream/math/reward/mean": 0.75,
        "stream/math/success/mean": 1.0,
        "stream/math/response_length/mean": 2.0,
        "stream/math/num_turns/mean": 1.0,
        "stream/math/tokens/trained": 8.0,
    }
    assert found["stream/web/reward/mean"] == 0.5
    assert "stream/web/success/mean" not in found, "nobody said whether it succeeded"
    assert found["batch/constant_groups"] == 2


def test_streams_beyond_those_that_have_curves_are_one_together() -> None:
    groups = [of_stream(f"s{number}", 1.0, 0.0) for number in range(5)]
    found = batch_metrics(job(), 1, groups, ["s0", "s1"])
    assert {name.split("/")[1] for name in found if name.startswith("stream/")} == {"s0", "s1", "others+"}
    assert found["stream/others+/groups"] == 3
