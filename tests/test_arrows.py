"""The rooms import one another only along the arrows of docs/architecture.md, and so do the packages inside a room."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest
from source.packages import ROOMS, circles, crossings, dotted, module_arrows, modules

from swarm.environments.adapters import ADAPTERS

ROOT = Path(__file__).parent.parent
BENCHMARKS = ("simlab", "rig", "source", "performance")
"""Packages beside the rooms, in `benchmarks/`: they import of the rooms, and no room of them."""
LIGHT = tuple(
    f"swarm.{name}" for name in (
        "client", "environments", "models", "job", "verl_config", "canonical", "wire", "snapshot", "errors", "plugins",
    )
)  # fmt: skip
ALLOWED: dict[str, tuple[str, ...]] = {
    "research": (
        "swarm.client", "swarm.job", "swarm.wire", "swarm.snapshot", "swarm.errors", "swarm.plugins",
        "swarm.environments", "swarm.models", "sandboxes", "studies",
    ),
    "swarm": (), "sandboxes": (), "studies": (),
}  # fmt: skip
LAYERS: dict[str, tuple[str, ...]] = {
    "research": (
        "cli", "ui.pages", "ui", "shown orchestration", "controller", "planners runs scheduler", "agents design",
        "environments isolation models proposals", "installation",
    ),
    "studies": ("proof", "report", "verdicts", "metrics", "checks", "log statistics", "records"),
    "swarm": (
        "server", "training", "backends.verl calls", "backends.local rollout", "algorithms dialects store", "backends",
        "environments timelines", "client rendering",
    ),
    "sandboxes": ("images", "docker", "gateway inside"),
    "simlab": ("suites",),
}  # fmt: skip
"""The packages of each room: each imports of those on lower layers alone. What lies in a room's own folder is its
ground, which imports of no package; `main` and each `__main__` is a top, which nothing imports."""
TOPS = ("main", "__main__")
HEAVY = {"torch", "transformers", "safetensors", "tokenizers", "llguidance", "peft", "ray", "verl", "vllm"}
MAY_BE_HEAVY = ("swarm.backends", "swarm.algorithms", "swarm.rendering")
LIGHT_MAY_USE = {"aiohttp", "pydantic", "pydantic_core", "openai", "swarm"}


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Return the absolute name of every module a file imports, at any depth of the file; each file is read once."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            assert node.module is not None
            found.append(node.module)
    return tuple(found)


def folder_of(room: str) -> Path:
    """Return the folder that a room lies in, from which its modules are named."""
    return ROOT / "benchmarks" if room in BENCHMARKS else ROOT


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_other_rooms_only_along_the_arrows(room: str) -> None:
    paths = modules(ROOT, room)
    assert paths, f"no modules in {room}"
    crossing = {
        f"{dotted(ROOT, path)} -> {name}"
        for path in paths
        for name in imports(path)
        if name.split(".")[0] in ROOMS and name.split(".")[0] != room and not within(name, ALLOWED[room])
    }
    assert crossing == set()


@pytest.mark.parametrize("room", [*ROOMS, "simlab"])
def test_no_room_imports_of_the_benchmarks_that_measure_it(room: str) -> None:
    above = [name for name in BENCHMARKS if name != room]
    found = {
        f"{path.relative_to(ROOT)} -> {name}"
        for path in modules(folder_of(room), room)
        for name in imports(path)
        if within(name, tuple(above))
    }
    assert found == set()


@pytest.mark.parametrize("room", ROOMS)
def test_heavy_packages_are_imported_by_backends_only(room: str) -> None:
    found = {
        f"{dotted(ROOT, path)} -> {name}"
        for path in modules(ROOT, room)
        for name in imports(path)
        if name.split(".")[0] in HEAVY and not within(dotted(ROOT, path), MAY_BE_HEAVY)
    }
    assert found == set()


def test_the_client_and_the_environments_need_aiohttp_and_pydantic_only() -> None:
    allowed = LIGHT_MAY_USE | sys.stdlib_module_names
    light = [
        path for path in modules(ROOT, "swarm") if within(dotted(ROOT, path), LIGHT) or dotted(ROOT, path) == "swarm"
    ]
    adapted = {f"swarm.environments.{own.module}": {own.package} for own in ADAPTERS.values()}
    adapted |= {"swarm.environments.datasets": {"datasets"}, "swarm.environments.judges": {"math_verify"}}
    adapted["swarm.environments.tau2_tasks"].add("inspect_ai")  # of which inspect_evals is made
    found = {
        f"{dotted(ROOT, path)} -> {name}"
        for path in light
        for name in imports(path)
        if name.split(".")[0] not in allowed | adapted.get(dotted(ROOT, path), set())
    }
    assert found == set()
    inward = {
        f"{dotted(ROOT, path)} -> {name}"
        for path in light
        for name in imports(path)
        if name.startswith("swarm.") and not within(name, LIGHT)
    }
    assert inward == set()


@pytest.mark.parametrize("room", LAYERS)
def test_packages_of_a_room_import_of_lower_layers_alone(room: str) -> None:
    root = folder_of(room)
    layers = {name: number for number, layer in enumerate(LAYERS[room]) for name in layer.split()}
    folders = {dotted(root, path.parent / "__init__.py") for path in modules(root, room)} - {room}
    assert {name.removeprefix(f"{room}.") for name in folders} == set(layers), (
        "LAYERS names just the packages there are"
    )
    top, ground = -1, len(LAYERS[room])

    def layer_of(name: str) -> int:
        return top if name.split(".")[-1] in TOPS else layers.get(name, ground)

    wrong = {
        f"{module} -> {target}"
        for module, own, target in crossings(root, room)
        if own != "" and not layer_of(own) < layer_of(target) and not layer_of(own) == layer_of(target) in (top, ground)
    }
    assert wrong == set()


@pytest.mark.parametrize("room", ROOMS)
def test_no_modules_of_a_room_import_one_another(room: str) -> None:
    assert circles(module_arrows(ROOT, room)) == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_module_lies_at_most_in_a_package_of_a_package(room: str) -> None:
    deep = [path for path in modules(ROOT, room) if len(path.relative_to(ROOT).parts) > 4]
    nested = {
        "/".join(path.relative_to(ROOT).parts[:3])
        for path in modules(ROOT, room)
        if len(path.relative_to(ROOT).parts) == 4
    }
    assert deep == []
    assert nested <= {"research/ui/pages", "swarm/backends/local", "swarm/backends/verl"}
