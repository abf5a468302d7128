"""What is asked, checked.

An agent or a reward is a Python file with a function, in a folder whose other files it may import. The whole folder
goes into a container, so it is bounded, and what is no plain file is refused; whatever begins with a dot (keys,
settings, version control) and Python's caches stay here. Nothing of it is run or imported on this side.
"""

import ast
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import typer
from pydantic import BaseModel

from research.errors import BadInput
from research.installation.servers import HOW_TO_START, Server, ServerConnection
from research.text import SECRET_NAME
from sandboxes import SandboxError
from sandboxes.docker.launch import read_folder
from sandboxes.gateway.egress import Destination
from sandboxes.spec import Limits
from swarm.client import SwarmClient
from swarm.client.async_client import EPISODE_TIMEOUT_S
from swarm.environments import Split, Task, get_environment
from swarm.environments.custom import check_tasks, is_custom, read_tasks
from swarm.errors import EngineUnavailable
from swarm.job import Job

MOST_BYTES = 16 << 20
MOST_FILES = 1000
Kind = Literal["agent", "reward"]
MODULE = "swarm.environments"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmg])i?b?", re.IGNORECASE)
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
EVALUATED: Split = "search"
"""The split that is evaluated; the hidden one is for the harness's evaluators."""
LEAST_MEMORY, MOST_MEMORY = 64 << 20, 16 << 40
MOST_STREAM = 128
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = frozenset({"PYTHONPATH", "PYTHONHOME", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "HOME", "TMPDIR"})

THREADS_A_PLAY, FILES_A_PLAY = 4, 16
EVALUATED_EPISODES = 256
AgentArgument = Annotated[str | None, typer.Argument(
    help="FILE.py[:NAME] or a folder with agent.py; the environment's own agent when left out.",
)]  # fmt: skip
TasksOption = Annotated[Path | None, typer.Option(help='Tasks of your own: JSON, [{"id": ..., "data": {...}}].')]


@dataclass(frozen=True, slots=True)
class AgentFiles:
    """An agent or a reward: `function` of `file`, a name within `folder`."""

    folder: Path
    file: str
    function: str

    @classmethod
    def locate(cls, text: str, kind: Kind = "agent") -> Self:
        """Return the agent at `FILE.py[:NAME]` or `FOLDER[:NAME]` (its agent.py), or a reward likewise; BadInput."""
        place, _, function = text.partition(":")
        path = Path(place).expanduser().absolute()
        file = path / f"{kind}.py" if path.is_dir() else path
        if file.suffix != ".py" or not file.is_file():
            found = f"a folder without {kind}.py" if path.is_dir() else "no such file of Python"
            raise BadInput(
                f"expected the {kind} as FILE.py, FILE.py:NAME or a folder with {kind}.py; {place!r} is {found}"
            )
        if function and not function.isidentifier():
            raise BadInput(f"expected the name of a function after the colon, as FILE.py:play; found {function[:60]!r}")
        try:
            ast.parse(file.read_bytes(), file.name)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the latter: of what nests too deep
            line = getattr(error, "lineno", None)
            where = f", line {line}" if line else ""
            raise BadInput(f"expected Python in {file}{where}: {getattr(error, 'msg', error)}; mend it") from error
        return cls(file.parent, file.name, function or kind)

    def locator_in(self, folder: str | Path) -> str:
        return f"{folder}/{self.file}:{self.function}"

    def read(self) -> Mapping[str, bytes]:
        try:
            return read_folder(self.folder, most_bytes=MOST_BYTES, most_files=MOST_FILES)
        except SandboxError as error:
            raise BadInput(
                f"the whole folder of {self.file} goes into the container: {error}; give it one of its own"
            ) from error


class RunOptions(BaseModel):
    """Options of `ajet client run`: who plays what, how much of it, and what the agent's process may have."""

    agent: AgentArgument = None
    server: Server = None
    environment: Annotated[str | None, typer.Option(help="Whose tasks are played; the job's when left out.")] = None
    tasks: TasksOption = None
    evaluate: Annotated[bool, typer.Option("--eval", help="Evaluate the policy as it is; nothing is trained.")] = False
    evaluations: Annotated[bool, typer.Option(
        "--evaluations", help="Evaluate whenever training waits for it (eval_every), beside who trains.",
    )] = False  # fmt: skip
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes of an evaluation by --eval; 256.")] = None
    reward: Annotated[
        str | None, typer.Option(help="FILE.py[:NAME] that judges the environment's own agent (docs/agents.md).")
    ] = None
    stream: Annotated[str, typer.Option(help="The job's stream that the episodes belong to.")] = "default"
    concurrency: Annotated[int, typer.Option(min=1, max=4096, help="Episodes at once.")] = 64
    seed: Annotated[int, typer.Option(help="Order of the tasks.")] = 0
    timeout: Annotated[float, typer.Option(min=0.1, max=86_400.0, help="Seconds that one play may take.")] = (
        EPISODE_TIMEOUT_S
    )
    time_limit: Annotated[str, typer.Option(help="Wall clock for all of it: 30m, 2h, 1d.")] = "1d"
    sandbox: Annotated[
        str | None, typer.Option(help="docker or process; docker when an engine answers (or AJET_SANDBOX).")
    ] = None
    requirements: Annotated[Path | None, typer.Option(help="requirements.txt of the agent (docker).")] = None
    allow: Annotated[list[str] | None, typer.Option(help="HOST:PORT it may reach (docker); repeatable.")] = None
    memory: Annotated[str | None, typer.Option(help="Most memory, 512m or 2g (docker); 1g.")] = None
    cpus: Annotated[float | None, typer.Option(min=0.1, max=4096.0, help="Most processors (docker); 1.")] = None
    gpu: Annotated[list[str] | None, typer.Option(help="UUID of a GPU it may use (docker); repeatable.")] = None
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the agent; repeatable.")] = None
    restart: Annotated[bool, typer.Option("--restart", help="Start it again where it dies, after a pause.")] = False
    reload: Annotated[bool, typer.Option("--reload", help="Load its code at each save (--sandbox process).")] = False

    @property
    def evaluates(self) -> bool:
        return self.evaluate or self.evaluations

    def check(self) -> None:
        if self.evaluate and self.evaluations:
            raise BadInput("expected --eval (once, now) or --evaluations (whenever training waits for one); found both")
        if self.evaluations and self.reload:
            raise BadInput("expected --reload for a training; found it with --evaluations")
        if self.evaluate and (self.restart or self.reload):
            raise BadInput("expected --restart and --reload for a training; found one of them with --eval")
        if self.reload and self.agent is None and self.reward is None:
            raise BadInput("expected an agent or a --reward with --reload; found no file of yours that could be saved")
        if self.episodes is not None and not self.evaluate:
            other = "--evaluations, which plays the job's `evaluation_episodes`" if self.evaluations else "a training"
            raise BadInput(f"expected --episodes with --eval; found it with {other}")
        if not 0 < len(self.stream) <= MOST_STREAM or not self.stream.isprintable():
            raise BadInput(f"expected --stream as a name of 1 to {MOST_STREAM} characters; found {self.stream[:40]!r}")
        self.limits(), self.destinations()

    def files(self) -> tuple[AgentFiles | None, AgentFiles | None]:
        files = None if self.agent is None else AgentFiles.locate(self.agent)
        judge = None if self.reward is None else AgentFiles.locate(self.reward, "reward")
        if judge is not None and (files is not None or self.evaluates):
            raise BadInput(
                "expected --reward for training with the environment's own agent; found it with another, or --eval"
            )
        return files, judge

    def destinations(self) -> tuple[Destination, ...]:
        return tuple(map(Destination.parse, self.allow or ()))

    def limits(self) -> Limits:
        usual = Limits()
        memory = usual.memory_bytes
        if self.memory is not None:
            found = _SIZE.fullmatch(self.memory.strip())
            size = float(found[1]) * _UNITS[found[2].lower()] if found else 0.0
            if not LEAST_MEMORY <= size <= MOST_MEMORY:
                raise BadInput(
                    f"expected --memory as 512m or 2g, at least 64m and at most 16384g; found {self.memory[:40]!r}"
                )
            memory = int(size)
        return replace(
            usual, memory_bytes=memory, cpus=usual.cpus if self.cpus is None else self.cpus,
            processes=max(usual.processes, THREADS_A_PLAY * self.concurrency),
            open_files=max(usual.open_files, FILES_A_PLAY * self.concurrency),
        )  # fmt: skip

    def variables(self, *, contained: bool) -> dict[str, str]:
        """Return the agent's own variables; raises BadInput, in a container also for secrets."""
        variables: dict[str, str] = {}
        for text in self.env or ():
            name, equals, value = text.partition("=")
            if not equals or not _VARIABLE.fullmatch(name):
                raise BadInput(f"expected --env NAME=VALUE; found {name[:60]!r}")
            if name.upper() in _OURS or name.upper().startswith("AJET_"):
                raise BadInput(f"expected --env to leave {name} alone: it is set for the agent; use another name")
            if contained and SECRET_NAME.search(name):
                raise BadInput(
                    f"expected no secret in --env; found {name}, which any code in the container could read. Let a "
                    "proxy on this machine add it to requests, and open that with --allow 127.0.0.2:PORT "
                    "(docs/agents.md)"
                )
            variables[name] = value
        return variables


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """What an agent is to do, and for how long. `tasks` are all that it is given."""

    asked: RunOptions
    environment: str | None
    tasks: tuple[Task, ...]
    split: Split = "train"
    agent: AgentFiles | None = None
    reward: AgentFiles | None = None
    """Judges the plays of the environment's own agent in place of its games."""
    time_limit_s: float | None = None
    knobs: Mapping[str, Any] = field(default_factory=dict)
    """What knobs of the environment are set to."""

    @property
    def action(self) -> Literal["play", "evaluate"]:
        return "evaluate" if self.asked.evaluates else "play"

    @property
    def code(self) -> AgentFiles | None:
        return self.agent or self.reward

    def arguments(self, *, server: str, code: str, tasks: str, out: str, environments: str) -> tuple[str, ...]:
        """Return the arguments of `python -m swarm.environments`; `code` and `environments` are folders there."""
        asked = self.asked
        given = {
            "--server": server, "--tasks": tasks, "--out": out, "--concurrency": asked.concurrency,
            "--seed": asked.seed, "--timeout": asked.timeout, "--environment": self.environment,
            "--environments": environments if self.environment and is_custom(self.environment) else None,
            "--agent": self.agent and self.agent.locator_in(code),
            "--reward": self.reward and self.reward.locator_in(code),
            "--knobs": json.dumps(dict(self.knobs)) if self.environment and self.knobs else None,
        }  # fmt: skip
        if not asked.evaluates:
            given |= {"--stream": asked.stream}
        else:  # whenever training waits for it, as many episodes as are waited for
            episodes = None if asked.evaluations else asked.episodes or EVALUATED_EPISODES
            given |= {"--split": self.split, "--episodes": episodes}
        words = (f"{option}={value}" for option, value in given.items() if value is not None)
        # Files that are loaded again at each save are refused where they were saved while they were loaded.
        flags = {"--during": asked.evaluations, "--unchanged": asked.reload}
        return ("-m", MODULE, self.action, *words, *(flag for flag, wanted in flags.items() if wanted))


def select_tasks(
    environment: str | None, file: Path | None, job: Job, *, own_agent: bool, evaluated: bool
) -> tuple[str | None, Split, tuple[Task, ...]]:
    """Return the environment's name (None for an agent's own tasks), the split and the tasks; raises InvalidRequest."""
    split: Split = EVALUATED if evaluated else "train"
    if file is not None and own_agent and environment is None:
        return None, split, read_tasks(file)
    whose = get_environment(environment or job.environment)
    return whose.name, split, tuple(whose.tasks(split)) if file is None else check_tasks(read_tasks(file), whose)


def check_evaluated(job: Job) -> None:
    """Raise BadInput for a job whose training waits for no evaluation."""
    if job.eval_every is None and not job.evaluate_after:
        raise BadInput(
            "expected a job whose training waits for evaluations, found one that has no eval_every (nor "
            "evaluate_after): start the server with a job that has, or evaluate once with --eval"
        )


def check_ready(server: ServerConnection, *, train: bool, stream: str | None = "default") -> Job:
    """Return the server's job; raise BadInput if it has none, or none that can still be trained in this stream."""
    with SwarmClient(server.url, server.token, owner="ajet client run") as client:
        status, job = client.status(), client.job()
        shared: tuple[str, ...] = ()
        if train and stream is not None:  # none before the engine serves: whoever plays waits for it, and is told then
            with suppress(EngineUnavailable):
                shared = tuple(each.name for each in client.streams().streams if each.share is not None)
    if job is None or status.group_size is None:
        raise BadInput(f"expected a job on the server at {server.url}, found none; {HOW_TO_START}")
    if train and status.finished:
        raise BadInput(
            f"expected a job with steps to train, found one whose {status.steps} steps are done; evaluate it with "
            "--eval, or stop the server (`ajet swarm stop`) and start it with another job"
        )
    if shared and stream is not None and stream not in shared:
        raise BadInput(f"expected --stream to be one that has a share ({', '.join(shared)}); found {stream[:60]!r}")
    return job
