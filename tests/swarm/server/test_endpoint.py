"""The unmodified openai SDK and curl play episodes over the chat endpoint; what is asked is honoured or refused."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import openai
import pytest

from swarm.timelines import Drift
from tests.swarm.server.support import MODEL, Served, eventually, job, serving


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, job(max_context=200, temperature=0.7), script=lambda *_: "héllo wörld") as running:
        yield running


ASK: list[Any] = [{"role": "user", "content": "hi"}]


def sdk(lease: dict[str, Any], http_client: Any = None) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=lease["base_url"], api_key=lease["api_key"], http_client=http_client, max_retries=0
    )


@pytest.mark.parametrize("transport", [lambda: None, openai.DefaultAioHttpClient], ids=["httpx", "aiohttp"])
async def test_the_openai_sdk_plays_an_episode(served: Served, transport: Callable[[], Any]) -> None:
    lease = await served.begin()
    async with sdk(lease, transport()) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        messages = list(ASK)
        for _ in range(2):
            reply = await client.chat.completions.create(model=lease["model"], messages=messages)
            assert reply.choices[0].message.content == "héllo wörld"
            assert reply.choices[0].finish_reason == "stop"
            messages += [reply.choices[0].message.model_dump(), {"role": "user", "content": "again"}]
    assert reply.usage is not None
    assert reply.usage.completion_tokens == len("héllo wörld".encode()) + 1
    (episode,) = served.server.training.rollout.leases
    assert episode.tree.drift == {"start": 1, "clean": 1, "realign": 0, "fork": 0}
    assert (await served.end(lease)).body["state"] == "ended"


async def test_the_openai_sdk_streams(served: Served) -> None:
    lease = await served.begin()
    async with sdk(lease) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == "héllo wörld"
    assert sum(map(bool, texts)) > 1
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens > 0
    (episode,) = served.server.training.rollout.leases
    assert len(episode.tree.nodes) == 1


async def test_plain_curl_plays_an_episode(served: Served) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    lease = await served.begin()
    process = await asyncio.create_subprocess_exec(
        "curl", "-sS", "--noproxy", "*", f"{lease['base_url']}/chat/completions",
        "-H", f"Authorization: Bearer {lease['api_key']}", "-H", "Content-Type: application/json",
        "-d", json.dumps({"model": MODEL, "messages": ASK}),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert json.loads(out)["choices"][0]["message"]["content"] == "héllo wörld"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("tools", [{"type": "retrieval"}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("logit_bias", {"5": 1}),
        ("min_tokens", 4),
        ("frequency_penalty", 0.5),
        ("temperature", 0.2),
        ("top_p", 0.5),
        ("top_k", 5),
        ("top_logprobs", 3),
        ("max_tokens", 0),
        ("seed", 2**64),
        ("stop", [""]),
        ("temperature", "hot"),
        ("no_such_field", 1),
    ],
)
async def test_what_is_not_honoured_in_training_is_refused_by_name(served: Served, field: str, value: Any) -> None:
    lease = await served.begin()
    answer = await served.chat(lease, "hi", **{field: value})
    assert answer.status == 400
    assert answer.body["error"]["param"].split(".")[0] == field
    assert answer.body["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "tools": None, "response_format": {"type": "text"}, "user": "me", "top_p": 1, "top_k": -1},
        {"temperature": 0.7, "frequency_penalty": 0, "logit_bias": None, "seed": 3, "stream": False},
    ],
)
async def test_neutral_and_equal_values_are_honoured(served: Served, fields: dict[str, Any]) -> None:
    assert (await served.chat(await served.begin(), "hi", **fields)).status == 200


async def test_an_evaluation_samples_as_it_asks(served: Served) -> None:
    lease = await served.begin(kind="eval")
    assert (await served.chat(lease, "hi", temperature=0, top_p=0.5, top_k=3)).status == 200


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_fewer_tokens_are_honoured_and_the_cut_is_said(served: Served, field: str) -> None:
    answer = await served.chat(await served.begin(), "hi", **{field: 4})
    assert (answer.text, answer.body["choices"][0]["finish_reason"]) == ("hél", "length")
    assert answer.body["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_answer_before_it(served: Served, stream: bool) -> None:
    lease = await served.begin()
    async with sdk(lease) as client:
        if stream:
            chunks = await client.chat.completions.create(model=MODEL, messages=ASK, stop="o w", stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
        else:
            reply = await client.chat.completions.create(model=MODEL, messages=ASK, stop="o w")
            text = reply.choices[0].message.content or ""
    assert text == "héll"
    (episode,) = served.server.training.rollout.leases
    sampled = bytes(episode.tree.nodes[0].sampled)
    assert sampled.startswith("héllo w".encode())
    assert (await served.chat(lease, "hi", "héll", "go on")).status == 200
    assert episode.tree.drift[Drift.REALIGN] == 1


async def test_log_probs_are_those_of_the_engine(served: Served) -> None:
    answer = await served.chat(await served.begin(), "hi", logprobs=True)
    tokens = answer.body["choices"][0]["logprobs"]["content"]
    (episode,) = served.server.training.rollout.leases
    assert [token["logprob"] for token in tokens] == list(episode.tree.nodes[0].logprobs)


async def test_a_prompt_that_leaves_no_room_is_refused_with_its_code(served: Served) -> None:
    answer = await served.chat(await served.begin(), "x" * 170)
    assert (answer.status, answer.code) == (400, "context_length_exceeded")
    assert "200" in answer.message
    assert (await served.chat(await served.begin(kind="eval"), "x" * 155)).status == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"model":"fake"}',
        b'{"model":"fake","messages":[]}',
        b'{"model":"fake","messages":[{}]}',
    ],
)
async def test_a_malformed_body_is_an_openai_error(served: Served, raw: bytes) -> None:
    lease = await served.begin()
    answer = await served.call("POST", "/v1/chat/completions", lease["api_key"], raw=raw)
    assert (answer.status, answer.code) == (400, "invalid_request")


async def test_another_model_and_images_are_refused(served: Served) -> None:
    lease = await served.begin()
    answer = await served.post("/v1/chat/completions", lease["api_key"], {"model": "gpt-9", "messages": ASK})
    assert (answer.status, answer.code) == (404, "not_found")
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    answer = await served.post("/v1/chat/completions", lease["api_key"], {"model": MODEL, "messages": image})
    assert (answer.status, answer.body["error"]["param"]) == (400, "messages.0.content.0")


@pytest.mark.parametrize("calls", [5, "f()", {"name": "f"}])
async def test_tool_calls_that_are_no_list_are_refused(served: Served, calls: Any) -> None:
    lease = await served.begin()
    said = {"role": "assistant", "content": None, "tool_calls": calls}
    answer = await served.post("/v1/chat/completions", lease["api_key"], {"model": MODEL, "messages": [*ASK, said]})
    assert (answer.status, answer.body["error"]["param"]) == (400, "messages.1.tool_calls")


async def test_no_system_prompt_is_inserted(served: Served) -> None:
    await served.chat(await served.begin(), "hi")
    prompt, _ = served.backend.engine.seen[0]
    assert served.backend.renderer.decode(prompt) == "<|user|>hi<|assistant|>"


async def test_calls_of_one_episode_run_at_the_same_time(served: Served) -> None:
    lease = await served.begin()
    served.backend.engine.hold()
    calls = [asyncio.create_task(served.chat(lease, text)) for text in "abc"]
    await eventually(lambda: served.backend.engine.active, lambda active: active == 3)
    served.backend.engine.release()
    assert [(await call).status for call in calls] == [200] * 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_cancels_its_generation_and_it_is_not_trained(
    served: Served, stream: bool
) -> None:
    lease = await served.begin()
    served.backend.engine.hold()
    async with aiohttp.ClientSession() as leaving:
        body = {"model": MODEL, "messages": ASK, "stream": stream}
        headers = {"authorization": f"Bearer {lease['api_key']}"}
        call = asyncio.create_task(leaving.post(f"{lease['base_url']}/chat/completions", json=body, headers=headers))
        await eventually(lambda: served.backend.engine.active, lambda active: active == 1)
        call.cancel()
    await eventually(lambda: served.backend.engine.cancelled, lambda cancelled: cancelled == 1)
    served.backend.engine.release()
    (episode,) = served.server.training.rollout.leases
    await eventually(lambda: len(episode.calls), lambda left: left == 0)
    assert episode.tree.nodes == []
    assert (await served.chat(lease, "hi")).status == 200


async def test_a_call_in_flight_when_its_episode_ends_is_told_so(served: Served) -> None:
    lease = await served.begin()
    assert (await served.chat(lease, "hi")).status == 200
    served.backend.engine.hold()
    call = asyncio.create_task(served.chat(lease, "more"))
    await eventually(lambda: served.backend.engine.active, lambda active: active == 1)
    assert (await served.end(lease)).status == 200
    answer = await call
    assert (answer.status, answer.code) == (410, "episode_ended")
    assert served.server.training.rollout.gate.in_flight == 0


async def test_a_stream_that_cannot_begin_is_a_plain_error(served: Served) -> None:
    lease = await served.begin()
    await served.verb(lease, "abort")
    answer = await served.chat(lease, "hi", stream=True)
    assert (answer.status, answer.code) == (410, "episode_ended")


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
            rollout = served.server.training.rollout
            await eventually(lambda: rollout.counts["drop_lease_expired"], bool)
            assert rollout.gate.in_flight == 0
        assert (await served.end(lease)).code == "lease_lost"
