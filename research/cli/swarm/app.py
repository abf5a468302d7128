"""`ajet swarm`: a swarm server of one's own, for agents that are not a study's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from research.cli.output import console, print_json, warn
from research.cli.swarm.inspect import episodes, export, inspect
from research.cli.swarm.running import running, swarm_folder
from research.environments.bring import environment_of
from research.installation.base_job import read_job
from research.installation.home import Home
from research.installation.server_process import SwarmProcess, SwarmProcessError, find_swarm, start_swarm, stop_swarm
from swarm.client import SwarmClient
from swarm.environments.registry import environments, get_environment, look_in
from swarm.errors import Unreachable
from swarm.job import Job, PathModel
from swarm.models import require_model_folder
from swarm.wire import ServerState, Status

DEFAULT_PORT = 8700
PATIENCE_S = 15.0
"""A server that does not say within so long what it does is stopped, or busy beyond use."""

HOW_TO_TRAIN = "ajet swarm start --environment guess, or --job FILE: there is no job under way"
_UNOPENED = (ServerState.OFFLINE, ServerState.BOOTING)

app = typer.Typer(no_args_is_help=True)
app.command()(episodes)
app.command()(inspect)
app.command()(export)


@app.callback()
def swarm() -> None:
    """Swarm servers: host a trainable model for any agent."""


@app.command()
def start(
    job: Annotated[Path | None, typer.Option(help="A job as JSON (see `ajet job explain`).")] = None,
    environment: Annotated[
        str | None, typer.Option(help="Default job on this environment: a name, a folder, an address.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Folder of the model, in place of the job's (docs/models.md).")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; another is taken if in use.")
    ] = DEFAULT_PORT,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Start a swarm server in the background; with a job, wait until it serves.

    Without one, a server that was stopped or failed while it trained takes its job up again, where it was.

    Examples:

        ajet swarm start --environment guess

        ajet swarm start --job job.json --port 9000

        ajet swarm start --job job.json --model .ajet/models/smollm2-135m
    """
    home = Home.locate()
    look_in(home.environments)
    if job is None and environment is not None and environment not in environments():
        environment = environment_of(environment, None, home.prepare(), warn).name
    wanted = _job(job, environment)
    if model is not None:
        wanted = _with_model(wanted or Job(), model)
        _warn_of_rate(wanted)
    home.prepare()
    folder = swarm_folder(home)
    found = find_swarm(folder)
    server = found or start_swarm(folder, models=home.models, port=port, idle=wanted is not None)
    with SwarmClient(server.url, server.admin_token) as client:
        if found is not None and (before := _status(server, client)).state is ServerState.FAILED:
            warn(f"the server had failed ({before.reason}); trying again")
            wanted = wanted or client.job()
            client.stop()
        if wanted is not None and not json:
            with console().status("booting the model (made on the spot at first use)"):
                status = client.ensure_training(wanted)
        else:
            status = client.ensure_training(wanted) if wanted is not None else client.status()
    if json:
        print_json(
            {"url": server.url, "tokens": str(server.folder / "tokens.json"), "status": status.model_dump(mode="json")}
        )
        return
    console().print(Text.assemble(f"swarm server   {server.url}   ", (status.state, "bold")))
    if status.fresh_start is not None:
        console().print(Text.assemble("a new training ", status.fresh_start))
    console().print(f"tokens         {server.folder / 'tokens.json'} (yours only)")
    off = status.state is ServerState.OFFLINE
    console().print(f"next           {HOW_TO_TRAIN if off else 'ajet swarm status, ajet swarm stop'}")


@app.command("status")
def show_status(json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False) -> None:
    """Show what the swarm server is doing.

    Examples:

        ajet swarm status

        ajet swarm status --json
    """
    server = running()
    with SwarmClient(server.url, server.admin_token) as client:
        status = _status(server, client)
    if json:
        print_json({"url": server.url, "pid": server.pid, **status.model_dump(mode="json")})
    else:
        console().print(_status_table(server, status))


@app.command()
def stop(json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False) -> None:
    """Stop the swarm server cleanly; `ajet swarm start` takes its job up again.

    Example:

        ajet swarm stop
    """
    server = running()
    stop_swarm(server)
    if json:
        print_json({"stopped": server.url})
    else:
        console().print(f"stopped the swarm server at {server.url}")


def _status(server: SwarmProcess, client: SwarmClient) -> Status:
    try:
        return client.status(within_s=PATIENCE_S)
    except Unreachable as error:
        raise SwarmProcessError(
            f"{error}, but its process {server.pid} is there: it is stopped or busy. Try again, look into "
            f"{server.folder / 'server.log'}, or end it with `ajet swarm stop`"
        ) from error


def _job(path: Path | None, environment: str | None) -> Job | None:
    if path is None:
        return None if environment is None else Job(environment=get_environment(environment).name)
    return read_job(path)


def _with_model(job: Job, path: str) -> Job:
    """Return the job with the model of a folder; raise InvalidRequest where that is none."""
    require_model_folder(path)
    said = job.model if isinstance(job.model, PathModel) else PathModel(path=path)  # a tiny one's warm start is its own
    return job.model_copy(
        update={"model": said.model_copy(update={"path": str(Path(path).absolute()), "sha256": None})}
    )


def _warn_of_rate(job: Job) -> None:
    """Say that the default step size, which is the tiny model's, breaks a larger one of which all weights train."""
    if not job.lora_rank and job.learning_rate >= Job().learning_rate:
        warn(
            f"learning_rate {job.learning_rate:g} is for the tiny model, or an adapter: all weights of a pretrained "
            "one want about 2e-5 (docs/models.md)"
        )


def _step(status: Status) -> str:
    """Return the step; of a training that is not open yet nobody knows it, and it is not 0."""
    if not status.steps:
        return "-"
    return f"{'-' if status.state in _UNOPENED else status.step} of {status.steps}"


def _status_table(server: SwarmProcess, status: Status) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    rows: list[tuple[str, Any]] = [
        ("server", f"{server.url} (pid {server.pid})"),
        ("state", status.state + (f": {status.reason}" if status.reason else ", updating" if status.updating else "")),
        ("job", (status.job_digest or "none")[:16]),
        *([("new training", status.fresh_start)] if status.fresh_start is not None else []),
        ("step", _step(status)),
        *([("waits", status.waiting)] if status.waiting is not None else []),
        *([("policy version", status.policy_version)] if status.state not in _UNOPENED else []),
        ("episodes", f"{status.open_episodes} open, {status.collected_episodes} of {status.needed_episodes} collected"),
        *((name, f"{value:.4g}") for name, value in sorted(status.metrics.items())),
    ]
    for name, value in rows:
        table.add_row(Text(name, "dim"), str(value))
    return table
