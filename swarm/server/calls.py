"""One model call: timeline, gate, engine, capture.

A call is captured in its episode's tree when the engine finished it, before its reply is sent; a call that is
cancelled (its client went away, its episode ended) leaves no trace in the tree and is never trained. Knows
messages and sampling, but no wire format.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from swarm.backends.protocols import Backend, BackendError, Chunk, Finish, Message, Sampling
from swarm.errors import ContextExceeded, EngineUnavailable, InvalidRequest, SwarmError
from swarm.server.episodes import Episode
from swarm.server.rollout import Rollout
from swarm.server.text import TextStream
from swarm.timelines import Plan


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished generation: `text` is what the client gets, `ids` all that was sampled."""

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    prompt_tokens: int
    version: int


Emit = Callable[[str], Awaitable[None]]


class Call:
    """Runs once, in the task that made it."""

    def __init__(
        self,
        rollout: Rollout,
        backend: Backend,
        episode: Episode,
        messages: Sequence[Message],
        sampling: Sampling,
        stops: tuple[str, ...] = (),
    ) -> None:
        self._rollout = rollout
        self._backend = backend
        self._episode = episode
        self._sampling = sampling
        self._stops = stops
        self._error: SwarmError | None = None
        self._task: asyncio.Task[object] | None = None
        self.plan = self._planned(messages)

    async def run(self, emit: Emit | None = None) -> Reply:
        """Generate and capture; `emit` gets the text piece by piece, for a client that streams."""
        self._task = asyncio.current_task()
        with self._in_flight():
            try:
                await self._rollout.gate.enter()
                try:
                    return await self._generate(emit)
                finally:
                    self._rollout.gate.leave()
            except asyncio.CancelledError:
                self._rollout.counts["calls_cancelled"] += 1
                if self._error is None or self._task is None:
                    raise
                self._task.uncancel()
                raise self._error from None

    def interrupt(self, error: SwarmError) -> None:
        """End the call now; `run` raises `error`."""
        if self._task is not None and self._error is None:
            self._error = error
            self._task.cancel()

    def _planned(self, messages: Sequence[Message]) -> Plan:
        try:
            plan = self._episode.tree.plan(messages)
        except BackendError as refusal:
            raise InvalidRequest(f"the chat template refuses these messages: {refusal}", param="messages") from None
        wanted, most = len(plan.prompt_ids) + self._sampling.max_tokens, self._rollout.job.max_context
        if wanted > most:
            raise ContextExceeded(
                f"expected prompt and answer within {most} tokens, found {len(plan.prompt_ids)} of prompt and "
                f"{self._sampling.max_tokens} of answer; shorten the messages or ask for a smaller `max_tokens`",
                param="messages",
            )
        return plan

    @contextlib.contextmanager
    def _in_flight(self) -> Iterator[None]:
        """Keep the lease alive while the call lasts, and let `interrupt` reach it."""
        self._rollout.counts["calls"] += 1
        self._rollout.leases.touch(self._episode)
        self._episode.calls.add(self)
        try:
            yield
        finally:
            self._episode.calls.discard(self)
            self._rollout.leases.touch(self._episode)

    async def _generate(self, emit: Emit | None) -> Reply:
        ids: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        text = TextStream(self._backend.renderer.decode, self._stops, incremental=emit is not None)
        finish: Finish = "stop"
        async with contextlib.aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                ids += chunk.ids
                logprobs += chunk.logprobs
                versions += [chunk.version] * len(chunk.ids)
                piece = text.feed(chunk.ids)
                if emit is not None and piece:
                    await self._emitted(emit, piece)
                finish = chunk.finish or finish
                if text.stopped:
                    finish = "stop"
                    break
        last = text.finish()
        self._capture(ids, logprobs, versions, text)
        if emit is not None and last:
            await self._emitted(emit, last)
        return Reply(text.served, tuple(ids), tuple(logprobs), finish, len(self.plan.prompt_ids), versions[-1])

    async def _emitted(self, emit: Emit, piece: str) -> None:
        """Hand over a piece; a client that takes none for its lease's whole time is gone, and must not hold a step."""
        patience = self._rollout.job.lease_ttl_s
        try:
            async with asyncio.timeout(patience):
                await emit(piece)
        except TimeoutError:
            self._rollout.counts["calls_cancelled"] += 1
            raise EngineUnavailable(
                f"nothing of the stream was read for {patience:g} s; its call was cancelled"
            ) from None

    def _chunks(self) -> AsyncGenerator[Chunk, None]:
        request_id = f"{self._episode.id}/{self._rollout.counts['calls']}"
        generated = self._backend.engine.generate(request_id, self.plan.prompt_ids, self._sampling)
        return cast(AsyncGenerator[Chunk, None], generated)

    def _capture(self, ids: list[int], logprobs: list[float], versions: list[int], text: TextStream) -> None:
        decoded = text.decoded if text.stopped else text.served
        answer = {"role": "assistant", "content": text.served}
        self._episode.tree.add(self.plan, ids, logprobs, versions, text=decoded, answer=answer)
