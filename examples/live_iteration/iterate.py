"""Edits the agent live, without a person: trains the draft, saves a broken edit, saves the mended one, and tells.

    python examples/live_iteration/iterate.py                    about two minutes on two cores
    python examples/live_iteration/iterate.py --steps 2 --backend fake

It works in a folder of its own, with a server of its own, both gone afterwards.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from swarm.client import SwarmClient

HERE = Path(__file__).parent
MOST_S = 600.0


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--steps", type=int, default=10, help="training steps with each of the two versions")
    options.add_argument("--backend", default="local", choices=("local", "fake"), help="fake learns nothing: for tests")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="live-iteration-") as folder:
        iterate(Path(folder), asked.steps, asked.backend)


def iterate(home, steps, backend):
    (home / "mine").mkdir()
    job = {"environment": "arith", "backend": backend, "steps": 4 * steps + 100, "episodes_per_step": 64}
    (home / "job.json").write_text(json.dumps(job))
    save(home, HERE / "agent.py")
    started = json.loads(ajet(home, "swarm", "start", "--job", str(home / "job.json"), "--port", "0", "--json"))
    tokens = json.loads(Path(started["tokens"]).read_text())
    client = subprocess.Popen(
        command("client", "run", str(home / "mine"), "--reload", "--sandbox", "process"), env=environment(home)
    )
    try:
        with SwarmClient(started["url"], tokens["client"]) as swarm:
            trained(swarm, client, steps)
            save(home, HERE / "versions" / "broken.py")
            time.sleep(3)  # somebody reads the traceback
            save(home, HERE / "versions" / "mended.py")
            trained(swarm, client, swarm.status().step + steps)
            tell(swarm)
    finally:
        client.send_signal(signal.SIGINT)
        client.wait(60)
        ajet(home, "swarm", "stop")


def save(home, version):
    """Save a version as the agent, whole or not at all, as editors do."""
    draft = home / "mine" / ".draft"
    draft.write_bytes(version.read_bytes())
    draft.rename(home / "mine" / "agent.py")


def trained(swarm, client, step):
    """Wait until the server has trained this step."""
    deadline = time.monotonic() + MOST_S
    while (status := swarm.status()).step < step:
        if client.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"training stopped at step {status.step}")
        time.sleep(0.2)


def tell(swarm):
    """Print what became of the plays of each code."""
    played = defaultdict(list)
    for episode in reversed(swarm.episodes(10_000).episodes):
        played[episode.code].append(episode)
    for code, episodes in played.items():
        judged = [episode.success for episode in episodes if episode.success is not None]
        fenced = sum(episode.reason == "code_changed" for episode in episodes)
        solved = f"{fmean(judged):.2f}" if judged else "-"
        said = f"{len(episodes)} plays, solved {solved}, {fenced} fenced when it was replaced"
        sys.stdout.write(f"code {code[:12]}   {said}\n")


def command(*words):
    return [sys.executable, "-m", "research", *words]


def environment(home):
    others = {name: value for name, value in os.environ.items() if name != "AJET_SERVER"}  # the server is its own
    return {**others, "AJET_HOME": str(home / "home")}


def ajet(home, *words):
    return subprocess.run(command(*words), env=environment(home), check=True, text=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    main()
