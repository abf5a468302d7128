"""`ajet swarm` start, stop, list, token."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel
from rich.text import Text

from research.cli.app import Json, answer, console, make_facts, make_table, print_json, show_progress, takes_options
from research.cli.episodes import episodes, export, inspect
from research.cli.swarm_admin import check_backend, export_model, shares
from research.cli.top import Watcher, status_lines, top
from research.environments.install import load_environment
from research.errors import BadInput, NotReady
from research.files import read_json
from research.installation import servers
from research.installation.base_job import describe_unusual_rate, read_job, require_backend, with_fields
from research.installation.home import Home
from research.terminal import warn
from swarm.client import SwarmClient
from swarm.environments.registry import add_folder, environments, get_environment
from swarm.errors import SwarmError, UnknownAnswer, Unreachable
from swarm.job import Job, PathModel
from swarm.models import require_model_folder
from swarm.wire import ServerState, Status

SILENT_AFTER_S = 3.0
"""A server that does not say within so long what it does is listed as silent."""
UNNAMED = "-"


def list_servers(json: Json = False) -> None:
    """List the swarm servers of this installation.

    Example:
        ajet swarm list
    """
    rows: list[dict[str, Any]] = []
    for name, process in servers.servers(Home.locate()):
        row: dict[str, Any] = {"name": name, "url": None, "pid": None, "state": "down", "step": None, "steps": None}
        rows.append(row)
        if process is None:
            continue
        row |= {"url": process.url, "pid": process.pid}
        try:
            with SwarmClient(process.url, process.admin_token) as client:
                status = client.status(within_s=SILENT_AFTER_S)
            row |= {"state": str(status.state), "step": status.step, "steps": status.steps}
        except UnknownAnswer:
            row["state"] = "not understood"
        except SwarmError:
            row["state"] = "silent"
    cells = (
        (
            *(str(row[name] or UNNAMED) for name in ("name", "url", "pid", "state")),
            UNNAMED if row["steps"] is None else f"{row['step']} of {row['steps']}",
        )
        for row in rows
    )
    table = make_table(("name", "address", "pid", "state", "step"), cells)
    answer(json, rows, table if rows else "no swarm server was ever started here; ajet swarm start --environment guess")


def token(
    role: Annotated[Literal["admin", "client", "viewer"], typer.Option(help="What the key allows.")] = "client",
    name: Annotated[
        str | None,
        typer.Option("--server", "--name", help="Name of the server; else that of AJET_SERVER, else the one without."),
    ] = None,
) -> None:
    """Print a key of a server that runs here, and nothing else: export AJET_TOKEN=$(ajet swarm token).

    Examples:
        export AJET_TOKEN=$(ajet swarm token)
        ajet swarm token --role admin --server speaker
    """
    process = servers.find_running(servers.own_name(name))
    keys = read_json(process.folder / "tokens.json") or {}
    if role not in keys:
        raise NotReady(f"expected a key for the role {role} in {process.folder / 'tokens.json'}; found none")
    if sys.stdout.isatty():
        warn("a key is shown on this terminal: who reads it may use the server")
    sys.stdout.write(f"{keys[role]}\n")


RETRY_TIMEOUT_S = 15.0
"""A server that does not say within so long what it does is stopped, or busy beyond use."""

app = typer.Typer(no_args_is_help=True)
app.command()(episodes)
app.command()(inspect)
app.command()(export)
app.command()(top)
app.command("list")(list_servers)
app.command()(token)
app.command()(shares)
app.command("export-model")(export_model)


class StartOptions(BaseModel):
    """Options of `ajet swarm start`: a job, what of it is replaced, and how a server is started here."""

    job: Annotated[Path | None, typer.Option(help="A job as JSON (see `ajet job explain`).")] = None
    environment: Annotated[
        str | None, typer.Option(help="The job's environment, in place of its own: a name, a folder, an address.")
    ] = None
    model: Annotated[str | None, typer.Option(help="Folder of the model, in place of the job's (docs/models.md).")] = (
        None
    )
    backend: Annotated[
        str | None,
        typer.Option(help="Backend, in place of the job's: local, verl (docs/cluster.md), or an installed one."),
    ] = None
    max_context: Annotated[
        int | None, typer.Option(help="Most tokens of prompt and answer, in place of the job's.", show_default=False)
    ] = None
    check: Annotated[
        bool, typer.Option("--check", help="Start nothing: say what the backend verl finds and lacks here.")
    ] = False
    port: Annotated[int | None, typer.Option(
        min=0, max=65535, help="Port; another is taken if in use.", show_default="8700, or that of its last start",
    )] = None  # fmt: skip
    name: Annotated[
        str | None, typer.Option(help="Name of the server, where several run here.", show_default=False)
    ] = None
    host: Annotated[
        str | None,
        typer.Option(help="Address to bind; one beyond 127.0.0.1 needs --token-file.", show_default="127.0.0.1"),
    ] = None
    store: Annotated[str | None, typer.Option(
        help="URL of its database, postgresql+psycopg://...; one with a password rather in AJET_SWARM_STORE.",
        show_default="SQLite in its folder",
    )] = None  # fmt: skip
    token_file: Annotated[
        Path | None, typer.Option(help="File, yours alone, with an admin token of your own.", show_default=False)
    ] = None
    peer: Annotated[list[str] | None, typer.Option(
        "--peer", help="Address of a server to ask what became of a team; repeatable.", show_default=False,
    )] = None  # fmt: skip
    server: servers.Server = None

    def wanted_job(self) -> Job | None:
        """Return the job that is to be trained; None where none is asked for. Raises what is wrong with it."""
        environment = self.environment
        if environment is not None and environment not in environments():
            environment = load_environment(environment, None, Home.locate().prepare(), warn).name
        asked = (self.job, environment, self.model, self.backend, self.max_context)
        if all(value is None for value in asked):
            return None
        job = Job() if self.job is None else read_job(self.job)
        if environment is not None:
            job = job.model_copy(update={"environment": get_environment(environment).name})
        if self.model is not None:
            require_model_folder(self.model)
            own = job.model if isinstance(job.model, PathModel) else PathModel(path=self.model)  # no tiny warm start
            place = {"path": str(Path(self.model).absolute()), "sha256": None}
            job = with_fields(job, model=own.model_copy(update=place))
        if self.backend is not None:
            job = with_fields(job, backend=self.backend)
        if self.max_context is not None:
            job = with_fields(job, max_context=self.max_context)
        if (odd := describe_unusual_rate(job)) is not None:
            warn(odd)
        return job

    def binding_changes(self, job: Job | None) -> dict[str, Any]:
        """Return the fields of a Binding that are said; the job says in which environment of Python it runs."""
        said = {
            "host": self.host, "store": self.store, "peers": tuple(self.peer or ()),
            "token_file": self.token_file and str(self.token_file.expanduser().absolute()),
            "backend": job and ("verl" if job.backend == "verl" else "local"),
        }  # fmt: skip
        return {field: value for field, value in said.items() if value}


@app.command()
@takes_options(StartOptions)
def start(asked: StartOptions, json: Json = False) -> None:
    """Start a swarm server in the background; with a job, wait until it serves.

    Without one, a server that was stopped or failed while it trained takes its job up again, where it was.

    Examples:
        ajet swarm start --environment guess
        ajet swarm start --job job.json --port 9000
        ajet swarm start --job job.json --environment my_environment/
        ajet swarm start --job job.json --model .ajet/models/smollm2-135m
        ajet swarm start --job job.json --backend verl --check
        ajet swarm start --name speaker --job speaker.json
        ajet swarm start --host 0.0.0.0 --token-file ~/.ajet-token --store postgresql+psycopg://ajet@db/ajet
        AJET_TOKEN=... ajet swarm start --server http://trainer:8700 --job job.json
    """
    home, (name, server) = Home.locate(), servers.resolve_target(asked.name, asked.server)
    add_folder(home.environments)
    wanted = asked.wanted_job()
    if wanted is not None and server is None:
        require_backend(wanted.backend)
    home.prepare()
    if asked.check:
        check_backend(wanted or Job(), home.models, as_json=json)
    if server is None:
        name, changes = None if name is None else servers.validate_name(name), asked.binding_changes(wanted)
        process, ran = servers.ensure_server(home, name, changes, port=asked.port, idle=wanted is not None)
        at = servers.ServerConnection(process.url, process.admin_token, process)
    else:
        local = name is not None or bool(asked.binding_changes(None))
        if wanted is not None and isinstance(wanted.model, PathModel) and Path(wanted.model.path).exists():
            warn(f"the model's folder {wanted.model.path} is looked for where the server runs, not here")
        if local:
            raise BadInput(
                f"expected the server {server} (--server, or AJET_SERVER) alone, or with --job: it runs already; found "
                "options that start one here; leave them out, or name one that is to run here with --name"
            )
        if wanted is None:
            raise BadInput(f"expected --job FILE or --environment NAME for the server {server}; found neither")
        at, ran = servers.connect_server(server), True
    with SwarmClient(at.url, at.token) as client:
        if ran and (before := _status(at, client)).state is ServerState.FAILED:
            warn(f"the server had failed ({before.reason}); trying again")
            wanted = wanted or client.job()
            client.stop()
        if wanted is None:
            status = client.status()
        else:
            with show_progress(json, "") as note:
                note("booting the model (made on the spot at first use: a minute or two)")
                status = client.ensure_training(wanted)
    tokens = None if at.process is None else str(at.process.folder / "tokens.json")
    lines = [Text.assemble(f"swarm server   {at.url}   ", (status.state, "bold"))]
    if status.fresh_start is not None:
        lines.append(Text.assemble("a new training ", status.fresh_start))
    if tokens is not None:
        lines.append(Text(f"tokens         {tokens} (yours only)"))
    following = "ajet swarm status, ajet swarm stop"
    if status.state is ServerState.OFFLINE:
        following = "ajet swarm start --environment guess, or --job FILE: there is no job under way"
    lines.append(Text(f"next           {following}"))
    answer(json, {"url": at.url, "tokens": tokens, "status": status}, iter(lines))


@app.command("status")
def show_status(server: servers.Server = None, json: Json = False) -> None:
    """Show what the swarm server is doing, in twelve lines; --json has every metric. `ajet swarm top` is live.

    Example:
        ajet swarm status
    """
    at = servers.connect_server(server)
    with SwarmClient(at.url, at.token) as client:
        status = _status(at, client)
        if json:
            pid = None if at.process is None else at.process.pid
            print_json({"url": at.url, "pid": pid, **status.model_dump(mode="json")})
            return
        where = at.url if at.process is None else f"{at.url} (pid {at.process.pid})"
        console().print(make_facts(status_lines(Watcher(at.url, client).poll(), where)))


@app.command()
def stop(server: servers.Server = None, json: Json = False) -> None:
    """Stop the swarm server cleanly; `ajet swarm start` takes its job up again.

    Of a server on another machine its training is stopped, and the process there goes on.

    Examples:
        ajet swarm stop
        ajet swarm stop --server speaker
    """
    at = servers.connect_server(server)
    if at.process is not None:
        servers.stop_swarm(at.process)
        said = f"stopped the swarm server at {at.url}"
    else:
        with SwarmClient(at.url, at.token) as client:
            client.stop()
        said = f"stopped the training at {at.url}; its process there goes on, without a job"
    answer(json, {"stopped": at.url, "process": at.process is not None}, said)


def _status(at: servers.ServerConnection, client: SwarmClient) -> Status:
    try:
        return client.status(within_s=RETRY_TIMEOUT_S)
    except Unreachable as error:
        if at.process is None or isinstance(error, UnknownAnswer):
            raise
        raise NotReady(
            f"{error}, but its process {at.process.pid} is there: it is stopped or busy. Try again, look into "
            f"{at.process.folder / 'server.log'}, or end it with `ajet swarm stop`"
        ) from error
