"""What a worker of ours serves: a pool of Prefect's type `process`, or one of type `docker`.

A pool's type stands for ever on a server, so each type has a pool of its own, and the deployments point to the one
whose worker was started last.

Import this module only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import psutil

from research.installation.home import Home
from research.installation.tiny_model import Note
from research.orchestration.deployments import place_of
from research.serving.containers.fitting import fitting_pool
from sandboxes.docker.engine import ContainerEngine

SITTING = "research.serving.sitting"


class ServedPool(Protocol):
    """A pool, and what its worker starts for a flow run."""

    @property
    def name(self) -> str:
        """The pool's name on a server."""
        ...

    @property
    def type(self) -> str:
        """The type of Prefect's worker."""
        ...

    @property
    def job(self) -> Mapping[str, Any]:
        """What is fixed of the jobs in the pool's template; it is kept on the server, so no key is in it."""
        ...

    def prepare(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Have sittings work in an environment; return what Prefect's worker is given of it."""
        ...

    def sittings(self) -> list[UUID]:
        """Return the flow runs to whose sittings Prefect's worker carries no Cancel, so that `cancel` does."""
        ...

    def cancel(self, flow_run: UUID) -> None:
        """Have a flow run's sitting look at once whether it is cancelled."""
        ...

    def end(self, worker: int, grace_s: float) -> None:
        """End the sittings of a worker, by its process id, in order: each leaves its study within the grace."""
        ...


def pool_of(home: Home, engine: ContainerEngine | None, image: str | None, api: str, say: Note) -> ServedPool:
    """Return the pool of containers of an engine, or of processes; relative paths are of the working directory.

    Raises BadPool or SandboxError where no container fits.
    """
    place = place_of(home)
    if engine is None:
        return ProcessPool(place, Path.cwd())
    return fitting_pool(engine, place, home, Path.cwd(), image, api, say)


@dataclass(frozen=True, slots=True)
class ProcessPool:
    """Sittings are processes of Prefect's worker; relative paths are of `folder`, what they write goes to files."""

    name: str
    folder: Path
    type: str = "process"

    @property
    def job(self) -> Mapping[str, Any]:
        """The command, and where it is run."""
        command = shlex.join([sys.executable, "-m", SITTING])
        return {"command": command, "working_dir": str(self.folder), "stream_output": False}

    def prepare(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return all of it: a sitting inherits the worker's."""
        return dict(environment)

    def sittings(self) -> list[UUID]:
        """Return none: Prefect's worker sends SIGTERM itself."""
        return []

    def cancel(self, flow_run: UUID) -> None:
        """Do nothing, as above."""

    def end(self, worker: int, grace_s: float) -> None:
        """Terminate the worker's children, and wait for them."""
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(worker).children()
            for child in children:
                child.terminate()
            psutil.wait_procs(children, timeout=grace_s)
