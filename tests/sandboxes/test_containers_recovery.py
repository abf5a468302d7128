from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandboxes import DockerSandbox, Exit, SandboxError, spec
from sandboxes.docker import container, launch
from sandboxes.docker.container import ContainerHandle
from sandboxes.spec import wait_until
from tests.sandboxes.containing import DEADLINE_S, SLEEPER, Box, held, refused_results

ROOT = Path(__file__).parent.parent.parent

CONTROLLER = """
import os, sys
from pathlib import Path
from sandboxes import DockerSandbox, SandboxSpec
from sandboxes.docker.engine import connect
root, image, code, die_at, when = sys.argv[1:]
engine = connect(os.environ)
def dying(call):
    def called(*args, **kwargs):
        if when == "before":
            os.kill(os.getpid(), 9)
        call(*args, **kwargs)
        os.kill(os.getpid(), 9)
    return called
if die_at:
    setattr(engine.client.api, die_at, dying(getattr(engine.client.api, die_at)))
sys.stdin.readline()
command = ("python3", "-I", "-S", "-c", code)
handle = DockerSandbox(Path(root), engine).run(
    SandboxSpec(
        "one", command, Path("/"), image=image, files={"word": b"here"}, results={"a": 10}, labels={"study": "s"}
    )
)
if when == "settle":
    handle.wait(180)
"""
COPY = "open('results/a', 'w').write(open('/input/word').read())"


def controller(box: Box, code: str, die_at: str = "", when: str = "") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", CONTROLLER, str(box.root), box.image.id, code, die_at, when]
    return subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT)


def killed(box: Box, die_at: str, when: str) -> None:
    dying = controller(box, COPY, die_at, when)
    dying.communicate(b"go\n")
    assert dying.returncode == -signal.SIGKILL


def copied(box: Box, handle: ContainerHandle) -> bool:
    """Wait for the end of a container that copied its word, of which nothing is left then."""
    assert handle.wait(DEADLINE_S) == Exit("finished", 0)
    return (handle.results()["a"].read_text(), box.held) == ("here", [])


def test_four_controllers_that_run_one_name_start_it_once(box: Box) -> None:
    racers = [controller(box, SLEEPER) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda racer: racer.communicate(b"go\n"), racers))
    assert [racer.returncode for racer in racers] == [0] * 4
    assert box.held == [f"/{box.in_engine()}", f"{box.in_engine()}.input"]
    handle = box.adopt()
    assert handle.poll() is None
    assert wait_until(lambda: handle.logs() != "", DEADLINE_S)
    assert handle.stop(grace_s=0.1).reason == "stopped"
    assert handle.logs() == "up\n"  # a second start would have said it again


WORD: dict[str, Any] = {"files": {"word": b"here"}, "results": {"a": 10}}
STEPS = [
    ("create_volume", "before"), ("create_volume", "after"), ("create_container", "after"), ("put_archive", "after"),
    ("remove_container", "after"), ("start", "before"), ("start", "after"),
]  # fmt: skip


@pytest.mark.parametrize(("die_at", "when"), STEPS)
def test_a_launch_whose_controller_is_killed_is_finished_by_the_next(box: Box, die_at: str, when: str) -> None:
    killed(box, die_at, when)
    assert copied(box, box.run(COPY, **WORD))


def test_what_was_created_and_never_started_is_started_by_a_look_or_can_be_stopped(box: Box) -> None:
    for look in (lambda: copied(box, box.adopt()), lambda: box.adopt().stop() == Exit("stopped", None)):
        killed(box, "start", "before")
        assert look()
        assert box.held == []
        shutil.rmtree(box.root / "one")


@pytest.mark.parametrize("die_at", ["logs", "remove_container", "remove_volume"])
def test_a_controller_killed_while_settling_costs_nothing(box: Box, die_at: str) -> None:
    box.run(COPY + "; import time; time.sleep(0.5)", **WORD)
    killed(box, die_at, "settle")
    assert copied(box, box.adopt())


def test_a_container_whose_folder_is_gone_is_adopted_and_not_started_twice(box: Box) -> None:
    """As after a power cut, which the engine's record survived and ours did not."""
    lives, over = box.spec(SLEEPER, results={"a": 10}), box.spec("print('once')", "over")
    for one in (lives, over):
        box.sandbox.run(one)
    box.api.wait(box.in_engine("over"))
    first = box.api.inspect_container(box.in_engine())["Id"]
    for one in (lives, over):
        shutil.rmtree(box.root / one.name)
    handle, ended = box.sandbox.run(lives), box.sandbox.run(over)
    assert box.api.inspect_container(box.in_engine())["Id"] == first
    handle.stop(grace_s=0.1)
    assert refused_results(handle) == {"a": "missing"}
    assert (ended.wait(DEADLINE_S), ended.logs()) == (Exit("finished", 0), "once\n")


def test_reaping_stops_and_settles_what_bears_the_labels_and_touches_nothing_else(box: Box, tmp_path: Path) -> None:
    other = DockerSandbox(tmp_path / "other", box.engine)
    try:
        of_other = other.run(box.spec(SLEEPER))
        mine = box.run("open('results/a', 'w').write('a'); " + SLEEPER, results={"a": 1})
        kept = box.run(SLEEPER, "kept", labels={"study": "t"})
        assert box.sandbox.reap({"study": "s"}) == ["one"]
        assert getattr(mine.poll(), "reason", None) == "stopped"
        assert (kept.poll(), of_other.poll()) == (None, None)
        assert box.sandbox.reap({"study": "s"}) == []
    finally:
        assert other.reap({}) == ["one"]
    assert held(box.engine, other) == []


def test_reaping_removes_what_a_killed_launch_left(box: Box) -> None:
    killed(box, "put_archive", "after")
    assert len(box.held) == 2
    assert box.sandbox.reap({}) == ["one"]
    assert box.held == []
    assert box.sandbox.adopt("one") is None  # it was never started, and may be


def test_reaping_ends_what_is_being_launched_at_that_moment(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    loading, reaping = threading.Event(), threading.Event()
    put, lock = box.api.put_archive, spec.hold_lock

    def slow(*args: Any) -> bool:
        loading.set()
        assert reaping.wait(DEADLINE_S)
        return put(*args)

    def noted(folder: Path) -> AbstractContextManager[None]:
        if loading.is_set():
            reaping.set()
        return lock(folder)

    monkeypatch.setattr(box.api, "put_archive", slow)
    monkeypatch.setattr(container, "hold_lock", noted)
    with ThreadPoolExecutor(1) as pool:
        launched = pool.submit(box.sandbox.run, box.spec(SLEEPER, files={"word": b"here"}))
        assert loading.wait(DEADLINE_S)
        assert box.sandbox.reap({}) == ["one"]
    assert launched.result().poll() is not None
    assert box.held == []


def test_an_image_that_is_gone_before_or_in_a_launch_is_one_line_and_leaves_nothing(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = replace(box.spec("pass", files={"word": b"here"}), image="sha256:" + "0" * 64)
    with pytest.raises(SandboxError, match="Make it: `ajet sandbox build`"):
        box.sandbox.run(gone)
    assert box.sandbox.adopt("one") is None
    with monkeypatch.context() as patched:
        patched.setattr(launch, "check_image", lambda *_: None)  # it was still there
        with pytest.raises(SandboxError, match="Launch it again"):
            box.sandbox.run(gone)
        start = box.api.start

        def removed(container: str) -> None:
            box.api.remove_container(container)
            start(container)

        patched.setattr(box.api, "start", removed)
        with pytest.raises(SandboxError, match="Launch it again"):
            box.run("pass", files={"word": b"here"})
    assert box.held == []
    assert box.run("pass").wait(DEADLINE_S) == Exit("finished", 0)


@pytest.mark.parametrize("listens", [True, False], ids=["silent", "gone"])
def test_an_engine_that_does_not_answer_is_one_line_and_nothing_is_concluded(
    box: Box, tmp_path: Path, listens: bool
) -> None:
    import docker

    assert box.run("pass", "quiet").wait(DEADLINE_S) == Exit("finished", 0)
    running = box.run(SLEEPER)
    with socket.socket(socket.AF_UNIX) as listener:
        if listens:
            listener.bind(str(tmp_path / "deaf.sock"))
            listener.listen(64)
        client = docker.DockerClient(f"unix://{tmp_path}/deaf.sock", version="1.41", timeout=1)
        sandbox = DockerSandbox(box.root, replace(box.engine, client=client, host="unix:///deaf"))
        away = replace(box, sandbox=sandbox)
        handle, quiet = away.adopt(), away.adopt("quiet")
        two = box.spec(SLEEPER, "two")
        for look in (handle.poll, handle.stop, handle.logs, lambda: sandbox.reap({}), lambda: sandbox.run(two)):
            with pytest.raises(SandboxError, match=r"answer.*unix:///deaf.*nothing was concl") as refusal:
                look()
            assert "\n" not in str(refusal.value)
        assert quiet.logs() == ""  # what is in the folder needs no engine
        client.close()
    assert not (box.root / "one" / "exit.json").exists()
    assert running.stop(grace_s=0.1).reason == "stopped"
    assert handle.poll() == running.poll()


def test_another_engine_than_the_one_that_started_it_does_not_make_it_lost(box: Box) -> None:
    handle = box.run(SLEEPER)
    box.api.remove_container(box.in_engine(), force=True)
    record = box.root / "one" / "started.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "engine": "another"}))
    with pytest.raises(SandboxError, match="another engine"):
        handle.poll()
    assert not (box.root / "one" / "exit.json").exists()


def test_a_start_that_the_engine_refuses_leaves_nothing_and_may_be_tried_again(box: Box, tmp_path: Path) -> None:
    """An exchange folder that is gone between the making and the starting."""
    refused = box.spec("pass", exchange=box.root / "no-such-folder")
    with pytest.raises(SandboxError, match=r"refused: .*no-such-folder"):
        box.sandbox.run(refused)
    assert box.held == []
    assert box.run("pass").wait(DEADLINE_S) == Exit("finished", 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxError, match="cannot launch"):
        DockerSandbox(tmp_path / "file", box.engine).run(box.spec("pass"))


def test_a_container_of_that_name_that_is_not_ours_is_left_alone(box: Box) -> None:
    name = box.in_engine()
    box.api.create_container(box.image.id, ["/nothing"], name=name)
    try:
        with pytest.raises(SandboxError, match=f"docker rm -f {name}"):
            box.run("pass")
        assert box.state() == "created"
    finally:
        box.api.remove_container(name, force=True)
