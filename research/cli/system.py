"""`ajet doctor`, `ajet up`.

Each check says what was found and, where it fails, what to do. Versions are read from package metadata, so that
nothing heavy is imported. Nothing is sent to an online endpoint (a language model, W&B), and nothing is made.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import psutil
import typer
from rich.text import Text
from sqlalchemy.engine import make_url

from research.cli.app import Json, answer, make_table
from research.controller.wandb import wandb_login
from research.errors import BadInput, ResearchError
from research.installation.base_job import LOCAL_PACKAGES, LOCAL_REMEDY, PREFECT_REMEDY
from research.installation.home import Home
from research.installation.machine import cores, max_parallel_runs
from research.isolation.client_image import last_image
from research.isolation.mode import Kind, one_line, resolve_kind
from research.planners.endpoint import url_origin
from research.planners.factory import is_http_url
from sandboxes import SandboxError
from sandboxes.docker.engine import ContainerEngine, connect
from sandboxes.images.build import identity
from studies import EventLog, StudiesError

_MINIMUM_FREE_GIB = 1.0
_BASE = ("fastapi", "aiohttp", "openai", "sqlalchemy", "wandb", "pydantic", "scipy", "matplotlib")
_AS_PROCESSES = "clients and evaluators run as processes; generated code needs Docker"


Level = Literal["ok", "optional", "missing"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `missing` breaks a default study; `optional` only leaves something unavailable."""

    name: str
    level: Level
    found: str
    remedy: str = ""


def examine(environ: Mapping[str, str] = os.environ) -> list[Check]:
    memory = psutil.virtual_memory().total / 2**30
    return [
        Check("python", "ok", f"{platform.python_version()} at {sys.prefix}"),
        *(_package(name, "pip install ajet") for name in _BASE),
        *(_package(name, LOCAL_REMEDY) for name in LOCAL_PACKAGES),
        _package("prefect", f"studies run without it, and no UI shows them; {PREFECT_REMEDY}", "optional"),
        Check("machine", "ok", f"{cores()} cores, {memory:.0f} GiB; {max_parallel_runs()} training run(s) at once"),
        *_storage(environ),
        Check("gpu", "ok", "nvidia-smi found; the local backend uses CUDA when torch does")
        if shutil.which("nvidia-smi")
        else Check("gpu", "optional", "none", "none is needed for tiny models"),
        *_sandboxes(environ),
        _wandb(environ),
        _language_model(environ),
    ]


def _package(name: str, remedy: str, level: Level = "missing") -> Check:
    try:
        return Check(name, "ok", version(name))
    except PackageNotFoundError:
        return Check(name, level, "not installed", remedy)


def _storage(environ: Mapping[str, str]) -> list[Check]:
    home = Home.locate(environ)
    source = "AJET_HOME" if environ.get("AJET_HOME") else "the working directory; AJET_HOME sets another"
    existing = next(folder for folder in (home.path, *home.path.parents) if folder.exists())
    free = shutil.disk_usage(existing).free / 2**30
    disk = Check("disk", "ok", f"{free:.1f} GiB free at {existing}")
    if free < _MINIMUM_FREE_GIB:
        remedy = f"free at least {_MINIMUM_FREE_GIB:.0f} GiB or set AJET_HOME"
        disk = Check("disk", "missing", f"{free:.2f} GiB free at {existing}", remedy)
    place = Check("home", "ok", f"{home.path} ({source})")
    if not os.access(existing, os.W_OK | os.X_OK):
        place = Check("home", "missing", f"{existing} cannot be written to", f"{source}: name a folder of yours")
    return [place, disk, _database(home)]


def _database(home: Home) -> Check:
    if not home.path.exists():
        return Check("database", "ok", "none yet; made by the first study")
    try:
        home.prepare()
        with closing(EventLog(home.database)) as log:
            count = len(log.studies())
    except (ResearchError, StudiesError) as error:
        return Check("database", "missing", "unusable", str(error))
    shown = make_url(home.database).render_as_string(hide_password=True)
    return Check("database", "ok", f"{count} studies in {shown}")


def _sandboxes(environ: Mapping[str, str]) -> list[Check]:
    try:
        kind = resolve_kind(None, environ)
    except BadInput as error:
        return [Check("sandbox", "missing", "unusable", str(error))]
    try:
        engine = connect(environ)
    except SandboxError as error:
        level: Level = "missing" if kind == "docker" else "optional"
        return [Check("docker", level, "no engine answers", one_line(error)), _choice(kind, engine=None)]
    try:
        return [_engine(engine), _image(engine, Home.locate(environ)), _choice(kind, engine)]
    finally:
        engine.client.close()


def _engine(engine: ContainerEngine) -> Check:
    found = f"Docker Engine {engine.version} at {engine.host}"
    if engine.lacks:
        lacks = "; ".join(engine.lacks)
        return Check("docker", "optional", found, f"generated code will not run on it, for it lacks {lacks}")
    return Check("docker", "ok", found)


def _image(engine: ContainerEngine, home: Home) -> Check:
    image = last_image(home)
    try:
        if image is not None and identity(engine, image) is not None:
            return Check("client image", "ok", image[:19])
    except SandboxError as error:
        return Check("client image", "optional", one_line(error), "look at the engine's own log")
    remedy = "the first study makes it, or: ajet sandbox build"
    return Check("client image", "optional", "none yet" if image is None else f"{image[:19]} is gone", remedy)


def _choice(kind: Kind | None, engine: ContainerEngine | None) -> Check:
    used = kind or ("docker" if engine is not None else "process")
    why = "AJET_SANDBOX" if kind is not None else "an engine answers" if engine is not None else "no engine answers"
    if used == "docker":
        return Check("sandbox", "ok", f"docker ({why}): clients and evaluators run in containers without a network")
    return Check("sandbox", "optional", f"process ({why}): not isolated", _AS_PROCESSES)


def _wandb(environ: Mapping[str, str]) -> Check:
    login = wandb_login(environ)
    if login.online is None:
        return Check("w&b", "optional", f"offline: {login.why}", "runs are logged here; `wandb login` has copies sent")
    return Check("w&b", "ok", f"online: {login.why}; copies of new studies' logs go to {login.online.server}")


def _language_model(environ: Mapping[str, str]) -> Check:
    if address := environ.get("OPENAI_BASE_URL"):
        if is_http_url(address):
            return Check("language model", "ok", url_origin(address))
        return Check("language model", "optional", "OPENAI_BASE_URL is no address", "set one, http://HOST:PORT/v1")
    if environ.get("OPENAI_API_KEY"):
        return Check("language model", "ok", "OPENAI_API_KEY is set")
    remedy = "the rule planner needs none; for `--planner llm` set OPENAI_BASE_URL, OPENAI_API_KEY and --planner-model"
    return Check("language model", "optional", "none configured", remedy)


_MARKS = {"ok": Text("ok", "green"), "optional": Text("-", "yellow"), "missing": Text("missing", "red")}


def doctor(json: Json = False) -> None:
    """Say what is installed, what works and what to do.

    Ends with exit code 1 when a default study cannot run.

    Examples:

        ajet doctor

        ajet doctor --json
    """
    checks = examine()
    rows = ((_MARKS[check.level], check.name, check.found, check.remedy) for check in checks)
    names = ("", "part", "found", "what to do")
    ready = all(check.level != "missing" for check in checks)
    said = (("ready:", "green"), ' ajet research "..."') if ready else (("not ready:", "red"), " see above")
    answer(
        json,
        {"healthy": ready, "checks": checks},
        make_table(names, rows, wraps=names),
        Text.assemble(*said),
    )
    raise typer.Exit(0 if ready else 1)
