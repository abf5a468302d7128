"""Events of the server as they happen: a ring of the latest, and server-sent events.

Promises that a listener that names the last event it saw goes on after it without loss, as long as that event's
successor is kept; where it is not, a `gap` event says how many were missed. `EVENTS_KEPT` events of this process are
kept, of every state and every job; older ones, and those of a former life of the server, are in the store alone.

A listener holds its place in the ring and nothing else, so that a slow one costs no memory: it falls behind until
there is a gap. Belongs to one event loop; knows neither store nor HTTP.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator

from swarm.store.tables import StoredEvent
from swarm.wire import ServerEvent

EVENTS_KEPT = 1024
EVENT_ID = r"^[0-9a-f]{8}-[0-9]{1,15}$"
"""Life of the server, then the event's number in it, from 1."""


class EventRing:
    """The latest `kept` events, and those who listen for more."""

    def __init__(self, kept: int = EVENTS_KEPT) -> None:
        self._incarnation = secrets.token_hex(4)
        self._kept: deque[ServerEvent] = deque(maxlen=kept)
        self._last_number = 0
        self._news = asyncio.Event()
        self._closed = False

    def add(self, event: StoredEvent) -> None:
        self._last_number += 1
        self._kept.append(self._make_event(self._last_number, event))
        self._wake()

    def close(self) -> None:
        """Let every stream end once its listener has heard all there is: the process stops."""
        self._closed = True
        self._wake()

    async def stream(
        self, last: str | None = None, *, keep_alive_s: float, wait_s: float | None = None
    ) -> AsyncIterator[bytes]:
        """Yield what came after event `last` (None: all that is kept), then what comes, as server-sent events.

        A comment is a sign of life after each `keep_alive_s` of silence. Ends `wait_s` after it began, once all that
        had happened by then is told (None: only when the ring is closed).
        """
        place = self._place(last)
        ends = None if wait_s is None else time.monotonic() + wait_s
        if place is None:
            place = self._oldest
            if last is not None:  # of another life of the server
                yield _encode_event(self._gap(place, None))
        while True:
            news = self._news
            if place < self._oldest:
                place, missed = self._oldest, self._oldest - place
                yield _encode_event(self._gap(place, missed))
            elif place < self._last_number:
                place += 1
                yield _encode_event(self._kept[place - 1 - self._oldest])
            elif self._closed or (ends is not None and time.monotonic() >= ends):
                return
            else:
                silent_s = keep_alive_s if ends is None else max(0.0, min(keep_alive_s, ends - time.monotonic()))
                try:
                    await asyncio.wait_for(news.wait(), silent_s)
                except TimeoutError:
                    yield b": keep-alive\n\n"

    @property
    def _oldest(self) -> int:
        return self._last_number - len(self._kept)

    def _place(self, last: str | None) -> int | None:
        if last is None or not re.match(EVENT_ID, last):
            return None
        incarnation, _, number = last.partition("-")
        return int(number) if incarnation == self._incarnation and int(number) <= self._last_number else None

    def _gap(self, place: int, missed: int | None) -> ServerEvent:
        return self._make_event(place, StoredEvent("gap", time.time(), {"missed": missed}))

    def _make_event(self, number: int, event: StoredEvent) -> ServerEvent:
        return ServerEvent(id=f"{self._incarnation}-{number}", kind=event.kind, at=event.at, details=event.details)

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def _encode_event(event: ServerEvent) -> bytes:
    return f"id: {event.id}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n".encode()
