"""How long is it from a save of an agent's code to its first play, with --reload and by hand?

A server with the fake backend, which answers at once, and an agent that plays for PLAY_S. SAVES times the agent's file
is saved with another constant, and the clock stops when the server lists an episode with the new code's hash.
`--reload` is one process that runs all the time; by hand, each time the client is ended with Ctrl-C as soon as the file
is saved, awaited, and started again with the same command, without a moment's hesitation. Both import openai's SDK, as
most agents do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from research.installation.servers import SwarmProcess, start_swarm, stop_swarm
from swarm.client import SwarmClient
from swarm.environments.user_code import code_hash
from swarm.job import Job

SAVES: Final = 10
QUICK_SAVES: Final = 2
PLAY_S: Final = 0.2
BETWEEN_S: Final = 4.0
"""Seconds of training between two saves: somebody reads what comes of one before they write the next."""
GOAL_S: Final = 3.0
MOST_S: Final = 60.0
_LOOK_S: Final = 0.02
_AGENT: Final = """
import asyncio
import openai

async def agent(episode):
    await episode.chat([{{"role": "user", "content": "hi"}}])
    await asyncio.sleep({play_s})
    return {worth}
"""


def measure(quick: bool) -> dict[str, Any]:
    """Save again and again, both ways; return the seconds from each save to the first play of its code."""
    saves = QUICK_SAVES if quick else SAVES
    job = Job(backend="fake", environment="arith", steps=1_000_000, episodes_per_step=8, group_size=2)
    with tempfile.TemporaryDirectory(prefix="ajet-reload-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        with served(home, home / "models", job) as (_, control):
            reloaded = by_reload(control, home, saves)
            by_hand = stopped_and_started(control, home, saves)
    return {
        "saves": saves, "goal s": GOAL_S, "reload": _summary(reloaded), "by hand": _summary(by_hand),
        "goals": {"every save is played within the goal": max(reloaded) < GOAL_S},
    }  # fmt: skip


def by_reload(control: SwarmClient, home: Path, saves: int) -> list[float]:
    """Return the seconds of each save under `--reload`."""
    agent, seconds = saved(home, 0), []
    with client(home, str(home / "mine"), "--concurrency", "8", "--reload"):
        wait_for_play(control, agent)
        for number in range(1, saves + 1):
            time.sleep(BETWEEN_S)
            began = time.monotonic()
            wait_for_play(control, saved(home, number))
            seconds.append(time.monotonic() - began)
    return seconds


def stopped_and_started(control: SwarmClient, home: Path, saves: int) -> list[float]:
    """Return the seconds of each save where the client is stopped and started again."""
    seconds: list[float] = []
    began, agent, offset = 0.0, saved(home, 1000), 1001
    for number in range(saves + 1):
        with client(home, str(home / "mine"), "--concurrency", "8"):
            wait_for_play(control, agent)
            if number:
                seconds.append(time.monotonic() - began)
            time.sleep(BETWEEN_S)
            began = time.monotonic()
            agent = saved(home, offset + number)
    return seconds


@contextmanager
def served(home: Path, models: Path, job: Job) -> Iterator[tuple[SwarmProcess, SwarmClient]]:
    """Have a server of an installation train a job while inside."""
    server = start_swarm(home / "swarm", models=models, port=0)
    try:
        with SwarmClient(server.url, server.admin_token) as control:
            control.ensure_training(job)
            yield server, control
    finally:
        stop_swarm(server)


@contextmanager
def client(home: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a client of an installation while inside; end it as Ctrl-C does."""
    command = [sys.executable, "-m", "research", "client", "run", "--sandbox", "process", *options]
    with (home / "client.log").open("ab") as log:
        process = subprocess.Popen(command, env={**os.environ, "AJET_HOME": str(home)}, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(MOST_S)


def saved(home: Path, worth: int) -> str:
    """Save the agent with another constant; return the code's hash."""
    folder = home / "mine"
    folder.mkdir(exist_ok=True)
    (folder / "agent.py").write_text(_AGENT.format(play_s=PLAY_S, worth=float(worth)))
    return code_hash(folder)


def wait_for_play(control: SwarmClient, code: str) -> None:
    """Wait for the first play of a code."""
    deadline = time.monotonic() + MOST_S
    while not any(episode.code == code for episode in control.episodes(32).episodes):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no play of code {code[:12]} began within {MOST_S:g} s")
        time.sleep(_LOOK_S)


def _summary(seconds: list[float]) -> dict[str, Any]:
    each = [round(s, 3) for s in seconds]
    return {"median s": round(median(seconds), 3), "most s": max(each), "all s": each}
