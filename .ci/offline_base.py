"""Make a base image of this machine's own Debian, for an engine that reaches no registry, and print its tag.

    .ci/offline_base.py          the engine's; made where it has none, by root, with debootstrap
    .ci/offline_base.py --kept   the engine's; where it has none nothing is made, and the exit code is 1

debootstrap brings a minimal system with Python into a folder, which is stripped of what no container reads and
imported. Nothing on this machine outside that folder is changed.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sandboxes.docker.engine import ContainerEngine, connect

REPOSITORY = "ajet-base"
PACKAGES = ("python3-minimal", "libpython3-stdlib", "ca-certificates")
STRIPPED = ("var/lib/apt/lists", "var/cache/apt", "var/log", "usr/share/man", "usr/share/info", "usr/share/locale")
"""What is emptied; of the documentation, the licences stay."""


def find_mirror(suite: str) -> str:
    """Return where this machine's apt takes the main packages of a suite from."""
    asked = ("apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI)", "Created-By: Packages")
    found = _run(*asked, "Component: main", f"Release: {suite}", out=subprocess.PIPE)
    uris = [uri for uri in found.split() if uri.startswith(("http:", "https:", "file:"))]
    if not uris:
        sys.exit(f"expected a source of {suite} main over http, https or file in /etc/apt; found none; add one")
    return uris[0]


def make(engine: ContainerEngine, suite: str) -> None:
    """Bring a minimal system of the suite, strip it and import it."""
    with tempfile.TemporaryDirectory(prefix="ajet-base-") as scratch:
        root, tar = Path(scratch) / "root", Path(scratch) / "root.tar"
        include = f"--include={','.join(PACKAGES)}"
        _run("debootstrap", "--variant=minbase", include, suite, str(root), find_mirror(suite))
        strip(root)
        _run("tar", "--sort=name", "--numeric-owner", "--one-file-system", "-C", str(root), "-cf", str(tar), ".")
        engine.client.api.import_image_from_file(str(tar), repository=REPOSITORY, tag=suite)


def strip(root: Path) -> None:
    """Empty what no container reads, and take the right to become root from every program."""
    for folder in STRIPPED:
        shutil.rmtree(root / folder, ignore_errors=True)
        (root / folder).mkdir(parents=True, exist_ok=True)
    for path in (root / "usr/share/doc").rglob("*"):
        if path.is_file() and path.name != "copyright":
            path.unlink()
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_mode & 0o6000:
            path.chmod(path.stat().st_mode & 0o1777)


def _run(*command: str, out: int | None = None) -> str:
    """Run a command of this system; what it says goes to standard error, for the standard output has one use."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    environment = {**os.environ, "PATH": path, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=out or sys.stderr, text=True, check=True,
        umask=0o022,  # a container's user reads it
    )  # fmt: skip
    return done.stdout or ""


def main() -> None:
    """Find or make the image, and print its tag."""
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    engine, tag = connect(os.environ), f"{REPOSITORY}:{suite}"
    if not engine.client.images.list(name=tag):
        if "--kept" in sys.argv:
            sys.exit(f"the engine has no {tag} yet")
        make(engine, suite)
    sys.stdout.write(f"{tag}\n")


if __name__ == "__main__":
    main()
