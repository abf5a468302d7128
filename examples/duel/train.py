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
import random
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from runpy import run_path

from research.environments.bring import environment_of
from research.installation.home import Home
from research.installation.server_process import start_swarm, stop_swarm
from swarm.client import AsyncSwarmClient
from swarm.client.teams import Team
from swarm.job import Job

HERE = Path(__file__).parent
GAME, RATINGS = run_path(str(HERE / "environment.py")), run_path(str(HERE / "ratings.py"))
reads, move_of, best, ratings = GAME["reads"], GAME["move_of"], GAME["best"], RATINGS["ratings"]

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


def jobs_of(environment, steps, seed, **changed):
    """Return the job of each role, in which training waits for the games of each rating."""
    quarters = sorted({steps * part // 4 for part in (1, 2, 3)} - {0})
    common = {
        "environment": environment, "steps": steps, "seed": seed, "episodes_per_step": 64, "group_size": 8,
        "learning_rate": 2e-3, "kl_coef": 0.02, "max_tokens": 2, "evaluate_after": quarters,
        "evaluation_episodes": games_of(),
    }  # fmt: skip
    return {role: Job.model_validate({**common, "model": MODELS[role], **changed.get(role, {})}) for role in ROLES}


def games_of():
    """Return how many games each model plays for one rating: against the other one and both scripted players."""
    return 3 * SAMPLES * len(GAME["Nim"]().tasks("hidden"))


@contextlib.asynccontextmanager
async def served(folder, models, jobs):
    """Serve each role's job on a server of its own; yield the clients by role."""
    servers = {role: start_swarm(folder / role, models=models, port=0) for role in jobs}
    try:
        clients = {role: AsyncSwarmClient(server.url, server.admin_token) for role, server in servers.items()}
        async with Team.training(clients, jobs):
            yield clients
    finally:
        for server in servers.values():
            stop_swarm(server)


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


async def train(clients, environment, jobs):
    """Train both and return the wins of all games that were played for ratings."""
    hidden, job = environment.tasks("hidden"), jobs["red"]
    wins = await games(clients, hidden, 0)
    _, between = await asyncio.gather(
        Team.rollout(clients, environment.tasks("train"), play), rated(clients, hidden, job.evaluate_after)
    )
    return wins + between + await games(clients, hidden, job.steps)


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
        folder = (given.folder or Path(temporary)).absolute()
        home = Home(folder, f"sqlite:///{folder / 'ajet.db'}").prepare()
        environment = environment_of(str(HERE), None, home, print)
        jobs = jobs_of(environment.name, given.steps, given.seed)
        async with served(folder / "swarms", home.models, jobs) as clients:
            wins = await train(clients, environment, jobs)
    show(ratings(wins, "random"), (0, *jobs["red"].evaluate_after, given.steps))


if __name__ == "__main__":
    asyncio.run(main())
