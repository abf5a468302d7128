"""A command imports what it uses: no command waits for a library that only another one needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HEAVY = {
    "agents", "anthropic", "docker", "fastapi", "jinja2", "langchain", "matplotlib", "numpy", "openai",
    "pandas", "prefect", "pydantic_ai", "ray", "scipy", "smolagents", "statsmodels", "torch", "transformers",
    "uvicorn", "verl", "vllm", "wandb",
}  # fmt: skip
"""What takes a tenth of a second and more to import."""
ROOMS = {"sqlalchemy", "aiohttp", "studies", "swarm", "sandboxes"}
LISTING = "research.cli.listing"
DRIVING = {"research.controller.controller", "research.planners", "swarm.client"}


IMPORTED = """
import importlib, sys
from research.main import main
try:
    importlib.import_module(sys.argv[2]) if sys.argv[1] == "-m" else main()
finally:
    sys.stderr.write("\\n" + " ".join(sys.modules))
"""
Imported = Callable[..., set[str]]


def packages(modules: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.fixture
def modules(tmp_path: Path) -> Imported:
    """Return the modules that a process has imported when a command ends, or (`-m`) when a module is imported."""

    def imported(*arguments: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-c", IMPORTED, *arguments],
            env={**os.environ, "AJET_HOME": str(tmp_path), "AJET_SANDBOX": "process"},
            capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return set(done.stderr.splitlines()[-1].split())

    return imported


@pytest.mark.parametrize("arguments", ["--help", "--version", "studdy"])
def test_what_runs_no_command_imports_none(modules: Imported, arguments: str) -> None:
    found = packages(modules(arguments))
    assert ("typer" in found, found & (HEAVY | ROOMS)) == (True, set())


@pytest.mark.parametrize(
    "arguments",
    [
        "research --help", "study plan --help", "study list", "swarm status", "client --help", "sandbox --help",
        "job explain", "planner calibration",
    ],
)  # fmt: skip
def test_a_command_imports_no_library_that_it_does_not_use(modules: Imported, arguments: str) -> None:
    found = modules(*arguments.split())
    assert ("rich" in found, packages(found) & HEAVY) == (True, set())
    if arguments == "study list":
        assert (LISTING in found, DRIVING & found) == (True, set())


@pytest.mark.parametrize("module", ["research.runs.attempt", "research.agents.launch", "swarm.environments.__main__"])
def test_a_process_of_a_study_imports_no_library_that_it_does_not_use(modules: Imported, module: str) -> None:
    found = modules("-m", module)
    assert (module in found, packages(found) & HEAVY) == (True, set())


def test_a_swarm_server_imports_its_backend_with_its_job(modules: Imported) -> None:
    found = packages(modules("-m", "swarm.server.__main__"))
    assert {"fastapi", "uvicorn"} <= found
    assert found & HEAVY <= {"fastapi", "uvicorn", "jinja2"}
