"""The unmodified openai SDK and curl play episodes over the chat endpoint; what is asked is honoured or refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from swarm.backends.fake import FakeBackend
from swarm.job import Job
from swarm.rendering.messages import BackendError
from tests.swarm.server.agents import GuidedBackend
from tests.swarm.server.support import MODEL, Served, eventually, job, serving


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, job(max_context=200, temperature=0.7), script=lambda *_: "héllo wörld") as running:
        yield running


ASK: list[Any] = [{"role": "user", "content": "hi"}]


async def test_a_prompt_that_leaves_no_room_is_refused_with_its_code(served: Served) -> None:
    assert (await served.chat(await served.begin(), "x" * 170)).status == 200, "it gets what is left"
    answer = await served.chat(await served.begin(), "x" * 170, max_tokens=10)
    assert (answer.status, answer.code) == (400, "context_length_exceeded")
    assert answer.message.startswith("This model's maximum context length is 200 tokens"), "as litellm knows it"
    assert "`max_context`" in answer.message
    assert "`max_tokens`" in answer.message
    alone = await served.chat(await served.begin(), "x" * 250)
    assert "`max_tokens`" not in alone.message, "the prompt alone is over"
    assert (await served.chat(await served.begin(kind="eval"), "x" * 155)).status == 200


async def test_an_anthropic_base_url_with_v1_works_and_the_one_model_can_be_asked_for(served: Served) -> None:
    lease = await served.begin()
    body = {"model": lease["model"], "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
    for path in ("/v1/messages", "/v1/v1/messages"):
        assert (await served.post(path, lease["api_key"], body)).status == 200
    del body["max_tokens"]
    assert (await served.post("/v1/v1/messages/count_tokens", lease["api_key"], body)).status == 200
    (card,) = (await served.call("GET", "/v1/models", lease["api_key"])).body["data"]
    assert (await served.call("GET", f"/v1/models/{lease['model']}", lease["api_key"])).body == card
    assert (await served.call("GET", "/v1/models/other", lease["api_key"])).code == "not_found"


@pytest.mark.slow
async def test_a_stream_that_nobody_reads_does_not_hold_a_step_for_ever(tmp_path: Path) -> None:
    wanted = job(max_tokens=400_000, max_context=1_000_000, lease_ttl_s=0.5, drain_timeout_s=0.5, steps=1)
    async with serving(tmp_path, wanted, script=lambda *_: "x" * 300_000, chunk_size=16) as served:
        lease = await served.begin("a")
        body = json.dumps({"model": MODEL, "messages": ASK, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {lease['api_key']}\r\n"
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            address = urlsplit(served.url)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, (address.hostname, address.port))
            await loop.sock_sendall(sock, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            rollout = served.rollout
            await eventually(lambda: rollout.counts["drop_lease_expired"], bool)
            assert rollout.gate.in_flight == 0
        assert (await served.end(lease)).code == "lease_lost"


@contextlib.asynccontextmanager
async def speaking(folder: Path, says: str) -> AsyncIterator[Served]:
    def make(loaded: Job) -> FakeBackend:
        return GuidedBackend(loaded, script=lambda *_: says)

    async with serving(folder, job(max_tokens=1000, max_context=10_000), backend=make) as running:
        yield running


async def lines(served: Served, lease: dict[str, Any], **fields: Any) -> tuple[str, list[str]]:
    headers = {"authorization": f"Bearer {lease['api_key']}"}
    body = {"model": MODEL, "messages": ASK, "stream": True, **fields}
    async with served.http.post(f"{lease['base_url']}/chat/completions", json=body, headers=headers) as response:
        return response.content_type, (await response.text()).split("\n\n")[:-1]


async def test_a_form_the_engine_cannot_hold_is_the_request_s_fault(tmp_path: Path) -> None:
    async with speaking(tmp_path, "{}") as served:
        lease = await served.begin(kind="eval")
        schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": "unfit"}}}
        answer = await served.chat(lease, "hi", response_format=schema)
        assert (answer.status, answer.body["error"]["param"]) == (400, "response_format")
        assert (await served.chat(lease, "hi")).status == 200
        assert served.rollout.gate.in_flight == 0


@pytest.mark.parametrize(
    ("arguments", "status"), [('{"a": "\\ud800"}', 200), (f'{{"a": {"[" * 987 + "]" * 987}}}', 400)]
)
async def test_calls_with_arguments_that_no_template_could_write_are_no_defects(
    served: Served, arguments: str, status: int
) -> None:
    lease = await served.begin(kind="eval")
    function = {"name": "f", "arguments": arguments}
    made = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    history = [*ASK, made, {"role": "tool", "tool_call_id": "1", "content": "x"}]
    answer = await served.post(
        "/v1/chat/completions", lease["api_key"], {"model": MODEL, "messages": history, "max_tokens": 1}
    )
    item = {"type": "function_call", "call_id": "1", **function}
    items = [*ASK, item, {"type": "function_call_output", "call_id": "1", "output": "x"}]
    other = await served.post(
        "/v1/responses", lease["api_key"], {"model": MODEL, "input": items, "max_output_tokens": 1}
    )
    assert (answer.status, other.status) == (status, status), (answer, other)


async def test_who_asks_for_events_gets_events_or_an_error_status(served: Served) -> None:
    lease = await served.begin()
    kind, events = await lines(served, lease)
    assert (kind, events[-1]) == ("text/event-stream", "data: [DONE]")
    assert all(event.startswith("data: ") for event in events), "one that is not silent has no comments"
    refused = await served.chat(lease, "hi", stream=True, temperature=0)
    assert (refused.status, refused.headers["content-type"]) == (400, "application/json")


async def test_a_template_s_refusal_is_a_lasting_400(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise BackendError("roles must alternate")

    lease = await served.begin()
    monkeypatch.setattr(served.backend.renderer, "render", refuse)
    for stream in (False, True):
        answer = await served.chat(lease, "hi", stream=stream)
        assert (answer.status, answer.code, answer.body["error"]["param"]) == (400, "invalid_request", "messages")
        assert "roles must alternate" in answer.message


@pytest.mark.parametrize(
    ("what", "stream", "status", "code"),
    [
        ("refuse_next", False, 400, "invalid_request"), ("refuse_next", True, 400, "invalid_request"),
        ("lose_next", False, 503, "engine_unavailable"),
    ],
)  # fmt: skip
async def test_a_call_that_the_engine_refuses_or_loses_is_that_calls_trouble_alone_and_leaves_no_trace(
    served: Served, what: str, stream: bool, status: int, code: str
) -> None:
    lease = await served.begin()
    setattr(served.backend.engine, what, "why not")
    told = await served.chat(lease, "hi", stream=stream)
    assert (told.status, told.code, "why not" in told.message) == (status, code, True)
    assert told.headers.get("retry-after") == ("1" if status == 503 else None)
    (episode,) = served.rollout.leases
    assert episode.tree.nodes == []
    assert (await served.chat(lease, "hi")).status == 200
    assert len(episode.tree.nodes) == 1
    assert (await served.status())["state"] == "ROLLING"
