"""A replica: an engine in an actor's process, its open requests, and its weights.

Weights change only while nothing generates, all of them or, with an error, none that is served. A resting replica gives
its memory back, keeps its requests, and takes memory again with the next weights. Answers come in segments of one
version: a request that new weights catch keeps what it has and goes on under the new ones. A finish is told by the ids
alone (a stop id, or no room), never by what the engine calls it.
"""

import asyncio
import hashlib
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from swarm.backends.protocols import Chunk, Finish, Sampling
from swarm.backends.verl import vllm
from swarm.backends.verl.processes import LOOK_S, ChildOutput, forget_secrets, run_apart
from swarm.backends.verl.vllm import ReplicaDied, ReplicaSpec
from swarm.rendering.messages import BackendError


class GenerateCommand(NamedTuple):
    """One completion that a replica is to generate: `limit` tokens of prompt and answer at most."""

    key: int
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    limit: int


class Delivery(NamedTuple):
    """What a replica has of a command: its next chunk, or why there will be none any more."""

    key: int
    chunk: Chunk | None
    lost: str = ""


STILL_S: Final = 60.0
"""Seconds within which all that generates must have stopped once it was told to."""
_STOP_AGAIN_S = 0.05
"""Seconds after which what still generates is told again to stop."""


class Outbox:
    """What was generated and is not taken yet, in the order in which it came."""

    def __init__(self) -> None:
        self._pending: dict[int, list[Chunk]] = {}
        self._lost: list[Delivery] = []
        self._filled = asyncio.Event()

    def add(self, key: int, chunk: Chunk) -> None:
        self._pending.setdefault(key, []).append(chunk)
        self._filled.set()

    def lose(self, key: int, reason: str) -> None:
        self._lost.append(Delivery(key, None, reason))
        self._filled.set()

    def forget(self, key: int) -> None:
        self._pending.pop(key, None)

    async def wait(self, seconds: float) -> None:
        """Return once something is there, or after so many seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._filled.wait(), seconds)

    def take(self) -> list[Delivery]:
        """Return what came, as one chunk a version. Once, for all: each token would copy those before it."""
        chunks = [
            Delivery(key, _join(list(parts)))
            for key, pending in self._pending.items()
            for _, parts in groupby(pending, key=lambda chunk: chunk.version)
        ]
        lost, self._pending, self._lost = self._lost, {}, []
        self._filled.clear()
        return chunks + lost


def _join(parts: Sequence[Chunk]) -> Chunk:
    ids = tuple(token for part in parts for token in part.ids)
    logprobs = tuple(logprob for part in parts for logprob in part.logprobs)
    top = tuple(likeliest for part in parts for likeliest in part.top)
    return Chunk(ids, logprobs, parts[-1].version, parts[-1].finish, top)


class RequestRunner:
    """Requests on one event loop, from their order to their last token."""

    _model: vllm.VllmStream

    def __init__(self) -> None:
        self.version = 0
        self.outbox = Outbox()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._streaming: set[str] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._still = asyncio.Event()
        self._still.set()

    def submit(self, command: GenerateCommand) -> None:
        task = asyncio.ensure_future(self._answer(command))
        self._tasks[command.key] = task
        task.add_done_callback(lambda _: self._tasks.pop(command.key, None))

    def cancel(self, key: int) -> None:
        """Forget a request: whoever asked went away."""
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
                    await asyncio.wait([asyncio.ensure_future(self._still.wait())], timeout=_STOP_AGAIN_S)
        except TimeoutError:
            raise ReplicaDied(f"{len(self._streaming)} requests did not stop within {STILL_S:.0f} s") from None

    def resume(self, version: int) -> None:
        self.version = version
        self._open.set()

    async def _answer(self, command: GenerateCommand) -> None:
        try:
            ids, part, done = list(command.prompt_ids), 0, False
            while not done:
                await self._open.wait()
                done = await self._segment(command, ids, part)
                part += 1
        except Exception as error:  # noqa: BLE001 - the request's edge: whatever it was is told to who asked
            _log.warning("event=request_lost", exc_info=True)
            self.outbox.lose(command.key, f"{type(error).__name__}: {error}")

    async def _segment(self, command: GenerateCommand, ids: list[int], part: int) -> bool:
        """Generate under the present version, adding to `ids`; return whether that finished the request."""
        name, finish = f"{command.key}-{part}", None
        # with what is left, and with random numbers not used before
        sampling = replace(command.sampling, max_tokens=command.limit - len(ids))
        if sampling.seed is not None:
            digest = hashlib.sha256(f"{sampling.seed}/{part}".encode()).digest()
            sampling = replace(sampling, seed=int.from_bytes(digest[:6], "big"))
        self._streaming.add(name)
        self._still.clear()
        try:
            async for chunk in self._model.stream(name, ids, sampling, self.version):
                ids += chunk.ids
                finish = finish_reason(command, ids)
                self.outbox.add(command.key, chunk if finish is None else replace(chunk, finish=finish))
        finally:
            self._streaming.discard(name)
            if not self._streaming:
                self._still.set()
        if finish is None and self._open.is_set():
            raise RuntimeError(f"the engine ended the answer early, after {len(ids) - len(command.prompt_ids)} ids")
        return finish is not None


def finish_reason(command: GenerateCommand, ids: Sequence[int]) -> Finish | None:
    """Return how an order ends with `ids` of prompt and answer, or None where it goes on."""
    if len(ids) > len(command.prompt_ids) and ids[-1] in command.sampling.stop_ids:
        return "stop"
    return "length" if len(ids) >= command.limit else None


_log = logging.getLogger(__name__)

TAKE_S: Final = 2.0
"""Seconds after which `take` returns though there is nothing: that is a replica's sign of life."""
GATHER_S: Final = 0.02
"""Seconds within which tokens are gathered into one answer."""
_SHARED: Final = Path("/dev/shm")
_SPARE: Final = 4 << 30  # all replicas of a machine write at once


class Replica(RequestRunner):
    """What runs in an actor; its methods are called from elsewhere, all on the actor's event loop."""

    def __init__(self, spec: ReplicaSpec) -> None:
        super().__init__()
        self._spec = spec
        self._sleeping = False

    async def boot(self) -> None:
        """Load the model; nothing else is called before."""
        vllm.check()
        forget_secrets()
        vllm.set_environment(self._spec)
        torch.serialization.set_crc32_options(False)  # sums of files that are read once cost as much as their writing
        vllm.require_servable(self._spec)
        self._output = ChildOutput()
        try:
            with self._output.capture():
                self._model = vllm.VllmStream(self._spec)
            await self._model.end_with_this_process()
        except Exception as error:
            raise vllm.boot_error(error, self._output.lines(wait_s=1.0), self._spec) from error

    async def take(self) -> list[Delivery]:
        """Return what was generated; ReplicaDied where the engine's processes are gone."""
        await self.outbox.wait(TAKE_S)
        await asyncio.sleep(GATHER_S)
        if self._model.dead:
            raise ReplicaDied(f"the engine's process ended; it said last: {self._output.quote_last()}")
        return self.outbox.take()

    async def sleep(self) -> None:
        """Stop all that generates, keeping what it has, and give memory back until the next `load`."""
        await self.pause()
        await self._model.sleep()
        self._sleeping = True

    async def load(self, version: int, buckets: Sequence[Any]) -> int:
        """Load weights from references to buckets, and serve them as `version`, which is returned."""
        await self.pause()
        if self._sleeping:
            await self._model.wake("weights")
        await self._model.begin_weights()
        two = asyncio.Semaphore(2)  # one is written while another is loaded
        await asyncio.gather(*(_load_bucket(self._model, bucket, two) for bucket in buckets))
        if missing := await self._model.finish_weights():
            raise BackendError(
                f"expected all weights of {self._spec.folder}, found none named {', '.join(missing[:3])}"
            )
        if self._sleeping:  # only now, when nothing that loading took beside the weights is there any more
            await self._model.wake("kv_cache")
            self._sleeping = False
        await self._model.forget_prefixes()
        self.resume(version)
        return version


async def _load_bucket(model: vllm.VllmStream, reference: Any, room: asyncio.Semaphore) -> None:
    """Load a bucket from a file that workers can map, in memory if there is room."""
    async with room:
        bucket = await reference
        size = sum(weight.nbytes for weight in bucket.values())
        in_memory = _SHARED.is_dir() and shutil.disk_usage(_SHARED).free > size + _SPARE
        with tempfile.TemporaryDirectory(prefix="ajet-weights-", dir=_SHARED if in_memory else None) as folder:
            path = Path(folder) / "bucket.pt"
            try:
                with path.open("wb") as file:  # by its path torch would not tell a full disk from another fault
                    await asyncio.to_thread(torch.save, dict(bucket), file)  # workers read plain types alone
            except OSError as error:
                where = f"under {path.parents[1]}: {error}"
                raise BackendError(f"{size:,} bytes of weights could not be written {where}") from error
            await model.load_bucket(str(path))


BOOT_S: Final = 1800.0
"""Seconds within which a replica must have loaded its model."""
LOAD_S: Final = 1800.0
"""Seconds within which a replica must serve new weights."""
REST_S: Final = 300.0
"""Seconds within which a replica must have given its device's memory back."""
_SILENCE_S: Final = 60.0
"""Seconds without a sign of life, beyond `TAKE_S`, after which a replica counts as dead."""
_CALLS: Final = 1000
"""Calls of one actor that may be under way at once; what generates is none of them."""
_SEEDS: Final = 1_000_003


class RayReplica:
    """One life of a replica, in an actor, which is booted once. ReplicaDied says that this life is over; BackendError,
    that another would not do either. `options` are Ray's, for where it is placed."""

    def __init__(
        self, spec: ReplicaSpec, number: int, life: int, options: Mapping[str, Any],
        lost: Callable[[], str | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._spec = replace(spec, seed=(spec.seed * _SEEDS + number * 1009 + life) % (1 << 31))
        self._options, self._lost = options, lost
        self._actor: Any = None

    async def boot(self) -> None:
        """Make the actor and load the model; ReplicaDied where it dies meanwhile, BackendError where it cannot."""
        import ray

        made = ray.remote(Replica).options(max_restarts=0, max_concurrency=_CALLS, **self._options)
        making = asyncio.wrap_future(run_apart(lambda: made.remote(self._spec)))  # without Ray's head it never returns
        try:
            async with asyncio.timeout(BOOT_S):  # `wait_for` of Python 3.11 may forget that it was cancelled
                self._actor = await making
        except TimeoutError:
            raise ReplicaDied(f"Ray made no process for it within {BOOT_S:.0f} s") from None
        await self._wait_async(self._actor.boot.remote(), BOOT_S, "did not load its model")

    def submit(self, order: GenerateCommand) -> None:
        """Have it generate; what comes of it is in `take`."""
        self._actor.submit.remote(order)

    def cancel(self, key: int) -> None:
        self._actor.cancel.remote(key)

    async def take(self) -> Sequence[Delivery]:
        """Return what it generated; empty after some seconds in which there was nothing."""
        found: Sequence[Delivery] = await self._wait_async(self._actor.take.remote(), TAKE_S + _SILENCE_S, "was silent")
        return found

    def load(self, version: int, buckets: Sequence[Any]) -> None:
        """Have it load references to buckets; return once it serves them as `version`. Blocks, on any thread."""
        confirmed = self._wait(self._actor.load.remote(version, list(buckets)), f"did not load version {version}")
        if confirmed != version:
            raise BackendError(f"expected a replica to confirm version {version}, it confirmed {confirmed}")

    def sleep(self) -> None:
        """Have it stop, keep what is open, and give its device's memory back until the next `load`. Blocks."""
        self._wait(self._actor.sleep.remote(), "did not give its memory back", REST_S)

    def kill(self) -> None:
        """End the actor; its engine's processes see that and end. Safe to call twice."""
        import ray

        if self._actor is not None:
            ray.kill(self._actor, no_restart=True)

    async def _wait_async(self, reference: Any, seconds: float, otherwise: str) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(reference.future())
        except TimeoutError:
            raise ReplicaDied(f"it {otherwise} within {seconds:.0f} s") from None
        except Exception as error:
            raise _translate_error(error) from error

    def _wait(self, reference: Any, otherwise: str, seconds: float = LOAD_S) -> Any:
        import ray

        end = time.monotonic() + seconds
        while not ray.wait([reference], timeout=min(LOOK_S, max(0.0, end - time.monotonic())))[0]:
            if (gone := self._lost()) is not None:
                raise ReplicaDied(gone)
            if time.monotonic() > end:
                raise ReplicaDied(f"it {otherwise} within {seconds:.0f} s")
        try:
            return ray.get(reference)
        except Exception as error:
            raise _translate_error(error) from error


def _translate_error(error: Exception) -> Exception:
    import ray

    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause if isinstance(error.cause, Exception) else error
        if isinstance(cause, BackendError | ReplicaDied):
            return type(cause)(str(cause))
        return BackendError(f"{type(cause).__name__}: {cause}")
    if isinstance(error, ray.exceptions.ActorUnschedulableError):
        return BackendError(f"Ray has no place for a replica: {error}")
    if isinstance(error, ray.exceptions.RayActorError):
        return ReplicaDied("its process ended")
    return error if isinstance(error, BackendError | ReplicaDied) else ReplicaDied(f"{type(error).__name__}: {error}")
