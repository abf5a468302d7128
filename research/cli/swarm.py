"""`ajet swarm` start, stop, list, token, shares, export-model, and the check of a backend."""

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel
from rich.text import Text

from research.cli.app import Json, answer, console, make_table, print_json, show_progress, takes_options
from research.cli.episodes import episodes, export, inspect
from research.cli.top import poll, screen, top
from research.environments.install import load_environment
from research.errors import BadInput, ModelFailed, NotReady
from research.files import load_table, read_json
from research.installation import servers
from research.installation.base_job import describe_unusual_rate, python_of, read_job, require_backend, with_fields
from research.installation.home import Home
from research.models.fetch import run_command
from research.text import warn
from swarm.client import SwarmClient
from swarm.client.transport import server_folder
from swarm.environments.registry import add_folder, environments, get_environment
from swarm.errors import SwarmError, UnknownAnswer, Unreachable
from swarm.job import Job, PathModel
from swarm.models import ModelCard, require_model_folder
from swarm.wire import ServerState, Status, StreamStatus, stream_label


def check_backend(job: Job, models: Path, *, as_json: bool) -> None:
    """Print what the job's backend finds in its server's environment (else NotReady); exit with its code."""
    require_backend(job.backend)
    if job.backend != "verl":
        raise NotReady(f"expected --check with the backend verl, found {job.backend}: the others check as they start")
    command = [python_of("verl"), "-m", "swarm.backends.verl.cluster", "--job", job.model_dump_json()]
    command += ["--models", str(models), *(["--json"] if as_json else [])]
    raise typer.Exit(subprocess.run(command, check=False).returncode)


def export_model(
    to: Annotated[Path, typer.Argument(help="The folder to write; it must not be there yet, or be empty.")],
    step: Annotated[str, typer.Option(help="A step whose checkpoint is kept, latest or best.")] = "latest",
    lora: Annotated[
        Literal["merged", "apart"], typer.Option(help="A LoRA adapter: merged into the weights, or apart.")
    ] = "merged",
    job: Annotated[
        Path | None, typer.Option(help="Whose training, as a job's JSON; else the server's, else the newest one's.")
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="Name of the server, where several were started here.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output: the card.")] = False,
) -> None:
    """Export the trained model: a Hugging Face folder with a card that says where it comes from.

    The server may run or be stopped: what it wrote is read, and nothing of it is changed.

    Examples:
        ajet swarm export-model my-model
        ajet swarm export-model my-model --step 40 --json
        ajet swarm export-model my-adapter --lora apart
        ajet swarm export-model best-speaker --step best --server speaker
    """
    require_backend("local")
    home = Home.locate()
    folder = server_folder(home.path, servers.own_name(server))
    if not folder.is_dir():
        names = ", ".join(servers.find_server_names(home))
        known = f"; those started here: {names}" if names else ""
        raise NotReady(f"expected a swarm server's folder at {folder}, found none: train first{known}")
    wanted = None if job is None else read_job(job)
    if wanted is None and (running := servers.find_swarm(folder)) is not None:
        with SwarmClient(running.url, running.admin_token) as client:
            wanted = client.job()
    store = servers.load_binding(folder).store
    with tempfile.TemporaryDirectory(prefix="ajet-export-") as scratch:
        out = Path(scratch) / "card.json"
        command = [
            sys.executable, "-m", "swarm.server.model_export", "--directory", str(folder),
            "--models", str(home.models), "--environments", str(home.environments), "--to", str(to.absolute()),
            "--step", step, "--out", str(out),
            *(["--apart"] if lora == "apart" else []),
            *(["--job", wanted.model_dump_json()] if wanted is not None else []),
        ]  # fmt: skip
        with console().status("exporting") as shown:
            ended = run_command(
                command,
                lambda line: shown.update(line),
                {**servers.without_store(os.environ), **({} if store is None else {servers.STORE: store})},
            )
        if ended.code or not out.is_file():
            raise ModelFailed(f"nothing was exported: {ended.why}" if ended.code != 2 else ended.why)
        card = ModelCard.model_validate_json(out.read_bytes())
    adapter = {"none": "all weights", "merged": "LoRA, merged", "apart": "LoRA, apart"}[card.adapter]
    worth = "nothing was measured of these weights"
    if (found := card.measured) is not None:
        success = "" if found.success is None else f", success {found.success:.4g}"
        worth = f"reward {found.reward:.4g}{success} over {found.episodes} evaluation episodes"
    lines = (
        f"wrote {to}", f"step       {card.step} of job {card.job_digest[:12]} ({adapter}, {card.dtype})",
        f"measured   {worth}", f"sha256     {card.sha256}",
    )  # fmt: skip
    answer(json, {"folder": str(to), **card.model_dump(mode="json")}, Text("\n".join(lines)))


_MEASURED = {"reward": "reward/mean", "success": "success/mean"}
_HEADER = ("stream", "share", "groups a batch", "played", "open", "trained", "in the last", "reward", "success")


def shares(
    new: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=SHARE]...", help="New shares, in any unit; shown when left out."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Let others have none from now on, which refuses their clients, and add new ones."
        ),
    ] = False,
    server: servers.Server = None,
    json: Json = False,
) -> None:
    """Show each stream with its share, and what of it was played and trained; or change the shares while training.

    New shares hold from the next group that begins, and through a restart of the server.

    Examples:
        ajet swarm shares
        ajet swarm shares math=50 code=25 web=25
        ajet swarm shares math=1 chess=1 --replace --json
    """
    wanted = shares_of(new or ())
    at = servers.connect_server(server)
    with SwarmClient(at.url, at.token) as client:
        found = client.streams().streams
        if wanted:
            if not replace:
                require_same(wanted, found)
            found = client.share(wanted).streams
        metrics, job = client.status().metrics, client.job()
    rows: list[dict[str, Any]] = []
    for stream in found:
        label, share = f"stream/{stream_label(stream.name)}", stream.share
        rows.append({
            "name": stream.name, "share": share,
            "groups_per_batch": None if share is None or job is None else round(share * job.tasks_per_step, 6),
            "groups_played": stream.cursor, "groups_open": stream.groups_open, "groups_trained": stream.groups_trained,
            "groups_in_last_batch": int(metrics[f"{label}/groups"]) if f"{label}/groups" in metrics else None,
            **{name: metrics.get(f"{label}/{metric}") for name, metric in _MEASURED.items()},
        })  # fmt: skip
    none = "no stream has played yet, and the job gives no shares"
    forms = {"share": ".1%", "groups_per_batch": ".3g", **dict.fromkeys(_MEASURED, ".3f")}
    cells = (["-" if cell is None else format(cell, forms.get(name, "")) for name, cell in row.items()] for row in rows)
    table = make_table(_HEADER, cells, wraps=_HEADER[:1])
    answer(json, {"changed": bool(wanted), "streams": rows}, table if rows else none)


def shares_of(texts: Sequence[str]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if not name:
            raise BadInput(f"expected NAME=SHARE; found {text[:60]!r}")
        if name in shares:
            raise BadInput(f"expected one share for each stream; found two for {name[:60]!r}")
        try:
            shares[name] = float(number)
        except ValueError:
            shares[name] = math.nan
        if not 0 < shares[name] < math.inf:
            raise BadInput(f"expected a number above 0 as the share of {name[:60]!r}; found {number[:40]!r}")
    return shares


def require_same(wanted: Mapping[str, float], known: Sequence[StreamStatus]) -> None:
    """Raise BadInput unless the streams that have shares (where none have: all there are) are those that get one."""
    had = {stream.name for stream in known if stream.share is not None} or {stream.name for stream in known}
    listed = ", ".join(sorted(had))
    if had and (unknown := sorted(wanted.keys() - had)):
        raise BadInput(f"expected streams among {listed}; found {unknown[0][:60]!r}; --replace gives a new one a share")
    if missing := sorted(had - wanted.keys()):
        raise BadInput(
            f"expected a share for each of {listed}; found none for {', '.join(missing)}; name it too, or say "
            "--replace to take its share away, which refuses its clients"
        )


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
                status = client.status(within_s=3.0)  # else it is listed as silent
            row |= {"state": str(status.state), "step": status.step, "steps": status.steps}
        except UnknownAnswer:
            row["state"] = "not understood"
        except SwarmError:
            row["state"] = "silent"
    cells = (
        (
            *(str(row[name] or "-") for name in ("name", "url", "pid", "state")),
            "-" if row["steps"] is None else f"{row['step']} of {row['steps']}",
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


_START = load_table(__package__, "start.toml")


class StartOptions(BaseModel):
    """Options of `ajet swarm start`: a job, what of it is replaced, and how a server is started here."""

    job: Annotated[Path | None, typer.Option(**_START["job"])] = None
    environment: Annotated[str | None, typer.Option(**_START["environment"])] = None
    model: Annotated[str | None, typer.Option(**_START["model"])] = None
    backend: Annotated[str | None, typer.Option(**_START["backend"])] = None
    max_context: Annotated[int | None, typer.Option(**_START["max_context"])] = None
    check: Annotated[bool, typer.Option("--check", **_START["check"])] = False
    port: Annotated[int | None, typer.Option(**_START["port"])] = None
    name: Annotated[str | None, typer.Option(**_START["name"])] = None
    host: Annotated[str | None, typer.Option(**_START["host"])] = None
    store: Annotated[str | None, typer.Option(**_START["store"])] = None
    token_file: Annotated[Path | None, typer.Option(**_START["token_file"])] = None
    peer: Annotated[list[str] | None, typer.Option("--peer", **_START["peer"])] = None
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
    """Show what the swarm server is doing, and short curves; --json has every metric. `ajet swarm top` is live.

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
        console().print(screen(where, poll(client)))


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
