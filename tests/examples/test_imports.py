"""What examples import of the project: what a user may import too, and nothing behind it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PUBLIC = {
    "swarm.client", "swarm.client.teams", "swarm.environments", "swarm.environments.play", "swarm.errors",
    "swarm.job", "swarm.wire",
}  # fmt: skip
FILES = sorted((Path(__file__).parents[2] / "examples").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_example_imports_public_modules_alone(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    found = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    found |= {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    own = {name for name in found if name.partition(".")[0] in ("research", "sandboxes", "studies", "swarm", "tests")}
    assert own <= PUBLIC
