"""`ajet swarm export-model`: what was trained, as a folder that other tools load."""

from __future__ import annotations

import os
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from research.cli.output import console, print_json
from research.errors import ModelFailed
from research.installation.backends import require_backend
from research.installation.base_job import read_job
from research.installation.home import Home
from research.installation.server_process import find_swarm
from research.models.child import watched
from research.servers.names import named
from research.servers.running import NoSwarm, own_name
from research.servers.starting import kept
from swarm.client import SwarmClient
from swarm.client.home import folder_of
from swarm.job import Job
from swarm.models.card import ModelCard

STORE = "AJET_SWARM_STORE"


class Lora(StrEnum):
    """What becomes of an adapter."""

    MERGED = "merged"
    APART = "apart"


def export_model(
    to: Annotated[Path, typer.Argument(help="The folder to write; it must not be there yet, or be empty.")],
    step: Annotated[str, typer.Option(help="A step whose checkpoint is kept, latest or best.")] = "latest",
    lora: Annotated[Lora, typer.Option(help="A LoRA adapter: merged into the weights, or apart.")] = Lora.MERGED,
    job: Annotated[
        Path | None, typer.Option(help="Whose training, as a job's JSON; else the server's, else the newest one's.")
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(help="Name of the server, where several were started here.", show_default=False),
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
    folder = _folder(home, server)
    wanted = read_job(job) if job is not None else _loaded(folder)
    store = kept(folder).store
    with tempfile.TemporaryDirectory(prefix="ajet-export-") as scratch:
        out = Path(scratch) / "card.json"
        command = [
            sys.executable, "-m", "swarm.server.model_export.main", "--directory", str(folder),
            "--models", str(home.models), "--environments", str(home.environments), "--to", str(to.absolute()),
            "--step", step, "--out", str(out),
            *(["--apart"] if lora is Lora.APART else []),
            *(["--job", wanted.model_dump_json()] if wanted is not None else []),
        ]  # fmt: skip
        with console().status("exporting") as shown:
            ended = watched(command, lambda line: shown.update(line), _with_store(store))
        if ended.code or not out.is_file():
            raise ModelFailed(f"nothing was exported: {ended.why}" if ended.code != 2 else ended.why)
        card = ModelCard.model_validate_json(out.read_bytes())
    if json:
        print_json({"folder": str(to), **card.model_dump(mode="json")})
    else:
        console().print(Text(_told(card, to)))


def _folder(home: Home, name: str | None) -> Path:
    """Return the folder of a server of this installation, which need not run."""
    folder = folder_of(home.path, own_name(name))
    if not folder.is_dir():
        known = f"; those started here: {', '.join(named(home))}" if named(home) else ""
        raise NoSwarm(f"expected a swarm server's folder at {folder}, found none: train first{known}")
    return folder


def _loaded(folder: Path) -> Job | None:
    """Return the job of the server that runs in a folder; None where none runs, or it has none."""
    server = find_swarm(folder)
    if server is None:
        return None
    with SwarmClient(server.url, server.admin_token) as client:
        return client.job()


def _with_store(url: str | None) -> dict[str, str]:
    """Return variables that name the server's database: on a command line others would read its password."""
    others = {name: value for name, value in os.environ.items() if name != STORE}
    return others if url is None else {**others, STORE: url}


def _told(card: ModelCard, to: Path) -> str:
    adapter = {"none": "all weights", "merged": "LoRA, merged", "apart": "LoRA, apart"}[card.adapter]
    found = card.measured
    worth = (
        "nothing was measured of these weights"
        if found is None
        else f"reward {found.reward:.4g}"
        + ("" if found.success is None else f", success {found.success:.4g}")
        + f" over {found.episodes} evaluation episodes"
    )
    return (
        f"wrote {to}\nstep       {card.step} of job {card.job_digest[:12]} ({adapter}, {card.dtype})\n"
        f"measured   {worth}\nsha256     {card.sha256}"
    )
