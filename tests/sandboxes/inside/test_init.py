from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandboxes.inside import init
from sandboxes.inside.init import GONE_S, LOOK_S, ParentWatchdog, is_served

INIT = Path(init.__file__)
NEW_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child"]


def told(**info: int) -> Any:
    return SimpleNamespace(**{"si_signo": signal.SIGTERM, "si_code": 0, "si_pid": 0, **info})


@pytest.mark.parametrize(("info", "believed"), [
    (told(), True), (told(si_signo=signal.SIGINT), True), (told(si_pid=7), False), (told(si_code=-1), False),
    (told(si_code=-6, si_pid=7), False), (told(si_signo=signal.SIGCHLD), False), (None, False),
])  # fmt: skip
def test_only_a_kill_from_outside_the_container_is_a_request(info: Any, believed: bool) -> None:
    assert init.is_stop_request(info) is believed


@pytest.mark.parametrize(("files", "kills"), [
    ({"memory.events": "low 0\nmax 5\noom 2\noom_kill 3\noom_group_kill 0\n"}, 3),
    ({"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"}, 2),
    ({"memory.events": "what is this\n", "memory.oom_control": "oom_kill 1\n"}, 1),
    ({}, 0),
], ids=["version 2", "version 1", "unreadable", "none"])  # fmt: skip
def test_the_dead_of_too_little_memory_are_counted_by_either_version_of_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], kills: int
) -> None:
    assert [Path(path).name for path in init._OOM_COUNTERS] == ["memory.events", "memory.oom_control"]
    monkeypatch.setattr(init, "_OOM_COUNTERS", [str(tmp_path / Path(path).name) for path in init._OOM_COUNTERS])
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert init.oom_kills() == kills


def test_it_refuses_to_be_anything_but_pid_1_for_it_kills_whatever_it_can() -> None:
    ran = subprocess.run([sys.executable, "-I", "-S", str(INIT), "{}"], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "this is PID 1 of a container" in ran.stderr


def in_namespace(workspace: Path, code: str, before: str = "", **more: Any) -> subprocess.Popen[bytes]:
    """Start PID 1 in a process namespace of its own, with `workspace` for its workspace."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([*NEW_NAMESPACE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("expected `unshare --pid` to be allowed; the same is tested in containers")
    command = [sys.executable, "-I", "-S", "-c", code]
    config = {"command": command, "time_limit_s": None, "grace_s": 0.2, "output_bytes": 10_000, "results": {}}
    program = (
        f"import json, os, sys; sys.path.insert(0, {str(INIT.parent)!r}); import init; assert os.getpid() == 1; "
        f"init.SOCKET_WAIT_S = 0.2; {before}\n"
        "os._exit(init.main(json.loads(sys.argv[1]), sys.argv[2]))"
    )
    argument = json.dumps({**config, "ports": {}, **more})
    return subprocess.Popen(
        [*NEW_NAMESPACE, sys.executable, "-I", "-S", "-c", program, argument, str(workspace)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(process: subprocess.Popen[bytes]) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """Return the frame of the end, all further ones, and the output."""
    try:
        out, said = process.communicate(timeout=400)
    finally:
        process.kill()
    frames = [json.loads(line) for line in said.splitlines()]
    return frames[0], frames[1:], out.decode()


def children(process: subprocess.Popen[bytes]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.mark.slow
def test_a_request_from_outside_while_it_waits_for_its_sockets_ends_it(workspace: Path) -> None:
    process = in_namespace(
        workspace, "print('ran')", "init.SOCKET_WAIT_S = 60.0", ports={"0": str(workspace / "none.sock")}
    )
    while process.poll() is None:  # one that comes before it listens is lost
        for pid in children(process):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    end, _, output = ended(process)
    assert (end["exit"], end["code"], output) == ("stopped", -signal.SIGTERM, "")


@pytest.mark.slow
def test_the_command_ignores_no_signal_that_pythons_do(workspace: Path) -> None:
    _, _, output = ended(in_namespace(workspace, "", command=["grep", "SigIgn", "/proc/self/status"]))
    ignored = int(output.split()[1], 16)
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


@pytest.mark.slow
def test_when_memory_is_short_the_command_dies_first(workspace: Path) -> None:
    look = "open('/proc/self/oom_score_adj').read()"
    end, _, output = ended(in_namespace(workspace, f"print({look})", f"init.oom_kills = lambda: int({look})"))
    assert (end["oom_kills"], output.strip()) == (0, "500")


@pytest.mark.slow
def test_a_request_from_outside_ends_it_and_a_second_one_at_once(workspace: Path) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    process = in_namespace(workspace, deaf, grace_s=600.0)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    (first,) = children(process)
    os.kill(first, signal.SIGTERM)
    os.kill(first, signal.SIGINT)
    end, _, _ = ended(process)
    assert (end["exit"], end["code"]) == ("stopped", -signal.SIGKILL)


@pytest.mark.parametrize("module", sorted(INIT.parent.glob("*.py")), ids=lambda path: path.name)
def test_it_is_written_in_the_oldest_python_that_it_promises(module: Path) -> None:
    ast.parse(module.read_text(), feature_version=(3, 9))


@pytest.mark.slow
def test_it_ends_with_whoever_holds_its_door(workspace: Path) -> None:
    """The command would sleep for ten minutes; nobody listens any more at the socket it is tied to."""
    door = str(workspace / "door")
    end, _, _ = ended(in_namespace(workspace, "import time; time.sleep(600)", "init.GONE_S = 0.2", tied=door))
    assert (end["exit"], end["code"]) == ("stopped", -signal.SIGTERM)


# Its tie to whoever holds its door


def listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(0)
    return listener


def test_a_door_that_takes_nobody_just_now_is_served_and_one_whose_holder_is_gone_is_not(tmp_path: Path) -> None:
    path = tmp_path / "door"
    assert not is_served(str(path))
    with listening(path):
        assert all(is_served(str(path)) for _ in range(20))  # its queue is full, and its holder may be stopped
    assert not is_served(str(path))


def test_a_tie_breaks_only_where_nobody_came_back_in_time(tmp_path: Path) -> None:
    path, clock = tmp_path / "door", SimpleNamespace(now=100.0)
    tie = ParentWatchdog(str(path), lambda: clock.now)
    for _ in range(3):
        clock.now += GONE_S - LOOK_S
        assert not tie.is_parent_gone()
        with listening(path):
            clock.now += LOOK_S
            assert not tie.is_parent_gone()
        path.unlink()
    clock.now += GONE_S
    assert tie.is_parent_gone()
