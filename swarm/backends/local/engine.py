"""The local engine: continuous batching in one background thread, for one event loop.

Tokens reach their consumer in order, each once; closing an iterator cancels its generation. A request that cannot be
served ends alone, by RequestRefused. When the thread fails, `failure` says why and every open request gets a
BackendError; RequestLost when it is stopped. What runs in a step that fails is lost, and made again by whoever asked.
Where a trial of one token fails too, or `_MAX_FAILURES` steps of several requests in a row, the engine is broken: one
request alone never breaks it.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from itertools import groupby

from swarm.backends.local.batcher import Batcher, Generation
from swarm.backends.local.policy import Policy
from swarm.backends.protocols import Chunk, GenerationRequest, RequestLost, Sampling, require_readable
from swarm.rendering.guides import Guides
from swarm.rendering.messages import BackendError, GrammarRefused

_MAX_FAILURES = 3
"""Failed steps of several requests in a row after which the engine counts as broken."""


_log = logging.getLogger(__name__)

SILENCE_S = 60.0
"""Seconds in which the thread neither takes up work nor computes, while requests wait, after which it is dead."""
_STEP_S = 1800.0
"""Seconds that a step may compute: prompts of a model that is large for its machine take minutes."""
_JOIN_S = 10.0
"""Seconds that `stop` waits for the thread; one that hangs is left behind (it is a daemon)."""
_GATHER_S = 0.02
"""Seconds within which a running generation's tokens are gathered into one chunk."""
_GATHER_FOR = 20
"""Open requests up to which that holds; with more it grows in proportion, since a chunk costs some 40 us on its way."""


_Output = Chunk | BackendError
"""What a generation's consumer waits for: its next chunk, or why no more will come."""


class LocalEngine:
    """Implements `Engine` over a batcher. `start` and `generate` belong to one event loop; `stop` ends the thread."""

    def __init__(
        self,
        policy: Policy,
        batcher: Batcher,
        max_context: int,
        *,
        guides: Guides | None = None,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._policy = policy
        self._batcher = batcher
        self._failures = 0
        self._max_context = max_context
        self._guides = guides
        self.guided = guides is not None
        self._wake = threading.Condition()
        self._arrived: list[Generation] = []
        self._stopped: str | None = "the engine is not started"
        self._failure: str | None = None
        self._open: dict[Generation, asyncio.Queue[_Output]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._silence_s = silence_s
        self._advanced = self._computed = self._looked = time.monotonic()
        """When the thread last took up work (monotonic seconds), and was last seen to have computed; the last look."""
        self._clock: int | None = None
        """That of the thread's processor time, where there is one."""
        self._spent = 0.0

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = None
        self._thread = threading.Thread(target=self._run, name="local-engine", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        with self._wake:
            self._stopped = self._stopped or "the engine was stopped"
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _JOIN_S)
            self._thread = None
        self._fail_open()

    def failure(self) -> str | None:
        """Return why the thread broke, or that it advances no request though there are some; None otherwise."""
        silent = self._silent_s()
        if self._failure is None and self._open and silent > self._silence_s:
            self._failure = f"the local engine has been silent for {silent:.0f} s while requests wait"
            self._fail_open()
        return self._failure

    def _silent_s(self) -> float:
        """Return for how long the thread neither took up work nor, within a step, computed anything."""
        looked, self._looked = self._looked, time.monotonic()
        with contextlib.suppress(OSError):  # the thread is over
            spent = self._looked if self._clock is None else time.clock_gettime(self._clock)
            if spent != self._spent or self._looked - looked > self._silence_s / 2:  # or this process stood still
                self._spent, self._computed = spent, self._looked
        in_step = self._looked - self._advanced
        return min(in_step, self._looked - self._computed) if in_step < _STEP_S else in_step

    @property
    def version(self) -> int:
        return self._policy.version

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        require_readable(request, self._max_context, self._policy.vocab_size)
        sampling, guide = request.sampling, None
        if sampling.grammar is not None:
            if self._guides is None:
                raise GrammarRefused("this engine follows no grammar: install llguidance on its machine")
            guide = await asyncio.to_thread(self._guides.guide, sampling.grammar)  # a large schema takes its time
        generation = Generation(list(request.prompt_ids), sampling, guide, since=time.monotonic())
        queue: asyncio.Queue[_Output] = asyncio.Queue()
        with self._wake:
            if self._failure:
                raise BackendError(self._failure)
            if self._stopped:
                raise RequestLost(self._stopped)
            if not self._open:
                self._advanced = time.monotonic()
            self._arrived.append(generation)
            self._open[generation] = queue
            self._wake.notify()
        finished = False
        try:
            while not finished:
                output = await queue.get()
                if isinstance(output, BackendError):
                    raise output
                finished = output.finish is not None
                yield output
        finally:
            generation.cancelled = True
            self._open.pop(generation, None)

    def _run(self) -> None:
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        try:
            while self._collect():
                self._advanced = time.monotonic()
                with self._policy.lock.reading():
                    advanced = self._step()
                self._hand_over(advanced)
        except Exception as error:  # noqa: BLE001 - the thread's edge: whatever broke it is told by failure()
            _log.exception("the local engine's thread broke")
            with self._wake:
                self._failure = f"the local engine broke: {type(error).__name__}: {error}"
            self._call_loop(self._fail_open)

    def _step(self) -> list[Generation]:
        """Advance; return the generations that got a token or ended. Raises what is no single request's fault."""
        try:
            advanced = self._batcher.step()
        except Exception as error:
            lost, waiting = self._batcher.empty()
            self._failures += len(lost) > 1
            if self._failures >= _MAX_FAILURES:
                raise
            said = f"the engine lost this answer ({type(error).__name__}: {error}); make the request again"
            _log.warning("event=step_failed reason=%r", said)
            for generation in lost:
                generation.fail(RequestLost(said))
            self._batcher.add(Generation([0], Sampling(max_tokens=1, seed=0)))
            self._batcher.step()
            for generation in waiting:
                self._batcher.add(generation)
            return lost
        self._failures = 0
        return advanced

    def _collect(self) -> bool:
        with self._wake:
            self._wake.wait_for(lambda: self._stopped or self._arrived or self._batcher.busy)
            arrived, self._arrived = self._arrived, []
            for generation in arrived:
                self._batcher.add(generation)
            return self._stopped is None

    def _hand_over(self, advanced: Sequence[Generation]) -> None:
        now = time.monotonic()
        gather = _GATHER_S * max(1.0, len(self._open) / _GATHER_FOR)
        due: list[tuple[Generation, Sequence[_Output]]] = []
        for generation in advanced:
            if generation.finish or now - generation.since >= gather:
                due.append((generation, [generation.error] if generation.error else _take_chunks(generation)))
                generation.since = now
        if due:
            self._call_loop(self._deliver, due)

    def _call_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _deliver(self, due: Sequence[tuple[Generation, Sequence[_Output]]]) -> None:
        for generation, outputs in due:
            if queue := self._open.get(generation):
                for output in outputs:
                    queue.put_nowait(output)

    def _fail_open(self) -> None:
        error = BackendError(self._failure) if self._failure else RequestLost(self._stopped or "the engine was stopped")
        for queue in self._open.values():
            queue.put_nowait(error)


def _take_chunks(generation: Generation) -> list[Chunk]:
    fresh, generation.fresh = generation.fresh, []
    chunks = []
    for version, run in groupby(fresh, key=lambda sampled: sampled.version):
        ids, logprobs, _, top = zip(*run, strict=True)
        chunks.append(Chunk(ids, logprobs, version, None, top if generation.sampling.top_logprobs else ()))
    return [*chunks[:-1], replace(chunks[-1], finish=generation.finish)]
