"""What clients import needs aiohttp and pydantic and nothing else: proved by importing it where nothing else can be."""

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
    """Return the distributions with all they need without extras, by name."""
    found: set[str] = set()
    left = list(distributions)
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        wanted = [Requirement(line) for line in metadata.requires(name) or []]
        left += [each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def modules_of(distributions: set[str]) -> set[str]:
    return {
        module
        for module, owners in metadata.packages_distributions().items()
        if {owner.lower().replace("_", "-") for owner in owners}
        & {name.lower().replace("_", "-") for name in distributions}
    }


def blocked(modules: str) -> list[str]:
    """Return those of the modules that need more than a client has, each with what was missed."""
    allowed = " ".join(modules_of(needs("aiohttp", "pydantic")))
    command = [sys.executable, "-c", IMPORTING, modules, allowed]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=True).stdout.splitlines()


@pytest.mark.slow
def test_a_client_s_modules_import_with_aiohttp_and_pydantic_alone() -> None:
    assert blocked(LIGHT) == []
    heavy = ["openai", "torch", "fastapi", "swarm.server"]
    assert [line.partition(" blocked: ")[0] for line in blocked(" ".join(heavy))] == heavy
