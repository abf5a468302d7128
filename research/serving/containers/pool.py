"""A pool of type docker, as its worker's side sees it: which containers sittings are, and how they are ended.

A container shares this machine's network, process ids and name, so that leases, slots and signals mean there what they
mean here, and this user's id; of the machine's files it has `research.serving.containers.mounts`. It is a packaging,
not a wall: who may begin a study may do there what this user may do with those folders. It has no capability and not
the engine's socket. Its environment comes from a file that only this user reads.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from research.files import write_bytes
from research.installation.home import Home
from research.isolation.mode import CONTAINED
from research.serving.containers import contained
from research.serving.containers.contained import ENVIRONMENT
from research.tracking.login import login_places
from sandboxes.docker.asking import asking
from sandboxes.docker.engine import ContainerEngine

if TYPE_CHECKING:
    from docker.models.containers import Container

PLACE: Final = "ajet.place"
"""Label of a sitting's container: the worker's machine and installation."""
_FLOW_RUN: Final = "io.prefect.flow-run-id"
_OF_THE_SERVER: Final = ("PREFECT_API_DATABASE_", "PREFECT_SERVER_")
"""Settings of Prefect's server: its database's password among them, which no worker needs."""
_OUTSIDE: Final = frozenset({"HOME", "NETRC", "OLDPWD", "PATH", "PWD", "SHLVL", "TMPDIR", "WANDB_CONFIG_DIR", "_"})
_OUTSIDE_BEGIN: Final = ("DOCKER_", "LD_", "SSH_", "XDG_")
"""Variables that name places and sockets which a container does not have, by name and by beginning."""
_HOME: Final = "/tmp"
_LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class ContainerPool:
    """Sittings are containers of an image, by its id, that the engine has."""

    place: str
    home: Home
    folder: Path
    """What relative paths are of."""
    engine: ContainerEngine
    address: str
    """The engine's socket, `unix://PATH`."""
    image: str
    volumes: tuple[str, ...]
    """What of this machine's files it has."""
    type: str = "docker"

    @property
    def name(self) -> str:
        """The pool's name on a server."""
        return f"{self.place}-docker"

    @property
    def job(self) -> Mapping[str, Any]:
        """How Prefect's worker makes a container."""
        return {
            "image": self.image, "image_pull_policy": "Never", "auto_remove": True, "stream_output": True,
            "command": shlex.join(self.arguments("-m", "research.serving.sitting")), "network_mode": "host",
            "volumes": list(self.volumes), "labels": {PLACE: self.place}, "container_create_kwargs": self.options,
            "env": dict.fromkeys(_told_by_prefect()),
        }  # fmt: skip

    @property
    def options(self) -> dict[str, Any]:
        """What else the engine is asked for, by docker's own names."""
        return {
            "entrypoint": [sys.executable, "-I", str(Path(contained.__file__).absolute())],
            "user": f"{os.getuid()}:{os.getgid()}", "working_dir": str(self.folder),
            "pid_mode": "host", "uts_mode": "host", "cap_drop": ["ALL"],
            # AppArmor's profile for containers would keep it from trainings that a process outside began.
            "security_opt": ["no-new-privileges", "apparmor=unconfined"],
        }  # fmt: skip

    def arguments(self, *of_python: str) -> list[str]:
        """Return what follows the entry point, to run Python with arguments in the environment of the file."""
        return [str(self._environment), *of_python]

    def prepare(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Write what sittings are given to the file; Prefect's worker is given the rest, and this engine."""
        given = {name: value for name, value in environment.items() if not name.startswith(_OF_THE_SERVER)}
        write_bytes(self._environment, json.dumps(_inside(given)).encode(), mode=0o600)
        kept = {name: value for name, value in given.items() if not name.startswith("DOCKER_")}
        return {**kept, "DOCKER_HOST": self.address}

    def sittings(self) -> list[UUID]:
        """Return the flow runs whose containers run."""
        with asking(self.engine, "listing the containers of studies"):
            return [UUID(each.labels[_FLOW_RUN]) for each in self._containers() if _FLOW_RUN in each.labels]

    def cancel(self, flow_run: UUID) -> None:
        """Send SIGTERM, as Prefect's worker of type process does and that of type docker does not."""
        with asking(self.engine, "ending the container of a study"):
            for each in self._containers(f"{_FLOW_RUN}={flow_run}"):
                with _unless_gone():
                    each.kill("SIGTERM")

    def end(self, worker: int, grace_s: float) -> None:
        """End all containers of this place, those of an earlier worker among them; return when they are gone."""
        with asking(self.engine, "ending the containers of studies"):
            self._signal("SIGTERM")
            if not self._are_gone(grace_s):
                self._signal("SIGKILL")
                self._are_gone(grace_s)
        self.forget()

    def forget(self) -> None:
        """Remove the file with the environment: containers that run have read it."""
        self._environment.unlink(missing_ok=True)

    def _signal(self, name: str) -> None:
        for each in self._containers():
            with _unless_gone():
                each.kill(name)

    def _are_gone(self, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while self._containers():
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S)
        return True

    def _containers(self, *labels: str) -> list[Container]:
        wanted: dict[str, str | list[str] | bool] = {"label": [f"{PLACE}={self.place}", *labels]}
        return list(self.engine.client.containers.list(filters=wanted, ignore_removed=True))

    @property
    def _environment(self) -> Path:
        return self.home.prefect / ENVIRONMENT


def _inside(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the worker has, less what names places outside: the keys and settings that a process would have."""
    inside = (name for name in environment if name not in _OUTSIDE and not name.startswith(_OUTSIDE_BEGIN))
    login = {name: str(path) for name, path in login_places(environment).items()}
    return {**{name: environment[name] for name in inside}, **login, "HOME": _HOME, CONTAINED: "1"}


def _told_by_prefect() -> list[str]:
    """Return the settings that Prefect's worker would write into a container's options, where anybody may read them."""
    from prefect.settings import get_current_settings

    return sorted(get_current_settings().to_environment_variables(exclude_unset=True))


@contextmanager
def _unless_gone() -> Iterator[None]:
    """Let it be that a container ended meanwhile."""
    from docker.errors import APIError

    try:
        yield
    except APIError as error:
        if error.status_code not in (404, 409):
            raise
