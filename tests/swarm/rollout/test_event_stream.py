"""Events: told as they happen, and gone on with where a listener left off, as far as they are kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from hypothesis import given
from hypothesis import strategies as st

from swarm.server.events import EventRing
from swarm.server.model_endpoint import StreamTimeouts
from swarm.store.tables import StoredEvent
from swarm.wire import ServerEvent
from tests.swarm.server.support import DEADLINE_S, Served, eventually, job, serving

BOOTED = [("OFFLINE", "BOOTING"), ("BOOTING", "ROLLING")]
TRAINED = [("ROLLING", "ROLLING_POST"), ("ROLLING_POST", "WEIGHT_SYNCING"), ("WEIGHT_SYNCING", "ROLLING")]


def parsed(block: str) -> ServerEvent | None:
    """Read one server-sent event as its specification says; None for a comment."""
    fields = dict(line.split(": ", 1) for line in block.strip().splitlines() if line[0] != ":")
    if not fields:
        return None
    event = ServerEvent.model_validate_json(fields["data"])
    assert (fields["id"], fields["event"]) == (event.id, event.kind)
    return event


async def heard(ring: EventRing, last: str | None = None) -> list[ServerEvent]:
    said = b"".join([chunk async for chunk in ring.stream(last, keep_alive_s=60, wait_s=0)]).decode()
    return [event for block in said.split("\n\n") if block and (event := parsed(block)) is not None]


def told(ring: EventRing, *numbers: int) -> None:
    for number in numbers:
        ring.add(StoredEvent("state", 1.0, {"n": number}))


def numbers(events: list[ServerEvent]) -> list[Any]:
    return [event.details["n"] for event in events if event.kind == "state"]


def moves(events: list[ServerEvent]) -> list[tuple[Any, Any]]:
    return [(event.details["from"], event.details["to"]) for event in events if event.kind == "state"]


async def asked(served: Served, query: str = "?wait_s=0", **headers: str) -> list[ServerEvent]:
    key = {"authorization": f"Bearer {served.server.keys.role_key('viewer')}", **headers}
    async with served.http.get(f"{served.url}/events{query}", headers=key) as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        blocks = (await answer.text()).split("\n\n")
    return [event for block in blocks if block and (event := parsed(block)) is not None]


@contextlib.asynccontextmanager
async def listening(served: Served) -> AsyncIterator[aiohttp.StreamReader]:
    key = {"authorization": f"Bearer {served.admin}"}
    async with asyncio.timeout(DEADLINE_S), served.http.get(f"{served.url}/events", headers=key) as answer:
        yield answer.content


async def next_event(stream: aiohttp.StreamReader) -> ServerEvent:
    while True:
        event = parsed((await stream.readuntil(b"\n\n")).decode())
        if event is not None:
            return event


async def test_a_listener_hears_what_was_and_what_comes(tmp_path: Path) -> None:
    async with serving(tmp_path, job(), start=False) as served, listening(served) as stream:
        assert await asked(served) == []
        served.server.load(job())
        await served.server.start()
        seen = [await next_event(stream) for _ in BOOTED]
        assert moves(seen) == BOOTED
        assert await asked(served) == seen
        await served.play_step()
        later = [await next_event(stream) for _ in range(len(TRAINED) + 1)]
        assert moves(later) == TRAINED
        (step,) = [event.details for event in later if event.kind == "step"]
        assert step == {"step": 1, "metrics": (await served.status())["metrics"]}
        assert await asked(served, f"?wait_s=0&after={seen[-1].id}") == later
        assert await asked(served, f"?wait_s=0&after={seen[0].id}", **{"last-event-id": later[1].id}) == later[2:]
        served.backend.die("out of memory")
        failed = await next_event(stream)
        assert (failed.details["to"], failed.details["reason"]) == ("FAILED", "out of memory")
        await served.server.stop()
        assert (await next_event(stream)).details["to"] == "OFFLINE"


async def test_a_recovery_is_told_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.play("a")
        old = (await asked(served))[-1].id
    async with serving(tmp_path) as served:
        events = await asked(served)
        assert [event.kind for event in events] == ["state", "recovered", "state"]
        assert events[1].details == {"checkpoint": 0, "step": 0, "pool": 1}
        gap, *again = await asked(served, "?wait_s=0", **{"last-event-id": old})
        assert (gap.kind, gap.details, again) == ("gap", {"missed": None}, events)


async def test_a_silent_stream_shows_signs_of_life_and_a_gone_listener_is_forgotten(tmp_path: Path) -> None:
    async with serving(tmp_path, start=False, patience=StreamTimeouts(keep_alive_s=0.01)) as served:
        before = len(asyncio.all_tasks())
        async with listening(served) as stream:
            for _ in range(3):
                assert await stream.readuntil(b"\n\n") == b": keep-alive\n\n"
            assert len(asyncio.all_tasks()) > before
        await eventually(lambda: len(asyncio.all_tasks()), lambda tasks: tasks <= before)


@given(st.integers(1, 5), st.integers(0, 12), st.data())
async def test_nothing_is_lost_unsaid(kept: int, count: int, data: st.DataObject) -> None:
    ring = EventRing(kept)
    ids: list[str] = []
    for number in range(count):
        told(ring, number)
        ids.append((await heard(ring))[-1].id)
    assert numbers(await heard(ring)) == list(range(max(0, count - kept), count))
    if not ids:
        return
    last = data.draw(st.integers(0, count - 1))
    events = await heard(ring, ids[last])
    missed = sum(int(str(event.details["missed"])) for event in events if event.kind == "gap")
    assert missed + len(numbers(events)) == count - 1 - last
    assert numbers(events) == list(range(last + 1 + missed, count))
    assert missed == max(0, count - kept - last - 1)
    for place, event in enumerate(events):  # whoever breaks off anywhere hears the same rest
        assert await heard(ring, event.id) == events[place + 1 :]


async def test_a_closed_ring_ends_its_streams_after_the_last_event() -> None:
    ring = EventRing()

    async def listen() -> list[Any]:
        return [json.loads(chunk.split(b"data: ")[1])["details"]["n"] async for chunk in ring.stream(keep_alive_s=60)]

    async with asyncio.timeout(DEADLINE_S):
        listener = asyncio.create_task(listen())
        await asyncio.sleep(0)
        told(ring, 1, 2)
        ring.close()
        assert await listener == [1, 2]


async def test_an_id_no_life_of_the_server_gave_leaves_a_gap_of_unknown_size() -> None:
    ring = EventRing()
    told(ring, 1)
    (event,) = await heard(ring)
    life = event.id.partition("-")[0]
    for last in (f"{life}-2", "00000000-1", "nonsense"):
        assert [found.details for found in await heard(ring, last)] == [{"missed": None}, {"n": 1}]
