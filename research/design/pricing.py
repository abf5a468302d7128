"""The price in seconds of a run and of a design, and what a study may still spend.

As measured for this environment and model, else estimated by the constants below for 2 cores that make 2 runs at once,
with 2 operations of a parameter for a token that is fed and 6 for one that is learned. A run of the same job observed
here beats it. From its first ended run on a study goes by its own times (`price_of`), which follow from the log and
from times alone, so that no result moves them. A design is priced at its worst: every seed, the whole screen, the
replication, in waves of as many runs as the machine makes at once.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from statistics import median
from typing import Any, Final, NamedTuple

from research.environments.catalog import NO_MODEL, MeasuredEnvironment, differences, find_all_measurements, model_key
from research.installation.base_job import parse_job, without_model_path
from research.installation.home import Home
from research.installation.machine import Capacity, cores, devices_of, max_parallel_runs, run_bytes
from research.installation.studies import readable_studies
from research.models.fetch import check_loader
from research.proposals.metric_choice import add_evaluations, remove_evaluations
from research.text import format_flag, format_seconds, memoize_last
from studies import AttemptState, EventLog, RunState, StudyState
from studies.checks.conditions import find_zero_lr_run
from studies.metrics.registry import kind_of, other_environment
from studies.records.design import Budget, Metric
from studies.records.procedure import Phase
from studies.records.runs import PLUMBING_ARM, PLUMBING_JOB, begins_alike, is_untrained_run
from studies.records.statements import model_name
from swarm.job import Job, PathModel
from swarm.models import ModelCheck, model_place

STARTUP_S: Final = 7.0
"""Server and client processes start, the model is loaded."""
BOOTS_S: Final[Mapping[str, float]] = {"verl": 100.0}
"""As much with a backend that has more to start: Ray, a rank and a replica, as in a study of 13 runs on 2 cores."""
SECONDS_PER_CALL: Final = 0.0014
"""One chat completion, with all that happens around it, at the default concurrency."""
UPDATE_SECONDS_PER_EPISODE: Final = 0.16 / 128
"""One pass of the optimiser over one episode."""
CALLS_PER_EPISODE: Final[Mapping[str, float]] = {"guess": 3.1, "arith": 1.0, "market": 2.0, "words": 1.0}
_UNKNOWN_CALLS_PER_EPISODE = 4.0
EVALUATION_EPISODES: Final = 512
"""Hidden episodes per evaluation, unless a study asks for others."""
BOTH_EVALUATIONS: Final = 2 * EVALUATION_EPISODES
"""Of one evaluation before training and one after, as the price list has them."""
FED_PROMPT: Final = 8
"""Tokens of a call's prompt that are new to the engine."""
RATES: Final[Mapping[str, float]] = {"cpu": 5e10, "mps": 1e12, "cuda": 1e13}
"""Operations a second: half of what a core does in float32; the others' by order of magnitude. `auto` is a core."""
LOADED_PER_S: Final = 5e8
"""Bytes of weights that are read in a second."""
_SHARED: Final = 0.9
"""Part of a device's memory that runs share: the rest is for what allocators keep."""
_TINY: Final = 1_000_000
"""Parameters up to which the constants above stand for a model."""

KnownCheck = Callable[[Job], ModelCheck | None]
"""Returns what `ajet model check` measured of a job's model under the job's conditions; None where nobody asked it."""
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
class Estimates:
    """The estimated seconds of runs, by what was measured of environments and models."""

    measured: Sequence[MeasuredEnvironment] = ()
    check_of: KnownCheck = lambda job: None
    threads: int | None = None
    """Most threads that a run's server has; None for as many as a check had."""

    def run(self, job: Job) -> float:
        """Return the seconds of one run of `job` with the usual evaluations, and those that the job has in it."""
        known = self.of(job)
        startup = None if known is None else known.startup_s
        if startup is None:
            check = self._check(job)
            load_s = 4 * _count_large_parameters(job) / LOADED_PER_S if check is None else check.load_s
            startup = BOOTS_S.get(job.backend, STARTUP_S) + load_s
        return startup + self.training(job) + self.during(job) + self.evaluations(job)

    def training(self, job: Job) -> float:
        return job.steps * job.episodes_per_step * (self._episode_seconds(job) + job.epochs * self._update_seconds(job))

    def during(self, job: Job) -> float:
        return len(job.evaluate_after) * job.evaluation_episodes * self._episode_seconds(job)

    def evaluations(self, job: Job, episodes: int = BOTH_EVALUATIONS) -> float:
        return episodes * self._episode_seconds(job)

    def sampled_tokens(self, job: Job) -> float:
        """Return the tokens that an episode samples."""
        known = self.of(job)
        measured = None if known is None else known.sampled_tokens
        return self._calls_per_episode(job) * job.max_tokens / 2 if measured is None else measured

    def describe_basis(self, job: Job) -> str:
        """Return what a price of this job rests on besides the usual constants, in words; empty for nothing else."""
        if self.of(job) is not None:
            return f"with what was measured of {job.environment} and this model"
        reasons = []
        if others := sorted((differences(known, job) for known in self._measured_of(job)), key=len):
            reasons.append(
                f"what was measured of {job.environment} with this model does not count, as it was with "
                f"{', '.join(others[0])} (measure it: ajet env check {job.environment} --job FILE)"
            )
        if isinstance(job.model, PathModel):
            name, counted = model_name(job.model.model_dump()), f"{count_parameters(job):,} parameters"
            reasons.append(
                f"{name} was never measured here: estimated from {counted}"
                if self.check_of(job) is None
                else f"by what `ajet model check` measured of {name}, whatever the prompts of {job.environment}"
            )
        elif job.environment not in CALLS_PER_EPISODE:
            reasons.append(f"{job.environment} was never measured here")
        return "; ".join(reasons)

    def of(self, job: Job) -> MeasuredEnvironment | None:
        """Return what was measured last of a job's environment with its model, as the job samples; None for nothing."""
        alike = (known for known in self._measured_of(job) if not differences(known, job))
        return max(alike, key=lambda known: known.measured_at, default=None)

    def _measured_of(self, job: Job, model: str = "") -> Sequence[MeasuredEnvironment]:
        if not self.measured:  # a model's key may be the hash of its folder, which is read for it
            return ()
        wanted = (job.environment, model or model_key(job.model))
        return [known for known in self.measured if (known.environment, known.model) == wanted]

    def _episode_seconds(self, job: Job) -> float:
        known = self.of(job)
        if known is not None and known.seconds_per_episode is not None:
            return known.seconds_per_episode
        call_s = SECONDS_PER_CALL
        if (check := self._check(job)) is None:
            call_s += 2 * _operation_seconds(job)
        else:
            fed, sampled = check.seconds_per_prompt_token, check.seconds_per_generated_token
            call_s += self._slowdown(check) * (FED_PROMPT * fed + job.max_tokens / 2 * sampled)
        alone = next(iter(self._measured_of(job, NO_MODEL)), None)
        own = 0.0 if alone is None else alone.environment_seconds_per_episode or 0.0
        return self._calls_per_episode(job) * call_s + own

    def _update_seconds(self, job: Job) -> float:
        known = self.of(job)
        if known is not None and known.seconds_per_trained_episode is not None:
            passes = int(known.job.get("epochs", 1))
            return max(0.0, known.seconds_per_trained_episode - (known.seconds_per_episode or 0.0)) / passes
        if (check := self._check(job)) is None:
            call_s = 6 * _operation_seconds(job)
        else:
            learned = self._slowdown(check) * check.fed_per_sampled_token * check.seconds_per_learned_token
            call_s = learned * job.max_tokens / 2
        return UPDATE_SECONDS_PER_EPISODE + self._calls_per_episode(job) * call_s

    def _calls_per_episode(self, job: Job) -> float:
        for known in (self.of(job), *self._measured_of(job, NO_MODEL)[:1]):
            if known is not None and known.calls_per_episode is not None:
                return known.calls_per_episode
        return CALLS_PER_EPISODE.get(job.environment, _UNKNOWN_CALLS_PER_EPISODE)

    def _check(self, job: Job) -> ModelCheck | None:
        return self.check_of(job) if _count_large_parameters(job) else None

    def _slowdown(self, check: ModelCheck) -> float:
        """Return how many times longer a run takes than the check, which had the whole machine."""
        return 1.0 if self.threads is None else max(1.0, check.threads / self.threads)


def runs_at_once(jobs: Iterable[Job], check_of: KnownCheck) -> Capacity:
    """Return what this machine has for runs of the job of which it carries fewest at once."""

    def of(job: Job) -> Capacity:
        check, parameters, devices = check_of(job), count_parameters(job), devices_of(job)
        needs = run_bytes(parameters, None if check is None else check.peak_bytes, adapter=job.lora_rank > 0)
        if not devices:
            return Capacity(max_parallel_runs(needs))
        each = min(job.verl_fields.devices if job.backend == "verl" else 1, len(devices))
        fits = job.backend != "verl" and (check is not None or parameters <= _TINY)  # else nobody knows whether two do
        room = int(_SHARED * min(device.memory for device in devices)) // needs if fits else 1
        share = max(1, min(room, cores() // len(devices)))
        return Capacity(min(len(devices) // each * share, max_parallel_runs()), (), devices, each, share)

    return min(map(of, jobs), key=lambda found: found.runs)


def count_parameters(job: Job) -> int:
    if isinstance(job.model, PathModel):
        return _count_folder_parameters(job.model.path, job.model.sha256)
    return 12 * job.model.layers * job.model.hidden_size**2


@cache
def _count_folder_parameters(path: str, sha256: str | None) -> int:
    """Return how many numbers the weights of a model folder hold, by the headers of its files."""
    count = 0
    for file_path in model_place(path, Home.locate().models).glob("*.safetensors"):
        with suppress(OSError, ValueError), open(file_path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: Any = json.loads(file.read(min(length, 1 << 27)))
            count += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    return count


def _operation_seconds(job: Job) -> float:
    return _count_large_parameters(job) * (FED_PROMPT + job.max_tokens / 2) / RATES.get(job.device, RATES["cpu"])


def _count_large_parameters(job: Job) -> int:
    """Return the parameters of a model for which the constants do not stand; 0 for a tiny one."""
    found = count_parameters(job)
    return found if found > _TINY else 0


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
    untrained: Job | None = None
    """The job whose untrained policy is evaluated once for all runs that begin with it; None where each run does."""

    def run(self, job: Job, episodes: int = BOTH_EVALUATIONS) -> float:
        """Return the seconds of a run with so many episodes in its evaluations before and after training."""
        more = self.estimates.evaluations(job, episodes) - self.estimates.evaluations(job)
        listed = max(1.0, self.seconds_per_run(job) + more) if more else self.seconds_per_run(job)
        return self.times * listed

    def run_with_evaluations(self, job: Job, metric: Metric, *, shares: bool | None = None) -> float:
        """Return the seconds of a run with all evaluations of its metric; `shares`: without one before training."""
        shares = self.shares(job, metric) if shares is None else shares
        of_run = self.run(add_evaluations(job, metric), metric.episodes * (1 if shares else 2))
        if (other := other_environment(metric, job.model_dump(mode="json"))) is None:
            return of_run
        there = job.model_copy(update={"environment": other})
        return of_run + self.times * self.estimates.evaluations(there, metric.episodes)

    def shares(self, job: Job, metric: Metric) -> bool:
        """Return whether a run of a job needs no evaluation before training, as one of its policy is there."""
        if self.untrained is None or metric.split != "hidden" or kind_of(metric).reads_initial:
            return False
        return begins_alike(*(metric.evaluated(each.model_dump(mode="json")) for each in (job, self.untrained)))

    def training(self, job: Job) -> float:
        """Return the seconds of a job's training, without its evaluations; with its start where that was seen."""
        bare = remove_evaluations(job)
        return max(self.estimates.training(bare), self.seconds_per_run(bare) - self.estimates.evaluations(bare))

    def plumbing(self, job: Job, episodes: int = EVALUATION_EPISODES) -> float:
        """Return the seconds of a run with a learning rate of 0, which is evaluated once."""
        bare = remove_evaluations(job)
        still = Job.model_validate({**bare.model_dump(mode="json"), **PLUMBING_JOB})
        if self.seconds_per_run(still) != self.estimates.run(still):
            return self.run(still, episodes)
        # none was seen here: as runs of the job itself stand to their estimate
        return self.run(still, episodes) * self.seconds_per_run(bare) / self.estimates.run(bare)

    def after_noise(self, state: StudyState) -> "Pricing":
        """Return the price list with every price times what the study's own A/A (else newest) runs took of theirs.
        Before any of them ended the run with a learning rate of 0 says it, but never less than 1: it was alone."""
        plan, asks_on = state.noise_plan, state.most_rounds > 1 and state.design is not None
        every = [] if state.most_rounds == 1 and not state.explorations else state.every_run.values()
        for runs, what in ((() if asks_on else state.runs_in("noise"), "A/A runs"), (every, "runs so far")):
            whole = _list_whole_attempts(runs)
            known = [(attempt, run, job) for run, attempt in whole if (job := parse_job(run.spec.job)) is not None]
            if known:
                newest = sorted(known, key=lambda entry: entry[0].launched)[-NEWEST_RUNS:]
                return self._times(
                    median(
                        (attempt.seconds or 0.0)
                        / self.run_with_evaluations(job, run.spec.metric, shares=bool(attempt.initial_of))
                        for attempt, run, job in newest
                    ),
                    f"{what} took",
                )
        still = find_zero_lr_run(state)
        took = [attempt.seconds or 0.0 for attempt in (() if still is None else still.attempts) if _is_whole(attempt)]
        if plan is None or still is None or not took or not is_untrained_run(still.spec):
            return self
        times = median(took) / self.plumbing(Job.from_record(plan.job), plan.episodes)
        return self._times(max(1.0, times), "run with a learning rate of 0 took")

    def _times(self, times: float, whose: str) -> "Pricing":
        return replace(self, times=times, basis=f"{self.basis}, times {times:.2g}, as this study's {whose}")


def describe_basis(pricing: Pricing, jobs: Sequence[Job]) -> str:
    """Return where the price of a comparison of jobs comes from, in words, with what is not known of their models."""
    unknown = dict.fromkeys(pricing.estimates.describe_basis(job) for job in jobs)
    return "; ".join(filter(None, (pricing.basis, *unknown)))


def place_of(sandbox: str, servers: object) -> str:
    """Return where runs take their time: another machine's, where they train on swarm servers elsewhere."""
    return f"{sandbox} elsewhere" if servers else sandbox


def price_key(job: Job, sandbox: str = PROCESSES) -> str:
    """Return the key under which observed seconds of a job are kept: its digest at seed 0, and the place."""
    digest = without_model_path(job).model_copy(update={"seed": 0}).digest()
    return digest if sandbox == PROCESSES else f"{sandbox}:{digest}"


class ObservedRun(NamedTuple):
    """What a run of a job took, with so many episodes in its evaluations before and after training."""

    seconds: float
    episodes: int = BOTH_EVALUATIONS


def make_pricing(
    parallel: int, observed: Mapping[str, ObservedRun] | None = None, sandbox: str = PROCESSES,
    measured: Sequence[MeasuredEnvironment] = (), check_of: KnownCheck = lambda job: None,
) -> Pricing:  # fmt: skip
    """Return the price list; `observed` maps `price_key(job, sandbox)` to what a run of it took here."""
    seen, estimates = dict(observed or {}), Estimates(measured, check_of, max(1, cores() // parallel))

    def seconds(job: Job) -> float:
        known, more = seen.get(price_key(job, sandbox)), 0.0
        if known is None and job.evaluate_after:
            known, more = seen.get(price_key(remove_evaluations(job), sandbox)), estimates.during(job)
        if known is None:
            return estimates.run(job)
        return known.seconds + more + estimates.evaluations(job, BOTH_EVALUATIONS - known.episodes)

    return Pricing(seconds, parallel, OVERHEAD_S, _OBSERVED if seen else _ESTIMATED, estimates=estimates)


def local_pricing(home: Home, log: EventLog, parallel: int, sandbox: str = PROCESSES, exclude: str = "") -> Pricing:
    """Return the price list by all that was measured and run in this installation, but for study `exclude`."""
    known = find_all_measurements(home), check_loader(home.models)
    return make_pricing(parallel, median_seconds(log, exclude), sandbox, *known)


def median_seconds(log: EventLog, exclude: str = "") -> dict[str, ObservedRun]:
    """Return the median seconds of the newest studies' attempts at each job, evaluated as the newest, by price key."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    played: dict[str, int] = {}
    others = (study for study in readable_studies(log) if study.id != exclude)
    for study in islice(others, NEWEST_STUDIES):
        for run in study.every_run.values():
            if (job := parse_job(run.spec.job)) is None:
                continue
            for attempt in run.attempts:
                if _is_whole(attempt):
                    key = price_key(job, place_of(str(attempt.sandbox.get("kind", PROCESSES)), attempt.server))
                    once = bool(attempt.initial_of) or is_untrained_run(run.spec)
                    episodes = run.spec.metric.episodes * (1 if once else 2)
                    if played.setdefault(key, episodes) == episodes:
                        seconds[key].append(attempt.seconds or 0.0)
    return {key: ObservedRun(median(values), played[key]) for key, values in seconds.items()}


def find_locked_price(state: StudyState, phase: Phase, steps: int | None = None) -> float:
    """Return the seconds that one run of a phase was priced at beforehand, by its steps where runs differ in them."""
    if phase == "explore":
        return state.explorations[-1].seconds_per_run if state.explorations else 0.0
    if phase == "noise" or state.locked_design is None:
        return state.noise_seconds
    price, usual = state.locked_design.price.seconds_per_run, state.locked_design.base_job.get("steps")
    if (longer := state.locked_design.extension) is not None and state.design is not None:
        usual, steps = longer.steps, steps or int(state.design.base_job["steps"])
    return price if steps is None or not usual else price * steps / float(str(usual))


def is_guess(state: StudyState, phase: Phase, job: Job) -> bool:
    """Return whether `price_of` follows neither a run under the same lock, nor what built-in environments take."""
    known = job.environment in CALLS_PER_EPISODE and not isinstance(job.model, PathModel)
    return not known and not _find_durations(state, phase)


def price_of(state: StudyState, phase: Phase, steps: int | None = None) -> float:
    """Return the seconds of one more run of a phase: the locked price times what the newest runs took of theirs."""
    locked = find_locked_price(state, phase, steps)
    took = _find_durations(state, phase)
    alike = [entry for entry in took if entry[1] == locked]
    own = [entry for entry in alike if entry[0] == phase]
    newest = (own or alike or took)[-NEWEST_RUNS:]
    if not newest:
        return locked
    # a log may name no price of its A/A runs
    return (locked or 1.0) * median(seconds / (priced or 1.0) for _, priced, seconds in newest)


@memoize_last
def _list_durations(state: StudyState) -> list[tuple[str, Phase, float, float]]:
    """Return of each finished attempt when it was launched, its phase, what it was priced at and what it took."""
    durations = []
    for run, attempt in _list_whole_attempts(state.runs.values()):
        phase, locked = run.spec.phase, state.locked_design
        varies = phase == "screen" or (locked is not None and locked.extension is not None)
        steps = int(str(run.spec.job["steps"])) if varies else None
        priced = find_locked_price(state, phase, steps)
        durations.append((attempt.launched, phase, priced, attempt.seconds or 0.0))
    return sorted(durations)


def _find_durations(state: StudyState, phase: Phase) -> list[tuple[Phase, float, float]]:
    """Return those of the phase, else of all phases under its lock: phase, price and seconds, the newest last."""
    phases = (phase,) if phase in ("noise", "explore") else ("screen", "confirm", "replicate")
    return [(own, priced, took) for _, own, priced, took in _list_durations(state) if own in phases]


def _list_whole_attempts(runs: Iterable[RunState]) -> Iterator[tuple[RunState, AttemptState]]:
    for run in runs:
        if run.spec.arm != PLUMBING_ARM:
            yield from ((run, attempt) for attempt in run.attempts if _is_whole(attempt))


def _is_whole(attempt: AttemptState) -> bool:
    return bool(attempt.seconds) and attempt.status == "finished" and attempt.resumes is None


@dataclass(frozen=True, slots=True)
class Stage:
    """Runs of one kind, and the seconds of the slowest of them."""

    name: str
    runs: int
    seconds_per_run: float


@dataclass(frozen=True, slots=True)
class BudgetCheck:
    """What may be spent, and what things cost."""

    price: Pricing
    budget: Budget
    seconds_left: float | None = None
    """What remains of the budget's wall clock; None for all of it."""
    runs_made: int = 0
    """Runs that the study has made already."""

    @property
    def left(self) -> float:
        total = self.budget.wall_clock_s
        return total if self.seconds_left is None else min(total, self.seconds_left)

    def cost(self, stages: Sequence[Stage]) -> float:
        """Return the seconds of the stages, one after the other, and of what a study takes besides its runs."""
        waves = sum(math.ceil(stage.runs / self.price.parallel) * stage.seconds_per_run for stage in stages)
        return waves + self.price.overhead_s

    def affords(self, stages: Sequence[Stage]) -> bool:
        runs = self.runs_made + sum(stage.runs for stage in stages)
        return self.cost(stages) <= self.left and (self.budget.max_runs is None or runs <= self.budget.max_runs)

    def suggest_flags(self, stages: Sequence[Stage]) -> str:
        """Return the flags of a budget that carries the stages; empty where this one does."""
        spent, need, flags = self.budget.wall_clock_s - self.left, self.cost(stages), []
        if need > self.left:
            amended = " (ajet study amend)" if spent >= 1 else ""  # of a study that has begun
            flags.append(f"--budget {format_flag(need + spent)}{amended}")
        runs = self.runs_made + sum(stage.runs for stage in stages)
        if self.budget.max_runs is not None and runs > self.budget.max_runs:
            flags.append(f"--max-runs {runs}")
        return " ".join(flags)

    def describe_cost(self, stages: Sequence[Stage]) -> str:
        runs = sum(stage.runs for stage in stages)
        slowest = max(stage.seconds_per_run for stage in stages)
        return (
            f"{runs} runs need about {format_seconds(self.cost(stages))} on this machine "
            f"({format_seconds(slowest)} a run, {self.price.parallel} at once)"
        )

    def describe_budget(self) -> str:
        spent = self.budget.wall_clock_s - self.left
        spent_text = f" ({format_seconds(spent)} of it spent)" if spent >= 1 else ""
        limit = f" and {self.budget.max_runs} runs" if self.budget.max_runs is not None else ""
        made = f" ({self.runs_made} of them made)" if limit and self.runs_made else ""
        return f"the budget is {format_seconds(self.budget.wall_clock_s)}{spent_text}{limit}{made}"
