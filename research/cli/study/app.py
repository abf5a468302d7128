"""`ajet study`: the commands that look at studies and steer them, each imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import typer

from research.cli.lazy import Lazy, LazyGroup


class Studies(LazyGroup):
    """What can be done with studies."""

    lazy: ClassVar[Mapping[str, Lazy]] = {
        "plan": Lazy(
            "research.cli.study.plan",
            "plan",
            "Show what a study would be, what it could see and what it would cost; nothing is run.",
        ),
        "list": Lazy(
            "research.cli.study.shown.listing",
            "list_studies",
            "List all studies, newest first; one whose log cannot be read is shown as `corrupt`, with the reason.",
        ),
        "show": Lazy("research.cli.study.shown.looking", "show", "Show one study: hypotheses, design, runs, verdicts."),
        "watch": Lazy(
            "research.cli.study.steering", "watch", "Follow a study until it ends; it is not stopped when you leave."
        ),
        "approve": Lazy(
            "research.cli.study.approve",
            "approve",
            "Approve what a study waits for (`ajet research --approve`), after showing what it is and what it costs.",
        ),
        "deny": Lazy(
            "research.cli.study.approve",
            "deny",
            "Deny what a study waits for: it stops, and its verdicts so far stand. `ajet study resume` asks again.",
        ),
        "pause": Lazy(
            "research.cli.study.steering",
            "pause",
            "Let a study begin nothing new, while the runs that are under way finish; `resume` lets it go on.",
        ),
        "stop": Lazy(
            "research.cli.study.steering",
            "stop",
            "Stop a study: its runs are ended, what was collected is kept, `resume` goes on.",
        ),
        "resume": Lazy(
            "research.cli.study.steering",
            "resume",
            "Go on with a study that was paused or stopped, or whose controller was killed; runs that go on "
            "are adopted.",
        ),
        "amend": Lazy(
            "research.cli.study.amend",
            "amend",
            "Amend a study in the open: accept a violation, change its budget (before the lock too), or add a note.",
        ),
        "note": Lazy(
            "research.cli.study.amend",
            "note",
            "Write a note into a study, such as the answer to what its planner asks; the report shows it.",
        ),
        "veto": Lazy(
            "research.cli.study.amend",
            "veto",
            "Give a hypothesis up: its runs are ended, no more are begun, and it is judged on what is there.",
        ),
        "report": Lazy(
            "research.cli.study.reporting",
            "report",
            "Say where a study's report is; with --build, make it again from the log and the hashed files.",
        ),
        "recipe": Lazy(
            "research.cli.study.recipe",
            "recipe",
            "Print the best confirmed job of a study, for `ajet swarm start --job`; its evidence goes to stderr.",
        ),
        "verify": Lazy(
            "research.cli.study.proof",
            "verify",
            "Compute every number, hash, lock, level and verdict of a study again from its files and its log.",
        ),
        "export": Lazy(
            "research.cli.study.proof",
            "export",
            "Export a study to a folder that verifies elsewhere: its log, lock, runs' files, report and figures.",
        ),
    }


app = typer.Typer(cls=Studies, no_args_is_help=True)


@app.callback(
    help="Studies: plan, list, show, watch, approve, deny, pause, stop, resume, amend, veto, report, recipe, verify, "
    "export."
)
def study() -> None:
    """All commands of a study."""
