"""Which metric a study is judged by, and in which unit, range and margin.

`episodes:0.7` are the training episodes to 0.7 hidden success, `fact:guesses` a fact of the environment.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from research.errors import BadInput, DesignRefused
from research.proposals.arms import set_knobs
from research.text import did_you_mean
from studies.metrics import Asked, MetricKind, Refused, kind_named, kind_of, kinds
from studies.metrics.builtin import Gain, Success
from studies.metrics.registry import define_metric, faults
from studies.records.design import Metric, task_seed_of
from studies.records.runs import TRAINING_AREA
from swarm.environments.base import MAX_TURNS
from swarm.environments.registry import environments
from swarm.job import Job

_EXAMPLES: Final = {
    "tokens": "200", "transfer": "arith", "logged": "actor/entropy:first10:0..3", "success-at-tokens": "100000",
    "success-at-seconds": "60",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RequestedMetric:
    """A kind of metric with its parameters."""

    kind: str
    threshold: float | None = None
    of: str = ""
    """The fact, or the other environment."""
    words: str = ""
    """The words of a topic that chose it; empty where it was named."""
    stated: bool = field(default=False, compare=False)
    """Whether a topic states the threshold."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the metric that a flag names, `NAME`, `NAME:THRESHOLD` or `NAME:OF`; raise BadInput."""
        name, colon, rest = text.strip().partition(":")
        takes = (kind := find_kind(name)).takes
        if not colon:
            return cls(name)
        if not takes:
            raise BadInput(f"expected {name} alone, which takes nothing more; found {text!r}; leave :{rest} out")
        example = _EXAMPLES.get(name, "calls" if "of" in takes else "0.7")
        form = f"{name}:{kind.form if 'of' in takes else 'THRESHOLD'}, such as {name}:{example}"
        if not rest.strip():
            raise BadInput(f"expected {form}; found {text!r}; write what belongs behind the colon")
        if "of" not in takes:
            return cls(name, _parse_threshold(rest, form))
        of, second, last = rest.rpartition(":")
        if not second or "threshold" not in takes:
            return cls(name, of=rest.strip())
        return cls(name, _parse_threshold(last, "a name and a threshold, such as NAME:0.7"), of.strip())

    @classmethod
    def parse_flags(cls, texts: Sequence[str]) -> Self | None:
        """Return the metric that `--metric` names, None for none; raise BadInput, or DesignRefused for several."""
        if len(texts) > 1:
            raise DesignRefused(
                f"expected one metric; found --metric {' and --metric '.join(texts)}; name the one that decides: a "
                "report tells others beside it"
            )
        return cls.parse(texts[0]) if texts else None

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self | None:
        """Return the metric that a study's settings hold; None where nobody asked for one."""
        held = settings.get("metric")
        if held is None:
            return None
        return cls(held["kind"], held.get("threshold"), held.get("of", ""), held.get("words", ""))

    def settings(self) -> dict[str, Any]:
        held = {"kind": self.kind, "threshold": self.threshold, "of": self.of, "words": self.words}
        return {"metric": {name: value for name, value in held.items() if value not in (None, "")}}

    @property
    def text(self) -> str:
        """What `--metric` takes: `episodes:0.7`."""
        parts = (self.kind, self.of, "" if self.threshold is None else f"{self.threshold:g}")
        return ":".join(filter(None, parts))


def find_kind(name: str) -> MetricKind:
    """Return the kind of a name; raise BadInput for a name that there is not, or that of a broken package."""
    known = kinds()
    if name not in known and name not in faults():
        near = did_you_mean(name, known) or f"; they are {', '.join(known)}"
        raise BadInput(f"expected a metric; found {name!r}{near} (`ajet metric list` says what each is)")
    try:
        return kind_named(name)
    except Refused as error:
        raise BadInput(str(error)) from error


def flag_syntax(kind: MetricKind) -> str:
    of = f":{kind.form}" if "of" in kind.takes else ""
    return f"{kind.name}{of}{':THRESHOLD' if 'threshold' in kind.takes else ''}"


def _parse_threshold(text: str, form: str) -> float:
    plain = text.strip()
    try:
        return float(plain[:-1]) / 100 if plain.endswith("%") else float(plain)
    except ValueError as error:
        raise BadInput(f"expected {form}; found the threshold {text!r}; write a number") from error


_SLACK = 2.0
"""A time is cut at so many times what the longest training is priced at."""
_ROUND = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0)
"""Seconds are cut at one of these, times a power of ten, so that a price that moves a little moves no horizon."""


@dataclass(frozen=True, slots=True)
class MetricChoice:
    """Says what runs are judged by."""

    asked: RequestedMetric | None
    """None where nobody asked for one: success, or its gain where models are compared."""
    training_s: Callable[[Job], float]
    """Seconds that the training of a job is taken to last."""
    measured_by: Metric | None = None
    """What runs of this study are judged by already: seconds are cut where theirs are."""
    study: str = ""
    """The study, whose runs are all evaluated on the same tasks; empty where nothing is run."""

    def metric(self, jobs: Sequence[Job], episodes: int, *, models: bool = False, played: Sequence[Job] = ()) -> Metric:
        """Return the metric of a comparison of jobs, or of `models`; raise DesignRefused where it cannot be had.
        `played` are all whose plays it may be of, none where others than their environments' players play."""
        asked = self.asked or RequestedMetric(Gain.name if models else Success.name)
        environment = set_knobs(jobs[0].environment, jobs[0].environment_args)
        others = sorted(set(environments()) - {environment.name})
        if find_kind(asked.kind).of_environment and asked.of not in others:
            raise DesignRefused(
                f"expected another environment than {environment.name}, of {', '.join(others)}; found "
                f"{asked.of or 'no name'}; name one (--metric {asked.kind}:{others[0]})"
            )
        if asked.kind == TRAINING_AREA and any(job.batch_rule == "varied_groups" for job in jobs):
            raise DesignRefused(
                f"expected batches of all groups, whose success {asked.kind} reads; found batch_rule = varied_groups, "
                "which drops those that are all solved or all missed; ask for another metric, --metric area"
            )
        given = Asked(
            measures=environment.measures, episodes=episodes, threshold=asked.threshold, of=asked.of,
            horizon=max(job.steps * job.episodes_per_step for job in jobs), horizon_s=self._horizon_s(jobs),
            rewards=environment.reward_range, tokens=max(job.max_context for job in jobs), facts=environment.facts,
            sampled=max(map(_most_sampled, played), default=None),
        )  # fmt: skip
        try:
            metric = define_metric(find_kind(asked.kind), given)
        except Refused as error:
            raise DesignRefused(str(error)) from error
        seed = task_seed_of(self.study, environment.name) if self.study else None
        return metric.model_copy(update={"task_seed": seed})

    def _horizon_s(self, jobs: Sequence[Job]) -> float:
        if self.measured_by is not None and self.measured_by.unit == "seconds" and self.measured_by.horizon is not None:
            return self.measured_by.horizon
        seconds = _SLACK * max(map(self.training_s, jobs))
        whole = 10.0 ** math.floor(math.log10(max(seconds, 1.0)))
        return next(part * whole for part in _ROUND if part * whole >= seconds or part == _ROUND[-1])


def _most_sampled(job: Job) -> int:
    environment = set_knobs(job.environment, job.environment_args)
    turns = environment.knob(MAX_TURNS) if MAX_TURNS in environment.list_knobs() else 0
    bounded = isinstance(turns, int) and turns > 0 and not environment.has("agent")
    return min(job.max_context, turns * job.max_tokens) if bounded else job.max_context


def add_evaluations(job: Job, metric: Metric) -> Job:
    if metric.schedule is None:
        return job
    steps = metric.schedule.steps(job.model_dump(mode="json", include={"steps", "episodes_per_step"}))
    return job.model_copy(update={"evaluate_after": steps, "evaluation_episodes": metric.schedule.episodes})


def remove_evaluations(job: Job) -> Job:
    usual = {name: Job.model_fields[name].default for name in ("evaluate_after", "evaluation_episodes")}
    return job.model_copy(update=usual)


def metric_range(metric: Metric) -> float:
    return abs(metric.best - metric.worst)


def default_effect(metric: Metric) -> float:
    """Return the smallest difference that matters where nobody says another one, in the metric's unit."""
    return float(f"{kind_of(metric).effect * metric_range(metric):.6g}")


def format_amount(metric: Metric, value: float) -> str:
    """Return a value or difference of a metric with its unit; a share with three decimals."""
    return f"{format_value(metric, value)} {metric.unit}" if metric.unit else f"{value:.3f}"


def format_value(metric: Metric, value: float) -> str:
    """Return a value without its unit, as short as it may be; whole where the range is of hundreds."""
    return f"{value:g}" if not metric.unit or metric_range(metric) < 100 else f"{value:,.0f}"


def format_difference(metric: Metric, value: float) -> str:
    """Return a difference as it was given, with its unit: `0.1`, or `512 episodes`."""
    return f"{value:g} {metric.unit}".strip()


THRESHOLD: Final = 0.6
"""Hidden success that is to be reached where a topic names no other: all A/A runs of `guess` and `arith` reach it on
the way (`research/noise`), where those of `arith` mostly end before 0.7."""
SPEED: Final = ("area", "episodes", "seconds")
"""Kinds that are of speed: a share that a topic names is their threshold."""


def default_threshold(kind: str) -> float | None:
    return THRESHOLD if kind in ("episodes", "seconds") else None
