"""One conversation through all three protocols is one timeline, whichever SDK asks next."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from swarm.server.http.endpoint import Patience
from tests.lazily import lazy
from tests.swarm.conformance.support import THOUGHT, WEATHER, assert_trained_once, calls, roomy, saying
from tests.swarm.server.support import MODEL, Served, eventually, serving

anthropic = lazy("anthropic")
openai = lazy("openai")
TURN = THOUGHT + "let me see\n" + calls("weather", city="Bonn") + "\n" + calls("weather", city="Rome")
SYSTEM = "be brief"
DESCRIPTION = "Tells the weather."
Spoken = dict[str, Any]
"""A message of the conversation in no protocol's form: role, text, thought, calls (id, arguments) or call."""


async def by_chat(lease: dict[str, Any], said: Sequence[Spoken]) -> Spoken:
    def written(one: Spoken) -> dict[str, Any]:
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

    tool = {"type": "function", "function": {"name": "weather", "description": DESCRIPTION, "parameters": WEATHER}}
    messages: Any = [{"role": "system", "content": SYSTEM}, *map(written, said)]
    async with openai.AsyncOpenAI(base_url=lease["base_url"], api_key=lease["api_key"]) as sdk:
        asked: Any = {"model": MODEL, "messages": messages, "tools": [tool]}
        message = (await sdk.chat.completions.create(**asked)).choices[0].message
    found = {"role": "assistant", "text": message.content or ""}
    if message.tool_calls:
        pairs = [(call.id, json.loads(call.function.arguments)) for call in message.tool_calls]
        found |= {"thought": message.reasoning_content, "calls": pairs}
    return found


async def by_responses(lease: dict[str, Any], said: Sequence[Spoken]) -> Spoken:
    def written(one: Spoken) -> list[dict[str, Any]]:
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

    tool = {"type": "function", "name": "weather", "description": DESCRIPTION, "parameters": WEATHER}
    async with openai.AsyncOpenAI(base_url=lease["base_url"], api_key=lease["api_key"]) as sdk:
        items: Any = [item for one in said for item in written(one)]
        asked: Any = {"model": MODEL, "instructions": SYSTEM, "input": items, "tools": [tool]}
        response = await sdk.responses.create(**asked)
    found: Spoken = {"role": "assistant", "text": response.output_text}
    pairs = [(item.call_id, json.loads(item.arguments)) for item in response.output if item.type == "function_call"]
    if pairs:
        found |= {"thought": response.output[0].content[0].text, "calls": pairs}
    return found


async def by_messages(lease: dict[str, Any], said: Sequence[Spoken]) -> Spoken:
    signatures: dict[str, str] = lease.setdefault("signatures", {})

    def written(one: Spoken) -> dict[str, Any]:
        if "call" in one:
            return {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": one["call"], "content": one["text"]}],
            }
        blocks: list[dict[str, Any]] = [{"type": "text", "text": one["text"]}]
        if "calls" in one:
            thought = one["thought"]
            blocks.insert(0, {"type": "thinking", "thinking": thought, "signature": signatures[thought]})
            blocks += [
                {"type": "tool_use", "id": call, "name": "weather", "input": given} for call, given in one["calls"]
            ]
        return {"role": one["role"], "content": blocks}

    tool = {"name": "weather", "description": DESCRIPTION, "input_schema": WEATHER}
    root = lease["base_url"].removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=root, api_key=lease["api_key"]) as sdk:
        asked: Any = {"model": MODEL, "max_tokens": 4000, "system": SYSTEM, "tools": [tool]}
        message = await sdk.messages.create(messages=[written(one) for one in said], **asked)
    found: Spoken = {"role": "assistant", "text": "".join(b.text for b in message.content if b.type == "text")}
    pairs = [(block.id, block.input) for block in message.content if block.type == "tool_use"]
    if pairs:
        (thought,) = [block for block in message.content if block.type == "thinking"]
        signatures[thought.thinking] = thought.signature
        found |= {"thought": thought.thinking, "calls": pairs}
    return found


Ask = Callable[[dict[str, Any], Sequence[Spoken]], Awaitable[Spoken]]
FIRST: list[Ask] = [by_chat, by_responses, by_messages]


async def play(served: Served, lease: dict[str, Any], *asks: Ask) -> None:
    """Ask in turn, each time with the whole conversation."""
    said: list[Spoken] = [{"role": "user", "text": "hi"}]
    for ask in asks:
        answer = await ask(lease, said)
        results = [
            {"role": "tool", "call": call, "text": f"{given['city']}: sun"} for call, given in answer.get("calls", ())
        ]
        said += [answer, *(results or [{"role": "user", "text": "go on"}])]


@pytest.mark.parametrize("first", FIRST)
async def test_a_conversation_may_change_its_protocol_at_every_turn(tmp_path: Path, first: Ask) -> None:
    async with serving(tmp_path, roomy(), script=saying(TURN, "both sunny", "yes", "no")) as served:
        lease = await served.begin()
        if first is not by_messages:  # whoever speaks this protocol needs the signature of what was thought
            await by_messages(lease, [{"role": "user", "text": "hi"}])
            assert lease["signatures"].keys() == {"hm"}
        before = len(served.backend.engine.seen)
        await play(served, lease, first, *FIRST)
        found = [TURN] * before + [TURN, "both sunny", "yes", "no"]
        await assert_trained_once(served, lease, found, start=1 + before, clean=3)


async def test_a_silent_stream_of_each_protocol_says_that_it_lives(tmp_path: Path) -> None:
    patience = Patience(keep_alive_s=0.02)
    async with serving(tmp_path, roomy(), script=saying("at last"), patience=patience) as served:
        lease = await served.begin()
        root = lease["base_url"].removesuffix("/v1")
        served.backend.engine.hold()
        async with (
            anthropic.AsyncAnthropic(base_url=root, api_key=lease["api_key"]) as claude,
            openai.AsyncOpenAI(base_url=lease["base_url"], api_key=lease["api_key"]) as sdk,
            claude.messages.stream(
                model=MODEL, max_tokens=99, messages=[{"role": "user", "content": "hi"}]
            ) as messages,
            sdk.responses.stream(model=MODEL, input="hi") as responses,
        ):  # both streams are open: their headers and a first sign of life came before any token
            assert not served.backend.engine.seen
            served.backend.engine.release()
            assert await messages.get_final_text() == "at last"
            assert (await responses.get_final_response()).output_text == "at last"
        await eventually(lambda: len(served.backend.engine.seen), lambda seen: seen == 2)


@pytest.mark.parametrize("kind", ["train", "eval"])
async def test_an_effort_that_no_model_here_is_given_is_left_out_and_counted(tmp_path: Path, kind: str) -> None:
    hi: Any = [{"role": "user", "content": "hi"}]
    async with serving(tmp_path, roomy(), script=saying("x")) as served:
        lease = await served.begin(kind=kind)
        root = lease["base_url"].removesuffix("/v1")
        async with (
            anthropic.AsyncAnthropic(base_url=root, api_key=lease["api_key"]) as claude,
            openai.AsyncOpenAI(base_url=lease["base_url"], api_key=lease["api_key"]) as sdk,
        ):
            await sdk.chat.completions.create(model=MODEL, messages=hi, reasoning_effort="high")
            await sdk.responses.create(model=MODEL, input="hi", reasoning={"effort": "high"})
            await claude.messages.create(model=MODEL, max_tokens=9, messages=hi, output_config={"effort": "high"})
        counts = served.server.training.rollout.counts
        names = ("reasoning_effort", "reasoning.effort", "output_config.effort")
        assert [counts[f"left_out_{name}"] for name in names] == [1, 1, 1]
