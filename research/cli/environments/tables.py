"""What `ajet env` shows people: lists, one environment, and what a check found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from research.environments.checking.check import EnvironmentCheck
from research.environments.checking.playing import Plays
from research.environments.measured import NO_MODEL, MeasuredEnvironment, unusual_conditions
from sandboxes.shown import shown as safe
from studies.statistics.rates import rate_interval
from swarm.environments.base import Environment
from swarm.environments.bringing.drawing import SPLITS
from swarm.environments.brought import BroughtEnvironment
from swarm.environments.playing.evaluate import shown

Line = Table | Text
_LONGEST = 400
"""Characters of a message that are shown."""
_INDENT = 14
"""Columns before them."""


def catalogue_tables(found: Mapping[str, Any]) -> Iterator[Line]:
    """Yield what there is, a table for each way of having it."""
    yield _table("built in", ("name", "title", "tasks"), (
        (each["name"], each["title"], _tasks(each["tasks"])) for each in found["built_in"]
    ))  # fmt: skip
    if found["installed"]:
        yield _table("installed", ("name", "object"), ((each["name"], each["object"]) for each in found["installed"]))
    if found["brought"]:
        columns = ("name", "title", "tasks", "hidden tasks", "checked", "size", "brought from")
        yield _table("brought here", columns, map(_brought, found["brought"]))
    yield _table("by address", ("example", "package"), (
        (each["example"], "here" if each["here"] else f"not here: pip install '{each['requirement']}'")
        for each in found["addresses"]
    ))  # fmt: skip
    yield Text("tasks: train/search/hidden. Begin your own: ajet env init FOLDER", "dim")


def _table(title: str, columns: Sequence[str], rows: Any) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, header_style="dim", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _brought(each: Mapping[str, Any]) -> tuple[str, ...]:
    if "fault" in each:
        return each["name"], Text(each["fault"], "red").plain, "", "", "", "", ""
    apart = "apart from its code" if each["hidden_apart"] else "its code has them"
    size, tasks = size_of(each["bytes"]), _tasks(each["tasks"])
    return each["name"], each["title"], tasks, apart, _checked(each), size, each["from"]


def _checked(each: Mapping[str, Any]) -> str:
    """Return in a few words how an environment was checked, and whether that went well."""
    models, faults = each["measured_with"], len(each["faults"])
    if not models:
        return "no"
    how = "yes" if models == [NO_MODEL] else "yes, with a model"
    return f"{how}: {faults} fault{'s' if faults > 1 else ''}" if faults else how


def _tasks(splits: Mapping[str, int]) -> str:
    return "/".join(str(splits[split]) for split in SPLITS)


def size_of(count: int) -> str:
    """Return a number of bytes as people read it."""
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"


def show_lines(environment: Environment, plays: Plays, measured: Sequence[MeasuredEnvironment]) -> Iterator[Line]:
    """Yield what an environment is."""
    yield Text(environment.name, "bold")
    yield from _words(environment)
    if isinstance(environment, BroughtEnvironment):
        yield from _provenance(environment)
    yield from _faults(plays.faults)
    if plays.example is not None:
        yield from _example(plays.example)
    for each in measured:
        yield Text("")
        yield from trial_lines(each) if each.model != NO_MODEL else _alone_lines(each)
    if not measured:
        yield Text(f"not measured yet: ajet env check {environment.name}", "dim")


def _words(environment: Environment) -> Iterator[Text]:
    low, high = environment.reward_range
    yield Text(f"title         {environment.title}")
    yield Text(f"success       {environment.measures}")
    solved = f", solved from {environment.solved_at:g}" if environment.solved_at is not None else ""
    yield Text(f"reward        {low:g} to {high:g}{solved}")
    yield Text("tasks         " + ", ".join(f"{len(environment.tasks(split))} {split}" for split in SPLITS))
    kinds = {task.kind for split in SPLITS[:2] for task in environment.tasks(split) if task.kind}
    if kinds:
        yield Text(f"kinds         {', '.join(sorted(kinds)[:10])}{' ...' if len(kinds) > 10 else ''}")


def _provenance(environment: BroughtEnvironment) -> Iterator[Text]:
    known = environment.manifest
    apart = "apart from its code" if known.hidden_apart else "its code can make or holds them, and clients hold it"
    yield Text(f"hidden tasks  {apart}")
    yield Text(f"brought from  {known.reference}")
    for part in ("code", "data", "requirements"):
        yield Text(f"{part:<14}{known.hashes[part] or 'none'}", "dim")


def _example(example: Mapping[str, Any]) -> Iterator[Text]:
    yield Text(f"\na play by {example['player']}, task {example['task']}", "bold")
    for tool in example["tools"]:
        function = tool["function"]
        names = ", ".join(function.get("parameters", {}).get("properties", {}))
        yield Text(f"  tool        {function['name']}({names}): {function.get('description', '')}")
    for message in example["messages"]:
        yield Text(f"  {message['role']:<12}{_beginning(shown(message))}")
    facts = "".join(f", {name} {value:g}" for name, value in example["facts"].items())
    yield Text(f"  reward      {example['reward']:g}, {'solved' if example['success'] else 'not solved'}{facts}")


def _beginning(text: str) -> str:
    """Return a text as it is, its lines below each other; of a long one the beginning."""
    beginning = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return safe(beginning).replace("\n", "\n" + " " * _INDENT)


def check_lines(found: EnvironmentCheck) -> Iterator[Line]:
    """Yield what a check without a model found."""
    yield Text.assemble((found.environment.name, "bold"), f"   {found.environment.title}")
    twice = {True: ", drawn twice the same", False: "", None: ""}[found.drawn_twice]
    counts = ", ".join(f"{count} {split}" for split, count in found.tasks.items())
    yield Text(f"tasks         {counts}; splits are disjoint{twice}")
    if found.kinds:
        yield Text("kinds         " + ", ".join(f"{kind}: {count}" for kind, count in sorted(found.kinds.items())[:10]))
    if found.players:
        rows = (
            (each.player, f"{each.reward:.3f}", f"{each.success:.0%}", f"{each.calls:.1f}", f"{each.characters:.0f}",
             f"{1000 * each.seconds:.1f} ms", str(each.plays))
            for each in found.players.values()
        )  # fmt: skip
        columns = ("player", "reward", "solved", "answers", "characters", "own code", "plays")
        yield _table("without a model, a play each of train and search tasks", columns, rows)
    yield from _faults(found.faults)
    yield from (Text.assemble(("note          ", "yellow"), remark) for remark in found.remarks)
    if not found.faults:
        yield Text("sound", "green")


def _faults(found: Iterable[str]) -> Iterator[Text]:
    return (Text.assemble(("fault         ", "red"), fault) for fault in found)


def _alone_lines(known: MeasuredEnvironment) -> Iterator[Text]:
    yield Text(f"measured {known.measured_at}, without a model", "bold")
    yield from _faults(known.faults or ())
    if known.calls_per_episode is not None and known.environment_seconds_per_episode is not None:
        seconds = 1000 * known.environment_seconds_per_episode
        yield Text(f"an episode    {known.calls_per_episode:.1f} answers, {seconds:.1f} ms of its own code")


def trial_lines(known: MeasuredEnvironment) -> Iterator[Text]:
    """Yield what was measured with a model."""
    yield Text(f"with the model {known.model}, measured {known.measured_at}", "bold")
    if unusual := unusual_conditions(known):
        yield Text("holds for     jobs with " + ", ".join(f"{name} {value}" for name, value in unusual.items()))
    if known.base_success is not None:
        interval = rate_interval(round(known.base_success * known.base_success_n), known.base_success_n)
        assert interval is not None
        yield Text(
            f"base success  {interval.mean:.2f} [{interval.low:.2f}, {interval.high:.2f}] of {known.base_success_n} "
            "search episodes (95 % Wilson)"
        )
    if known.equal_groups is not None:
        yield Text(
            f"equal groups  {known.equal_groups:.0%} of {known.equal_groups_n} groups of {known.group_size} have one "
            f"reward throughout, and teach nothing{_advice(known)}"
        )
    yield Text("an episode    " + ", ".join(_episode(known)))
    if known.cut_short:
        yield Text.assemble(
            ("note          ", "yellow"),
            f"{known.cut_short:.0%} of answers were cut at max_tokens or max_context: --set max_tokens=...",
        )
    if known.startup_s is not None:
        yield Text(f"startup       {known.startup_s:.1f} s")


def _advice(known: MeasuredEnvironment) -> str:
    if known.equal_groups is None or known.equal_groups < 0.9 or known.base_success is None:
        return ""
    return ": too easy for it" if known.base_success > 0.5 else ": too hard for it, or its answers are not understood"


def _episode(known: MeasuredEnvironment) -> Iterator[str]:
    if known.calls_per_episode is not None:
        yield f"{known.calls_per_episode:.1f} calls"
    if known.prompt_tokens is not None and known.sampled_tokens is not None:
        yield f"{known.prompt_tokens:.0f} prompt and {known.sampled_tokens:.0f} sampled tokens"
    if known.seconds_per_episode is not None:
        yield f"{known.seconds_per_episode:.3f} s with {known.concurrency} at once"
    if known.seconds_per_trained_episode is not None:
        yield f"{known.seconds_per_trained_episode:.3f} s trained"
