"""`ajet swarm start --check`: would the job's backend find what it needs here, without anything being started?"""

from __future__ import annotations

import subprocess
from pathlib import Path

import typer

from research.errors import BackendMissing
from research.installation.backends import python_of, require_backend
from swarm.job import Job


def check_backend(job: Job, models: Path, *, as_json: bool) -> None:
    """Print what the job's backend found, in the environment that its server would run in; exit with 2 where it lacks.

    Raises BackendMissing where there is no such environment.
    """
    require_backend(job.backend)
    if job.backend != "verl":
        raise BackendMissing(
            f"expected --check with the backend verl, found {job.backend}: the others check as they start"
        )
    command = [python_of("verl"), "-m", "swarm.backends.verl.check", "--job", job.model_dump_json()]
    command += ["--models", str(models), *(["--json"] if as_json else [])]
    raise typer.Exit(subprocess.run(command, check=False).returncode)
