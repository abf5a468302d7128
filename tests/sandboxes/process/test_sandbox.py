"""The process sandbox, with real processes: launched once, adopted, lost, timed out, stopped, bounded."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from sandboxes import Exit, ProcessSandbox, SandboxError, SandboxSpec
from sandboxes.shim import LOG_BYTES

DEADLINE_S = 180.0


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def spec(directory: Path, code: str, name: str = "one", time_limit_s: float | None = None) -> SandboxSpec:
    command = (sys.executable, "-I", "-S", "-c", code)
    return SandboxSpec(name, command, directory, {"OF": "the spec"}, {"study": "s"}, time_limit_s, trusted=True)


def shim_pid(root: Path, name: str = "one") -> int:
    return int(json.loads((root / name / "started.json").read_text())["shim_pid"])


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def pid_in(file: Path) -> int:
    eventually(lambda: file.exists() and file.read_text().endswith("\n"))
    return int(file.read_text())


SLEEPER = "import os,time; open('pid','w').write(f'{os.getpid()}\\n'); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "sandboxes"


@pytest.fixture
def sandbox(root: Path) -> ProcessSandbox:
    return ProcessSandbox(root)


def test_a_command_that_succeeds_finishes_with_its_output(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    handle = sandbox.run(spec(tmp_path, "import sys; print('out'); print('err', file=sys.stderr)"))
    assert handle.wait(DEADLINE_S) == Exit("finished", 0)
    assert sorted(handle.logs().split()) == ["err", "out"]
    assert handle.logs(tail_bytes=2) in ("t\n", "r\n")


def test_a_command_that_fails_ends_in_error_with_its_code(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    assert sandbox.run(spec(tmp_path, "raise SystemExit(7)")).wait(DEADLINE_S) == Exit("error", 7)


def test_a_command_that_does_not_exist_ends_in_error_and_says_so(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    handle = sandbox.run(SandboxSpec("one", ("/no/such/command",), tmp_path, trusted=True))
    assert handle.wait(DEADLINE_S) == Exit("error", 127)
    assert "/no/such/command" in handle.logs()


def test_untrusted_code_is_refused_and_nothing_is_launched(sandbox: ProcessSandbox, root: Path, tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"does not isolate.*Docker"):
        sandbox.run(SandboxSpec("one", ("true",), tmp_path))
    assert not root.exists()
    assert not sandbox.isolates


@pytest.mark.parametrize("name", ["../escape", "", ".hidden", "a/b"])
def test_a_name_that_is_no_folder_name_is_refused(sandbox: ProcessSandbox, tmp_path: Path, name: str) -> None:
    with pytest.raises(SandboxError, match="name must match"):
        sandbox.run(spec(tmp_path, "pass", name))


def test_an_unwritable_root_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxError, match="cannot launch"):
        ProcessSandbox(tmp_path / "file").run(spec(tmp_path, "pass"))


def test_the_command_inherits_no_secret(
    sandbox: ProcessSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "WANDB_API_KEY", "AJET_DATABASE_URL", "MY_TOKEN"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    handle = sandbox.run(spec(tmp_path, "import os,json; print(json.dumps(dict(os.environ)))"))
    assert handle.wait(DEADLINE_S) == Exit("finished", 0)
    seen = json.loads(handle.logs())
    assert "secret" not in seen.values()
    assert seen["OF"] == "the spec"
    assert seen["OMP_NUM_THREADS"] == "1"
    assert seen["PATH"] == os.environ["PATH"]


RACER = """
import sys
from pathlib import Path
from sandboxes import ProcessSandbox, SandboxSpec
root, directory = map(Path, sys.argv[1:])
sys.stdin.readline()
code = "open('starts','a').write('x')"
ProcessSandbox(root).run(SandboxSpec("one", (sys.executable, "-I", "-S", "-c", code), directory, trusted=True))
"""


def test_eight_processes_that_run_one_name_start_it_once(root: Path, tmp_path: Path) -> None:
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, str(root), str(tmp_path)], stdin=subprocess.PIPE)
        for _ in range(8)
    ]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda racer: racer.communicate(b"go\n"), racers))
    assert [racer.returncode for racer in racers] == [0] * 8
    handle = ProcessSandbox(root).adopt("one")
    assert handle is not None
    assert handle.wait(DEADLINE_S) == Exit("finished", 0)
    assert (tmp_path / "starts").read_text() == "x"


def test_running_a_name_again_adopts_it_while_it_runs_and_after(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    code = "open('starts','a').write('x'); import os,time\nwhile not os.path.exists('go'): time.sleep(0.01)"
    first = sandbox.run(spec(tmp_path, code))
    assert sandbox.run(spec(tmp_path, code)).poll() is None
    (tmp_path / "go").touch()
    assert first.wait(DEADLINE_S) == Exit("finished", 0)
    assert sandbox.run(spec(tmp_path, code)).poll() == Exit("finished", 0)
    assert (tmp_path / "starts").read_text() == "x"


def test_it_outlives_the_controller_that_launched_it(root: Path, tmp_path: Path) -> None:
    controller = (
        "import sys; from pathlib import Path; from sandboxes import ProcessSandbox, SandboxSpec;"
        "root, directory, code = sys.argv[1:];"
        "spec = SandboxSpec('one', (sys.executable, '-c', code), Path(directory), trusted=True);"
        "ProcessSandbox(Path(root)).run(spec)"
    )
    subprocess.run([sys.executable, "-c", controller, str(root), str(tmp_path), SLEEPER], check=True)
    handle = ProcessSandbox(root).adopt("one")
    assert handle is not None
    child = pid_in(tmp_path / "pid")
    assert handle.poll() is None
    assert handle.stop() == Exit("stopped", -signal.SIGTERM)
    assert not lives(child)


def test_what_was_only_written_down_was_not_launched_and_can_be(
    sandbox: ProcessSandbox, root: Path, tmp_path: Path
) -> None:
    sandbox.run(spec(tmp_path, "pass")).wait(DEADLINE_S)
    (root / "two").mkdir()
    (root / "two" / "spec.json").write_text(json.dumps(json.loads((root / "one" / "spec.json").read_text())))
    assert sandbox.adopt("two") is None
    assert sandbox.adopt("three") is None
    assert [handle.name for handle in sandbox.list()] == ["one"]
    assert sandbox.run(spec(tmp_path, "pass", "two")).wait(DEADLINE_S) == Exit("finished", 0)


def test_list_finds_by_labels_oldest_first(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    for name in ("b", "a"):
        sandbox.run(spec(tmp_path, "pass", name)).wait(DEADLINE_S)
    assert [handle.name for handle in sandbox.list({"study": "s"})] == ["b", "a"]
    assert sandbox.list({"study": "other"}) == []


def test_a_killed_child_is_an_error_with_its_signal(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    handle = sandbox.run(spec(tmp_path, SLEEPER))
    os.kill(pid_in(tmp_path / "pid"), signal.SIGKILL)
    assert handle.wait(DEADLINE_S) == Exit("error", -signal.SIGKILL)


@pytest.mark.parametrize(("end", "cleared"), [("os.kill(os.getpid(), 9)", True), ("sys.exit(3)", False), ("", False)])
def test_what_a_killed_command_had_elsewhere_is_cleared_up_before_its_end_is_told(
    sandbox: ProcessSandbox, root: Path, tmp_path: Path, end: str, cleared: bool
) -> None:
    told = str(root / "one" / "exit.json")
    looks = f"import os; open('cleared', 'w').write(str(os.path.exists({told!r})))"
    clear_up = (sys.executable, "-c", looks)
    handle = sandbox.run(dataclasses.replace(spec(tmp_path, f"import os, sys; {end}"), after_kill=clear_up))
    assert handle.wait(DEADLINE_S) is not None
    assert (tmp_path / "cleared").exists() == cleared
    assert not cleared or (tmp_path / "cleared").read_text() == "False"


def test_clearing_up_that_fails_is_noted_and_changes_nothing(
    sandbox: ProcessSandbox, root: Path, tmp_path: Path
) -> None:
    killed = dataclasses.replace(spec(tmp_path, "import os; os.kill(os.getpid(), 9)"), after_kill=("/no/such/command",))
    assert sandbox.run(killed).wait(DEADLINE_S) == Exit("error", -9)
    assert "not cleared up" in (root / "one" / "shim.log").read_text()


def test_a_killed_shim_means_lost_and_stop_reaps_what_it_left(
    sandbox: ProcessSandbox, root: Path, tmp_path: Path
) -> None:
    handle = sandbox.run(spec(tmp_path, SLEEPER))
    child = pid_in(tmp_path / "pid")
    os.kill(shim_pid(root), signal.SIGKILL)
    assert handle.wait(DEADLINE_S) == Exit("lost", None)
    assert lives(child)
    assert sandbox.run(spec(tmp_path, SLEEPER)).poll() == Exit("lost", None), "a lost sandbox is never started again"
    assert handle.stop() == Exit("lost", None)
    assert not lives(child)


def test_shim_and_child_killed_together_are_lost_not_running(
    sandbox: ProcessSandbox, root: Path, tmp_path: Path
) -> None:
    handle = sandbox.run(spec(tmp_path, SLEEPER))
    child = pid_in(tmp_path / "pid")
    os.kill(shim_pid(root), signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    assert handle.wait(DEADLINE_S) == Exit("lost", None)
    assert handle.stop() == Exit("lost", None)


def test_the_time_limit_kills_what_ignores_the_request(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    handle = sandbox.run(spec(tmp_path, STUBBORN, time_limit_s=0.3))
    assert handle.wait(DEADLINE_S) == Exit("timeout", -signal.SIGKILL)
    assert not lives(pid_in(tmp_path / "pid"))


FAMILY = """
import os, subprocess, sys, time
code = "import os,sys,time; f=open(sys.argv[1],'w'); f.write(f'{os.getpid()}\\\\n'); f.close(); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code, "plain"])
subprocess.Popen([sys.executable, "-c", code, "group"], process_group=0)
while not os.path.exists("go"): time.sleep(0.01)
"""


def test_stop_reaps_grandchildren_in_whatever_process_group(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    handle = sandbox.run(spec(tmp_path, FAMILY))
    pids = [pid_in(tmp_path / "plain"), pid_in(tmp_path / "group")]
    assert handle.stop() == Exit("stopped", -signal.SIGTERM)
    assert not any(map(lives, pids))
    assert handle.stop() == Exit("stopped", -signal.SIGTERM), "stop is idempotent"


def test_when_the_command_ends_its_process_group_is_gone_too(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    handle = sandbox.run(spec(tmp_path, FAMILY))
    plain, group = pid_in(tmp_path / "plain"), pid_in(tmp_path / "group")
    (tmp_path / "go").touch()
    assert handle.wait(DEADLINE_S) == Exit("finished", 0)
    eventually(lambda: not lives(plain))
    assert handle.stop() == Exit("finished", 0)
    assert not lives(group)


def test_stop_kills_what_ignores_the_request(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    handle = sandbox.run(spec(tmp_path, STUBBORN))
    child = pid_in(tmp_path / "pid")
    assert handle.stop(grace_s=0.1) == Exit("stopped", -signal.SIGKILL)
    assert not lives(child)


def test_on_a_full_disk_stop_ends_it_all_the_same(
    sandbox: ProcessSandbox, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, "no space", str(path))

    handle = sandbox.run(spec(tmp_path, SLEEPER))
    pid = pid_in(tmp_path / "pid")
    with monkeypatch.context() as patch:
        patch.setattr("sandboxes.process.sandbox.write_once", full)
        with pytest.raises(OSError, match="no space"):
            handle.stop()
    assert not lives(pid)
    assert handle.poll() is not None


def test_what_a_clock_set_forward_hides_is_not_said_to_be_stopped(
    sandbox: ProcessSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = sandbox.run(spec(tmp_path, SLEEPER))
    pid = pid_in(tmp_path / "pid")
    with monkeypatch.context() as patch:
        patch.setattr("sandboxes.process.sessions.psutil.boot_time", lambda: time.time() + 3600)
        with pytest.raises(SandboxError, match="shim lives"):
            handle.stop(grace_s=0.1)
    assert handle.poll() is None
    assert lives(pid)
    handle.stop()
    assert not lives(pid)


def test_stop_touches_no_process_of_another_session(sandbox: ProcessSandbox, root: Path, tmp_path: Path) -> None:
    handle = sandbox.run(spec(tmp_path, SLEEPER))
    pid_in(tmp_path / "pid")
    handle.stop()
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        started = root / "one" / "started.json"
        started.write_text(json.dumps({**json.loads(started.read_text()), "shim_pid": bystander.pid}))
        assert handle.stop() == Exit("stopped", -signal.SIGTERM)
        assert bystander.poll() is None, "a pid that was used again is not ours"
    finally:
        bystander.kill()
        bystander.wait()


def test_a_shim_told_to_terminate_stops_its_command(sandbox: ProcessSandbox, root: Path, tmp_path: Path) -> None:
    handle = sandbox.run(spec(tmp_path, SLEEPER))
    child = pid_in(tmp_path / "pid")
    os.kill(shim_pid(root), signal.SIGTERM)
    assert handle.wait(DEADLINE_S) == Exit("stopped", -signal.SIGTERM)
    assert not lives(child)


def test_a_flood_of_output_is_bounded_and_its_end_is_kept(sandbox: ProcessSandbox, root: Path, tmp_path: Path) -> None:
    code = f"import sys\nfor i in range({4 * LOG_BYTES} // 64): sys.stdout.write('x' * 63 + '\\n')\nprint('the end')"
    handle = sandbox.run(spec(tmp_path, code))
    assert handle.wait(DEADLINE_S) == Exit("finished", 0)
    assert handle.logs().endswith("the end\n")
    assert sum(file.stat().st_size for file in (root / "one").glob("output*")) < 3 * LOG_BYTES


def zombies() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]


def test_a_sandbox_that_ended_leaves_no_zombie_and_no_process(
    sandbox: ProcessSandbox, root: Path, tmp_path: Path
) -> None:
    before = set(zombies())  # other tests' of this process
    sandbox.run(spec(tmp_path, "pass")).wait(DEADLINE_S)
    shim = shim_pid(root)
    eventually(lambda: not lives(shim))
    assert set(zombies()) <= before


def test_a_damaged_end_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    sandbox = ProcessSandbox(tmp_path)
    handle = sandbox.run(SandboxSpec("damaged", (sys.executable, "-c", "pass"), tmp_path, trusted=True))
    handle.wait(20.0)
    path = tmp_path / "damaged" / "exit.json"
    path.write_text('{"reason": ')
    with pytest.raises(SandboxError, match=str(path)):
        handle.poll()
    assert path.read_text() == '{"reason": '
