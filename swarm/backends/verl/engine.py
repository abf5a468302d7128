"""VerlEngine: requests spread over replicas, which may die and are replaced.

Calls of a session go to the replica that answered it before, while that serves; else to the least busy. A replica that
dies loses its own requests, each by a RequestLost, and is made again with the weights published last; one that dies too
often within `WINDOW_S` is given up, and with the last of them the engine. A version serves once every serving replica
confirmed it. Replicas that rest while a learner has their devices keep their requests and wake with the next weights;
none is made meanwhile. Every wait is bounded, or watches what it waits for.
"""

import asyncio
import hashlib
import itertools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from swarm.backends.protocols import Chunk, GenerationRequest, RequestLost, require_readable
from swarm.backends.verl.processes import DeviceScheduler
from swarm.backends.verl.replica import GenerateCommand, RayReplica
from swarm.backends.verl.vllm import ReplicaDied, ReplicaSpec, vocabulary_size
from swarm.rendering.messages import BackendError, GrammarRefused, RequestRefused


class SeedSequence:
    """The seeds that follow from one seed; `count` is how many were taken, which a checkpoint keeps."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.count = 0

    def take(self) -> int:
        self.count += 1
        found = hashlib.blake2b(f"{self._seed}:{self.count}".encode(), digest_size=8).digest()
        return int.from_bytes(found) >> 1


WINDOW_S: Final = 900.0
"""Seconds that a replica must have served for the deaths before it to be forgiven."""


OutputQueue = asyncio.Queue[Chunk | BackendError]
"""Chunks of one request until who asked takes them, or why there will be none; used on the event loop alone."""


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """A version's weights, as references to buckets that every replica can fetch."""

    version: int
    buckets: Sequence[Any]


@dataclass(slots=True, eq=False)
class ReplicaInstance:
    """A replica from its boot to its death. `heard`: when it last brought something, or had nothing to bring."""

    handle: RayReplica
    open: dict[int, OutputQueue] = field(default_factory=dict)
    heard: float = field(default_factory=time.monotonic)
    published: PublishedWeights | None = None
    loading: bool = False
    sleeping: bool = False
    """Whether it has given its memory back, and so brings nothing until it has loaded weights."""

    def end(self, error: BackendError) -> None:
        for queue in self.open.values():
            queue.put_nowait(error)
        self.open.clear()

    def is_silent(self, patience: float) -> bool:
        """Return whether requests have waited longer than `patience` seconds for anything to come."""
        if not self.open or self.loading or self.sleeping:
            self.heard = time.monotonic()
        return time.monotonic() - self.heard > patience


@dataclass(slots=True, eq=False)
class ReplicaSlot:
    """Where one replica at a time lives; `serving` while it takes requests."""

    number: int
    instance: ReplicaInstance | None = None
    serving: bool = False
    instance_count: int = 0
    gone: bool = False
    """Whether nobody will live here any more."""
    served_since: float | None = None
    deaths: int = 0

    def die(self) -> int:
        """Count a death; return how many there were since one of them served for `WINDOW_S`."""
        now = time.monotonic()
        if self.served_since is not None and now - self.served_since > WINDOW_S:
            self.deaths = 0
        self.served_since = None
        self.deaths += 1
        return self.deaths


_COLDEST: Final = 0.01
_HOTTEST: Final = 2.0
"""Temperatures that vLLM heeds, beside 0: it raises any below to the first, and refuses any above the last."""


MOST_SESSIONS: Final = 65_536
"""Sessions whose replica is remembered; of more, those that asked longest ago are forgotten."""


_log = logging.getLogger(__name__)

MOST_DEATHS: Final = 3
"""Deaths of late after which a replica's place is given up."""
WAIT_S: Final = 1800.0
"""Most seconds that a request waits for a replica to serve, where all are being made again."""
SILENCE_S: Final = 300.0
"""Seconds without a token, while requests are open, after which a replica counts as dead."""
UP_S: Final = 5400.0
"""Seconds that a learner's turn waits for a replica which boots or is given weights."""
TURN_S: Final = 86_400.0
"""Seconds that a replica which is to be made again waits for the end of a learner's turn."""
_PAUSE_S: Final = 0.5  # before a replica is made again, times the deaths of late

MakeReplica = Callable[[int, int], RayReplica]
"""Makes a replica, which is booted later: of a place, by number, and how many lived there before."""


class ReplicatedEngine:
    """Implements `Engine`. `start`, `generate` and `stop` belong to one event loop; the rest to any thread."""

    guided = False

    def __init__(
        self, make: MakeReplica, replicas: int, max_context: int, vocabulary: int, *, draws: SeedSequence | None = None
    ) -> None:
        """Make it, not started. `draws` seed what nobody seeded, whichever replica answers; None: nobody does."""
        self._make = make
        self._count = replicas
        self._max_context = max_context
        self._vocabulary = vocabulary
        self._seeds = draws
        self._lock = threading.Lock()
        """Guards who serves, and what was published: `publish` runs on other threads."""
        self._slots: list[ReplicaSlot] = []
        self._scheduler = DeviceScheduler()
        self._supervisors: list[asyncio.Task[None]] = []
        self._published: PublishedWeights | None = None
        self.version = 0
        """That of the weights which every replica confirmed last."""
        self._failure: str | None = None
        self._stopped: str | None = "the engine is not started"
        self._changed = asyncio.Event()
        self._sessions: OrderedDict[str, int] = OrderedDict()
        """Where sessions are, by the numbers of replicas."""
        self._keys = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None

    def failure(self) -> str | None:
        return self._failure

    async def start(self) -> None:
        """Boot all replicas; raise BackendError, with none left, where one cannot be."""
        self._loop = asyncio.get_running_loop()
        self._slots = [ReplicaSlot(number) for number in range(self._count)]
        self._sessions.clear()
        self._published, self.version, self._scheduler = None, 0, DeviceScheduler()
        self._stopped = self._failure = None
        self._changed = asyncio.Event()
        booted = [self._loop.create_future() for _ in self._slots]
        self._supervisors = [
            asyncio.ensure_future(self._supervise(*pair)) for pair in zip(self._slots, booted, strict=True)
        ]
        try:
            await asyncio.gather(*booted)
        except BaseException:
            for each in booted:
                each.cancel()
            await self.stop()
            raise

    async def stop(self) -> None:
        """End all replicas; open requests get a RequestLost. Safe to call twice."""
        self._stopped = self._stopped or "the engine was stopped"
        for keeper in self._supervisors:
            keeper.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)
        self._supervisors = []
        self._changed.set()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Yield the completion's chunks, `finish` set on the last; see `Engine.generate`."""
        require_readable(request, self._max_context, self._vocabulary)
        sampling, said = request.sampling, f"request {request.name}"
        if sampling.temperature != 0 and not _COLDEST <= sampling.temperature <= _HOTTEST:
            raise RequestRefused(
                f"{said}: expected temperature 0, or {_COLDEST} to {_HOTTEST}, found {sampling.temperature}"
            )
        if sampling.grammar is not None:
            raise GrammarRefused(f"{said}: expected no grammar, as this engine follows none: backend `local` does")
        life, key, queue = await self._choose_instance(request), next(self._keys), OutputQueue()
        prompt = tuple(request.prompt_ids)
        limit = min(len(prompt) + sampling.max_tokens, self._max_context)
        if self._seeds is not None and sampling.seed is None and sampling.temperature > 0:
            sampling = replace(sampling, seed=self._seeds.take())
        life.open[key] = queue
        finished = False
        try:
            life.handle.submit(GenerateCommand(key, prompt, sampling, limit))
            while not finished:
                chunk = await queue.get()
                if isinstance(chunk, BackendError):
                    raise chunk
                finished = chunk.finish is not None
                yield chunk
        finally:
            if life.open.pop(key, None) and not finished:
                life.handle.cancel(key)

    async def _choose_instance(self, request: GenerationRequest) -> ReplicaInstance:
        try:
            async with asyncio.timeout(WAIT_S):
                while not (serving := self._serving_instances()):
                    self._require_alive()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise RequestLost(f"request {request.name}: no replica served within {WAIT_S:.0f} s") from None
        self._require_alive()
        number = self._route(request.session, {number: len(life.open) for number, life in serving.items()})
        return serving[number]

    def _route(self, session: str, in_flight: Mapping[int, int]) -> int:
        """Return a replica of those that serve, `in_flight` (not empty); session "" is of nobody."""
        number = self._sessions.get(session)
        if number is None or number not in in_flight:
            number = min(in_flight, key=lambda number: (in_flight[number], number))
        if session:
            self._sessions[session] = number
            self._sessions.move_to_end(session)
            if len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)
        return number

    def _serving_instances(self) -> dict[int, ReplicaInstance]:
        return {place.number: place.instance for place in self._slots if place.serving and place.instance}

    def _require_alive(self) -> None:
        if self._failure:
            raise BackendError(self._failure)
        if self._stopped:
            raise RequestLost(self._stopped)

    def publish(self, version: int, buckets: Sequence[Any]) -> None:
        """Have every replica that serves load buckets; return once each confirmed `version`, or died. Blocks.
        BackendError where one cannot load, which is the end of the engine."""
        published = PublishedWeights(version, tuple(buckets))
        with self._lock:
            self._require_alive()
            self._published = published
            lives = list(self._serving_instances().values())
        with ThreadPoolExecutor(max(1, len(lives)), "publish") as pool:
            errors = pool.map(lambda life: self._load_weights(life, published), lives)
        if error := next(filter(None, errors), None):
            self.fail(f"version {version} could not be published: {error}")
            raise BackendError(self._failure or "")
        self.version = version
        self._scheduler.end()

    def _load_weights(self, life: ReplicaInstance, published: PublishedWeights) -> BackendError | None:
        """Have one replica load; return why it could not, though it lives."""
        life.loading = True
        try:
            life.handle.load(published.version, published.buckets)
            life.published, life.sleeping = published, False
        except ReplicaDied as error:
            self._withdraw(life, "publishing", error)
        except BackendError as error:
            return error
        finally:
            life.loading = False
        return None

    def sleep(self) -> None:
        """Have replicas give their devices' memory back until the next `publish`; requests wait. Blocks. One that
        cannot is made again after that. BackendError where nothing is served, or one that boots does not come up."""
        self._require_alive()
        self._scheduler.begin(UP_S)
        with self._lock:
            lives = self._serving_instances()
        with ThreadPoolExecutor(max(1, len(lives)), "rest") as pool:
            list(pool.map(self._sleep_replica, lives.values()))

    def _sleep_replica(self, life: ReplicaInstance) -> None:
        life.sleeping = True
        try:
            life.handle.sleep()
        except (ReplicaDied, BackendError) as error:
            self._withdraw(life, "resting", error)

    def _withdraw(self, life: ReplicaInstance, during: str, error: Exception) -> None:
        """Let nobody ask a dead replica any more; its keeper sees that it is gone."""
        _log.warning("event=replica_died while=%s reason=%r", during, str(error))
        with self._lock:
            for place in self._slots:
                if place.instance is life:
                    place.serving = False
        life.handle.kill()

    def fail(self, reason: str) -> None:
        """Serve nothing any more: what is open, and whoever asks, is told the reason."""
        self._failure = self._failure or reason
        _log.error("event=engine_broke reason=%r", self._failure)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._fail_open)

    def _fail_open(self) -> None:
        for place in self._slots:
            place.serving = False
            if place.instance:
                place.instance.end(BackendError(self._failure or ""))
        self._changed.set()

    async def _supervise(self, place: ReplicaSlot, booted: asyncio.Future[None]) -> None:
        """Have a replica live in a place, and another after it, until there were too many deaths."""
        while not (self._failure or self._stopped):
            try:
                await self._run_replica(place, booted)
            except Exception as error:  # noqa: BLE001  -- a keeper that ended unseen would leave its place empty
                if not booted.done():
                    booted.set_exception(BackendError(f"replica {place.number}: {error}"))
                    return
                if place.die() > MOST_DEATHS:
                    place.gone = True
                    _log.error("event=replica_given_up number=%d reason=%r", place.number, str(error))
                    if all(slot.gone for slot in self._slots):
                        self.fail(f"all {len(self._slots)} replicas are dead beyond repair; the last: {error}")
                    return
                _log.warning("event=replica_died number=%d reason=%r: it is made again", place.number, str(error))
            await asyncio.sleep(_PAUSE_S * place.deaths)

    async def _run_replica(self, place: ReplicaSlot, booted: asyncio.Future[None]) -> None:
        """Have one replica live; it ends by ReplicaDied, or BackendError, or when this is cancelled."""
        life = place.instance = ReplicaInstance(self._make(place.number, place.instance_count))
        place.instance_count += 1
        reason = "the engine was stopped"
        try:
            async with self._scheduler.booting(TURN_S):
                await life.handle.boot()
                await self._sync_weights(place, life)
            if not booted.done():
                booted.set_result(None)
            await self._deliver(life)
        except (ReplicaDied, BackendError) as error:
            reason = f"the replica that answered is gone: {error}"
            raise
        finally:
            with self._lock:
                place.serving = False
            life.end(RequestLost(reason))
            with suppress(ReplicaDied):
                await asyncio.to_thread(life.handle.kill)

    async def _sync_weights(self, place: ReplicaSlot, life: ReplicaInstance) -> None:
        """Give a new replica what was published, and let it serve once that is the newest."""
        while True:
            with self._lock:
                published = self._published
                if published is None or published is life.published:
                    place.serving, place.served_since = True, time.monotonic()
                    break
            await asyncio.to_thread(life.handle.load, published.version, published.buckets)
            life.published = published
        self._changed.set()

    async def _deliver(self, life: ReplicaInstance) -> None:
        life.heard = time.monotonic()  # until now it booted
        while not self._stopped:  # `wait_for` of Python 3.11 forgets a cancellation that comes with its result
            for delivery in await life.handle.take():
                life.heard = time.monotonic()
                if queue := life.open.get(delivery.key):
                    queue.put_nowait(delivery.chunk or RequestLost(delivery.lost))
            if life.is_silent(SILENCE_S):
                raise ReplicaDied(f"no token came within {SILENCE_S:.0f} s, though requests are open")


def make_engine(
    spec: ReplicaSpec, replicas: int, options: Callable[[int], Mapping[str, Any]], draws: SeedSequence | None = None,
    lost: Callable[[], str | None] = lambda: None,
) -> ReplicatedEngine:  # fmt: skip
    """Return an engine with Ray's `options` by replica; `lost` says why there is no Ray any more. Ray must be up to
    `start`. BackendError: no model."""
    return ReplicatedEngine(
        lambda number, life: RayReplica(spec, number, life, options(number), lost),
        replicas, spec.job.max_context, vocabulary_size(Path(spec.folder)), draws=draws,
    )  # fmt: skip
