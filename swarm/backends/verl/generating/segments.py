"""The open requests of one replica, each answered in segments that one version of the weights sampled.

Promises: all tokens of a segment are of one version; a request that new weights catch is stopped, keeps what it has,
and goes on from there under the new ones; a finish is told by the ids alone (a stop id, or no room for another), never
by what the model's engine calls it; tokens that come faster than they are taken are gathered.
Does not know what samples (`TokenStream`), nor who takes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from swarm.backends.protocols import Chunk, Finish, Sampling
from swarm.backends.verl.generating.engines.spec import Piece, ReplicaDied, Top
from swarm.backends.verl.generating.orders import Delivery, Order

_log = logging.getLogger(__name__)

STILL_S: Final = 60.0
"""Seconds within which all that generates must have stopped once it was told to."""
_AGAIN_S = 0.05
"""Seconds after which what still generates is told again to stop."""


class TokenStream(Protocol):
    """What samples: one stream a name, which ends by itself or where it is stopped."""

    def stream(self, name: str, ids: Sequence[int], sampling: Sampling, salt: str) -> AsyncIterator[Piece]:
        """Yield what follows `ids`; streams of another salt share no cache with it. ReplicaDied where it is dead."""
        ...

    async def abort(self, names: Sequence[str]) -> None:
        """End these streams early."""
        ...


@dataclass(slots=True)
class _Gathered:
    """Tokens of one version that nobody took yet."""

    version: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[Top] = field(default_factory=list)
    finish: Finish | None = None

    def add(self, piece: Piece, finish: Finish | None) -> None:
        self.ids += piece.ids
        self.logprobs += piece.logprobs
        self.top += piece.top
        self.finish = finish

    def chunk(self) -> Chunk:
        return Chunk(tuple(self.ids), tuple(self.logprobs), self.version, self.finish, tuple(self.top))


class Outbox:
    """What was generated and is not taken yet, in the order in which it came."""

    def __init__(self) -> None:
        self._gathered: dict[int, list[_Gathered]] = {}
        self._lost: list[Delivery] = []
        self._filled = asyncio.Event()

    def add(self, key: int, version: int, piece: Piece, finish: Finish | None) -> None:
        """Put a piece beside what there is of its request."""
        parts = self._gathered.setdefault(key, [])
        if not parts or parts[-1].version != version:
            parts.append(_Gathered(version))
        parts[-1].add(piece, finish)
        self._filled.set()

    def lose(self, key: int, reason: str) -> None:
        """Say that no more will come of a request."""
        self._lost.append(Delivery(key, None, reason))
        self._filled.set()

    def forget(self, key: int) -> None:
        """Drop what is there of a request that nobody waits for."""
        self._gathered.pop(key, None)

    async def wait(self, seconds: float) -> None:
        """Return once something is there, or after so many seconds."""
        try:
            await asyncio.wait_for(self._filled.wait(), seconds)
        except TimeoutError:
            return

    def take(self) -> list[Delivery]:
        """Return all that is there, and keep none."""
        chunks = [Delivery(key, each.chunk()) for key, parts in self._gathered.items() for each in parts]
        lost, self._gathered, self._lost = self._lost, {}, []
        self._filled.clear()
        return chunks + lost


class Segments:
    """Requests on one event loop, from their order to their last token."""

    def __init__(self, model: TokenStream) -> None:
        self.version = 0
        self.outbox = Outbox()
        self._model = model
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._streaming: set[str] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._still = asyncio.Event()
        self._still.set()

    @property
    def count(self) -> int:
        """Requests that are not finished."""
        return len(self._tasks)

    def begin(self, order: Order) -> None:
        """Generate for an order."""
        task = asyncio.ensure_future(self._answer(order))
        self._tasks[order.key] = task
        task.add_done_callback(lambda _: self._tasks.pop(order.key, None))

    def cancel(self, keys: Iterable[int]) -> None:
        """Forget these requests: whoever asked went away."""
        for key in keys:
            self.outbox.forget(key)
            if task := self._tasks.get(key):
                task.cancel()

    async def pause(self) -> None:
        """Stop all that generates, keeping what it has; raise ReplicaDied where something does not stop."""
        self._open.clear()
        try:
            async with asyncio.timeout(STILL_S):
                while self._streaming:  # one that is about to begin is not there to be stopped yet
                    await self._model.abort(list(self._streaming))
                    await asyncio.wait([asyncio.ensure_future(self._still.wait())], timeout=_AGAIN_S)
        except TimeoutError:
            raise ReplicaDied(f"{len(self._streaming)} requests did not stop within {STILL_S:.0f} s") from None

    def resume(self, version: int) -> None:
        """Go on, from now on under `version`."""
        self.version = version
        self._open.set()

    async def _answer(self, order: Order) -> None:
        try:
            ids, part, done = list(order.prompt_ids), 0, False
            while not done:
                await self._open.wait()
                done = await self._segment(order, ids, part)
                part += 1
        except Exception as error:  # noqa: BLE001 - the request's edge: whatever it was is told to who asked
            _log.warning("event=request_lost", exc_info=True)
            self.outbox.lose(order.key, f"{type(error).__name__}: {error}")

    async def _segment(self, order: Order, ids: list[int], part: int) -> bool:
        """Generate under the present version, adding to `ids`; return whether that finished the request."""
        name, version, finish = f"{order.key}-{part}", self.version, None
        sampling = rest_of(order, len(ids), part)
        self._streaming.add(name)
        self._still.clear()
        try:
            async for piece in self._model.stream(name, ids, sampling, str(version)):
                ids += piece.ids
                finish = finish_of(order, ids)
                self.outbox.add(order.key, version, piece, finish)
        finally:
            self._streaming.discard(name)
            if not self._streaming:
                self._still.set()
        if finish is None and self._open.is_set():
            raise RuntimeError(f"the engine ended the answer early, after {len(ids) - len(order.prompt_ids)} ids")
        return finish is not None


def rest_of(order: Order, length: int, part: int) -> Sampling:
    """Return how to sample on from `length` tokens: with what is left, and with random numbers not used before."""
    sampling = replace(order.sampling, max_tokens=order.limit - length)
    if sampling.seed is None:
        return sampling
    digest = hashlib.sha256(f"{sampling.seed}/{part}".encode()).digest()
    return replace(sampling, seed=int.from_bytes(digest[:6], "big"))


def finish_of(order: Order, ids: Sequence[int]) -> Finish | None:
    """Return how an order ends with `ids` of prompt and answer, or None where it goes on."""
    if len(ids) > len(order.prompt_ids) and ids[-1] in order.sampling.stop_ids:
        return "stop"
    return "length" if len(ids) >= order.limit else None
