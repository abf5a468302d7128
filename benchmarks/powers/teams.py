"""Teams: do two models learn together what neither learns beside a frozen one, and each from its own episodes alone?

The game is that of `examples/speaker_listener`, with its jobs but for the steps. Three arms, each with the same seeds:
`joint`, and `speaker frozen` and `listener frozen`, where that member has a learning rate of 0 and everything else is
as it was. What is judged is the share of hidden tasks that the team solves when the steps are done (four plays each):

- joint less each frozen arm, by the test that studies use where arms share their seeds (`paired`); the lower end of
  the 95 % interval must be above 0;
- the joint team with hints that were given for other tasks: the interval of its mean over the seeds must hold a
  quarter, which is chance, or lie below it (a hint for another of the four animals leads away from the right one);
- each frozen member's weights: sha256 before the first step and after the last one must be equal (the server's
  `stillness`), although it took as many steps, on as many episodes, as the member that learned beside it.

Each run has servers of its own: a server that was given the same job before would go on with what that came to.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

from studies.statistics.comparison import Runs, compare, mean_interval
from swarm.client import AsyncSwarmClient
from swarm.client.teams import Team

EXAMPLE = Path(__file__).parents[2] / "examples" / "speaker_listener" / "train.py"
FROZEN = {"learning_rate": 0.0}
ARMS: Mapping[str, Mapping[str, Any]] = {
    "joint": {},
    "speaker frozen": {"speaker": FROZEN},
    "listener frozen": {"listener": FROZEN},
}
SEEDS, STEPS = 5, 100
CHANCE = 0.25


def measure(quick: bool) -> dict[str, Any]:
    """Train all arms, seed by seed, each on servers of its own; return the figures and what they say."""
    seeds, steps = (2, 3) if quick else (SEEDS, STEPS)
    began = time.monotonic()
    runs = asyncio.run(_trained(seeds, steps))
    gains = {arm: _compared(runs, arm) for arm in ARMS if arm != "joint"}
    middle = mean_interval([run["shuffled"] for run in runs if run["arm"] == "joint"])
    assert middle is not None  # of two seeds or more
    return {
        "seeds": seeds,
        "steps": steps,
        "runs": runs,
        "comparisons": gains,
        "shuffled hints": {"mean": middle.mean, "low": middle.low, "high": middle.high, "chance": CHANCE},
        "goals": {
            "joint beats each frozen member": all((gain["low"] or 0.0) > 0.0 for gain in gains.values()),
            "with other hints it falls to chance": middle.low <= CHANCE,
            "frozen members are bit-equal": all(run["still"] for run in runs),
        },
        "seconds": round(time.monotonic() - began),
    }


async def _trained(seeds: int, steps: int) -> list[dict[str, Any]]:
    example = SimpleNamespace(**run_path(str(EXAMPLE)))
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ajet-teams-") as folder:
        for seed, arm in [(seed, arm) for seed in range(seeds) for arm in ARMS]:
            jobs = example.jobs_of(steps, seed, **ARMS[arm])
            async with example.served(Path(folder), jobs, f"-{arm.replace(' ', '-')}-{seed}") as clients:
                runs.append(await _run(example, clients, arm, seed))
            print(f"{len(runs)}/{seeds * len(ARMS)}  {runs[-1]}", file=sys.stderr, flush=True)
    return runs


async def _run(example: Any, clients: Mapping[str, AsyncSwarmClient], arm: str, seed: int) -> dict[str, Any]:
    """Train one arm with one seed on servers that never trained before; measure the team."""
    began = time.monotonic()
    hidden = example.WORLD.tasks("hidden")
    start = await example.success(clients, hidden)
    summary = await Team.rollout(clients, example.WORLD.tasks("train"), example.play)
    frozen = [(await clients[role].status()).stillness for role in ARMS[arm]]
    return {
        "arm": arm, "seed": seed, "before": start, "after": await example.success(clients, hidden),
        "shuffled": await example.success(clients, hidden, shuffled=True), "plays": summary.plays,
        "trained": dict(summary.trained), "dropped": dict(summary.dropped),
        "still": all(one is not None and one.before is not None and one.before == one.after for one in frozen),
        "seconds": round(time.monotonic() - began),
    }  # fmt: skip


def _compared(runs: Sequence[Mapping[str, Any]], arm: str) -> dict[str, Any]:
    """Return joint training less an arm with a frozen member, seed by seed; no numbers where no seed differs."""
    pair = compare("paired", _runs(runs, arm), _runs(runs, "joint"))
    if pair is None:
        return {"difference": None, "low": None, "high": None}
    low, high = pair.interval(0.95)
    return {"test": pair.test, "difference": pair.estimate, "low": low, "high": high, "p": pair.p}


def _runs(runs: Sequence[Mapping[str, Any]], arm: str) -> Runs:
    own = {f"{arm} {run['seed']}": run for run in runs if run["arm"] == arm}
    return Runs({name: run["after"] for name, run in own.items()}, {name: run["seed"] for name, run in own.items()})
