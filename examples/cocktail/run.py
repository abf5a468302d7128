"""One tiny model is trained on three tasks from three client processes, each with its exact share of every batch.

    python examples/cocktail/run.py                 the slow client sets the pace: ten minutes on two busy cores
    python examples/cocktail/run.py --steps 4       a look at how it goes

`arith` has 40 % of each batch, `guess` and `market` (with a tool) 30 % each; the market's client is twenty times
slower than its environment. Half-way the shares become 20/40/40. Where Docker answers the first client runs in a
container, else as a process like the others; `ajet client run` says which.

Printed are the groups of each stream in every batch, as the server's store has them, and what they came to; drawn is
the mean reward of each stream by batch. Expect shares of exactly 4/3/3 groups of ten, then 2/4/4, and little learning:
20 steps of a tiny model on three tasks are too few to see it.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from swarm.client import SwarmClient
from swarm.job import Job
from swarm.wire import EpisodeSummary

HERE = Path(__file__).parent
STREAMS = ("arith", "guess", "market")
LATER = {"arith": 20, "guess": 40, "market": 40}


def main() -> int:
    options = _options()
    os.environ["AJET_HOME"] = str(options.home.absolute())
    os.environ.pop("AJET_SERVER", None)  # the server of this example is its own
    job = json.loads((HERE / "job.json").read_text()) | {"steps": options.steps}
    job |= json.loads(options.job)
    options.home.mkdir(parents=True, exist_ok=True)
    (options.home / "job.json").write_text(json.dumps(job))
    asked = ("swarm", "start", "--job", str(options.home / "job.json"), "--environment", str(HERE), "--json")
    started = json.loads(_ajet(*asked, port=options.port))
    token = json.loads(Path(started["tokens"]).read_text())["admin"]
    clients = [_client(stream, options.slowness) for stream in STREAMS]
    try:
        with SwarmClient(started["url"], token) as server:
            _until(server, options.steps // 2, clients)
            server.share(LATER)  # or: ajet swarm shares arith=20 guess=40 market=40
            print(f"\nnew shares after step {server.status().step}; ajet swarm shares:\n{_ajet('swarm', 'shares')}")
            _until(server, options.steps, clients)
            _report(server.episodes(10_000).episodes, Job.model_validate(job), options.out)
        return max(client.wait(timeout=60) for client in clients)
    finally:
        for client in clients:
            client.terminate()
        _ajet("swarm", "stop")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train one tiny model on three tasks from three client processes.")
    parser.add_argument("--steps", type=int, default=20, help="training steps (default 20)")
    parser.add_argument("--slowness", type=float, default=20.0, help="of the market's client (default 20)")
    parser.add_argument("--home", type=Path, default=Path(".cocktail"), help="folder of the server and the model")
    parser.add_argument("--port", type=int, default=8700, help="the server's port, where it is free (default 8700)")
    parser.add_argument("--job", default="{}", help="job fields, as JSON, in place of those of job.json")
    parser.add_argument("--out", type=Path, default=Path("cocktail"), help="the plot, without its suffix")
    return parser.parse_args()


def _ajet(*words: str, port: int | None = None) -> str:
    more = () if port is None else ("--port", str(port))
    command = [sys.executable, "-m", "research", *words, *more]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _client(stream: str, slowness: float) -> subprocess.Popen[bytes]:
    """Begin the client of one stream, in a process of its own."""
    slow = (str(HERE / "slow_market.py"), "--env", f"SLOWNESS={slowness}") if stream == "market" else ()
    where = () if stream == STREAMS[0] else ("--sandbox", "process")
    words = (*slow, "--environment", stream, "--stream", stream, "--concurrency", "24", *where)
    return subprocess.Popen([sys.executable, "-m", "research", "client", "run", *words])


def _until(server: SwarmClient, step: int, clients: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for a step; raise RuntimeError where a client ended badly before."""
    while (status := server.status()).step < step:
        if any(client.poll() for client in clients) or status.reason:
            raise RuntimeError(f"a client ended, or the server failed ({status.reason}); see above")
        time.sleep(0.05)


def _report(episodes: Sequence[EpisodeSummary], job: Job, out: Path) -> None:
    """Print the groups and the mean reward of each stream by batch, and draw the rewards."""
    trained = [episode for episode in episodes if episode.state in ("in_step", "consumed")]
    rewards: dict[str, list[float]] = {stream: [] for stream in STREAMS}
    print("\nbatch   groups of " + " / ".join(STREAMS) + "   mean reward of each")
    for step in range(1, job.steps + 1):
        batch = [episode for episode in trained if episode.step == step]
        groups = Counter(stream for _, stream in {(episode.group, episode.stream) for episode in batch})
        for stream in STREAMS:
            rewards[stream].append(fmean(e.reward or 0.0 for e in batch if e.stream == stream))
        counts = " / ".join(str(groups[stream]) for stream in STREAMS)
        print(f"{step:5d}   {counts:28s}   " + "   ".join(f"{rewards[stream][-1]:.2f}" for stream in STREAMS))
    _draw(rewards, out)


def _draw(rewards: dict[str, list[float]], out: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = figure.subplots()
    for stream, values in rewards.items():
        axes.plot(range(1, len(values) + 1), values, marker="o", markersize=3, label=stream)
    half = len(next(iter(rewards.values()))) / 2
    axes.axvline(half + 0.5, color="gray", linestyle=":", label="shares 40/30/30, then 20/40/40")
    axes.set(xlabel="batch", ylabel="mean reward", ylim=(0, 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    for suffix in (".svg", ".png"):
        figure.savefig(out.with_suffix(suffix), dpi=130)
    print(f"\ndrawn: {out.with_suffix('.svg')} and .png")


if __name__ == "__main__":
    sys.exit(main())
