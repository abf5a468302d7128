"""Does a training whose clients are killed all the time come to the same, and does its balance sheet close?

Each training is a swarm server of its own with the tiny model on `arith`, and two `ajet client run --restart` as real
processes. In the disturbed arm one client process, drawn at random, gets SIGKILL every KILL_EVERY_S, from the first
episode to the last step; nobody touches the other arm. The seed is that of sampling, of the tasks' order and of the
kills; the initial model is one and the same. Measured is the mean reward of EVALUATED episodes of the trained policy,
on tasks that no client played.

The arms are equivalent where the whole 90 % interval of Welch's comparison (two one-sided tests at 5 %) lies within
MARGIN: a tenth of the reward's range, 0 to 1, fixed before any run. How much training itself changes is told beside it
(`gain`): a margin that is not well below that says little.

The balance sheet of a training closes where every begun episode is accounted for exactly once (trained, evaluated,
aborted, fenced or dropped, the latter two with a reason, none open), each step trained exactly as many episodes as the
job asks for, and the episodes that are listed are as many as the server says were begun.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import psutil

from powers.reload import client, served
from research.installation.servers import SwarmProcess
from studies.statistics.comparison import is_constant, is_equivalent, two_one_sided, welch
from swarm.client import AsyncSwarmClient, SwarmClient
from swarm.environments import get_environment
from swarm.environments.play import agent_of
from swarm.job import Job
from swarm.wire import EpisodeSummary

SEEDS, STEPS = 5, 120
KILL_EVERY_S: Final = 5.0
MARGIN: Final = 0.1
ALPHA: Final = 0.05
EVALUATED: Final = 256
CLIENTS: Final = 2
MOST_S: Final = 600.0
"""A training that takes so long hangs, which is a fault."""
_LOOK_S: Final = 0.1
_PLAYS: Final = "swarm.environments"
_TRAINED: Final = ("in_step", "consumed")


@dataclass(frozen=True, slots=True)
class FaultyTraining:
    """One training: what its policy is worth, who was killed, and where every episode went."""

    seed: int
    disturbed: bool
    untrained: float
    """Mean reward of the policy before the first step."""
    reward: float
    seconds: float
    kills: int
    begun: int
    ends: dict[str, int]
    faults: list[str]
    """What does not add up in its balance sheet."""


def measure(quick: bool) -> dict[str, Any]:
    """Train both arms; return the figures and the verdict."""
    seeds, steps = (2, 3) if quick else (SEEDS, STEPS)
    trainings: list[FaultyTraining] = []
    with tempfile.TemporaryDirectory(prefix="ajet-faults-", ignore_cleanup_errors=True) as folder:
        for seed in range(seeds):
            for disturbed in (False, True) if seed % 2 == 0 else (True, False):  # neither arm always comes first
                trainings.append(trained(Path(folder), steps, seed, disturbed=disturbed))
                print(trainings[-1], file=sys.stderr, flush=True)
    judged = verdict(trainings)
    faults = [f"seed {training.seed}: {fault}" for training in trainings for fault in training.faults]
    return {
        "seeds": seeds,
        "steps": steps,
        "kill every s": KILL_EVERY_S,
        "kills": sum(training.kills for training in trainings),
        "gain": fmean(training.reward - training.untrained for training in trainings if not training.disturbed),
        "verdict": judged,
        "balance faults": faults,
        "trainings": [asdict(training) for training in trainings],
        "goals": {"equivalent under kills": bool(judged["equivalent"]), "every balance sheet closes": not faults},
    }


def verdict(trainings: Sequence[FaultyTraining]) -> dict[str, Any]:
    """Return the comparison of the arms: disturbed less undisturbed."""
    calm, hit = ([one.reward for one in trainings if one.disturbed is disturbed] for disturbed in (False, True))
    means = {"undisturbed": fmean(calm), "disturbed": fmean(hit)}
    if is_constant(calm) and is_constant(hit):
        return {**means, "equivalent": None, "why": "no arm varies: no interval can be had"}
    judged = two_one_sided(welch(calm, hit), MARGIN, ALPHA)
    return {**means, **judged.model_dump(mode="json"), "equivalent": is_equivalent(judged)}


def trained(folder: Path, steps: int, seed: int, *, disturbed: bool) -> FaultyTraining:
    """Carry one training out in an installation of its own; its model is made once for all."""
    home = folder / f"{'disturbed' if disturbed else 'calm'}-{seed}"
    job = Job(environment="arith", seed=seed, steps=steps, episodes_per_step=64)
    with served(home, folder / "models", job) as (server, control):
        untrained = asyncio.run(evaluated(server))
        began = time.monotonic()
        with ExitStack() as stack:
            options = ("--restart", "--environment", "arith", "--concurrency", "16", "--seed")
            clients = [stack.enter_context(client(home, *options, str(10 * seed + n))) for n in range(CLIENTS)]
            kills = watched(control, clients, random.Random(seed) if disturbed else None)
            seconds = time.monotonic() - began
            for process in clients:
                process.wait(60)
        reward = asyncio.run(evaluated(server))
        begun, ends, faults = asyncio.run(balance(server, job))
    return FaultyTraining(seed, disturbed, untrained, reward, round(seconds, 1), kills, begun, ends, faults)


def watched(control: SwarmClient, clients: Sequence[subprocess.Popen[bytes]], rng: random.Random | None) -> int:
    """Wait for the job's end, and kill meanwhile where there is a generator to draw from; return the kills."""
    began, kills, due = time.monotonic(), 0, time.monotonic() + KILL_EVERY_S
    while not control.status().finished:
        if time.monotonic() - began > MOST_S:
            raise TimeoutError(f"a training was not finished after {MOST_S:g} s")
        if rng is not None and time.monotonic() >= due and (playing := players(clients)):
            rng.choice(playing).send_signal(signal.SIGKILL)
            kills, due = kills + 1, time.monotonic() + KILL_EVERY_S
        time.sleep(_LOOK_S)
    return kills


def players(clients: Sequence[subprocess.Popen[bytes]]) -> list[psutil.Process]:
    """Return the processes that play now."""
    playing: list[psutil.Process] = []
    for process in clients:
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children()
            playing += [one for one in children if _PLAYS in one.cmdline() and one.status() != psutil.STATUS_ZOMBIE]
    return sorted(playing, key=lambda process: process.pid)


async def evaluated(server: SwarmProcess) -> float:
    """Return the mean reward of the present policy."""
    environment = get_environment("arith")
    tasks = list(environment.tasks("search"))
    rewards: list[float] = []
    async with AsyncSwarmClient(server.url, server.admin_token) as admin:
        while len(rewards) < EVALUATED:
            results = await admin.evaluate(agent_of(environment), tasks[: EVALUATED - len(rewards)])
            rewards += [result.reward for result in results]
    return fmean(rewards)


async def balance(server: SwarmProcess, job: Job) -> tuple[int, dict[str, int], list[str]]:
    """Return how many episodes were begun, where they went, and what does not add up."""
    async with AsyncSwarmClient(server.url, server.admin_token) as admin:
        episodes = (await admin.episodes(10_000)).episodes
    begun = begun_of(server)
    faults = [f"{one.id} is {one.state}" for one in episodes if one.state in ("open", "prepared")]
    faults += [f"{one.id} was {one.state} for no reason" for one in episodes if _is_unexplained(one)]
    batches = Counter(one.step for one in episodes if one.state in _TRAINED)
    if dict(batches) != dict.fromkeys(range(1, job.steps + 1), job.episodes_per_step):
        faults.append(f"expected {job.episodes_per_step} episodes in each of {job.steps} steps, found {dict(batches)}")
    if begun != len(episodes):
        faults.append(f"the server says that {begun} episodes were begun, and lists {len(episodes)}")
    if len({one.id for one in episodes}) != len(episodes):
        faults.append("an episode is listed twice")
    return begun, dict(sorted(Counter(map(_end, episodes)).items())), faults


def begun_of(server: SwarmProcess) -> int:
    """Return how many episodes were begun, by the server's own counter."""
    request = urllib.request.Request(f"{server.url}/metrics", headers={"Authorization": f"Bearer {server.admin_token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return int(float(next(line.split()[-1] for line in lines if line.startswith("ajet_episodes_begun_total"))))


def _end(one: EpisodeSummary) -> str:
    if one.state in _TRAINED:
        return "trained"
    if one.state == "ended":
        return "evaluated" if one.kind == "eval" else "ended, not trained"
    return one.state if one.state == "aborted" else f"{one.state}: {one.reason}"


def _is_unexplained(one: EpisodeSummary) -> bool:
    unexplained = one.state in ("fenced", "dropped") and not one.reason
    return unexplained or (one.state == "ended" and one.kind == "train")
