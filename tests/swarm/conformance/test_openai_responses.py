"""The openai SDK as it is, over the Responses API: create, stream, tools, parse, thinking sent back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.lazily import lazy
from tests.swarm.conformance.support import THOUGHT, WEATHER, assert_trained_once, calls, roomy, saying
from tests.swarm.server.support import MODEL, serving

openai = lazy("openai")
HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOLS: list[Any] = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}]
TURN = THOUGHT + "let me see\n" + calls("weather", city="Bonn") + "\n" + calls("weather", city="Rome")


class City(BaseModel):
    name: str


def client(lease: dict[str, Any], **how: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=lease["base_url"], api_key=lease["api_key"], **how)


def answers(output: list[Any]) -> list[Any]:
    """Return the items of a response and the outputs of its calls, as every agent writes them."""
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": json.loads(item.arguments)["city"]}
        for item in output
        if item.type == "function_call"
    ]
    return [*output, *results]


async def test_thinking_words_and_parallel_calls_come_back_as_one_turn(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(), script=saying(TURN, "both sunny")) as served:
        lease = await served.begin()
        async with client(lease) as sdk:
            ask: dict[str, Any] = {"model": MODEL, "instructions": "be brief", "tools": TOOLS}
            first = await sdk.responses.create(input=HI, **ask)
            assert [item.type for item in first.output] == ["reasoning", "message", "function_call", "function_call"]
            assert (first.status, first.instructions, first.model_extra) == ("completed", "be brief", {"store": False})
            second = await sdk.responses.create(input=[*HI, *answers(first.output)], **ask)
        assert second.output_text == "both sunny"
        await assert_trained_once(served, lease, [TURN, "both sunny"], start=1, clean=1)


async def test_the_stream_helper_ends_with_the_whole_response(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(), script=saying(TURN, "both sunny"), chunk_size=3) as served:
        lease = await served.begin()
        async with client(lease) as sdk:
            async with sdk.responses.stream(model=MODEL, input=HI, tools=TOOLS) as stream:
                kinds = {event.type async for event in stream}
                first = await stream.get_final_response()
            assert {"response.reasoning_text.delta", "response.function_call_arguments.done"} <= kinds
            history = [*HI, *answers(first.output)]
            stream_2 = await sdk.responses.create(model=MODEL, input=history, tools=TOOLS, stream=True)
            text = [event.delta async for event in stream_2 if event.type == "response.output_text.delta"]
        assert len(text) > 1
        assert "".join(text) == "both sunny"
        await assert_trained_once(served, lease, [TURN, "both sunny"], start=1, clean=1)


async def test_the_blocking_client_does_the_same(tmp_path: Path) -> None:
    def play(lease: dict[str, Any]) -> None:
        with openai.OpenAI(base_url=lease["base_url"], api_key=lease["api_key"]) as sdk:
            first = sdk.responses.create(model=MODEL, input="hi", tools=TOOLS)
            with sdk.responses.stream(model=MODEL, input=[*HI, *answers(first.output)], tools=TOOLS) as stream:
                assert stream.get_final_response().output_text == "both sunny"

    async with serving(tmp_path, roomy(), script=saying(TURN, "both sunny")) as served:
        lease = await served.begin()
        await asyncio.to_thread(play, lease)
        await assert_trained_once(served, lease, [TURN, "both sunny"], start=1, clean=1)


async def test_structured_output_is_parsed_or_refused_with_the_field(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(foreign_sampling="neutralise"), script=saying('{"name": "Bonn"}')) as served:
        async with client(await served.begin(kind="eval")) as sdk:
            with pytest.raises(openai.BadRequestError) as refused:
                await sdk.responses.parse(model=MODEL, input="hi", text_format=City)
        assert (refused.value.param, "`text.format`" in refused.value.message) == ("text.format", True)
        async with client(await served.begin()) as sdk:
            parsed = await sdk.responses.parse(model=MODEL, input="hi", text_format=City)
        assert parsed.output_parsed == City(name="Bonn")
        assert parsed.text is not None
        assert parsed.text.format is not None
        assert parsed.text.format.type == "text"  # what held, not what was asked


async def test_what_the_server_does_not_keep_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(), script=saying("x")) as served, client(await served.begin()) as sdk:
        first = await sdk.responses.create(model=MODEL, input="hi", store=True)
        with pytest.raises(openai.BadRequestError, match="keeps no responses") as refused:
            await sdk.responses.create(model=MODEL, input="again", previous_response_id=first.id)
        assert refused.value.param == "previous_response_id"
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(first.id)


async def test_an_answer_cut_short_and_its_log_probs_are_read(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(), script=saying("abcdef")) as served, client(await served.begin()) as sdk:
        cut = await sdk.responses.create(
            model=MODEL, input="hi", max_output_tokens=3, include=["message.output_text.logprobs"], top_logprobs=2
        )
        assert cut.status == "incomplete"
        assert cut.incomplete_details is not None
        assert cut.incomplete_details.reason == "max_output_tokens"
        (message,) = cut.output
        assert message.type == "message"
        (part,) = message.content
        assert part.type == "output_text"
        assert [token.token for token in part.logprobs or ()] == ["a", "b", "c"]
        assert (cut.usage.output_tokens, cut.max_output_tokens) == (3, 3) if cut.usage else False


async def test_a_stream_that_breaks_raises(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(), script=saying("long " * 700), chunk_size=1) as served:
        lease = await served.begin()
        (episode,) = served.server.training.rollout.leases
        seen: list[str] = []

        async def read(sdk: openai.AsyncOpenAI) -> None:
            async for event in await sdk.responses.create(model=MODEL, input="hi", stream=True):
                if event.type == "response.output_text.delta" and event.type not in seen:
                    served.server.training.rollout.ledger.fence(episode, "lease_expired")
                seen.append(event.type)

        async with client(lease) as sdk:
            with pytest.raises(openai.APIError) as broken:
                await read(sdk)
        assert broken.value.code == "lease_lost"
        assert seen[-1] == "response.failed"
