"""`ajet doctor`, `ajet up`.

Each check says what was found and, where it fails, what to do. Versions are read from package metadata, so that
nothing heavy is imported. Nothing is sent to an online endpoint (a language model, W&B), and nothing is made.
"""

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal

import psutil
import typer
from rich.text import Text
from sqlalchemy.engine import make_url

from research.cli.app import Json, answer, console, make_table
from research.controller.wandb import wandb_login
from research.errors import BadInput, ResearchError
from research.installation.base_job import LOCAL_PACKAGES, LOCAL_REMEDY, PREFECT_REMEDY
from research.installation.home import Home
from research.installation.machine import Capacity, cores, describe_devices, devices_of, find_devices, max_parallel_runs
from research.isolation.client_image import last_image
from research.isolation.mode import one_line, resolve_kind
from research.planners.endpoint import url_origin
from research.text import is_http_url, warn
from sandboxes import SandboxError
from sandboxes.docker.engine import ContainerEngine, connect
from sandboxes.images.build import identity
from studies import EventLog, StudiesError
from swarm.job import Job

_MINIMUM_FREE_GIB = 1.0
_BASE = ("fastapi", "aiohttp", "openai", "sqlalchemy", "wandb", "pydantic", "scipy", "matplotlib")

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
        *_storage(Home.locate(environ), environ),
        _devices(),
        *_sandboxes(environ),
        *_services(environ),
    ]


def _devices() -> Check:
    devices, fault = find_devices()
    if devices and devices_of(Job()):
        told = Capacity(len(devices), devices=devices).describe()
        return Check("gpu", "ok", f"{told}; tiny and checked models share one")
    found = f"{describe_devices(devices)}, for which this torch was not built" if devices else fault or "none"
    return Check("gpu", "optional", found, "none is needed for tiny models")


def _package(name: str, remedy: str, level: Level = "missing") -> Check:
    try:
        return Check(name, "ok", version(name))
    except PackageNotFoundError:
        return Check(name, level, "not installed", remedy)


def _storage(home: Home, environ: Mapping[str, str]) -> Iterator[Check]:
    source = "AJET_HOME" if environ.get("AJET_HOME") else "the working directory; AJET_HOME sets another"
    existing = next(folder for folder in (home.path, *home.path.parents) if folder.exists())
    if os.access(existing, os.W_OK | os.X_OK):
        yield Check("home", "ok", f"{home.path} ({source})")
    else:
        yield Check("home", "missing", f"{existing} cannot be written to", f"{source}: name a folder of yours")
    free = shutil.disk_usage(existing).free / 2**30
    if free >= _MINIMUM_FREE_GIB:
        yield Check("disk", "ok", f"{free:.1f} GiB free at {existing}")
    else:
        remedy = f"free at least {_MINIMUM_FREE_GIB:.0f} GiB or set AJET_HOME"
        yield Check("disk", "missing", f"{free:.2f} GiB free at {existing}", remedy)
    if not home.path.exists():
        yield Check("database", "ok", "none yet; made by the first study")
        return
    try:
        home.prepare()
        with closing(EventLog(home.database)) as log:
            count = len(log.studies())
    except (ResearchError, StudiesError) as error:
        yield Check("database", "missing", "unusable", str(error))
    else:
        shown = make_url(home.database).render_as_string(hide_password=True)
        yield Check("database", "ok", f"{count} studies in {shown}")


def _sandboxes(environ: Mapping[str, str]) -> Iterator[Check]:
    try:
        kind = resolve_kind(None, environ)
    except BadInput as error:
        yield Check("sandbox", "missing", "unusable", str(error))
        return
    why, used = "AJET_SANDBOX", kind or "process"
    try:
        engine = connect(environ)
    except SandboxError as error:
        why = why if kind else "no engine answers"
        yield Check("docker", "missing" if kind == "docker" else "optional", "no engine answers", one_line(error))
    else:
        try:
            if kind is None:
                why, used = "an engine answers", "docker"
            found, lacks = f"Docker Engine {engine.version} at {engine.host}", "; ".join(engine.lacks)
            remedy = f"generated code will not run on it, for it lacks {lacks}" if lacks else ""
            yield Check("docker", "optional" if lacks else "ok", found, remedy)
            yield _image(engine, Home.locate(environ))
        finally:
            engine.client.close()
    if used == "docker":
        yield Check("sandbox", "ok", f"docker ({why}): clients and evaluators run in containers without a network")
    else:
        remedy = "clients and evaluators run as processes; generated code needs Docker"
        yield Check("sandbox", "optional", f"process ({why}): not isolated", remedy)


def _image(engine: ContainerEngine, home: Home) -> Check:
    image = last_image(home)
    try:
        if image is not None and identity(engine, image) is not None:
            return Check("client image", "ok", image[:19])
    except SandboxError as error:
        return Check("client image", "optional", one_line(error), "look at the engine's own log")
    remedy = "the first study makes it, or: ajet sandbox build"
    return Check("client image", "optional", "none yet" if image is None else f"{image[:19]} is gone", remedy)


def _services(environ: Mapping[str, str]) -> Iterator[Check]:
    login = wandb_login(environ)
    if login.online is None:
        yield Check("w&b", "optional", f"offline: {login.why}", "runs are logged here; `wandb login` has copies sent")
    else:
        yield Check("w&b", "ok", f"online: {login.why}; copies of new studies' logs go to {login.online.server}")
    name, address = "language model", environ.get("OPENAI_BASE_URL")
    if address and is_http_url(address):
        yield Check(name, "ok", url_origin(address))
    elif address:
        yield Check(name, "optional", "OPENAI_BASE_URL is no address", "set one, http://HOST:PORT/v1")
    elif keys := [key for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY") if environ.get(key)]:
        yield Check(name, "ok", f"{' and '.join(keys)} set")
    else:
        needs = "set OPENAI_API_KEY or ANTHROPIC_API_KEY, and --planner-model (docs/planners.md)"
        yield Check(name, "optional", "none configured", f"the rule planner needs none; for `--planner llm` {needs}")


_MARKS = {"ok": Text("ok", "green"), "optional": Text("-", "yellow"), "missing": Text("missing", "red")}


def doctor(json: Json = False) -> None:
    """Say what is installed, what works and what to do.

    Ends with exit code 1 when a default study cannot run.

    Example:
        ajet doctor
    """
    checks = examine()
    rows = ((_MARKS[check.level], check.name, check.found, check.remedy) for check in checks)
    names = ("", "part", "found", "what to do")
    ready = all(check.level != "missing" for check in checks)
    said = (("ready:", "green"), ' ajet research "..."') if ready else (("not ready:", "red"), " see above")
    answer(json, {"healthy": ready, "checks": checks}, make_table(names, rows, wraps=names), Text.assemble(*said))
    raise typer.Exit(0 if ready else 1)


def up(
    work: Annotated[
        bool, typer.Option("--work", help="Stay, and work on what is begun, scheduled or resumed in Prefect's pages.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Most studies that the worker drives at once.")] = 2,
    stop: Annotated[bool, typer.Option("--stop", help="Stop it instead, and the worker.")] = False,
    json: Json = False,
) -> None:
    """Start (or find) the local Prefect server and print its address, or stay and work on studies there.

    PREFECT_API_URL names a server that is there already; PREFECT_API_DATABASE_CONNECTION_URL another database than
    SQLite for the one that is started (PostgreSQL, for studies of days).

    Examples:
        ajet up
        ajet up --work
        ajet up --work --limit 4
        ajet up --stop
    """
    from research.controller.session import catch_interrupts
    from research.orchestration.server import client_environment, ensure_server, stop_server
    from research.orchestration.supervision import become_supervisor, end_worker, pages_line

    home = Home.locate().prepare()

    def find_server() -> None:
        server = ensure_server(home.prefect)
        password = str(server.password) if server.password else None
        told = {"url": server.url, "reused": server.reused, "note": server.note, "password_file": password}
        answer(json, told, server.line, pages_line(home))

    if stop:
        ended = end_worker(home)
        stopped = stop_server(home.prefect)
        worker = ["ended the worker; what it drove is left in order"] if ended else []
        outcome = "stopped the Prefect server" if stopped else "no Prefect server of this installation runs"
        answer(json, {"stopped": stopped, "worker": ended}, *worker, outcome)
    elif work:
        with become_supervisor(home), catch_interrupts() as until:
            find_server()
            os.environ.update(client_environment(home.prefect))
            from research.orchestration.deployment import ProcessPool
            from research.orchestration.prefect_api import installation_name  # Prefect reads its settings at import
            from research.orchestration.worker import StudyWorker

            say = warn if json else console().print
            how = "begin them there, or with: ajet research --detach. Ctrl-C ends it"
            say(f"worker      {limit} studies at once; {how}")
            StudyWorker(home, ProcessPool(installation_name(home), Path.cwd(), limit), say, warn).run(until)
    else:
        find_server()
