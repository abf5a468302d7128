"""The openai and anthropic SDKs as they are, by base URL and key alone, over all three protocols.

What each field of a protocol means is held by `tests/swarm/dialects`; here, that the SDKs come through with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from swarm.job import TinyModel
from swarm.server import connections
from tests.lazily import lazy
from tests.swarm.conformance.support import drifts, roomy, saying, spoken, tree
from tests.swarm.server.support import MODEL, eventually, job, serving

anthropic = lazy("anthropic")
openai = lazy("openai")
HI: list[Any] = [{"role": "user", "content": "hi"}]
Lease = dict[str, Any]


def gpt(lease: Lease, **how: Any) -> AbstractAsyncContextManager[Any]:
    return openai.AsyncOpenAI(base_url=lease["base_url"], api_key=lease["api_key"], **how)


def claude(lease: Lease, **how: Any) -> AbstractAsyncContextManager[Any]:
    root = lease["base_url"].removesuffix("/v1")
    return anthropic.AsyncAnthropic(base_url=root, api_key=lease["api_key"], **how)


@pytest.mark.slow
async def test_a_silent_stream_of_each_protocol_says_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.server.model_endpoint.KEEP_ALIVE_S", 0.02)
    async with serving(tmp_path, roomy(), script=saying("at last")) as served:
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
