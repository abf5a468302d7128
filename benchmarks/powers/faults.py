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
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import psutil

from research.installation.servers import SwarmProcess, start_swarm, stop_swarm
from studies.statistics.comparison import is_constant, is_equivalent, two_one_sided, welch
from swarm.client import AsyncSwarmClient, SwarmClient
from swarm.environments import get_environment
from swarm.environments.play import agent_of
from swarm.job import Job
from swarm.wire import EpisodeSummary

KILL_EVERY_S: Final = 5.0
MARGIN: Final = 0.1
ALPHA: Final = 0.05
EVALUATED: Final = 256
CLIENTS: Final = 2
MOST_S: Final = 600.0
"""A training that takes so long hangs, which is a fault."""
_LOOK_S: Final = 0.1
_PLAYS: Final = "swarm.environments"


@dataclass(frozen=True, slots=True)
class FaultSize:
    """How much to train."""

    seeds: int
    steps: int
    episodes_per_step: int = 64


FULL = FaultSize(seeds=5, steps=120)
QUICK = FaultSize(seeds=2, steps=3)


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
    faults: tuple[str, ...]
    """What does not add up in its balance sheet."""


def measure(quick: bool) -> dict[str, Any]:
    """Train both arms; return the figures and the verdict."""
    size = QUICK if quick else FULL
    found: list[FaultyTraining] = []
    with tempfile.TemporaryDirectory(prefix="ajet-faults-", ignore_cleanup_errors=True) as folder:
        for seed in range(size.seeds):
            for disturbed in (False, True) if seed % 2 == 0 else (True, False):  # neither arm always comes first
                found.append(trained(Path(folder), size, seed, disturbed=disturbed))
                print(found[-1], file=sys.stderr, flush=True)
    return {
        "seeds": size.seeds,
        "steps": size.steps,
        "kill every s": KILL_EVERY_S,
        "kills": sum(one.kills for one in found),
        "gain": fmean(one.reward - one.untrained for one in found if not one.disturbed),
        "verdict": verdict(found),
        "balance faults": [f"seed {one.seed}: {fault}" for one in found for fault in one.faults],
        "trainings": [asdict(one) for one in found],
    }


def verdict(found: list[FaultyTraining]) -> dict[str, Any]:
    """Return the comparison of the arms: disturbed less undisturbed."""
    calm, hit = ([one.reward for one in found if one.disturbed is disturbed] for disturbed in (False, True))
    means = {"undisturbed": fmean(calm), "disturbed": fmean(hit)}
    if is_constant(calm) and is_constant(hit):
        return {**means, "equivalent": None, "why": "no arm varies: no interval can be had"}
    judged = two_one_sided(welch(calm, hit), MARGIN, ALPHA)
    return {**means, **judged.model_dump(mode="json"), "equivalent": is_equivalent(judged)}


def trained(folder: Path, size: FaultSize, seed: int, *, disturbed: bool) -> FaultyTraining:
    """Carry one training out in an installation of its own; its model is made once for all."""
    home = folder / f"{'disturbed' if disturbed else 'calm'}-{seed}"
    server = start_swarm(home / "swarm", models=folder / "models", port=0)
    clients: list[subprocess.Popen[bytes]] = []
    try:
        job = Job(environment="arith", seed=seed, steps=size.steps, episodes_per_step=size.episodes_per_step)
        with SwarmClient(server.url, server.admin_token) as control:
            control.ensure_training(job)
            untrained = asyncio.run(evaluated(server))
            began = time.monotonic()
            clients = [started(home, seed, number) for number in range(CLIENTS)]
            kills = watched(control, clients, random.Random(seed) if disturbed else None)
            seconds = time.monotonic() - began
            for client in clients:
                client.wait(60)
        reward = asyncio.run(evaluated(server))
        begun, ends, faults = asyncio.run(balance(server, job))
        return FaultyTraining(seed, disturbed, untrained, reward, round(seconds, 1), kills, begun, ends, tuple(faults))
    finally:
        for client in clients:
            if client.poll() is None:
                client.kill()
                client.wait()
        stop_swarm(server)


def started(home: Path, seed: int, number: int) -> subprocess.Popen[bytes]:
    """Start a client that is started again where it dies."""
    command = [sys.executable, "-m", "research", "client", "run", "--restart", "--sandbox", "process"]
    options = ["--environment", "arith", "--concurrency", "16", "--seed", str(10 * seed + number)]
    with (home / f"client-{number}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, *options], env={**os.environ, "AJET_HOME": str(home)}, stdout=log, stderr=log
        )


def watched(control: SwarmClient, clients: list[subprocess.Popen[bytes]], rng: random.Random | None) -> int:
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


def players(clients: list[subprocess.Popen[bytes]]) -> list[psutil.Process]:
    """Return the processes that play now."""
    found = []
    for client in clients:
        try:
            for child in psutil.Process(client.pid).children():
                if _PLAYS in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
        except psutil.NoSuchProcess:
            continue
    return sorted(found, key=lambda process: process.pid)


async def evaluated(server: SwarmProcess) -> float:
    """Return the mean reward of the trained policy."""
    environment = get_environment("arith")
    tasks = list(environment.tasks("search"))
    chosen = [tasks[place % len(tasks)] for place in range(EVALUATED)]
    async with AsyncSwarmClient(server.url, server.admin_token) as client:
        played: list[float] = []
        for start in range(0, EVALUATED, len(tasks)):
            results = await client.evaluate(agent_of(environment), chosen[start : start + len(tasks)])
            played += [result.reward for result in results]
    return fmean(played)


async def balance(server: SwarmProcess, job: Job) -> tuple[int, dict[str, int], list[str]]:
    """Return how many episodes were begun, where they went, and what does not add up."""
    async with AsyncSwarmClient(server.url, server.admin_token) as client:
        episodes = (await client.episodes(10_000)).episodes
    begun = begun_of(server)
    ends = Counter(_end(one) for one in episodes)
    faults = [f"{one.id} is {one.state}" for one in episodes if one.state in ("open", "prepared")]
    faults += [f"{one.id} was {one.state} for no reason" for one in episodes if _unexplained(one)]
    trained = Counter(one.step for one in episodes if one.state in ("in_step", "consumed"))
    wanted = dict.fromkeys(range(1, job.steps + 1), job.episodes_per_step)
    if dict(trained) != wanted:
        faults.append(f"expected {job.episodes_per_step} episodes in each of {job.steps} steps, found {dict(trained)}")
    if begun != len(episodes):
        faults.append(f"the server says that {begun} episodes were begun, and lists {len(episodes)}")
    if len({one.id for one in episodes}) != len(episodes):
        faults.append("an episode is listed twice")
    return begun, dict(sorted(ends.items())), faults


def begun_of(server: SwarmProcess) -> int:
    """Return how many episodes were begun, by the server's own counter."""
    asked = urllib.request.Request(f"{server.url}/metrics", headers={"Authorization": f"Bearer {server.admin_token}"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return int(float(next(line.split()[-1] for line in lines if line.startswith("ajet_episodes_begun_total"))))


def _end(one: EpisodeSummary) -> str:
    if one.state in ("in_step", "consumed"):
        return "trained"
    if one.state == "ended":
        return "evaluated" if one.kind == "eval" else "ended, not trained"
    return one.state if one.state == "aborted" else f"{one.state}: {one.reason}"


def _unexplained(one: EpisodeSummary) -> bool:
    unexplained = one.state in ("fenced", "dropped") and not one.reason
    return unexplained or (one.state == "ended" and one.kind == "train")
