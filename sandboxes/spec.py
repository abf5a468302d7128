"""The interface of all sandboxes: what is to run, and what can be asked of it afterwards.

A sandbox launches by name, exactly once: running a name that exists adopts what was launched before. That
makes a launch idempotent, so that a controller killed between deciding and launching just launches again.
What runs outlives the controller; a later one adopts it by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

ExitReason = Literal["finished", "error", "timeout", "stopped", "lost", "out_of_memory", "killed"]


class SandboxError(Exception):
    """A sandbox could not do what was asked; the message says what was expected, found, and what to do."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a container may take of the machine; a process sandbox bounds its output only."""

    memory_bytes: int = 1 << 30
    """Memory, its workspace and other RAM file systems included; there is no swap."""
    cpus: float = 1.0
    processes: int = 256
    """Processes and threads at once."""
    open_files: int = 1024
    file_bytes: int = 64 << 20
    """Size of any one file it writes."""
    workspace_bytes: int = 64 << 20
    """Size of `/workspace`, and of `/tmp`: the two places it may fill."""
    output_bytes: int = 4 << 20
    """What is kept of its output: so much from the beginning, and the last 64 KiB."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What to run. `name` is unique in an installation; `command` is started with `directory` as its folder.

    `environment` is added to a minimal inherited one. `trusted` says that the code is the project's own: a
    sandbox that does not isolate refuses anything else. `time_limit_s` None means no limit.

    The fields from `image` on are for containers, which start in `/workspace` instead of `directory` and see
    nothing of this machine: `archive` (a tar, see `sandboxes.docker.archive`) lies read-only in `/input`; a file the
    command leaves at `/workspace/results/NAME` is collected if `results` names it, up to so many bytes; port P of
    the container's own loopback, its only network, leads to the Unix socket `exchange / ports[P]`, where a
    `sandboxes.gateway.gateway.Gateway` decides what is behind it.
    """

    name: str
    command: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    time_limit_s: float | None = None
    trusted: bool = False
    limits: Limits = field(default_factory=Limits)
    image: str | None = None
    """Id of a client image (`sandboxes.images`)."""
    archive: bytes | None = None
    results: Mapping[str, int] = field(default_factory=dict)
    exchange: Path | None = None
    ports: Mapping[int, str] = field(default_factory=dict)
    tied: bool = False
    """It ends once nobody has served its first port's socket for some seconds: with the process of its gateway."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs it may use."""
    after_kill: tuple[str, ...] = ()
    """For processes: what is run when a signal ended the command, so that it could not clear up after itself."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a sandbox ended.

    `finished` and `error`: the command ended by itself, with code 0 or another. `timeout`, `out_of_memory`: it
    reached a limit. `stopped`: somebody asked for it through `Handle.stop`. `killed`: a container was ended by
    nobody's request to us, from outside or by what ran in it, and says no more. `lost`: it vanished, and nobody saw
    its exit code.
    """

    reason: ExitReason
    code: int | None


class Handle(Protocol):
    """A launched sandbox, by this controller or an earlier one."""

    @property
    def name(self) -> str:
        """The spec's name."""
        ...

    @property
    def labels(self) -> Mapping[str, str]:
        """The spec's labels."""
        ...

    def ran(self) -> tuple[float, float | None]:
        """Return when it was launched and when it ended, in Unix seconds; None while it runs."""
        ...

    def poll(self) -> Exit | None:
        """Return how it ended, or None while it runs."""
        ...

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """Wait until it ends; None when the time is over first."""
        ...

    def logs(self, *, tail_bytes: int = 65_536) -> str:
        """Return the end of its standard output and error, decoded with replacement."""
        ...

    def stop(self, grace_s: float = 5.0) -> Exit:
        """End it and every process it started: terminate, then kill after `grace_s`; idempotent."""
        ...


class Sandbox(Protocol):
    """Launches and finds sandboxes of one kind."""

    @property
    def isolates(self) -> bool:
        """Whether code in it is kept from harming the machine."""
        ...

    def run(self, spec: SandboxSpec) -> Handle:
        """Launch `spec`, or adopt what was launched under its name; raise SandboxError when it must not run."""
        ...

    def adopt(self, name: str) -> Handle | None:
        """Return the handle of what was launched under `name`, or None if nothing was."""
        ...

    def list(self, labels: Mapping[str, str] | None = None) -> list[Handle]:
        """Return handles of all sandboxes whose labels include `labels`, oldest first."""
        ...
