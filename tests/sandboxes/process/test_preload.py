from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from sandboxes import Exit, Handle, ProcessSandbox, SandboxSpec, preload, shim
from sandboxes.process import session_members
from sandboxes.spec import wait_until

pytestmark = pytest.mark.slow

DEADLINE_S = 180.0
PROBE = """
import asyncio, json, os, random, signal, sys
from pathlib import Path
from sandboxes import preload

IMPORTED_IN = os.getpid()

async def start(folder, *arguments, environment=None):
    spare = preload.start_spare("probe", arguments, folder, environment or dict(os.environ), folder / "spare.log")
    return None if spare is None else (await spare[1], (folder / "spare.log").read_text())

async def spawn(folder):
    killed, _ = preload._spares[-1]
    killed.kill()
    killed.wait()
    told = await start(folder, "tell")
    print(json.dumps([told, await start(folder, "tell", environment={**os.environ, "PYTHONPATH": "else"}),
                      await start(folder, "die"), await start(folder, "tell")]))

def main():
    what = sys.argv[1]
    if what == "tell":
        print(json.dumps({
            "forked": IMPORTED_IN != os.getpid(), "pid": os.getpid(), "session": os.getsid(0), "group": os.getpgid(0),
            "folder": os.getcwd(), "arguments": sys.argv[1:], "environment": dict(os.environ),
            "open": sorted(map(int, os.listdir("/proc/self/fd")))[:-1], "drawn": random.random(),
            "command": Path("/proc/self/cmdline").read_text().rstrip("\\0").split("\\0")[1:],
            "ignored": signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN}))
        return 7
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "sleep":
        preload.reserve(2)
        print("asleep", flush=True)
        signal.pause()
    preload.reserve(4)
    asyncio.run(spawn(Path.cwd()))
    raise KeyError("the end")

if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[ProcessSandbox]:
    (tmp_path / "probe.py").write_text(PROBE)
    sandbox = ProcessSandbox(tmp_path / "sandboxes")
    sandbox.preload(("probe",), variables(tmp_path))
    yield sandbox
    assert sandbox._preloader is not None
    sandbox._preloader.close()
    for handle in sandbox.list():
        handle.stop(grace_s=1.0)


def variables(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "OF": "the spec"}


def run(sandbox: ProcessSandbox, folder: Path, *arguments: str, name: str = "one", **environment: str) -> Handle:
    command = (sys.executable, "-m", "probe", *arguments)
    return sandbox.run(SandboxSpec(name, command, folder, variables(folder) | environment, trusted=True))


def tell(sandbox: ProcessSandbox, folder: Path, name: str, **environment: str) -> dict[str, Any]:
    handle = run(sandbox, folder, "tell", "twice over", name=name, **environment)
    assert handle.wait(DEADLINE_S) == Exit("error", 7)
    told: dict[str, Any] = json.loads(handle.logs())
    return told


def preloading() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if "sandboxes.preload" in " ".join(each.cmdline())]


def test_a_forked_command_is_what_a_new_process_would_be(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    forked, another = tell(sandbox, tmp_path, "a"), tell(sandbox, tmp_path, "b")
    new = tell(ProcessSandbox(tmp_path / "others"), tmp_path, "a")
    assert [told["forked"] for told in (forked, another, new)] == [True, True, False]
    assert forked["drawn"] != another["drawn"]
    for told in (forked, new):
        assert told.pop("group") == told.pop("pid") != told.pop("session")
        told["environment"].pop("LC_CTYPE", None)  # which Python sets as it starts in the locale C
        del told["forked"], told["drawn"]
    assert forked == new
    assert forked["open"] == [0, 1, 2]


def test_a_command_with_other_variables_and_one_after_the_preloader_was_killed_are_started(
    sandbox: ProcessSandbox, tmp_path: Path
) -> None:
    assert not tell(sandbox, tmp_path, "a", OF="another")["forked"]
    written = tmp_path / "sandboxes" / "killed" / "spec.json"  # by a controller that was killed
    written.parent.mkdir()
    shutil.copy(tmp_path / "sandboxes" / "a" / "spec.json", written)
    told = tell(sandbox, tmp_path, "killed")
    assert (told["forked"], told["environment"]["OF"]) == (False, "another")
    for process in preloading():
        process.kill()
    assert not tell(sandbox, tmp_path, "b")["forked"]
    assert not tell(sandbox, tmp_path, "c")["forked"]


def test_it_outlives_its_preloader_which_ends_with_its_holder_and_a_stop_leaves_nothing(
    sandbox: ProcessSandbox, tmp_path: Path
) -> None:
    handle = run(sandbox, tmp_path, "sleep")
    assert wait_until(lambda: "asleep" in handle.logs(), DEADLINE_S)
    started = json.loads((tmp_path / "sandboxes" / "one" / "started.json").read_text())
    session = started["shim_pid"], started["started_at"]
    assert len(session_members(*session, leader_lives=True)) == 4  # its shim, itself, two spares
    assert sandbox._preloader is not None
    sandbox._preloader.close()
    assert preloading() == []
    assert handle.poll() is None
    assert handle.stop() == Exit("stopped", -signal.SIGTERM)
    assert session_members(*session, leader_lives=False) == []


def test_spares_end_with_a_process_that_is_killed(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    handle = run(sandbox, tmp_path, "sleep")
    assert wait_until(lambda: "asleep" in handle.logs(), DEADLINE_S)
    started = json.loads((tmp_path / "sandboxes" / "one" / "started.json").read_text())
    (shim,) = (each for each in psutil.process_iter() if each.pid == started["shim_pid"])
    shim.kill()  # which would have ended its group
    shim.wait(DEADLINE_S)
    left = session_members(*started.values(), leader_lives=False)
    (command,) = (each for each in left if os.getpgid(each.pid) == each.pid)
    command.kill()
    assert wait_until(lambda: not session_members(*started.values(), leader_lives=False), DEADLINE_S)


def test_spares_are_processes_of_their_own_and_one_that_was_killed_is_left_out(
    sandbox: ProcessSandbox, tmp_path: Path
) -> None:
    handle = run(sandbox, tmp_path, "spawn")
    assert handle.wait(DEADLINE_S) == Exit("error", 1)
    lines = handle.logs().splitlines()
    results = next(line for line in lines if line.startswith("[["))
    (code, log), other, died, second = json.loads(results)
    told = json.loads(log)
    assert (code, told["forked"], told["open"], told["arguments"]) == (7, True, [0, 1, 2], ["tell"])
    assert told["pid"] != told["group"]
    assert other is None  # Python would begin otherwise
    assert died[0] == -signal.SIGKILL
    assert json.loads(second[1].splitlines()[-1])["drawn"] != told["drawn"]
    assert "KeyError: 'the end'" in lines


async def test_where_no_end_can_be_seen_no_order_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.EPERM, "as a filter of system calls may")

    reading, writing = os.pipe()
    monkeypatch.setattr(preload, "_spares", [(SimpleNamespace(pid=os.getpid()), writing)])
    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert preload.start_spare("sandboxes.preload", (), tmp_path, dict(os.environ), tmp_path / "log") is None
    os.close(writing)
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_where_there_is_no_room_for_forks_none_is_set_aside_and_commands_are_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise OSError(errno.ENOMEM, "no room")

    def start(spec: Mapping[str, Any], preexec_fn: object = None) -> Any:
        return refuse() if preexec_fn else "started"

    monkeypatch.setattr(preload, "_forked", True)
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    preload.reserve(1)
    assert preload._spares == []
    monkeypatch.setattr(shim, "start_command", start)
    started: Any = preload._fork_command({"command": [sys.executable, "-m", "sandboxes.preload"]})
    assert started == "started"
