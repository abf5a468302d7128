"""The workers of an attempt: training client and evaluators, as processes or containers.

Processes are plain children in the attempt's session and process group, each with its log: whoever ends that group, as
the shim does, ends them too.

A container holds the light client and its input alone: training tasks in the client's, hidden ones in an evaluator's.
All it reaches is its gateway, served outside, whose requests `research.isolation.access_policy` judges. What it leaves
is taken from the engine's record, checked, and moved into place. Leaving the context ends and removes every container;
after a kill they end by themselves, as nobody serves their gateways, and the controller removes them.
"""

import asyncio
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Self

from pydantic import ValidationError

from research.environments.catalog import client_files, write_client_files
from research.environments.install import python_path_variables
from research.files import write_bytes
from research.isolation.access_policy import AccessPolicy, model_calls_alone
from research.isolation.mode import EngineThread, one_line
from research.runs import files
from research.runs.files import AttemptFolder, AttemptSpec, Role
from research.text import describe
from sandboxes import ContainerHandle, DockerSandbox, Exit, ExitReason, SandboxError, SandboxSpec
from sandboxes.docker.engine import ContainerEngine
from sandboxes.gateway.gateway import PLAYS, PORTS, SERVER_PORT, Gateway
from sandboxes.gateway.reverse_proxy import PLACEHOLDER, Upstream
from sandboxes.preload import start_spare
from sandboxes.spec import describe_signal, last_lines
from studies.records.design import REWARD, is_expression
from studies.records.runs import ENGINE_GONE, AttemptFailed
from swarm.environments.base import Split, Task
from swarm.environments.custom import is_custom, to_json
from swarm.environments.door import Door
from swarm.environments.registry import get_environment
from swarm.job import knobs_of
from swarm.wire import EVALUATION_STREAM

TAIL_BYTES = 2000
GRACE_S = 20.0
DIED = "died"
"""How a worker failed that ended by itself."""


class ManagedProcess:
    """One process of a group; as a worker it fails by ending by itself."""

    failure = DIED

    def __init__(
        self, process: asyncio.subprocess.Process | subprocess.Popen[bytes], ended: Awaitable[int], log: Path
    ) -> None:
        self._process, self._ended = process, asyncio.ensure_future(ended)
        self._log = log

    @property
    def runs(self) -> bool:
        return self._process.returncode is None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def describe_end(self) -> str:
        """Return how it ended and the end of what it said, in one line."""
        with open(self._log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
        code = self._process.returncode
        ending = "still running" if code is None else f"exit code {code}"
        if code is not None and code < 0:
            ending = f"killed by {describe_signal(-code)}"
        return f"{ending}; it last said: {' | '.join(lines[-3:]) or 'nothing'}"

    async def stop(self) -> None:
        """Ask it to end, and kill it after a while; it has ended then."""
        if self.runs:
            self._process.terminate()
        try:
            await asyncio.wait_for(self.wait(), GRACE_S)
        except TimeoutError:
            if self.runs:  # it may have ended just now
                self._process.kill()
            await self.wait()


class ProcessGroup(AsyncExitStack):
    """Starts processes; leaving its context ends those that still run, the last started first."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    async def start(
        self, module: str, *arguments: str, log: Path, directory: Path | None = None, python: str = sys.executable,
        **environment: str,
    ) -> ManagedProcess:  # fmt: skip
        """Start `python -m module arguments` in `directory`, else the group's; `environment` is added to this one's."""
        # One thread each: those of many processes slow one another down.
        variables = {"OMP_NUM_THREADS": "1", "WANDB_SILENT": "true", **os.environ, **environment}
        log.parent.mkdir(parents=True, exist_ok=True)
        directory = directory or self._directory
        with open(log, "wb") as output:  # noqa: ASYNC230  -- a local file, at once
            forked = start_spare(module, arguments, directory, variables, log) if python == sys.executable else None
            if forked is not None:
                member = ManagedProcess(*forked, log)
            else:
                process = await asyncio.create_subprocess_exec(
                    python, "-m", module, *arguments, cwd=directory, env=variables, stdin=asyncio.subprocess.DEVNULL,
                    stdout=output, stderr=output,
                )  # fmt: skip
                member = ManagedProcess(process, process.wait(), log)
        self.push_async_callback(member.stop)
        return member


MODULE = "swarm.environments"
TRANSCRIPTS = 2
"""Plays that an evaluator of hidden tasks writes down for the report: the same tasks before and after training."""
SEARCH_TRANSCRIPTS = 32
"""Plays of search tasks that each evaluation writes down for the planner, half of them failures."""


class ProcessWorkers:
    """The workers of an attempt as processes of its own group; leaving the context ends those that still run.

    Each works in a folder of its own, which holds what its role is given of a brought environment and is gone once it
    has ended, before the next one begins: hidden tasks are handed to evaluators alone. Nothing stops a process from
    looking elsewhere.
    """

    def __init__(self, processes: ProcessGroup, folder: AttemptFolder, spec: AttemptSpec, url: str, token: str) -> None:
        self._processes, self._folder, self._spec, self._url, self._token = processes, folder, spec, url, token
        self._running: dict[Role, ManagedProcess] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for process in self._running.values():
            await process.stop()
        # What the code of an environment started may write on: that hides no reason why the attempt ended.
        shutil.rmtree(self._folder.worker_dirs, ignore_errors=True)

    async def start(self, role: Role) -> ManagedProcess:
        kept = {self._folder.worker_dir(role) for role, process in self._running.items() if process.runs}
        for earlier in self._folder.worker_dirs.glob("*"):  # given in this life or an earlier one
            if earlier not in kept:
                shutil.rmtree(earlier)
        folder, environment = self._folder.worker_dir(role), environment_of(self._spec, role)
        folder.mkdir(parents=True)
        out = "" if role == "client" else str(self._folder.evaluation(files.evaluation_of(role)))
        arguments = [*play_arguments(self._spec, role, server=self._url, out=out)]
        if is_custom(environment):
            tasks, environments = folder / "tasks.json", folder / ENVIRONMENTS
            write_bytes(tasks, to_json(tasks_of(self._spec, role)).encode(), durable=False)
            write_client_files(environment, environments)
            arguments += ["--environments", str(environments), "--tasks", str(tasks)]
        variables = {"AJET_TOKEN": self._token, **python_path_variables(self._spec.packages)}
        self._running[role] = await self._processes.start(
            MODULE, *arguments, log=self._folder.log(role), directory=folder, **variables
        )
        return self._running[role]

    def refused(self) -> Mapping[str, int]:
        return {}  # what processes ask is not observed


def tasks_of(spec: AttemptSpec, role: Role) -> tuple[Task, ...]:
    """Return the tasks that a role is given: the client's are for training, an evaluator's are hidden from it."""
    split: Split = "train" if role == "client" else spec.run.metric.split
    return tuple(get_environment(environment_of(spec, role)).tasks(split))


def environment_of(spec: AttemptSpec, role: Role) -> str:
    other = spec.other_environment if role == "evaluator-other" else None
    return other or spec.run.environment


def play_arguments(spec: AttemptSpec, role: Role, *, server: str, out: str) -> tuple[str, ...]:
    """Return the arguments with which `swarm.environments` plays a role; an evaluator writes to `out`."""
    run = spec.run
    seed = run.seed if role == "client" else run.task_seed
    played = knobs_of(run.job if role in ("client", "evaluator-other") else run.metric.evaluated(run.job))
    elsewhere = role == "evaluator-other" and not run.metric.also_own  # in another environment, with knobs of its own
    knobs = ("--knobs", json.dumps(played)) if played and not elsewhere else ()
    # a player's plays all end in a quarter of the time: it does not draw a run out, which then would have no say
    limit_s = (spec.time_limit_s or 4 * spec.play_s) / 4 if player_of(spec, role) else spec.play_s
    bounds = ("--seed", str(seed), "--timeout", f"{limit_s:g}", *knobs)
    common = ("--environment", environment_of(spec, role), "--server", server, *bounds)
    at_once = min(spec.job.sequences_at_once, MOST_PLAYS)
    if role == "client":
        # of a game a turn costs nothing: while half of the plays are at the engine, the others' bundles fill; with
        # staleness, more at once would be older
        most = spec.job.max_concurrency * (1 if is_custom(run.environment) or spec.job.max_staleness else 2)
        concurrency = max(at_once, spec.job.max_concurrency, min(most, spec.job.episodes_per_step))
        code = [(slot, source) for slot, source in run.sources.items() if is_expression(source)]
        expressions = (word for slot, source in code for word in ("--slot", f"{slot}={source}"))
        return ("play", *common, "--concurrency", str(concurrency), *expressions)
    metric, more = run.metric, ("--concurrency", str(at_once)) if at_once > 64 else ()  # what it plays untold
    asked, search = ("evaluate", *common, *more, "--split", metric.split, "--out", out), metric.split == "search"
    kept = ("--transcripts", str(SEARCH_TRANSCRIPTS if search else TRANSCRIPTS))
    if role == "evaluator-during":
        assert metric.schedule is not None
        return (*asked, "--episodes", str(metric.schedule.episodes), "--during", *(kept if search else ()))
    return (*asked, "--episodes", str(metric.episodes), *kept)


MOST_PLAYS: Final = 128
"""Plays at once for which a container's limits have room (`sandboxes.spec.Limits`), where replicas could take more."""
EVALUATION: Final = "evaluation.json"
ENVIRONMENTS: Final = "environments"
"""Where a brought environment lies in a worker's folder, or a container's input."""
SERVER = f"http://127.0.0.1:{SERVER_PORT}"
DOOR = f"http://127.0.0.1:{next(iter(PLAYS))}"
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
    """The workers of an attempt as containers; leaving the context ends and removes them."""

    def __init__(self, engine: ContainerEngine, folder: AttemptFolder, spec: AttemptSpec, url: str, token: str) -> None:
        self._folder, self._spec, self._url, self._token = folder, spec, url, token
        self._sandbox = DockerSandbox(Path(spec.containers), engine)
        self._thread = EngineThread(partial(engine_failures, engine))
        self._workers: list[ContainerWorker] = []
        self._gateways = AsyncExitStack()
        self._watches: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for watch in self._watches:
            watch.cancel()
        try:
            await self._thread.do_shielded(self._sandbox.reap, self._spec.labels())
        finally:
            self._thread.close()
            await self._gateways.aclose()

    async def start(self, role: Role) -> "ContainerWorker":
        tasks = tasks_of(self._spec, role)
        ids = {task.id for task in tasks}
        access = AccessPolicy("train", ids) if role == "client" else AccessPolicy("eval", ids, EVALUATION_STREAM)
        plays = player = None
        if player_of(self._spec, role):
            # Its end, however it comes, fails its plays and nothing else: a run whose arm could end it where it plays
            # badly would be chosen by its result.
            door = await self._gateways.enter_async_context(Door())
            upstream = Upstream(self._url, secrets.token_urlsafe(), model_calls_alone)  # no key that the server knows
            await self._open_gateway(f"{role}-player", upstream, Upstream(door.url, door.player_key, lambda _: None))
            player = await self._thread.do(self._sandbox.run, player_spec(self._spec, role, self._folder))
            self._watches.append(asyncio.create_task(self._watch_player(player, door)))
            plays = Upstream(door.url, door.evaluator_key, lambda _: None)
        gateway = await self._open_gateway(role, Upstream(self._url, self._token, access), plays)
        handle = await self._thread.do(self._sandbox.run, container_spec(self._spec, role, tasks, self._folder))
        worker = ContainerWorker(self._folder, role, handle, self._thread, gateway, player)
        self._workers.append(worker)
        return worker

    async def _open_gateway(self, name: str, upstream: Upstream, plays: Upstream | None) -> Gateway:
        log = self._folder.log(f"egress-{name}")
        gateway = Gateway(self._folder.exchange(name), upstream=upstream, plays=plays, log=log)
        try:
            await self._gateways.enter_async_context(gateway)
        except (SandboxError, OSError) as error:
            raise AttemptFailed("container_refused", one_line(error)) from error
        return gateway

    async def _watch_player(self, handle: ContainerHandle, door: Door) -> None:
        ended = None
        while ended is None:
            await asyncio.sleep(POLL_S)
            with suppress(AttemptFailed):  # an engine that does not answer, as whoever waits for the evaluator sees too
                ended = await self._thread.do(handle.poll)
        door.shut()

    def refused(self) -> Mapping[str, int]:
        """Return the requests that were refused, by who asked and why."""
        counts = ((worker.role, why, count) for worker in self._workers for why, count in worker.refusals.items())
        return {f"{role}: {why}": count for role, why, count in counts}


class ContainerWorker:
    """One container, from its start until what it left is in place."""

    def __init__(
        self, folder: AttemptFolder, role: Role, handle: ContainerHandle, thread: EngineThread, gateway: Gateway,
        player: ContainerHandle | None = None,
    ) -> None:  # fmt: skip
        self.role, self._player = role, player
        self._folder, self._handle, self._thread, self._gateway = folder, handle, thread, gateway
        self._exit: Exit | None = None
        self._said = ""

    @property
    def failure(self) -> str:
        """How it failed, in a word: `died`, `out_of_memory`, ..."""
        return FAILURES.get(self._exit.reason, "died") if self._exit is not None else "killed"

    @property
    def refusals(self) -> dict[str, int]:
        return {why.removeprefix("refused: "): count for why, count in self._gateway.refused.items()}

    async def wait(self) -> int:
        """Wait until it has ended, keep its output, put its evaluation into place; return 0 if all went well."""
        while (ended := await self._thread.do(self._handle.poll)) is None:  # noqa: ASYNC110  -- an engine, when asked
            await asyncio.sleep(POLL_S)
        self._exit = ended
        if self._player is not None:
            await self._thread.do(self._player.stop)
        self._said = await self._thread.do(self._handle.logs, tail_bytes=LOG_BYTES)
        refused = [f"refused {count} times: {why}" for why, count in self.refusals.items()]
        write_bytes(self._folder.log(self.role), "\n".join([self._said, *refused]).encode(), durable=False)
        finished, during = ended.reason == "finished", self.role == "evaluator-during"
        if during or (finished and self.role != "client"):
            results = await self._thread.do(self._handle.results)
            place = self._folder.evaluation(files.evaluation_of(self.role))
            if EVALUATION not in results and not during:
                reason = f"expected {EVALUATION} of the {self.role}; {self.describe_end()}"
                raise AttemptFailed("evaluator_failed", reason)
            if EVALUATION in results:  # however one during training ended: each evaluation in it is whole
                store_evaluation(results[EVALUATION], place, during=during)
        return 0 if finished else ended.code or 1

    async def stop(self) -> None:
        await self._thread.do(self._handle.stop)

    def describe_end(self) -> str:
        ending = "still running" if self._exit is None else self._exit.reason.replace("_", " ")
        if self._exit is not None and self._exit.code is not None:
            ending += f", exit code {self._exit.code}"
        return f"{ending}; it last said: {last_lines(self._said, 3, MOST_LAST_WORDS) or 'nothing'}"


Workers = ProcessWorkers | ContainerWorkers
Worker = ManagedProcess | ContainerWorker
"""A client or an evaluator that runs."""


def container_spec(spec: AttemptSpec, role: Role, tasks: Sequence[Task], folder: AttemptFolder) -> SandboxSpec:
    """Return what runs in the container of a role: the project's command, its tasks, and the way to its gateway."""
    inputs = {"tasks.json": to_json(tasks).encode()}
    arguments = ["--tasks", "/input/tasks.json"]
    if custom := client_files(environment_of(spec, role), ENVIRONMENTS):
        inputs |= custom
        arguments += ["--environments", f"/input/{ENVIRONMENTS}"]
    for slot, source in spec.run.sources.items() if role == "client" else ():
        if not is_expression(source):
            inputs[f"{slot}.py"] = source.encode()
            place = f"/input/{slot}.py"  # the image of a study that began before there were slots knows --reward alone
            arguments += ["--reward", place] if slot == REWARD else ["--slot", f"{slot}={place}"]
    ports = {SERVER_PORT: PORTS[SERVER_PORT]}
    if player_of(spec, role):
        ports |= PLAYS
        arguments += ["--door", DOOR]
    most = 16 << 20 if role == "evaluator-during" else 4 << 20  # bytes: of all evaluations, or of one
    play = play_arguments(spec, role, server=SERVER, out=f"/workspace/results/{EVALUATION}")
    trusted = role != "client" or not spec.run.runs_python
    return SandboxSpec(
        name=container_name(spec.labels(), role), command=("python3", "-m", MODULE, *play, *arguments),
        directory=folder.path, environment={"AJET_TOKEN": PLACEHOLDER}, labels={**spec.labels(), "role": role},
        time_limit_s=spec.time_limit_s, trusted=trusted, image=spec.sandbox.image, files=inputs,
        results={} if role == "client" else {EVALUATION: most}, exchange=folder.exchange(role),
        ports=ports, tied=True,
    )  # fmt: skip


def player_of(spec: AttemptSpec, role: Role) -> Mapping[str, str]:
    """Return the code, by slot, of the player beside a worker; empty where the built-in agent plays."""
    return {} if role == "client" else spec.run.player


def player_spec(spec: AttemptSpec, role: Role, folder: AttemptFolder) -> SandboxSpec:
    """Return what runs in the container of an evaluator's player: an arm's code, and no task. What it says stays there,
    as it may be what it read in hidden tasks."""
    name, code = f"{role}-player", player_of(spec, role)
    slots = (word for slot in code for word in ("--slot", f"{slot}=/input/{slot}.py"))
    command = ("python3", "-m", MODULE, "player", "--server", SERVER, "--door", DOOR, *slots)
    return SandboxSpec(
        name=container_name(spec.labels(), name), command=command, directory=folder.path,
        environment={"AJET_TOKEN": PLACEHOLDER}, labels={**spec.labels(), "role": name},
        time_limit_s=spec.time_limit_s, trusted=False, image=spec.sandbox.image,
        files={f"{slot}.py": source.encode() for slot, source in code.items()}, exchange=folder.exchange(name),
        ports={SERVER_PORT: PORTS[SERVER_PORT], **PLAYS}, tied=True,
    )  # fmt: skip


def container_name(labels: Mapping[str, str], role: str) -> str:
    return f"ajet-{labels['study']}-{labels['run_id']}-a{labels['attempt']}-{role}"


def store_evaluation(path: Path, to: Path, *, during: bool) -> None:
    """Put a container's evaluation into place, or add those `during` training; AttemptFailed for what is none."""
    try:
        if during:
            files.write_evaluations(to, [*files.read_evaluations(to), *files.read_evaluations(path)])
        else:
            files.Evaluation.model_validate_json(data := path.read_bytes())
            write_bytes(to, data)
    except ValueError as error:
        said = describe(error) if isinstance(error, ValidationError) else error
        raise AttemptFailed("evaluator_failed", f"{EVALUATION} of the evaluator: {said}") from error


@contextmanager
def engine_failures(engine: ContainerEngine) -> Iterator[None]:
    """Raise AttemptFailed for a SandboxError inside: the container's failure, or the engine's if that is gone."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except SandboxError as error:
        try:
            reachable = bool(engine.client.ping())
        except (DockerException, RequestException):
            reachable = False
        raise AttemptFailed("container_refused" if reachable else ENGINE_GONE, one_line(error)) from error
