"""The rooms import one another only along the arrows of docs/architecture.md."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("research", "swarm", "sandboxes", "studies")
LIGHT = ("swarm.client", "swarm.environments", "swarm.job", "swarm.job_schema", "swarm.wire", "swarm.errors")
ALLOWED = {
    "research": (
        "swarm.client",
        "swarm.job",
        "swarm.wire",
        "swarm.errors",
        "swarm.environments",
        "sandboxes",
        "studies",
    ),
    "swarm": (),
    "sandboxes": (),
    "studies": (),
}
HEAVY = {"torch", "transformers", "safetensors", "tokenizers", "llguidance", "peft", "ray", "verl", "vllm"}
LIGHT_MAY_USE = {"aiohttp", "pydantic", "pydantic_core", "openai", "swarm"}


def imports(path: Path) -> Iterator[str]:
    """Yield the absolute name of every module a file imports, at any depth of the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            assert node.module is not None
            yield node.module


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_other_rooms_only_along_the_arrows(room: str) -> None:
    paths = modules(room)
    assert paths, f"no modules in {room}"
    crossing = {
        f"{dotted(path)} -> {name}"
        for path in paths
        for name in imports(path)
        if name.split(".")[0] in ROOMS and name.split(".")[0] != room and not within(name, ALLOWED[room])
    }
    assert crossing == set()


@pytest.mark.parametrize("room", ROOMS)
def test_heavy_packages_are_imported_by_backends_only(room: str) -> None:
    found = {
        f"{dotted(path)} -> {name}"
        for path in modules(room)
        for name in imports(path)
        if name.split(".")[0] in HEAVY and not within(dotted(path), ("swarm.backends",))
    }
    assert found == set()


def test_the_client_and_the_environments_need_aiohttp_and_pydantic_only() -> None:
    allowed = LIGHT_MAY_USE | sys.stdlib_module_names
    light = [path for path in modules("swarm") if within(dotted(path), LIGHT) or dotted(path) == "swarm"]
    found = {
        f"{dotted(path)} -> {name}" for path in light for name in imports(path) if name.split(".")[0] not in allowed
    }
    assert found == set()
    inward = {
        f"{dotted(path)} -> {name}"
        for path in light
        for name in imports(path)
        if name.startswith("swarm.") and not within(name, LIGHT)
    }
    assert inward == set()
