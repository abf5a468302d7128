"""A command imports what it uses: no command waits for a library that only another one needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from research.cli.app import Ajet, LazyCommand, Studies, app

pytestmark = pytest.mark.slow

HEAVY = {
    "agents", "anthropic", "docker", "fastapi", "jinja2", "langchain", "matplotlib", "numpy", "openai",
    "optuna", "pandas", "prefect", "pydantic_ai", "ray", "scipy", "smolagents", "statsmodels", "torch", "transformers",
    "uvicorn", "verl", "vllm", "wandb",
}  # fmt: skip
"""What takes a tenth of a second and more to import."""
ROOMS = {"sqlalchemy", "aiohttp", "studies", "swarm", "sandboxes"}
LISTING = "research.cli.listing"
DRIVING = {"research.controller.controller", "research.planners", "swarm.client"}
SHARED = (
    "aiohttp", "filelock", "pydantic", "rich.console", "rich.markdown", "rich.table", "sqlalchemy.orm", "studies",
)  # fmt: skip
"""What most commands import, none of it heavy: what the forking process knows before it forks."""

AJET = """
import sys
from research.main import main
try:
    main()
finally:
    sys.stderr.write("\\n" + " ".join(sys.modules))
"""
FORKING = """
import importlib, json, os, sys, traceback
from research.main import main
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(list(sys.modules)), flush=True)
for line in sys.stdin:
    home, module, arguments = json.loads(line)
    if child := os.fork():
        os.waitpid(child, 0)
        print(open(os.path.join(home, "told")).read(), flush=True)
        continue
    sys.argv, failed = ["ajet", *arguments], None
    os.environ["AJET_HOME"] = home
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(1, 2)
    try:
        importlib.import_module(module) if module else main()
    except SystemExit:
        pass
    except BaseException:
        failed = traceback.format_exc()
    with open(os.path.join(home, "told"), "w") as told:
        json.dump([failed, list(sys.modules)], told)
    os._exit(0)
"""


LAZY = [*Ajet.lazy.items(), *((f"study {name}", lazy) for name, lazy in Studies.lazy.items())]
Imported = Callable[..., set[str]]


def packages(modules: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.fixture(scope="module")
def forking() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported what is shared, and forks for each command: what one imports no other one sees."""
    with subprocess.Popen(
        [sys.executable, "-c", FORKING, *SHARED], env={**os.environ, "AJET_SANDBOX": "process"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        shared = json.loads(process.stdout.readline())
        assert (packages(shared) & HEAVY, {LISTING, *DRIVING} & set(shared)) == (set(), set())
        yield process
        process.stdin.close()


@pytest.fixture
def modules(forking: subprocess.Popen[str], tmp_path: Path) -> Imported:
    """Return the modules that a process has imported when a command ends, or when a module is imported."""

    def told(*arguments: str, module: str | None = None) -> set[str]:
        assert forking.stdin is not None
        assert forking.stdout is not None
        forking.stdin.write(json.dumps([str(tmp_path), module, arguments]) + "\n")
        forking.stdin.flush()
        failed, found = json.loads(forking.stdout.readline())
        assert failed is None, failed
        return set(found)

    return told


@pytest.mark.parametrize("arguments", ["--help", "--version", "studdy"])
def test_what_runs_no_command_imports_none(tmp_path: Path, arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AJET, arguments],
        env={**os.environ, "AJET_HOME": str(tmp_path)}, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    found = packages(done.stderr.splitlines()[-1].split())
    assert ("typer" in found, found & (HEAVY | ROOMS)) == (True, set())


@pytest.mark.parametrize(
    "arguments",
    [
        "research --help", "study --help", "study plan --help", "study list", "swarm --help", "swarm status",
        "client --help", "sandbox --help", "job explain", "planner calibration",
    ],
)  # fmt: skip
def test_a_command_imports_no_library_that_it_does_not_use(modules: Imported, arguments: str) -> None:
    found = modules(*arguments.split())
    assert ("rich" in found, packages(found) & HEAVY) == (True, set())
    if arguments == "study list":
        assert (LISTING in found, DRIVING & found) == (True, set())


def test_the_doctor_asks_for_versions_and_imports_only_what_speaks_to_an_engine(modules: Imported) -> None:
    assert packages(modules("doctor")) & HEAVY <= {"docker"}


@pytest.mark.parametrize(
    "module",
    ["research.runs.attempt", "research.runs.resume", "research.agents.launch", "swarm.environments.__main__"],
)
def test_a_process_of_a_study_imports_no_library_that_it_does_not_use(modules: Imported, module: str) -> None:
    found = modules(module=module)
    assert (module in found, packages(found) & HEAVY) == (True, set())


def test_a_swarm_server_imports_its_backend_with_its_job(modules: Imported) -> None:
    found = packages(modules(module="swarm.server.__main__"))
    assert {"fastapi", "uvicorn"} <= found
    assert found & HEAVY <= {"fastapi", "uvicorn", "jinja2"}


@pytest.mark.parametrize(("name", "lazy"), LAZY, ids=[name for name, _ in LAZY])
def test_the_line_of_a_command_is_the_first_of_its_own_help(name: str, lazy: LazyCommand) -> None:
    assert (lazy.load(name.split()[-1]).help or "").splitlines()[0] == lazy.describe()


def test_each_command_is_listed_and_no_other() -> None:
    assert list(get_command(app).commands) == list(Ajet.lazy)
