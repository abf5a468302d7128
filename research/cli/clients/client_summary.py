"""What `ajet client run` says at the end, and the exit code it ends with."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from research.agents.run import AgentResult, job_status
from research.cli.output import console, warn
from sandboxes.shown import shown

FAILED = 1
EXPLAINED = (2, 3)
"""Exit codes of an agent's process that printed the reason itself: bad input, and a server that is lost."""


def exit_code(ended: AgentResult) -> int:
    """Return the command's exit code."""
    if ended.exit.reason == "finished":
        return FAILED if ended.unfinished else 0
    return ended.exit.code or FAILED if _explained(ended) else FAILED


def show(ended: AgentResult) -> None:
    """Write how it ended, for people."""
    if ended.result is not None:
        asked = ended.run.request
        said = (_during if asked.during else _trained if asked.action == "play" else _evaluated)(ended.result)
        console().print(shown(said))  # the file is the agent's, and so are its words
    if ended.restarts:
        console().print(f"restarts       {len(ended.restarts)}; what is told is of the last client")
    if ended.reloads:
        console().print(f"reloads        {ended.reloads}; what is told is of the last code")
    if ended.status is not None and ended.result is not None:
        console().print(f"the job        {job_status(ended.status)}")
    for reason, count in sorted(ended.refused.items()):
        console().print(f"refused        {count} times: {reason.removeprefix('refused: ')}")
    if ended.egress_log is not None:
        console().print(f"connections    {ended.egress_log}")


def tell_why(ended: AgentResult) -> None:
    """Write to stderr why it failed, unless the process printed that itself."""
    if ended.exit.reason != "finished" and not _explained(ended):
        warn(_why(ended))
    if ended.unfinished:
        warn("the agent ended before the job was finished; run it again, and it goes on where its stream stands")


def _explained(ended: AgentResult) -> bool:
    return ended.exit.reason == "error" and ended.exit.code in EXPLAINED


def _trained(summary: Mapping[str, Any]) -> str:
    dropped = summary.get("dropped")
    dropped = dropped if isinstance(dropped, dict) else {}
    lost = ", ".join(f"{count} by {reason}" for reason, count in sorted(dropped.items())) or "none"
    return f"trained        {summary.get('episodes')} episodes, {_means(summary)}; dropped: {lost}"


def _evaluated(outcomes: Mapping[str, Any]) -> str:
    found = outcomes.get("episodes")
    episodes = [episode for episode in found if isinstance(episode, dict)] if isinstance(found, list) else []
    said = {what: [episode.get(what) for episode in episodes] for what in ("reward", "success")}
    means = {f"{what}_mean": None if set(values) <= {None} else _mean(values) for what, values in said.items()}
    said_of = [str(episode["failed"]) for episode in episodes if episode.get("failed")]
    failed = Counter(found[0] if (found := re.match(r"\w{1,40}", text)) else "an error" for text in said_of)
    why = ", ".join(f"{count} by {name}" for name, count in failed.most_common(3))
    lost = f"; failed by the agent, which counts as not solved: {why}" if why else ""
    version = outcomes.get("policy_version")
    return f"evaluated      {len(episodes)} episodes, {_means(means)}; policy version {version}{lost}"


def _during(evaluations: Mapping[str, Any]) -> str:
    found = evaluations.get("evaluations")
    lines = [_evaluated(one) for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return "\n".join(lines) or "evaluated      nothing: training waited for no evaluation"


def _mean(values: Iterable[Any]) -> float:
    """Return the mean of what is a number: the file is the agent's, and may hold anything."""
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    return sum(numbers) / max(1, len(numbers))


def _means(summary: Mapping[str, Any]) -> str:
    said = f"mean reward {_mean([summary.get('reward_mean')]):.3f}"
    success = summary.get("success_mean")
    return said if success is None else f"{said}, solved {_mean([success]):.3f}"


def _why(ended: AgentResult) -> str:
    limits, seconds = ended.run.place.given.limits, ended.run.request.time_limit_s
    return {
        "out_of_memory": f"the agent used up its memory of {limits.memory_bytes >> 20} MiB; give it more with --memory",
        "timeout": f"the time limit of {seconds:g} s is over; give it more with --time-limit",
        "error": f"the agent's process ended with exit code {ended.exit.code}; its last words are above",
        "stopped": "the agent was stopped",
        "killed": "the agent was ended from outside",
        "lost": "the agent's container is gone, and nobody saw how it ended",
    }[ended.exit.reason]
