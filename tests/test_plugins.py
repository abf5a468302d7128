"""What a run of the tests says, leaves to its parts, and ends; and the images that CI makes and keeps."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest

from tests import golden, parts
from tests.parts import files_of

ROOT = Path(__file__).parent.parent


def test_every_test_file_lies_under_a_part_and_every_path_of_a_part_is_there() -> None:
    covered = set(files_of(ROOT, [test for part in parts.parts() for test in part.tests]))
    assert [path for path in files_of(ROOT, ["tests/**/test_*.py"]) if path not in covered] == []
    paths = [path for part in parts.parts() for path in (*part.tests, *part.sources)]
    assert [path for path in paths if not files_of(ROOT, [path.partition("::")[0]])] == []


def test_every_golden_text_is_of_a_test(pytestconfig: pytest.Config) -> None:
    assert golden.stale(pytestconfig.stash[golden.COLLECTED]) == []


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a repository of two parts: one that takes long, and one whose outcome its source says."""
    for name in ("PARTS", "KNOWN", "ROOT"):
        monkeypatch.setattr(parts, name, tmp_path / getattr(parts, name).relative_to(parts.ROOT))
    (tmp_path / "tests").mkdir()
    (tmp_path / "outcome").write_text("true")
    (tmp_path / "tests" / "parts.toml").write_text(
        '[long]\nabout = "long"\ntests = []\nsources = []\nrun = "true"\n'
        '[short]\nabout = "short"\ntests = []\nsources = ["outcome"]\nrun = "sh outcome"\n'
    )
    for service in parts.SERVICES:
        monkeypatch.setenv(service, "there")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    parts.parts.cache_clear()
    yield tmp_path
    parts.parts.cache_clear()


def outcomes(folder: Path) -> dict[str, str]:
    return {name: entry["outcome"] for name, entry in json.loads((folder / "tests/parts.json").read_text()).items()}


def test_a_part_that_passed_runs_again_when_its_sources_change_or_it_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parts.main([]) == 0
    before = (project / "tests/parts.json").stat().st_mtime_ns
    assert parts.main([]) == 0
    assert (project / "tests/parts.json").stat().st_mtime_ns == before
    (project / "outcome").write_text("false")
    assert [part.name for part in parts.parts() if parts.is_stale(part, parts.known())] == ["short"]
    assert parts.main([]) == 1
    assert outcomes(project) == {"long": "passed", "short": "failed"}
    assert all(part.expected_s < parts.UNKNOWN_S for part in parts.parts()), "what failed at once says nothing of time"
    (project / "outcome").write_text("date +%N > outcome")
    assert parts.main(["short"]) == 0
    assert outcomes(project)["short"] == "passed in part", "it was edited meanwhile"
    monkeypatch.delenv(parts.SERVICES[0])
    assert parts.main(["long"]) == 0
    assert (project / "tests/parts.json").stat().st_mtime_ns != before
    assert outcomes(project)["long"] == "passed in part", "a service was missing"


def test_only_what_fits_into_the_time_is_run_and_the_rest_is_said(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "tests/parts.json").write_text(json.dumps({"short": {"seconds": 1}, "long": {"seconds": 900}}))
    assert parts.main(["--within", "60"]) == 0
    assert json.loads((project / "tests/parts.json").read_text())["long"] == {"seconds": 900}
    assert "stale   long" in capsys.readouterr().out


DEBOOTSTRAP = """#!/bin/sh
mkdir "$4"
cd "$4"
mkdir -p usr/share/doc/x var/cache/apt usr/bin
touch usr/share/doc/x/copyright usr/share/doc/x/changelog.gz var/cache/apt/x usr/bin/su
chmod 4755 usr/bin/su
echo "$3 of $5" >from
"""


def test_ci_makes_a_base_of_this_machines_suite_in_which_nothing_gives_a_right_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("debootstrap", DEBOOTSTRAP), ("apt-get", "#!/bin/sh\necho cdrom:disc\necho file:/mirror\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    imported: dict[str, int] = {}

    def take(path: str, repository: str, tag: str) -> None:
        assert (repository, tag) == ("ajet-base", "trixie")
        with tarfile.open(path) as tar:
            assert tar.extractfile("./from").read() == b"trixie of file:/mirror\n"  # type: ignore[union-attr]
            imported.update({entry.name: entry.mode for entry in tar if entry.isfile()})

    api = SimpleNamespace(import_image_from_file=take)
    run_path(str(ROOT / ".ci" / "offline_base.py"))["make"](SimpleNamespace(client=SimpleNamespace(api=api)), "trixie")
    assert imported == {"./from": 0o644, "./usr/share/doc/x/copyright": 0o644, "./usr/bin/su": 0o755}
