"""A study in a few lines for people, and as one JSON value for scripts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from research.budget import format_flag
from research.needs import active, budget_decision, runs_left
from research.progress import progress_of
from studies import LogCorrupt, StudyState
from studies.lock import lock_error
from studies.question import question_of
from studies.report.headline import headline

CORRUPT = "corrupt"
"""Status of a study whose log cannot be read."""
_STYLES = {
    "supported": "bold green", "refuted": "bold red", "equivalent": "bold blue", "inconclusive": "bold yellow",
    "invalid": "bold red",
}  # fmt: skip


def summary(state: StudyState, folder: Path) -> dict[str, Any]:
    """Return what a script wants to know: status, counts, verdicts, report paths."""
    far = progress_of(state)
    return {
        "study": state.id,
        "topic": state.topic,
        "status": state.status,
        "reason": state.stopped_reason or state.paused_reason or state.concluded_reason,
        "planner": dict(state.planner),
        "design_hash": state.design_hash,
        "runs": run_counts(state),
        "progress": {"done": far.done, "at_most": far.most, "percent": round(far.percent, 1)},
        "verdicts": [verdict.model_dump(mode="json") for verdict in state.verdicts],
        "report": report_paths(state, folder),
        "elapsed_s": state.elapsed_s,
    }


def unreadable(study: str, error: LogCorrupt) -> dict[str, Any]:
    """Return the same of a study whose log is corrupt: what is wrong with it, and nothing else."""
    return {
        "study": study, "topic": None, "status": CORRUPT, "reason": str(error), "planner": None, "design_hash": None,
        "runs": {}, "progress": None, "verdicts": [], "report": None, "elapsed_s": None,
    }  # fmt: skip


def run_counts(state: StudyState) -> dict[str, int]:
    """Return how many runs stand where, by status."""
    counts: dict[str, int] = {"planned": len(state.runs)}
    for run in state.runs.values():
        if run.status != "planned":
            counts[run.status] = counts.get(run.status, 0) + 1
    return counts


def report_paths(state: StudyState, folder: Path) -> dict[str, str] | None:
    """Return where the report's files are, or None while there is none."""
    if state.report is None:
        return None
    return {kind: str(folder / state.report[kind]["path"]) for kind in ("markdown", "html")}


def generated_rewards(state: StudyState) -> list[Text]:
    """Return a line for each reward function that the planner's model wrote; its source is in the report."""
    code = state.design.code if state.design is not None else {}
    return [
        Text(
            f"reward {name}  written by the planner's model, {len(source.splitlines())} lines, "
            f"sha256 {hashlib.sha256(source.encode()).hexdigest()[:16]}; runs in containers only"
        )
        for name, source in code.items()
    ]


def opening(state: StudyState) -> list[Text]:
    """Return the first lines of a study: what was asked, what is tested, and what of the topic is not."""
    question = question_of(state)
    return [
        Text(f"asked  {question.asked}"),
        *(Text(f"tested  {sentence}") for sentence in question.tested),
        *(Text(f"not tested  {left}", "yellow") for left in question.not_tested),
    ]


def ending(state: StudyState, folder: Path) -> RenderableType:
    """Return the last lines of `ajet research`: the report's own verdict sentences, what they mean in practice, where
    the report is, and how to go on when stopped."""
    head = headline(state, lock_error(state, folder))
    lines: list[RenderableType] = [Text(warning, "bold red") for warning in head.warnings]
    for answer in head.answers if state.verdicts else ():
        name = f"{answer.hypothesis}: " if len(head.answers) > 1 else ""
        lines.append(Text.assemble(name, (answer.label, _STYLES.get(answer.verdict, "bold")), f": {answer.sentence}"))
        if answer.hypothesis in {verdict.hypothesis for verdict in state.verdicts}:
            lines.append(Text(f"in practice: {answer.practice}"))
    if state.status == "concluded":
        lines.append(Text(f"ask next, {head.next.why}: {head.next.command}"))
    if state.status == "stopped":
        lines.append(Text(f"stopped: {state.stopped_reason}; {_how_to_go_on(state)}", "yellow"))
    if state.status == "paused":
        lines.append(Text(paused(state), "yellow"))
    for path in (report_paths(state, folder) or {}).values():
        lines.append(Text(f"report  {path}"))
    return Group(*lines)


def paused(state: StudyState) -> str:
    """Say why a study is paused, what that means and how it goes on."""
    said = "nothing new begins, what runs finishes; go on with"
    return f"paused: {state.paused_reason}; {said}: ajet study resume {state.id}"


def _how_to_go_on(state: StudyState) -> str:
    """Say what makes more runs: a study whose budget is used up only concludes when it is resumed as it is."""
    resume = f"ajet study resume {state.id}"
    more = format_flag(2 * state.budget_s)
    if budget_decision(state) is None:
        if state.design is None and state.noise_plan is None:
            return (
                f"plan again with: {resume}; where time was missing, give it more before: "
                f'ajet study amend {state.id} --budget {more} --reason "..."'
            )
        return f"go on with: {resume}"
    if runs_left(state) == 0:
        return f"conclude with: {resume}" if state.design else "start it again with a larger --max-runs"
    if state.design is not None and state.design.hypotheses and not active(state, state.design):
        return f"each hypothesis had its last look, so more time changes nothing; conclude with: {resume}"
    without = "stops again" if state.design is None else "concludes"
    return (
        f'for more runs: ajet study amend {state.id} --budget {more} --reason "..." and then {resume}; '
        f"resumed without, it {without}"
    )
