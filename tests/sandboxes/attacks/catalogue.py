"""What is attempted, read from the attempts themselves: the name and the words of each."""

from __future__ import annotations

import ast
from pathlib import Path

HOSTILE = Path(__file__).parent / "hostile"


def attempts(module: str) -> dict[str, str]:
    """Return what each attempt of a module of `hostile` tries, by its name, in the order written."""
    tree = ast.parse((HOSTILE / f"{module}.py").read_text())
    return {
        function.name: ast.literal_eval(mark.args[0])
        for function in tree.body
        if isinstance(function, ast.FunctionDef)
        for mark in function.decorator_list
        if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "attempt"
    }


def hostile_files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in HOSTILE.glob("*.py")}
