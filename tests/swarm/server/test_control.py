"""Tests of control."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.protocols import CallReward
from swarm.job import Job
from swarm.server import make_app
from swarm.store.writer import open_store
from swarm.training.metrics import make_batch
from tests.swarm.server.support import Answer, Clock, Served, eventually, job, serving


def routes(served: Served) -> set[tuple[str, str]]:
    return {(method, route.path) for route in make_app(served.server).routes for method in route.methods}  # type: ignore[attr-defined]


async def test_a_wrong_route_and_a_wrong_method_are_openai_errors(served: Served) -> None:
    for path in ("/v1/nothing", "/docs", "/redoc"):
        missing = await served.call("GET", path)
        assert (missing.status, missing.code) == (404, "not_found")
    wrong = await served.call("GET", "/v1/chat/completions")
    assert (wrong.status, wrong.body["error"]["type"]) == (405, "invalid_request_error")


async def test_a_reward_must_be_a_number(served: Served) -> None:
    lease = await served.begin("a")
    for reward in (None, "much", float("nan"), float("inf")):
        answer = await served.verb(lease, "end", {"reward": reward})
        assert (answer.status, answer.body["error"]["param"]) in {(400, "reward"), (400, None)}
        assert (await served.verb(lease, "heartbeat")).status == 200
    answer = await served.post("/episodes", served.admin, {"task_id": "a", "colour": 1})
    assert (answer.status, answer.code, answer.body["error"]["param"]) == (400, "invalid_request", "colour")


async def test_each_request_of_a_bundle_is_judged_and_answered_as_if_it_came_alone(served: Served) -> None:
    one, other = [await served.begin("a", kind="eval") for _ in range(2)]
    call = {"model": one["model"], "messages": [{"role": "user", "content": "hi"}]}
    chat, end = "/v1/chat/completions", f"/episodes/{other['episode_id']}/end"
    task = {"task_id": "a", "kind": "eval"}
    asked: list[tuple[str, str | None, Any, int]] = [
        (chat, one["api_key"], call, 200), (chat, one["api_key"], {**call, "stream": True}, 400),
        (chat, served.admin, call, 401), (chat, None, call, 401), (chat, one["lease_token"], call, 401),
        (end, one["lease_token"], {"reward": 1}, 401), (end, other["lease_token"], {"reward": None}, 400),
        (end, None, {"reward": 1}, 401), ("/episodes", None, task, 200),
        ("/episodes", None, {**task, "kind": "x"}, 400),
        ("/episodes", served.admin, task, 404), ("/job", None, {}, 404), ("/bundle", None, {"requests": []}, 404),
    ]  # fmt: skip
    body = {"requests": [{"path": path, "key": key, "body": sent} for path, key, sent, _ in asked]}
    for key, begins in ((served.admin, 200), (one["api_key"], 403)):
        async with served.http.post(
            f"{served.url}/bundle", json=body, headers={"authorization": f"Bearer {key}"}
        ) as told:
            lines = sorted(map(json.loads, (await told.text()).splitlines()), key=lambda line: line["at"])
        wanted = [begins if path == "/episodes" and key is None else status for path, key, _, status in asked[:9]]
        assert [line["status"] for line in lines][:9] == wanted
        assert [line["status"] for line in lines][10:] == [404] * 3
    assert lines[0]["body"]["object"] == "chat.completion"
    assert served.rollout.counts["calls_cancelled"] == 0, "what may not be in a bundle is not begun"
    assert (await served.post("/bundle", None, body)).status == 401
    assert (await served.end(other)).body["state"] == "ended"


async def test_a_client_that_goes_away_cancels_the_calls_of_its_bundle(served: Served) -> None:
    leases = [await served.begin("a", kind="eval") for _ in range(2)]
    call = {"model": leases[0]["model"], "messages": [{"role": "user", "content": "hi"}]}
    calls = [{"path": "/v1/chat/completions", "key": lease["api_key"], "body": call} for lease in leases]
    served.rollout.gate.shut()
    asked = asyncio.create_task(served.post("/bundle", served.admin, {"requests": calls}))
    await eventually(lambda: served.rollout.counts["calls"], lambda calls: calls == 2)
    asked.cancel()
    await eventually(lambda: served.rollout.counts["calls_cancelled"], lambda calls: calls == 2)
    served.rollout.gate.open()


async def test_a_request_cut_short_leaves_the_server_well(served: Served) -> None:
    for path in ("/episodes", "/v1/chat/completions"):
        _, writer = await served.connect()
        lease = await served.begin("a", kind="eval")
        key = served.admin if path == "/episodes" else lease["api_key"]
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: 100\r\n\r\n{{"
        writer.write(head.encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await served.chat(lease, "hi")).status == 200


async def test_the_life_of_a_job(tmp_path: Path) -> None:
    async with serving(tmp_path, start=False) as served:
        assert (await served.post("/engine/start", served.admin)).code == "job_conflict"
        assert (await served.call("GET", "/job", served.admin)).status == 404
        refused = await served.post("/job", served.admin, {"backend": "fake", "steps": 0})
        assert refused.body["error"]["param"] == "steps"
        first, second = job(seed=1), job(seed=2)

        async def load(wanted: Any) -> Answer:
            return await served.post("/job", served.admin, wanted.model_dump(mode="json"))

        assert (await load(first)).body["job_digest"] == first.digest()
        assert (await served.post("/episodes", served.admin, {"task_id": "a"})).code == "engine_unavailable"
        assert (await load(second)).status == 200
        assert (await load(first)).status == 200
        for _ in range(2):
            assert (await served.post("/engine/start", served.admin)).status == 200
        await served.until(state="ROLLING", policy_version=0, needed_episodes=4, group_size=2)
        assert (await load(second)).code == "job_conflict"
        assert (await load(first)).status == 200
        assert (await served.get("/job"))["seed"] == 1
        lease = await served.begin("a")
        for _ in range(2):
            assert (await served.post("/engine/stop", served.admin)).body["state"] == "OFFLINE"
        assert served.backend.stopped
        assert (await served.chat(lease, "x")).code == "engine_unavailable"
        assert (await load(second)).status == 200
        await served.post("/engine/start", served.admin)
        await served.until(state="ROLLING", job_digest=second.digest())
        assert (await served.chat(lease, "x")).code == "lease_lost"


async def test_a_defect_is_an_openai_error_without_its_inner_words(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("inner words")

    monkeypatch.setattr(served.server, "status", broken)
    answer = await served.call("GET", "/status", served.admin)
    assert (answer.status, answer.code) == (500, "server_error")
    assert "inner" not in answer.message


async def played(served: Served) -> dict[str, Any]:
    lease = await served.begin("t")
    critic = {"x_ajet_agent": "critic", "x_ajet_train": "false"}
    for text, headers in (("one", {"x_ajet_agent": "solver"}), ("two", critic), ("three", {})):
        assert (await served.chat(lease, text, headers=headers)).status == 200
    return lease


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"by_call": {"3": 1.0}}, "none of the episode's calls: 0, 1, 2"),
        ({"by_agent": {"nobody": 1.0}}, "critic, solver"), ({"by_call": {"0": None}}, "by_call"),
        ({"by_call": {"0": 1e99}}, "by_call"), ({"by_call": {"-1": 1.0}}, "by_call"),
        ({"by_agent": {"solver": "much"}}, "by_agent"),
    ],
)  # fmt: skip
async def test_what_is_not_there_is_refused_and_the_episode_stays_open(
    served: Served, fields: dict[str, Any], said: str
) -> None:
    lease = await played(served)
    answer = await served.end(lease, 1.0, **fields)
    assert (answer.status, said in answer.message) == (400, True), answer.message
    assert (await served.end(lease, 1.0)).body["state"] == "ended"


async def test_they_are_shown_survive_a_restart_and_reach_the_learner(tmp_path: Path) -> None:
    wanted = job(episodes_per_step=4, group_size=4)
    async with serving(tmp_path, wanted) as served:
        lease = await played(served)
        ended = await served.end(lease, 0.25, by_call={"2": 2.0}, by_agent={"solver": -1.0, "critic": 5.0})
        assert ended.status == 200
        name = lease["episode_id"]
        record = (await served.get(f"/episodes/{name}"))["record"]
        assert [(c.get("agent"), c["reward"]) for c in record] == [("solver", -1.0), ("critic", 5.0), (None, 2.0)]
        plain = await served.play("t")
        (call,) = (await served.get(f"/episodes/{plain}"))["record"]
        assert not {"reward", "agent"} & set(call)
    store, recovered = await asyncio.to_thread(
        open_store, f"sqlite:///{tmp_path / 'store.sqlite3'}", wanted, (tmp_path / "installation").read_text()
    )
    await store.close()
    found = {sample.episode: sample for sample in recovered.pool}
    assert found[plain].call_rewards == ()
    (episode,) = make_batch(1, [found[name]]).episodes
    assert episode.call_rewards == (CallReward(0, -1.0, "solver"), CallReward(2, 2.0))
    assert {call for row in episode.rows for call in row.calls} == {-1, 0, 2}
    (episode,) = make_batch(1, [found[plain]]).episodes
    assert episode.call_rewards == ()
    assert {call for row in episode.rows for call in row.calls} == set()


async def test_of_a_team_they_are_prepared_and_committed_through_a_restart_too(tmp_path: Path) -> None:
    wanted = job(episodes_per_step=4, group_size=4)
    async with serving(tmp_path, wanted) as served:
        leases = [await played(served) for _ in range(2)]
        for lease in leases:
            prepared = await served.verb(lease, "prepare", {"reward": 1.0, "by_agent": {"solver": 0.5}})
            assert prepared.body["state"] == "prepared"
        assert (await served.verb(leases[0], "commit")).body["state"] == "ended"
    async with serving(tmp_path, wanted) as served:
        assert (await served.verb(leases[1], "commit")).body["state"] == "ended"
        for lease in leases:
            record = (await served.get(f"/episodes/{lease['episode_id']}"))["record"]
            assert [call["reward"] for call in record] == [0.5, 1.0, 1.0]


def overlapping(**fields: Any) -> Job:
    return job(**{"steps": 3, "max_staleness": 1, **fields})


async def test_who_holds_up_a_batch_with_an_old_group_is_fenced_and_others_are_not(tmp_path: Path) -> None:
    clock = Clock()
    async with serving(tmp_path, overlapping(drain_timeout_s=10, lease_ttl_s=86_000), clock=clock) as served:
        old, young = await served.begin("a"), None
        await served.chat(old, "hi")
        await served.play_step("bbcc")
        await served.until(step=1)
        young = await served.begin("f")
        await served.play_step("ddee")

        def passed() -> int:
            clock.now += 1
            return served.rollout.counts["drop_held_up_batch"]

        await eventually(passed, bool)
        await served.until(step=2)
        assert (await served.end(old)).code == "lease_lost"
        assert (await served.chat(young, "hi")).status == 200
        assert served.rollout.counts["drop_held_up_batch"] == 1
