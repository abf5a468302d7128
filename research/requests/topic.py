"""What somebody asks to be studied, by a topic or by flags, read into one request before anything is begun."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

from research.base_fields import fixed_fields, require_agreement
from research.design.estimates import Estimates
from research.design.requirements import StatisticalRequirements
from research.durations import parse_budget
from research.environments.bring import environment_of
from research.environments.reference import HOW, installed
from research.errors import BadEnvironment, BadTopic
from research.installation.backends import require_backend
from research.installation.base_job import base_job
from research.installation.home import Home
from research.installation.model_folder import model_folder
from research.installation.tiny_model import Note
from research.metrics.judge import MetricChoice
from research.metrics.reading import metric_in
from research.planner import Planner
from research.planners.factory import make_planner
from research.proposals.flags import RequestedComparison, folders_varied, topic_of
from research.proposals.models import ComparedModels, folders_in, paths_in
from research.rule_planner.planner import RulesPlanner, environment_asked, require_readable
from research.topic.requests import asks_for_power
from swarm.environments.brought import MARK, is_brought
from swarm.environments.registry import environments
from swarm.job import Job

DEFAULT_BUDGET = "12m"
_FULL_NAME = re.compile(rf"(?<![\w.{MARK}-])([a-z0-9][a-z0-9._-]*){MARK}[\w.-]*\w", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """What is to be studied, under which requirements, within which budget."""

    topic: str
    requested: RequestedComparison
    """What flags ask for, in the place of a topic or beside it."""
    requirements: StatisticalRequirements
    budget_s: float
    max_runs: int | None
    base: Job | None = None
    """The job under all arms, as a file or a model's folder says it; None for the default."""

    @classmethod
    def read(
        cls,
        topic: str | None,
        vary: Sequence[str],
        held: Sequence[str],
        environment: str | None,
        reward: str | None,
        requirements: StatisticalRequirements,
        budget: str,
        max_runs: int | None,
        job: Path | None = None,
        model_path: str | None = None,
        *,
        backend: str | None = None,
        shape: str | None = None,
        note: Note,
    ) -> TopicRequest:
        """Return the request that options make; an environment is brought, and hashes of models' files are written.

        `note` is told what bringing an environment does.

        Raises BadBudget, BadTopic, BadMetric, BadEnvironment, DesignRefused, BadJob or BadModel.
        """
        hashes = Home.locate().models
        base = base_job(job, model_path, hashes, backend)
        models = _compared_models(topic, vary, hashes)
        comparison = RequestedComparison.asked(vary, held, base, models, shape)
        topic_of(topic, comparison)
        seconds = parse_budget(budget)
        comparison = _placed(comparison, topic or "", _environment_asked(environment, base), reward, note)
        if base is not None and comparison.environment is not None and "environment" in fixed_fields(base):
            base = base.model_copy(update={"environment": comparison.environment})
        requirements = _judged(requirements, topic or "", comparison, base)
        asked = topic_of(topic, comparison)
        if comparison.vary and requirements.metric is not None:
            asked = f"{asked} --metric {requirements.metric.text}"
        return cls(asked, comparison, requirements, seconds, max_runs, base)


def _judged(
    requirements: StatisticalRequirements, topic: str, comparison: RequestedComparison, base: Job | None
) -> StatisticalRequirements:
    """Return the requirements with the metric that a flag names, else the topic.

    Raises DesignRefused or BadMetric for one that cannot be of this environment, or an effect beyond its range.
    """
    said = metric_in(topic)
    if requirements.metric is None and said is not None:
        requirements = replace(requirements, metric=said.asked)
    if requirements.metric is None:
        return requirements
    played = comparison.environment or environment_asked(topic, comparison)
    job = (base or Job()).model_copy(update={"environment": played})
    MetricChoice(requirements.metric, Estimates().training).metric((job,), requirements.episodes)
    return requirements


def _environment_asked(environment: str | None, base: Job | None) -> str | None:
    """Return the environment that a flag or the job names; raise DesignRefused where they name two."""
    if environment is not None:
        require_agreement(base, {"environment": [environment]})
    fixed = {} if base is None else fixed_fields(base)
    return fixed.get("environment") if environment is None else environment


def _placed(
    comparison: RequestedComparison, topic: str, environment: str | None, reward: str | None, note: Note
) -> RequestedComparison:
    """Return the comparison in the environment that is asked for, which is brought here unless it is built in.

    What installed packages offer, and the topic names, is brought too.
    """
    if environment is None and reward is not None:
        raise BadEnvironment("expected --reward beside --env TASKS.jsonl; found it alone; name the tasks it judges")
    home = Home.locate()
    whole, rest = _by_full_name(topic, home)
    named = [*whole, *(name for name in installed() if _says(rest, name))]
    if environment is None:
        named += _brought_before(rest, home, {name.partition(MARK)[0] for name in whole})
    if environment is None and not named:
        return comparison
    home = home if environment in environments() else home.prepare()
    brought = [environment_of(name, None, home, note).name for name in named]
    asked = environment_of(environment, reward, home, note).name if environment is not None else None
    known = dict.fromkeys(name for name in (asked, *brought) if name is not None and is_brought(name))
    return replace(comparison, environment=asked, brought=tuple(known))


def _by_full_name(topic: str, home: Home) -> tuple[list[str], str]:
    """Return the brought environments that a topic names in full, and the rest of it; raise BadEnvironment for others.

    What has the form of a full name, or the name of a brought environment before its mark, is none or all of one.
    """
    known = _brought(home)
    named: list[str] = []

    def take(found: re.Match[str]) -> str:
        said, name = found[0].lower(), found[1].lower()
        if not is_brought(said) and name not in known:
            return found[0]  # such as pass@8
        if said not in (several := known.get(name, [])):
            there = f"of this name there is {' and '.join(several)}; " if several else ""
            raise BadEnvironment(f"expected an environment that was brought here; found no {said}; {there}{HOW}")
        named.append(said)
        return " "

    rest = _FULL_NAME.sub(take, topic)
    return list(dict.fromkeys(named)), rest


def _brought(home: Home) -> dict[str, list[str]]:
    """Return the full names of what was brought before, by the short ones."""
    found: dict[str, list[str]] = {}
    for folder in sorted(home.environments.glob(f"[!.]*{MARK}*")):
        found.setdefault(folder.name.partition(MARK)[0], []).append(folder.name)
    return found


def _brought_before(topic: str, home: Home, known: AbstractSet[str]) -> list[str]:
    """Return the brought environments that a topic names in short, but for the names that are `known` in full.

    Raises BadEnvironment for a name that several have.
    """
    taken = known | environments().keys()
    named = {name: whole for name, whole in _brought(home).items() if name not in taken and _says(topic, name)}
    for name, several in named.items():
        if len(several) > 1:
            raise BadEnvironment(
                f"expected one environment called {name}; found {', '.join(several)}; name the one you mean: "
                f"--env {several[-1]}"
            )
    return [whole[0] for whole in named.values()]


def _says(topic: str, name: str) -> bool:
    """Return whether a topic has a name as a word of its own."""
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", topic, re.IGNORECASE) is not None


def _compared_models(topic: str | None, vary: Sequence[str], hashes: Path) -> ComparedModels:
    """Return the models that flags or a topic compare."""
    folders = folders_varied(vary) or folders_in(topic or "")
    if len(folders) == 1 and not folders_varied(vary):
        for other in paths_in(topic or ""):
            model_folder(other, hashes)  # what is wrong with the one beside it
        raise BadTopic(
            f"expected two model folders in a topic, to compare them; found {folders[0]} alone; name another, or train "
            f"this one in all arms with --model-path {folders[0]}"
        )
    return ComparedModels.found(folders, lambda said: model_folder(said, hashes))


def planning_by(
    wanted: RequestedComparison,
    name: str,
    model: str | None,
    *,
    record: Path | None = None,
    replay: Path | None = None,
    note: Note,
) -> Planner:
    """Return the planner of this name; raise BadTopic where flags say all that a planner would.

    `note` is told of each pause while a model's endpoint does not answer.
    """
    if wanted.vary and name != RulesPlanner.name:
        raise BadTopic(
            f"expected --vary without a planner, as it leaves nothing to plan; found --planner {name}; leave it out"
        )
    return make_planner(name, model, os.environ, record=record, replay=replay, note=note)


def planner_of(
    request: TopicRequest,
    name: str,
    model: str | None,
    *,
    record: Path | None = None,
    replay: Path | None = None,
    note: Note,
) -> Planner:
    """Return the planner of a study on this request; refuse what no study could answer, before anything is begun."""
    topic = request.topic
    if asks_for_power(topic):
        raise BadTopic(
            f"expected a question that training runs answer; found {topic!r}, which a table answers; see it with: "
            f"ajet study plan {shlex.quote(topic)}"
        )
    chosen = planning_by(request.requested, name, model, record=record, replay=replay, note=note)
    if isinstance(chosen, RulesPlanner):
        require_readable(topic, request.requested, request.base, request.requirements.metric)
    require_backend((request.base or Job()).backend)
    return chosen
