"""A client needs aiohttp and pydantic alone, and a server no extra: proved by importing where nothing else is."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement

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
