"""Two models of different size play Nim against each other and both learn; their ratings are taken as they do.

    python examples/duel/train.py             a few minutes on two cores
    python examples/duel/train.py --steps 4   a look at how it goes

At the start, after each quarter of the steps and at the end both play each other, a player who moves at random and one
who knows the winning moves, in evaluation episodes for which training waits. The two scripted players stay what they
are, and so hold the ratings of all times on one scale.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from runpy import run_path

from swarm.client import AsyncSwarmClient
from swarm.client.teams import Team

HERE = Path(__file__).parent
GAME, RATINGS = run_path(str(HERE / "environment.py")), run_path(str(HERE / "ratings.py"))
reads, move_of, best, ratings = GAME["reads"], GAME["move_of"], GAME["best"], RATINGS["ratings"]
NIM = GAME["Nim"]()

ROLES = ("red", "blue")
MODELS = {
    "red": {"kind": "tiny", "seed": 1, "hidden_size": 32, "layers": 1, "warm_start_steps": 200},
    "blue": {"kind": "tiny", "seed": 2, "hidden_size": 64, "layers": 2, "warm_start_steps": 200},
}
SAMPLES = 8


async def play(team):
    """Let both move in turn; who takes the last stone has all of the reward."""
    stones, turn = team.task.data["stones"], ROLES.index(team.task.data["first"])
    while stones:
        mover = ROLES[turn % 2]
        stones -= move_of((await team[mover].chat(reads(stones))).content, stones)
        turn += 1
    return {role: (float(role == mover), role == mover) for role in ROLES}


def scripted(name, stones, rng):
    """Return the move of a player who never learns."""
    return (best(stones) if name == "perfect" else None) or rng.randint(1, min(3, stones))


async def against(name, role, episode):
    """Let one model play a scripted player."""
    stones, rng = episode.task.data["stones"], random.Random(episode.id)
    models_turn = episode.task.data["first"] == role
    while stones:
        if models_turn:
            stones -= move_of((await episode.chat(reads(stones))).content, stones)
        else:
            stones -= scripted(name, stones, rng)
        models_turn = not models_turn
    return float(not models_turn)  # it took the last one if it is not to move


def jobs_of(steps, seed, **changed):
    """Return the job of each role, in which training waits for the games of each rating."""
    quarters = sorted({steps * part // 4 for part in (1, 2, 3)} - {0})
    common = {
        "steps": steps, "seed": seed, "episodes_per_step": 64, "group_size": 8,
        "learning_rate": 2e-3, "kl_coef": 0.02, "max_tokens": 2, "evaluate_after": quarters,
        "evaluation_episodes": games_of(),
    }  # fmt: skip
    return {role: {**common, "model": MODELS[role], **changed.get(role, {})} for role in ROLES}


def games_of():
    """Return how many games each model plays for one rating: against the other one and both scripted players."""
    return 3 * SAMPLES * len(NIM.tasks("hidden"))


def ajet(home, *words):
    """Run a command of `ajet` in an installation of its own; return what it printed."""
    own = {name: value for name, value in os.environ.items() if name != "AJET_SERVER"} | {"AJET_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "research", *words], check=True, stdout=subprocess.PIPE, text=True, env=own
    ).stdout


def start(home, name, job):
    """Have a server of that name train a job on this folder's environment; return a client of it."""
    path = home / f"{name}.json"
    path.write_text(json.dumps(job))
    asked = ("--name", name, "--job", str(path), "--environment", str(HERE), "--port", "0", "--json")
    found = json.loads(ajet(home, "swarm", "start", *asked))
    return AsyncSwarmClient(found["url"], json.loads(Path(found["tokens"]).read_text())["admin"])


@contextlib.asynccontextmanager
async def served(home, jobs, run=""):
    """Serve each role's job on a server of its own, named by the role and the run; yield the clients by role."""
    home.mkdir(parents=True, exist_ok=True)
    async with contextlib.AsyncExitStack() as stack:
        clients = {}
        for role, job in jobs.items():
            client = await asyncio.to_thread(start, home, role + run, job)
            stack.callback(ajet, home, "swarm", "stop", "--server", role + run)
            clients[role] = await stack.enter_async_context(client)
        yield clients


async def games(clients, tasks, step):
    """Play all games of one rating; return how often who beat whom, the models named with the step."""
    wins = Counter()
    for result in await Team.evaluate(clients, tasks, play, samples=SAMPLES):
        winner, loser = sorted(ROLES, key=lambda role: -result.rewards[role])
        wins[f"{winner} {step}", f"{loser} {step}"] += 1
    for role, client in clients.items():
        for name in ("random", "perfect"):
            for result in await client.evaluate(partial(against, name, role), tasks, samples=SAMPLES):
                pair = (f"{role} {step}", name)
                wins[pair if result.reward else pair[::-1]] += 1
    return wins


async def rated(clients, tasks, steps):
    """Take the games of each rating when both models have come to its step and wait for them."""
    wins = Counter()
    for step in steps:
        while not await wait_for_games(clients, step):  # noqa: ASYNC110 - nobody tells; the servers are asked
            await asyncio.sleep(0.2)
        wins += await games(clients, tasks, step)
        print(f"step {step}: rated", flush=True)
    return wins


async def wait_for_games(clients, step):
    """Return whether both models have come to a step, and wait for games of it."""
    statuses = [await client.status() for client in clients.values()]
    return all(status.step == step and status.awaited_evaluations for status in statuses)


async def train(clients, jobs):
    """Train both and return the wins of all games that were played for ratings."""
    hidden, job = NIM.tasks("hidden"), jobs["red"]
    wins = await games(clients, hidden, 0)
    _, between = await asyncio.gather(
        Team.rollout(clients, NIM.tasks("train"), play), rated(clients, hidden, job["evaluate_after"])
    )
    return wins + between + await games(clients, hidden, job["steps"])


def show(found, steps):
    """Print the ratings as a table with bars."""
    lowest = min(found.values())
    for name in ("random", *(f"{role} {step}" for role in ROLES for step in steps), "perfect"):
        print(f"{name:>10}  {found[name]:5.0f}  {'#' * round((found[name] - lowest) / 20)}")


async def main():
    parser = argparse.ArgumentParser(description="Train two opponents at Nim and rate them.")
    parser.add_argument("--steps", type=int, default=60, help="training steps of each model")
    parser.add_argument("--seed", type=int, default=0, help="seed of sampling and of the order of tasks")
    parser.add_argument("--folder", type=Path, help="where servers and models go (default: a temporary folder)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-duel-") as temporary:
        jobs = jobs_of(given.steps, given.seed)
        async with served((given.folder or Path(temporary)).absolute(), jobs) as clients:
            wins = await train(clients, jobs)
    show(ratings(wins, "random"), (0, *jobs["red"]["evaluate_after"], given.steps))


if __name__ == "__main__":
    asyncio.run(main())
