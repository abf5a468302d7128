"""`ajet study`: commands that look at studies and steer them, each imported when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import typer

from research.cli.app import STUDY_HELP, LazyCommand, LazyGroup, commands


class Studies(LazyGroup):
    """What can be done with studies."""

    lazy: ClassVar[Mapping[str, LazyCommand]] = {
        **commands(
            "research.cli.plan",
            plan="Show what a study would be, what it could see and what it would cost; nothing is run.",
        ),
        "list": LazyCommand(
            "research.cli.listing",
            "list_studies",
            "List all studies, newest first; one whose log cannot be read is shown as `corrupt`, with the reason.",
        ),
        **commands("research.cli.studies", show="Show one study: hypotheses, design, runs, verdicts."),
        **commands(
            "research.cli.steering",
            watch="Follow a study until it ends; it is not stopped when you leave.",
            approve="Approve what a study waits for (`ajet research --approve`), after showing what it is and what it "
            "costs.",
            deny="Deny what a study waits for: it stops, and its verdicts so far stand. `ajet study resume` asks "
            "again.",
            pause="Let a study begin nothing new, while the runs that are under way finish; `resume` lets it go on.",
            stop="Stop a study: its runs are ended, what was collected is kept, `resume` goes on.",
            resume="Go on with a study that was paused or stopped, or whose controller was killed; runs that go on are "
            "adopted.",
            amend="Amend a study in the open: accept a violation, change its budget (before the lock too), or add a "
            "note.",
            note="Write a note into a study, such as the answer to what its planner asks; the report shows it.",
            veto="Give a hypothesis up: its runs are ended, no more are begun, and it is judged on what is there.",
        ),
        **commands(
            "research.cli.reports",
            report="Say where a study's report is; with --build, make it again from the log and the hashed files.",
        ),
        **commands(
            "research.cli.findings",
            recipe="Print the best confirmed job of a study, for `ajet swarm start --job`; its evidence goes to "
            "stderr.",
        ),
        **commands(
            "research.cli.reports",
            verify="Compute every number, hash, lock, level and verdict of a study again from its files and its log.",
            export="Export a study to a folder that verifies elsewhere: its log, lock, runs' files, report and "
            "figures.",
        ),
    }


app = typer.Typer(cls=Studies, no_args_is_help=True)


@app.callback(help=STUDY_HELP)
def study() -> None:
    """All commands of a study."""
