"""`ajet passive`: answer a chat application's users from groups that train, if they consent."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from rich.table import Table
from rich.text import Text

from research.cli.output import console, print_json
from research.installation.home import Home
from research.servers.fronts import front_folder, keep_token, path_of_user, running_front
from research.servers.option import Server
from research.servers.running import reached

DEFAULT_PORT = 8750
app = typer.Typer(no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Application = Annotated[str, typer.Argument(help="Name of an application: lower-case letters, digits, . _ -")]


@app.callback()
def passive() -> None:
    """Passive mode: a chat application's use becomes training data, of users who consent."""


@app.command()
def start(
    score: Annotated[Path | None, typer.Option(help="FILE.py with score(request, answers) -> numbers.")] = None,
    judge: Annotated[
        str | None, typer.Option(help="`self`: the served model compares; or an OpenAI-compatible address.")
    ] = None,
    judge_model: Annotated[
        str | None, typer.Option(help="Model of the judge's address; its key is read from AJET_JUDGE_KEY.")
    ] = None,
    feedback_s: Annotated[
        float, typer.Option(min=0, max=86_000, help="Seconds a user's feedback is waited for before a group is scored.")
    ] = 0.0,
    server: Server = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 is any free one.")] = DEFAULT_PORT,
    per_user: Annotated[float, typer.Option(min=1, help="Requests a minute of one user.")] = 20.0,
    per_application: Annotated[float, typer.Option(min=1, help="Requests a minute of one application.")] = 600.0,
    most_groups: Annotated[int, typer.Option(min=1, help="Groups open at the same time.")] = 64,
) -> None:
    """Serve applications until Ctrl-C, in front of a swarm server that trains.

    Nobody is trained on before the application has said that this user consents (docs/swarm.md).

    Examples:

        ajet passive start --judge self

        ajet passive start --score score.py --feedback-s 60

        AJET_TOKEN=... ajet passive start --server http://127.0.0.1:8700 --feedback-s 300
    """
    home = Home.locate().prepare()
    url, token = _server(server)
    folder = front_folder(home)
    given = {
        "--score": score, "--judge": judge, "--judge-model": judge_model, "--feedback-s": feedback_s or None,
        "--port": port, "--per-user": per_user, "--per-application": per_application, "--most-groups": most_groups,
    }  # fmt: skip
    options = [text for name, value in given.items() if value is not None for text in (name, str(value))]
    command = ["--directory", str(folder), "--server", url, "--token-file", str(keep_token(folder, token)), *options]
    os.execv(sys.executable, [sys.executable, "-m", "swarm.passive", *command])  # signals are the front's own


@app.command()
def key(
    name: Application,
    revoke: Annotated[bool, typer.Option(help="Void the application's key and give no other.")] = False,
    json: Json = False,
) -> None:
    """Make a key for an application and show it, this once; an older key of it is void.

    Examples:

        ajet passive key chat

        ajet passive key chat --revoke
    """
    front = running_front(Home.locate())
    if revoke:
        front.ask("DELETE", f"/admin/applications/{quote(name, safe='')}")
        print_json({"name": name, "key": None}) if json else console().print(f"{name} has no key any more")
        return
    made = front.ask("POST", "/admin/applications", {"name": name})
    if json:
        print_json({"url": f"{front.url}/v1", **made})
    else:
        console().print(made["key"])


@app.command()
def status(json: Json = False) -> None:
    """Show the front: its applications, and what became of requests and groups.

    Examples:

        ajet passive status

        ajet passive status --json
    """
    front = running_front(Home.locate())
    found = front.ask("GET", "/admin/status")
    if json:
        print_json({"url": front.url, "pid": front.pid, **found})
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    rows = {
        "front": f"{front.url}/v1 (pid {front.pid})",
        "applications": ", ".join(found["applications"]) or "none; ajet passive key NAME",
        "open groups": found["groups"],
        "to erase": f"{found['episodes_to_erase']} episodes{_because(found.get('erasing_waits_for'))}",
        **found["counts"],
    }
    for name, value in rows.items():
        table.add_row(Text(name, "dim"), str(value))
    console().print(table)


@app.command("delete-user")
def delete_user(application: Application, user: str, json: Json = False) -> None:
    """Delete what is held of an application's user, here and on the swarm server; learned weights stay as they are.

    Examples:

        ajet passive delete-user chat user-17

        ajet passive delete-user chat user-17 --json
    """
    found = running_front(Home.locate()).ask("DELETE", path_of_user(application, user))
    if json:
        print_json(found)
        return
    console().print(f"deleted; {found['episodes_erased']} episodes erased on the swarm server")
    if found["episodes_pending"]:
        console().print(
            f"{found['episodes_pending']} episodes are erased later, by the front itself"
            f"{_because(found.get('pending_because'))}"
        )


def _because(reason: str | None) -> str:
    return "" if reason is None else f": {reason}"


def _server(asked: str | None) -> tuple[str, str]:
    """Return the address of the swarm server and a token for it."""
    found = reached(asked, role="client")
    return found.url, found.token
