"""What an installation can do here: each check says what was found and, where it fails, what to do.

Versions are read from package metadata, so that nothing heavy is imported. What it does not know: whether
an online endpoint (a language model, W&B) answers; it looks at configuration only and sends nothing.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version

import psutil
from sqlalchemy.engine import make_url

from research.backends import LOCAL_PACKAGES, LOCAL_REMEDY
from research.doctor_sandbox import sandbox_checks
from research.errors import ResearchError
from research.findings import Check
from research.home import Home
from research.machine import cores, parallel
from research.planner.endpoint import host_of
from research.planner.factory import is_address
from studies import EventLog, StudiesError

_MINIMUM_FREE_GIB = 1.0
_BASE = ("fastapi", "aiohttp", "openai", "prefect", "sqlalchemy", "wandb", "pydantic", "scipy", "matplotlib")


def examine(environ: Mapping[str, str] = os.environ) -> list[Check]:
    """Run all checks, in the order a reader wants them."""
    return [
        _python(),
        *(_package(name, "pip install ajet") for name in _BASE),
        *(_package(name, LOCAL_REMEDY) for name in LOCAL_PACKAGES),
        _machine(),
        *_storage(environ),
        _gpu(),
        *sandbox_checks(environ),
        _wandb(environ),
        _language_model(environ),
    ]


def healthy(checks: Iterable[Check]) -> bool:
    """Whether a default study can run."""
    return all(check.level != "missing" for check in checks)


def _python() -> Check:
    return Check("python", "ok", f"{platform.python_version()} at {sys.prefix}")


def _package(name: str, remedy: str) -> Check:
    try:
        return Check(name, "ok", version(name))
    except PackageNotFoundError:
        return Check(name, "missing", "not installed", remedy)


def _machine() -> Check:
    memory = psutil.virtual_memory().total / 2**30
    found = f"{cores()} cores, {memory:.0f} GiB; {parallel()} training run(s) at once"
    return Check("machine", "ok", found)


def _storage(environ: Mapping[str, str]) -> list[Check]:
    home = Home.locate(environ)
    source = "AJET_HOME" if environ.get("AJET_HOME") else "the working directory; AJET_HOME sets another"
    existing = next(folder for folder in (home.path, *home.path.parents) if folder.exists())
    free = shutil.disk_usage(existing).free / 2**30
    disk = Check("disk", "ok", f"{free:.1f} GiB free at {existing}")
    if free < _MINIMUM_FREE_GIB:
        remedy = f"free at least {_MINIMUM_FREE_GIB:.0f} GiB or set AJET_HOME"
        disk = Check("disk", "missing", f"{free:.2f} GiB free at {existing}", remedy)
    return [Check("home", "ok", f"{home.path} ({source})"), disk, _guarded("database", lambda: _database(home))]


def _database(home: Home) -> Check:
    if not home.path.exists():
        return Check("database", "ok", "none yet; made by the first study")
    home.prepare()
    log = EventLog(home.database)
    count = len(log.studies())
    log.close()
    shown = make_url(home.database).render_as_string(hide_password=True)
    return Check("database", "ok", f"{count} studies in {shown}")


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except (ResearchError, StudiesError) as error:
        return Check(name, "missing", "unusable", str(error))


def _gpu() -> Check:
    if shutil.which("nvidia-smi"):
        return Check("gpu", "ok", "nvidia-smi found; the local backend uses CUDA when torch does")
    return Check("gpu", "optional", "none", "none is needed for tiny models")


def _wandb(environ: Mapping[str, str]) -> Check:
    if environ.get("WANDB_API_KEY"):
        return Check("w&b login", "ok", "WANDB_API_KEY is set; studies still log offline unless told otherwise")
    return Check("w&b login", "optional", "none", "runs are logged offline and read from there")


def _language_model(environ: Mapping[str, str]) -> Check:
    if address := environ.get("OPENAI_BASE_URL"):
        if is_address(address):
            return Check("language model", "ok", host_of(address))
        return Check("language model", "optional", "OPENAI_BASE_URL is no address", "set one, http://HOST:PORT/v1")
    if environ.get("OPENAI_API_KEY"):
        return Check("language model", "ok", "OPENAI_API_KEY is set")
    remedy = "the rule planner needs none; for `--planner llm` set OPENAI_BASE_URL, OPENAI_API_KEY and --planner-model"
    return Check("language model", "optional", "none configured", remedy)
