"""A command imports what it uses: no command waits for a library that only another one needs."""

from __future__ import annotations

import os
import subprocess
import sys
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
DRIVING = {"research.controller.controller", "research.planners", "swarm.client"}
IMPORT = """
import importlib, sys
importlib.import_module(sys.argv[1])
sys.stderr.write("\\n" + " ".join(sys.modules))
"""


def imported(home: Path, code: str, *arguments: str) -> tuple[set[str], set[str]]:
    """Return the modules that a process of its own has imported when it ends, and their packages."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=400, check=False,
        env={**os.environ, "AJET_HOME": str(home), "AJET_SANDBOX": "process"},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    modules = set(done.stderr.splitlines()[-1].split())
    return modules, {name.partition(".")[0] for name in modules}


IMPORTED = """
import importlib, sys
from research.main import main
try:
    importlib.import_module(sys.argv[2]) if sys.argv[1] == "-m" else main()
finally:
    sys.stderr.write("\\n" + " ".join(sys.modules))
"""


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


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("research.runs.attempt", set()), ("research.runs.resume", set()), ("research.agents.launch", set()),
        ("swarm.environments.__main__", set()), ("swarm.server.__main__", {"fastapi", "uvicorn", "jinja2"}),
    ],
)  # fmt: skip
def test_a_process_imports_no_library_that_it_does_not_use(tmp_path: Path, module: str, heavy: set[str]) -> None:
    modules, packages = imported(tmp_path, IMPORT, module)
    assert module in modules
    assert packages & HEAVY <= heavy
