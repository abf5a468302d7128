"""Does a server that is killed at random, with clients that are, too, lose a sample or train one twice?

    python benchmarks/soak.py --minutes 5    play for five minutes, then draw the balance
    python benchmarks/soak.py --quick        the same for half a minute
    python benchmarks/soak.py --seed 7       other kills, other agents
    python benchmarks/soak.py --json         also writes benchmarks/results/soak.json
    python benchmarks/soak.py --check        exit code 1 unless the goals below are met

A real server on loopback (fake backend, durable store) and three client processes with six multi-turn agents each.
The server gets SIGKILL every few seconds and is started again in the same directory; client processes get it, too,
and are replaced. Agents abort, vanish in the middle of an episode, hang up during calls and ask again. Each client
process keeps a log of its own of every reply it read and every end that was acknowledged.

At the end both sides' books are laid side by side. Goals, all exact:

- no acknowledged end is lost: each is trained, dropped with a reason, or waits for its batch;
- no episode is in the weights twice (the fake backend's checkpoint is the list of what it was trained on), and the
  weights' batches are the store's, step by step, in order;
- every reply that was read is in the store, and served = trained + given up with a reason + open;
- an episode in the weights has as many tokens as its client was served (at least as many, where a call was cut and
  asked again: both replies may have been served).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rig.frame import circumstances, concluded, figure_lines, parser
from rig.installations import stored_episodes
from rig.soak_agents import GROUP_SIZE

from swarm.client import AsyncSwarmClient
from swarm.errors import SwarmError
from swarm.job import Job
from swarm.wire import EpisodeSummary, ServerState

CLIENTS = 3
SERVER_LIVES_S = (3.0, 8.0)
CLIENT_LIVES_S = (2.0, 6.0)
SETTLE_S = 30.0
JOB = Job(
    backend="fake", steps=1_000_000, episodes_per_step=4 * GROUP_SIZE, group_size=GROUP_SIZE, checkpoint_every=5,
    lease_ttl_s=3.0, drain_timeout_s=3.0, max_context=4096, surplus_groups=1,
)  # fmt: skip


def main() -> int:
    """Run the soak; return the exit code."""
    options = parser(__doc__, quick="half a minute")
    options.add_argument("--minutes", type=float, default=5.0, help="how long to play (default 5)")
    options.add_argument("--seed", type=int, default=0, help="of the kills and the agents (default 0)")
    arguments = options.parse_args()
    minutes = 0.5 if arguments.quick else arguments.minutes
    with tempfile.TemporaryDirectory(prefix="ajet-soak-") as folder:
        soak = Soak(Path(folder), random.Random(arguments.seed), arguments.seed)
        try:
            asyncio.run(soak.run(60 * minutes))
        finally:
            soak.end()
        figures = {"minutes": minutes, "seed": arguments.seed, **balance(soak), **circumstances(arguments)}
    print("\n".join(figure_lines(figures, full_size="python benchmarks/soak.py --minutes 5")))
    missed = [f"{found} {name}" for name, found in figures["must be zero"].items() if found]
    return concluded("soak", figures, missed, arguments)


class Soak:
    """The server, the clients, and who is killed when."""

    def __init__(self, folder: Path, chance: random.Random, seed: int) -> None:
        self.directory = folder / "server"
        self.logs = folder / "logs"
        self.restarts: list[float] = []
        """Seconds from a kill to a server that rolls again."""
        self.clients_killed = 0
        self._chance = chance
        self._seed = seed
        self._server: subprocess.Popen[bytes] | None = None
        self._clients: list[subprocess.Popen[bytes]] = []
        self.directory.mkdir()
        self.logs.mkdir()

    async def run(self, seconds: float) -> None:
        """Play, kill, and settle."""
        await self._start_server()
        self._clients = [self._client() for _ in range(CLIENTS)]
        until = time.monotonic() + seconds
        await asyncio.gather(self._kill_server(until), self._kill_clients(until))
        for client in self._clients:
            client.send_signal(signal.SIGTERM)
        for client in self._clients:
            await asyncio.to_thread(client.wait, SETTLE_S)
        await self._settled()
        await self._restart()  # the last word is what a server reads back, not what one remembers
        await self._settled()

    def end(self) -> None:
        """Kill whatever still runs."""
        for process in (*self._clients, self._server):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    async def _kill_server(self, until: float) -> None:
        while await self._waited(SERVER_LIVES_S, until):
            await self._restart()

    async def _kill_clients(self, until: float) -> None:
        while await self._waited(CLIENT_LIVES_S, until):
            place = self._chance.randrange(CLIENTS)
            self._clients[place].kill()
            self._clients[place].wait()
            self.clients_killed += 1
            self._clients[place] = self._client()

    async def _waited(self, between: tuple[float, float], until: float) -> bool:
        """Wait a random while; False if it would be too long."""
        pause = self._chance.uniform(*between)
        if time.monotonic() + pause > until:
            await asyncio.sleep(max(0.0, until - time.monotonic()))
            return False
        await asyncio.sleep(pause)
        return True

    async def _restart(self) -> None:
        assert self._server is not None
        self._server.kill()
        self._server.wait()
        began = time.monotonic()
        await self._start_server()
        self.restarts.append(time.monotonic() - began)

    async def _start_server(self) -> None:
        url = self.directory / "url"
        port = url.read_text().rpartition(":")[2] if url.exists() else "0"
        with (self.directory / "log").open("ab") as log:
            self._server = subprocess.Popen(  # noqa: ASYNC220 - takes a millisecond
                [sys.executable, "-m", "swarm.server", "--directory", str(self.directory), "--port", port],
                stdout=log, stderr=log,
            )  # fmt: skip
        published: dict[str, Any] = {}
        while published.get("pid") != self._server.pid:
            with contextlib.suppress(FileNotFoundError, ValueError):
                published = json.loads((self.directory / "server.json").read_text())
            if self._server.poll() is not None:
                raise RuntimeError(f"the server ended:\n{(self.directory / 'log').read_text()[-3000:]}")
            await asyncio.sleep(0.01)
        if not url.exists():
            url.write_text(published["url"])
        async with self._admin() as admin:
            await admin.ensure_training(JOB)

    def _admin(self) -> AsyncSwarmClient:
        token = json.loads((self.directory / "tokens.json").read_text())["admin"]
        return AsyncSwarmClient((self.directory / "url").read_text(), token)

    def _client(self) -> subprocess.Popen[bytes]:
        number = len(list(self.logs.glob("*.jsonl")))
        log = self.logs / f"client-{number:04d}.jsonl"
        log.touch()
        with (self.directory / "clients.log").open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "rig.soak_agents", str(self.directory), str(log),
                 str(1000 * self._seed + number)],
                cwd=Path(__file__).parent, stdout=errors, stderr=errors,
            )  # fmt: skip

    async def _settled(self) -> None:
        """Wait until no episode is open: the leases of killed clients ran out."""
        until = time.monotonic() + SETTLE_S
        async with self._admin() as admin:
            while time.monotonic() < until:
                with contextlib.suppress(SwarmError):  # it has just been started
                    status = await admin.status()
                    if status.open_episodes == 0 and status.state in {ServerState.ROLLING, ServerState.ROLLING_POST}:
                        return
                await asyncio.sleep(0.1)
        raise RuntimeError("episodes are still open, or the server hangs")


@dataclass
class Known:
    """What clients know of one episode."""

    replies: int = 0
    tokens: int = 0
    cut: bool = False
    end: str = "left open"


SENT = "end sent, not acknowledged"
ENDS = {
    "end": SENT, "ended": "end acknowledged", "aborted": "abort acknowledged", "vanished": "left without a word",
}  # fmt: skip


def read_books(logs: Path) -> tuple[dict[str, Known], Counter[str]]:
    """Read all client logs: what is known of each episode, and how often which refusal came."""
    episodes, refusals = dict[str, Known](), Counter[str]()
    for line in [line for path in sorted(logs.glob("*.jsonl")) for line in path.read_text().splitlines()]:
        entry = json.loads(line)
        what = entry["what"]
        refusals.update([entry["code"]] if what == "told" else ())
        if "episode" not in entry:
            continue
        known = episodes.setdefault(entry["episode"], Known())
        known.cut = known.cut or what == "cut"
        if what == "served":
            known.replies += 1
            known.tokens += entry["tokens"]
        elif what == "told" and known.end != SENT:
            known.end = f"told {entry['code']}"
        known.end = ENDS.get(what, known.end)
    return episodes, refusals


def balance(soak: Soak) -> dict[str, Any]:
    """Return both sides' books, and what must be zero."""
    episodes, refusals = read_books(soak.logs)
    stored = {episode.id: episode for episode in stored_episodes(soak.directory)}
    weights = _weights(soak.directory)
    trained = {name: tokens for _, batch in weights for name, tokens in batch}
    by_fate: dict[str, Counter[str]] = {}
    for name, known in episodes.items():
        fate = by_fate.setdefault(_fate(stored.get(name)), Counter())
        written = stored[name].calls if name in stored else 0
        fate.update({"episodes": 1, "replies read": known.replies, "in the store": written, known.end: 1})
    return {
        "server killed": len(soak.restarts),
        "clients killed": soak.clients_killed,
        "seconds to roll again": {"median": round(median(soak.restarts), 2), "worst": round(max(soak.restarts), 2)},
        "steps": max((episode.step or 0 for episode in stored.values()), default=0),
        "steps in the newest checkpoint": len(weights),
        "served (clients' logs), by what became of it (server's store)": dict(
            sorted(by_fate.items(), key=lambda pair: -pair[1]["episodes"])
        ),
        "refusals clients were told": dict(refusals.most_common()),
        "must be zero": {
            "acknowledged ends lost": sum(
                known.end == "end acknowledged" and not _kept(stored.get(name))
                for name, known in episodes.items()
            ),
            "episodes trained twice": len([name for _, batch in weights for name, _ in batch]) - len(trained),
            "steps of the weights out of order": sum(
                step != place for place, (step, _) in enumerate(weights, start=1)
            ),
            "batches of the weights that are not the store's": _different(weights, stored),
            "episodes trained whose end nobody sent": sum(
                not episodes.get(name, Known()).end.startswith("end") for name in trained
            ),
            "replies read that the store does not have": sum(
                max(0, known.replies - (stored[name].calls if name in stored else 0))
                for name, known in episodes.items()
            ),
            "replies read that are neither trained, nor given up with a reason, nor open": sum(
                known.replies for name, known in episodes.items() if not _explained(stored.get(name))
            ),
            "episodes with other tokens in the weights than were served": sum(
                tokens != known.tokens and not (known.cut and tokens > known.tokens)
                for name, tokens in trained.items() if (known := episodes.get(name))
            ),
            "episodes given up without a reason": sum(
                episode.state in {"dropped", "fenced"} and not episode.reason for episode in stored.values()
            ),
            "undocumented refusals": sum(
                number for code, number in refusals.items() if code in {"server_error", "server_failed"}
            ),
        },
    }  # fmt: skip


def _fate(episode: EpisodeSummary | None) -> str:
    if episode is None:
        return "begun, never called: unknown to the store"
    if episode.state in {"consumed", "in_step"}:
        return "trained"
    if episode.state in {"dropped", "fenced"}:
        return f"{episode.state}: {episode.reason}"
    return {"ended": "open: waits for its batch"}.get(episode.state, episode.state)


def _explained(episode: EpisodeSummary | None) -> bool:
    """Tell whether an episode with replies is trained, given up with a reason, aborted by its agent, or open."""
    return _kept(episode) or (
        episode is not None
        and (episode.state in {"open", "prepared", "aborted"} or (episode.state == "fenced" and bool(episode.reason)))
    )


def _kept(episode: EpisodeSummary | None) -> bool:
    """Tell whether an ended episode is accounted for."""
    return episode is not None and (
        episode.state in {"consumed", "in_step", "ended"} or (episode.state == "dropped" and bool(episode.reason))
    )


def _different(weights: list[tuple[int, list[tuple[str, int]]]], stored: dict[str, EpisodeSummary]) -> int:
    """Count the steps whose episodes differ."""
    batches: dict[int, set[str]] = {}
    for episode in stored.values():
        if episode.step is not None:
            batches.setdefault(episode.step, set()).add(episode.id)
    return sum({name for name, _ in batch} != batches.get(step) for step, batch in weights)


def _weights(directory: Path) -> list[tuple[int, list[tuple[str, int]]]]:
    """Return what the newest checkpoint was trained on."""
    found = [json.loads(path.read_text()) for path in directory.glob("checkpoints/**/fake.json")]
    newest = max(found, key=lambda value: int(value["version"]), default={"trained": []})
    return [(step, [(name, tokens) for name, tokens in batch]) for step, batch in newest["trained"]]


if __name__ == "__main__":
    sys.exit(main())
