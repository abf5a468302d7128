"""Passive mode: use alone raises how much simulated users like the answers, and only where they consent.

Each seed plays the same chat twice before a tiny model of its own on a server of its own: with the users' consent, and
without. The users are those of `examples/passive_chat/chat.py`, simulated; they pick one of four answers, and no reward
is computed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from studies.statistics.comparison import Runs, paired
from swarm.client import AsyncSwarmClient
from swarm.job import Job

EXAMPLE = Path(__file__).parents[2] / "examples" / "passive_chat"
SEEDS, REQUESTS, ASKED = 5, 120, 200
QUICK_SEEDS, QUICK_REQUESTS, QUICK_ASKED = 1, 24, 32
_START_S = 120.0


def measure(quick: bool) -> dict[str, Any]:
    """Return how much an answer is liked before and after, by seed and consent, and what consent made of it."""
    seeds, requests, asked = (QUICK_SEEDS, QUICK_REQUESTS, QUICK_ASKED) if quick else (SEEDS, REQUESTS, ASKED)
    began, rows = time.monotonic(), []
    for seed in range(seeds):
        for consent in (True, False):
            before, after, counts = asyncio.run(used(job_of(seed), requests=requests, asked=asked, consent=consent))
            rows.append({"seed": seed, "consent": consent, "before": before, "after": after, "counts": counts})
    return {
        "requests": requests,
        "probe_requests": asked,
        "runs": rows,
        **judged(rows),
        "seconds": round(time.monotonic() - began, 1),
    }


def judged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the gains of both arms by seed, and what consent made of them by the paired test; None for one seed."""
    with_consent, without = (_gains(rows, consent=consent) for consent in (True, False))
    found = paired(without, with_consent) if len(without.values) > 1 else None
    told: dict[str, Any] = {"gain_with_consent": with_consent.numbers, "gain_without": without.numbers}
    if found is not None:
        told |= {"test": found.test, "difference": found.estimate, "interval_95": found.interval(0.95), "p": found.p}
    return told


def _gains(rows: list[dict[str, Any]], *, consent: bool) -> Runs:
    gains = {str(row["seed"]): row["after"] - row["before"] for row in rows if row["consent"] is consent}
    return Runs(gains, {seed: int(seed) for seed in gains})


def job_of(seed: int, **changed: Any) -> Job:
    """Return the example's job with a seed of its own; `changed` are fields in place of the example's."""
    return Job.recorded({**json.loads((EXAMPLE / "job.json").read_text()), "seed": seed, **changed})


async def used(job: Job, *, requests: int, asked: int, consent: bool) -> tuple[float, float, dict[str, int]]:
    """Play the example's chat before a new model; return how much answers are liked before and after, and counts."""
    with tempfile.TemporaryDirectory(prefix="ajet-passive-") as folder, _processes(Path(folder)) as start:
        url, tokens = start.server()
        async with AsyncSwarmClient(url, tokens["admin"]) as client:
            await client.ensure_training(job)
            front, key = start.front(url, tokens["client"])
            before, after = await _example().use(
                front, key, requests=requests, consent=consent, seed=job.seed, asked=asked
            )
            counts = start.counts(front)
    return before, after, counts


class _Processes:
    """A server and a front below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def server(self) -> tuple[str, dict[str, str]]:
        models = os.environ.get("AJET_BENCHMARK_MODELS", str(Path(tempfile.gettempdir()) / "ajet-passive-models"))
        url = self._start("swarm.server", "server", "server.json", "--models", models)
        return url, json.loads((self._folder / "server" / "tokens.json").read_text())

    def front(self, server: str, token: str) -> tuple[str, str]:
        (self._folder / "token").write_text(token)
        given = ("--server", server, "--token-file", str(self._folder / "token"), "--feedback-s", "5")
        url = self._start("swarm.passive", "front", "front.json", *given, "--per-user", "100000",
                          "--per-application", "100000")  # fmt: skip
        return url, self._admin("POST", url, "/admin/applications", {"name": "chat"})["key"]

    def counts(self, front: str) -> dict[str, int]:
        return dict(self._admin("GET", front, "/admin/status")["counts"])

    def _start(self, module: str, name: str, record: str, *options: str) -> str:
        folder = self._folder / name
        with (self._folder / f"{name}.log").open("wb") as log:
            command = [sys.executable, "-m", module, "--directory", str(folder), *options]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self.running.append(process)
        until = time.monotonic() + _START_S
        while not (folder / record).exists():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{module} did not start: {(self._folder / f'{name}.log').read_text()[-500:]}")
            time.sleep(0.05)
        return str(json.loads((folder / record).read_text())["url"])

    def _admin(self, method: str, url: str, path: str, body: Any = None) -> dict[str, Any]:
        admin = json.loads((self._folder / "front" / "secrets.json").read_text())["admin"]
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(url + path, data, {"authorization": f"Bearer {admin}"}, method=method)
        with urllib.request.urlopen(asked, timeout=20) as reply:
            return dict(json.load(reply))


@contextmanager
def _processes(folder: Path) -> Iterator[_Processes]:
    started = _Processes(folder)
    try:
        yield started
    finally:
        for process in reversed(started.running):
            process.terminate()
            process.wait(60)


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("passive_chat", EXAMPLE / "chat.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
