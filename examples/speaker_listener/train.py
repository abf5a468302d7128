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
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from runpy import run_path

from swarm.client import AsyncSwarmClient
from swarm.client.teams import Team

HERE = Path(__file__).parent
GAME = run_path(str(HERE / "environment.py"))
listener_reads, solved, speaker_reads = GAME["listener_reads"], GAME["solved"], GAME["speaker_reads"]
WORLD = GAME["SpeakerListener"]()

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


def jobs_of(steps, seed, **changed):
    """Return the job of each role; `listener={"learning_rate": 0}` changes one."""
    common = {"steps": steps, "seed": seed, "episodes_per_step": 128, "group_size": 8}
    return {role: {**common, "model": MODELS[role], **LEARNING[role], **changed.get(role, {})} for role in ROLES}


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
        jobs = jobs_of(given.steps, given.seed)
        async with served((given.folder or Path(temporary)).absolute(), jobs) as clients:
            hidden = WORLD.tasks("hidden")
            print(f"before: {await success(clients, hidden):.2f} of hidden tasks solved; one in four is chance")
            progress = asyncio.create_task(show_progress(clients))
            await Team.rollout(clients, WORLD.tasks("train"), play)
            progress.cancel()
            print(f"after: {await success(clients, hidden):.2f} of hidden tasks solved")
            print(f"with the hints of other tasks: {await success(clients, hidden, shuffled=True):.2f}")
            print("their language:", await language(clients, hidden))


if __name__ == "__main__":
    asyncio.run(main())
