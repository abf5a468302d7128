"""Attendance: which streams have a client, so that a job may give the shares of missing ones to those that live.

A stream is there while a client asks for one of its episodes, waits in line, holds a lease (that of a prepared episode
too) or has a call in flight, and for `missing_stream_s` after. The time begins when the server begins to serve: a
stream whose client never came is missing like one whose client died. Under the job's `missing_stream` `wait` nobody is
ever missing, and what is said here does not matter.

A stream that comes back has its share again before its first request is answered. Each change is counted, logged, told
as an event and written down with the others. Knows no learner and no HTTP.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from swarm.server.episodes.ledger import Ledger
from swarm.store import StoredEvent
from swarm.wire import BeginRequest

log = logging.getLogger(__name__)


class StreamAttendance:
    """When each stream with a share was last heard of; `tell` hears of those that go missing and come back."""

    def __init__(self, ledger: Ledger, tell: Callable[[StoredEvent], None]) -> None:
        self._ledger = ledger
        self._tell = tell
        self._heard_at: dict[str, float] = {}
        self._asking: Counter[str] = Counter()

    @contextmanager
    def asked(self, request: BeginRequest) -> Iterator[None]:
        """A client asks for an episode of a stream, and is there as long as it is inside; evaluators do not count."""
        if request.kind != "train":
            yield
            return
        stream = request.stream
        self.came(stream)
        self._asking[stream] += 1
        try:
            yield
        finally:
            self._asking -= Counter({stream: 1})  # names that nobody asks for are not kept
            self._hear(stream, self._ledger.clock())

    def came(self, stream: str) -> None:
        """A client of the stream was heard of."""
        self._hear(stream, self._ledger.clock())
        if stream in self._ledger.groups.streams.missing:
            self._renormalise(self._ledger.groups.streams.missing - {stream})

    def stand(self) -> None:
        """Nobody can be heard of while training stands for an evaluation: begin the time of all anew."""
        self._heard_at = dict.fromkeys(self._ledger.groups.streams.shares, self._ledger.clock())

    def sweep(self) -> None:
        """Find who is missing by now."""
        self._ledger.groups.reclaim()
        job, shares = self._ledger.job, self._ledger.groups.streams.shares
        if job.missing_stream == "wait" or not shares:
            return
        self._look()
        before = self._ledger.clock() - job.missing_stream_s
        self._renormalise(frozenset(stream for stream in shares if self._heard_at[stream] <= before))

    def _look(self) -> None:
        """Note who is there now, and begin the time of streams that got a share."""
        now, shares = self._ledger.clock(), self._ledger.groups.streams.shares
        self._heard_at = {stream: at for stream, at in self._heard_at.items() if stream in shares}
        for stream in shares:
            self._heard_at.setdefault(stream, now)
        for stream in self._asking:
            self._hear(stream, now)
        for episode in [episode for episode in self._ledger.leases if episode.kind == "train"]:
            self._hear(episode.stream, now if episode.calls else episode.heard_at)
        for prepared in self._ledger.leases.prepared:
            self._hear(prepared.sample.stream, prepared.expires_at - self._ledger.job.lease_ttl_s)

    def _hear(self, stream: str, at: float) -> None:
        if stream in self._ledger.groups.streams.shares:
            self._heard_at[stream] = max(at, self._heard_at.get(stream, at))

    def _renormalise(self, missing: frozenset[str]) -> None:
        streams = self._ledger.groups.streams
        before = streams.missing
        if not self._ledger.groups.renormalise(missing):
            return
        self._ledger.store.note(*streams.moved())
        for kind, changed in (("stream_missing", missing - before), ("stream_back", before - missing)):
            for stream in sorted(changed):
                self._say(kind, stream)
        self._ledger.notify()

    def _say(self, kind: str, stream: str) -> None:
        shares = dict(self._ledger.groups.streams.shares_now)
        told = " ".join(f"{name}={share:.3g}" for name, share in shares.items())
        log.warning("event=%s stream=%r shares=%r", kind, stream, told)
        event = StoredEvent(kind, time.time(), {"stream": stream, "shares": shares})
        self._ledger.store.note(event)
        self._tell(event)
