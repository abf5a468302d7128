"""The packages that an environment's code needs, in a folder of their own, so that their pins clash with nobody's.

Such a folder comes first on the path of the processes that run the code. That of an adapter is made by the user, with
the line that the adapter's refusal gives, unless the package is installed beside ajet; that of a requirements.txt is
made here, once for each text. Containers have the same packages in their image.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Final

from research.environments.drafts import draft_in, place
from research.errors import BadEnvironment
from research.installation.home import Home
from research.installation.tiny_model import Note
from sandboxes.shown import last_lines
from swarm.environments.adapters import ADAPTERS, scheme_of
from swarm.environments.brought import CodeSource

PIP_TIMEOUT_S: Final = 1800.0


def python_path(home: Home, source: CodeSource, requirements: str, note: Note) -> tuple[Path, ...]:
    """Return the folders of packages for an environment's code, making what is not there; raises BadEnvironment."""
    if source.kind == "adapter":
        own = adapter_folder(home, source.place)
        return (own,) if own.is_dir() else ()
    # An installed module's packages are installed beside it.
    return (_ensure(home, requirements, note),) if requirements.strip() and source.kind != "module" else ()


def adapter_folder(home: Home, address: str) -> Path:
    """Return where the package of an adapter lies if it is not installed beside ajet."""
    return home.packages / str(scheme_of(address))


def how_to_install_apart(home: Home, address: str) -> str:
    """Return the line that installs an adapter's package where nothing else is touched."""
    adapter = ADAPTERS[str(scheme_of(address))]
    return f"pip install --target {adapter_folder(home, address)} '{adapter.requirement}'"


def _ensure(home: Home, requirements: str, note: Note) -> Path:
    wanted = f"{sys.version_info[:2]}\n{requirements}"
    folder = home.packages / hashlib.sha256(wanted.encode()).hexdigest()[:16]
    if folder.is_dir():
        return folder
    with draft_in(home.packages, home) as draft:
        note("installing the packages that the environment names")
        _install(requirements, draft)
        place(draft, folder)
    return folder


def _install(requirements: str, folder: Path) -> None:
    text = folder / ".requirements.txt"
    text.write_text(requirements, encoding="utf-8")
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check",
        "--target", str(folder), "--requirement", str(text),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BadEnvironment(f"pip did not bring the packages in {PIP_TIMEOUT_S:g} s; try again") from error
    if done.returncode:
        said = _complaint(done.stderr)
        raise BadEnvironment(f"expected pip to bring what requirements.txt names; it could not: {said}")


def _complaint(errors: str) -> str:
    """Return what pip gave as its reason."""
    lines = [line.removeprefix("ERROR: ") for line in errors.splitlines() if line.startswith("ERROR: ")]
    return " ".join(lines[-2:]) or last_lines(errors, 1, 300) or "it said nothing"
