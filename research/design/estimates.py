"""What the parts of a run take before one was seen: start-up, plays, updates and the harness's two evaluations.

Each part is what somebody measured of this environment and model, as the job would sample from it
(`research.environments.measured`); what nobody measured is estimated. The constants stand for 2 cores that make 2 runs
at once, with the tiny model of the default size. A larger model costs more: by what `ajet model check` measured of it
under the job's conditions, slower by the cores that a run does not have, else by this arithmetic of its parameters P:

    tokens of a call     FED_PROMPT + max_tokens / 2: prompts share their beginnings, answers seldom fill their limit
    a call               SECONDS_PER_CALL and 2 P x tokens / RATES[device]: a forward is two operations a parameter
    an update's episode  UPDATE_SECONDS_PER_EPISODE and 6 P x tokens of its calls / RATES[device], forward and backward
    start-up             STARTUP_S and 4 P bytes / LOADED_PER_S

The arithmetic knows nothing of the machine, of an environment's prompts or of a chat template: it tells minutes from
hours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from research.environments.measured import NO_MODEL, MeasuredEnvironment, differences, model_key
from research.installation.home import Home
from research.installation.machine import parallel, run_bytes
from research.installation.model_folder import parameter_count
from studies.records.sentences import model_name
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
CALLS_PER_EPISODE: Final[Mapping[str, float]] = {"guess": 3.1, "arith": 1.0, "market": 2.0}
_UNKNOWN_CALLS_PER_EPISODE = 4.0
EVALUATION_EPISODES: Final = 512
"""Hidden episodes per evaluation, unless a study asks for others; one evaluation before training, one after."""
FED_PROMPT: Final = 8
"""Tokens of a call's prompt that are new to the engine."""
RATES: Final[Mapping[str, float]] = {"cpu": 5e10, "mps": 1e12, "cuda": 1e13}
"""Operations a second: half of what a core does in float32; the others' by order of magnitude. `auto` is a core."""
LOADED_PER_S: Final = 5e8
"""Bytes of weights that are read in a second."""
_TINY: Final = 1_000_000
"""Parameters up to which the constants above stand for a model."""


KnownCheck = Callable[[Job], ModelCheck | None]
"""Returns what `ajet model check` measured of a job's model under the job's conditions; None where nobody asked it."""


def unchecked(job: Job) -> None:
    """Return that no model was ever checked."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """The estimated seconds of runs, by what was measured of environments and models."""

    measured: Sequence[MeasuredEnvironment] = ()
    check_of: KnownCheck = unchecked
    threads: int | None = None
    """Most threads that a run's server has; None for as many as a check had."""

    def run(self, job: Job) -> float:
        """Return the seconds of one run of `job` with the usual evaluations, and those that the job has in it."""
        known = self.of(job)
        startup = self._startup(job) if known is None or known.startup_s is None else known.startup_s
        return startup + self.training(job) + self.during(job) + self.evaluations(job)

    def training(self, job: Job) -> float:
        """Return the seconds of the training alone."""
        return job.steps * job.episodes_per_step * (self._play(job) + job.epochs * self._update(job))

    def during(self, job: Job) -> float:
        """Return the seconds for which a training stands still, to be evaluated."""
        return len(job.evaluate_after) * job.evaluation_episodes * self._play(job)

    def evaluations(self, job: Job, episodes: int = EVALUATION_EPISODES) -> float:
        """Return the seconds of the two evaluations of a run, of so many episodes each."""
        return 2 * episodes * self._play(job)

    def said_of(self, job: Job) -> str:
        """Return what a price of this job rests on besides the usual constants, in words; empty for nothing else."""
        if self.of(job) is not None:
            return f"with what was measured of {job.environment} and this model"
        return "; ".join(filter(None, (self._passed_over(job), self._in_place(job))))

    def of(self, job: Job) -> MeasuredEnvironment | None:
        """Return what was measured last of a job's environment with its model, as the job samples; None for nothing."""
        if not self.measured:  # a model's key may be the hash of its folder, which is read for it
            return None
        alike = (known for known in self._with(job, model_key(job.model)) if not differences(known, job))
        return max(alike, key=lambda known: known.measured_at, default=None)

    def _with(self, job: Job, model: str) -> Sequence[MeasuredEnvironment]:
        if not self.measured:
            return ()
        return [known for known in self.measured if known.environment == job.environment and known.model == model]

    def _alone(self, job: Job) -> MeasuredEnvironment | None:
        return next(iter(self._with(job, NO_MODEL)), None)

    def _passed_over(self, job: Job) -> str:
        """Return what was measured of a job's environment and model under other conditions, and does not count."""
        others = sorted((differences(known, job) for known in self._with(job, model_key(job.model))), key=len)
        if not others:
            return ""
        nearest = ", ".join(others[0])
        return (
            f"what was measured of {job.environment} with this model does not count, as it was with {nearest} (measure "
            f"it: ajet env check {job.environment} --job FILE)"
        )

    def _in_place(self, job: Job) -> str:
        """Return what stands in the place of a measurement."""
        if isinstance(job.model, PathModel):
            name = model_name(job.model.model_dump())
            if self.check_of(job) is not None:
                return f"by what `ajet model check` measured of {name}, whatever the prompts of {job.environment}"
            return f"{name} was never measured here: estimated from {parameters(job):,} parameters"
        return "" if job.environment in CALLS_PER_EPISODE else f"{job.environment} was never measured here"

    def _play(self, job: Job) -> float:
        known = self.of(job)
        if known is not None and known.seconds_per_episode is not None:
            return known.seconds_per_episode
        alone = self._alone(job)
        own = 0.0 if alone is None else alone.environment_seconds_per_episode or 0.0
        return self._calls(job) * self._call(job) + own

    def _update(self, job: Job) -> float:
        known = self.of(job)
        if known is not None and known.seconds_per_trained_episode is not None:
            passes = int(known.job.get("epochs", 1))
            return max(0.0, known.seconds_per_trained_episode - (known.seconds_per_episode or 0.0)) / passes
        return UPDATE_SECONDS_PER_EPISODE + self._calls(job) * self._learning(job)

    def _calls(self, job: Job) -> float:
        for known in (self.of(job), self._alone(job)):
            if known is not None and known.calls_per_episode is not None:
                return known.calls_per_episode
        return CALLS_PER_EPISODE.get(job.environment, _UNKNOWN_CALLS_PER_EPISODE)

    def _startup(self, job: Job) -> float:
        check = self._check(job)
        return BOOTS_S.get(job.backend, STARTUP_S) + (4 * _large(job) / LOADED_PER_S if check is None else check.load_s)

    def _call(self, job: Job) -> float:
        if (check := self._check(job)) is None:
            return SECONDS_PER_CALL + 2 * _work(job)
        fed, sampled = check.seconds_per_prompt_token, check.seconds_per_generated_token
        return SECONDS_PER_CALL + self._slower(check) * (FED_PROMPT * fed + job.max_tokens / 2 * sampled)

    def _learning(self, job: Job) -> float:
        """Return the seconds that an update takes for the tokens of one call."""
        if (check := self._check(job)) is None:
            return 6 * _work(job)
        fed = check.fed_per_sampled_token * job.max_tokens / 2
        return self._slower(check) * fed * check.seconds_per_learned_token

    def _check(self, job: Job) -> ModelCheck | None:
        """Return the check of a job's model, where the constants do not stand for it."""
        return self.check_of(job) if _large(job) else None

    def _slower(self, check: ModelCheck) -> float:
        """Return how many times longer a run takes than the check, which had the whole machine."""
        return 1.0 if self.threads is None else max(1.0, check.threads / self.threads)


def runs_at_once(jobs: Iterable[Job], check_of: KnownCheck) -> int:
    """Return how many runs this machine carries at once, each of the job that takes most memory."""
    checked = ((parameters(job), check_of(job)) for job in jobs)
    return parallel(max(run_bytes(size, None if check is None else check.peak_bytes) for size, check in checked))


def is_guess(job: Job) -> bool:
    """Return whether what a run of a job takes is not known from the built-in environments and the tiny model."""
    return isinstance(job.model, PathModel) or job.environment not in CALLS_PER_EPISODE


def parameters(job: Job) -> int:
    """Return about how many parameters a job's model has."""
    if isinstance(job.model, PathModel):
        return _in_folder(job.model.path, job.model.sha256)
    return 12 * job.model.layers * job.model.hidden_size**2


@cache
def _in_folder(path: str, sha256: str | None) -> int:
    """Return the parameters in a folder whose content has this hash; 0 where it is gone."""
    return parameter_count(model_place(path, Home.locate().models)) or 0


def _work(job: Job) -> float:
    """Return the seconds of one operation a parameter over the tokens of one call."""
    return _large(job) * (FED_PROMPT + job.max_tokens / 2) / RATES.get(job.device, RATES["cpu"])


def _large(job: Job) -> int:
    """Return the parameters of a model for which the constants do not stand; 0 for a tiny one."""
    found = parameters(job)
    return found if found > _TINY else 0
