"""Python packages for an image, brought by this machine's pip: built packages only, and none of their code is run here.

The client's own packages are those installed here, at the very versions: what is tested here is what runs there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sandboxes.images.base import Base
from sandboxes.images.trees import Tree, tree_of_folder
from sandboxes.spec import SandboxError

PIP_TIMEOUT_S = 900.0
_USELESS = (".pyi", ".pyx", ".pxd", ".c", ".h")
_BOOKKEEPING = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")


def closure(roots: Sequence[str], markers: Mapping[str, str]) -> tuple[str, ...]:
    """Return `name==version`, sorted, of the roots and all that they need where the markers hold, as installed here."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    left = [Requirement(root) for root in roots]
    while left:
        wanted = left.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found[name] = _version(wanted.name)
        left += _needs(wanted.name, extras, markers)
    return tuple(f"{name}=={found[name]}" for name in sorted(found))


def install(pins: Sequence[str], base: Base) -> Tree:
    """Return exactly these packages for the base, without what a running client never reads."""
    with tempfile.TemporaryDirectory(prefix="ajet-packages-") as folder:
        _pip(("--no-deps", *pins), base, Path(folder))
        tree = tree_of_folder(Path(folder))
    return {path: content for path, content in tree.items() if not _useless(path)}


def resolve(requirements: Iterable[str], constraints: Iterable[str], base: Base) -> Tree:
    """Return what the requirements need on the base, at versions that agree with the constraints."""
    with tempfile.TemporaryDirectory(prefix="ajet-packages-") as folder:
        bounds, target = Path(folder) / "constraints.txt", Path(folder) / "site"
        bounds.write_text("\n".join(constraints), encoding="utf-8")
        _pip(("--constraint", str(bounds), *requirements), base, target)
        return tree_of_folder(target)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError as error:
        raise SandboxError(
            f"expected package {name} here, as the client needs it; found none; install ajet again"
        ) from error


def _needs(name: str, extras: frozenset[str], markers: Mapping[str, str]) -> list[Requirement]:
    wanted = [Requirement(line) for line in metadata.requires(name) or []]
    return [each for each in wanted if _holds(each, {*extras, ""}, markers)]


def _holds(wanted: Requirement, extras: Iterable[str], markers: Mapping[str, str]) -> bool:
    return wanted.marker is None or any(wanted.marker.evaluate({**markers, "extra": extra}) for extra in extras)


def _useless(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return (
        name.endswith(_USELESS) or path.startswith("bin/") or (folder.endswith(".dist-info") and name in _BOOKKEEPING)
    )


def _pip(arguments: Sequence[str], base: Base, target: Path) -> None:
    """Install into `target` for the base's platform; raise SandboxError with what pip said was wrong."""
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--no-compile",
        "--only-binary=:all:", "--implementation", "cp", "--python-version", base.python,
        *(f"--platform={platform}" for platform in base.platforms), "--target", str(target), *arguments,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise SandboxError(
            f"pip did not bring the packages in {PIP_TIMEOUT_S:.0f} s; see that its index answers"
        ) from error
    if done.returncode != 0:
        raise SandboxError(f"pip could not bring the packages for Python {base.python}: {_complaint(done.stderr)}")


def _complaint(said: str) -> str:
    """Return what pip gave as its reason: its last lines marked ERROR, or its last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return " ".join(errors[-2:]) if errors else (lines or ["it said nothing; is pip installed here?"])[-1]
