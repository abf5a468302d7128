"""A package outside of ajet, as pip would leave it: a planner and a backend of its own, found by entry points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CODE = '''
from research.planners.rules import RulesPlanner
from swarm.backends.fake import FakeBackend


class Outside(RulesPlanner):
    """Plans as rules do, under a name of its own."""

    name = "outside"


class OutsideBackend(FakeBackend):
    """Answers as the fake does, under a name of its own."""

    model_name = "made-outside"


def planner(model, environ):
    return Outside()


def backend(job, models):
    return OutsideBackend(job)


def misnamed(model, environ):
    return RulesPlanner()


def failing(*given):
    raise RuntimeError("no such luck\\nand more")
'''
BROUGHT = {
    "ajet.planners": {"outside": "outside_of_ajet:planner", "misnamed": "outside_of_ajet:misnamed",
                      "failing": "outside_of_ajet:failing", "broken": "outside_of_nothing:planner"},
    "ajet.backends": {"outside": "outside_of_ajet:backend", "failing": "outside_of_ajet:failing",
                      "broken": "outside_of_nothing:backend"},
}  # fmt: skip


def install(folder: Path, brought: Mapping[str, Mapping[str, str]] = BROUGHT, name: str = "outside") -> Path:
    """Write the package into a folder, which is then for sys.path or PYTHONPATH, and return the folder."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in names.items())
        for group, names in brought.items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    (folder / "outside_of_ajet.py").write_text(CODE)
    return folder
