"""`ajet ui`: the pages on which studies are followed, reviewed and steered."""

import re
import socket
import webbrowser
from collections.abc import Sequence
from getpass import getuser
from pathlib import Path
from typing import Annotated

import typer

from research.cli.app import Json, answer, console, make_table, open_installation, show_progress
from research.errors import BadInput, NotReady
from research.installation.home import Home
from research.installation.studies import find_study
from research.orchestration.supervision import announce_pages
from research.text import warn
from research.ui.access import ROLES, Access
from research.ui.site import Site

app = typer.Typer(invoke_without_command=True, no_args_is_help=False)
key_app = typer.Typer(no_args_is_help=True, help="Keys for those who read and review.")
app.add_typer(key_app, name="key")


def access(home: Home) -> Access:
    try:
        user = "".join(each for each in getuser() if each.isalnum() or each in "._-")[:40]
    except (OSError, KeyError):  # a container's user without a name
        user = ""
    return Access(home.path / "ui/keys.json", owner=user or "owner")


@app.callback()
def ui(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; the next free if taken.")] = 8760,
    host: Annotated[
        str | None,
        typer.Option(help="The name under which a proxy with TLS in front reaches these pages; they stay on loopback."),
    ] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open them in a browser.")] = False,
    export: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write all pages into a new folder instead; no server.")
    ] = None,
    study: Annotated[list[str] | None, typer.Option(help="A study to export; all when left out.")] = None,
    planner: Annotated[bool, typer.Option(help="Export what the planner looked at and said.")] = True,
    json: Json = False,
) -> None:
    """Serve the pages on which studies are followed, reviewed, signed and steered; Ctrl-C ends them.

    They answer on this machine alone. From another one: `ssh -L 8760:127.0.0.1:8760 HOST`, and the printed address.
    The key in the address is the owner's, made anew at each start; readers get their own by `ajet ui key add`.

    Examples:
        ajet ui
        ajet ui --open
        ajet ui key add ann --role reviewer
        ajet ui --host ajet.example.org
        ajet ui --export pages --study larger-group
    """
    if context.invoked_subcommand is not None:
        return
    import uvicorn

    from research.ui.app import PageServer, make_app
    from research.ui.pages.addresses import PAGES

    home, log = open_installation()
    if export is not None:
        _export(Site(home, log, access(home)), export, study or [], json, planner=planner)
        return
    if study or json or not planner:
        raise BadInput(
            "expected --study, --json and --no-planner with --export FOLDER alone; add it, or leave them out"
        )
    if host is not None and not re.fullmatch(r"[A-Za-z0-9.-]{1,253}", host):
        raise BadInput(f"expected --host with the name of a host, such as ajet.example.org; found {host[:80]!r}")
    listening = bind(port)
    found = listening.getsockname()[1]
    hosts = [f"{name}:{found}" for name in ("ajet.localhost", "127.0.0.1", "localhost")]
    hosts += [host, f"{host}:443"] if host else []
    scheme = "https" if host else "http"
    keys = access(home)
    address = f"https://{host}" if host else f"http://{hosts[0]}"
    signed = f"{address}/sign-in#key={keys.owner_key}"
    site = Site(home, log, keys)
    out = console()
    out.print(f"pages      {signed}")
    if not host:
        out.print(f"           where that name is unknown: http://{hosts[1]}/sign-in#key={keys.owner_key}")
        if found != port and port:
            out.print(f"           port {port} is taken; it is {found}")
    if browser:
        webbrowser.open(signed)
    config = uvicorn.Config(
        make_app(site, PAGES, hosts, scheme), access_log=False, log_level="warning", lifespan="on", server_header=False,
        timeout_graceful_shutdown=2, proxy_headers=bool(host), forwarded_allow_ips="127.0.0.1",
    )  # fmt: skip
    with announce_pages(home, address):
        PageServer(config).run([listening])


def _export(site: Site, to: Path, names: Sequence[str], json: bool, *, planner: bool) -> None:
    from research.ui.export import export_pages
    from research.ui.pages.addresses import PAGES

    studies = [find_study(site.log, name) for name in names]
    with show_progress(json, "writing pages"):
        made = export_pages(site, PAGES, to, studies, planner=planner)
    site.close()
    for line in made.left_out:
        warn(f"left out, as it does not verify: {line}")
    counted = f"wrote {len(made.pages)} pages and {len(made.evidence)} files of evidence; open {to / 'index.html'}"
    told = {"folder": str(to), "pages": made.pages, "evidence": made.evidence, "left_out": made.left_out}
    answer(json, told, counted, f"verify a study of it: ajet study verify {to}/studies/ID")
    if not json:
        warn("the logs name the command that was typed and the machine; words of hidden plays and notes are in it")


def bind(port: int) -> socket.socket:
    """Return a socket that listens on loopback, at the first free port of ten; NotReady where there is none."""
    for number in range(port, min(port + 10, 65536)) if port else (0,):
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(("127.0.0.1", number))
            made.listen(128)
        except OSError:
            made.close()
            continue
        return made
    raise NotReady(
        f"expected a free port from {port} to {port + 9} on this machine; all are taken: name another, --port"
    )


@key_app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Who gets it; comments and signatures carry the name.")],
    role: Annotated[str, typer.Option(help=f"One of {', '.join(ROLES)}.")] = "reviewer",
    json: Json = False,
) -> None:
    """Hand out a key, which is shown this once.

    Example:
        ajet ui key add ann --role reviewer
    """
    made = access(Home.locate().prepare()).add(name, role)
    answer(json, {"name": name, "role": role, "key": made}, f"key of {name} ({role}): {made}")


@key_app.command("revoke")
def revoke(name: Annotated[str, typer.Argument(help="Whose key.")], json: Json = False) -> None:
    """Take a key back; who is signed in with it is signed out.

    Example:
        ajet ui key revoke ann
    """
    access(Home.locate()).revoke(name)
    answer(json, {"name": name}, f"the key of {name} opens nothing any more")


@key_app.command("list")
def list_keys(json: Json = False) -> None:
    """List who has a key.

    Example:
        ajet ui key list
    """
    known = access(Home.locate()).keys()
    rows = [(key.name, key.role) for key in known]
    table = make_table(("name", "role"), rows, wraps=("name",))
    answer(json, [{"name": name, "role": role} for name, role in rows], table if rows else "nobody has a key but you")
