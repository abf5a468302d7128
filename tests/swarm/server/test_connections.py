"""What an attacker meets: no door without a key, no key by guessing, no memory by sending, no secret in a log."""

from __future__ import annotations

import asyncio
import base64
import errno
import gc
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from swarm.backends.protocols import DiskFull
from swarm.calls.generation import AnswerGeneration
from swarm.calls.prompts import SamplingPlan
from swarm.errors import InvalidRequest, NotFound
from swarm.job import Job
from swarm.rendering.tagged import TaggedReader
from swarm.rollout.keys import Keys
from swarm.server import model_export
from swarm.server.connections import (
    FAILURES,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MOST_PEERS,
    REFILL_S,
    FailureLimiter,
    LimitedHttp,
    peer_of,
)
from swarm.server.http import MAX_CONTROL_BYTES, Guard, authorize
from swarm.server.model_endpoint import BundleAnswer
from swarm.server.model_export import choose_checkpoint, export_model
from swarm.store.archive import TrainingSummary
from swarm.wire import CheckpointList, CheckpointSummary, EvaluationSummary
from tests.golden import refused
from tests.swarm.server.support import MODEL, Clock, Operation, Served, operations, serving
from tests.swarm.server.test_control import routes

HI = {"role": "user", "content": "hi"}


def forged(keys: Keys) -> dict[str, str | None]:
    good, claims = keys.role_key("admin"), {"use": "role", "role": "admin", "exp": int(time.time()) + 3600}
    head, payload, signature = good.split(".")
    viewer = keys.role_key("viewer").split(".")
    plain = json.loads(base64.urlsafe_b64decode(payload + "=="))
    longer = base64.urlsafe_b64encode(json.dumps({**plain, "exp": plain["exp"] + 1}).encode()).decode().rstrip("=")
    return {
        "none": None, "text": "secret", "empty parts": "..", "not ascii": "schlüssel", "truncated": good[:-4],
        "without its signature": f"{head}.{payload}.",
        "expired": jwt.encode({**claims, "exp": 1}, keys._secret, algorithm="HS256"),
        "without an end": jwt.encode({"use": "role", "role": "admin"}, keys._secret, algorithm="HS256"),
        "of no algorithm": jwt.encode(claims, None, algorithm="none"),
        "of another algorithm": jwt.encode(claims, keys._secret, algorithm="HS512"),
        "of another server": Keys().role_key("admin"), "with another's payload": f"{viewer[0]}.{payload}.{viewer[2]}",
        "with a later end": f"{head}.{longer}.{signature}",
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
async def test_no_route_but_health_opens_to_a_forged_key(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.server.connections.FAILURES", 100_000)
    walked = routes(served)
    keys = forged(served.server.keys)
    for method, path, name in [*((*one, "text") for one in walked), *(("GET", "/status", name) for name in keys)]:
        answer = await served.call(method, path.replace("{episode_id}", "e"), keys[name])
        assert answer.status == (200 if path == "/health" else 401), (name, method, path, answer)


@pytest.mark.parametrize(
    "operation", [o for o in operations() if "{episode_id}" in o.path and "lease" in o.keys], ids=lambda o: o.name
)
async def test_nobody_but_its_holder_moves_an_episode(served: Served, operation: Operation) -> None:
    mine, other = await served.begin("a", kind="eval"), await served.begin("a", kind="eval")
    path = operation.path.replace("{episode_id}", mine["episode_id"])
    admin, client = served.server.keys.role_key("admin"), served.server.keys.role_key("client")
    for key in (mine["api_key"], other["lease_token"], other["api_key"], admin, client):
        assert (await served.call(operation.method, path, key, {"reward": 1})).status == 403
    assert (await served.verb(mine, "heartbeat")).body["state"] == "open"


async def test_a_valid_key_in_the_header_of_another_protocol_is_no_guess(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.server.connections.FAILURES", 2)
    lease = await served.begin("a", kind="eval")

    async def listed(key: str) -> int:
        return (await served.call("GET", "/v1/models", x_api_key=key)).status

    assert [await listed(lease["api_key"]) for _ in range(4)] == [401] * 4, "that route takes a Bearer token"
    assert [await listed("guessed") for _ in range(3)] == [401, 401, 429]


async def test_guesses_in_a_bundle_count_as_those_that_come_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.server.connections.FAILURES", 2)
    monkeypatch.setattr("swarm.server.connections.REFILL_S", 1000.0)
    lease = await served.begin("a", kind="eval")
    call = {"model": MODEL, "messages": [HI]}
    keys = [*("guessed",) * 3, lease["api_key"]]
    asked = [{"path": "/v1/chat/completions", "key": key, "body": call} for key in keys]
    headers = {"authorization": f"Bearer {served.admin}"}
    async with served.http.post(f"{served.url}/bundle", json={"requests": asked}, headers=headers) as told:
        lines = {line["at"]: line["status"] for line in map(json.loads, (await told.text()).splitlines())}
    assert [lines[at] for at in range(4)] == [401, 401, 429, 200]
    assert (await served.call("GET", "/status", "guessed")).status == 429


async def test_a_key_is_judged_before_a_body_is_read_and_a_body_is_json_whatever_it_is_said_to_be(
    served: Served,
) -> None:
    reader, writer = await served.connect()
    writer.write(b"POST /episodes HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
    writer.close()
    curl = {"content_type": "application/x-www-form-urlencoded"}
    assert (await served.call("POST", "/episodes", served.admin, raw=b'{"task_id": "a"}', **curl)).status == 200
    for body, said in ((b"{", "expected JSON"), (b'{"task_id": "\\ud800"}', "half of one"), (b"[]", "body: ")):
        wrong = await served.call("POST", "/episodes", served.admin, raw=body, **curl)
        assert (wrong.status, wrong.code, said in wrong.message) == (400, "invalid_request", True), wrong


async def test_nothing_of_a_request_that_is_over_is_left_for_the_collector(served: Served) -> None:
    lease = await served.begin("a", kind="eval")
    call = {"path": "/v1/chat/completions", "key": lease["api_key"], "body": {"model": MODEL, "messages": [HI]}}

    async def count() -> int:
        assert (await served.chat(lease, "hi")).status == 200
        assert (await served.verb(lease, "heartbeat")).status == 200
        headers = {"authorization": f"Bearer {served.admin}"}
        async with served.http.post(f"{served.url}/bundle", json={"requests": [call]}, headers=headers) as told:
            assert json.loads(await told.text())["status"] == 200
        kinds = (RequestResponseCycle, BundleAnswer, AnswerGeneration, SamplingPlan, TaggedReader)
        return sum(type(each) in kinds for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        assert await count() == await count()
    finally:
        gc.enable()


async def test_bodies_have_an_end(served: Served) -> None:
    large = b'{"task_id": "' + b"x" * MAX_CONTROL_BYTES + b'"}'
    told = await served.call("POST", "/episodes", served.admin, raw=large)
    assert (told.status, told.code) == (413, "body_too_large")

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 1 << 16):
            yield large[start : start + (1 << 16)]

    assert (await served.call("POST", "/episodes", served.admin, raw=pieces())).status == 413
    lease = await served.begin("a", kind="eval")
    long = await served.chat(lease, "x" * (MAX_CONTROL_BYTES + 1))
    assert (long.status, long.code) == (400, "context_length_exceeded")


async def sent(served: Served, *parts: bytes) -> bytes:
    """Send raw bytes; return all that is answered until the server closes, or the first answer's head."""
    reader, writer = await served.connect()
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), 120)
    finally:
        writer.close()


@pytest.mark.parametrize("said", [b"", b"GE", b"GET /health HTTP/1.1\r\nHost: x\r\n", b"half a body"])
async def test_who_says_nothing_or_half_of_a_request_is_not_waited_for(
    served: Served, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    impatient(monkeypatch)
    if said == b"half a body":
        said = f"POST /episodes HTTP/1.1\r\nAuthorization: Bearer {served.admin}\r\n".encode()
        said += b"Content-Length: 500\r\n\r\n{"
    assert await sent(served, said) == b""
    assert LimitedHttp._dropped["silent"] == 1


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.server.connections.TICK_S", 0.01)
    monkeypatch.setattr("swarm.server.connections.PATIENCE_S", 0.05)
    monkeypatch.setattr(LimitedHttp, "_dropped", Counter[str]())


async def test_too_many_connections_that_wait_keep_nobody_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.server.connections.MOST_WAITING", 5)
    crowd = [await served.connect() for _ in range(20)]
    reader, writer = await served.connect()
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    assert [await reader.read() for reader, _ in crowd[:10]] == [b""] * 10
    for _, each in [*crowd, (reader, writer)]:
        each.close()


async def test_a_connection_beyond_those_that_have_a_request_under_way_is_told_to_come_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.call("GET", "/health")
    monkeypatch.setattr("swarm.server.connections.most_connections", lambda: 1)
    reader, writer = await served.connect()  # in place of the one that waited
    head = f"POST /job HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.admin}\r\n"
    writer.write(f"{head}Content-Length: 2\r\nExpect: 100-continue\r\n\r\n".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 100 ")
    assert b'"code":"engine_unavailable"' in await sent(served, b"")
    writer.close()


async def test_episodes_without_a_call_are_bounded_and_keep_no_agent_out_that_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.rollout.state.MOST_UNPAID", 3)
    monkeypatch.setattr("swarm.rollout.state.UNPAID_PER_S", 0.0)
    async with serving(tmp_path) as served:
        assert (await served.chat(await served.begin("a", kind="eval", owner="plays"))).status == 200
        for _ in range(2):
            lease = await served.begin("a", kind="eval", owner="floods")
            await served.post(f"/episodes/{lease['episode_id']}/abort", lease["lease_token"], {"reason": "r" * 1900})
        asked = {"task_id": "a", "kind": "eval", "owner": "floods too"}
        assert (await served.post("/episodes", served.admin, asked)).code == "throttled"
        assert served.server.training.rollout.counts["throttled"] == 1
        await served.begin("a", kind="eval", owner="plays")


async def test_heads_have_an_end(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    start = b"GET /health HTTP/1.1\r\nHost: x\r\n"
    crowd = b"".join(b"x-%d: y\r\n" % number for number in range(MAX_HEADERS + 1))
    endless = [b"x" * 8192] * (MAX_HEAD_BYTES // 8192 + 2)  # one header that never ends
    for parts in ([start, crowd, b"\r\n"], [start, b"x: ", *endless], [b"GET /", *endless], [b"nonsense\r\n\r\n"]):
        head, _, body = (await sent(served, *parts)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["error"]["code"] == "invalid_request"
    assert len([line for line in caplog.messages if "connections_dropped" in line]) <= 1
    assert (await served.call("GET", "/health")).status == 200
    whole = await sent(served, start, b"".join(b"x-%d: y\r\n" % n for n in range(60)), b"connection: close\r\n\r\n")
    assert whole.startswith(b"HTTP/1.1 200 ")


async def test_no_key_and_no_secret_is_in_any_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued: list[str] = []
    sign = Keys._sign

    def noted(self: Keys, claims: dict[str, Any], life_s: float) -> str:
        issued.append(sign(self, claims, life_s))
        return issued[-1]

    monkeypatch.setattr(Keys, "_sign", noted)
    with caplog.at_level(logging.DEBUG):
        async with serving(tmp_path) as served:
            for number in range(4):
                lease = await served.begin(f"t{number // 2}")
                await served.chat(lease, "hi")
                await served.chat(lease, "hi", stream=True, temperature=7)
                await served.verb(lease, "abort", {"reward": 1})
                await served.end(lease, 1.0)
                await served.verb(lease, "heartbeat")
            given_up = await served.begin("gone")
            await served.verb(given_up, "abort", {"reason": "why not"})
            await served.call("GET", "/status", "wrong-but-perhaps-nearly-right")
            served.backend.die("test")
            await served.until(state="FAILED")
            secret = served.server.keys._secret
    assert len(issued) >= 15
    written = caplog.text + "".join(str(record.args) for record in caplog.records)
    assert "event=fence" in written or "event=abort" in written
    for key in (*issued, "wrong-but-perhaps-nearly-right", secret.hex(), base64.b64encode(secret).decode()):
        assert key not in written
        assert key.rpartition(".")[2] not in written  # the signature is the secret part


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_what_never_reaches_anthropics_protocol_is_told_in_its_form_too(
    served: Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.server.connections.FAILURES", 1)
    monkeypatch.setattr("swarm.server.http.MAX_BODY_BYTES", 100)
    lease = await served.begin("a", kind="eval")
    large = await served.call("POST", path, lease["api_key"], raw=b" " * 101)
    wrong, again = [await served.call("POST", path, "wrong", {}) for _ in range(2)]
    monkeypatch.setattr("swarm.server.http.Request.body", None)
    defect = await served.call("POST", path, lease["api_key"], {})
    found = [
        (answer.status, answer.body["type"], answer.body["error"]["type"]) for answer in (large, wrong, again, defect)
    ]
    assert found == [
        (413, "error", "request_too_large"), (401, "error", "authentication_error"),
        (429, "error", "rate_limit_error"), (500, "error", "api_error"),
    ]  # fmt: skip


CHOSEN = "an operator's own words, forty characters"


class Client:
    """Asks a guarded application, whose one route wants a valid key, from an address."""

    def __init__(self, keys: Keys, failures: FailureLimiter) -> None:
        self.asked = 0
        self._guard = Guard(self._application, keys, failures)

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        try:
            authorize(scope, roles=("admin",))
            status = 200
        except Exception as error:  # noqa: BLE001
            status = error.status  # type: ignore[attr-defined]
        await send({"type": "http.response.start", "status": status, "headers": []})

    async def ask(self, key: str, host: str = "192.0.2.7") -> int:
        told: list[Any] = []
        scope = {
            "type": "http", "path": "/status", "client": (host, 5000),
            "headers": [(b"authorization", f"Bearer {key}".encode())],
        }  # fmt: skip

        async def send(message: Any) -> None:
            told.append(message)

        await self._guard(scope, None, send)  # type: ignore[arg-type]
        return int(told[0]["status"])


@pytest.fixture
def keys() -> Keys:
    return Keys(CHOSEN)


@pytest.fixture
def client(keys: Keys, clock: Clock) -> Client:
    return Client(keys, FailureLimiter(clock))


async def test_an_address_that_goes_on_failing_is_refused_without_a_look_at_its_key_unless_that_is_signed(
    client: Client, keys: Keys, clock: Clock
) -> None:
    """The operator's own token waits like a guess, and no longer than documented."""
    assert {await client.ask(CHOSEN) for _ in range(3 * FAILURES)} == {200}, "valid keys use nothing up"
    assert [await client.ask("wrong") for _ in range(FAILURES)] == [401] * FAILURES
    looked = client.asked
    others = [CHOSEN, Keys(CHOSEN).role_key("admin"), *(f"wrong {number}" for number in range(50))]
    assert {await client.ask(key) for key in others} == {429}
    assert client.asked == looked
    assert [await client.ask(key, "192.0.2.8") for key in ("wrong", CHOSEN)] == [401, 200], "another is not touched"
    assert await client.ask(keys.role_key("admin")) == 200
    clock.now += REFILL_S
    assert [await client.ask(key) for key in (CHOSEN, "wrong", CHOSEN)] == [200, 401, 429]


def test_memory_is_constant_and_the_longest_quiet_is_forgotten_first(clock: Clock) -> None:
    failures = FailureLimiter(clock)
    for peer in ("quiet", "persistent"):
        for _ in range(FAILURES):
            failures.note(peer)
    for number in range(MOST_PEERS - 2):
        failures.note(f"peer {number}")
    failures.note("persistent")
    assert failures.wait_s("quiet") > 0
    failures.note("one more")
    assert len(failures) == MOST_PEERS
    assert failures.wait_s("quiet") == 0
    assert failures.wait_s("persistent") > 0


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("192.0.2.7", "192.0.2.7"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"), ("::ffff:192.0.2.7", "192.0.2.7"),
        ("/run/socket", "/run/socket"), (None, "unknown"),
    ],
)  # fmt: skip
def test_an_ipv6_network_is_one_peer(host: str | None, peer: str) -> None:
    assert peer_of({"type": "http", "client": None if host is None else (host, 1)}) == peer


def export(folder: Path, *, apart: bool = False) -> None:
    export_model(folder, folder / "models", folder / "out", "latest", None, print, apart=apart)


def found(monkeypatch: pytest.MonkeyPatch, job: Job, written: Any = None) -> None:
    async def known(*_: Any) -> tuple[CheckpointSummary, Path, TrainingSummary]:
        summary = CheckpointSummary(name="step-000001", step=1, size_bytes=1)
        return summary, Path("gone"), TrainingSummary(job, job.digest(), {}, 0, None)

    monkeypatch.setattr(model_export, "_find_training", known)
    monkeypatch.setitem(sys.modules, "swarm.backends.local.model_files", SimpleNamespace(write_model=written))


def test_a_full_disk_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **_: Any) -> None:
        (arguments[3] / "model.safetensors").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    found(monkeypatch, Job(), full)
    with refused(DiskFull, "out"):
        export(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fields", "apart", "named"), [({"backend": "fake"}, False, "fake"), ({}, True, "lora_rank"), ({}, False, "out")]
)
def test_what_cannot_be_exported_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], apart: bool, named: str
) -> None:
    found(monkeypatch, Job(**fields))
    if named == "out":
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with refused(InvalidRequest, named):
        export(tmp_path, apart=apart)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_without_a_server_is_none(tmp_path: Path) -> None:
    with refused(NotFound):
        export(tmp_path / "server")


def kept(*steps: int, best: int | None = None) -> CheckpointList:
    found = tuple(CheckpointSummary(name=f"step-{step:06d}", step=step, size_bytes=1) for step in steps)
    score = None if best is None else EvaluationSummary(step=best, episodes=4, reward=1.0)
    return CheckpointList(job_digest="d" * 64, checkpoints=found, best=score)


def test_a_step_the_latest_and_the_best_are_found() -> None:
    listed = kept(30, 20, 10, best=20)
    assert [choose_checkpoint(step, listed).step for step in ("latest", "10", "best")] == [30, 10, 20]


@pytest.mark.parametrize(
    ("step", "listed", "named"),
    [
        *((step, kept(30, 20, 10), "10, 20, 30") for step in ("25", "-1", "last", "", "030")),
        ("best", kept(30, 20), "eval_every"),
        ("latest", CheckpointList(job_digest=None, checkpoints=()), "nothing"),
        ("latest", CheckpointList(job_digest="d" * 64, checkpoints=()), "not saved"),
    ],
)
def test_what_is_not_kept_is_refused_with_what_is(step: str, listed: CheckpointList, named: str) -> None:
    with pytest.raises(NotFound, match=named):
        choose_checkpoint(step, listed)
