"""A base image made from this machine's own Debian sources, for an engine that reaches no registry.

debootstrap brings a minimal system with Python into a folder, which is stripped of what no container reads and
imported. It needs root and debootstrap, and says so in a line; nothing on this machine outside that folder is changed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sandboxes.docker.engine import ContainerEngine
from sandboxes.spec import SandboxError

REPOSITORY = "ajet-base"
PACKAGES = ("python3-minimal", "libpython3-stdlib", "ca-certificates")
BOOTSTRAP_TIMEOUT_S = 1800.0
STRIPPED = ("var/lib/apt/lists", "var/cache/apt", "var/log", "usr/share/man", "usr/share/info", "usr/share/locale")
"""What is emptied; of the documentation, the licences stay."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """Where packages of a suite come from; `keyring` is a file that signs for it, if the sources name one."""

    uri: str
    suite: str
    keyring: str | None = None


def offline_base(engine: ContainerEngine, note: Callable[[str], None]) -> str:
    """Return the tag of the base image of this machine's suite, making it when the engine has none."""
    mirror = find_mirror(Path("/"))
    tag = f"{REPOSITORY}:{mirror.suite}"
    if not engine.client.images.list(name=tag):
        _check_tools()
        with tempfile.TemporaryDirectory(prefix="ajet-base-") as scratch:
            note(f"bringing a minimal {mirror.suite} with Python (about a minute)")
            root = Path(scratch) / "root"
            _bootstrap(mirror, root)
            strip(root)
            note(f"importing it as {tag}")
            _import(engine, root, Path(scratch) / "root.tar", mirror.suite)
    return tag


def find_mirror(root: Path) -> Mirror:
    """Return where the apt of the system in `root` takes the main packages of its own release from."""
    suite = _release(root).get("VERSION_CODENAME")
    if suite is None:
        raise SandboxError("expected a Debian or a system made of it, whose /etc/os-release names VERSION_CODENAME")
    for mirror in _mirrors(root / "etc" / "apt"):
        if mirror.suite == suite:
            return mirror
    raise SandboxError(
        f"expected a source of {suite} main over http, https or file in /etc/apt; found none; add one, or name a base "
        "image that the engine has (ajet sandbox build --base IMAGE)"
    )


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


def _release(root: Path) -> Mapping[str, str]:
    try:
        lines = (root / "etc/os-release").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    return {key: value.strip("\"'") for key, mark, value in (line.partition("=") for line in lines) if mark}


def _mirrors(folder: Path) -> Iterator[Mirror]:
    """Yield the sources of a folder of apt in the order of their files, those in the older format first."""
    for path in (folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))):
        for line in _text(path).splitlines():
            yield from _of_line(line)
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", _text(path)):
            yield from _of_stanza(stanza)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


_LINE = re.compile(r"\s*deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>[^#]*)")


def _of_line(line: str) -> Iterator[Mirror]:
    """Yield the mirror of a line as `deb [signed-by=FILE] URI SUITE main`."""
    if found := _LINE.match(line):
        options = dict(option.split("=", 1) for option in (found["options"] or "").split() if "=" in option)
        yield from _usable([found["uri"]], [found["suite"]], found["components"].split(), options.get("signed-by"))


def _of_stanza(stanza: str) -> Iterator[Mirror]:
    """Yield the mirrors of a deb822 stanza."""
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace():
            fields[name] = f"{fields.get(name, '')}\n{line.strip()}"
        else:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    lists = {key: fields.get(key, "").split() for key in ("types", "uris", "suites", "components")}
    if "deb" in lists["types"] and fields.get("enabled", "yes").lower() not in ("no", "false", "0"):
        yield from _usable(lists["uris"], lists["suites"], lists["components"], fields.get("signed-by"))


def _usable(uris: list[str], suites: list[str], components: list[str], signer: str | None) -> Iterator[Mirror]:
    keyring = signer if signer is not None and signer.startswith("/") and "\n" not in signer else None
    for uri in uris:
        if "main" in components and urlsplit(uri).scheme in ("http", "https", "file"):
            yield from (Mirror(uri, suite, keyring) for suite in suites)


def _check_tools() -> None:
    if os.geteuid() != 0:
        raise SandboxError(
            "an offline base needs root, since debootstrap makes a system's files; found another user; run "
            "`sudo ajet sandbox build --offline-base` once, or name a base image (--base IMAGE)"
        )
    if shutil.which("debootstrap", path=_path()) is None:
        raise SandboxError("an offline base needs debootstrap; found none; apt-get install debootstrap")


def _path() -> str:
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def _bootstrap(mirror: Mirror, root: Path) -> None:
    keyring = (f"--keyring={mirror.keyring}",) if mirror.keyring else ()
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", *keyring]
    _run([*command, mirror.suite, str(root), mirror.uri], "bring a minimal system")


def _import(engine: ContainerEngine, root: Path, tar: Path, suite: str) -> None:
    from docker.errors import DockerException

    packing = ["tar", "--sort=name", "--numeric-owner", "--one-file-system", "-C", str(root), "-cf", str(tar), "."]
    _run(packing, "pack it")
    try:
        engine.client.api.import_image_from_file(str(tar), repository=REPOSITORY, tag=suite)
    except DockerException as error:
        raise SandboxError(f"the engine at {engine.host} could not import the base image: {error}") from error


def _run(command: list[str], what: str) -> None:
    """Run a command of this system; raise SandboxError with the last line it said when it fails."""
    environment = {**os.environ, "PATH": _path(), "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=BOOTSTRAP_TIMEOUT_S, check=False, umask=0o022,  # a container's user reads it
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"{command[0]} could not {what} in {BOOTSTRAP_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        said = done.stdout.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise SandboxError(f"{command[0]} could not {what}: {said[0]}")
