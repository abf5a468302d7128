"""The installation's folder: found, private, refused where it cannot be written; a full disk costs no run a try."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from urllib.request import proxy_bypass

import pytest

from research.errors import NotReady
from research.files import FULL_EXIT, read_json, write_json
from research.installation.home import Home
from research.own_process import begin_process, bypass_proxy
from sandboxes import Exit, SandboxError
from studies import EventType
from studies.records.runs import DISK_FULL
from tests.disks import needs_mounts, on_small_disk
from tests.golden import refused
from tests.research.bench import Bench
from tests.research.factories import make_home


def test_its_files_are_its_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "studies").mkdir(mode=0o755)  # of an earlier version
    (tmp_path / "of somebody").mkdir(mode=0o755)
    monkeypatch.setattr(os, "environ", {})
    request.addfinalizer(partial(os.umask, os.umask(0o022)))
    begin_process()
    home = Home.locate({"AJET_HOME": str(tmp_path)}).prepare()
    write_json(home.study("s") / "design.lock", {})
    open_to_others = {path.name for path in tmp_path.rglob("*") if path.stat().st_mode & 0o077}
    assert open_to_others == {"of somebody"}


def test_a_proxy_is_not_asked_for_what_is_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "corp.example")
    bypass_proxy(os.environ, "127.0.0.1", "trainer")
    assert [host for host in ("127.0.0.1", "trainer", "corp.example", "other") if proxy_bypass(host)] == [
        "127.0.0.1", "trainer", "corp.example",
    ]  # fmt: skip
    nobody = {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "*"}
    bypass_proxy(nobody, "trainer")
    assert nobody["NO_PROXY"] == "*"  # what asks no proxy at all goes on so
    without: dict[str, str] = {}
    bypass_proxy(without, "127.0.0.1")
    assert not without


@pytest.mark.parametrize("place", ["file", "/sys/ajet"])
def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")  # and not even root may make a folder in /sys
    with pytest.raises(NotReady):  # a path that would open another database
        Home.locate({"AJET_HOME": str(tmp_path / "a?b")})
    with refused(NotReady, "AJET_HOME"):
        Home.locate({"AJET_HOME": str(tmp_path / place)}).prepare()


HOLDER = """
import sys
from pathlib import Path
from research.installation.home import Home
with Home.locate({"AJET_HOME": sys.argv[1]}).creation_lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_who_begins_waits_for_another_but_no_dead_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_home(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with monkeypatch.context() as patch:
            patch.setattr("research.installation.home.BEGINNING_S", 0.2)
            with pytest.raises(NotReady, match=r"0\.2 s; .*beginning\.lock"):
                home.creation_lock().__enter__()
    finally:
        holder.kill()
        holder.communicate()
    with pytest.raises(ValueError, match="inside"), home.creation_lock():
        raise ValueError("inside")
    with home.creation_lock():
        pass


@pytest.mark.slow
@needs_mounts
def test_on_a_full_disk_each_command_says_so_and_the_study_goes_on_with_room(tmp_path: Path) -> None:
    done = on_small_disk(tmp_path, 96, "-m", "tests.research.commands", "--full", str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    for code, _, said in told["tried"]:
        assert (code, said.count("\n")) == (2, 1), said
        assert "full" in said or "room" in said
    assert "full" in told["said"] or "room" in told["said"]
    assert (told["status"], told["studies"]) == ("concluded", 1)


def test_an_attempt_without_room_for_its_last_word_is_known_by_its_exit_code(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    loop = bench.loop()
    loop.tick()
    for handle in bench.sandbox.handles.values():
        handle.ended = Exit("error", FULL_EXIT)
    loop.tick()
    ends = [event.payload for event in bench.events() if event.type is EventType.ATTEMPT_ENDED]
    assert {(end["status"], end["code"]) for end in ends} == {("stopped", DISK_FULL)}


def test_nothing_is_launched_on_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    monkeypatch.setattr("research.files.free_bytes", lambda folder: 4096)
    with pytest.raises(SandboxError, match="found 4 KiB"):
        bench.loop().tick()
    assert all(event.type is not EventType.ATTEMPT_LAUNCHED for event in bench.events())
    monkeypatch.undo()
    assert bench.drive(bench.loop()).status == "concluded"


def test_a_file_that_a_full_disk_cuts_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "kept.json", 1)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_json(tmp_path / "kept.json", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]
    assert read_json(tmp_path / "kept.json") == 1
