"""The openai SDK as it is, over chat completions: chat, streams, tools, structured output, errors, retries."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from swarm.server.http import guard
from tests.lazily import lazy
from tests.swarm.conformance.support import (
    THOUGHT,
    WEATHER,
    assert_trained_once,
    calls,
    drifts,
    roomy,
    saying,
    spoken,
    tree,
)
from tests.swarm.server.support import MODEL, eventually, serving

openai = lazy("openai")
HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
PAIR = calls("weather", city="Bonn") + "\n" + calls("weather", city="Rome")


class City(BaseModel):
    name: str


def client(lease: dict[str, Any], **how: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=lease["base_url"], api_key=lease["api_key"], **how)


def answers(message: Any) -> list[Any]:
    """Return an assistant's message and the results of its calls, as every agent writes them."""
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": json.loads(call.function.arguments)["city"] + ": sun"}
        for call in message.tool_calls
    ]
    return [message, *results]


async def test_parallel_tool_calls_make_a_round_trip_without_a_fork(tmp_path: Path) -> None:
    script = saying(PAIR, "both sunny")
    async with serving(tmp_path, roomy(), script=script) as served:
        lease = await served.begin()
        async with client(lease) as sdk:
            first = (await sdk.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS)).choices[0]
            assert first.finish_reason == "tool_calls"
            assert [json.loads(call.function.arguments) for call in first.message.tool_calls or ()] == [
                {"city": "Bonn"}, {"city": "Rome"},
            ]  # fmt: skip
            history = [*HI, *answers(first.message)]
            second = await sdk.chat.completions.create(model=MODEL, messages=history, tools=TOOLS)
        assert second.choices[0].message.content == "both sunny"
        await assert_trained_once(served, lease, [PAIR, "both sunny"], start=1, clean=1)


async def test_the_stream_helper_gathers_calls_and_thinking_and_goes_on(tmp_path: Path) -> None:
    written = THOUGHT + "let me see" + "\n" + calls("weather", city="Bonn")
    async with serving(tmp_path, roomy(), script=saying(written, "sunny"), chunk_size=3) as served:
        lease = await served.begin()
        async with client(lease) as sdk:
            async with sdk.chat.completions.stream(model=MODEL, messages=HI, tools=TOOLS) as stream:
                kinds = {event.type async for event in stream}
                message = (await stream.get_final_completion()).choices[0].message
            assert {"content.delta", "tool_calls.function.arguments.done", "content.done"} <= kinds
            assert message.model_extra is not None
            assert message.model_extra["reasoning_content"] == "hm"
            history = [*HI, *answers(message)]
            async with sdk.chat.completions.stream(model=MODEL, messages=history, tools=TOOLS) as stream:
                assert (await stream.get_final_completion()).choices[0].message.content == "sunny"
        await assert_trained_once(served, lease, [written, "sunny"], start=1, clean=1)


async def test_the_blocking_client_does_the_same(tmp_path: Path) -> None:
    def play(lease: dict[str, Any]) -> None:
        with openai.OpenAI(base_url=lease["base_url"], api_key=lease["api_key"]) as sdk:
            assert [model.id for model in sdk.models.list()] == [MODEL]
            first = sdk.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS).choices[0].message
            chunks = sdk.chat.completions.create(model=MODEL, messages=[*HI, *answers(first)], tools=TOOLS, stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "both sunny"

    async with serving(tmp_path, roomy(), script=saying(PAIR, "both sunny")) as served:
        lease = await served.begin()
        await asyncio.to_thread(play, lease)
        await assert_trained_once(served, lease, [PAIR, "both sunny"], start=1, clean=1)


async def test_structured_output_is_parsed_or_refused_with_the_field(tmp_path: Path) -> None:
    job = roomy(foreign_sampling="neutralise")
    async with serving(tmp_path, job, script=saying('{"name": "Bonn"}')) as served:
        lease = await served.begin(kind="eval")
        async with client(lease) as sdk:
            with pytest.raises(openai.BadRequestError) as refused:
                await sdk.chat.completions.parse(model=MODEL, messages=HI, response_format=City)
        assert (refused.value.param, refused.value.code) == ("response_format", "invalid_request")
        async with client(await served.begin()) as sdk:
            parsed = await sdk.chat.completions.parse(model=MODEL, messages=HI, response_format=City)
        assert parsed.choices[0].message.parsed == City(name="Bonn")
        assert served.server.training.rollout.counts["neutralised_response_format"] == 1


async def test_errors_are_the_sdks_own_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "FAILURES", 2)
    async with serving(tmp_path, roomy(), script=saying("x")) as served:
        lease = await served.begin()
        async with client(lease, max_retries=0) as sdk:
            with pytest.raises(openai.NotFoundError):
                await sdk.chat.completions.create(model="gpt-9", messages=HI)
            with pytest.raises(openai.BadRequestError) as refused:
                await sdk.chat.completions.create(model=MODEL, messages=HI, top_p=0.5)
            assert (refused.value.code, refused.value.param) == ("invalid_request", "top_p")
            with pytest.raises(openai.BadRequestError) as long:
                await sdk.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * 200_000}])
            assert long.value.code == "context_length_exceeded"
            await served.end(lease)
            with pytest.raises(openai.APIStatusError) as over:
                await sdk.chat.completions.create(model=MODEL, messages=HI)
            assert (over.value.status_code, over.value.code) == (410, "episode_ended")
            fenced = await served.begin()
            (episode,) = served.server.training.rollout.leases
            served.server.training.rollout.ledger.fence(episode, "lease_expired")
            with pytest.raises(openai.ConflictError) as lost:
                await client(fenced, max_retries=5).chat.completions.create(model=MODEL, messages=HI)
            assert lost.value.code == "lease_lost"
        unknown = client({**lease, "api_key": "sk-none"}, max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            await unknown.chat.completions.create(model=MODEL, messages=HI)
        while (await served.post("/v1/chat/completions", "sk-none", {})).status != 429:
            pass
        with pytest.raises(openai.RateLimitError) as throttled:
            await unknown.chat.completions.create(model=MODEL, messages=HI)
        assert int(throttled.value.response.headers["retry-after"]) >= 1
        await served.server.stop()
        with pytest.raises(openai.InternalServerError) as off:
            await client(lease, max_retries=0).chat.completions.create(model=MODEL, messages=HI)
        assert (off.value.status_code, off.value.code) == (503, "engine_unavailable")


async def test_a_request_the_sdk_sends_again_is_generated_once(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(), script=saying("once")) as served:
        lease = await served.begin()
        served.backend.engine.hold()
        async with client(lease, timeout=0.3, max_retries=5) as sdk:
            asking = asyncio.create_task(sdk.chat.completions.create(model=MODEL, messages=HI))
            counts = served.server.training.rollout.counts
            await eventually(lambda: counts["calls_coalesced"], bool)
            served.backend.engine.release()
            assert (await asking).choices[0].message.content == "once"
        assert counts["calls"] == 1
        found = tree(served, lease)
        assert (spoken(found), drifts(found)) == (["once"], {"start": 1})
