"""The openai and anthropic SDKs as they are, by base URL and key alone, over all three protocols.

What each field of a protocol means is held by `tests/swarm/dialects`; here, that the SDKs come through with it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from swarm.job import TinyModel
from swarm.server import connections
from swarm.server.model_endpoint import StreamTimeouts
from tests.lazily import lazy
from tests.swarm.conformance.support import (
    PAIR,
    THOUGHT,
    WEATHER,
    assert_trained_once,
    drifts,
    roomy,
    saying,
    spoken,
    tree,
)
from tests.swarm.server.support import MODEL, eventually, job, serving

anthropic = lazy("anthropic")
openai = lazy("openai")
TURN = THOUGHT + "let me see\n" + PAIR
SYSTEM, DESCRIPTION = "be brief", "Tells the weather."
HI: list[Any] = [{"role": "user", "content": "hi"}]
Lease = dict[str, Any]
Spoken = dict[str, Any]
"""A message of the conversation in no protocol's form: role, text, thought, calls (id, arguments) or call."""


def gpt(lease: Lease, **how: Any) -> AbstractAsyncContextManager[Any]:
    return openai.AsyncOpenAI(base_url=lease["base_url"], api_key=lease["api_key"], **how)


def claude(lease: Lease, **how: Any) -> AbstractAsyncContextManager[Any]:
    root = lease["base_url"].removesuffix("/v1")
    return anthropic.AsyncAnthropic(base_url=root, api_key=lease["api_key"], **how)


def in_chat(one: Spoken) -> dict[str, Any]:
    message = {"role": one["role"], "content": one["text"]}
    if "call" in one:
        message["tool_call_id"] = one["call"]
    if "calls" in one:
        message["reasoning_content"] = one["thought"]
        message["tool_calls"] = [
            {"id": call, "type": "function", "function": {"name": "weather", "arguments": json.dumps(given)}}
            for call, given in one["calls"]
        ]
    return message


def of_chat(message: Any) -> Spoken:
    found = {"role": "assistant", "text": message.content or ""}
    if message.tool_calls:
        pairs = [(call.id, json.loads(call.function.arguments)) for call in message.tool_calls]
        found |= {"thought": message.reasoning_content, "calls": pairs}
    return found


CHAT_TOOL = {"name": "weather", "description": DESCRIPTION, "parameters": WEATHER}


async def by_chat(lease: Lease, conversation: Sequence[Spoken], *, streamed: bool = False) -> Spoken:
    messages: Any = [{"role": "system", "content": SYSTEM}, *map(in_chat, conversation)]
    asked: Any = {"model": MODEL, "messages": messages, "tools": [{"type": "function", "function": CHAT_TOOL}]}
    async with gpt(lease) as sdk:
        if not streamed:
            return of_chat((await sdk.chat.completions.create(**asked)).choices[0].message)
        async with sdk.chat.completions.stream(**asked) as stream:
            kinds = {event.type async for event in stream}
            message = (await stream.get_final_completion()).choices[0].message
    assert {"content.delta", "content.done"} <= kinds
    assert bool(message.tool_calls) == ("tool_calls.function.arguments.done" in kinds)
    return of_chat(message)


def in_responses(one: Spoken) -> list[dict[str, Any]]:
    if "call" in one:
        return [{"type": "function_call_output", "call_id": one["call"], "output": one["text"]}]
    items: list[dict[str, Any]] = [{"role": one["role"], "content": one["text"]}]
    if "calls" in one:
        thought = [{"type": "reasoning_text", "text": one["thought"]}]
        items.insert(0, {"type": "reasoning", "id": "rs", "summary": [], "content": thought})
        items += [
            {"type": "function_call", "call_id": call, "name": "weather", "arguments": json.dumps(given)}
            for call, given in one["calls"]
        ]
    return items


async def by_responses(lease: Lease, conversation: Sequence[Spoken], *, streamed: bool = False) -> Spoken:
    items: Any = [item for one in conversation for item in in_responses(one)]
    asked: Any = {"model": MODEL, "instructions": SYSTEM, "input": items, "tools": [{"type": "function", **CHAT_TOOL}]}
    async with gpt(lease) as sdk:
        if streamed:
            async with sdk.responses.stream(**asked) as stream:
                kinds = {event.type async for event in stream}
                response = await stream.get_final_response()
            assert {"response.output_text.delta", "response.completed"} <= kinds
        else:
            response = await sdk.responses.create(**asked)
    assert (response.status, response.instructions, response.model_extra) == ("completed", SYSTEM, {"store": False})
    found: Spoken = {"role": "assistant", "text": response.output_text}
    pairs = [(item.call_id, json.loads(item.arguments)) for item in response.output if item.type == "function_call"]
    if pairs:
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
        found |= {"thought": response.output[0].content[0].text, "calls": pairs}
    return found


def in_messages(one: Spoken, signatures: dict[str, str]) -> dict[str, Any]:
    if "call" in one:
        return {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": one["call"], "content": one["text"]}],
        }
    blocks: list[dict[str, Any]] = [{"type": "text", "text": one["text"]}]
    if "calls" in one:
        thought = one["thought"]
        blocks.insert(0, {"type": "thinking", "thinking": thought, "signature": signatures[thought]})
        blocks += [{"type": "tool_use", "id": call, "name": "weather", "input": given} for call, given in one["calls"]]
    return {"role": one["role"], "content": blocks}


MESSAGES_ASK: dict[str, Any] = {
    "model": MODEL,
    "system": SYSTEM,
    "tools": [{"name": "weather", "description": DESCRIPTION, "input_schema": WEATHER}],
}


async def by_messages(lease: Lease, conversation: Sequence[Spoken], *, streamed: bool = False, **fields: Any) -> Spoken:
    """Ask; the prompt has as many tokens as the SDK is told when it counts them."""
    signatures: dict[str, str] = lease.setdefault("signatures", {})
    asked: Any = {**MESSAGES_ASK, "messages": [in_messages(one, signatures) for one in conversation]}
    async with claude(lease) as sdk:
        counted = await sdk.messages.count_tokens(**asked)
        if streamed:
            async with sdk.messages.stream(**asked, max_tokens=4000) as stream:
                kinds = {event.type async for event in stream}
                message = await stream.get_final_message()
            assert {"text", "message_stop"} <= kinds
        else:
            message = await sdk.messages.create(**asked, max_tokens=4000, **fields)
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == counted.input_tokens
    found: Spoken = {"role": "assistant", "text": "".join(b.text for b in message.content if b.type == "text")}
    pairs = [(block.id, block.input) for block in message.content if block.type == "tool_use"]
    assert message.stop_reason == ("tool_use" if pairs else "end_turn")
    if pairs:
        (thought,) = [block for block in message.content if block.type == "thinking"]
        signatures[thought.thinking] = thought.signature
        found |= {"thought": thought.thinking, "calls": pairs}
    return found


Ask = Callable[..., Awaitable[Spoken]]
PROTOCOLS: list[Ask] = [by_chat, by_responses, by_messages]
OMITTED = partial(by_messages, thinking={"type": "adaptive", "display": "omitted"})


async def play(lease: Lease, *asks: Ask) -> list[Spoken]:
    """Ask in turn, each time with the whole conversation; return the answers."""
    conversation: list[Spoken] = [{"role": "user", "text": "hi"}]
    answers = []
    for ask in asks:
        answers.append(answer := await ask(lease, conversation))
        results = [
            {"role": "tool", "call": call, "text": f"{given['city']}: sun"} for call, given in answer.get("calls", ())
        ]
        conversation += [answer, *(results or [{"role": "user", "text": "go on"}])]
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("first", PROTOCOLS)
async def test_a_conversation_may_change_its_protocol_at_every_turn(tmp_path: Path, first: Ask) -> None:
    async with serving(tmp_path, roomy(), script=saying(TURN, "both sunny", "yes", "no")) as served:
        lease = await served.begin()
        if first is not by_messages:  # whoever speaks this protocol needs the signature of what was thought
            await by_messages(lease, [{"role": "user", "text": "hi"}])
            assert lease["signatures"].keys() == {"hm"}
        before = len(served.backend.engine.seen)
        turn, *_ = await play(lease, first, *PROTOCOLS)
        assert [given for _, given in turn["calls"]] == [{"city": "Bonn"}, {"city": "Rome"}]
        assert (turn["thought"], turn["text"]) == ("hm", "let me see")
        found = [TURN] * before + [TURN, "both sunny", "yes", "no"]
        await assert_trained_once(served, lease, found, start=1 + before, clean=3)


@pytest.mark.slow
@pytest.mark.parametrize("ask", [*(partial(ask, streamed=True) for ask in PROTOCOLS), OMITTED])
async def test_an_answer_that_is_streamed_or_omits_its_thinking_comes_back_as_it_was(tmp_path: Path, ask: Ask) -> None:
    async with serving(tmp_path, roomy(), script=saying(TURN, "both sunny"), chunk_size=3) as served:
        lease = await served.begin()
        turn, last = await play(lease, ask, ask)
        assert (turn["thought"], len(turn["calls"]), last["text"]) == ("" if ask is OMITTED else "hm", 2, "both sunny")
        await assert_trained_once(served, lease, [TURN, "both sunny"], start=1, clean=1)


@pytest.mark.slow
async def test_a_silent_stream_of_each_protocol_says_that_it_lives(tmp_path: Path) -> None:
    patience = StreamTimeouts(keep_alive_s=0.02)
    async with serving(tmp_path, roomy(), script=saying("at last"), patience=patience) as served:
        lease = await served.begin()
        served.backend.engine.hold()
        async with (
            claude(lease) as other,
            gpt(lease) as sdk,
            other.messages.stream(model=MODEL, max_tokens=99, messages=HI) as messages,
            sdk.responses.stream(model=MODEL, input="hi") as responses,
        ):  # both streams are open: their headers and a first sign of life came before any token
            assert not served.backend.engine.seen
            served.backend.engine.release()
            assert await messages.get_final_text() == "at last"
            assert (await responses.get_final_response()).output_text == "at last"
        await eventually(lambda: len(served.backend.engine.seen), lambda seen: seen == 2)


async def chat(sdk: Any, model: str = MODEL, **fields: Any) -> str:
    reply = await sdk.chat.completions.create(model=model, messages=HI, **fields)
    return str(reply.choices[0].message.content)


async def message(sdk: Any, model: str = MODEL, **fields: Any) -> str:
    reply = await sdk.messages.create(model=model, max_tokens=4000, messages=HI, **fields)
    return str(reply.content[0].text)


Client = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.mark.parametrize(
    ("sdk_of", "ask", "name", "path"),
    [(gpt, chat, "openai", "chat/completions"), (claude, message, "anthropic", "messages")],
)
async def test_errors_are_the_sdk_s_own_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sdk_of: Client, ask: Any, name: str, path: str
) -> None:
    monkeypatch.setattr(connections, "FAILURES", 2)
    errors = __import__(name)

    async def refusal(kind: type[Exception], lease: Lease, retries: int = 0, **fields: Any) -> Any:
        async with sdk_of(lease, max_retries=retries) as sdk:
            with pytest.raises(kind) as caught:
                await ask(sdk, **fields)
        return caught.value

    async with serving(tmp_path, roomy(), script=saying("x")) as served:
        lease = await served.begin()
        await refusal(errors.NotFoundError, lease, model="other-9")
        wrong = await refusal(errors.BadRequestError, lease, extra_body={"top_k": 3})
        assert "`top_k`" in wrong.message
        assert wrong.type == "invalid_request_error"
        await served.end(lease)
        over = await refusal(errors.APIStatusError, lease)
        assert over.status_code == 410
        fenced = await served.begin()
        (episode,) = served.server.training.rollout.leases
        served.server.training.rollout.fence(episode, "lease_expired")
        lost = await refusal(errors.ConflictError, fenced, retries=5)
        assert lost.code == "lease_lost" if name == "openai" else lost.type == "conflict_error"
        unknown = {**lease, "api_key": "sk-none"}
        await refusal(errors.AuthenticationError, unknown)
        while (await served.post(f"/v1/{path}", "sk-none", {})).status != 429:
            pass
        throttled = await refusal(errors.RateLimitError, unknown)
        assert int(throttled.response.headers["retry-after"]) >= 1
        await served.server.stop()
        off = await refusal(errors.InternalServerError, lease)
        assert off.status_code == 503
        assert off.code == "engine_unavailable" if name == "openai" else off.type == "overloaded_error"


@pytest.mark.parametrize(("sdk_of", "ask"), [(gpt, chat), (claude, message)])
async def test_a_request_the_sdk_sends_again_is_generated_once(tmp_path: Path, sdk_of: Client, ask: Any) -> None:
    async with serving(tmp_path, roomy(), script=saying("once")) as served:
        lease = await served.begin()
        served.backend.engine.hold()
        async with sdk_of(lease, timeout=0.3, max_retries=5) as sdk:
            asking = asyncio.create_task(ask(sdk))
            counts = served.server.training.rollout.counts
            await eventually(lambda: counts["calls_coalesced"], bool)
            served.backend.engine.release()
            assert await asking == "once"
        assert counts["calls"] == 1
        found = tree(served, lease)
        assert (spoken(found), drifts(found)) == (["once"], {"start": 1})


@pytest.mark.parametrize("sdk_of", [gpt, claude])
async def test_a_stream_that_breaks_raises(tmp_path: Path, sdk_of: Client) -> None:
    async with serving(tmp_path, roomy(), script=saying("long " * 700), chunk_size=1) as served:
        lease = await served.begin()
        (episode,) = served.server.training.rollout.leases
        seen: list[str] = []

        async def read(sdk: Any) -> None:
            if sdk_of is gpt:
                events = await sdk.responses.create(model=MODEL, input="hi", stream=True)
            else:
                events = await sdk.messages.create(model=MODEL, max_tokens=4000, messages=HI, stream=True)
            async for event in events:
                if event.type in ("response.output_text.delta", "content_block_delta") and event.type not in seen:
                    served.server.training.rollout.fence(episode, "lease_expired")
                seen.append(event.type)

        async with sdk_of(lease) as sdk:
            with pytest.raises((openai.APIError, anthropic.APIStatusError)) as broken:
                await read(sdk)
        assert "lease_lost" in (str(broken.value) + str(broken.value.body))
        assert len(seen) > 1


class Weather(BaseModel):
    sky: Literal["sun", "rain"]
    windy: bool


async def parse(lease: Lease, protocol: str) -> Any:
    ask: list[Any] = [{"role": "user", "content": "How is the weather?"}]
    if protocol == "messages":
        async with claude(lease) as sdk:
            told = await sdk.messages.parse(model=lease["model"], max_tokens=150, messages=ask, output_format=Weather)
            return told.parsed_output
    async with gpt(lease) as sdk:
        if protocol == "chat":
            told = await sdk.chat.completions.parse(model=lease["model"], messages=ask, response_format=Weather)
            return told.choices[0].message.parsed
        told = await sdk.responses.parse(model=lease["model"], input=ask, text_format=Weather)
        assert told.text.format.type == ("json_schema" if lease["kind"] == "eval" else "text")  # what held
        return told.output_parsed


@pytest.mark.parametrize(("protocol", "field"), [("chat", "response_format"), ("responses", "text.format")])
async def test_structured_output_is_neutralised_in_training_and_refused_where_no_engine_holds_to_it(
    tmp_path: Path, protocol: str, field: str
) -> None:
    wanted = roomy(foreign_sampling="neutralise")
    async with serving(tmp_path, wanted, script=saying('{"sky": "sun", "windy": true}')) as served:
        with pytest.raises(openai.BadRequestError) as refused:
            await parse(await served.begin(kind="eval"), protocol)
        assert (refused.value.param, refused.value.code) == (field, "invalid_request")
        assert await parse(await served.begin(), protocol) == Weather(sky="sun", windy=True)
        assert served.server.training.rollout.counts["neutralised_response_format"] == 1


@pytest.mark.slow
async def test_all_three_protocols_hold_a_real_engine_to_a_schema(tmp_path: Path) -> None:
    from swarm.backends.local import LocalBackend

    tiny = TinyModel(hidden_size=16, layers=1, warm_start_steps=0)
    wanted = job(backend="local", model=tiny, max_context=512, max_tokens=150)
    backend = LocalBackend(wanted, tmp_path / "models")
    await backend.start()  # loading torch takes longer than a server's boot is waited for
    async with serving(tmp_path, wanted, backend=lambda _: backend) as served:
        lease = await served.begin(kind="eval")
        for protocol in ("chat", "responses", "messages"):
            assert isinstance(await parse(lease, protocol), Weather)
