"""SwarmServer: one loaded job; makes its backend."""

import asyncio
import hashlib
import importlib.util
import logging
import os
import platform
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from swarm.backends.protocols import Backend
from swarm.errors import EngineUnavailable, InvalidRequest, JobConflict, NotFound, ServerFailed
from swarm.job import Job, PathModel
from swarm.models import folder_hash, model_place
from swarm.plugins import BACKENDS, BUILT_IN_BACKENDS, backend_names, load
from swarm.rendering.messages import BackendError
from swarm.rollout.episodes import RETRY_AFTER_S
from swarm.rollout.keys import Keys, ServerDirectory
from swarm.rollout.state import StateMachine
from swarm.store.archive import Archive, erase_archived
from swarm.store.reading import EpisodeReader
from swarm.store.tables import best_of
from swarm.store.writer import open_store
from swarm.training.checkpoints import find_spare, list_checkpoints
from swarm.training.loop import Training
from swarm.training.metrics import finite_metrics
from swarm.training.trackers import Tracker, make_tracker, require_trackers
from swarm.wire import CheckpointList, EraseRequest, Erasure, FileList, ServerFile, ServerState, Status, fingerprint

_LOCAL = ("torch", "transformers", "safetensors", "tokenizers")
TRACKING = "tracking"
"""Folder of a server's folder, for the logs of a tracking that names no directory."""
_VERL = (*_LOCAL, "ray", "verl", "vllm", "tensordict", "peft")


def require_backend(name: str) -> None:
    """Raise InvalidRequest, which lists the names, unless a backend of this name is installed."""
    if name not in BUILT_IN_BACKENDS and name not in (known := backend_names()):
        raise InvalidRequest(f"backend: expected one of {', '.join(known)}; found {name!r}", param="backend")


def make_backend(job: Job, models: Path) -> Backend:
    """Return the job's backend, not yet started; `models` caches what it makes. BackendError if it cannot be made."""
    if job.lineage is not None and isinstance(job.model, PathModel):
        _require_hash(job.model, models)
    if job.backend == "local":
        needed, needs = (*_LOCAL, "peft") if job.lora_rank else _LOCAL, " with a lora_rank" if job.lora_rank else ""
        _require_packages(needed, f"`local`{needs}", "install the `local` extra: pip install 'ajet[local]'")
        from swarm.backends.local import LocalBackend

        return LocalBackend(job, models)
    if job.backend == "verl":
        advice = "make an environment of its own for swarm servers that use it, with ajet[verl] as docs/cluster.md says"
        _require_packages(_VERL, "`verl`", f"{advice}, and start the server with its Python")
        from swarm.backends.verl.backend import VerlBackend

        return VerlBackend(job, models)
    if job.start_from is not None:
        raise BackendError(
            f"expected no start_from with the backend {job.backend}, found {job.start_from!r}: `local` and `verl` "
            "begin with an exported folder; leave it out"
        )
    if job.backend == "fake":
        from swarm.backends.fake import FakeBackend

        return FakeBackend(job)
    try:
        require_backend(job.backend)
        made: Backend = load(BACKENDS, job.backend)(job, models)
    except InvalidRequest as error:
        raise BackendError(str(error)) from error
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BackendError(f"the backend {job.backend} of an installed package could not be made: {said}") from error
    return made


def _require_hash(model: PathModel, models: Path) -> None:
    """Raise BackendError unless the folder holds what a study named: it was looked at where the study was begun."""
    folder = model_place(model.path, models)
    try:
        found = folder_hash(folder, models) if folder.is_dir() else "no folder"
    except OSError as error:
        raise BackendError(f"expected the model folder {folder}; cannot read it: {error.strerror or error}") from error
    if found != model.sha256:
        raise BackendError(
            f"expected at {folder} on the server's machine the model that the study named (sha256 "
            f"{str(model.sha256)[:12]}), found {found[:12]}; copy the folder there"
        )


def _require_packages(needed: Sequence[str], backend: str, advice: str) -> None:
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise BackendError(f"backend {backend} needs {', '.join(missing)}, not installed here; {advice}")


def tracked_in(job: Job, folder: Path) -> Job:
    """Return a job with its tracker's logs in `folder`, where it names no directory."""
    if (tracking := job.tracking) is None or tracking.directory:
        return job
    return job.model_copy(update={"tracking": tracking.model_copy(update={"directory": str(folder)})})


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while piece := file.read(min(size, 1 << 20)):
            size -= len(piece)
            yield piece


@cache
def machine() -> str:
    """Return platform, cores and memory of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.platform(terse=True)}, {cores} cpus, {memory:.1f} GiB"


log = logging.getLogger(__name__)
_OF_TRAINING = (
    "fresh_start", "waiting", "not_finite", "provenance", "step", "finished", "updating", "evaluation", "best",
)  # fmt: skip
"""Fields of a status that a training has by the same name."""


class SwarmServer:
    """Holds at most one job and its training. `directory` gets checkpoints and, unless `store` names another database,
    the store; `models` caches models made on the spot. A checkpoint is due at the latest `checkpoint_after_s` after the
    last one. `peers` are addresses of other servers that may be asked what became of a team (`swarm.rollout.teams`)."""

    def __init__(
        self,
        directory: Path,
        models: Path,
        keys: Keys,
        *,
        backends: Callable[[Job, Path], Backend] = make_backend,
        trackers: Callable[[Job], Tracker | None] = make_tracker,
        clock: Callable[[], float] | None = None,
        store: str | None = None,
        peers: Sequence[str] = (),
        checkpoint_after_s: float | None = None,
    ) -> None:
        self.keys = keys
        self.machine = StateMachine()
        self._directory = directory
        self._kept = ServerDirectory(directory)
        self._store = store or default_store(directory)
        self._models = models
        self._backends = backends
        self._trackers = trackers
        self._clock = clock
        self._peers = peers
        self._checkpoint_after_s = checkpoint_after_s
        self._job: Job | None = None
        self.opened: Training | None = None
        """The training in whatever state, FAILED too; None while the engine is off."""
        self._boot: str | None = None
        self._stopping = asyncio.Lock()

    @property
    def job(self) -> Job:
        if self._job is None:
            raise NotFound("no job is loaded; POST /job")
        return self._job

    @property
    def training(self) -> Training:
        """The running training; raises what a client should hear when there is none."""
        if self.machine.state is ServerState.FAILED:
            raise ServerFailed(f"the server FAILED: {self.machine.reason}")
        if self.opened is None:
            raise EngineUnavailable("the engine is off; POST /engine/start", retry_after=RETRY_AFTER_S)
        return self.opened

    @property
    def written(self) -> EpisodeReader:
        """What was written: of the running training, else of the loaded job, else of the newest training."""
        return self._archive if self.opened is None else self.opened.store

    @property
    def running(self) -> Training | None:
        """The training of an engine that runs, or boots; None where it is off or FAILED."""
        return None if self.machine.state is ServerState.FAILED else self.opened

    async def checkpoints(self) -> CheckpointList:
        digest = await self._archive.digest()
        if digest is None:
            return CheckpointList(job_digest=None, checkpoints=())
        known, evaluations = await self._archive.checkpoints()
        found = await asyncio.to_thread(list_checkpoints, self.checkpoints_of(digest), known)
        return CheckpointList(job_digest=digest, checkpoints=tuple(found), best=best_of(evaluations))

    async def digest(self) -> str | None:
        """Return the digest of the job that began the training whose episodes are shown; None where there is none."""
        return await self._archive.digest() if self.opened is None else self.opened.digest

    def list_files(self, under: str) -> FileList:
        """Return what is handed out below a folder: checkpoints and trackers' logs. Blocks; NotFound for another."""
        top, folder = self._handed_out(under)
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
        found = []
        for path in paths:
            with suppress(FileNotFoundError):  # a checkpoint that has just been removed
                name = f"{top.name}/{path.relative_to(top.resolve()).as_posix()}"
                found.append(ServerFile(path=name, bytes=path.stat().st_size))
        return FileList(files=tuple(found))

    def read_file(self, path: str) -> tuple[Iterator[bytes], str]:
        """Return a file that is handed out, in pieces, as it is now, and its sha256. Blocks; raises NotFound."""
        try:
            found = self._handed_out(path)[1]
            size = found.stat().st_size  # it may grow
            sha256 = hashlib.sha256()
            for piece in _pieces(found, size):
                sha256.update(piece)
            return _pieces(found, size), sha256.hexdigest()
        except OSError as error:
            raise NotFound(f"there is no file {path[:200]!r}: {error.strerror}", param="path") from None

    async def release(self, training: str) -> FileList:
        """Remove what only going on with a training would read, by its job's digest; return what went. JobConflict
        while it is on; what is not there is nothing."""
        async with self._stopping:  # nothing boots meanwhile
            on = self.machine.state is not ServerState.OFFLINE
            if on and (self.opened is None or self.opened.digest[:12] == training[:12]):
                raise JobConflict("that training's engine is on; POST /engine/stop first")
            return await asyncio.to_thread(self._release, training)

    def _release(self, training: str) -> FileList:
        gone = []
        for path in find_spare(self.checkpoints_of(training)):
            size = sum(each.stat().st_size for each in (path, *path.rglob("*")) if each.is_file())
            gone.append(ServerFile(path=path.relative_to(self._directory).as_posix(), bytes=size))
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return FileList(files=tuple(gone))

    def _handed_out(self, path: str) -> tuple[Path, Path]:
        """Return which of the folders that are handed out holds a path, and the path resolved."""
        for top in (self._directory / TRACKING, self._directory / "checkpoints"):
            with suppress(ValueError):  # of a null byte, or elsewhere
                found = (self._directory / path).resolve()
                found.relative_to(top.resolve())
                return top, found
        raise NotFound(f"expected a path in checkpoints/ or {TRACKING}/, found {path[:200]!r}", param="path")

    def load(self, job: Job) -> Status:
        """Load a job; one that means the same changes nothing. JobConflict while another one's engine is on.
        InvalidRequest for a backend or a tracker that is not installed."""
        require_backend(job.backend)
        require_trackers(job)
        if self.machine.state is ServerState.OFFLINE:
            self._job = job
        elif self._job is None or not self._job.equals(job):
            differs = "" if self._job is None else f" (it has not {', not '.join(job.differences(self._job))})"
            raise JobConflict(f"another job is loaded and its engine is on{differs}; POST /engine/stop first")
        return self.status()

    async def start(self) -> Status:
        """Boot the loaded job's engine in the background, after a stop that still goes on; no change while it is on.
        Raises ServerFailed, with the server FAILED, if the job's training cannot be opened."""
        await asyncio.shield(asyncio.ensure_future(self._start()))
        return self.status()

    async def _start(self) -> None:
        async with self._stopping:
            job = self._job
            if job is None:
                raise JobConflict("no job is loaded; POST /job first")
            if self.machine.state is ServerState.FAILED:
                raise ServerFailed(f"the server FAILED: {self.machine.reason}; POST /engine/stop first")
            if self.machine.state is not ServerState.OFFLINE:
                return
            self._kept.record_engine_on(job)
            self.machine.transition_to(ServerState.BOOTING)
            try:
                store, recovered = await asyncio.to_thread(open_store, self._store, job, self._kept.installation())
            except Exception as error:
                reason = str(error) if isinstance(error, ServerFailed) else f"{type(error).__name__}: {error}"
                self.machine.transition_to(ServerState.FAILED, reason)
                raise ServerFailed(f"the server FAILED: {reason}") from error
            if recovered.fresh_start is not None:
                log.warning("event=fresh_start job_digest=%s reason=%r", job.digest(), recovered.fresh_start)
            self._boot = secrets.token_hex(8)
            self.opened = Training(
                job, self.machine, (store, recovered), self.checkpoints_of(recovered.job_digest),
                lambda: self._backends(job, self._models),
                lambda job: self._trackers(tracked_in(job, self._directory / TRACKING)), self._clock, self._peers,
                self._checkpoint_after_s,
            )  # fmt: skip
            self.opened.start()

    async def resume(self) -> None:
        if (job := self._kept.read_interrupted_job()) is not None:
            log.warning("event=resume job_digest=%s", job.digest())
            self.load(job)
            await self.start()

    async def stop(self, *, to_resume: bool = False) -> Status:
        """Finish the tracker, end the backend, close the store and go OFFLINE; no change when off. The next life of
        this server boots the job again if that is `to_resume`. Raises ServerFailed, OFFLINE all the same, if tracker or
        backend did not end well."""
        async with self._stopping:
            if not to_resume:
                self._kept.record_engine_off()
            if self.machine.state is not ServerState.OFFLINE:
                self.machine.transition_to(ServerState.OFFLINE)
            if self.opened is not None:
                try:
                    await self.opened.stop()
                except Exception as error:
                    log.error("event=stop_failed error=%r", str(error), exc_info=error)
                    reason = f"{type(error).__name__}: {error}"
                    raise ServerFailed(f"the engine is off, but its last metrics may be lost: {reason}") from error
                finally:
                    self.opened = None
        return self.status()

    async def erase(self, request: EraseRequest) -> Erasure:
        """Erase what can be erased now of an owner's episodes, of whatever training of this server, running or not.
        Raises EngineUnavailable while it boots, StoreUnavailable where the store takes nothing: ask again."""
        episodes, mark = tuple(dict.fromkeys(request.episodes)), fingerprint(request.secret)
        if self.opened is not None:
            await self.opened.rollout.erase(episodes, mark)

        async def erase_written() -> Mapping[str, bool]:
            async with self._stopping:  # nothing boots meanwhile
                running = None if self.opened is None else self.opened.digest
                installation = await asyncio.to_thread(self._kept.installation)
                return await asyncio.to_thread(erase_archived, self._store, installation, mark, episodes, running)

        gone = await asyncio.shield(asyncio.ensure_future(erase_written()))
        erased, left = (tuple(name for name in episodes if gone.get(name) is done) for done in (True, False))
        log.info("event=erased episodes=%d left=%d", len(erased), len(left))
        return Erasure(erased=erased, left=left, unknown=tuple(name for name in episodes if name not in gone))

    def status(self) -> Status:
        found = Status(state=self.machine.state, reason=self.machine.reason)
        if (job := self._job) is None:
            return found
        known: dict[str, Any] = {"job_digest": job.digest(), "group_size": job.group_size, "steps": job.steps}
        if (training := self.opened) is not None:
            rollout = training.rollout
            known |= {name: getattr(training, name) for name in _OF_TRAINING}
            known |= {
                "boot": self._boot,
                "machine": machine(),
                "policy_version": rollout.version,
                "open_episodes": len(rollout.leases),
                "collected_episodes": rollout.groups.collected,
                "needed_episodes": 0 if training.finished else job.episodes_per_step,
                "awaited_evaluations": rollout.unplayed,
                "evaluation_episodes": rollout.pending_evaluations,
                "stillness": training.zero_lr_check,
                "metrics": finite_metrics(training.metrics),
            }
        return found.model_copy(update=known)

    @property
    def _archive(self) -> Archive:
        return Archive(self._store, self._job)

    def checkpoints_of(self, digest: str) -> Path:
        return self._directory / "checkpoints" / digest[:12]


def default_store(directory: Path) -> str:
    """Return the URL of the database in a server directory; ServerFailed for a path that no such URL can hold."""
    if "?" in str(directory.absolute()):
        raise ServerFailed(f"expected a server directory without ? in its path, found {directory.absolute()}")
    return f"sqlite:///{directory.absolute() / 'store.sqlite3'}"
