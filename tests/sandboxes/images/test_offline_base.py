from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from sandboxes import SandboxError
from sandboxes.images import offline_base
from sandboxes.images.offline_base import Mirror, find_mirror, strip

RELEASE = 'PRETTY_NAME="Some Debian"\nVERSION_CODENAME=trixie\n'


def system(root: Path, files: dict[str, str]) -> Path:
    for path, text in {"etc/os-release": RELEASE, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


ONE_LINE = """
# deb http://commented.example/debian trixie main
deb-src http://source.example/debian trixie main
deb cdrom:[disc]/ trixie main
deb http://other.example/debian trixie-updates main
deb [arch=amd64 signed-by=/usr/share/keyrings/key.gpg] https://found.example/debian trixie contrib main # why
deb http://later.example/debian trixie main
"""
STANZAS = """
Types: deb
URIs: http://disabled.example/debian
Suites: trixie
Components: main
Enabled: no

# a comment
Types: deb deb-src
URIs: mirror+file:/etc/list https://found.example/debian
Suites: trixie-updates
  trixie
Components: contrib main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 x
"""


@pytest.mark.parametrize(
    ("path", "text", "keyring"),
    [
        ("etc/apt/sources.list", ONE_LINE, "/usr/share/keyrings/key.gpg"),
        ("etc/apt/sources.list.d/some.list", ONE_LINE, "/usr/share/keyrings/key.gpg"),
        ("etc/apt/sources.list.d/debian.sources", STANZAS, None),
    ],
)
def test_the_mirror_is_the_first_that_has_the_main_packages_of_the_system_s_own_release(
    tmp_path: Path, path: str, text: str, keyring: str | None
) -> None:
    assert find_mirror(system(tmp_path, {path: text})) == Mirror("https://found.example/debian", "trixie", keyring)


def test_sources_without_the_system_s_release_are_one_line(tmp_path: Path) -> None:
    root = system(tmp_path, {"etc/apt/sources.list": "deb http://x.example/debian bookworm main"})
    with pytest.raises(SandboxError, match=r"trixie main.*--base IMAGE"):
        find_mirror(root)


def test_a_system_that_is_no_debian_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="expected a Debian"):
        find_mirror(tmp_path)


def test_what_no_container_reads_is_stripped_and_licences_stay(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        {
            "usr/share/doc/x/copyright": "licence", "usr/share/doc/x/changelog.gz": "", "var/lib/apt/lists/x": "",
            "usr/share/man/man1/x.1": "", "usr/share/locale/de/x": "", "usr/bin/su": "", "usr/bin/true": "",
        },
    )  # fmt: skip
    (root / "usr/bin/su").chmod(0o4755)
    (root / "usr/bin/link").symlink_to("su")
    strip(root)
    files = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert files == {"etc/os-release", "usr/share/doc/x/copyright", "usr/bin/su", "usr/bin/true", "usr/bin/link"}
    assert stat.S_IMODE((root / "usr/bin/su").stat().st_mode) == 0o755, "nothing in it gives a right away"
    assert (root / "var/lib/apt/lists").is_dir()


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return what makes the base of a suite in an engine that has these."""
    monkeypatch.setattr(offline_base, "find_mirror", lambda root: Mirror("file:/nowhere", "test"))
    monkeypatch.setattr("os.geteuid", lambda: 0)

    def make(*held: str, note: Callable[[str], None] = lambda line: None) -> str:
        engine: Any = SimpleNamespace(client=MagicMock())
        engine.client.images.list = lambda name: [name] if name in held else []
        return offline_base.offline_base(engine, note)

    return make


def test_without_root_it_is_refused_in_a_line_before_anything_is_done(
    base: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    notes: list[str] = []
    with pytest.raises(SandboxError, match=r"needs root.*--offline-base.*--base IMAGE"):
        base(note=notes.append)
    assert notes == []


def test_without_debootstrap_it_is_refused_in_a_line(base: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline_base, "_path", lambda: "/nonexistent")
    with pytest.raises(SandboxError, match="apt-get install debootstrap"):
        base()


def test_what_debootstrap_said_last_is_the_reason(
    base: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = tmp_path / "debootstrap"
    tool.write_text("#!/bin/sh\necho working\necho 'E: no such suite' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SandboxError, match="E: no such suite"):
        base()
    assert not list(tmp_path.glob("ajet-base-*")), "nothing is left behind"


def test_a_base_that_is_there_is_not_made_again(base: Callable[..., str]) -> None:
    assert base("ajet-base:test") == "ajet-base:test"
