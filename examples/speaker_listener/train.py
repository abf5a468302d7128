"""Train a speaker and a listener, two models of different size on two servers, until they understand each other.

    python examples/speaker_listener/train.py            a few minutes on two cores
    python examples/speaker_listener/train.py --steps 3  a look at how it goes

It starts two swarm servers in a folder of their own, plays with both, measures on tasks that were never trained, and
stops them. With servers of your own (`ajet swarm start --name speaker`, `--name listener`) all that is left is `play`
and `Team.rollout`.
"""

import argparse
import asyncio
import contextlib
import random
import tempfile
from collections import Counter
from pathlib import Path
from runpy import run_path

from research.environments.bring import environment_of
from research.installation.home import Home
from research.installation.server_process import start_swarm, stop_swarm
from swarm.client import AsyncSwarmClient
from swarm.client.teams import Team
from swarm.job import Job

HERE = Path(__file__).parent
GAME = run_path(str(HERE / "environment.py"))
listener_reads, solved, speaker_reads = GAME["listener_reads"], GAME["solved"], GAME["speaker_reads"]

ROLES = ("speaker", "listener")
MODELS = {
    "speaker": {"kind": "tiny", "seed": 1, "hidden_size": 32, "layers": 1, "warm_start_steps": 300},
    "listener": {"kind": "tiny", "seed": 2, "hidden_size": 64, "layers": 2, "warm_start_steps": 400},
}
LEARNING = {
    "speaker": {"learning_rate": 1e-3, "kl_coef": 0.05, "max_tokens": 1},
    "listener": {"learning_rate": 3e-3, "kl_coef": 0.02, "max_tokens": 2},
}


async def play(team):
    """Let the speaker say one token of what it sees, and the listener point at what it takes that for."""
    hint = (await team["speaker"].chat(speaker_reads(team.task))).content
    answer = (await team["listener"].chat(listener_reads(team.task, hint))).content
    right = solved(team.task, answer)
    return {role: (float(right), right) for role in ROLES}


def jobs_of(environment, steps, seed, **changed):
    """Return the job of each role; `listener={"learning_rate": 0}` changes one."""
    common = {"environment": environment, "steps": steps, "seed": seed, "episodes_per_step": 128, "group_size": 8}
    return {
        role: Job.model_validate({**common, "model": MODELS[role], **LEARNING[role], **changed.get(role, {})})
        for role in ROLES
    }


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


async def success(clients, tasks, shuffled=False):
    """Return the share of tasks that the team solves; `shuffled`: with the hint that was given for another task."""
    others = dict(zip((task.id for task in tasks), random.Random(0).sample(tasks, len(tasks)), strict=True))

    async def play_shuffled(team):
        hint = (await team["speaker"].chat(speaker_reads(others[team.task.id]))).content
        answer = (await team["listener"].chat(listener_reads(team.task, hint))).content
        right = solved(team.task, answer)
        return {role: (float(right), right) for role in ROLES}

    results = await Team.evaluate(clients, tasks, play_shuffled if shuffled else play, samples=4)
    return sum(bool(result.successes["listener"]) for result in results) / len(results)


async def language(clients, tasks):
    """Return the word that the speaker says most for each animal, and how often it does."""
    said = {}

    async def noted(team):
        hint = (await team["speaker"].chat(speaker_reads(team.task))).content
        said.setdefault(team.task.data["meant"], Counter())[hint] += 1
        await team["listener"].chat(listener_reads(team.task, hint))
        return dict.fromkeys(ROLES, 0.0)

    await Team.evaluate(clients, tasks, noted)
    return {animal: words.most_common(1)[0][0] for animal, words in sorted(said.items())}


async def show_progress(clients):
    """Print each tenth step of the listener."""
    shown = 0
    while True:
        await asyncio.sleep(0.5)
        status = await clients["listener"].status()
        if status.step >= shown + 10:
            shown = status.step
            print(f"step {status.step:4d}  success {status.metrics.get('critic/rewards/mean', 0.0):.2f}", flush=True)


async def main():
    parser = argparse.ArgumentParser(description="Train a speaker and a listener.")
    parser.add_argument("--steps", type=int, default=120, help="training steps of each model")
    parser.add_argument("--seed", type=int, default=0, help="seed of sampling and of the order of tasks")
    parser.add_argument("--folder", type=Path, help="where servers and models go (default: a temporary folder)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-teams-") as temporary:
        folder = (given.folder or Path(temporary)).absolute()
        home = Home(folder, f"sqlite:///{folder / 'ajet.db'}").prepare()
        environment = environment_of(str(HERE), None, home, print)
        jobs = jobs_of(environment.name, given.steps, given.seed)
        async with served(folder / "swarms", home.models, jobs) as clients:
            hidden = environment.tasks("hidden")
            print(f"before: {await success(clients, hidden):.2f} of hidden tasks solved; one in four is chance")
            progress = asyncio.create_task(show_progress(clients))
            await Team.rollout(clients, environment.tasks("train"), play)
            progress.cancel()
            print(f"after: {await success(clients, hidden):.2f} of hidden tasks solved")
            print(f"with the hints of other tasks: {await success(clients, hidden, shuffled=True):.2f}")
            print("their language:", await language(clients, hidden))


if __name__ == "__main__":
    asyncio.run(main())
