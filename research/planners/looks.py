"""Looks at what a study is made of, which need no run, and at several of its runs together.

A built-in environment plays a training task here. Of a brought one no code is run: it is shown by a demonstration that
it was brought with and by its source, unless hidden tasks may stand in it. Looks at runs hold numbers alone: tasks are
numbered within one answer, worst first, and which they are is not told. An arm's runs are those of one lock or
exploration, the latest of its name, so that no two comparisons are mixed.
"""

import json
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import comb, isfinite
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar, Final

from pydantic import Field, StrictInt

from research.design.pricing import count_parameters
from research.planners import tools as look
from research.planners.history import sanitize_line
from research.planners.tools import Answer, Named, StudyTools, ToolError, ToolRequest, Words
from research.text import did_you_mean
from studies import RunState, StudyState
from studies.records.statements import model_name
from swarm.environments.base import Environment, Message, PlainEnvironment, Tool, said
from swarm.environments.custom import CustomEnvironment
from swarm.environments.play import MOST_RECORDED, format_message
from swarm.environments.registry import environments
from swarm.errors import InvalidRequest
from swarm.job import KNOB, Job, PathModel
from swarm.models import model_place

_MOST_SOURCE: Final = 5_000
"""Characters of a brought environment's source."""
_MOST_OF_MESSAGE: Final = 2_000
_MOST_TURNS: Final = 12
"""Messages of a sample play."""
_SIZES: Final = ("model_type", "num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings")
_MOST_WORST: Final = 20
_MOST_REWARDS: Final = 12
CONSTANT: Final = "constant_groups"


class EnvironmentRequest(ToolRequest):
    """An environment: what success means, rewards, facts with their ranges (worst first), kinds of tasks, a training
    task's opening message and tools, a play of it by the oracle, a demonstration, and the source of a brought one."""

    needs_runs = False
    name: Words = ""
    """Its name; empty for that of the base job."""

    def answer(self, tools: StudyTools) -> Answer:
        compiler = tools.compiler()
        base = compiler.base or Job()
        name = self.name or base.environment
        if name not in (known := [each for each in environments() if tools.wanted.find_conflict(each) is None]):
            raise ToolError(f"expected an environment among {', '.join(known)}; found {name!r}")
        environment = environments()[name]
        try:
            quoted = describe_environment(environment) | _show_source(environment)
            sizes = {split: len(environment.tasks(split)) for split in ("train", "search", "hidden")}
        except InvalidRequest as error:
            raise ToolError(error.message) from error
        measured = compiler.price.estimates.of(base.model_copy(update={"environment": name}))
        return {
            "notice": look.DATA, "name": name, "reward_range": list(environment.reward_range),
            "solved_from_reward": environment.solved_at, "tasks": sizes,
            "measured_before_training": measured and measured.model_dump(exclude_none=True, exclude={"job", "faults"}),
            "quoted": quoted,
        }  # fmt: skip


def describe_environment(environment: Environment) -> Answer:
    """Return an environment in its author's words, to be quoted; raise InvalidRequest where its files are not there."""
    train = environment.tasks("train")
    task = train[0]
    shown: Answer = {
        "title": environment.title, "success_means": environment.measures,
        "facts_worst_and_best": {sanitize_line(fact): list(ends) for fact, ends in environment.facts.items()},
        "knobs": {f"{KNOB}{name}": sanitize_line(knob.does) for name, knob in environment.list_knobs().items()},
        "training_tasks_by_kind": Counter(sanitize_line(task.kind) for task in train if task.kind),
        "a_training_task": sanitize_line(json.dumps(dict(task.data))),
    }  # fmt: skip
    imitates = isinstance(environment, PlainEnvironment) and environment.has("imitate")
    if isinstance(environment, PlainEnvironment):
        game = environment.game(task)
        messages = list(game.opening())
        shown |= {"opening": _quote(messages), "tools": _list_tools(game.tools)}
        if environment.has("oracle"):
            while len(messages) < _MOST_TURNS:
                answer = environment.oracle(task, messages)
                messages.append(said(answer) if isinstance(answer, str) else dict(answer))
                if not (following := game.answer(messages[-1])):
                    break
                messages += following
            shown["play_of_the_oracle"] = _quote(messages)
    if imitates or (isinstance(environment, CustomEnvironment) and environment.manifest.demonstrations):
        demonstration = environment.demonstrate(task, random.Random(0))
        shown |= {"demonstration": _quote(demonstration.messages), "tools": _list_tools(demonstration.tools)}
    return shown


def _quote(messages: Sequence[Message]) -> list[Answer]:
    return [
        {"role": sanitize_line(str(entry["role"])), "text": sanitize_line(format_message(entry), _MOST_OF_MESSAGE)}
        for entry in messages[:_MOST_TURNS]
    ]


def _list_tools(tools: Sequence[Tool]) -> list[str]:
    return [sanitize_line(json.dumps(tool.get("function", tool))) for tool in tools]


def _show_source(environment: Environment) -> Answer:
    if not isinstance(environment, CustomEnvironment):
        return {}
    files = {path: code.decode(errors="replace") for path, code in environment.code().items() if path.endswith(".py")}
    whole = "\n".join(files.values())
    lists = "def generate(" not in whole or "def tasks(" in whole or "def records(" in whole  # and not by seeds
    if lists and not environment.manifest.hidden_apart:
        return {"source": "not shown, as hidden tasks may stand in it"}
    if len(whole) > _MOST_SOURCE:
        return {"source": f"not shown, as it has {len(whole)} characters in {len(files)} files"}
    return {"source": {path: ["".join(filter(str.isprintable, line)) for line in code.splitlines()]
                       for path, code in files.items()}}  # fmt: skip


class ModelRequest(ToolRequest):
    """The model that training begins with, or one of those compared: size, layers, context, vocabulary, and what a
    check measured of it before any training."""

    needs_runs = False
    name: Words = ""
    """Its name, where models are compared; empty for that of the base job."""

    def answer(self, tools: StudyTools) -> Answer:
        compiler = tools.compiler()
        job, named = compiler.base or Job(), compiler.models.by_name
        if self.name:
            if self.name not in named:
                raise ToolError(f"expected a model among {', '.join(named) or 'none'}; found {self.name!r}")
            job = job.model_copy(update={"model": named[self.name].model})
        fields = ("backend", "max_context", "max_tokens", "lora_rank", "temperature")
        measured = {"architecture", "parameters", "trained_parameters", "positions", "template"}
        check, sizes = compiler.price.estimates.check_of(job), dict[str, str]()
        if isinstance(job.model, PathModel):
            with suppress(OSError, ValueError, TypeError):
                found = json.loads((model_place(job.model.path, tools.models) / "config.json").read_bytes())
                sizes = {name: sanitize_line(str(found[name])) for name in _SIZES if name in found}
        return {
            "name": model_name(job.model.model_dump()), "parameters_about": count_parameters(job),
            "made_as": {name: value for name, value in job.model if name not in ("path", "sha256", "seed")},
            "configuration": sizes,
            "trained_with": {name: getattr(job, name) for name in fields},
            "check": check and check.model_dump(mode="json", include=measured), "models_compared": list(named),
        }  # fmt: skip


class _ArmsRequest(ToolRequest):
    quotes: ClassVar[bool] = False
    """Whether words of an environment are in it."""
    arms: tuple[Named, ...] = Field(min_length=1, max_length=4)
    """The arms, side by side, by their names; or single runs, as the table of runs names them."""
    round: StrictInt | None = None
    """Of which round; null for the latest that has runs of the arm."""

    def answer(self, tools: StudyTools) -> Answer:
        shown: Answer = {}
        every = [run for number, run in look.list_runs(tools.state) if self.round in (None, number) and run.collected]
        for arm in dict.fromkeys(self.arms):
            by_id = len(arm) >= look.SHORT
            runs = [run for run in every if run.spec.arm == arm or (by_id and run.run_id.startswith(arm))]
            if not runs:
                known = ", ".join(dict.fromkeys(run.spec.arm for run in every)) or "there is none"
                raise ToolError(f"expected an arm of which runs were collected ({known}), or a run; found {arm!r}")
            last = runs[-1].spec
            runs = [run for run in runs if (run.spec.design_hash, run.spec.phase) == (last.design_hash, last.phase)]
            about = {"phase": runs[0].spec.phase, "played_on": runs[0].spec.metric.split, "runs": len(runs)}
            shown[arm] = about | self.describe(tools, runs)
        return {"notice": look.DATA, "quoted": shown} if self.quotes else {"arms": shown}

    @abstractmethod
    def describe(self, tools: StudyTools, runs: Sequence[RunState]) -> Answer:
        """Return what is shown of one arm."""


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def read_curve(tools: StudyTools, run: RunState, metric: str) -> list[tuple[int, float]]:
    """Return a metric of a run by step: one that was logged, or of `CurvesRequest`; raise ToolError."""
    if metric in ("success", solved := look.success_key(run)):
        return [
            (int(part["policy_version"]), fmean(bool(episode["success"]) for episode in part["episodes"]))
            for part in look.list_parts(tools.folder, run)
        ]
    if metric == CONSTANT:
        constant, groups = (read_curve(tools, run, f"batch/{name}") for name in ("constant_groups", "groups"))
        return [(step, count / of) for (step, count), (_, of) in zip(constant, groups, strict=True)]
    rows: Sequence[Mapping[str, Any]] = look.load_collected(run, tools.folder, "snapshot")["history"]
    logged = [(int(row["step"]), row["metrics"].get(metric)) for row in rows]
    points = [(at, float(value)) for at, value in logged if isinstance(value, int | float) and isfinite(value)]
    if points:
        return points
    known = sorted({sanitize_line(name) for row in rows for name in row["metrics"]})
    near, names = did_you_mean(metric, [*known, solved]) or "", ", ".join(known[: look.MOST_NAMES])
    raise ToolError(f"expected a metric that the run logged: {names}, or {solved}; found {metric!r}{near}")


class CurvesRequest(_ArmsRequest):
    """Logged metrics of arms or runs over training steps, as [step, mean over seeds, sd between seeds, seeds]: several
    arms and several metrics in one look."""

    metrics: tuple[Named, ...] = Field(min_length=1, max_length=4)
    """Names as logged, such as critic/success/mean or actor/entropy; success for that of the evaluations,
    constant_groups for the share of groups whose rewards are all equal, which teach nothing."""

    def describe(self, tools: StudyTools, runs: Sequence[RunState]) -> Answer:
        shown: Answer = {}
        for name in self.metrics:
            values: dict[int, list[float]] = {}
            for step, value in (point for run in runs for point in read_curve(tools, run, name)):
                values.setdefault(step, []).append(value)
            steps = sorted(values)
            if len(steps) > look.POINTS:
                steps = [steps[round(index * (len(steps) - 1) / (look.POINTS - 1))] for index in range(look.POINTS)]
            rows = [(step, values[step]) for step in steps]
            shown[name] = [[at, _round(fmean(v)), _round(stdev(v)) if len(v) > 1 else None, len(v)] for at, v in rows]
        return shown


class TasksRequest(_ArmsRequest):
    """Tasks before and after training, over all seeds of an arm: success by kind as [before, after, plays]; the shares
    that gained, lost and were never solved; the worst tasks as [number, kind, before, after, plays], with numbers of
    this answer alone; rewards as {reward: plays}; and where one policy played a task several times, which makes a
    group, {mean reward: [groups, of them constant: those teach nothing]} and pass@k as {k: [chance, tasks]}."""

    quotes = True

    def describe(self, tools: StudyTools, runs: Sequence[RunState]) -> Answer:
        kinds = look.find_kinds(runs[0])
        first, last = ([look.list_parts(tools.folder, run)[place] for run in runs] for place in (0, -1))
        by_kind = [_group(parts, lambda task: kinds.get(task) or "all") for parts in (first, last)]
        before, after = _group(first), _group(last)
        both = [(task, fmean(before[task]), fmean(after[task])) for task in after if task in before]
        worst = sorted(both, key=lambda entry: (entry[2], entry[2] - entry[1]))[:_MOST_WORST]
        moved = Counter("gained" if now > then else "lost" if now < then else "kept" for _, then, now in both)
        return {
            "kinds": {
                kind: [_round(fmean(by_kind[0].get(kind, [False]))), _round(fmean(plays)), len(plays)]
                for kind, plays in sorted(by_kind[1].items())
            },
            "tasks": len(both),
            **{f"share_{name}": _round(moved[name] / max(1, len(both))) for name in ("gained", "lost", "kept")},
            "never_solved": sum(then == now == 0 for _, then, now in both),
            "worst": [
                [number, kinds.get(task, ""), _round(then), _round(now), len(after[task])]
                for number, (task, then, now) in enumerate(worst, start=1)
            ],
            "rewards": {"before": _count_rewards(first), "after": _count_rewards(last)},
            "reward_groups": {"before": _count_groups(first), "after": _count_groups(last)},
            "pass_at": {"before": _estimate_pass(first), "after": _estimate_pass(last)},
        }


def _group(
    parts: Iterable[Mapping[str, Any]], name: Callable[[str], str] = lambda task: task, read: str = "success"
) -> dict[str, list[float]]:
    """Return whether plays were solved (1 or 0), or their reward, by what `name` makes of their tasks."""
    values: dict[str, list[float]] = {}
    for play in (play for part in parts for play in part["episodes"]):
        values.setdefault(name(play["task_id"]), []).append(float(play[read]))
    return values


def _count_rewards(parts: Iterable[Mapping[str, Any]]) -> dict[float, int]:
    counts = Counter(round(float(play["reward"]), 1) for part in parts for play in part["episodes"])
    return dict(sorted(counts.most_common(_MOST_REWARDS)))


def _count_groups(parts: Iterable[Mapping[str, Any]]) -> dict[float, list[int]]:
    groups = [rewards for part in parts for rewards in _group([part], read="reward").values() if len(rewards) > 1]
    means = [round(fmean(rewards), 1) for rewards in groups]
    constant = Counter(mean for mean, rewards in zip(means, groups, strict=True) if len({*rewards}) == 1)
    return {mean: [count, constant[mean]] for mean, count in sorted(Counter(means).most_common(_MOST_REWARDS))}


def _estimate_pass(parts: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return pass@k without bias (Chen et al. 2021, 2107.03374), of each policy by itself, and the tasks behind it."""
    tasks = [(len(plays), round(sum(plays))) for part in parts for plays in _group([part]).values()]
    shown: dict[str, list[float]] = {}
    for k in (1, 2, 4, 8, 16):
        if often := [(n, right) for n, right in tasks if n >= k]:
            shown[str(k)] = [_round(fmean(1 - comb(n - right, k) / comb(n, k) for n, right in often)), len(often)]
    return shown


def collect_recorded(state: StudyState, folder: Path, environment: str) -> list[dict[str, Any]]:
    """Return plays of search tasks as `try_recorded` takes them, MOST_RECORDED at most: groups of what one policy made
    of one task, whole, those of the newest evaluation first, and of it those whose words were kept."""
    plays, own = list[dict[str, Any]](), environments()[environment]
    for _, run in reversed(list(look.list_runs(state))):
        if not run.collected or (run.spec.metric.split, run.spec.environment) != ("search", environment):
            continue
        with suppress(ToolError, InvalidRequest):  # files that are gone or are not as they were
            tasks = {task.id: dict(task.data) for task in own.tasks("search")}
            for part in reversed(look.list_parts(folder, run)):
                words = {(said["task_id"], 0): said["messages"] for said in part.get("transcripts", ())}
                groups = dict[str, list[dict[str, Any]]]()
                for play in part["episodes"]:
                    known = not play.get("failed") and own.facts.keys() <= play.get("facts", {}).keys()
                    if known and (task := play["task_id"]) in tasks:  # older ones may lack facts
                        kept = words.get((task, play["sample"]), [])
                        groups.setdefault(task, []).append({**play, "data": tasks[task], "messages": kept})
                for group in sorted(groups.values(), key=lambda group: not any(play["messages"] for play in group)):
                    if plays and len(plays) + len(group) > MOST_RECORDED:
                        return plays
                    plays += group[:MOST_RECORDED]
    return plays


LOOKS: Final[Mapping[str, type[ToolRequest]]] = {
    **look.TOOLS, "environment": EnvironmentRequest, "model": ModelRequest, "curves": CurvesRequest,
    "tasks": TasksRequest,
}  # fmt: skip
"""All that a planner may look at."""
