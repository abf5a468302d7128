"""A command imports what it uses: no command waits for a library that only another one needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from research.cli.app import Ajet, app
from research.cli.lazy import Lazy
from research.cli.study.app import Studies

HEAVY = {
    "agents", "alembic", "anthropic", "docker", "fastapi", "jinja2", "langchain", "matplotlib", "numpy", "openai",
    "optuna", "pandas", "prefect", "pydantic_ai", "ray", "scipy", "smolagents", "statsmodels", "torch", "transformers",
    "uvicorn", "verl", "vllm", "wandb",
}  # fmt: skip
"""What takes a tenth of a second and more to import."""
ROOMS = {"sqlalchemy", "aiohttp", "studies", "swarm", "sandboxes"}
"""What the rooms need, and the rooms."""

AJET = """
import sys
from research.main import main
try:
    main()
finally:
    sys.stderr.write("\\n" + " ".join(sys.modules))
"""
PROCESS = """
import importlib, sys
importlib.import_module(sys.argv[1])
sys.stderr.write("\\n" + " ".join(sys.modules))
"""


LAZY = [*Ajet.lazy.items(), *((f"study {name}", lazy) for name, lazy in Studies.lazy.items())]


def imported(script: str, *arguments: str, home: Path) -> set[str]:
    """Return the top-level packages that a process has imported when it ends."""
    environment = {**os.environ, "AJET_HOME": str(home), "AJET_SANDBOX": "process"}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()}


@pytest.mark.parametrize("arguments", ["--help", "--version", "studdy"])
def test_what_runs_no_command_imports_none(tmp_path: Path, arguments: str) -> None:
    found = imported(AJET, arguments, home=tmp_path)
    assert "typer" in found
    assert found & (HEAVY | ROOMS) == set()


@pytest.mark.parametrize(
    "arguments",
    [
        "research --help", "study --help", "study plan --help", "study list", "swarm --help", "swarm status",
        "client --help", "sandbox --help", "job explain", "planner calibration",
    ],
)  # fmt: skip
def test_a_command_imports_no_library_that_it_does_not_use(tmp_path: Path, arguments: str) -> None:
    found = imported(AJET, *arguments.split(), home=tmp_path)
    assert "rich" in found
    assert found & HEAVY == set()


def test_the_doctor_asks_for_versions_and_imports_only_what_speaks_to_an_engine(tmp_path: Path) -> None:
    assert imported(AJET, "doctor", home=tmp_path) & HEAVY <= {"docker"}


@pytest.mark.parametrize(
    "module",
    ["research.attempts.attempt", "research.attempts.cleanup", "research.agents.launch", "swarm.environments.__main__"],
)
def test_a_process_of_a_study_imports_no_library_that_it_does_not_use(tmp_path: Path, module: str) -> None:
    found = imported(PROCESS, module, home=tmp_path)
    assert {"research", "swarm"} & found
    assert found & HEAVY == set()


def test_a_swarm_server_imports_its_backend_with_its_job(tmp_path: Path) -> None:
    found = imported(PROCESS, "swarm.server.__main__", home=tmp_path)
    assert {"fastapi", "uvicorn"} <= found
    assert found & HEAVY <= {"fastapi", "uvicorn", "alembic", "jinja2"}


@pytest.mark.parametrize(("name", "lazy"), LAZY, ids=[name for name, _ in LAZY])
def test_the_line_of_a_command_is_the_first_of_its_own_help(name: str, lazy: Lazy) -> None:
    assert (lazy.load(name.split()[-1]).help or "").splitlines()[0] == lazy.help


def test_a_list_of_studies_imports_nothing_that_drives_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AJET, "study", "list"],
        env={**os.environ, "AJET_HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    imported = done.stderr.splitlines()[-1].split()
    assert "research.cli.study.shown.listing" in imported
    assert not {"research.study.controller", "research.planners", "swarm.client"} & set(imported)


def test_each_command_is_listed_and_no_other() -> None:
    assert list(get_command(app).commands) == list(Ajet.lazy)
