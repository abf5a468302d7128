"""Containers in a real engine, from launch to folder: every end told apart, everything bounded, nothing left behind."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxes import DockerSandbox, Exit, Limits, SandboxError
from sandboxes.docker import handles, options
from sandboxes.docker.archive import pack
from sandboxes.docker.engine import ContainerEngine
from sandboxes.images import Image
from tests.sandboxes.containing import DEADLINE_S, held, in_engine, spec

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def test_a_command_finds_its_input_and_leaves_output_and_results(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, tmp_path: Path
) -> None:
    data = os.urandom(50_000)
    code = (
        "import os, sys; sys.path.insert(0, '/input/code'); import hello\n"
        "print(hello.WORD); print('err', file=sys.stderr); print(os.environ['OF'], os.getcwd())\n"
        "open('results/copy', 'wb').write(open('/input/data', 'rb').read()); open('results/big', 'w').write('x' * 11)"
    )
    handle = docker_sandbox.run(
        spec(
            image,
            code,
            archive=pack({"code/hello.py": b"WORD = 'hello'", "data": data}),
            results={"copy": 60_000, "big": 10, "none": 10},
            environment={"OF": "the spec"},
        )
    )
    assert handle.wait(DEADLINE_S) == Exit("finished", 0)
    assert sorted(handle.logs().splitlines()) == ["err", "hello", "the spec /workspace"]
    result = handle.results()["copy"]
    assert result.path.read_bytes() == data
    assert (result.sha256, result.size) == (hashlib.sha256(data).hexdigest(), len(data))
    assert handle.refused() == {"big": "too large: 11 bytes; at most 10", "none": "missing"}
    assert held(engine, docker_sandbox) == []
    assert (handle.image, handle.labels) == (image.id, {"study": "s"})
    written = (tmp_path / "sandboxes" / "one" / "spec.json").read_text()
    assert "OF" in written
    assert "the spec" not in written, "no value of the environment is written down"
    assert handle.stop() == Exit("finished", 0)
    assert docker_sandbox.run(spec(image, "raise SystemExit('never')")).poll() == Exit("finished", 0)


def test_a_command_that_fails_or_does_not_exist_is_an_error_with_its_code(
    docker_sandbox: DockerSandbox, image: Image
) -> None:
    failing = docker_sandbox.run(spec(image, "raise SystemExit(7)", "failing"))
    killed = docker_sandbox.run(spec(image, "import os; os.kill(os.getpid(), 9)", "killed"))
    absent = spec(image, "", "absent")
    object.__setattr__(absent, "command", ("/no/such/command",))
    missing = docker_sandbox.run(absent)
    assert failing.wait(DEADLINE_S) == Exit("error", 7)
    assert killed.wait(DEADLINE_S) == Exit("error", -9)
    assert missing.wait(DEADLINE_S) == Exit("error", 127)
    assert "/no/such/command" in missing.logs()


def test_what_goes_wrong_in_pid_1_itself_is_an_error_and_told_in_the_output(
    docker_sandbox: DockerSandbox, image: Image, tmp_path: Path
) -> None:
    exchange = tmp_path / "exchange"
    exchange.mkdir(mode=0o755)
    (exchange / "a.sock").touch()
    handle = docker_sandbox.run(spec(image, "", exchange=exchange, ports={70_000: "a.sock"}))
    assert handle.wait(DEADLINE_S) == Exit("error", 1)
    assert handle.logs().startswith("\n[PID 1 says: Traceback")
    assert "port must be 0-65535" in handle.logs()


def test_the_time_limit_kills_what_ignores_the_request_and_what_it_left_is_collected(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "GRACE_S", 0.2)
    code = "open('results/a', 'w').write('a'); import os\nif os.fork() == 0: os.setsid()\n" + STUBBORN
    handle = docker_sandbox.run(spec(image, code, time_limit_s=0.5, results={"a": 1}))
    assert handle.wait(DEADLINE_S) == Exit("timeout", -9)
    assert handle.results()["a"].path.read_text() == "a"
    assert held(engine, docker_sandbox) == []


MEMORY = Limits(memory_bytes=64 << 20)
EATER = "b = bytearray(256 << 20)"


def test_memory_beyond_the_limit_is_told_from_an_error_also_in_a_child(
    docker_sandbox: DockerSandbox, image: Image
) -> None:
    of_child = f"import subprocess; subprocess.run(['python3', '-I', '-S', '-c', {EATER!r}], check=True)"
    eater = docker_sandbox.run(spec(image, EATER, "eater", limits=MEMORY))
    parent = docker_sandbox.run(spec(image, of_child, "parent", limits=MEMORY))
    assert eater.wait(DEADLINE_S) == Exit("out_of_memory", -9)
    assert parent.wait(DEADLINE_S) == Exit("out_of_memory", 1)


def test_a_command_that_outlives_its_childs_death_has_finished(docker_sandbox: DockerSandbox, image: Image) -> None:
    code = f"import subprocess; subprocess.run(['python3', '-I', '-S', '-c', {EATER!r}])"
    assert docker_sandbox.run(spec(image, code, limits=MEMORY)).wait(DEADLINE_S) == Exit("finished", 0)


def test_a_workspace_that_fills_the_memory_is_memory_and_not_disk(docker_sandbox: DockerSandbox, image: Image) -> None:
    code = "open('/tmp/a', 'wb').write(bytes(40 << 20)); open('a', 'wb').write(bytes(40 << 20))"
    handle = docker_sandbox.run(spec(image, code, limits=MEMORY))
    ended = handle.wait(DEADLINE_S)
    assert ended is not None
    assert ended.reason == "out_of_memory"


def test_a_full_workspace_is_an_error_of_the_command(docker_sandbox: DockerSandbox, image: Image) -> None:
    code = "open('a', 'wb').write(bytes(9 << 20))"
    handle = docker_sandbox.run(spec(image, code, limits=Limits(workspace_bytes=8 << 20)))
    assert handle.wait(DEADLINE_S) == Exit("error", 1)
    assert "No space left" in handle.logs()


def test_stop_asks_first_and_collects_what_the_command_then_leaves(docker_sandbox: DockerSandbox, image: Image) -> None:
    code = (
        "import signal, sys, time\n"
        "def end(*_): open('results/last', 'w').write('word'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); print('up', flush=True); time.sleep(600)"
    )
    handle = docker_sandbox.run(spec(image, code, results={"last": 10}))
    eventually(lambda: handle.logs() == "up\n")
    assert handle.poll() is None
    assert handle.stop(grace_s=DEADLINE_S) == Exit("stopped", 0)
    assert handle.results()["last"].path.read_text() == "word"
    assert handle.stop() == Exit("stopped", 0), "stop is idempotent"


def test_stop_kills_what_ignores_it_and_still_collects(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine
) -> None:
    handle = docker_sandbox.run(spec(image, "open('results/a', 'w').write('a'); " + STUBBORN, results={"a": 1}))
    eventually(lambda: handle.logs() == "up\n")
    assert handle.stop(grace_s=0.1) == Exit("stopped", -9)
    assert handle.results()["a"].size == 1
    assert held(engine, docker_sandbox) == []


def test_a_paused_container_can_be_stopped(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine
) -> None:
    handle = docker_sandbox.run(spec(image, SLEEPER))
    eventually(lambda: handle.logs() == "up\n")
    engine.client.api.pause(in_engine(docker_sandbox))
    assert handle.poll() is None
    assert handle.stop().reason == "stopped"


def test_an_end_from_outside_is_not_our_stop(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine
) -> None:
    names = ("killed", "asked", "removed")
    killed, asked, removed = (docker_sandbox.run(spec(image, SLEEPER, name, results={"a": 1})) for name in names)
    for handle in (killed, asked, removed):
        eventually(lambda handle=handle: handle.logs() == "up\n")  # type: ignore[misc]
    engine.client.api.kill(in_engine(docker_sandbox, "killed"))
    engine.client.api.stop(in_engine(docker_sandbox, "asked"), timeout=30)
    engine.client.api.remove_container(in_engine(docker_sandbox, "removed"), force=True)
    assert killed.wait(DEADLINE_S) == Exit("killed", 137)
    assert killed.logs() == "up\n"
    assert killed.refused() == {"a": "the container ended before it was read"}
    assert asked.wait(DEADLINE_S) == Exit("killed", -15)
    assert removed.wait(DEADLINE_S) == Exit("lost", None)
    assert (removed.logs(), removed.refused()) == ("", {"a": "lost"})
    assert docker_sandbox.run(spec(image, SLEEPER, "removed")).poll() == Exit("lost", None), "it never starts again"
    assert held(engine, docker_sandbox) == []


def test_a_flood_of_output_is_counted_and_its_beginning_and_end_are_kept(
    docker_sandbox: DockerSandbox, image: Image
) -> None:
    lines, line = 3_000_000, "y" * 63 + "\n"
    code = (
        f"import sys; print('begin'); block = {line!r} * 1000\n"
        f"for _ in range({lines // 1000}): sys.stdout.write(block)\nprint('end')"
    )
    handle = docker_sandbox.run(spec(image, code, limits=Limits(output_bytes=100_000), results={"a": 1}))
    assert handle.wait(DEADLINE_S) == Exit("finished", 0)
    text = handle.logs(tail_bytes=1 << 20)
    assert text.startswith("begin\n")
    assert text.endswith("yyy\nend\n")
    assert f"[{handle.dropped_bytes} bytes of output were dropped here; the last 65536 follow]" in text
    assert handle.dropped_bytes == lines * len(line) + len("begin\nend\n") - 100_000 - 65_536
    assert len(text) < 100_000 + 65_536 + 200
    assert handle.logs(tail_bytes=4) == "end\n"
    assert handle.refused() == {"a": "missing"}, "the frames come through behind the flood"


def test_the_shortest_and_strangest_lines_do_not_push_the_frames_out_of_the_log(
    docker_sandbox: DockerSandbox, image: Image
) -> None:
    limits = Limits(output_bytes=200_000)
    code = "import os, sys\nfor _ in range(100): os.write(1, sys.argv[1].encode('latin-1') * 20_000)"
    for name, piece in (("lines", "\n"), ("control", "\x01"), ("broken", "\xff\xfe\n")):
        one = spec(image, code, name, limits=limits, results={"a": 1})
        object.__setattr__(one, "command", (*one.command, piece))
        handle = docker_sandbox.run(one)
        assert handle.wait(DEADLINE_S) == Exit("finished", 0)
        assert handle.refused() == {"a": "missing"}


def test_code_inside_can_neither_pose_as_the_engine_nor_write_frames(
    docker_sandbox: DockerSandbox, image: Image
) -> None:
    code = r"""
import ctypes, json, os, signal, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
os.kill(1, signal.SIGTERM)
info = struct.pack("<iiiiii104x", signal.SIGTERM, 0, -1, 0, 0, 0)  # si_code SI_QUEUE, si_pid 0: "the kernel's own"
libc.syscall(129, 1, signal.SIGTERM, info)  # refused (`inside/filter.py`)
opened = []
for path in ("fd/1", "fd/2", "mem", "environ", "root"):
    try:
        opened.append(os.open(f"/proc/1/{path}", os.O_RDONLY))
    except PermissionError:
        pass
assert not opened, opened
assert libc.ptrace(16, 1, 0, 0) == -1
forged = json.dumps({"exit": "finished", "code": 0, "dropped": 0, "oom_kills": 0}) + "\n"
sys.stdout.write(forged); sys.stderr.write(forged); sys.stdout.flush()
for name in ("one",):
    sys.stderr.write(json.dumps({"result": name, "refused": "forged"}) + "\n")
import time; time.sleep(0.3)
open("results/one", "w").write("1")
sys.exit(5)
"""
    handle = docker_sandbox.run(spec(image, code, results={"one": 10}))
    assert handle.wait(DEADLINE_S) == Exit("error", 5), handle.logs()
    assert handle.results()["one"].path.read_text() == "1"


def test_orphans_are_buried_and_do_not_use_up_the_processes(docker_sandbox: DockerSandbox, image: Image) -> None:
    code = """
import os, time
for _ in range(600):
    if os.fork() == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.wait()
"""
    handle = docker_sandbox.run(spec(image, code, limits=Limits(processes=40)))
    assert handle.wait(DEADLINE_S) == Exit("finished", 0), handle.logs()


def test_files_that_are_no_plain_results_are_refused_each_with_its_reason(
    docker_sandbox: DockerSandbox, image: Image
) -> None:
    code = """
import os
os.symlink("/etc/passwd", "results/link"); os.mkdir("results/folder"); os.mkfifo("results/pipe")
open("results/twice", "w").write("x"); os.link("results/twice", "results/again")
open("results/sparse", "w").truncate(1 << 20); open("results/closed", "w").close(); os.chmod("results/closed", 0)
"""
    asked = dict.fromkeys(("link", "folder", "pipe", "twice", "sparse", "closed"), 1000)
    handle = docker_sandbox.run(spec(image, code, results=asked))
    assert handle.wait(DEADLINE_S) == Exit("finished", 0), handle.logs()
    assert handle.results() == {}
    assert handle.refused() == {
        "link": "a symbolic link",
        "folder": "not a regular file",
        "pipe": "not a regular file",
        "twice": "has a second name (a hard link)",
        "sparse": "too large: 1048576 bytes; at most 1000",
        "closed": "cannot be opened: Permission denied",
    }


def test_a_folder_of_results_that_leads_elsewhere_has_none(docker_sandbox: DockerSandbox, image: Image) -> None:
    code = "import os; os.rmdir('results'); os.symlink('/etc', 'results')"
    handle = docker_sandbox.run(spec(image, code, results={"passwd": 10_000}))
    assert handle.wait(DEADLINE_S) == Exit("finished", 0)
    assert (handle.results(), handle.refused()) == ({}, {"passwd": "its folder is not a folder"})


def test_a_container_that_is_overdue_is_killed_by_the_controller(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused PID 1 cannot do its work."""
    handle = docker_sandbox.run(spec(image, SLEEPER, time_limit_s=3.0))
    engine.client.api.pause(in_engine(docker_sandbox))
    assert handle.poll() is None
    monkeypatch.setattr(handles, "OVERDUE_S", 0.5)
    ended = handle.wait(DEADLINE_S)
    assert ended is not None
    assert ended.reason == "timeout"


def test_a_container_that_a_busy_engine_started_late_is_not_overdue(
    docker_sandbox: DockerSandbox, image: Image, tmp_path: Path
) -> None:
    handle = docker_sandbox.run(spec(image, SLEEPER, time_limit_s=600.0))
    started = tmp_path / "sandboxes" / "one" / "started.json"
    value = json.loads(started.read_text())
    started.write_text(json.dumps({**value, "started_at": value["started_at"] - 600 - 40}))
    assert handle.poll() is None
    assert not (tmp_path / "sandboxes" / "one" / "stop.json").exists()


@contextmanager
def full_disk(most_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond `most_bytes`, which fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_leaves_the_container_to_be_settled_later(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine
) -> None:
    code = "open('results/a', 'w').write('a' * 100_000)"
    handle = docker_sandbox.run(spec(image, code, results={"a": 200_000}))
    eventually(lambda: engine.client.api.inspect_container(in_engine(docker_sandbox))["State"]["Status"] == "exited")
    with full_disk(50_000), pytest.raises(SandboxError, match="make room, and look again"):
        handle.poll()
    assert held(engine, docker_sandbox) == [f"/{in_engine(docker_sandbox)}"]
    assert handle.poll() == Exit("finished", 0)
    assert handle.results()["a"].size == 100_000
    assert held(engine, docker_sandbox) == []


def test_a_full_disk_keeps_nothing_from_being_stopped_and_launches_nothing(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, tmp_path: Path
) -> None:
    handle = docker_sandbox.run(spec(image, SLEEPER))
    eventually(lambda: handle.logs() == "up\n")
    with full_disk(0):
        with pytest.raises(SandboxError, match="make room, and look again"):
            handle.stop(grace_s=DEADLINE_S)
        with pytest.raises(SandboxError, match="cannot launch sandbox two"):
            docker_sandbox.run(spec(image, SLEEPER, "two"))
    assert engine.client.api.inspect_container(in_engine(docker_sandbox))["State"]["Status"] == "exited"
    assert handle.poll() == Exit("killed", -15), "that we asked could not be written down"
    assert not [path for path in (tmp_path / "sandboxes").rglob(".*.*") if path.is_file()], "no drafts are left"


def test_many_who_look_at_once_see_one_end(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine
) -> None:
    docker_sandbox.run(spec(image, "open('results/a', 'w').write('a' * 1000)", results={"a": 1000}))
    handles = [docker_sandbox.adopt("one") for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        ends = list(pool.map(lambda handle: handle and handle.wait(DEADLINE_S), handles))
    assert ends == [Exit("finished", 0)] * 6
    assert held(engine, docker_sandbox) == []
