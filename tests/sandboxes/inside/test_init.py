"""PID 1 by itself: what it keeps of output, whom it believes, and, in a process namespace of its own, how it ends."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxes.inside import init
from sandboxes.inside.init import SHORT_LINE, TAIL_BYTES, Output, Refused

INIT = Path(init.__file__)
NEW_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child"]


def taken(pieces: list[bytes], most_bytes: int) -> tuple[bytes, Output]:
    written: list[bytes] = []
    output = Output(written.append, most_bytes)
    for piece in pieces:
        output.feed(piece)
    output.finish()
    return b"".join(written), output


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_output_is_kept_from_its_beginning_and_every_other_byte_is_accounted_for(
    pieces: list[bytes], most_bytes: int
) -> None:
    data = b"".join(pieces)
    written, output = taken(pieces, most_bytes)
    if written == data:
        assert output.dropped == 0
        return
    head, _, tail = written.partition(f"\n[{output.dropped} bytes of output were dropped here; the last ".encode())
    assert len(head) <= most_bytes
    assert head.count(b"\n") <= most_bytes // SHORT_LINE
    assert data.startswith(head)
    assert data.endswith(tail.partition(b" follow]\n")[2])
    assert len(head) + output.dropped + len(tail.partition(b" follow]\n")[2]) == len(data)


def test_the_end_of_a_flood_is_kept_and_no_more_memory_is_taken_than_that() -> None:
    written, output = taken([b"x" * 100_000] * 50 + [b"the end"], 1000)
    assert written.startswith(b"x" * 1000 + b"\n[")
    assert written.endswith(b"the end")
    assert len(written) < 1000 + TAIL_BYTES + 100
    assert output.dropped == 5_000_007 - 1000 - TAIL_BYTES


def test_output_that_nobody_takes_is_counted_and_blocks_nothing() -> None:
    def broken(data: bytes) -> None:
        raise BrokenPipeError

    output = Output(broken, 1000)
    output.feed(b"x" * 10)
    output.feed(b"y" * 10)
    output.finish()
    assert output.dropped >= 10


def told(**info: int) -> Any:
    fields = {"si_signo": signal.SIGTERM, "si_code": 0, "si_pid": 0, **info}
    return type("Info", (), fields)()


@pytest.mark.parametrize(
    ("info", "believed"),
    [
        (told(), True),
        (told(si_signo=signal.SIGINT), True),
        (told(si_pid=7), False),
        (told(si_code=-1), False),
        (told(si_code=-6, si_pid=7), False),
        (told(si_signo=signal.SIGCHLD), False),
        (None, False),
    ],
)
def test_only_a_kill_from_outside_the_container_is_a_request(info: Any, believed: bool) -> None:
    assert init.asked_to_stop(info) is believed


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path


def opened(workspace: Path, name: str, most_bytes: int = 100) -> int:
    descriptor = os.open(workspace, os.O_RDONLY)
    try:
        return init.open_result(descriptor, name, most_bytes)
    finally:
        os.close(descriptor)


def test_a_plain_file_is_collected_in_frames_that_the_engine_does_not_cut(workspace: Path) -> None:
    data = os.urandom(30_000)
    (workspace / "results" / "a").write_bytes(data)
    frames = list(init.collect(os.open(workspace, os.O_RDONLY), "a", 30_000))
    assert b"".join(base64.b64decode(frame["data"]) for frame in frames[:-1]) == data
    assert frames[-1]["size"] == 30_000
    assert max(len(json.dumps(frame)) for frame in frames) < 16_384 - 1000


def test_a_device_a_link_and_a_file_elsewhere_are_refused_unread(workspace: Path) -> None:
    (workspace / "results" / "link").symlink_to("/etc/passwd")
    with pytest.raises(Refused, match="a symbolic link"):
        opened(workspace, "link")
    with pytest.raises(Refused, match="missing"):
        opened(workspace, "none")
    (workspace / "results").rename(workspace / "away")
    (workspace / "results").symlink_to("/proc/self")
    with pytest.raises(Refused, match="its folder is not a folder"):
        opened(workspace, "environ")
    with pytest.raises(Refused, match="not in the workspace"):
        init.check_result(os.stat("/proc/self/environ"), workspace.stat().st_dev, 100)


def test_it_refuses_to_be_anything_but_pid_1_for_it_kills_whatever_it_can() -> None:
    ran = subprocess.run([sys.executable, "-I", "-S", str(INIT), "{}"], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "this is PID 1 of a container" in ran.stderr


def in_namespace(workspace: Path, code: str, **more: Any) -> subprocess.Popen[bytes]:
    """Start PID 1 in a process namespace of its own, with `workspace` for its workspace."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([*NEW_NAMESPACE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("expected `unshare --pid` to be allowed; the same is tested in containers")
    command = [sys.executable, "-I", "-S", "-c", code]
    order = {"command": command, "time_limit_s": None, "grace_s": 0.2, "output_bytes": 10_000, "results": {}}
    program = (
        f"import json, os, sys; sys.path.insert(0, {str(INIT.parent)!r}); import init; assert os.getpid() == 1; "
        "init.SOCKET_WAIT_S = 0.2; "
        "os._exit(init.main(json.loads(sys.argv[1]), sys.argv[2]))"
    )
    argument = json.dumps({**order, "ports": {}, **more})
    return subprocess.Popen(
        [*NEW_NAMESPACE, sys.executable, "-I", "-S", "-c", program, argument, str(workspace)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(process: subprocess.Popen[bytes]) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """Return the frame of the end, all further ones, and the output."""
    out, said = process.communicate(timeout=60)
    frames = [json.loads(line) for line in said.splitlines()]
    return frames[0], frames[1:], out.decode()


def test_it_reports_the_end_and_the_results_and_ends_as_the_command_did(workspace: Path) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); open('results/a', 'w').write('1'); sys.exit(3)"
    process = in_namespace(workspace, code, results={"a": 1, "b": 1})
    end, frames, output = ended(process)
    assert (end["exit"], end["code"], end["dropped"]) == ("error", 3, 0)
    assert sorted(output.split()) == ["err", "out"]
    assert frames[0] == {"result": "a", "data": base64.b64encode(b"1").decode()}
    assert frames[1:] == [
        {"result": "a", "size": 1, "sha256": "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"},
        {"result": "b", "refused": "missing"},
        {"end": True},
    ]
    assert process.returncode == 3


LEAVER = """
import os, signal, time
if os.fork() == 0:
    os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open('up', 'w').close()
    time.sleep(600)
while not os.path.exists('up'): time.sleep(0.01)
"""


def test_nothing_the_command_started_outlives_it(workspace: Path) -> None:
    end, _, _ = ended(in_namespace(workspace, LEAVER))
    assert end["exit"] == "finished"
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and works_in(pid, workspace)]


def works_in(pid: str, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/cwd") == str(folder)
    except OSError:
        return False


def test_the_time_limit_ends_a_command_that_listens_and_kills_one_that_does_not(workspace: Path) -> None:
    sleeping = "import time; time.sleep(600)"
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + sleeping
    assert ended(in_namespace(workspace, sleeping, time_limit_s=0.5))[0]["code"] == -signal.SIGTERM
    end = ended(in_namespace(workspace, deaf, time_limit_s=0.5))[0]
    assert (end["exit"], end["code"]) == ("timeout", -signal.SIGKILL)


def test_a_port_without_a_socket_is_told_and_does_not_keep_the_command_from_running(
    workspace: Path,
) -> None:
    process = in_namespace(workspace, "print('ran')", ports={"0": str(workspace / "none.sock")})
    end, _, output = ended(process)
    assert end["exit"] == "finished"
    assert f"[no socket at {workspace}/none.sock after 0 s]" in output
    assert output.endswith("ran\n")


def test_a_request_from_outside_ends_it_and_a_second_one_at_once(workspace: Path) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    process = in_namespace(workspace, deaf, grace_s=600.0)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    [first] = (Path("/proc") / str(process.pid) / "task" / str(process.pid) / "children").read_text().split()
    os.kill(int(first), signal.SIGTERM)
    os.kill(int(first), signal.SIGINT)
    end, _, _ = ended(process)
    assert (end["exit"], end["code"]) == ("stopped", -signal.SIGKILL)


def test_it_runs_on_the_oldest_python_that_it_promises() -> None:
    import ast

    ast.parse(INIT.read_text(), feature_version=(3, 9))
