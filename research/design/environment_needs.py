"""What an environment must have for a design: demonstrations for a tiny model, plain games for generated rewards."""

from __future__ import annotations

from collections.abc import Iterable

from research.errors import DesignRefused
from studies.records.design import REWARD
from swarm.environments.base import PlainEnvironment
from swarm.environments.brought import BroughtEnvironment
from swarm.environments.registry import environments
from swarm.job import Job, TinyModel


def require_environment(job: Job, variables: Iterable[str]) -> None:
    """Raise DesignRefused where a job's environment lacks what its model, or what is varied, needs."""
    environment = environments()[job.environment]
    if isinstance(environment, BroughtEnvironment) and isinstance(job.model, TinyModel) and job.backend != "fake":
        _require_demonstrations(environment)
    if REWARD in variables and not isinstance(environment, PlainEnvironment):
        raise DesignRefused(
            f"expected another variable than the reward in {environment.name}: what generated code trained on is "
            "played again afterwards, which is known to give the same of the built-in environments alone; write the "
            "reward into the environment, and compare two environments"
        )


def _require_demonstrations(environment: BroughtEnvironment) -> None:
    if not environment.manifest.demonstrations:
        raise DesignRefused(
            f"expected demonstrations of {environment.name}, which a tiny model imitates before it is trained; found "
            "none; give the environment `imitate`, or train a model of your own: --model-path DIR",
            for_planner=f"expected demonstrations of {environment.name} for the tiny model; found none; decline",
        )
