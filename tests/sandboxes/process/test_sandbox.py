from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from sandboxes import Exit, Handle, ProcessSandbox, SandboxError, SandboxSpec
from sandboxes.shim import LOG_BYTES
from sandboxes.spec import wait_until

pytestmark = pytest.mark.slow

DEADLINE_S = 180.0


@dataclass
class Ground:
    sandbox: ProcessSandbox
    root: Path
    folder: Path

    def run(self, code: str, name: str = "one", **more: Any) -> Handle:
        command = (sys.executable, "-I", "-S", "-c", code)
        spec = SandboxSpec(name, command, self.folder, {"OF": "the spec"}, {"study": "s"}, trusted=True)
        return self.sandbox.run(dataclasses.replace(spec, **more))

    def adopt(self) -> Handle:
        handle = ProcessSandbox(self.root).adopt("one")
        assert handle is not None
        return handle

    @property
    def shim(self) -> int:
        return int(json.loads((self.root / "one" / "started.json").read_text())["shim_pid"])

    def pid(self, file: str = "pid") -> int:
        path = self.folder / file
        assert wait_until(lambda: path.exists() and path.read_text().endswith("\n"), DEADLINE_S)
        return int(path.read_text())


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


SLEEPER = "import os,time; open('pid','w').write(f'{os.getpid()}\\n'); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(ProcessSandbox(tmp_path / "sandboxes"), tmp_path / "sandboxes", tmp_path)


def test_a_command_that_succeeds_finishes_with_its_output(ground: Ground) -> None:
    handle = ground.run("import sys; print('out'); print('err', file=sys.stderr)")
    assert handle.wait(DEADLINE_S) == Exit("finished", 0)
    assert sorted(handle.logs().split()) == ["err", "out"]
    assert handle.logs(tail_bytes=2) in ("t\n", "r\n")


def test_a_command_that_fails_or_does_not_exist_ends_in_error_with_its_code(ground: Ground) -> None:
    assert ground.run("raise SystemExit(7)", "failing").wait(DEADLINE_S) == Exit("error", 7)
    handle = ground.run("", command=("/no/such/command",))
    assert handle.wait(DEADLINE_S) == Exit("error", 127)
    assert "/no/such/command" in handle.logs()


@pytest.mark.parametrize(("changes", "refusal"), [
    ({"trusted": False}, r"does not isolate.*Docker"), ({"command": ()}, "command to run"),
    *(({"name": name}, "name must match") for name in ("../escape", "", ".hidden", "a/b")),
])  # fmt: skip
def test_what_may_not_run_is_refused_and_nothing_is_launched(
    ground: Ground, changes: dict[str, Any], refusal: str
) -> None:
    with pytest.raises(SandboxError, match=refusal):
        ground.run("pass", **{"name": "one", **changes})
    assert not ground.root.exists()
    ground.root.write_text("")
    with pytest.raises(SandboxError, match="cannot launch"):
        ground.run("pass")


def test_the_command_inherits_no_secret(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "WANDB_API_KEY", "AJET_DATABASE_URL", "MY_TOKEN"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    handle = ground.run("import os,json; print(json.dumps(dict(os.environ)))")
    assert handle.wait(DEADLINE_S) == Exit("finished", 0)
    seen = json.loads(handle.logs())
    assert "secret" not in seen.values()
    assert seen.items() >= {"OF": "the spec", "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}.items()


RACER = """
import sys
from pathlib import Path
from sandboxes import ProcessSandbox, SandboxSpec
root, directory, code = sys.argv[1:]
sys.stdin.readline()
command = (sys.executable, "-I", "-S", "-c", code)
ProcessSandbox(Path(root)).run(SandboxSpec("one", command, Path(directory), trusted=True))
"""


def test_eight_processes_that_run_one_name_start_it_once(ground: Ground) -> None:
    command = [sys.executable, "-c", RACER, str(ground.root), str(ground.folder), "open('starts','a').write('x')"]
    racers = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda racer: racer.communicate(b"go\n"), racers))
    assert [racer.returncode for racer in racers] == [0] * 8
    assert ground.adopt().wait(DEADLINE_S) == Exit("finished", 0)
    assert (ground.folder / "starts").read_text() == "x"


def test_it_outlives_the_controller_that_launched_it(ground: Ground) -> None:
    command = [sys.executable, "-c", RACER, str(ground.root), str(ground.folder), SLEEPER]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    handle, child = ground.adopt(), ground.pid()
    assert handle.poll() is None
    assert handle.stop() == Exit("stopped", -signal.SIGTERM)
    assert not lives(child)


def test_only_what_was_started_is_listed_the_oldest_first(ground: Ground) -> None:
    for name in ("b", "a"):
        ground.run("pass", name).wait(DEADLINE_S)
    (ground.root / "two").mkdir()
    shutil.copy(ground.root / "a" / "spec.json", ground.root / "two" / "spec.json")
    assert (ground.sandbox.adopt("two"), ground.sandbox.adopt("three")) == (None, None)
    assert [handle.name for handle in ground.sandbox.list()] == ["b", "a"]
    assert ground.run("pass", "two").wait(DEADLINE_S) == Exit(
        "finished", 0
    )  # what was only written down can be launched


@pytest.mark.parametrize("dies", ["the shim", "both"])
def test_a_killed_shim_means_lost_and_stop_reaps_what_it_left(ground: Ground, dies: str) -> None:
    handle, child = ground.run(SLEEPER), ground.pid()
    os.kill(ground.shim, signal.SIGKILL)
    if dies == "both":
        os.kill(child, signal.SIGKILL)
    assert handle.wait(DEADLINE_S) == Exit("lost", None)
    assert dies == "both" or lives(child)
    assert ground.run(SLEEPER).poll() == Exit("lost", None)  # a lost sandbox is never started again
    assert handle.stop() == Exit("lost", None)
    assert wait_until(lambda: not lives(child), DEADLINE_S)


def test_stop_and_the_time_limit_kill_what_ignores_the_request(ground: Ground) -> None:
    limited, stopped = ground.run(STUBBORN, "limited", time_limit_s=0.3), ground.run(STUBBORN)
    assert limited.wait(DEADLINE_S) == Exit("timeout", -signal.SIGKILL)
    child = ground.pid()
    assert stopped.stop(grace_s=0.1) == Exit("stopped", -signal.SIGKILL)
    assert not lives(child)


FAMILY = """
import os, subprocess, sys, time
code = "import os,sys,time; f=open(sys.argv[1],'w'); f.write(f'{os.getpid()}\\\\n'); f.close(); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code, "plain"])
subprocess.Popen([sys.executable, "-c", code, "group"], process_group=0)
while not os.path.exists("go"): time.sleep(0.01)
"""


@pytest.mark.parametrize("ends", [False, True], ids=["stopped", "by itself, whose own group is gone then"])
def test_stop_reaps_grandchildren_in_whatever_process_group(ground: Ground, ends: bool) -> None:
    handle = ground.run(FAMILY)
    plain, group = ground.pid("plain"), ground.pid("group")
    if ends:
        (ground.folder / "go").touch()
        assert handle.wait(DEADLINE_S) == Exit("finished", 0)
        assert wait_until(lambda: not lives(plain), DEADLINE_S)
    for _ in range(2):  # stop is idempotent
        assert handle.stop() == (Exit("finished", 0) if ends else Exit("stopped", -signal.SIGTERM))
    assert not any(map(lives, (plain, group)))


def test_on_a_full_disk_stop_ends_it_all_the_same(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, "no space", str(path))

    handle = ground.run(SLEEPER)
    pid = ground.pid()
    with monkeypatch.context() as patch:
        patch.setattr("sandboxes.process.write_once", full)
        with pytest.raises(OSError, match="no space"):
            handle.stop()
    assert not lives(pid)
    assert handle.poll() is not None


def test_what_a_clock_set_forward_hides_is_not_called_stopped(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = ground.run(SLEEPER)
    pid = ground.pid()
    with monkeypatch.context() as patch:
        patch.setattr("sandboxes.process.psutil.boot_time", lambda: time.time() + 3600)
        with pytest.raises(SandboxError, match="shim lives"):
            handle.stop(grace_s=0.1)
    assert handle.poll() is None
    assert lives(pid)
    handle.stop()
    assert not lives(pid)


def test_stop_touches_no_process_of_another_session(ground: Ground) -> None:
    handle = ground.run(SLEEPER)
    ground.pid()
    handle.stop()
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        started = ground.root / "one" / "started.json"
        started.write_text(json.dumps({**json.loads(started.read_text()), "shim_pid": bystander.pid}))
        assert handle.stop() == Exit("stopped", -signal.SIGTERM)
        assert bystander.poll() is None  # a pid that was used again is not ours
    finally:
        bystander.kill()
        bystander.wait()


def test_a_flood_of_output_is_bounded_and_its_end_is_kept(ground: Ground) -> None:
    code = f"import sys\nfor i in range({4 * LOG_BYTES} // 64): sys.stdout.write('x' * 63 + '\\n')\nprint('the end')"
    handle = ground.run(code)
    assert handle.wait(DEADLINE_S) == Exit("finished", 0)
    assert handle.logs().endswith("the end\n")
    assert sum(file.stat().st_size for file in (ground.root / "one").glob("output*")) < 3 * LOG_BYTES
