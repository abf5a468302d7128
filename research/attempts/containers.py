"""The client and the evaluators of an attempt in containers, each with an image, tasks and a gateway of its own.

A container holds the light client, its input and nothing else: the training tasks in the client's, the hidden ones in
an evaluator's alone. All it can reach is its gateway, served here, outside; what it may ask there is judged by
`research.isolation.access_policy`. What it leaves is taken from the engine's own record, checked, and moved into place.

It promises that leaving the context ends and removes every container of the attempt. An attempt that is killed
leaves that to the controller (`research.attempts.launcher`), and to the containers' own time limits.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pydantic import ValidationError

from research.attempts.workers import MODULE, Account, environment_of, evaluation_of, playing, tasks_of
from research.environments.record import client_files
from research.files import write_bytes
from research.isolation.access_policy import AccessPolicy
from research.isolation.engine_thread import EngineThread
from research.isolation.mode import one_line
from research.results.attempt_files import AttemptFolder, AttemptSpec, Evaluation, Role
from research.results.during import read_during, write_during
from research.results.failure_codes import ENGINE_GONE, AttemptFailed
from research.validation import describe
from sandboxes import ContainerHandle, DockerSandbox, Exit, ExitReason, SandboxError, SandboxSpec
from sandboxes.docker.archive import pack
from sandboxes.docker.engine import ContainerEngine
from sandboxes.gateway.gateway import PLACEHOLDER, PORTS, SERVER_PORT, Gateway, Upstream
from sandboxes.shown import last_lines
from swarm.environments.base import Task
from swarm.environments.tasks_file import to_json
from swarm.wire import EVALUATION_STREAM

EVALUATION: Final = "evaluation.json"
ENVIRONMENTS: Final = "environments"
"""Where a brought environment lies in a container's input."""
EVALUATION_BYTES = 4 << 20
ALL_EVALUATIONS_BYTES = 16 << 20
SERVER = f"http://127.0.0.1:{SERVER_PORT}"
POLL_S = 0.2
LOG_BYTES = 1 << 20
MOST_LAST_WORDS = 600
"""Characters: they go into reports, and to people's terminals."""
FAILURES: Mapping[ExitReason, str] = {
    "error": "died", "out_of_memory": "out_of_memory", "timeout": "timeout", "stopped": "killed",
    "killed": "killed", "lost": "killed",
}  # fmt: skip
"""What follows `client_` or `evaluator_` in the code of an attempt that failed with its container."""


class ContainerWorkers:
    """The containers of one attempt."""

    def __init__(self, engine: ContainerEngine, folder: AttemptFolder, spec: AttemptSpec, url: str, token: str) -> None:
        self._sandbox = DockerSandbox(Path(spec.containers), engine)
        self._thread = EngineThread(partial(engine_failures, engine))
        self._folder = folder
        self._spec = spec
        self._upstream = (url, token)
        self._workers: list[ContainerWorker] = []
        self._gateways = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._thread.see_through(self._sandbox.reap, self._spec.labels())
        finally:
            self._thread.close()
            await self._gateways.aclose()

    async def start(self, role: Role) -> ContainerWorker:
        """Start the container of a role, behind a gateway of its own."""
        tasks = tasks_of(self._spec, role)
        ids = {task.id for task in tasks}
        access = AccessPolicy("train", ids) if role == "client" else AccessPolicy("eval", ids, EVALUATION_STREAM)
        gateway = Gateway(
            self._folder.exchange(role),
            upstream=Upstream(*self._upstream, access),
            log=self._folder.log(f"egress-{role}"),
        )
        try:
            await self._gateways.enter_async_context(gateway)
        except (SandboxError, OSError) as error:
            raise AttemptFailed("container_refused", one_line(error)) from error
        access.watch()
        handle = await self._thread.do(self._sandbox.run, container_spec(self._spec, role, tasks, self._folder))
        worker = ContainerWorker(self._folder, role, handle, self._thread, gateway, access)
        self._workers.append(worker)
        return worker

    def account(self) -> Account:
        """Return what is known of the containers so far."""
        return Account(
            {f"{worker.role}: {why}": count for worker in self._workers for why, count in worker.refused().items()},
            {evaluation_of(worker.role): worker.sha256 for worker in self._workers if worker.sha256},
            {f"{worker.role}_start": worker.start_s for worker in self._workers if worker.start_s is not None},
        )


class ContainerWorker:
    """One container, from its start until what it left is in place."""

    def __init__(
        self,
        folder: AttemptFolder,
        role: Role,
        handle: ContainerHandle,
        thread: EngineThread,
        gateway: Gateway,
        access: AccessPolicy,
    ) -> None:
        self.role = role
        self.sha256 = ""
        """Of the evaluation that it handed over."""
        self._folder = folder
        self._handle = handle
        self._thread = thread
        self._gateway = gateway
        self._access = access
        self._exit: Exit | None = None
        self._said = ""

    @property
    def failure(self) -> str:
        """How it failed, in a word."""
        return FAILURES.get(self._exit.reason, "died") if self._exit is not None else "killed"

    @property
    def start_s(self) -> float | None:
        """Seconds from its launch to its first model call."""
        return self._access.first_call_s

    async def ended(self) -> int:
        """Wait until it has ended, keep its output, put its evaluation into place; return 0 if all went well."""
        self._exit = ended = await self._over()
        self._said = await self._thread.do(self._handle.logs, tail_bytes=LOG_BYTES)
        self._write_log()
        if self.role == "evaluator-during":  # however it ended: each evaluation in it is whole
            await self._take_evaluations()
        if ended.reason != "finished":
            return ended.code or 1
        if self.role not in ("client", "evaluator-during"):
            await self._take_evaluation()
        return 0

    async def stop(self) -> None:
        """End the container before its work is done."""
        await self._thread.do(self._handle.stop)

    def last_words(self) -> str:
        """Return how it ended and the end of what it said, in one line."""
        said = last_lines(self._said, 3, MOST_LAST_WORDS)
        return f"{_ending(self._exit)}; it last said: {said or 'nothing'}"

    def refused(self) -> dict[str, int]:
        """Return how often it was refused what, by the reason."""
        return {why.removeprefix("refused: "): count for why, count in self._gateway.refused.items()}

    async def _over(self) -> Exit:
        while True:
            if (ended := await self._thread.do(self._handle.poll)) is not None:
                return ended
            await asyncio.sleep(POLL_S)

    def _write_log(self) -> None:
        refused = [f"refused {count} times: {why}" for why, count in self.refused().items()]
        write_bytes(self._folder.log(self.role), "\n".join([self._said, *refused]).encode(), durable=False)

    async def _take_evaluation(self) -> None:
        results = await self._thread.do(self._handle.results)
        if EVALUATION not in results:
            raise AttemptFailed("evaluator_failed", f"expected {EVALUATION} of the {self.role}; {self.last_words()}")
        self.sha256 = take_evaluation(results[EVALUATION].path, self._folder.evaluation(evaluation_of(self.role)))

    async def _take_evaluations(self) -> None:
        """Put the evaluations during training beside those that were kept; it hands over none where none was due."""
        results = await self._thread.do(self._handle.results)
        if EVALUATION in results:
            self.sha256 = take_evaluations(results[EVALUATION].path, self._folder.evaluation("during"))


def container_spec(spec: AttemptSpec, role: Role, tasks: Sequence[Task], folder: AttemptFolder) -> SandboxSpec:
    """Return what runs in the container of a role: the project's command, its tasks, and the way to its gateway."""
    files = {"tasks.json": to_json(tasks).encode()}
    arguments = ["--tasks", "/input/tasks.json"]
    if brought := client_files(environment_of(spec, role), ENVIRONMENTS):
        files |= brought
        arguments += ["--environments", f"/input/{ENVIRONMENTS}"]
    if role == "client" and spec.run.code:
        files["reward.py"] = spec.run.code.encode()
        arguments += ["--reward", "/input/reward.py"]
    played = playing(spec, role, server=SERVER, out=f"/workspace/results/{EVALUATION}")
    return SandboxSpec(
        name=container_name(spec.labels(), role),
        command=("python3", "-m", MODULE, *played, *arguments),
        directory=folder.path,
        environment={"AJET_TOKEN": PLACEHOLDER},
        labels={**spec.labels(), "role": role},
        time_limit_s=spec.time_limit_s,
        trusted="reward.py" not in files,
        image=spec.sandbox.image,
        archive=pack(files),
        results=_results(role),
        exchange=folder.exchange(role),
        ports={SERVER_PORT: PORTS[SERVER_PORT]},
    )


def container_name(labels: Mapping[str, str], role: Role) -> str:
    """Return the name of the container of a role, by the labels of its attempt."""
    return f"ajet-{labels['study']}-{labels['run_id']}-a{labels['attempt']}-{role}"


def _results(role: Role) -> dict[str, int]:
    if role == "client":
        return {}
    return {EVALUATION: ALL_EVALUATIONS_BYTES if role == "evaluator-during" else EVALUATION_BYTES}


def take_evaluation(path: Path, to: Path) -> str:
    """Put a container's evaluation into place and return its sha256; raises AttemptFailed for one that is none."""
    data = path.read_bytes()
    try:
        Evaluation.model_validate_json(data)
    except ValidationError as error:
        raise AttemptFailed("evaluator_failed", f"{EVALUATION} of the evaluator: {describe(error)}") from error
    return write_bytes(to, data)


def take_evaluations(path: Path, to: Path) -> str:
    """Add a container's evaluations during training to those in place; return the sha256 of what it handed over."""
    try:
        write_during(to, [*read_during(to), *read_during(path)])
    except ValidationError as error:
        raise AttemptFailed("evaluator_failed", f"{EVALUATION} of the evaluator: {describe(error)}") from error
    except ValueError as error:
        raise AttemptFailed("evaluator_failed", f"{EVALUATION} of the evaluator: {error}") from error
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _ending(ended: Exit | None) -> str:
    if ended is None:
        return "still running"
    how = ended.reason.replace("_", " ")
    return how if ended.code is None else f"{how}, exit code {ended.code}"


@contextmanager
def engine_failures(engine: ContainerEngine) -> Iterator[None]:
    """Raise AttemptFailed for a SandboxError inside: the container's failure, or the engine's if that is gone."""
    try:
        yield
    except SandboxError as error:
        code = "container_refused" if _answers(engine) else ENGINE_GONE
        raise AttemptFailed(code, one_line(error)) from error


def _answers(engine: ContainerEngine) -> bool:
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        return bool(engine.client.ping())
    except (DockerException, RequestException):
        return False
