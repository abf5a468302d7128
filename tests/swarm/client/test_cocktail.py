"""Streams from client processes of their own: exact shares in every batch, however slow one is, and when one dies."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from swarm.client import AsyncSwarmClient
from tests.swarm.server.support import Served, eventually, job, serving

CLIENT = """
import asyncio, sys
from swarm.client import AsyncSwarmClient, NamedTask
from swarm.errors import SwarmError

url, token, stream, seconds, concurrency = sys.argv[1:]

async def agent(episode):
    await episode.chat([{"role": "user", "content": "hi"}])
    await asyncio.sleep(float(seconds))
    return float(len(episode.id) % 2)

async def main():
    async with AsyncSwarmClient(url, token) as client:
        await client.rollout(agent, [NamedTask(f"{stream}-{n}") for n in range(5)], concurrency=int(concurrency),
                             stream=stream)

print("ready", flush=True)
sys.stdin.readline()
asyncio.run(main())
"""
FAST_S, SLOW_S = 0.01, 0.2
COCKTAIL = {"math": 40, "code": 30, "web": 30}
Clients = Callable[..., subprocess.Popen[bytes]]


async def together(*processes: subprocess.Popen[bytes]) -> None:
    """Let processes play once all of them are ready, so that none comes late for want of a processor."""
    for process in processes:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()


@contextlib.contextmanager
def clients(served: Served) -> Iterator[Clients]:
    """Start client processes of one stream each; whatever is left of them ends with the test."""
    begun: list[subprocess.Popen[bytes]] = []

    def begin(stream: str, seconds: float, concurrency: int = 4) -> subprocess.Popen[bytes]:
        words = [served.url, served.server.keys.role("client"), stream, str(seconds), str(concurrency)]
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        begun.append(process)
        return process

    try:
        yield begin
    finally:
        for process in begun:
            process.kill()
            process.wait()


async def batches(served: Served) -> list[Counter[str]]:
    """Return how many groups of each stream each batch had, as the store has it."""
    listed = (await served.call("GET", "/episodes?limit=10000", served.admin)).body["episodes"]
    trained = {(e["step"], e["group"], e["stream"]) for e in listed if e["state"] in ("in_step", "consumed")}
    steps = max((step for step, _, _ in trained), default=0)
    return [Counter(stream for of, _, stream in trained if of == step) for step in range(1, steps + 1)]


async def test_shares_are_exact_in_every_batch_though_one_process_is_twenty_times_slower_and_they_change(
    tmp_path: Path,
) -> None:
    """A batch takes the slow stream longer than the time after which places of an idle one are lent."""
    wanted = job(steps=5, episodes_per_step=20, group_size=2, streams=COCKTAIL, drain_timeout_s=0.5)
    async with serving(tmp_path, wanted) as served:
        with clients(served) as begin:
            await together(begin("math", FAST_S), begin("code", FAST_S), begin("web", SLOW_S, 1))
            async with AsyncSwarmClient(served.url, served.admin) as client:
                await eventually(lambda: served.server.training.step, lambda step: step >= 2)
                await client.share({"math": 60, "code": 30, "web": 10})
                status = await served.until(finished=True)
        found = await batches(served)
    assert found[:2] == [{"math": 4, "code": 3, "web": 3}] * 2
    assert found[-2:] == [{"math": 6, "code": 3, "web": 1}] * 2
    assert (status["metrics"]["throttle/lent"], status["metrics"]["throttle/missed"]) == (0, 0)
    assert status["metrics"]["stream/web/groups"] == 1


async def test_a_killed_process_leaves_its_share_to_the_others_until_another_one_comes(tmp_path: Path) -> None:
    wanted = job(
        steps=1000, episodes_per_step=20, group_size=2, streams=COCKTAIL, lease_ttl_s=1.0, drain_timeout_s=60.0,
        missing_stream="renormalise", missing_stream_s=2.0, checkpoint_every=1000,
    )  # fmt: skip
    async with serving(tmp_path, wanted) as served:
        streams = served.server.training.rollout.groups.streams
        with clients(served) as begin:
            web = begin("web", FAST_S)
            await together(begin("math", FAST_S), begin("code", FAST_S), web)
            await eventually(lambda: served.server.training.step, lambda step: step >= 2)
            web.kill()
            await eventually(lambda: streams.missing, lambda missing: missing == {"web"})
            away = served.server.training.step
            await eventually(lambda: served.server.training.step, lambda step: step >= away + 8)
            await together(begin("web", FAST_S))
            await eventually(lambda: streams.missing, lambda missing: not missing)
            back = served.server.training.step
            await eventually(lambda: served.server.training.step, lambda step: step >= back + 4)
        found = await batches(served)
        metrics = await served.status()
    assert found[0] == {"math": 4, "code": 3, "web": 3}
    alone = found[away + 1 : back - 1]
    assert alone
    assert all(batch in ({"math": 6, "code": 4}, {"math": 5, "code": 5}) for batch in alone), alone
    assert abs(sum(batch["math"] for batch in alone) - 40 / 7 * len(alone)) < 2
    assert found[back + 1 : back + 3] == [{"math": 4, "code": 3, "web": 3}] * 2, "at once, and without a debt"
    assert metrics["metrics"]["throttle/missed"] == 1
