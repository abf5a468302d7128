"""What environments there are here: built in, installed, brought, and by address. Nothing of them is imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from research.environments.measured import all_measured
from research.environments.reference import installed
from research.installation.home import Home
from swarm.environments.adapters import ADAPTERS
from swarm.environments.bringing.drawing import SPLITS
from swarm.environments.brought import MARK, BroughtEnvironment
from swarm.environments.registry import environments
from swarm.errors import InvalidRequest


def catalogue(home: Home) -> dict[str, Any]:
    """Return all of them as JSON values: `built_in`, `installed`, `brought`, `addresses`."""
    return {
        "built_in": [_built_in(name) for name in environments() if MARK not in name],
        "installed": [{"name": name, "object": entry.value} for name, entry in installed().items()],
        "brought": [_brought(folder, home) for folder in sorted(home.environments.glob(f"[!.]*{MARK}*"))],
        "addresses": [
            {
                "scheme": scheme, "example": adapter.example, "requirement": adapter.requirement,
                "here": _is_here(adapter.package, home.packages / scheme),
            }
            for scheme, adapter in ADAPTERS.items()
        ],
    }  # fmt: skip


def _built_in(name: str) -> dict[str, Any]:
    environment = environments()[name]
    return {
        "name": name, "title": environment.title,
        "tasks": {split: len(environment.tasks(split)) for split in SPLITS},
    }  # fmt: skip


def _brought(folder: Path, home: Home) -> dict[str, Any]:
    """Return what is known of a brought environment; its `fault` alone where it cannot be read."""
    try:
        manifest = BroughtEnvironment.open(folder).manifest
    except InvalidRequest as error:
        return {"name": folder.name, "fault": str(error)}
    measured = all_measured(home, manifest.full_name)
    return {
        "name": manifest.full_name, "title": manifest.title, "from": manifest.reference,
        "tasks": _in_order(manifest.splits), "hidden_apart": manifest.hidden_apart,
        "measured_with": list(dict.fromkeys(each.model for each in measured)),
        "faults": [fault for each in measured for fault in each.faults or ()],
        "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
    }  # fmt: skip


def _in_order(splits: Mapping[Any, int]) -> dict[str, int]:
    return {split: splits[split] for split in SPLITS}


def _is_here(package: str, apart: Path) -> bool:
    return importlib.util.find_spec(package) is not None or (apart / package).is_dir()
