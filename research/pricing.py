"""What a run costs in seconds, before it is run.

The first estimate adds the parts of a run: start-up, training calls, updates, and the harness's two evaluations on
hidden tasks. Its constants stand for 2 cores that make 2 runs at once, with the tiny model of the default size; it
knows nothing of other machines or models. A run of the same job observed before on this installation beats it, if it
was measured on as many episodes and ran where runs of this study run: containers cost more than processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from swarm.job import Job

STARTUP_S = 7.0
"""Server and client processes start, the model is loaded."""
SECONDS_PER_CALL = 0.0014
"""One chat completion, with all that happens around it, at the default concurrency."""
UPDATE_SECONDS_PER_EPISODE = 0.16 / 128
"""One pass of the optimiser over one episode."""
CALLS_PER_EPISODE = {"guess": 3.1, "arith": 1.0}
_UNKNOWN_CALLS_PER_EPISODE = 4.0
EVALUATION_EPISODES = 512
"""Hidden episodes per evaluation, unless a study asks for others; one evaluation before training, one after."""
OVERHEAD_S = 35.0
"""Once per study: the tiny model is made, the report is built."""
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

    def run(self, job: Job, episodes: int = EVALUATION_EPISODES) -> float:
        """Return the seconds of one run whose evaluations have so many episodes each."""
        more = 2 * (episodes - EVALUATION_EPISODES) * _seconds_per_play(job)
        return max(1.0, self.seconds_per_run(job) + more) if more else self.seconds_per_run(job)

    def total(self, runs: int, seconds_per_run: float) -> float:
        """Return the seconds that `runs` runs take in waves of `parallel`, overhead included."""
        return math.ceil(runs / self.parallel) * seconds_per_run + self.overhead_s


def price_key(job: Job, sandbox: str = PROCESSES) -> str:
    """Return the key under which observed seconds of a job are kept: its digest at seed 0, and the kind of sandbox."""
    digest = job.model_copy(update={"seed": 0}).digest()
    return digest if sandbox == PROCESSES else f"{sandbox}:{digest}"


def first_estimate(job: Job) -> float:
    """Return the estimated seconds of one run of `job`, evaluations included."""
    trained = job.steps * job.episodes_per_step
    played = trained + 2 * EVALUATION_EPISODES
    updates = trained * job.epochs * UPDATE_SECONDS_PER_EPISODE
    return STARTUP_S + played * _seconds_per_play(job) + updates


def make_pricing(parallel: int, observed: Mapping[str, float] | None = None, sandbox: str = PROCESSES) -> Pricing:
    """Return the price list; `observed` maps `price_key(job, sandbox)` to the seconds that a run of it took here."""
    seen = dict(observed or {})

    def seconds(job: Job) -> float:
        return seen.get(price_key(job, sandbox)) or first_estimate(job)

    return Pricing(seconds, parallel, OVERHEAD_S, _OBSERVED if seen else _ESTIMATED)


def _seconds_per_play(job: Job) -> float:
    return CALLS_PER_EPISODE.get(job.environment, _UNKNOWN_CALLS_PER_EPISODE) * SECONDS_PER_CALL
