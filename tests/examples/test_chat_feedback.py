"""The example of a front for chat users: thumbs train, and nothing does of a user who did not consent."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from research.installation.servers import start_swarm, stop_swarm
from swarm.client import AsyncSwarmClient, SwarmClient
from swarm.job import Job
from swarm.wire import EpisodeRecord, fingerprint
from tests.swarm.server.support import Served, eventually, job, serving

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples" / "chat_feedback"
DEADLINE_S = 180.0
ROOMY = {"group_size": 4, "episodes_per_step": 64, "steps": 2}
"""No batch is full in a test, so what is pooled stays pooled."""


def test_thumbs_of_simulated_users_train_a_step(tmp_path: Path) -> None:
    server = start_swarm(tmp_path / "swarm", models=tmp_path / "models", port=0)
    try:
        small = {"backend": "fake", "environment": "guess", "max_staleness": 1, "group_size": 4, "episodes_per_step": 8}
        with SwarmClient(server.url, server.admin_token) as control:
            control.ensure_training(Job.model_validate({**small, "steps": 50}))
            with front_process(tmp_path) as (address, env):
                user = [sys.executable, str(FOLDER / "user.py"), "--front", address, "--asks", "16"]
                ended = subprocess.run(user, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
            assert ended.returncode == 0, ended.stderr[-3000:]
            assert "simulated users like an answer" in ended.stdout
            assert control.status().step >= 1
            found = control.episodes(1000).episodes
            trained = [each for each in found if each.step is not None]
            assert {(each.kind, each.stream) for each in trained} == {("train", "chat")}
            assert {round(each.reward or 0.0, 3) for each in trained} == {1.0, 0.333}, "one thumb up in each group"
            without_consent = {(each.state, each.reason) for each in found if each.kind == "eval"}
            assert without_consent == {("aborted", "erased")}
    finally:
        stop_swarm(server)


@contextlib.contextmanager
def front_process(home: Path) -> Iterator[tuple[str, dict[str, str]]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {**os.environ, "AJET_HOME": str(home), "FRONT_KEY": "secret", "PYTHONPATH": str(FOLDER.parents[1])}
    command = [sys.executable, str(FOLDER / "front.py"), "--port", str(port), "--wait-s", "5"]
    process = subprocess.Popen(command, cwd=home, env=env, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + DEADLINE_S
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}", env
    finally:
        process.terminate()
        assert process.wait(60) == 0


class Fronted:
    def __init__(self, served: Served, front: Any, http: TestClient[Any, Any]) -> None:
        self.served, self.front, self.http = served, front, http

    async def call(self, method: str, path: str, body: Any = None, key: str = "secret") -> tuple[int, Any, str]:
        async with self.http.request(method, path, json=body, headers={"authorization": f"Bearer {key}"}) as reply:
            return reply.status, await reply.json(), reply.headers.get("x-trained", "")

    async def consent(self, given: bool = True) -> Any:
        return (await self.call("POST", "/v1/users/ann/consent", {"given": given, "version": "1"}))[1]

    async def ask(self, **fields: Any) -> tuple[int, Any, str]:
        messages = [{"role": "user", "content": "a number from 100 to 999"}]
        return await self.call("POST", "/v1/chat/completions", {"messages": messages, "user": "ann", **fields})

    async def episodes(self) -> list[EpisodeRecord]:
        store = self.served.server.training.store
        await store.write()
        found = [await store.episode(each.id) for each in (await store.episodes(1000)).episodes]
        return [each for each in found if each is not None]

    async def until(self, accepted: Callable[[list[EpisodeRecord]], bool]) -> list[EpisodeRecord]:
        return list(await eventually(self.episodes, accepted))


def by_number(_: object, answers: list[str]) -> list[float]:
    return [float(answer) for answer in answers]


@contextlib.asynccontextmanager
async def fronted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lease_ttl_s: float | None = None, **options: Any
) -> AsyncIterator[Fronted]:
    ttl = {} if lease_ttl_s is None else {"lease_ttl_s": lease_ttl_s}
    monkeypatch.syspath_prepend(str(FOLDER))
    front = importlib.import_module("front")
    records = importlib.import_module("records").Records(folder / "records.sqlite3")
    owner = f"chat:{fingerprint(records.owner)}"
    async with serving(folder / "server", job(**ROOMY, **ttl)) as served:
        client = AsyncSwarmClient(served.url, served.server.keys.role_key("client"), owner=owner)
        made = front.Front(client, records, **options)
        async with TestClient(TestServer(front.application(made, "secret"))) as http:
            yield Fronted(served, made, http)
    records.db.close()


def texts(episodes: list[EpisodeRecord]) -> dict[str, float | None]:
    return {"".join(map(chr, each.record[0].sampled.ids[:-1])): each.reward for each in episodes}


async def test_a_thumb_goes_before_the_judge_and_each_episode_has_one_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fronted(tmp_path, monkeypatch, lease_ttl_s=0.5, wait_s=1.5, judge=by_number) as chat:
        await chat.consent()
        status, reply, trained = await chat.ask(n=2)
        shown = [choice["message"]["content"] for choice in reply["choices"]]
        assert (status, trained, float(shown[0]) > float(shown[1])) == (200, "yes", True)
        down = {"response_id": reply["id"], "rating": "down"}
        assert (await chat.call("POST", "/v1/feedback", {**down, "choice": 2}))[0] == 400
        assert (await chat.call("POST", "/v1/feedback", down))[1] == {"counted": True}
        assert (await chat.call("POST", "/v1/feedback", down))[1] == {"counted": False}
        rewards = texts(await chat.until(lambda found: all(each.state == "ended" for each in found)))
        assert sorted(rewards.values()) == pytest.approx([0, 1 / 3, 2 / 3, 1])
        assert (rewards[shown[0]], rewards[shown[1]]) == (0.0, 1.0)
        await chat.ask()  # nobody says anything of it: the judge's order counts, leases outlive the time limit
        found = await chat.until(lambda found: [each.state for each in found] == ["ended"] * 8)
        newest = texts(found[:4])
        assert sorted(newest, key=float) == sorted(newest, key=lambda text: newest[text] or 0.0)


async def test_without_consent_or_thumb_nothing_is_trained_or_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fronted(tmp_path, monkeypatch, wait_s=0.2) as chat:
        assert (await chat.ask())[2] == "no; no_consent"
        assert (await chat.ask(user=None))[2] == "no; no_consent"
        await chat.consent()
        assert (await chat.ask())[2] == "yes"
        found = await chat.until(lambda found: all(each.state == "aborted" for each in found))
        assert [each.kind for each in found] == ["train"] * 4 + ["eval"] * 2
        await eventually(chat.front.records.to_erase, lambda left: left == [])
        assert not any(each.record for each in await chat.episodes())
        chat.front.judge = lambda *_: [1.0]
        status, reply, trained = await chat.ask()
        assert (status, len(reply["choices"]), trained) == (200, 1, "no; no_answer")


async def test_what_is_withdrawn_or_erased_is_trained_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fronted(tmp_path, monkeypatch, wait_s=60.0, judge=by_number) as chat:
        groups = chat.served.server.training.rollout.groups
        for round_ in range(3):
            await chat.consent()
            asked = [asyncio.create_task(chat.ask()) for _ in range(3)]
            await asyncio.sleep(0.01 * round_)  # at different moments of the requests
            if round_ == 2:
                assert (await chat.call("DELETE", "/v1/users/ann"))[1]["episodes_left"] >= 0
            else:
                assert not (await chat.consent(given=False))["given"]
            assert [status for status, _, _ in await asyncio.gather(*asked)] == [200] * 3
        await eventually(lambda: len(chat.front.groups), lambda groups: groups == 0)
        await eventually(chat.front.records.to_erase, lambda left: left == [])
        assert groups.collected == 0
        assert not any(each.record or each.state == "ended" for each in await chat.episodes())
        assert chat.front.records.db.execute("select * from consents").fetchall() == []
        await chat.consent()
        reply = (await chat.ask())[1]["id"]
        assert (await chat.call("POST", "/v1/feedback", {"response_id": reply, "rating": "up"}))[1]["counted"]
        await eventually(lambda: groups.collected, lambda pooled: pooled == 4)
        assert (await chat.call("DELETE", "/v1/users/ann"))[1] == {"episodes_left": 0}
        assert groups.collected == 0
