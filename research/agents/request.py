"""What is asked, checked.

An agent or a reward is a Python file with a function, in a folder whose other files it may import. The whole folder
goes into a container, so it is bounded, and what is no plain file is refused; whatever begins with a dot (keys,
settings, version control) and Python's caches stay here. Nothing of it is run or imported on this side.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from research.errors import BadInput
from research.installation.servers import HOW_TO_START, ServerConnection
from sandboxes import SandboxError
from sandboxes.docker.archive import check, pack_folder
from sandboxes.gateway.egress import Destination
from sandboxes.spec import Limits
from swarm.client import SwarmClient
from swarm.environments import Split, Task, get_environment
from swarm.environments.custom import check_tasks, is_custom, read_tasks
from swarm.errors import EngineUnavailable
from swarm.job import Job

MOST_BYTES = 16 << 20
MOST_FILES = 1000
Kind = Literal["agent", "reward"]


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
        """Return the agent as `FILE:NAME`, its files being in `folder`."""
        return f"{folder}/{self.file}:{self.function}"

    def pack(self) -> Mapping[str, bytes]:
        """Return the files of the agent's folder by their paths in it; raises BadInput."""
        try:
            return check(pack_folder(self.folder, most_bytes=MOST_BYTES, most_files=MOST_FILES))
        except SandboxError as error:
            raise BadInput(
                f"the whole folder of {self.file} goes into the container: {error}; give it one of its own"
            ) from error


MODULE = "swarm.environments"
Action = Literal["play", "evaluate"]
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmg])i?b?", re.IGNORECASE)
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
EVALUATED: Split = "search"
"""The split that is evaluated; the hidden one is for the harness's evaluators."""
LEAST_MEMORY, MOST_MEMORY = 64 << 20, 16 << 40
MOST_STREAM = 128
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE|AUTH", re.IGNORECASE)
_OURS = frozenset({"PYTHONPATH", "PYTHONHOME", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "HOME", "TMPDIR"})


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """What an agent is to do, and for how long. `tasks` are all that it is given."""

    action: Action
    agent: AgentFiles | None
    environment: str | None
    tasks: tuple[Task, ...]
    split: Split = "train"
    stream: str = "default"
    episodes: int = 0
    """Of an evaluation."""
    during: bool = False
    """It evaluates whenever training waits for it, as many episodes as are waited for, until the job is finished."""
    concurrency: int = 64
    seed: int = 0
    timeout_s: float = 600.0
    """Seconds that one play may take."""
    reward: AgentFiles | None = None
    """Judges the plays of the environment's own agent in place of its games."""
    time_limit_s: float | None = None
    unchanged: bool = False
    """Its files are refused where they were saved while they were loaded: they are loaded again at each save."""

    @property
    def code(self) -> AgentFiles | None:
        """The user's files: an agent's, or a reward's."""
        return self.agent or self.reward

    def arguments(self, *, server: str, code: str, tasks: str, out: str, environments: str) -> tuple[str, ...]:
        """Return the arguments of `python -m swarm.environments`; `code` and `environments` are folders there."""
        given = {
            "--server": server, "--tasks": tasks, "--out": out, "--concurrency": self.concurrency,
            "--seed": self.seed, "--timeout": self.timeout_s, "--environment": self.environment,
            "--environments": environments if self.environment and is_custom(self.environment) else None,
            "--agent": self.agent and self.agent.locator_in(code),
            "--reward": self.reward and self.reward.locator_in(code),
            **({"--stream": self.stream} if self.action == "play" else
               {"--split": self.split, "--episodes": None if self.during else self.episodes}),
        }  # fmt: skip
        words = (f"{option}={value}" for option, value in given.items() if value is not None)
        flags = {"--during": self.during, "--unchanged": self.unchanged}
        return ("-m", MODULE, self.action, *words, *(flag for flag, wanted in flags.items() if wanted))


@dataclass(frozen=True, slots=True)
class Confinement:
    """Where an agent runs, and what a container of it may take and reach."""

    allow: tuple[Destination, ...] = ()
    limits: Limits = field(default_factory=Limits)
    gpus: tuple[str, ...] = ()
    sandbox: str | None = None
    requirements: Path | None = None
    variables: tuple[str, ...] = ()
    """As NAME=VALUE."""
    only_contained: Mapping[str, object] = field(default_factory=dict)
    """Options that mean nothing to a process, by name; None where not given."""
    reload: bool = False
    """The agent's files are read where they lie, again and again: no container sees them there."""


def parse_memory(text: str) -> int:
    """Return the bytes of `512m` or `2g`; raises BadInput."""
    found = _SIZE.fullmatch(text.strip())
    size = float(found[1]) * _UNITS[found[2].lower()] if found else 0.0
    if not LEAST_MEMORY <= size <= MOST_MEMORY:
        raise BadInput(f"expected --memory as 512m or 2g, at least 64m and at most 16384g; found {text[:40]!r}")
    return int(size)


def parse_stream(text: str) -> str:
    if not 0 < len(text) <= MOST_STREAM or not text.isprintable():
        raise BadInput(f"expected --stream as a name of 1 to {MOST_STREAM} characters; found {text[:40]!r}")
    return text


def parse_variables(texts: Sequence[str], *, contained: bool) -> dict[str, str]:
    """Return the variables of `NAME=VALUE` texts; raises BadInput, in a container also for secrets."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not _VARIABLE.fullmatch(name):
            raise BadInput(f"expected --env NAME=VALUE; found {text.partition('=')[0][:60]!r}")
        if name.upper() in _OURS or name.upper().startswith("AJET_"):
            raise BadInput(f"expected --env to leave {name} alone: it is set for the agent; use another name")
        if contained and _SECRET.search(name):
            raise BadInput(
                f"expected no secret in --env; found {name}, which any code in the container could read. Let a proxy "
                "on this machine add it to requests, and open that with --allow 127.0.0.2:PORT (docs/agents.md)"
            )
        found[name] = value
    return found


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
