"""The rooms import one another only along the arrows of docs/architecture.md, and so do the packages inside a room."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest
from source.packages import ROOMS, crossings, dotted, modules, package

from swarm.environments.adapters import ADAPTERS

ROOT = Path(__file__).parent.parent
BENCHMARKS = ("simlab", "rig", "source", "performance")
"""Packages beside the rooms, in `benchmarks/`: they import of the rooms, and no room of them."""
LIGHT = tuple(
    f"swarm.{name}" for name in (
        "client", "environments", "job", "canonical", "verl_fields", "verl_names", "arguments", "wire", "snapshot",
        "errors", "models", "entry_points",
    )
)  # fmt: skip
ALLOWED: dict[str, tuple[str, ...]] = {
    "research": (
        "swarm.client", "swarm.job", "swarm.wire", "swarm.snapshot", "swarm.errors", "swarm.entry_points",
        "swarm.environments", "swarm.models", "sandboxes", "studies",
    ),
    "swarm": (), "sandboxes": (), "studies": (),
}  # fmt: skip
FLOORS: dict[str, tuple[str, ...]] = {
    "research": (
        "__main__",
        "main",
        "cli.study cli.swarm cli.clients cli.environments cli.metrics",
        "cli.swarm.episodes cli.swarm.watching",
        "cli.study.shown",
        "cli",
        "serving",
        "orchestration requests",
        "orchestration.shown",
        "study doctor",
        "tracking planning",
        "planners scheduling attempts looks",
        "rule_planner llm_planner design",
        "topic results agents findings",
        "planner noise",
        "environments.checking",
        "isolation environments models",
        "servers",
        "proposals installation durations",
        "base_fields metrics",
        "screening errors files spelling validation once_for_a_state",
    ),
    "studies": (
        "proof",
        "report",
        "report.rounds",
        "report.figures report.headline",
        "report.sections",
        "report.measures",
        "report.parts",
        "question verdicts",
        "metrics",
        "metrics.kinds",
        "checks",
        "log statistics",
        "inquiry",
        "records",
    ),
    "swarm": (
        "server server.__main__",
        "server.http",
        "server.watching",
        "server.model_export",
        "server.service",
        "server.training",
        "server.calls",
        "server.episodes",
        "server.batches server.shared",
        "server.dialects.chat server.dialects.messages server.dialects.responses",
        "server.dialects",
        "store",
        "store.databases",
        "store.tables",
        "exports",
        "backends.checking backends.exporting",
        "backends.verl",
        "backends.verl.critic",
        "backends.local backends.verl.learning",
        "backends.verl.saving",
        "backends.verl.generating",
        "backends.verl.generating.engines",
        "backends.local.generating backends.local.learning backends.imitation",
        "backends.verl.processes",
        "backends.local.model backends.tiny backends.fake backends.conversion",
        "backends.local.forwards",
        "timelines",
        "backends.rendering backends.algorithms",
        "backends",
        "answers",
        "answers.families",
        "answers.grammar",
        "environments.__main__ environments.bringing.__main__",
        "environments.bringing",
        "environments.playing environments.adapters client.teams",
        "environments client models",
        "snapshot",
        "job wire connections",
        "verl_fields",
        "errors canonical entry_points",
        "verl_names",
        "arguments",
    ),
    "sandboxes": (
        "images",
        "docker process",
        "gateway folders",
        "gateway.proxy inside shim shown",
        "spec",
    ),
    "simlab": (
        "inquiries",
        "suites",
        "planners searches haul",
        "flights",
        "worlds measurement",
    ),
    "rig": (
        "agreement",
        "pages",
        "inquiries scale",
        "cluster",
        "serving training generation verdicts orchestration",
        "frame",
    ),
    "source": ("measures packages",),
    "performance": (
        "page",
        "catalogue history",
        "verdict_sections study_sections server_sections swarm_sections training_sections cluster_sections",
        "headlines writing",
        "results",
    ),
}
"""The packages of each room from its top to its ground: each imports of those on lower floors alone. A room's own
`__init__` is its door, which opens to all of them and which none of them goes through."""
HEAVY = {"torch", "transformers", "safetensors", "tokenizers", "llguidance", "peft", "ray", "verl", "vllm"}
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
        if name.split(".")[0] in HEAVY and not within(dotted(ROOT, path), ("swarm.backends",))
    }
    assert found == set()


def test_the_client_and_the_environments_need_aiohttp_and_pydantic_only() -> None:
    allowed = LIGHT_MAY_USE | sys.stdlib_module_names
    light = [
        path for path in modules(ROOT, "swarm") if within(dotted(ROOT, path), LIGHT) or dotted(ROOT, path) == "swarm"
    ]
    adapted = {f"swarm.environments.adapters.{own.module}": own.package for own in ADAPTERS.values()}
    found = {
        f"{dotted(ROOT, path)} -> {name}"
        for path in light
        for name in imports(path)
        if name.split(".")[0] not in allowed | {adapted.get(dotted(ROOT, path))}
    }
    assert found == set()
    inward = {
        f"{dotted(ROOT, path)} -> {name}"
        for path in light
        for name in imports(path)
        if name.startswith("swarm.") and not within(name, LIGHT)
    }
    assert inward == set()


@pytest.mark.parametrize("room", [*ROOMS, *BENCHMARKS])
def test_packages_of_a_room_import_of_lower_floors_alone(room: str) -> None:
    root = folder_of(room)
    floors = {name: number for number, floor in enumerate(FLOORS[room]) for name in floor.split()}
    there = {package(root, path) for path in modules(root, room)} - {""}
    assert there == set(floors), "FLOORS names just the packages there are"
    wrong = {
        f"{module} -> {target}"
        for module, own, target in crossings(root, room)
        if own != "" and (target == "" or floors[target] <= floors[own])
    }
    assert wrong == set()
