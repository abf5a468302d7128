"""Open pages are told of what moves, and of nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from research.ui.app import MOST_OF_ONE, LiveHub
from research.ui.site import Site
from studies import StudyLog
from tests.research.ui.test_actions import _note


async def next_event(stream: AsyncIterator[str]) -> tuple[str, list[str]]:
    async for message in stream:
        lines = dict(line.split(": ", 1) for line in message.splitlines() if line)
        if lines.get("event") in ("moved", "progress"):
            return lines["event"], json.loads(lines["data"])["studies"]
    raise AssertionError("the stream ended")


@pytest.mark.asyncio
async def test_an_event_in_a_log_is_told_to_every_listener(site: Site, study: str) -> None:
    hub = LiveHub(site)
    streams = [hub.listen() for _ in range(3)]
    for stream in streams:
        await anext(stream)
    waiting = [asyncio.ensure_future(next_event(stream)) for stream in streams]
    await hub.looked.wait()
    await asyncio.to_thread(StudyLog(site.log, study).change, _note, actor="user")
    assert await asyncio.gather(*waiting) == [("moved", [study])] * 3
    hub.close()


@pytest.mark.asyncio
async def test_a_closing_hub_ends_its_streams(site: Site) -> None:
    hub = LiveHub(site)
    stream = hub.listen()
    await anext(stream)
    hub.close()
    assert [message async for message in stream] == []


@pytest.mark.asyncio
async def test_who_leaves_is_told_nothing_any_more(site: Site) -> None:
    hub = LiveHub(site)
    stream = hub.listen()
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    hub.touch("x")
    assert not hub.is_full("")


@pytest.mark.asyncio
async def test_one_reader_does_not_take_the_streams_of_all(site: Site) -> None:
    hub = LiveHub(site)
    streams = [hub.listen("ann") for _ in range(MOST_OF_ONE)]
    for stream in streams:
        await anext(stream)
    assert hub.is_full("ann")
    assert not hub.is_full("ben")
    hub.close()


@pytest.mark.asyncio
async def test_a_key_that_is_taken_back_ends_its_streams(site: Site) -> None:
    hub, here = LiveHub(site), [True]
    stream = hub.listen("ann", lambda: here[0])
    await anext(stream)
    here[0] = False
    hub.touch("x")
    assert [message async for message in stream] == []
    hub.close()
