"""Named points in a server's life, and the wrappers that pass through them: store, backend and HTTP application.

    before_X, after_X    X: callcaptured, ended, fenced, batchscheduled, checkpointsaved, ...: a change that is
                         written to the store, before it is handed over and after it is durable
    before_Y_reply, after_Y_reply    Y: call, begin, end, abort, heartbeat, ...: a reply, alone or in a bundle, before
                         its first byte is handed to the network and after its last one was
    before_generation, in_generation, after_generation
    before_update, after_update, before_save, before_rename, after_save

At one of them, once, a server dies (SIGKILL to itself: nothing is flushed, nobody is told).
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swarm.backends.fake import FakeBackend
from swarm.backends.protocols import Batch, Chunk, GenerationRequest
from swarm.server import http
from swarm.server.model_endpoint import BundleAnswer
from swarm.store.changes import Change, EpisodeClosed
from swarm.store.writer import Store
from swarm.wire import BundledRequest


@dataclass(frozen=True, slots=True)
class Fault:
    """The process gets SIGKILL the `nth` time (from 1) that `point` is reached."""

    point: str
    nth: int = 1


class Points:
    def __init__(self, fault: Fault | None) -> None:
        self._fault = fault
        self._reached: Counter[str] = Counter()

    def reach(self, point: str) -> None:
        self._reached[point] += 1
        if self._fault == Fault(point, self._reached[point]):
            os.kill(os.getpid(), signal.SIGKILL)


class FaultyStore:
    def __init__(self, store: Store, points: Points) -> None:
        self._store = store
        self._points = points

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, *changes: Change) -> None:
        with self._around(changes):
            await self._store.write(*changes)

    def note(self, *changes: Change) -> None:
        with self._around(changes):
            self._store.note(*changes)

    @contextmanager
    def _around(self, changes: Sequence[Change]) -> Iterator[None]:
        kinds = list(dict.fromkeys(_kind(change) for change in changes))
        for kind in kinds:
            self._points.reach(f"before_{kind}")
        yield
        for kind in kinds:
            self._points.reach(f"after_{kind}")


def _kind(change: Change) -> str:
    return change.state if isinstance(change, EpisodeClosed) else type(change).__name__.lower()


class FaultyBackend(FakeBackend):
    def __init__(self, *arguments: Any, points: Points, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._points = points
        engine: Any = self.engine
        learner: Any = self.learner
        engine.generate = _generating(engine.generate, points)
        learner.update = _updating(learner.update, points)
        learner.save = _saving(learner.save, points)

    def publish(self) -> None:
        self._points.reach("before_publish")
        super().publish()


Generate = Callable[[GenerationRequest], AsyncGenerator[Chunk, None]]


def _generating(generate: Generate, points: Points) -> Generate:
    async def generating(request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        points.reach("before_generation")
        async with aclosing(generate(request)) as chunks:
            async for chunk in chunks:
                if chunk.finish is not None:
                    points.reach("after_generation")
                yield chunk
                points.reach("in_generation")

    return generating


def _updating(update: Callable[[Batch], Mapping[str, float]], points: Points) -> Callable[[Batch], Mapping[str, float]]:
    def updating(batch: Batch) -> Mapping[str, float]:
        points.reach("before_update")
        metrics = update(batch)
        points.reach("after_update")
        return metrics

    return updating


def _saving(save: Callable[[Path], None], points: Points) -> Callable[[Path], None]:
    def saving(folder: Path) -> None:
        points.reach("before_save")
        replace = os.replace

        def renaming(*paths: Any) -> None:
            points.reach("before_rename")
            replace(*paths)

        with mock.patch("swarm.backends.fake.os.replace", renaming):
            save(folder)
        points.reach("after_save")

    return saving


class FaultyApp:
    def __init__(self, app: ASGIApp, points: Points) -> None:
        self._app = app
        self._points = points
        routes: Any = http
        routes.send_json = self._reaching(routes.send_json)  # past `send`
        bundles: Any = BundleAnswer
        bundles._answer = self._answering(bundles._answer)

    def _reaching(self, send_json: Callable[[Scope, bytes], Awaitable[None]]) -> Callable[[Scope, bytes], Any]:
        async def sending(scope: Scope, content: bytes) -> None:
            self._points.reach("before_call_reply")
            await send_json(scope, content)
            self._points.reach("after_call_reply")

        return sending

    def _answering(self, answer: Callable[[Any, BundledRequest], Awaitable[bytes]]) -> Callable[..., Any]:
        async def answering(bundle: Any, asked: BundledRequest) -> bytes:
            content = await answer(bundle, asked)
            name = _verb({"path": asked.path})
            self._points.reach(f"before_{name}_reply")
            bundle._request.scope.setdefault("answered", []).append(name)
            return content

        return answering

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = _verb(scope)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                self._points.reach(f"before_{name}_reply")
            await send(message)
            for line in message.get("body", b"").splitlines() if name == "bundle" else ():
                if json.loads(line)["status"] < 400:
                    self._points.reach(f"after_{scope['answered'].pop(0)}_reply")
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                self._points.reach(f"after_{name}_reply")

        await self._app(scope, receive, sending)


def _verb(scope: Scope) -> str:
    path = str(scope.get("path", ""))
    if path.startswith("/v1/"):
        return "call"
    if path == "/episodes":
        return "begin"
    return path.rpartition("/")[2]
