"""`ajet swarm shares`, `export-model`, and the check of a backend."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from research.cli.app import Json, answer, console, make_table
from research.errors import BadInput, ModelFailed, NotReady
from research.installation import servers
from research.installation.base_job import python_of, read_job, require_backend
from research.installation.home import Home
from research.models.fetch import run_command
from swarm.client import SwarmClient
from swarm.client.transport import server_folder
from swarm.job import Job
from swarm.models import ModelCard
from swarm.wire import StreamStatus, stream_label


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
        metrics, trained = client.status().metrics, client.job()
        rows = [_stream_row(stream, metrics, trained) for stream in found]
    none = "no stream has played yet, and the job gives no shares"
    table = make_table(_HEADER, map(_cells, rows), wraps=_HEADER[:1])
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


def _stream_row(stream: StreamStatus, metrics: Mapping[str, float], job: Job | None) -> dict[str, Any]:
    label, share = f"stream/{stream_label(stream.name)}", stream.share
    return {
        "name": stream.name, "share": share,
        "groups_per_batch": None if share is None or job is None else round(share * job.tasks_per_step, 6),
        "groups_played": stream.cursor, "groups_open": stream.groups_open, "groups_trained": stream.groups_trained,
        "groups_in_last_batch": int(metrics[f"{label}/groups"]) if f"{label}/groups" in metrics else None,
        **{name: metrics.get(f"{label}/{metric}") for name, metric in _MEASURED.items()},
    }  # fmt: skip


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    forms = {"share": ".1%", "groups_per_batch": ".3g", **dict.fromkeys(_MEASURED, ".3f")}
    return tuple("-" if value is None else format(value, forms.get(name, "")) for name, value in row.items())
