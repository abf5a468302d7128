"""Which tasks an agent is given: a file's, or those of an environment, by what is done with them."""

from __future__ import annotations

from pathlib import Path

from swarm.environments import Split, Task, get_environment
from swarm.environments.tasks_file import fitting, read_tasks
from swarm.job import Job

LOOKED_AT: Split = "search"
"""The split for looking; the hidden one is for the harness's evaluators."""


def tasks_of(
    environment: str | None, file: Path | None, job: Job, *, own_agent: bool, evaluated: bool
) -> tuple[str | None, Split, tuple[Task, ...]]:
    """Return the name of the environment, the split, and the tasks. Raises InvalidRequest.

    Without a file they are of the environment that is named, else of the job's. A file's tasks are of no environment
    if an agent plays them that needs none.
    """
    split: Split = LOOKED_AT if evaluated else "train"
    if file is not None and own_agent and environment is None:
        return None, split, read_tasks(file)
    whose = get_environment(environment or job.environment)
    return whose.name, split, whose.tasks(split) if file is None else fitting(read_tasks(file), whose)
