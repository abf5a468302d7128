"""What a run costs in seconds: before any is run, and once runs of the study itself have ended.

The first estimate adds the parts of a run (`research.design.estimates`): what somebody measured of its environment and
model, and arithmetic where nobody did. A run of the same job observed before on this installation beats it, if it
was measured on as many episodes and ran where runs of this study run: containers cost more than processes.

From its first run that ends on, a study goes by its own: `price_of` is the price in the lock times what its newest runs
took of theirs, and a later round is priced by what those of the rounds before took. It follows from the log alone, and
from times alone: no result moves it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import median
from typing import NamedTuple

from pydantic import ValidationError

from research.design.estimates import EVALUATION_EPISODES, Estimates, KnownCheck, unchecked
from research.environments.measured import MeasuredEnvironment
from research.installation.every_study import readable
from research.installation.machine import cores
from research.installation.model_folder import wherever
from research.metrics.judge import scheduled, unscheduled
from research.once_for_a_state import once_for_a_state
from studies import AttemptState, EventLog, RunState, StudyState
from studies.metrics.registry import other_environment
from studies.records.design import Metric, RunSpec
from studies.records.design_parts import Phase
from studies.records.run_specs import PLUMBING_ARM, PLUMBING_EPISODES, plumbing_job
from swarm.job import Job

OVERHEAD_S = 35.0
"""Once per study: the tiny model is made, the report is built."""
NEWEST_STUDIES = 10
"""So many studies of an installation say what its runs take."""
NEWEST_RUNS = 8
"""So many runs of a study say what its next one takes: enough for a median, and a machine's load changes."""
PROCESSES = "process"
_ESTIMATED = "a first estimate for the default tiny model on 2 cores"
_OBSERVED = "runs of the same jobs on this installation where there were any, else " + _ESTIMATED


@dataclass(frozen=True, slots=True)
class Pricing:
    """The price list of an installation."""

    seconds_per_run: Callable[[Job], float]
    """Seconds of a run whose evaluations have `EVALUATION_EPISODES` episodes each."""
    parallel: int
    """Runs that go at once."""
    overhead_s: float
    """Seconds a study takes besides its runs."""
    basis: str
    """Where the prices come from, in words."""
    times: float = 1.0
    """How many times their listed seconds runs take at present."""
    estimates: Estimates = field(default_factory=Estimates)
    """What the parts of runs are taken to cost."""

    def run(self, job: Job, episodes: int = EVALUATION_EPISODES) -> float:
        """Return the seconds of one run whose evaluations have so many episodes each."""
        more = self.estimates.evaluations(job, episodes) - self.estimates.evaluations(job)
        listed = max(1.0, self.seconds_per_run(job) + more) if more else self.seconds_per_run(job)
        return self.times * listed

    def judged(self, job: Job, metric: Metric) -> float:
        """Return the seconds of one run with all the evaluations that a metric takes."""
        of_run = self.run(scheduled(job, metric), metric.episodes)
        if (other := other_environment(metric)) is None:
            return of_run
        there = job.model_copy(update={"environment": other})
        return of_run + self.times * self.estimates.evaluations(there, metric.episodes) / 2

    def training(self, job: Job) -> float:
        """Return the seconds that the training of a job takes, without its evaluations, whatever runs take at present.

        With its start where its runs were seen, as that cannot be told apart.
        """
        bare = unscheduled(job)
        return max(self.estimates.training(bare), self.seconds_per_run(bare) - self.estimates.evaluations(bare))

    def step(self, job: Job) -> float:
        """Return the seconds of one training step, by the price of a whole run: more than it takes, never less."""
        return self.run(job) / job.steps

    def plumbing(self, job: Job, episodes: int = EVALUATION_EPISODES) -> float:
        """Return the seconds of the run of a job with which nothing may be learned."""
        still = Job.model_validate(plumbing_job(job.model_dump(mode="json")))
        return self.run(still, min(episodes, PLUMBING_EPISODES))

    def after_noise(self, state: StudyState) -> Pricing:
        """Return the price list with every price times what the study's own runs took of theirs.

        By its A/A runs; of an inquiry's next round, by its newest runs of all rounds, until that has A/A runs that
        ended. All prices, as what slows one job, such as a loaded machine, is not known to spare another.
        """
        plan, asks_on = state.noise_plan, state.most_rounds > 1 and state.design is not None
        if asks_on or plan is None or not _took(state, ("noise",)):
            return self._after_rounds(state)
        times = price_of(state, "noise") / self.judged(Job.recorded(plan.job), plan.judged)
        return replace(self, times=times, basis=f"{self.basis}, times {times:.2g}, as this study's A/A runs took")

    def _after_rounds(self, state: StudyState) -> Pricing:
        """Return the price list of a round that is asked after others; itself for a first round."""
        if state.most_rounds == 1:
            return self
        tries = _whole_tries(state.every_run.values())
        newest = sorted(((run, attempt) for run, attempt in tries if _job(run) is not None), key=_when)[-NEWEST_RUNS:]
        if not newest:
            return self
        times = median(self._share(run, attempt) for run, attempt in newest)
        return replace(self, times=times, basis=f"{self.basis}, times {times:.2g}, as this study's runs so far took")

    def _share(self, run: RunState, attempt: AttemptState) -> float:
        """Return what an attempt at a run took of its listed seconds."""
        return (attempt.seconds or 0.0) / self.judged(Job.recorded(run.spec.job), run.spec.metric)


def priced_by(pricing: Pricing, jobs: Sequence[Job]) -> str:
    """Return where the price of a comparison of jobs comes from, in words, with what is not known of their models."""
    unknown = dict.fromkeys(pricing.estimates.said_of(job) for job in jobs)
    return "; ".join(filter(None, (pricing.basis, *unknown)))


def price_key(job: Job, sandbox: str = PROCESSES) -> str:
    """Return the key under which observed seconds of a job are kept: its digest at seed 0, and the kind of sandbox."""
    digest = wherever(job).model_copy(update={"seed": 0}).digest()
    return digest if sandbox == PROCESSES else f"{sandbox}:{digest}"


def make_pricing(
    parallel: int,
    observed: Mapping[str, float] | None = None,
    sandbox: str = PROCESSES,
    measured: Sequence[MeasuredEnvironment] = (),
    check_of: KnownCheck = unchecked,
) -> Pricing:
    """Return the price list; `observed` maps `price_key(job, sandbox)` to the seconds that a run of it took here.

    `measured` is what somebody measured of the parts of runs, `check_of` what a check of a model did.
    """
    seen, estimates = dict(observed or {}), Estimates(measured, check_of, max(1, cores() // parallel))

    def seconds(job: Job) -> float:
        if (known := seen.get(price_key(job, sandbox))) is None and job.evaluate_after:
            known = seen.get(price_key(unscheduled(job), sandbox))
            return estimates.run(job) if known is None else known + estimates.during(job)
        return known or estimates.run(job)

    return Pricing(seconds, parallel, OVERHEAD_S, _OBSERVED if seen else _ESTIMATED, estimates=estimates)


def observed_seconds(log: EventLog, besides: str = "") -> dict[str, float]:
    """Return the median seconds of the finished attempts at each job, by its price key, over the newest studies.

    A study whose own prices are asked for is left out (`besides`): it follows its own runs by `price_of`. Only
    runs whose evaluations had the usual number of episodes count: the price of others is computed from theirs.
    """
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    others = (study for study in readable(log) if study.id != besides)
    for study in islice(others, NEWEST_STUDIES):
        for run in study.every_run.values():
            if (job := _job(run)) is None or run.spec.metric.episodes != EVALUATION_EPISODES:
                continue
            for attempt in run.attempts:
                if attempt.seconds and _is_whole(attempt):
                    seconds[price_key(job, _kind(attempt))].append(attempt.seconds)
    return {key: median(values) for key, values in seconds.items()}


def _kind(attempt: AttemptState) -> str:
    return str(attempt.sandbox.get("kind", PROCESSES))


def _job(run: RunState) -> Job | None:
    """Return the run's job; None for one that an older ajet ran and this one does not know."""
    try:
        return Job.recorded(run.spec.job)
    except ValidationError:
        return None


def locked_price(state: StudyState, phase: Phase, steps: int | None = None) -> float:
    """Return the seconds that one run of a phase was priced at beforehand, by its steps in a screen."""
    if phase == "explore":
        return state.explorations[-1].seconds_per_run if state.explorations else 0.0
    if phase == "noise" or state.locked_design is None:
        return state.noise_seconds
    price, usual = state.locked_design.price.seconds_per_run, state.locked_design.base_job.get("steps")
    return price if steps is None or not usual else price * steps / float(str(usual))


def observed_run(state: StudyState, phase: Phase) -> bool:
    """Return whether a run under the same lock has ended, so that `price_of` follows what runs really take."""
    return bool(_took(state, _under(phase)))


def price_of(state: StudyState, phase: Phase, steps: int | None = None) -> float:
    """Return the seconds that one more run of a phase takes, by what the study's newest runs took.

    By those of the phase itself that were priced alike (in a screen: of as many steps); else by those of any phase that
    were; else by all under the same lock. Before one has ended, the price is the locked one.
    """
    locked = locked_price(state, phase, steps)
    took = _took(state, _under(phase))
    alike = [entry for entry in took if entry.priced == locked]
    own = [entry for entry in alike if entry.phase == phase]
    newest = (own or alike or took)[-NEWEST_RUNS:]
    if not newest:
        return locked
    # a log may name no price of its A/A runs
    return (locked or 1.0) * median(entry.seconds / (entry.priced or 1.0) for entry in newest)


def _under(phase: Phase) -> tuple[Phase, ...]:
    """Return the phases whose runs are under the same lock."""
    return (phase,) if phase in ("noise", "explore") else ("screen", "confirm", "replicate")


class _Took(NamedTuple):
    """What one finished attempt was priced at, and what it took."""

    launched: str
    phase: Phase
    priced: float
    seconds: float


def _took(state: StudyState, phases: tuple[Phase, ...]) -> list[_Took]:
    """Return the finished attempts at runs of these phases, the newest last, without those that went on from another.

    What such a one took is a part of what a run takes; what a killed one took is not known for sure.
    """
    return [entry for entry in _all_took(state) if entry.phase in phases]


@once_for_a_state
def _all_took(state: StudyState) -> list[_Took]:
    return sorted(
        _Took(attempt.launched, run.spec.phase, _priced(state, run.spec), attempt.seconds)
        for run, attempt in _whole_tries(state.runs.values())
        if attempt.seconds
    )


def _whole_tries(runs: Iterable[RunState]) -> Iterator[tuple[RunState, AttemptState]]:
    """Yield the attempts whose seconds are those of a whole run that trains, with their runs."""
    for run in runs:
        if run.spec.arm != PLUMBING_ARM:
            yield from ((run, attempt) for attempt in run.attempts if attempt.seconds and _is_whole(attempt))


def _when(attempted: tuple[RunState, AttemptState]) -> str:
    return attempted[1].launched


def _is_whole(attempt: AttemptState) -> bool:
    """Return whether an attempt's seconds are those of a whole run."""
    return attempt.status == "finished" and attempt.resumes is None


def _priced(state: StudyState, spec: RunSpec) -> float:
    return locked_price(state, spec.phase, int(str(spec.job["steps"])) if spec.phase == "screen" else None)
