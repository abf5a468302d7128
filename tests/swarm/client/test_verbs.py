"""The client's verbs, asynchronous and blocking, against a real server with a fake backend."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from swarm.client import AsyncSwarmClient, Episode, NamedTask, SwarmClient, SyncEpisode
from swarm.client import rollout as loop
from swarm.client.sync_client import SyncTeam
from swarm.client.threads import Bridge, background
from swarm.errors import EngineUnavailable, InvalidRequest, JobConflict, JobFinished, Unreachable
from swarm.job import Job
from swarm.wire import ServerState
from tests.swarm.factories import good
from tests.swarm.server.support import Served, job, serving

TASKS = [NamedTask(name) for name in "abc"]
ASK: list[Any] = [{"role": "user", "content": "between 3 and 5"}]


@pytest.fixture
def wanted() -> Job:
    return job()


async def agent(episode: Episode[Any]) -> tuple[float, bool]:
    reply = await episode.chat(ASK)
    return float(reply.content), reply.content == "5"


def plain_agent(episode: SyncEpisode) -> tuple[float, bool]:
    reply = episode.chat(ASK)
    return float(reply.content), reply.content == "5"


async def test_ensure_training_loads_starts_and_waits_and_does_nothing_again(tmp_path: Path) -> None:
    async with serving(tmp_path, start=False) as served, AsyncSwarmClient(served.url, served.admin) as client:
        assert await client.job() is None
        status = await client.ensure_training(job())
        assert (status.state, status.job_digest) == (ServerState.ROLLING, job().digest())
        assert await client.job() == job()
        await client.begin(TASKS[0])
        assert (await client.ensure_training(job())).open_episodes == 1
        assert len(served.backends) == 1


async def test_another_job_is_a_conflict_that_names_both_unless_another_release_digests_the_same_one(
    served: Served, client: AsyncSwarmClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = job(steps=7)
    with pytest.raises(JobConflict, match=rf"{job().digest()[:12]}.*{other.digest()[:12]}"):
        await client.ensure_training(other)
    told = served.server.status
    monkeypatch.setattr(served.server, "status", lambda: told().model_copy(update={"job_digest": "of-another-release"}))
    assert (await client.ensure_training(job())).state == "ROLLING"
    with pytest.raises(JobConflict):
        await client.ensure_training(other)


async def test_a_client_of_a_release_that_lacks_a_field_is_no_conflict(served: Served) -> None:
    """It sends all it knows, and compares the digest of that with the status's."""
    sent = job().model_dump(mode="json", exclude={"mismatch_limit"})
    answer = await served.post("/job", served.admin, sent)
    assert (answer.status, answer.body["job_digest"]) == (200, job().digest())


async def test_an_agent_of_openai_s_api_goes_the_way_of_its_client(served: Served) -> None:
    """A proxy that names itself as the host, below a path of its own: the server cannot know where it is reached."""

    async def passed_on(request: web.Request) -> web.Response:
        path = request.path.removeprefix("/trainer")
        headers = {name: request.headers[name] for name in ("Authorization", "Content-Type")}
        async with served.http.request(
            request.method, served.url + path, data=await request.read(), headers=headers
        ) as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/trainer/{path:.*}", passed_on)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/trainer"
    try:
        async with AsyncSwarmClient(url, served.admin) as client:
            episode = await client.begin(TASKS[0])
            assert episode.lease.base_url == f"{served.url}/v1"
            assert episode.base_url == f"{url}/v1"
            async with episode.openai() as openai:
                said = await openai.chat.completions.create(model=episode.model, messages=ASK)
            assert said.choices[0].message.content in {"3", "4", "5"}
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("name", ["", "half \ud800", "x" * 513])
async def test_a_task_that_no_server_can_know_is_refused_before_it_is_sent(client: AsyncSwarmClient, name: str) -> None:
    task = NamedTask(name)
    for refused in (client.begin(task), client.begin(task, kind="eval"), client.rollout(agent, [task])):
        with pytest.raises(InvalidRequest, match=r"^(task_id|ids\.0): "):
            await refused


async def test_a_rollout_fills_groups_until_the_job_is_finished_and_evaluation_goes_on(
    served: Served, client: AsyncSwarmClient
) -> None:
    summary = await client.rollout(agent, TASKS, concurrency=3)
    assert (summary.episodes, summary.dropped) == (8, {})
    assert 3.0 <= summary.reward_mean <= 5.0
    batches = served.backend.learner.batches
    assert [len(batch.episodes) for batch in batches] == [4, 4]
    for batch in batches:
        groups = [episode.group for episode in batch.episodes]
        assert sorted(groups.count(group) for group in set(groups)) == [2, 2]
    with pytest.raises(JobFinished):
        await client.begin(TASKS[0])
    results = await client.evaluate(agent, TASKS, samples=2, concurrency=5)
    assert [(result.task_id, result.sample) for result in results] == [(t.id, s) for t in TASKS for s in range(2)]
    assert {result.policy_version for result in results} == {2}
    assert all(result.success == (result.reward == 5.0) for result in results)


async def test_a_cancelled_rollout_gives_its_episodes_up(served: Served, client: AsyncSwarmClient) -> None:
    async def stuck(_: Episode[Any]) -> float:
        await asyncio.Event().wait()
        return 0.0

    playing = asyncio.create_task(client.rollout(stuck, TASKS, concurrency=4))
    await served.until(open_episodes=4)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    await served.until(open_episodes=0)


async def test_a_rollout_does_not_always_wait_for_an_off_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "ENGINE_OFF_S", 0.2)
    async with serving(tmp_path, start=False) as served, AsyncSwarmClient(served.url, served.admin) as client:
        served.server.load(job())
        with pytest.raises(EngineUnavailable, match="engine"):
            await client.rollout(agent, TASKS, concurrency=2)


async def test_nothing_or_something_else_at_the_address_is_one_clear_error(served: Served) -> None:
    elsewhere = f"{served.url}/elsewhere"
    for url, error, named in (("http://127.0.0.1:9", Unreachable, ":9"), (elsewhere, Exception, "/elsewhere/status")):
        async with AsyncSwarmClient(url, served.admin) as client:
            with pytest.raises(error, match=named):
                await client.status()


async def test_the_blocking_client_does_the_same_without_asyncio(tmp_path: Path) -> None:
    threads: set[threading.Thread] = set()

    def noted(episode: SyncEpisode) -> tuple[float, bool]:
        threads.add(threading.current_thread())
        return plain_agent(episode)

    def use(url: str, token: str, wanted: Job) -> None:
        with SwarmClient(url, token) as client:
            assert client.ensure_training(wanted).state is ServerState.ROLLING
            assert client.job() == wanted
            episode = client.begin(TASKS[0])
            assert episode.chat(ASK).content in {"3", "4", "5"}
            assert episode.heartbeat().state == "open"
            assert episode.abort("enough").state == "aborted"
            assert client.rollout(noted, TASKS, concurrency=3).episodes == 8
            assert client.status().finished
            assert len(client.evaluate(plain_agent, TASKS, samples=2)) == 6
            with pytest.raises(JobFinished):
                client.begin(TASKS[0])
            assert client.stop().state is ServerState.OFFLINE

    async with serving(tmp_path, start=False) as served:
        await asyncio.to_thread(use, served.url, served.admin, job())
    assert len(threads) > 1
    assert all(thread.daemon for thread in threads)


async def test_a_blocking_client_takes_tasks_by_name_from_a_generator_that_asks_another(served: Served) -> None:
    def play_team(team: SyncTeam) -> dict[str, tuple[float, bool]]:
        return {role: plain_agent(episode) for role, episode in team.episodes.items()}

    def use(url: str, token: str) -> None:
        with SwarmClient(url, token) as client, SwarmClient(url, token) as other:

            def asked() -> Iterator[NamedTask]:
                for task in TASKS:
                    assert other.status().job_digest
                    yield task

            assert client.register_tasks(asked(), stream="other").stream == "other"
            assert client.rollout(agent=plain_agent, tasks=asked()).episodes == 8
            assert len(client.evaluate(tasks=asked(), agent=plain_agent)) == 3
            assert len(SyncTeam.evaluate(clients={"a": client}, tasks=asked(), play=play_team)) == 3

    await asyncio.to_thread(use, served.url, served.admin)


async def test_a_blocking_call_in_the_loop_that_does_the_work_is_refused() -> None:
    async def work() -> None: ...

    with pytest.raises(RuntimeError, match="wait for itself"):
        Bridge(asyncio.get_running_loop()).run(work())


def test_the_blocking_client_has_every_verb_of_the_other_with_its_signature() -> None:
    for blocking, other in ((SwarmClient, AsyncSwarmClient), (SyncEpisode, Episode)):
        for name, verb in inspect.getmembers(other, inspect.iscoroutinefunction):
            if not name.startswith("_"):
                assert inspect.signature(getattr(blocking, name)) == inspect.signature(verb), name
                assert not inspect.iscoroutinefunction(getattr(blocking, name))


def test_what_an_interrupt_cancels_cleans_up_before_it_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, cleaned = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.set()

    def interrupted(_: object) -> None:
        assert begun.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(concurrent.futures.Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        background().run(work())
    assert cleaned.is_set()


OLD, NEW = "0" * 64, "f" * 64


async def test_a_label_is_kept_exported_and_counted_in_the_step_that_trained_it(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "s", job(steps=1, episodes_per_step=4, group_size=2)) as served,
        AsyncSwarmClient(served.url, served.admin, code=OLD) as old,
        AsyncSwarmClient(served.url, served.admin, code=NEW) as new,
        AsyncSwarmClient(served.url, served.admin) as silent,
    ):
        begun = [await client.begin(NamedTask(task), wait_s=5) for client in (old, new) for task in "ab"]
        shown = {one.id: one.code for one in (await old.episodes()).episodes}
        assert shown == dict(zip([one.id for one in begun], [OLD, OLD, NEW, NEW], strict=True))
        for place, episode in enumerate(begun):
            await good(episode)
            await episode.end(float(place))
        status = await served.until(finished=True)
        assert status["metrics"]["batch/codes"] == 2
        assert {one.code for one in (await silent.episodes()).episodes} == {OLD, NEW}
        assert (await silent.episode(begun[0].id)).code == OLD
        await silent.export(tmp_path / "episodes.jsonl")
    lines = (tmp_path / "episodes.jsonl").read_text().splitlines()
    assert {json.loads(line)["code"] for line in lines} == {OLD, NEW}


async def test_code_that_is_replaced_has_what_it_left_fenced_and_can_end_nothing(served: Served) -> None:
    async with (
        AsyncSwarmClient(served.url, served.admin, owner="keeper") as keeper,
        AsyncSwarmClient(served.url, served.admin, owner=keeper.owner, code=OLD) as old,
        AsyncSwarmClient(served.url, served.admin, owner="keeper", code=NEW) as new,
    ):
        mine, theirs = await old.begin(NamedTask("a")), await new.begin(NamedTask("a"))
        await good(mine)
        assert await keeper.give_up_open("code_changed") == 1
        refused = await served.end(mine.lease.model_dump())
        assert refused.code == "lease_lost"
        states = {one.id: (one.state, one.reason) for one in (await new.episodes()).episodes}
        assert states == {mine.id: ("fenced", "code_changed"), theirs.id: ("open", None)}
        assert served.server.training.rollout.counts["drop_code_changed"] == 1
