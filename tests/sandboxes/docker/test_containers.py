from __future__ import annotations

import hashlib
import json
import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest

from sandboxes import Exit, Limits, SandboxError
from sandboxes.docker import container, launch
from sandboxes.spec import wait_until
from tests.sandboxes.containing import DEADLINE_S, SLEEPER, STUBBORN, Box, refused_results


def test_a_command_finds_its_input_and_leaves_output_and_results(box: Box) -> None:
    data = os.urandom(50_000)
    code = (
        "import os, sys; sys.path.insert(0, '/input/code'); import hello\n"
        "print(hello.WORD); print('err', file=sys.stderr); print(os.environ['OF'], os.getcwd())\n"
        "open('results/copy', 'wb').write(open('/input/data', 'rb').read()); open('results/big', 'w').write('x' * 11)"
    )
    handle = box.run(
        code,
        files={"code/hello.py": b"WORD = 'hello'", "data": data},
        results={"copy": 60_000, "big": 10, "none": 10},
        environment={"OF": "the spec"},
    )
    assert handle.wait(DEADLINE_S) == Exit("finished", 0)
    assert len(handle.logs(tail_bytes=4)) == 4
    assert sorted(handle.logs().splitlines()) == ["err", "hello", "the spec /workspace"]
    assert handle.results()["copy"].read_bytes() == data
    recorded = json.loads((box.root / "one" / "exit.json").read_text())["results"]
    assert recorded == {"copy": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}}
    assert refused_results(handle) == {"big": "too large: 11 bytes; at most 10", "none": "missing"}
    assert box.held == []
    assert handle.labels == {"study": "s"}
    written = (box.root / "one" / "spec.json").read_text()
    assert "OF" in written
    assert "the spec" not in written  # no value of the environment is written down
    assert handle.stop() == Exit("finished", 0)
    assert box.run("raise SystemExit('never')").poll() == Exit("finished", 0)


def test_a_command_that_fails_or_does_not_exist_is_an_error_with_its_code(box: Box) -> None:
    assert box.ended("raise SystemExit(7)", name="failing") == Exit("error", 7)
    assert box.ended("import os; os.kill(os.getpid(), 9)", name="killed") == Exit("error", -9)
    missing = box.sandbox.run(replace(box.spec("", "absent"), command=("/no/such/command",)))
    assert missing.wait(DEADLINE_S) == Exit("error", 127)
    assert "/no/such/command" in missing.logs()


def test_the_time_limit_kills_what_ignores_the_request_and_what_it_left_is_collected(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "GRACE_S", 0.2)
    code = "open('results/a', 'w').write('a'); import os\nif os.fork() == 0: os.setsid()\n" + STUBBORN
    handle = box.run(code, time_limit_s=0.5, results={"a": 1})
    assert handle.wait(DEADLINE_S) == Exit("timeout", -9)
    assert handle.results()["a"].read_text() == "a"
    assert box.held == []


EATER = "b = bytearray(256 << 20)"
OF_CHILD = f"import subprocess; subprocess.run(['python3', '-I', '-S', '-c', {EATER!r}], check=CHECK)"
FILLER = "open('/tmp/a', 'wb').write(bytes(40 << 20)); open('a', 'wb').write(bytes(40 << 20))"


@pytest.mark.parametrize(("code", "ended"), [
    (OF_CHILD.replace("CHECK", "True"), Exit("out_of_memory", 1)),
    (OF_CHILD.replace("CHECK", "False"), Exit("finished", 0)), (FILLER, Exit("out_of_memory", -9)),
], ids=["of a child", "of a child that it outlives", "its workspace"])  # fmt: skip
def test_memory_beyond_the_limit_is_told_from_an_error_and_an_end(box: Box, code: str, ended: Exit) -> None:
    assert box.ended(code, limits=Limits(memory_bytes=64 << 20)) == ended


def test_stop_asks_first_and_collects_what_the_command_then_leaves(box: Box) -> None:
    code = (
        "import signal, sys, time\n"
        "def end(*_): open('results/last', 'w').write('word'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); print('up', flush=True); time.sleep(600)"
    )
    handle = box.up(code, results={"last": 10})
    assert handle.poll() is None
    assert handle.stop(grace_s=DEADLINE_S) == Exit("stopped", 0)
    assert handle.results()["last"].read_text() == "word"
    assert handle.stop() == Exit("stopped", 0), "stop is idempotent"


def test_an_end_from_outside_is_not_our_stop(box: Box) -> None:
    names = ("killed", "asked", "removed")
    killed, asked, removed = (box.up(name=name, results={"a": 1}) for name in names)
    box.api.kill(box.in_engine("killed"))
    box.api.stop(box.in_engine("asked"), timeout=30)
    box.api.remove_container(box.in_engine("removed"), force=True)
    assert killed.wait(DEADLINE_S) == Exit("killed", 137)
    assert killed.logs() == "up\n"
    assert refused_results(killed) == {"a": "the container ended before it was read"}
    assert asked.wait(DEADLINE_S) == Exit("killed", -15)
    assert removed.wait(DEADLINE_S) == Exit("lost", None)
    assert (removed.logs(), refused_results(removed)) == ("", {"a": "lost"})
    assert box.run(SLEEPER, "removed").poll() == Exit("lost", None)  # it never starts again
    assert box.held == []


def test_a_container_that_is_overdue_is_killed_by_the_controller(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A paused PID 1 cannot do its work."""
    handle = box.run(SLEEPER, time_limit_s=3.0)
    box.api.pause(box.in_engine())
    assert handle.poll() is None
    monkeypatch.setattr(container, "OVERDUE_S", 0.5)
    assert getattr(handle.wait(DEADLINE_S), "reason", None) == "timeout"


@contextmanager
def full_disk(most_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond `most_bytes`, which fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_leaves_the_container_to_be_settled_later(box: Box) -> None:
    code = "open('results/a', 'w').write('a' * 100_000)"
    handle = box.run(code, results={"a": 200_000})
    assert wait_until(lambda: box.state() == "exited", DEADLINE_S)
    with full_disk(50_000), pytest.raises(SandboxError, match="make room"):
        handle.poll()
    assert box.held == [f"/{box.in_engine()}"]
    assert handle.poll() == Exit("finished", 0)
    assert handle.results()["a"].stat().st_size == 100_000
    assert box.held == []


def test_a_full_disk_keeps_nothing_from_being_stopped_and_launches_nothing(box: Box) -> None:
    handle = box.up()
    with full_disk(0):
        with pytest.raises(SandboxError, match="make room"):
            handle.stop(grace_s=DEADLINE_S)
        with pytest.raises(SandboxError, match="sandbox two"):
            box.run(SLEEPER, "two")
    assert box.state() == "exited"
    assert handle.poll() == Exit("killed", -15)  # that we asked could not be written down
    assert not [path for path in (box.root).rglob(".*.*") if path.is_file()]  # no drafts are left


def test_many_who_look_at_once_see_one_end(box: Box) -> None:
    box.run("open('results/a', 'w').write('a' * 1000)", results={"a": 1000})
    with ThreadPoolExecutor(6) as pool:
        ends = list(pool.map(lambda handle: handle.wait(DEADLINE_S), [box.adopt() for _ in range(6)]))
    assert ends == [Exit("finished", 0)] * 6
    assert box.held == []
