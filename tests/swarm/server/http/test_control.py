"""The control plane: nobody enters without the right key, and every verb can be repeated."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from swarm.server import make_app
from tests.swarm.server.support import Answer, Served, eventually, job, serving


def routes(served: Served) -> list[tuple[str, str]]:
    """Every method and path of the application, as it was built."""
    found = []
    for route in make_app(served.server).routes:
        assert isinstance(route, Route), route
        found += [(method, route.path) for method in sorted(route.methods or {"GET"})]
    return found


async def test_a_wrong_route_and_a_wrong_method_are_openai_errors(served: Served) -> None:
    for path in ("/v1/nothing", "/docs", "/redoc"):
        missing = await served.call("GET", path)
        assert (missing.status, missing.code) == (404, "not_found")
    wrong = await served.call("GET", "/v1/chat/completions")
    assert (wrong.status, wrong.body["error"]["type"]) == (405, "invalid_request_error")


async def test_end_abort_and_heartbeat_can_be_repeated_and_late_calls_are_told(served: Served) -> None:
    lease = await served.begin("a")
    await served.chat(lease, "hi")
    assert (await served.verb(lease, "heartbeat")).body["state"] == "open"
    for _ in range(2):
        ended = (await served.end(lease)).body
        assert (ended["episode_id"], ended["state"]) == (lease["episode_id"], "ended")
    lates = [await served.verb(lease, verb) for verb in ("heartbeat", "abort")]
    for late in (*lates, await served.chat(lease, "x")):
        assert (late.status, late.code) == (410, "episode_ended")
    lease = await served.begin("a")
    for _ in range(2):
        assert (await served.verb(lease, "abort", {"reason": "gave up"})).body["state"] == "aborted"
    assert (await served.end(lease)).status == 410


async def test_a_fenced_owner_gets_409_and_need_not_try_again(served: Served) -> None:
    lease = await served.begin("a")
    rollout = served.rollout
    rollout.ledger.fence(next(iter(rollout.leases)), "test")
    for late in (await served.end(lease), await served.chat(lease, "x"), await served.verb(lease, "heartbeat")):
        assert (late.status, late.code, late.headers["x-should-retry"]) == (409, "lease_lost", "false")


async def test_a_reward_must_be_a_number_and_a_malformed_begin_names_its_field(served: Served) -> None:
    lease = await served.begin("a")
    for reward in (None, "much", float("nan"), float("inf")):
        answer = await served.verb(lease, "end", {"reward": reward})
        assert (answer.status, answer.body["error"]["param"]) in {(400, "reward"), (400, None)}
        assert (await served.verb(lease, "heartbeat")).status == 200
    begins: list[dict[str, Any]] = [{}, {"task_id": ""}, {"task_id": "a", "wait_s": -1}, {"task_id": "a", "colour": 1}]
    for body, field in zip(begins, ("task_id", "task_id", "wait_s", "colour"), strict=True):
        answer = await served.post("/episodes", served.admin, body)
        assert (answer.status, answer.code, answer.body["error"]["param"]) == (400, "invalid_request", field)


async def test_a_client_that_goes_away_leaves_the_line(served: Served) -> None:
    for task in "aabb":
        await served.begin(task)
    line = served.rollout.ledger.line
    waiting = asyncio.create_task(served.begin("c", wait_s=30))
    await eventually(lambda: len(line), lambda length: length == 1)
    waiting.cancel()
    await eventually(lambda: len(line), lambda length: length == 0)


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


async def test_an_oversized_body_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.server.http.MAX_BODY_BYTES", 100)
    answer = await served.post("/episodes", served.admin, {"task_id": "a" * 200})
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "100 bytes" in answer.message


async def test_a_defect_is_an_openai_error_without_its_inner_words(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("inner words")

    monkeypatch.setattr(served.server, "status", broken)
    answer = await served.call("GET", "/status", served.admin)
    assert (answer.status, answer.code) == (500, "server_error")
    assert "inner" not in answer.message
