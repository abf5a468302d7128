"""What a batch says of its episodes' lengths and ages."""

from __future__ import annotations

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
