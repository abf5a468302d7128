"""Metrics of one training step, its timing and its pace: pure functions of finished groups.

By verl's names where verl has one; docs/training-metrics.md says what each is. A step begins with its first training
episode, or with the end of the step before where some go on by then.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from statistics import fmean, pstdev
from types import MappingProxyType
from typing import NamedTuple

from swarm.backends.protocols import Batch, TrainEpisode
from swarm.job import Job
from swarm.rollout.groups import Group
from swarm.store.tables import Sample
from swarm.timelines import Drift, linear_rows, token_counts, trained_leaves, tree_tokens, unmerged_rows
from swarm.wire import stream_label

_OTHERS = "others+"
"""No stream's own label: those with a plus end with a hash."""
_FLAT_STEPS = 5
_FLAT_GROUPS, _NEAR_WORST = 0.75, 0.1
"""Of so many steps in a row: the share of groups with equal rewards, and how near the mean reward is to the least."""


class FlatRewards:
    """Sees where there is nothing to learn from: the mean reward stays near its worst, and groups are equal."""

    def __init__(self) -> None:
        self._range = (math.inf, -math.inf)
        self._steps = 0

    def observe(self, metrics: Mapping[str, float]) -> str | None:
        mean = metrics["critic/rewards/mean"]
        low = min(self._range[0], metrics["critic/rewards/min"])
        high = max(self._range[1], metrics["critic/rewards/max"])
        self._range = (low, high)
        equal = metrics["batch/constant_groups"] / metrics["batch/groups"]
        flat = equal >= _FLAT_GROUPS and mean <= low + _NEAR_WORST * (high - low)
        self._steps = self._steps + 1 if flat else 0
        if self._steps < _FLAT_STEPS:
            return None
        return (
            f"for {self._steps} steps the mean reward has stayed at {mean:.3g}, near the least of all ({low:.3g}), and "
            f"{equal:.0%} of the groups have equal rewards: there is hardly anything to learn from. Is the job's "
            "environment the one that is played? Else: easier tasks, rewards for a part, a model that solves some"
        )


def list_samples(groups: Sequence[Group]) -> tuple[Sample, ...]:
    return tuple(sample for group in groups for sample in group.ended)


def make_batch(
    step: int, samples: Sequence[Sample], advantages: Sequence[float] | None = None, *,
    merged: bool = True, mask_cut: bool = False,
) -> Batch:  # fmt: skip
    """Return samples as the learner takes them, with their `advantages` where these are given; unless `merged`, a row
    for each call. mask_cut: answers that a limit on tokens ended are context alone."""
    make, episodes = linear_rows if merged else unmerged_rows, []
    for sample, advantage in zip(samples, advantages or repeat(None, len(samples)), strict=True):
        own = sample.trained_rewards
        masked = frozenset(node.index for node in sample.nodes if node.cut and mask_cut)
        rows = make(sample.nodes, by_call=bool(own), masked=masked)
        episodes.append(TrainEpisode(sample.episode, sample.group, sample.reward, rows, sample.weight, own, advantage))
    return Batch(step, tuple(episodes))


def batch_metrics(
    job: Job, step: int, groups: Sequence[Group], charted: Sequence[str] | None = None
) -> dict[str, float]:
    samples = list_samples(groups)
    rewards = [sample.reward for sample in samples]
    codes = {sample.code for sample in samples} - {None}
    calls = Counter(each.agent for sample in samples for each in sample.trained_rewards)
    drift = Counter(node.drift for sample in samples for node in sample.nodes)
    versions = [[v for node in sample.nodes if node.trained for v in node.versions] for sample in samples]
    ages = {  # how far the episodes lag behind the version that learns them, as verl's asynchronous trainer counts it
        f"training/off_policy/trajectory_staleness{which}/{kind.__name__.removeprefix('f')}": float(
            kind([step - 1 - end(sampled) for sampled in versions if sampled])
        )
        for which, end in (("", max), ("_worst", min))
        for kind in (fmean, min, max)
        if any(versions)
    }
    by_label: dict[str, list[Group]] = {}
    for group in groups:
        alone = charted is None or group.stream in charted
        by_label.setdefault(stream_label(group.stream) if alone else _OTHERS, []).append(group)
    return {
        "critic/rewards/mean": fmean(rewards),
        "critic/rewards/min": min(rewards),
        "critic/rewards/max": max(rewards),
        "critic/rewards/std": pstdev(rewards),
        "batch/episodes": float(len(samples)),
        "batch/groups": float(len(groups)),
        "batch/constant_groups": float(sum(group.constant for group in groups)),
        **({"batch/codes": float(len(codes))} if codes else {}),
        **{name.replace("success", "critic/success"): value for name, value in _outcomes(samples).items()},
        "calls/untrained": float(sum(not node.trained for sample in samples for node in sample.nodes)),
        **ages,
        **_merge(groups),
        **{f"drift/{kind}": float(drift[kind]) for kind in Drift},
        **{
            f"stream/{label}/{name}": value
            for label, own in sorted(by_label.items())
            for name, value in _stream_metrics(own, len(groups)).items()
        },
        **{f"agent/{stream_label(name)}/calls": float(calls[name]) for name in job.train_agents},
    }


def finite_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _outcomes(samples: Sequence[Sample]) -> dict[str, float]:
    successes = [float(sample.success) for sample in samples if sample.success is not None]
    trained = [[node for node in sample.nodes if node.trained] for sample in samples]
    sampled = [sum(len(node.sampled) for node in nodes) for nodes in trained]
    return {
        **({"success/mean": fmean(successes)} if successes else {}),
        "response_length/mean": fmean(sampled),
        "response_length/clip_ratio": fmean(node.cut for nodes in trained for node in nodes),
        "num_turns/mean": fmean(map(len, trained)),
        "tokens/trained": float(sum(sampled)),
    }


def _merge(groups: Sequence[Group]) -> dict[str, float]:
    samples = list_samples(groups)
    counts = [token_counts(sample.nodes) for sample in samples]
    merged, unmerged = (sum(column) for column in zip(*counts, strict=True))
    packed = sum(tree_tokens([sample.nodes for sample in group.ended]) for group in groups)
    return {
        "merge/rows": float(sum(len(trained_leaves(sample.nodes)) for sample in samples)),
        "merge/tokens": float(merged),
        "merge/unmerged_tokens": float(unmerged),
        "merge/ratio": unmerged / merged,
        "merge/tree_tokens": float(packed),
        "merge/tree_ratio": unmerged / packed,
    }


def _stream_metrics(groups: Sequence[Group], of: int) -> dict[str, float]:
    samples = list_samples(groups)
    outcomes = _outcomes(samples)
    del outcomes["response_length/clip_ratio"]
    return {
        "groups": float(len(groups)),
        "episodes": float(len(samples)),
        "reward/mean": fmean(sample.reward for sample in samples),
        **outcomes,
        "share": len(groups) / of,
    }


WINDOW_S = 10.0
"""Seconds over which sampling is averaged."""
STEPS = 10
"""Last steps over which their time is averaged."""
_BETWEEN_S = 0.4
"""Seconds between two entries of the window, so that it stays small."""


class Pace:
    """Told what was done so far, again and again."""

    def __init__(self) -> None:
        self._sampled: deque[tuple[float, int]] = deque()
        self._steps: deque[float] = deque(maxlen=STEPS + 1)

    def record_tokens(self, tokens: int) -> None:
        now = time.monotonic()
        if self._sampled and now - self._sampled[-1][0] < _BETWEEN_S:
            return
        self._sampled.append((now, tokens))
        while now - self._sampled[0][0] > WINDOW_S:
            self._sampled.popleft()

    def record_step(self) -> None:
        self._steps.append(time.monotonic())

    @property
    def sampled_per_s(self) -> float | None:
        """Ids sampled in a second, over the last WINDOW_S; None before there are two looks."""
        if len(self._sampled) < 2:
            return None
        (began, before), (ended, after) = self._sampled[0], self._sampled[-1]
        return (after - before) / (ended - began)

    @property
    def step_s(self) -> float | None:
        """Seconds from one step's end to the next, with all that is waited for between; None before the first step."""
        if len(self._steps) < 2:
            return None
        return (self._steps[-1] - self._steps[0]) / (len(self._steps) - 1)


_ROLLOUT = ("gen", "settle")
"""The laps before the learner's."""


class EngineWork(NamedTuple):
    """What the engine did since it was started: seconds in which it worked on any answer, and ids of training."""

    busy_s: float
    sampled_tokens: int


class Stopwatch:
    """Measures a step, from when it is made; `spent` was measured of its rollout in an earlier life of the server."""

    def __init__(
        self,
        work: Callable[[], EngineWork],
        now: Callable[[], float] = time.perf_counter,
        spent: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._work = work
        self._now = now
        self._lap = now()
        self._laps = {name: spent[key] for name in _ROLLOUT if (key := f"timing_s/{name}") in spent}
        self._began = self._lap - sum(self._laps.values())
        busy, sampled = work()
        earlier = spent.get("timing_s/step", 0.0) * (1 - spent.get("rollouter/idle_ratio", 1.0))
        self._before = EngineWork(busy - earlier, sampled - int(spent.get("tokens/generated", 0)))

    def lap(self, name: str) -> None:
        before, self._lap = self._lap, self._now()
        self._laps[name] = self._lap - before

    def metrics(self) -> dict[str, float]:
        step = max(self._now() - self._began, 1e-9)
        work = self._work()
        busy = work.busy_s - self._before.busy_s
        return {
            **{f"timing_s/{name}": seconds for name, seconds in self._laps.items()},
            "timing_s/step": step,
            "trainer/idle_ratio": self._laps.get("gen", 0.0) / step,
            "rollouter/idle_ratio": max(0.0, 1 - busy / step),
            "tokens/generated": float(work.sampled_tokens - self._before.sampled_tokens),
        }
