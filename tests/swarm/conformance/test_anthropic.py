"""The anthropic SDK as it is: create, stream, tools, thinking sent back, token counts, errors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

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

anthropic = lazy("anthropic")
HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOLS: list[Any] = [{"name": "weather", "description": "Tells the weather.", "input_schema": WEATHER}]
TURN = THOUGHT + "let me see\n" + calls("weather", city="Bonn") + "\n" + calls("weather", city="Rome")
ASK: dict[str, Any] = {"model": MODEL, "max_tokens": 4000, "tools": TOOLS, "system": "be brief"}


def settings(lease: dict[str, Any]) -> dict[str, Any]:
    return {"base_url": lease["base_url"].removesuffix("/v1"), "api_key": lease["api_key"]}


def client(lease: dict[str, Any], **how: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(**settings(lease), **how)


def answers(message: anthropic.types.Message) -> list[Any]:
    """Return a message and the results of its calls, as every agent writes them."""
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": f"{block.input['city']}: sun"}
        for block in message.content
        if block.type == "tool_use"
    ]
    return [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]


async def test_thinking_and_parallel_tools_make_a_round_trip_without_a_fork(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(), script=saying(TURN, "both sunny")) as served:
        lease = await served.begin()
        async with client(lease) as sdk:
            first = await sdk.messages.create(messages=HI, **ASK)
            assert [block.type for block in first.content] == ["thinking", "text", "tool_use", "tool_use"]
            assert first.stop_reason == "tool_use"
            counted = await sdk.messages.count_tokens(
                model=MODEL, messages=[*HI, *answers(first)], tools=TOOLS, system="be brief"
            )
            second = await sdk.messages.create(messages=[*HI, *answers(first)], **ASK)
        (text,) = second.content
        assert text.type == "text"
        assert (text.text, second.stop_reason) == ("both sunny", "end_turn")
        used = second.usage
        assert used.input_tokens + (used.cache_read_input_tokens or 0) == counted.input_tokens
        assert used.cache_read_input_tokens
        await assert_trained_once(served, lease, [TURN, "both sunny"], start=1, clean=1)


async def test_the_stream_helper_gathers_every_kind_of_block(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(), script=saying(TURN, "both sunny"), chunk_size=3) as served:
        lease = await served.begin()
        async with client(lease) as sdk:
            async with sdk.messages.stream(messages=HI, **ASK) as stream:
                kinds = {event.type async for event in stream}
                first = await stream.get_final_message()
            assert {"thinking", "signature", "text", "input_json", "message_stop"} <= kinds
            async with sdk.messages.stream(messages=[*HI, *answers(first)], **ASK) as stream:
                assert "".join([text async for text in stream.text_stream]) == "both sunny"
                assert (await stream.get_final_message()).usage.output_tokens == len("both sunny") + 1
        await assert_trained_once(served, lease, [TURN, "both sunny"], start=1, clean=1)


async def test_omitted_thinking_comes_back_whole(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(), script=saying(TURN, "both sunny")) as served:
        lease = await served.begin()
        async with client(lease) as sdk:
            ask: dict[str, Any] = {**ASK, "thinking": {"type": "adaptive", "display": "omitted"}}
            first = await sdk.messages.create(messages=HI, **ask)
            assert first.content[0].type == "thinking"
            assert first.content[0].thinking == ""
            await sdk.messages.create(messages=[*HI, *answers(first)], **ask)
        await assert_trained_once(served, lease, [TURN, "both sunny"], start=1, clean=1)


async def test_the_blocking_client_does_the_same(tmp_path: Path) -> None:
    def play(lease: dict[str, Any]) -> None:
        with anthropic.Anthropic(**settings(lease)) as sdk:
            first = sdk.messages.create(messages=HI, **ASK)
            with sdk.messages.stream(messages=[*HI, *answers(first)], **ASK) as stream:
                assert stream.get_final_text() == "both sunny"

    async with serving(tmp_path, roomy(), script=saying(TURN, "both sunny")) as served:
        lease = await served.begin()
        await asyncio.to_thread(play, lease)
        await assert_trained_once(served, lease, [TURN, "both sunny"], start=1, clean=1)


async def test_a_bearer_token_and_a_key_header_open_the_same_door(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(), script=saying("x")) as served:
        lease = await served.begin()
        body = {"model": MODEL, "max_tokens": 9, "messages": HI}
        for headers in ({"x-api-key": lease["api_key"]}, {"authorization": f"Bearer {lease['api_key']}"}):
            async with served.http.post(f"{served.url}/v1/messages", json=body, headers=headers) as response:
                assert response.status == 200
        async with anthropic.AsyncAnthropic(base_url=settings(lease)["base_url"], auth_token=lease["api_key"]) as sdk:
            await sdk.messages.create(**body)  # type: ignore[call-overload]


async def test_a_stop_sequence_and_a_cut_are_told_apart(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(), script=saying("one two three")) as served:
        async with client(await served.begin()) as sdk:
            stopped = await sdk.messages.create(model=MODEL, max_tokens=99, messages=HI, stop_sequences=[" two"])
            cut = await sdk.messages.create(model=MODEL, max_tokens=3, messages=HI)
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " two")
        assert (cut.stop_reason, cut.stop_sequence, cut.usage.output_tokens) == ("max_tokens", None, 3)


async def test_counting_leaves_no_trace(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(), script=saying("x")) as served:
        lease = await served.begin()
        async with client(lease) as sdk:
            counted = await sdk.messages.count_tokens(model=MODEL, messages=HI)
            assert not served.server.training.rollout.counts["calls"]
            first = await sdk.messages.create(model=MODEL, max_tokens=9, messages=HI)
        assert counted.input_tokens == first.usage.input_tokens
        await assert_trained_once(served, lease, ["x"], start=1)


async def test_errors_are_the_sdks_own_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "FAILURES", 2)
    async with serving(tmp_path, roomy(), script=saying("x")) as served:
        lease = await served.begin()
        ask: dict[str, Any] = {"model": MODEL, "max_tokens": 9, "messages": HI}
        async with client(lease, max_retries=0) as sdk:
            with pytest.raises(anthropic.NotFoundError):
                await sdk.messages.create(**{**ask, "model": "claude-9"})
            with pytest.raises(anthropic.BadRequestError) as refused:
                await sdk.messages.create(**ask, extra_body={"top_k": 3})
            assert refused.value.type == "invalid_request_error"
            assert "`top_k`" in refused.value.message
            image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
            with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content\.0"):
                await sdk.messages.create(**{**ask, "messages": [{"role": "user", "content": [image]}]})
            await served.end(lease)
            with pytest.raises(anthropic.APIStatusError) as over:
                await sdk.messages.create(**ask)
            assert over.value.status_code == 410
            with pytest.raises(anthropic.APIStatusError) as over:
                await sdk.messages.count_tokens(model=MODEL, messages=HI)
            assert over.value.status_code == 410
        fenced = await served.begin()
        (episode,) = served.server.training.rollout.leases
        served.server.training.rollout.ledger.fence(episode, "lease_expired")
        with pytest.raises(anthropic.ConflictError) as lost:
            await client(fenced, max_retries=5).messages.create(**ask)
        assert lost.value.type == "conflict_error"
        unknown = client({**lease, "api_key": "sk-none"}, max_retries=0)
        with pytest.raises(anthropic.AuthenticationError):
            await unknown.messages.create(**ask)
        while (await served.post("/v1/messages", "sk-none", {})).status != 429:
            pass
        with pytest.raises(anthropic.RateLimitError):
            await unknown.messages.create(**ask)
        await served.server.stop()
        with pytest.raises(anthropic.InternalServerError) as off:
            await client(lease, max_retries=0).messages.create(**ask)
        assert (off.value.status_code, off.value.type) == (503, "overloaded_error")


async def test_a_stream_that_breaks_raises(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(), script=saying("long " * 700), chunk_size=1) as served:
        lease = await served.begin()
        (episode,) = served.server.training.rollout.leases

        async def read(sdk: anthropic.AsyncAnthropic) -> None:
            fenced = False
            async with sdk.messages.stream(model=MODEL, max_tokens=4000, messages=HI) as stream:
                async for _ in stream.text_stream:
                    if not fenced:
                        served.server.training.rollout.ledger.fence(episode, "lease_expired")
                    fenced = True

        async with client(lease) as sdk:
            with pytest.raises(anthropic.APIStatusError, match="lease_lost"):
                await read(sdk)


async def test_a_request_the_sdk_sends_again_is_generated_once(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(), script=saying("once")) as served:
        lease = await served.begin()
        served.backend.engine.hold()
        async with client(lease, timeout=0.3, max_retries=5) as sdk:
            asking = asyncio.create_task(sdk.messages.create(model=MODEL, max_tokens=9, messages=HI))
            counts = served.server.training.rollout.counts
            await eventually(lambda: counts["calls_coalesced"], bool)
            served.backend.engine.release()
            assert (await asking).content[0].text == "once"  # type: ignore[union-attr]
        assert counts["calls"] == 1
        found = tree(served, lease)
        assert (spoken(found), drifts(found)) == (["once"], {"start": 1})


async def test_the_tool_runner_plays_without_the_thread_it_offers(tmp_path: Path) -> None:
    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """Tells the weather.

        Args:
            city: where.
        """
        return f"{city}: sun"

    async with serving(tmp_path, roomy(), script=saying(TURN, "both sunny")) as served:
        lease = await served.begin()
        async with client(lease, max_retries=0) as sdk:
            runner = sdk.beta.messages.tool_runner(model=MODEL, max_tokens=4000, messages=HI, tools=[weather])
            last = await runner.until_done()
        assert last.content[-1].text == "both sunny"
        await assert_trained_once(served, lease, [TURN, "both sunny"], start=1, clean=1)
