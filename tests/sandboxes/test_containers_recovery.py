"""Launched once, found again: many controllers, killed ones, an engine that goes away, and what is ours to reap."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandboxes import DockerSandbox, Exit, SandboxError, folders
from sandboxes.docker import containers, handles, launching, settling
from sandboxes.docker.archive import pack
from sandboxes.docker.asking import EngineRefused
from sandboxes.docker.engine import ContainerEngine
from sandboxes.folders import until
from sandboxes.images import Image
from tests.sandboxes.containing import DEADLINE_S, held, in_engine, spec

ROOT = Path(__file__).parent.parent.parent
SLEEPER = "import time; print('up', flush=True); time.sleep(600)"

CONTROLLER = """
import os, sys
from pathlib import Path
from sandboxes import DockerSandbox, SandboxSpec
from sandboxes.docker.archive import pack
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
archive = pack({"word": b"here"})
handle = DockerSandbox(Path(root), engine).run(
    SandboxSpec("one", command, Path("/"), image=image, archive=archive, results={"a": 10}, labels={"study": "s"})
)
if when == "settle":
    handle.wait(60)
"""
COPY = "open('results/a', 'w').write(open('/input/word').read())"


def controller(root: Path, image: Image, code: str, die_at: str = "", when: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(root), image.id, code, die_at, when], stdin=subprocess.PIPE, cwd=ROOT
    )


@pytest.fixture
def root(docker_sandbox: DockerSandbox, tmp_path: Path) -> Path:
    assert docker_sandbox.installation
    return tmp_path / "sandboxes"


def test_four_controllers_that_run_one_name_start_it_once(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, root: Path
) -> None:
    racers = [controller(root, image, SLEEPER) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda racer: racer.communicate(b"go\n"), racers))
    assert [racer.returncode for racer in racers] == [0] * 4
    assert held(engine, docker_sandbox) == [f"/{in_engine(docker_sandbox)}", f"{in_engine(docker_sandbox)}.input"]
    handle = docker_sandbox.adopt("one")
    assert handle is not None, "it outlives the controllers that launched it"
    assert handle.poll() is None
    assert until(lambda: handle.logs() != "", DEADLINE_S)
    assert handle.stop(grace_s=0.1).reason == "stopped"
    assert handle.logs() == "up\n", "a second start would have said it again"


STEPS = [
    ("create_volume", "before"),
    ("create_volume", "after"),
    ("create_container", "after"),
    ("put_archive", "after"),
    ("remove_container", "after"),
    ("start", "before"),
    ("start", "after"),
]


@pytest.mark.parametrize(("die_at", "when"), STEPS)
def test_a_launch_whose_controller_is_killed_is_finished_by_the_next(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, root: Path, die_at: str, when: str
) -> None:
    first = controller(root, image, COPY, die_at, when)
    first.communicate(b"go\n")
    assert first.returncode == -signal.SIGKILL
    handle = docker_sandbox.run(spec(image, COPY, archive=pack({"word": b"here"}), results={"a": 10}))
    assert handle.wait(DEADLINE_S) == Exit("finished", 0)
    assert handle.results()["a"].path.read_text() == "here"
    assert held(engine, docker_sandbox) == []


def test_a_controller_killed_between_create_and_start_leaves_what_a_look_starts(
    docker_sandbox: DockerSandbox, image: Image, root: Path
) -> None:
    first = controller(root, image, COPY, "start", "before")
    first.communicate(b"go\n")
    handle = docker_sandbox.adopt("one")
    assert handle is not None
    assert handle.wait(DEADLINE_S) == Exit("finished", 0)


def test_what_was_created_and_never_started_can_be_stopped(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, root: Path
) -> None:
    controller(root, image, COPY, "start", "before").communicate(b"go\n")
    handle = docker_sandbox.adopt("one")
    assert handle is not None
    assert handle.stop() == Exit("stopped", None)
    assert held(engine, docker_sandbox) == []


@pytest.mark.parametrize("die_at", ["logs", "remove_container", "remove_volume"])
def test_a_controller_killed_while_settling_costs_nothing(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, root: Path, die_at: str
) -> None:
    docker_sandbox.run(
        spec(image, COPY + "; import time; time.sleep(0.5)", archive=pack({"word": b"here"}), results={"a": 10})
    )
    settler = controller(root, image, COPY, die_at, "settle")
    settler.communicate(b"go\n")
    assert settler.returncode == -signal.SIGKILL
    handle = docker_sandbox.adopt("one")
    assert handle is not None
    assert handle.wait(DEADLINE_S) == Exit("finished", 0)
    assert handle.results()["a"].path.read_text() == "here"
    assert held(engine, docker_sandbox) == []


def test_a_container_whose_folder_is_gone_is_adopted_and_not_started_twice(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, root: Path
) -> None:
    one = spec(image, SLEEPER, results={"a": 10})
    docker_sandbox.run(one)
    first = engine.client.api.inspect_container(in_engine(docker_sandbox))["Id"]
    shutil.rmtree(root / "one")
    handle = docker_sandbox.run(one)
    assert engine.client.api.inspect_container(in_engine(docker_sandbox))["Id"] == first
    handle.stop(grace_s=0.1)
    assert handle.refused() == {"a": "missing"}


def test_a_container_that_ended_and_whose_folder_is_gone_is_settled_and_not_run_again(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, root: Path
) -> None:
    """As after a power cut, which the engine's record survived and ours did not."""
    one = spec(image, "print('once')")
    docker_sandbox.run(one)
    engine.client.api.wait(in_engine(docker_sandbox))
    shutil.rmtree(root / "one")
    handle = docker_sandbox.run(one)
    assert handle.wait(DEADLINE_S) == Exit("finished", 0)
    assert handle.logs() == "once\n"


def test_only_what_was_started_is_listed_oldest_first(docker_sandbox: DockerSandbox, image: Image, root: Path) -> None:
    for name in ("b", "a"):
        docker_sandbox.run(spec(image, "pass", name))
    (root / "c").mkdir()
    shutil.copy(root / "a" / "spec.json", root / "c" / "spec.json")
    assert [handle.name for handle in docker_sandbox.list({"study": "s"})] == ["b", "a"]
    assert docker_sandbox.list({"study": "other"}) == []
    assert docker_sandbox.adopt("c") is None
    assert docker_sandbox.adopt("d") is None


def test_reaping_stops_and_settles_what_bears_the_labels_and_touches_nothing_else(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, tmp_path: Path
) -> None:
    other = DockerSandbox(tmp_path / "other", engine)
    try:
        of_other = other.run(spec(image, SLEEPER))
        mine = docker_sandbox.run(spec(image, "open('results/a', 'w').write('a'); " + SLEEPER, results={"a": 1}))
        kept = docker_sandbox.run(spec(image, SLEEPER, "kept", labels={"study": "t"}))
        assert docker_sandbox.reap({"study": "s"}) == ["one"]
        assert mine.poll() is not None
        assert mine.poll().reason == "stopped"  # type: ignore[union-attr]
        assert (kept.poll(), of_other.poll()) == (None, None)
        assert docker_sandbox.reap({"study": "s"}) == []
    finally:
        assert other.reap({}) == ["one"]
    assert held(engine, other) == []


def test_reaping_removes_what_a_killed_launch_left(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, root: Path
) -> None:
    controller(root, image, COPY, "put_archive", "after").communicate(b"go\n")
    assert len(held(engine, docker_sandbox)) == 2
    assert docker_sandbox.reap({}) == ["one"]
    assert held(engine, docker_sandbox) == []
    assert docker_sandbox.adopt("one") is None, "it was never started, and may be"


def test_reaping_ends_what_is_being_launched_at_that_moment(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, reaping = threading.Event(), threading.Event()
    put, lock = engine.client.api.put_archive, folders.locked

    def slow(*args: Any) -> bool:
        loading.set()
        assert reaping.wait(DEADLINE_S)
        return put(*args)

    def noted(folder: Path) -> AbstractContextManager[None]:
        if loading.is_set():
            reaping.set()
        return lock(folder)

    monkeypatch.setattr(engine.client.api, "put_archive", slow)
    monkeypatch.setattr(containers, "locked", noted)
    with ThreadPoolExecutor(1) as pool:
        launched = pool.submit(docker_sandbox.run, spec(image, SLEEPER, archive=pack({"word": b"here"})))
        assert loading.wait(DEADLINE_S)
        assert docker_sandbox.reap({}) == ["one"]
    assert launched.result().poll() is not None
    assert held(engine, docker_sandbox) == []


def test_what_somebody_removes_during_a_launch_is_one_line_and_leaves_nothing(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(launching, "check_image", lambda *_: None)  # it was still there
        gone = replace(spec(image, "pass", archive=pack({"word": b"here"})), image="sha256:" + "0" * 64)
        with pytest.raises(SandboxError, match=r"somebody removed one meanwhile.*Launch it again"):
            docker_sandbox.run(gone)
        start = engine.client.api.start

        def removed(container: str) -> None:
            engine.client.api.remove_container(container)
            start(container)

        patched.setattr(engine.client.api, "start", removed)
        with pytest.raises(SandboxError, match=r"somebody removed one meanwhile.*Launch it again"):
            docker_sandbox.run(spec(image, "pass", archive=pack({"word": b"here"})))
    assert held(engine, docker_sandbox) == []
    assert docker_sandbox.run(spec(image, "pass")).wait(DEADLINE_S) == Exit("finished", 0)


def test_a_container_whose_removal_got_stuck_is_lost(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state, in which an engine gives no log, cannot be provoked: it is faked."""
    handle = docker_sandbox.run(spec(image, SLEEPER))
    monkeypatch.setattr(handles, "inspect", lambda *_: {"State": {"Status": "dead", "Running": False}})
    assert handle.poll() == Exit("lost", None)
    assert held(engine, docker_sandbox) == []


def test_a_container_that_is_being_removed_says_nothing_and_is_no_error(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine refuses the log of a container that somebody removes at that moment."""
    handle = docker_sandbox.run(spec(image, SLEEPER))

    def refuses(*_: object, **__: object) -> bytes:
        raise EngineRefused("can not get logs from container which is dead or marked for removal")

    with monkeypatch.context() as patched:
        patched.setattr(settling, "log", refuses)
        patched.setattr(handles, "GOES_S", 0.1)
        with pytest.raises(EngineRefused, match="marked for removal"):
            handle.logs()
        for status in ("removing", "dead"):
            patched.setattr(handles, "inspect", _faked({"State": {"Status": status, "Running": False}}))
            assert handle.logs() == ""
        patched.setattr(handles, "inspect", _faked(None))
        assert handle.logs() == ""
    engine.client.api.remove_container(in_engine(docker_sandbox), force=True)
    assert handle.wait(DEADLINE_S) == Exit("lost", None)


def test_looking_at_a_container_while_it_is_removed_ends_with_its_being_lost(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine
) -> None:
    for number in range(3):
        handle = docker_sandbox.run(spec(image, "import time\nprint('x' * 10**6)\ntime.sleep(600)", f"of-{number}"))
        removal = threading.Thread(
            target=engine.client.api.remove_container, args=(in_engine(docker_sandbox, f"of-{number}"),),
            kwargs={"force": True},
        )  # fmt: skip
        removal.start()
        while (ended := handle.poll()) is None:
            handle.logs()
        removal.join()
        assert ended.reason in ("lost", "killed")


def _faked(found: Any) -> Any:
    return lambda *_: found


class Wire:
    """A Unix socket that leads to the engine, and can be cut, or fall silent."""

    def __init__(self, path: Path, engine: str) -> None:
        self._engine = engine
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._ends: list[socket.socket] = []
        self.silent = False
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """End every connection, and take no more."""
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._engine)
                self._ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if not self.silent:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def wire(engine: ContainerEngine, tmp_path: Path) -> Iterator[Wire]:
    if not engine.host.startswith("unix://"):
        pytest.skip(f"expected an engine with a socket here, to put a wire in between; found it at {engine.host}")
    wire = Wire(tmp_path / "wire.sock", engine.host.removeprefix("unix://"))
    yield wire
    wire.cut()


@pytest.fixture
def wired(engine: ContainerEngine, wire: Wire, tmp_path: Path) -> Iterator[ContainerEngine]:
    """The engine behind the wire."""
    import docker

    client = docker.DockerClient(f"unix://{tmp_path}/wire.sock", version="auto", timeout=2)
    yield replace(engine, client=client, host="unix:///the/wire")
    client.close()


def test_an_engine_that_goes_away_is_one_line_and_nothing_is_concluded(
    docker_sandbox: DockerSandbox, image: Image, wire: Wire, wired: ContainerEngine, root: Path
) -> None:
    assert docker_sandbox.run(spec(image, "pass", "quiet")).wait(DEADLINE_S) == Exit("finished", 0)
    handle = DockerSandbox(root, wired).run(spec(image, SLEEPER))
    assert handle.poll() is None
    wire.silent = True
    with pytest.raises(SandboxError, match=r"expected an answer of the engine at unix:///the/wire.*nothing was concl"):
        handle.poll()
    wire.cut()
    for look in (handle.poll, handle.stop, handle.logs, lambda: DockerSandbox(root, wired).reap({})):
        with pytest.raises(SandboxError, match="expected an answer of the engine") as told:
            look()
        assert "\n" not in str(told.value)
    with pytest.raises(SandboxError, match="expected an answer of the engine"):
        DockerSandbox(root, wired).run(spec(image, SLEEPER, "two"))
    assert not (root / "one" / "exit.json").exists()
    again = docker_sandbox.adopt("one")
    assert again is not None
    assert again.poll() is None
    assert again.stop(grace_s=0.1).reason == "stopped"
    assert handle.poll() == again.poll(), "what is in the folder needs no engine"
    quiet = DockerSandbox(root, wired).adopt("quiet")
    assert quiet is not None
    assert quiet.logs() == "", "nor does an output of nothing"


def test_another_engine_than_the_one_that_started_it_does_not_make_it_lost(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, root: Path
) -> None:
    handle = docker_sandbox.run(spec(image, SLEEPER))
    engine.client.api.remove_container(in_engine(docker_sandbox), force=True)
    record = root / "one" / "started.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "engine": "another"}))
    with pytest.raises(SandboxError, match="started in another engine"):
        handle.poll()
    assert not (root / "one" / "exit.json").exists()


def test_an_image_that_is_absent_or_no_client_image_is_refused_with_what_to_do(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine
) -> None:
    with pytest.raises(SandboxError, match=r"found none\. Make it: `ajet sandbox build`"):
        docker_sandbox.run(replace(spec(image, ""), image="sha256:" + "0" * 64))
    with pytest.raises(SandboxError, match=r"expected a client image .*ajet sandbox build --base"):
        docker_sandbox.run(replace(spec(image, ""), image=image.base))
    assert held(engine, docker_sandbox) == []
    assert docker_sandbox.adopt("one") is None


def test_an_image_with_a_volume_is_refused_for_nothing_bounds_it(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine
) -> None:
    tag = f"ajet-test-volume:{docker_sandbox.installation}"
    made = engine.client.api.create_container(image.id, ["/nothing"], volumes=["/data"])["Id"]
    try:
        engine.client.api.commit(made, *tag.split(":"))
        with pytest.raises(SandboxError, match=r"expected an image without volumes.*declares /data"):
            docker_sandbox.run(replace(spec(image, ""), image=tag))
    finally:
        engine.client.api.remove_container(made, v=True, force=True)
        engine.client.api.remove_image(tag, force=True)


def test_a_start_that_the_engine_refuses_leaves_nothing_and_may_be_tried_again(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, root: Path
) -> None:
    """An exchange folder that is gone between the making and the starting."""
    refused = spec(image, "pass", exchange=root / "no-such-folder")
    with pytest.raises(SandboxError, match=r"refused: .*no-such-folder"):
        docker_sandbox.run(refused)
    assert held(engine, docker_sandbox) == []
    assert docker_sandbox.run(spec(image, "pass")).wait(DEADLINE_S) == Exit("finished", 0)


def test_a_container_of_that_name_that_is_not_ours_is_left_alone(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine
) -> None:
    name = in_engine(docker_sandbox)
    engine.client.api.create_container(image.id, ["/nothing"], name=name)
    try:
        with pytest.raises(SandboxError, match=f"docker rm -f {name}"):
            docker_sandbox.run(spec(image, "pass"))
        assert engine.client.api.inspect_container(name)["State"]["Status"] == "created"
    finally:
        engine.client.api.remove_container(name, force=True)


def test_an_archive_that_is_refused_leaves_nothing(
    docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine
) -> None:
    with pytest.raises(SandboxError, match="plain tar"):
        docker_sandbox.run(spec(image, "pass", archive=b"\x1f\x8b" + os.urandom(1000)))
    assert held(engine, docker_sandbox) == []
    assert docker_sandbox.adopt("one") is None


def test_an_unwritable_root_is_one_clear_error(engine: ContainerEngine, image: Image, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxError, match="cannot launch sandbox one"):
        DockerSandbox(tmp_path / "file", engine).run(spec(image, "pass"))
