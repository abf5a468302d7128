"""What files of the repository import of one another, read from their text: nothing is imported."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

_IMPORT: Final = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import\s+(\([^)]*\)|.*)|import\s+([\w., ]+))", re.MULTILINE)


def files_of(root: Path, paths: Iterable[str]) -> list[str]:
    """Return the files of the working tree at these paths, without what git ignores."""
    globs = [path if path.startswith(":") else f":(glob){path}" for path in paths]
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={root}", "ls-files", "-z", "-co", "--exclude-standard", "--", *globs],
        cwd=root, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    return sorted({path for path in listed.split("\0") if (root / path).is_file()})


def imported_by(root: Path, paths: Iterable[str]) -> set[str]:
    """Return these files and all of ours that they import, with the conftest.py above each."""
    found, left = set[str](), list(paths)
    while left:
        if (path := left.pop()) not in found:
            found.add(path)
            left += imports(root, path) if path.endswith(".py") else ()
    return found


@cache
def imports(root: Path, path: str) -> tuple[str, ...]:
    """Return our files that one may import; benchmarks/ imports its own by their names."""
    names = [parent / "conftest" for parent in Path(path).parents if path.startswith("tests/")]
    for module, said, plain in _IMPORT.findall((root / path).read_text(encoding="utf-8")):
        inside = re.findall(r"\w+", said)
        names += [Path(name.strip().replace(".", "/")) for name in plain.split(",")] if plain else []
        names += [Path(module.replace(".", "/"), name) for name in ("", *inside)] if module else []
    return tuple(
        f"{file}" for name in names for base in (Path(), Path("benchmarks"))
        for file in ((base / name).with_suffix(".py"), base / name / "__init__.py") if (root / file).is_file()
    )  # fmt: skip
