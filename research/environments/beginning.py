"""The environment that `ajet env init` writes: small, whole and commented, to be changed into one's own.

It is kept as text, as it is no module of ours; `examples/own_environment` has the same.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from research.environments.reference import FILE
from research.errors import BadEnvironment
from research.files import write_bytes
from research.installation.home import cause_of


def text_of_example() -> str:
    """Return the example's file."""
    return resources.files("research.environments").joinpath("own_environment.txt").read_text(encoding="utf-8")


def begin_in(folder: Path) -> Path:
    """Write the example into a folder, making it; return the file. Raises BadEnvironment where there is one already."""
    path = folder / FILE
    if path.exists():
        raise BadEnvironment(
            f"expected a folder without {FILE}; found {path}, which is left as it is; name another folder"
        )
    try:
        write_bytes(path, text_of_example().encode())
    except OSError as error:
        raise BadEnvironment(f"expected a folder to write {FILE} into; found {folder}: {cause_of(error)}") from error
    return path
