"""A client needs aiohttp and pydantic alone, a server no extra; what packages bring by entry points is had by name."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from swarm.errors import InvalidRequest
from swarm.job import Job
from swarm.plugins import BACKENDS, PLANNERS, backend_names, list_known, load
from swarm.rendering.messages import BackendError
from swarm.server.service import make_backend, require_backend
from tests.outside import install

LIGHT = "swarm.errors swarm.wire swarm.job swarm.canonical swarm.client swarm.environments swarm.models"

IMPORTING = """
import importlib
import sys

modules, allowed = sys.argv[1].split(), {*sys.argv[2].split(), *sys.stdlib_module_names, "swarm"}


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed and not name.startswith("_sysconfigdata"):  # made with Python itself
            raise ModuleNotFoundError(f"blocked: {name}", name=name)
        return None


sys.meta_path.insert(0, Blocker())
for name in [name for name in sys.modules if name.partition(".")[0] not in allowed | {"__main__"}]:
    del sys.modules[name]  # what the interpreter's start left behind would slip past the blocker
for module in modules:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        print(module, error)
"""


def needs(*distributions: str) -> set[str]:
    """Return the distributions, and all that they need with the extras that are asked for, by name."""
    found: set[tuple[str, str]] = set()
    left = [(name, "") for name in distributions]
    while left:
        name, extra = left.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for wanted in map(Requirement, metadata.requires(name) or []):
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                left += [(wanted.name, each) for each in ("", *wanted.extras)]
    return {name for name, _ in found}


def modules_of(distributions: set[str]) -> set[str]:
    return {
        module
        for module, owners in metadata.packages_distributions().items()
        if {owner.lower().replace("_", "-") for owner in owners}
        & {name.lower().replace("_", "-") for name in distributions}
    }


def blocked(modules: str, *distributions: str) -> list[str]:
    """Return those of the modules that need more than these distributions, each with what was missed."""
    allowed = " ".join(modules_of(needs(*distributions)) | {"research", "sandboxes", "studies"})
    command = [sys.executable, "-c", IMPORTING, modules, allowed]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=True).stdout.splitlines()


@pytest.mark.slow
def test_a_client_s_modules_import_with_aiohttp_and_pydantic_alone() -> None:
    client = ("aiohttp", "pydantic")
    assert blocked(LIGHT, *client) == []
    heavy = ["openai", "torch", "fastapi", "swarm.server"]
    assert [line.partition(" blocked: ")[0] for line in blocked(" ".join(heavy), *client)] == heavy


@pytest.mark.slow
def test_a_server_a_study_and_a_proof_import_without_any_extra() -> None:
    base = "swarm.server.__main__ swarm.store.writer research.cli.app research.controller.session studies.proof"
    assert blocked(base, "ajet") == []
    assert [line.partition(" blocked: ")[0] for line in blocked("psycopg torch prefect", "ajet")] == [
        "psycopg", "torch", "prefect"
    ]  # fmt: skip


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = install(tmp_path / "outside")
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_names_are_listed_after_ajets_own_and_nothing_is_imported(outside: Path) -> None:
    (outside / "outside_of_ajet.py").write_text("raise RuntimeError('imported')")
    assert backend_names() == ("local", "fake", "verl", "broken", "failing", "outside")
    assert list_known(PLANNERS, ()) == ("broken", "failing", "misnamed", "outside")


def test_a_name_that_ajet_has_is_not_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path / "p", {BACKENDS: {"fake": "outside_of_ajet:failing"}})))
    assert list_known(BACKENDS, ("local", "fake", "verl")) == ("local", "fake", "verl")
    assert make_backend(Job(backend="fake"), tmp_path).model_name == "fake"


def test_a_backend_of_a_package_is_made_by_its_name(outside: Path, tmp_path: Path) -> None:
    assert make_backend(Job(backend="outside"), tmp_path).model_name == "made-outside"


@pytest.mark.parametrize(("name", "said"), [
    ("nothing", r"local, fake, verl, broken, failing, outside; found 'nothing'"),
    ("broken", r"to be imported \(outside_of_nothing:backend, of outside\); found ModuleNotFoundError"),
    ("failing", r"RuntimeError: no such luck"),
])  # fmt: skip
def test_a_backend_that_cannot_be_had_is_one_line(outside: Path, tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(BackendError, match=said) as refused:
        make_backend(Job(backend=name), tmp_path)
    assert "\n" not in str(refused.value)


def test_a_server_refuses_a_job_of_an_unknown_backend_by_the_known_names(outside: Path) -> None:
    require_backend("outside")
    with pytest.raises(InvalidRequest, match=r"failing, outside; found") as refused:
        require_backend("vllm")
    assert refused.value.param == "backend"


def test_two_packages_that_bring_one_name_are_both_named(
    outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = install(tmp_path / "other", {BACKENDS: {"outside": "outside_of_ajet:failing"}}, "another")
    monkeypatch.syspath_prepend(str(other))
    with pytest.raises(InvalidRequest, match=r"another \(outside_of_ajet:failing\) and outside \("):
        load(BACKENDS, "outside")
