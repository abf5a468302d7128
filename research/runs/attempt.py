"""One attempt at a run: `python -m research.runs.attempt FOLDER`, run in a sandbox.

It starts a swarm server, has the job trained by a client, lets the harness's evaluator measure hidden tasks before,
after and, where the design asks for it, during training, and stops the server so that its W&B log is whole. It promises

- `outcome.json` appears only when everything it speaks of is on disk, and says what failed and why;
- a training that breaks a locked limit is stopped by that rule alone, and the policy it reached is evaluated all the
  same, so that the run counts (`studies.checks.alarms`); it stays stopped in an attempt that goes on from this one;
- nothing it started outlives it (if it is killed, the sandbox ends its process group, the controller its containers).

It judges nothing: the study collects from the files, whatever the outcome says.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError

from research.errors import NotReady
from research.files import FULL_EXIT, has_room, is_full, read_json, write_json
from research.installation.base_job import python_of, require_unchanged
from research.isolation.mode import one_line, require_isolation
from research.runs import files
from research.runs.provenance import file_hash, file_hashes, observe_conditions, replay
from research.runs.remote import RemoteServer
from research.runs.wandb_log import TrackedRun, TrainingMonitor, read_tracking
from research.runs.workers import ContainerWorkers, ManagedProcess, ProcessGroup, ProcessWorkers, Worker, Workers
from sandboxes import SandboxError
from sandboxes.docker.engine import ContainerEngine, connect
from sandboxes.preload import reserve
from studies.checks.conditions import CollectError
from studies.records import runs as records
from studies.records.runs import SERVER_AWAY, AttemptFailed
from swarm.client import AsyncSwarmClient
from swarm.client.rollout import retry_until_ready
from swarm.client.threads import background
from swarm.environments.registry import add_folder, get_environment
from swarm.errors import EngineUnavailable, InvalidRequest, SwarmError, Unreachable
from swarm.job import PathModel
from swarm.wire import ServerState, Status

BIND_TIMEOUT_S = 600.0
"""For the server to bind, beside other runs that do the same; one that ends before is noticed at once. The model is
loaded afterwards, for however long it takes."""
ANSWER_TIMEOUT_S = 10.0
POLL_S = 1.0
CHECKPOINT_AFTER_S = 180.0
"""Most training that is learned again after a crash, beside what the job's own checkpoints say, as long as writing one
takes at most 5 s; else 33 times what it took (`swarm.training.checkpoints`). Shorter runs have none of these."""
MOST_KEPT = 10
"""Checkpoints that a job keeps at most for the server to write more of them: a job that keeps them all to keep its
tokens (`research.proposals.arms`) would fill the disk."""
REPLAYS_S = 3600.0
"""For a server to serve that learns batches again."""


class Attempt:
    """One attempt, from booting its server to stopping it."""

    def __init__(self, folder: files.AttemptFolder, spec: files.AttemptSpec) -> None:
        self._folder = folder
        self._spec = spec
        self._job = spec.job_with_tracking(folder)
        self._began = time.monotonic()
        self._stages: dict[str, float] = {}
        self._refused: Callable[[], Mapping[str, int]] = dict
        self._progress = files.AttemptProgress(stage="boot", steps=self._job.steps, seconds=0.0)
        self._remote: RemoteServer | None = None
        self._training = TrainingMonitor(folder, spec, self._read_tracking)
        self._seen = records.Conditions()
        self._resumed_at: int | None = None

    async def run(self) -> files.AttemptOutcome:
        status: Literal["finished", "failed"] = "finished"
        code, reason = "ok", ""
        try:
            async with ProcessGroup(self._folder.path) as processes:
                await self._perform(processes)
        except AttemptFailed as failure:
            status, code, reason = "failed", failure.code, failure.reason
            if not has_room(self._folder.path):
                code, reason = records.DISK_FULL, f"the disk is full, and {reason}"
        return files.AttemptOutcome(
            status=status, code=code, reason=reason, seconds=time.monotonic() - self._began, stages=self._stages,
            refused=self._refused(), seen=self._seen,
            stopped_by=self._training.alarm.code if self._training.alarm is not None else "",
            files=file_hashes(self._folder, self._spec) if status == "finished" else {}, resumed_at=self._resumed_at,
            step=self._progress.step if status == "failed" and self._spec.run.sources else None,
        )  # fmt: skip

    async def _perform(self, processes: ProcessGroup) -> None:
        server: ManagedProcess | RemoteServer
        with self._stage("boot"):
            if isinstance(model := self._job.model, PathModel):  # holds it, at the last moment, what was named?
                try:
                    await asyncio.to_thread(require_unchanged, model, Path(self._spec.models))
                except InvalidRequest as error:
                    raise AttemptFailed(records.MODEL_CHANGED, error.message) from error
            engine: ContainerEngine | None = None
            if self._spec.sandbox.kind == "docker":
                try:
                    engine = await asyncio.to_thread(connect, os.environ)
                except SandboxError as error:
                    raise AttemptFailed(records.ENGINE_GONE, one_line(error)) from error
            elif self._spec.run.runs_python:
                require_isolation(self._spec.sandbox, f"the code of {self._spec.run.arm}")
            if self._spec.server:
                self._remote = server = RemoteServer(self._folder, self._spec)
                url, tokens = server.url, {"admin": server.token, "client": await server.client_key()}
            else:
                server, url, tokens = await self._start_server(processes)
        workers = self._workers(engine, processes, url, tokens["client"])
        self._refused = workers.refused
        async with workers, AsyncSwarmClient(url, tokens["admin"]) as client:
            try:
                await _run_watched(self._work(workers, client), self._watch(client, server))
            except AttemptFailed as failure:
                raise await self._find_cause(failure, client) from failure
            finally:
                if self._remote is not None:  # also where the attempt is told to end: others wait for the server
                    await asyncio.shield(asyncio.ensure_future(self._remote.let_go(client)))

    def _read_tracking(self, directory: Path, run_id: str) -> TrackedRun:
        if self._remote is not None:
            try:
                background().run(self._remote.fetch_log())
            except AttemptFailed as failure:
                raise CollectError("tracking_unreadable", failure.reason) from failure
        return read_tracking(directory, run_id)

    def _workers(self, engine: ContainerEngine | None, processes: ProcessGroup, url: str, token: str) -> Workers:
        if engine is None:
            return ProcessWorkers(processes, self._folder, self._spec, url, token)
        return ContainerWorkers(engine, self._folder, self._spec, url, token)

    async def _start_server(self, processes: ProcessGroup) -> tuple[ManagedProcess, str, dict[str, str]]:
        (self._folder.server / "server.json").unlink(missing_ok=True)  # of a server that was killed
        arguments = (
            "--directory", str(self._folder.server), "--models", self._spec.models,
            *(("--environments", self._spec.environments) if self._spec.environments else ()),
            "--idle",  # the job it may take up by itself is tracked as the earlier attempt's
            *(("--checkpoint-after", f"{CHECKPOINT_AFTER_S:g}") if self._job.checkpoints_kept <= MOST_KEPT else ()),
        )  # fmt: skip
        try:
            python = python_of(self._job.backend)
        except NotReady as missing:
            raise AttemptFailed("boot_failed", one_line(missing)) from missing
        log = self._folder.log("server")
        server = await processes.start("swarm.server", *arguments, log=log, python=python)
        ended = asyncio.create_task(server.wait())
        deadline = time.monotonic() + BIND_TIMEOUT_S
        while (bound := read_json(self._folder.server / "server.json")) is None:
            if ended.done():
                raise AttemptFailed("boot_failed", f"the swarm server did not start: {server.describe_end()}")
            if time.monotonic() > deadline:
                raise AttemptFailed("boot_failed", f"expected the swarm server to bind within {BIND_TIMEOUT_S:g} s")
            await asyncio.sleep(0.05)
        return server, bound["url"], read_json(self._folder.server / "tokens.json") or {}

    async def _work(self, workers: Workers, client: AsyncSwarmClient) -> None:
        with self._stage("boot"):
            await self._serve(client)
        if not self._spec.initial_sha256:
            with self._stage("initial"):
                await self._evaluate(workers, "evaluator-initial")
        with self._stage("train"):
            await self._train(workers, client)
        if self._spec.other_environment is not None:
            with self._stage("other"):
                await self._evaluate(workers, "evaluator-other")
        with self._stage("final"):
            if not records.is_untrained_run(self._spec.run):  # whose policy is the one that was evaluated
                await self._evaluate(workers, "evaluator-final")
            if self._spec.run.runs_python:
                environment = get_environment(self._spec.run.environment).with_knobs(self._job.environment_args)
                rewritten = not {"prompt", "agent"}.isdisjoint(self._spec.run.slots)
                rng = random.SystemRandom()
                audit = await _call_server(lambda: replay(client, environment, rng, rewritten=rewritten))
                if audit.complaint is not None:
                    raise AttemptFailed("foreign_training", audit.complaint)
            self._seen = await observe_conditions(client, self._folder, self._spec)
        with self._stage("stop"):
            await _call_server(client.stop)
            if self._remote is not None:
                await self._remote.complete_log()

    async def _open_training(self, client: AsyncSwarmClient, limit_s: float) -> Status:
        if self._remote is not None:
            return await self._remote.take(client, self._job, limit_s)
        status: Status = await _call_server(lambda: client.ensure_training(self._job, timeout_s=limit_s))
        return status

    async def _serve(self, client: AsyncSwarmClient) -> None:
        resumes, kept, shared = self._spec.resumes, self._folder.kept, self._spec.initial_of
        if expected := self._spec.initial_sha256:
            if file_hash(self._folder.evaluation("initial")) != expected:
                source = f"run {shared}" if shared else f"attempt {resumes}"
                reason = f"expected the evaluation before training of {source}; it is gone, or was changed"
                raise AttemptFailed("evaluation_unreadable", reason)
            self._report_success("initial")
        if resumes is None:
            limit = self._spec.time_limit_s or BIND_TIMEOUT_S
            await self._open_training(client, limit)
            return
        status = await self._open_training(client, max(REPLAYS_S, self._spec.time_limit_s or 0.0))
        self._resumed_at = status.step
        if self._spec.evaluate_after:
            if (file_hash(kept) or "") != self._spec.during_sha256:
                reason = f"expected the evaluations during training of attempt {resumes}; they were changed"
                raise AttemptFailed("evaluation_unreadable", reason)
            evaluations = files.evaluations_before(files.read_evaluations(kept), status.step)
            if missing := files.missing_versions(self._spec, evaluations, status.step):
                reason = f"its training was at step {status.step}, and evaluations are gone: after step {missing[0]}"
                raise AttemptFailed("evaluation_incomplete", f"{reason} for one")
            files.write_evaluations(self._folder.evaluation("during"), evaluations)
        await self._training.load_history(status.step)

    async def _evaluate(self, workers: Workers, role: files.Role) -> None:
        worker = await workers.start(role)
        self._require_good_end(role, worker, await worker.wait())
        self._report_success(files.evaluation_of(role))

    def _report_success(self, which: files.EvaluationName) -> None:
        out = self._folder.evaluation(which)
        if not (episodes := (read_json(out) or {}).get("episodes")):
            raise AttemptFailed("evaluator_failed", f"expected the evaluator to write {out.name}; found none")
        if which != "other":  # which is of other tasks
            self._report(hidden_success=sum(bool(episode["success"]) for episode in episodes) / len(episodes))

    async def _train(self, workers: Workers, client: AsyncSwarmClient) -> None:
        if self._training.alarm is None:  # else it ended the training of an earlier attempt
            roles: tuple[files.Role, ...] = ("evaluator-during", "client") if self._spec.evaluate_after else ("client",)
            players: dict[files.Role, tuple[Worker, asyncio.Task[int]]] = {}
            for role in roles:
                worker = await workers.start(role)
                players[role] = worker, asyncio.create_task(worker.wait())
            trained, stops = players["client"][1], asyncio.create_task(self._training.stops.wait())
            try:
                while not (trained.done() or stops.done()):
                    open_ends = {ended for _, ended in players.values() if not ended.done()}
                    await asyncio.wait({*open_ends, stops}, return_when=asyncio.FIRST_COMPLETED)
                    for role, (worker, ended) in players.items():
                        if ended.done():
                            self._require_good_end(role, worker, ended.result())
                if trained.done():
                    status = await _call_server(client.status)
                    if not status.finished:
                        reason = f"the client ended at step {status.step} of {status.steps}; expected all to be done"
                        raise AttemptFailed("client_stopped", reason)
                    for role, (worker, ended) in players.items():  # one that evaluates ends once it sees that
                        self._require_good_end(role, worker, await ended)
                elif self._job.external_advantages:  # a batch that its client leaves behind would never be learned
                    while not trained.done() and (await _call_server(client.advantages)).rewards:  # noqa: ASYNC110
                        await asyncio.sleep(POLL_S)
            finally:
                stops.cancel()
                for worker, ended in players.values():
                    with suppress(AttemptFailed):  # it cannot hand over what it has: another error says why
                        if not ended.done():
                            await worker.stop()
                        await ended
                    ended.cancel()
        # Until no update is in progress: the policy that is evaluated is the one the log ends with.
        while (status := await _peek(client)) is None or status.updating:  # noqa: ASYNC110  -- a server tells when asked
            await asyncio.sleep(POLL_S)

    def _require_good_end(self, role: files.Role, worker: Worker, code: int) -> None:
        if code:
            who = "client" if role == "client" else "evaluator"
            reason = f"the {who} ended before its work was done: {worker.describe_end()}"
            raise AttemptFailed(f"{who}_{worker.failure}", reason)

    async def _find_cause(self, failure: AttemptFailed, client: AsyncSwarmClient) -> AttemptFailed:
        """Return the cause of a failure: a training that breaks down ends its client, whose end may be noticed
        first."""
        try:
            status = await _peek(client)
        except AttemptFailed:
            return failure
        if status is None:  # whoever plays ends with a server elsewhere that is away; code could have brought it down
            away = self._remote is not None and not self._spec.run.sources
            return AttemptFailed(SERVER_AWAY, f"no answer from {client.url}; {failure.reason}") if away else failure
        self._report(step=status.step)
        if self._remote is not None:
            try:
                self._remote.check(status)
            except AttemptFailed as cause:
                return cause
        if not status.not_finite:
            return failure
        with suppress(SwarmError):  # completes its log: what that does not show does not count
            await client.stop()
        return AttemptFailed(records.TRAINING_NAN, f"the training broke down: {status.reason}")

    async def _watch(self, client: AsyncSwarmClient, server: ManagedProcess | RemoteServer) -> None:
        ended = asyncio.create_task(server.wait())
        self._training.reset_silence()
        try:
            while not ended.done():
                if (status := await _peek(client)) is not None:
                    await self._handle_status(status)
                if (alarm := self._training.check_silence()) is not None:
                    raise AttemptFailed("server_silent" if self._remote is None else SERVER_AWAY, alarm.sentence)
                await asyncio.wait({ended}, timeout=POLL_S)
        finally:
            ended.cancel()
        raise AttemptFailed("server_died", f"the swarm server is gone: {server.describe_end()}")

    async def _handle_status(self, status: Status) -> None:
        if self._remote is not None and self._progress.stage not in ("boot", "stop"):
            self._remote.check(status)
        if status.state is ServerState.FAILED:
            raise AttemptFailed("server_failed", f"the swarm server failed: {status.reason}")
        await self._training.update(status)
        if self._progress.stage == "train" and self._training.evaluation_wait_s(status) > 2 * self._spec.play_s:
            said = f"training waits at step {status.step} for {status.awaited_evaluations} evaluation episodes"
            raise AttemptFailed("evaluator_timeout", f"{said}, and none ended for {2 * self._spec.play_s:g} s")
        refused = sum(self._refused().values())
        success, reward = (status.metrics.get(f"critic/{name}/mean") for name in ("success", "rewards"))
        self._report(step=status.step, train_success=success, train_reward=reward, refused=refused)

    @contextmanager
    def _stage(self, stage: files.Stage) -> Iterator[None]:
        began = time.monotonic()
        self._report(stage=stage)
        try:
            yield
        finally:
            self._stages[stage] = self._stages.get(stage, 0.0) + time.monotonic() - began

    def _report(self, **news: Any) -> None:
        seconds = time.monotonic() - self._began
        self._progress = self._progress.model_copy(update={**news, "seconds": seconds})
        write_json(self._folder.progress, self._progress.model_dump(mode="json"), durable=False)


async def _run_watched(work: Coroutine[Any, Any, None], watch: Coroutine[Any, Any, None]) -> None:
    """Await `work`, unless `watch` raises first; where both fail, the error of `watch` is raised, which explains it."""
    working, watching = asyncio.create_task(work), asyncio.create_task(watch)
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not watching.done() and working.exception() is not None:
            await asyncio.wait({watching}, timeout=2 * POLL_S)
        await (watching if watching.done() else working)
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _call_server(call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await retry_until_ready(call, (Unreachable,))  # one lost connection is no word of the server's
    except SwarmError as error:
        raise AttemptFailed("server_refused", f"the swarm server refused: {error}") from error


async def _peek(client: AsyncSwarmClient) -> Status | None:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await client.status()
    except (Unreachable, EngineUnavailable, TimeoutError):
        return None
    except SwarmError as error:
        raise AttemptFailed("server_refused", f"the swarm server refuses its status: {error}") from error


async def run_attempt(folder: files.AttemptFolder) -> int:
    """Make the attempt that the folder specifies and write its outcome, but for SIGTERM; return the exit code."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def cancel() -> None:  # once: its shim sends another SIGTERM, which must not interrupt the cleanup
        loop.add_signal_handler(signal.SIGTERM, lambda: None)
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, cancel)
    spec = files.AttemptSpec.model_validate(read_json(folder.spec))
    if spec.environments:
        add_folder(Path(spec.environments))
    outcome = await Attempt(folder, spec).run()
    write_json(folder.outcome, outcome.model_dump(mode="json"))
    return 0 if outcome.status == "finished" else 1


def main() -> int:
    folder = files.AttemptFolder(Path(sys.argv[1]).absolute())
    reserve(1 + len(get_args(files.Role)))  # for a server and each of its workers
    try:
        return asyncio.run(run_attempt(folder))
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    except OSError as error:
        if not is_full(error):
            raise
        return FULL_EXIT
    except ValidationError as error:
        sys.stderr.write(f"expected the spec of an attempt in {folder.spec}: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
