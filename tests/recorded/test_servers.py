"""Servers' folders that an earlier version was killed in: they are opened, recovered, and trained on in."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest

from swarm.backends.local import LocalBackend
from swarm.client import AsyncSwarmClient, Episode, NamedTask
from swarm.errors import InvalidRequest
from swarm.job import Job
from swarm.rollout.keys import ServerDirectory
from swarm.store.archive import Archive
from swarm.store.database import connect, migrate
from tests.recorded.conftest import FIRST, SECOND, Expected, Unpack, check_says
from tests.recorded.record import LEASE, PROBE
from tests.swarm.server.support import Served, eventually, serving
from tests.swarm.store.support import shape

STATUS = ("job_digest", "step", "steps", "policy_version", "collected_episodes")


def interrupted(folder: Path) -> Job:
    return ServerDirectory(folder).read_interrupted_job()


async def told(served: Served, path: str) -> Any:
    return (await served.call("GET", path, served.admin)).body


async def episodes(served: Served) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in (await told(served, "/episodes?limit=1000"))["episodes"]}


async def check_recovered(served: Served, recorded: Mapping[str, Any]) -> None:
    """Everything stands as it did, except that an episode which was open is fenced, with a reason."""
    status = await served.status()
    check_says(status, {name: recorded[name] for name in STATUS})
    assert status["open_episodes"] == 0
    check_says((await told(served, "/checkpoints"))["checkpoints"], recorded["checkpoints"])
    found = await episodes(served)
    assert found.keys() == {one["id"] for one in recorded["episodes"]}
    for one in recorded["episodes"]:
        if one["state"] == "open":
            assert found[one["id"]]["state"] == "fenced"
            assert found[one["id"]]["reason"]
        else:
            check_says(found[one["id"]], one, one["id"])


def renewed(lease: Mapping[str, Any], folder: Path, served: Served) -> dict[str, Any]:
    """Return a recorded lease as its owner would hold it today: a key lives for a day, and was recorded longer ago.

    The key itself has to be this server's still: it is read with the secret that was recorded beside it.
    """
    secret = ServerDirectory(folder).secret()
    said = jwt.decode(lease["lease_token"], secret, algorithms=["HS256"], options={"verify_exp": False})
    return {**lease, "lease_token": served.server.keys.lease_key(said["ep"], said["epoch"])}


async def test_a_killed_server_recovers_and_trains_each_episode_once(
    tmp_path: Path, unpack: Unpack, expected: Expected
) -> None:
    recorded, folder = expected["fake"], unpack("fake", tmp_path)
    lease = json.loads((folder / LEASE).read_text())
    steps = {one["id"]: one["step"] for one in recorded["episodes"] if one["step"]}
    async with serving(folder, interrupted(folder)) as served:
        await check_recovered(served, recorded)
        assert trained(served) == steps
        lost = await served.end(renewed(lease, folder, served))
        assert (lost.status, lost.code) == (409, "lease_lost")
        await served.play("y")
        await served.until(step=6, finished=True)
        waiting = {one["id"] for one in recorded["episodes"] if one["state"] == "ended"}
        last = {name for name, step in trained(served).items() if step == 6}
        assert waiting < last
        assert trained(served).items() > steps.items()
        states = Counter(one["state"] for one in (await episodes(served)).values())
        assert states == {"consumed": 24, "fenced": 1}
    assert json.loads(next(folder.glob("checkpoints/*/step-000006/fake.json")).read_text())["version"] == 6


async def test_a_stream_whose_tasks_clients_named_themselves_goes_on_with_a_list_without_the_groups_that_lack_members(
    tmp_path: Path, unpack: Unpack
) -> None:
    folder, played = unpack("fake", tmp_path), list[str]()

    async def agent(episode: Episode[NamedTask]) -> float:
        await episode.chat([{"role": "user", "content": "hi"}])
        played.append(episode.task.id)
        return 1.0

    async with serving(folder, interrupted(folder)) as served, AsyncSwarmClient(served.url, served.admin) as client:
        (stream,) = (await client.streams()).streams
        tasks = [NamedTask(name) for name in [*stream.unfinished, "p", "q", "r"]]
        await client.rollout(agent, tasks, concurrency=1)
        assert (await client.status()).finished
        size = served.server.job.group_size
        assert stream.unfinished, "the folder has groups that lack members"
        counts = served.server.training.rollout.counts
        assert counts["drop_partial_group"] == sum(size - places for places in stream.unfinished.values())
        assert set(Counter(played).values()) <= set(range(1, size + 1))


def trained(served: Served) -> dict[str, int]:
    """Return the step in which the weights hold each episode; fail if one is in them twice."""
    found = [(name, step) for step, batch in served.backend.learner.trained for name, _ in batch]
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.mark.slow
async def test_a_killed_training_of_a_model_goes_on_with_its_weights(
    tmp_path: Path, unpack: Unpack, expected: Expected, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint is of step 2; step 3 is learned again from the store."""
    from swarm.backends.local.checkpoint import read  # imports torch

    recorded, folder = expected["local"], unpack("local", tmp_path)
    wanted = interrupted(folder)
    backend = LocalBackend(wanted, folder / "models")
    await backend.start()  # torch takes its time to load; the server's start is waited for as long as others' only
    async with serving(folder, wanted, backend=lambda _: backend) as served:
        await check_recovered(served, recorded)
        async with AsyncSwarmClient(served.url, served.admin) as client:
            answer = await probed(client)
            assert answer["tokens"] == recorded["probe"]["tokens"] != recorded["untrained"]["tokens"]
            assert answer["logprobs"] == pytest.approx(recorded["probe"]["logprobs"], abs=1e-3)
            for task, reward in (("x", 0.0), ("z", 0.0), ("z", 1.0)):
                episode = await client.begin(NamedTask(task), wait_s=10)
                await episode.chat(PROBE)
                await episode.end(reward)
        done = await served.until(step=4, finished=True)
        assert done["policy_version"] == 4
        assert done["metrics"]["actor/grad_norm"] > 0
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert read(next(folder.glob("checkpoints/*/step-000004"))).facts["version"] == 4


async def probed(client: AsyncSwarmClient) -> dict[str, Any]:
    """Return what the policy answers without randomness, as it was recorded."""
    episode = await client.begin(NamedTask("probe"), kind="eval", wait_s=10)
    reply = await episode.chat(PROBE, temperature=0.0, logprobs=True)
    await episode.end(0.0)
    spoken = reply.raw["choices"][0]["logprobs"]["content"]
    return {"tokens": [one["token"] for one in spoken], "logprobs": [one["logprob"] for one in spoken]}


@pytest.mark.slow
@pytest.mark.parametrize("recorded_set", [SECOND], indirect=True)
async def test_a_training_that_was_killed_in_a_step_learns_it_again_from_the_store(
    tmp_path: Path, unpack: Unpack, expected: Expected
) -> None:
    recorded, folder = expected["training"], unpack("training", tmp_path)
    wanted = interrupted(folder)
    backend = LocalBackend(wanted, folder / "models")
    await backend.start()
    async with serving(folder, wanted, backend=lambda _: backend) as served:
        done = await served.until(step=3)
        assert done["policy_version"] == 3
        assert done["metrics"]["actor/grad_norm"] > 0
        found = await episodes(served)
        steps = Counter(one["step"] for one in found.values())
    assert recorded["step"] == 2
    assert {step: steps[step] for step in (1, 2, 3)} == dict.fromkeys((1, 2, 3), wanted.episodes_per_step)


async def test_what_a_killed_server_had_exported_is_what_is_exported_now(
    tmp_path: Path, unpack: Unpack, recorded_set: Path
) -> None:
    """No weights are needed for that; the engine stays off."""
    folder = unpack("local", tmp_path)
    async with serving(folder, start=False) as served, AsyncSwarmClient(served.url, served.admin) as client:
        served.server.load(interrupted(folder))
        await client.export(tmp_path / "episodes.jsonl")
    recorded = read_lines(recorded_set / "traces.jsonl")
    episodes = {episode["id"]: episode for episode in read_lines(tmp_path / "episodes.jsonl")}
    assert (len(recorded), sum(len(trace["turns"]) for trace in recorded)) == (len(episodes), 7)
    for turn in (turn for trace in recorded for turn in trace["turns"]):
        fields = turn["metadata"]
        episode = episodes[fields["episode"]]
        check_says(episode, {name: fields[name] for name in ("task_id", "stream", "kind", "state", "step", "reward")})
        call = next(one for one in episode["record"] if f"{episode['id']}/{one['index']}" == turn["node_id"])
        sampled = {"ids": turn["completion_token_ids"], "logprobs": turn["per_token_logps"]}
        check_says(call["sampled"], {**sampled, "versions": fields["versions"]})
        assert turn["prompt_token_ids"][-len(call["context"]["ids"]) :] == call["context"]["ids"]


@pytest.mark.parametrize("recorded_set", [FIRST], indirect=True)
async def test_a_training_of_a_job_that_is_not_known_any_more_is_refused_in_one_line(
    tmp_path: Path, unpack: Unpack
) -> None:
    store = unpack("fake", tmp_path) / "store.sqlite3"
    with sqlite3.connect(store) as connection:
        (held,) = connection.execute("SELECT job FROM trainings").fetchone()
        job = {**json.loads(held), "backend": "verl", "verl": {"advantage_estimator": "gae"}}
        connection.execute("UPDATE trainings SET job = ?", (json.dumps(job),))
    with pytest.raises(InvalidRequest, match="gae needs a critic"):
        await Archive(f"sqlite:///{store}", None).summarize(4)


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("recorded_set", [FIRST], indirect=True)
async def test_a_folder_of_an_earlier_release_has_none_and_gets_one_as_it_trains_on(
    tmp_path: Path, unpack: Unpack
) -> None:
    """Recorded before steps' metrics were kept: read as it is while the engine is off, brought over when it trains."""
    folder = unpack("fake", tmp_path)
    async with serving(folder, start=False) as served:
        served.server.load(interrupted(folder))
        assert (await told(served, "/history"))["steps"] == []
        kept = await told(served, "/checkpoints")
        assert [one["step"] for one in kept["checkpoints"]] == [4, 2]
        assert kept["best"] is None
        await served.server.start()
        await served.until(state="ROLLING")

        async def steps() -> list[int]:
            return [record["step"] for record in (await told(served, "/history"))["steps"]]

        # the store may be a moment behind
        assert await eventually(steps, lambda found: found[-1:] == [5]) == [5], "which is learned again"
        await served.play("y")
        await served.until(step=6, finished=True)
        assert await eventually(steps, lambda found: found[-1:] == [6]) == [5, 6]


@pytest.mark.parametrize("name", ["fake", "local"])
def test_a_recorded_store_becomes_what_a_new_one_is(
    name: str, tmp_path: Path, unpack: Unpack, recorded_set: Path
) -> None:
    (recorded,) = unpack(name, tmp_path / name).glob("**/*.sqlite3")
    old, new = (connect(f"sqlite:///{path}") for path in (recorded, tmp_path / "new.sqlite3"))
    assert shape(old)["version"] == ["0001" if recorded_set.name == FIRST else "0009"]
    for engine in (old, new):
        with engine.connect() as connection:
            migrate(connection)
    with old.begin() as connection:
        connection.exec_driver_sql("DROP TABLE events")  # it stays as it was, and nobody reads or writes it
    assert shape(old) == shape(new)
