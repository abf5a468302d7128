"""The noise bank: what seeds alone do to a metric, from every run collected here.

A pure fold over all logs of a home and a shipped file of real A/A runs, keyed by (environment, model, algorithm): one
value a run, with its group of runs that differ in their seed alone. Banks merge as sets do. Corrupt logs, other results
versions, own rewards and unknown jobs are left out and counted with a reason.

Sums of squares are pooled over groups, each around its own mean; where runs of all arms' very settings are known, over
theirs alone, and the arms' variances are averaged. Collapsed runs are no noise: they are counted apart, and what they
lost is said by runs of the arms' own settings alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import combinations
from statistics import fmean
from typing import Any, TypeVar

from pydantic import Field

from research.installation.base_job import APART, parse_job, without_model_path
from research.installation.studies import FIRST_VERSION, RESULTS_VERSION, VERSION_KEY, every_study
from studies import EventLog, RunState, StudyState
from studies.checks.conditions import INITIAL, detect_collapse, find_fault
from studies.metrics import Refused, kind_of
from studies.records.base import Record, canonical, digest
from studies.records.design import Metric
from studies.records.procedure import CollapseRule, Noise
from studies.records.runs import PLUMBING_ARM, Conditions, TrainingCurve
from studies.records.statements import metric_name
from swarm.job import TINY_CONTEXT, Job, TinyModel, knobs_of

LEAST_DF = 4
"""Fewest degrees of freedom that a figure is stated with: below, a spread is uncertain by a factor of 4 and more."""
LEAST_PAIRS = 10
"""Fewest pairs that a correlation is stated from: below, its 95 % interval is wider than 1.2. A pair is a degree of
freedom of two arms; many arms on the same few seeds count as less than each two of them."""
_WITHIN_TASKS = 0.6
"""Share of p (1 - p) that is within tasks, of 0.54 to 0.65 in recorded runs: more is not known to fall with plays."""
_NOTHING = 1e-9
"""A standard deviation that is none: far under one episode in any evaluation."""
_K = TypeVar("_K")


class Observation(Record):
    """One run's value of a metric."""

    run: str
    study: str
    environment: str
    model: str
    """Digest of the job's model."""
    algorithm: str
    group: str
    """Digest of what it shares with its group: study, design, phase, arm, and the job without its seed."""
    pairing: str
    """Digest of study, design and phase: within it, runs with one seed are pairs."""
    decoding: str
    """How the evaluation samples."""
    seed: int
    steps: int
    metric: str
    episodes: int = Field(ge=1)
    value: float = Field(allow_inf_nan=False)
    initial: float | None = Field(default=None, allow_inf_nan=False)
    """The same metric of the untrained policy; None where it was not measured. Where `play_variance` is known it may be
    an evaluation that other runs share."""
    play_variance: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Variance of one play of the trained policy within its task; None where plays were not counted so."""
    job: str | None = None
    """Digest of the whole job without its seed; None where nobody wrote it down."""
    setting: str | None = None
    """Digest of the job without seed, length and machine; None where nobody wrote it down."""
    collapsed: bool = False
    """Whether training is known to have collapsed, by its course."""

    @property
    def variance_of_plays(self) -> float | None:
        """`play_variance` without what tasks differ, which it has where each was played once and it is p (1 - p)."""
        alike = self.play_variance is not None and math.isclose(self.play_variance, self.value * (1 - self.value))
        return _WITHIN_TASKS * self.play_variance if alike and self.play_variance else self.play_variance

    @property
    def is_share(self) -> bool:
        return self.metric.endswith("/success")

    @property
    def lost(self) -> bool:
        """Whether it collapsed, as far as anybody can say: by its course, or by success below its beginning."""
        if self.collapsed or self.initial is None or not self.is_share:
            return self.collapsed
        known = TrainingCurve(start=self.initial, end=self.value, plays=self.episodes)
        return detect_collapse(Conditions(course=known), CollapseRule()) is not None


def _group_by(entries: Iterable[Observation], key: Callable[[Observation], _K]) -> dict[_K, list[Observation]]:
    groups = dict[_K, list[Observation]]()
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return groups


def _evaluation_variance(entries: Iterable[Observation]) -> float | None:
    """Return the variance of one policy's evaluations, times their episodes; None where too few of shares are known."""
    shares = [entry for entry in entries if entry.is_share]
    if plays := [variance for entry in shares if (variance := entry.variance_of_plays) is not None]:
        return fmean(plays)
    shares = [entry for entry in shares if entry.initial is not None]
    squares, df = 0.0, 0
    for (_, episodes), group in _group_by(shares, lambda entry: (entry.decoding, entry.episodes)).items():
        initial = [entry.initial for entry in group if entry.initial is not None]
        squares += episodes * sum(residual**2 for residual in _residuals(initial))
        df += len(group) - 1
    if df < LEAST_DF:
        return None
    # by chance they spread by more than plays of one rate ever do
    return min(squares / df, fmean(one.initial * (1 - one.initial) for one in shares if one.initial is not None))


def _seed_correlation(groups: Sequence[Sequence[Observation]]) -> tuple[float | None, int]:
    """Return the correlation of residuals of two groups' runs with one seed, and the number of pairs: of n seeds that k
    arms share (n - 1) k (k - 1) / 2 times ((1 + r) / (1 + (k - 1) r))^2, by its variance in large samples."""
    products, left, right, free = 0.0, 0.0, 0.0, Counter[int]()
    for together in _group_by((entry for group in groups for entry in group), lambda entry: entry.pairing).values():
        values = [
            {entry.seed: entry.value for entry in group}
            for group in _group_by(together, lambda entry: entry.group).values()
        ]
        for first, second in combinations(values, 2):
            seeds = sorted(first.keys() & second.keys())
            if len(seeds) > 1:
                a, b = _residuals([first[seed] for seed in seeds]), _residuals([second[seed] for seed in seeds])
                products += sum(x * y for x, y in zip(a, b, strict=True))
                left, right = left + sum(x * x for x in a), right + sum(y * y for y in b)
                free[len(values)] += len(seeds) - 1
    if left <= _NOTHING**2 or right <= _NOTHING**2:
        return None, 0
    correlation = max(-1.0, min(1.0, products / math.sqrt(left * right)))
    alike = max(0.0, correlation)
    pairs = round(sum(count * ((1 + alike) / (1 + (arms - 1) * alike)) ** 2 for arms, count in free.items()))
    return (correlation, pairs) if pairs >= LEAST_PAIRS else (None, 0)


def _split_by_arm(alike: Sequence[Observation], settings: Sequence[str]) -> list[list[Observation]]:
    """Return the runs of each arm's setting, where those say enough; else all but for others that mostly collapse."""
    arms = [[entry for entry in alike if entry.setting == key] for key in dict.fromkeys(settings)]
    enough = (sum(len(group) - 1 for group in _list_groups(arm)) >= LEAST_DF for arm in arms)
    if len(settings) > 1 and all(enough):
        return arms
    lost = _find_groups_of_most(alike, lambda entry: entry.lost)
    return [[entry for entry in alike if entry.setting in settings or entry.group not in lost]]


def _find_groups_of_most(entries: Iterable[Observation], is_so: Callable[[Observation], bool]) -> set[str]:
    groups = _group_by(entries, lambda entry: entry.group)
    return {key for key, group in groups.items() if 2 * sum(map(is_so, group)) > len(group)}


def _list_groups(entries: Iterable[Observation]) -> list[list[Observation]]:
    """Return the runs that did not collapse by what they share but for their seed, where there are two or more."""
    alive = _group_by((entry for entry in entries if not entry.lost), lambda entry: (entry.group, entry.episodes))
    return [group for group in alive.values() if len(group) > 1]


def _mean_drop(entries: Sequence[Observation]) -> float:
    """Return what collapsed runs lack of the mean of their groups' other runs, on average; 0 where none did."""
    lacking = []
    for group in _group_by(entries, lambda entry: (entry.group, entry.episodes)).values():
        kept = [entry.value for entry in group if not entry.lost]
        lacking += [fmean(kept) - entry.value for entry in group if kept and entry.lost]
    return fmean(lacking) if lacking else 0.0


def _pool_variance(
    groups: Sequence[Sequence[Observation]], per_episode: float | None, episodes: int
) -> tuple[float, int]:
    squares, df = 0.0, sum(len(group) - 1 for group in groups)
    for group in groups:
        shift = 0.0 if per_episode is None else per_episode * (1 / episodes - 1 / group[0].episodes)
        squares += sum(r**2 for r in _residuals([entry.value for entry in group])) + shift * (len(group) - 1)
    return (max(0.0, squares / df) if df else 0.0), df


def _residuals(values: Sequence[float]) -> list[float]:
    mean = fmean(values)
    return [value - mean for value in values]


@dataclass(frozen=True, slots=True)
class NoiseBank:
    """What is known about noise; `left_out` counts what was not used, by its reason."""

    observations: frozenset[Observation] = frozenset()
    left_out: Mapping[str, int] = field(default_factory=dict)
    checked: frozenset[tuple[str, str]] | None = None
    """Environments and model keys whose machinery was seen to do nothing at a learning rate of 0; None for a bank that
    says nothing of it, so that nothing is asked of anybody."""

    @classmethod
    def of(cls, log: EventLog, *, shipped: NoiseBank | None = None) -> NoiseBank:
        """Return the bank of a home: all its studies, and the shipped measurements (or those given)."""
        bank = load_shipped_bank() if shipped is None else shipped
        for _, state in every_study(log):
            known = cls.of_study(state) if isinstance(state, StudyState) else cls(left_out={"a corrupt log": 1})
            bank = bank.merge(known)
        return bank

    @classmethod
    def of_study(cls, state: StudyState) -> NoiseBank:
        version = str(state.versions.get(VERSION_KEY, FIRST_VERSION))
        every = [run for run in state.every_run.values() if run.status == "collected"]
        collected = [run for run in every if run.spec.arm != PLUMBING_ARM]
        if version != str(RESULTS_VERSION):
            return cls(left_out=_count_left_out(version, len(collected)))
        observed = [
            (metric is run.spec.metric, _observe(run, metric))
            for run in collected
            for metric in (run.spec.metric, *run.spec.metric.beside.values())
            if metric is run.spec.metric or metric.key in run.measurements
        ]
        seen = (entry for _, entry in observed if isinstance(entry, Observation))
        reasons = Counter(entry for own, entry in observed if own and isinstance(entry, str))  # a run counts once
        asked = (run for run in every if run.spec.arm == PLUMBING_ARM and run.conditions and run.conditions.stillness)
        jobs = ((run.spec.environment, parse_job(run.spec.job)) for run in asked if find_fault(run.conditions) is None)
        checked = frozenset((environment, model_key(job)) for environment, job in jobs if job is not None)
        return cls(frozenset(seen), dict(reasons), checked)

    def merge(self, other: NoiseBank) -> NoiseBank:
        left_out = dict(Counter(self.left_out) + Counter(other.left_out))
        said = [bank.checked for bank in (self, other) if bank.checked is not None]
        checked = frozenset().union(*said) if said else None
        return NoiseBank(self.observations | other.observations, left_out, checked)

    def levels(self, job: Job, metric: Metric) -> tuple[float, ...]:
        """Return what runs of this very job that did not collapse came to, of whatever study, in order."""
        key, wanted = job_key(job), metric_key(metric, job.model_dump(mode="json"))
        alike = (seen for seen in self.observations if (seen.job, seen.metric) == (key, wanted))
        return tuple(sorted(seen.value for seen in alike if not seen.lost))

    def values(self, job: Job, metric: Metric) -> list[float]:
        return [entry.value for entry in self._list_alike(job.environment, job, metric)]

    def _list_alike(self, environment: str, job: Job, metric: Metric) -> list[Observation]:
        wanted = (environment, model_key(job), job.algorithm, metric_key(metric))
        alike = (run for run in self.observations if (run.environment, run.model, run.algorithm, run.metric) == wanted)
        return sorted(alike, key=lambda entry: (entry.study, entry.group, entry.seed, entry.run))

    def needs_zero_lr_check(self, job: Job) -> bool:
        return self.checked is not None and (job.environment, model_key(job)) not in self.checked

    def find(self, environment: str, job: Job, metric: Metric, others: Sequence[Job] = ()) -> Noise | str:
        """Return the noise of a metric with so many evaluation episodes, or in a sentence why nothing is known of it.
        Pooled are groups evaluated on as many episodes; all where it is known what of the spread is evaluation."""
        seen = self._list_alike(environment, job, metric)
        cut_at = None if metric.threshold is None else metric.cut_at
        # of groups that mostly end at a horizon the spread says nothing
        late = set() if cut_at is None else _find_groups_of_most(seen, lambda entry: entry.value >= cut_at)
        alike = [entry for entry in seen if entry.group not in late]
        settings = [setting_key(each) for each in (job, *others)]
        arms = _split_by_arm(alike, settings)
        known = [entry for arm in arms for entry in arm]
        about = f"{environment}, this model, {job.algorithm} and {metric_name(metric)}"
        left_out = ", ".join(f"{count} of {reason}" for reason, count in sorted(self.left_out.items()))
        left_out = f"; left out: {left_out}" if left_out else ""
        alive, groups = [entry for entry in known if not entry.lost], _list_groups(known)
        if not groups and seen and metric.threshold is not None:
            return f"Most of the {len(seen)} runs of {about} in the noise bank never reached {metric.threshold:g}."
        if not groups:
            return f"The noise bank has no two runs of {about} that differ in their seed alone{left_out}."
        per_episode, by_episodes = _evaluation_variance(alive), Counter[int]()
        for group in groups:
            by_episodes[group[0].episodes] += len(group) - 1
        episodes = min(by_episodes, key=lambda count: (-by_episodes[count], count))
        used = [group for group in groups if per_episode is not None or group[0].episodes == episodes]
        variance, df = _pool_variance(used, per_episode, episodes)
        parts = [_pool_variance([group for group in used if group[0] in arm], per_episode, episodes) for arm in arms]
        if len(parts) > 1 and variance > 0 and min(free for _, free in parts) >= LEAST_DF:
            variance = fmean(part for part, _ in parts)  # with Satterthwaite's degrees of freedom
            df = int((len(parts) * variance) ** 2 / sum(part**2 / free for part, free in parts))
        runs = sum(map(len, used))
        where = f"{len(used)} {'group' if len(used) == 1 else 'groups'}"
        if df < LEAST_DF:
            return (
                f"The noise bank has {runs} runs of {about} in {where}: {df} degrees of freedom, where {LEAST_DF} are "
                f"the least{left_out}."
            )
        if variance <= _NOTHING**2:
            return f"The noise bank has {runs} runs of {about} that do not vary at all, which says nothing."
        if per_episode is None and metric.episodes < episodes:
            return (
                f"The noise bank has runs of {about} with {episodes} evaluation episodes and does not know what of "
                f"their spread is evaluation, so that it says nothing about {metric.episodes}."
            )
        evaluation, measured = None, variance
        if per_episode is not None:
            there = per_episode / episodes
            if not any(entry.play_variance is not None for entry in alive):
                there = min(variance, there)  # of few evaluations of another policy
            evaluation = there * episodes / metric.episodes
            variance = max(0.0, variance - there) + evaluation
        steps = sorted({entry.steps for group in used for entry in group})
        lengths = str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
        lengths = "" if steps == [job.steps] else f", of {lengths} training steps"
        studies, collapsed = len({entry.study for group in used for entry in group}), len(known) - len(alive)
        more = f"; {collapsed} more collapsed" if collapsed else ""
        correlation, pairs = _seed_correlation(_list_groups(alike))
        if correlation is not None:  # fewer plays add what runs with one seed do not have in common
            correlation *= min(1.0, measured / variance)
        drop = _mean_drop([entry for entry in known if entry.setting in settings])  # others have less to lose, or more
        return Noise(
            sd=math.sqrt(max(variance, _NOTHING**2)), df=df, episodes=metric.episodes, correlation=correlation,
            evaluation_sd=None if evaluation is None else math.sqrt(evaluation), pairs=pairs,
            basis=f"{runs} runs in {where} that differ in their seed alone{lengths}, from {studies} "
            f"{'study' if studies == 1 else 'studies'}; results version {RESULTS_VERSION}{more}{left_out}",
            collapsed=collapsed, runs=len(known), drop=drop if drop > 0 else None,
            measured_sd=None if evaluation is None else math.sqrt(measured),
            measured_episodes=None if evaluation is None else episodes,
        )  # fmt: skip


class ZeroLrRun(Record):
    """A run with a learning rate of 0 that changed nothing."""

    environment: str
    model: str
    """Digest of the job's model and backend."""
    steps: int
    weights: str
    """sha256 of the weights, before and after."""
    probs_diff: float
    """Most by which engine and learner differed on a sampled token's probability."""
    probs_tolerance: float
    """What the backend allows."""


class BankFile(Record):
    """A shipped measurement: what was observed, where and how."""

    results_version: int
    provenance: Mapping[str, object]
    observations: tuple[Observation, ...]
    plumbing: tuple[ZeroLrRun, ...] = ()


@cache
def load_shipped_bank() -> NoiseBank:
    bank, folder = NoiseBank(), resources.files("research") / "design"
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".json"):
            bank = bank.merge(read_bank(entry.read_bytes()))
    return bank


def read_bank(data: bytes) -> NoiseBank:
    file = BankFile.model_validate_json(data)
    if file.results_version != RESULTS_VERSION:
        return NoiseBank(left_out=_count_left_out(file.results_version, len(file.observations)))
    checked = frozenset((entry.environment, entry.model) for entry in file.plumbing)
    return NoiseBank(frozenset(file.observations), checked=checked)


def model_key(job: Job) -> str:
    """Return the key of a job's model and of what trains it: a scripted backend's noise is not a real one's."""
    return digest({"model": without_model_path(job).model.value(), "backend": job.backend})[:16]


def job_key(job: Job) -> str:
    """Return the key of a job whatever its seed: runs that share it differ by chance alone."""
    return digest(_drop_seed(job))[:16]


def setting_key(job: Job) -> str:
    return digest({**_drop_seed(job), "steps": None, "device": None})[:16]


def _drop_seed(job: Job) -> dict[str, Any]:
    fields = {name: content for name, content in without_model_path(job).value().items() if name not in APART}
    if isinstance(job.model, TinyModel) and job.max_context == TINY_CONTEXT:
        fields["max_context"] = 256  # as it was while what is known of these jobs was measured; no answer comes near it
    return fields


def _observe(run: RunState, metric: Metric) -> Observation | str:
    if run.spec.sources:
        return "a run with code of its own"
    if (measured := run.measurements.get(metric.key)) is None:
        return "a run without its measurement"
    if (job := parse_job(run.spec.job)) is None:
        return "a run of a job that this ajet does not know"
    try:
        kind = kind_of(metric)
        counted, evaluates = kind.reads_collapses, kind.evaluates  # a collapsed training's value may be as any other
    except Refused:  # nobody knows the kind any more
        counted, evaluates = False, True
    initial = run.measurements.get(metric.key + INITIAL)
    fallen = run.conditions is not None and detect_collapse(run.conditions, CollapseRule()) is not None
    comparison = [run.spec.study, run.spec.design_hash, run.spec.phase]
    return Observation(
        run=run.run_id, study=run.spec.study, environment=run.spec.environment, model=model_key(job),
        algorithm=job.algorithm, group=digest([*comparison, run.spec.arm, _drop_seed(job)])[:16],
        pairing=digest(comparison)[:16], decoding=f"temperature {job.temperature:g}, {job.max_tokens} tokens",
        seed=run.spec.seed, steps=job.steps, metric=metric_key(metric, run.spec.job),
        episodes=1 if not evaluates else measured.n if metric.schedule is None else metric.episodes,
        value=measured.value, initial=initial.value if initial is not None else None,
        play_variance=(run.collected or {}).get("play_variance"), collapsed=not counted and fallen, job=job_key(job),
        setting=setting_key(job),
    )  # fmt: skip


def metric_key(metric: Metric, job: Mapping[str, Any] | None = None) -> str:
    """Return the key of a metric with all that its values depend on, of the usual game where no job says another."""
    knobs = knobs_of(metric.evaluated(job or {}))
    game = f"at {canonical(knobs)}" if knobs and job else None
    plan = None if metric.schedule is None else f"{metric.schedule.episodes} every {metric.schedule.every}"
    horizon = None if metric.horizon is None else f"to {metric.horizon:g}"
    return " ".join(filter(None, (f"{metric.split}:{metric.key}", horizon, plan, game)))


def _count_left_out(version: object, count: int) -> dict[str, int]:
    return {f"runs of results version {version} (this is version {RESULTS_VERSION})": count} if count else {}
