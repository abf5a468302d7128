import http.server
import json
import os
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.docker.engine import ContainerEngine, EngineNotFound, connect, find, find_lacks

ABLE: dict[str, Any] = {
    "KernelVersion": os.uname().release,
    "OperatingSystem": "Debian GNU/Linux 12",
    "MemoryLimit": True, "SwapLimit": True, "PidsLimit": True, "CpuCfsQuota": True,
    "SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"],
}  # fmt: skip
DOCKER = {"Version": "27.1.0", "ApiVersion": "1.46", "Os": "linux", "Components": [{"Name": "Engine"}]}
SEES = (404, "No such image: ajet-no-such-image")
SEES_NOT = (400, "invalid mount config for type bind: bind source path does not exist: /tmp/ajet-probe-x")


@contextmanager
def fake_engine(
    version: dict[str, Any], facts: dict[str, Any] = ABLE, created: tuple[int, str] = SEES
) -> Iterator[dict[str, str]]:
    """Serve an engine's two answers about itself, and one to who creates a container; yield what names it."""

    class FakeEngine(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, version if self.path.endswith("/version") else facts)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.answer(created[0], {"message": created[1]})

        def answer(self, status: int, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing is printed."""

    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,  # the path of a socket is short
        socketserver.ThreadingUnixStreamServer(f"{folder}/engine.sock", FakeEngine) as server,
    ):
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield {"DOCKER_HOST": f"unix://{server.server_address}"}
        server.shutdown()


def docker_context(home: Path, name: str, endpoint: object) -> dict[str, str]:
    """Write a docker context and make it the current one, as docker's client does."""
    folder = home / ".docker"
    meta = folder / "contexts" / "meta" / sha256(name.encode()).hexdigest() / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"Name": name, "Metadata": {}, "Endpoints": {"docker": endpoint}}))
    (folder / "config.json").write_text(json.dumps({"currentContext": name}))
    return {"HOME": str(home)}


def test_docker_host_goes_before_docker_context_and_that_before_the_context_in_use(tmp_path: Path) -> None:
    assert find({"HOME": str(tmp_path)}) == ("unix:///var/run/docker.sock", "docker's default")
    environ = docker_context(tmp_path, "mine", {"Host": "unix:///run/user/1000/docker.sock", "SkipTLSVerify": False})
    assert find(environ) == ("unix:///run/user/1000/docker.sock", "docker context mine")
    environ["DOCKER_CONTEXT"] = "default"
    assert find(environ) == ("unix:///var/run/docker.sock", "docker's default")
    assert find({**environ, "DOCKER_HOST": "unix:///a"}) == ("unix:///a", "DOCKER_HOST")


def test_a_context_that_is_not_there_or_has_no_address_is_named_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(EngineNotFound, match=r"context 'other', .*meta\.json"):
        find({"HOME": str(tmp_path), "DOCKER_CONTEXT": "other"})
    with pytest.raises(EngineNotFound, match=r"context 'lab'.*no 'Host' there"):
        find(docker_context(tmp_path, "lab", {}))
    (tmp_path / ".docker" / "config.json").write_text("{")
    with pytest.raises(EngineNotFound, match=r"config\.json"):
        find({"HOME": str(tmp_path)})


@pytest.mark.parametrize("host", [
    "ssh://lab", "tcp://127.0.0.1:2375", "tcp://10.0.0.7:2376", "npipe:////./pipe/docker_engine", "docker.sock",
])  # fmt: skip
def test_what_is_no_unix_socket_is_refused_in_a_line(tmp_path: Path, host: str) -> None:
    environ = {"DOCKER_TLS_VERIFY": "1", "DOCKER_HOST": host}
    for named, source in ((environ, "DOCKER_HOST"), (docker_context(tmp_path, "lab", {"Host": host}), "context lab")):
        why = rf"expected a Unix socket .*{source}; found {host}; name the"
        with pytest.raises(EngineNotFound, match=why) as refusal:
            connect(named)
        assert "\n" not in str(refusal.value)


@given(st.sampled_from(["tcp", "ssh"]), st.from_regex(r"[a-z0-9]{12,20}", fullmatch=True))
def test_a_password_is_never_shown(scheme: str, password: str) -> None:
    with pytest.raises(EngineNotFound, match=f"found {scheme}://machine:2376;") as refusal:
        find({"DOCKER_HOST": f"{scheme}://somebody:{password}@machine:2376"})
    assert not [word for word in (password, "somebody") if word in str(refusal.value)]


def test_the_engine_of_this_machine_lacks_nothing(engine: ContainerEngine) -> None:
    assert engine.lacks == ()


def test_an_engine_whose_files_are_not_ours_is_refused(engine: ContainerEngine, tmp_path: Path) -> None:
    """As for a controller in a container that has the engine's socket: same kernel, other files."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system of its own")
    code = "import os; from sandboxes.docker.engine import connect; connect(os.environ)"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$TMPDIR" && exec "$0" -c "$1"', sys.executable, code],
        env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert "expected an engine that shares this machine's kernel and files" in done.stderr


@pytest.mark.parametrize(("facts", "created"), [
    ({"KernelVersion": "6.10.14-linuxkit"}, SEES), ({"OperatingSystem": "Docker Desktop"}, SEES),
    ({"SecurityOptions": ["name=seccomp,profile=builtin", "name=selinux"]}, SEES),
    ({}, SEES_NOT),
])  # fmt: skip
def test_an_engine_without_our_sockets_within_is_refused(facts: dict[str, Any], created: tuple[int, str]) -> None:
    with fake_engine(DOCKER) as environ:
        assert connect(environ).host == environ["DOCKER_HOST"]
    with (
        fake_engine(DOCKER, {**ABLE, **facts}, created) as environ,
        pytest.raises(EngineNotFound, match=f"kernel and files at {environ['DOCKER_HOST']}; found one"),
    ):
        connect(environ)


def test_no_engine_is_a_line_that_says_where_it_was_looked_for_and_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(EngineNotFound, match=r"no\.sock \(from DOCKER_HOST\).*install Docker Engine") as refusal:
        connect({"DOCKER_HOST": f"unix://{tmp_path}/no.sock"})
    assert "\n" not in str(refusal.value)
    assert "(No such file" in str(refusal.value)  # and no tuple of Python


def test_a_socket_that_is_closed_to_this_user_is_said_to_be(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else for a moment")
    environ = {"DOCKER_HOST": f"unix://{tmp_path}/closed/docker.sock"}
    (tmp_path / "closed").mkdir(mode=0o700)
    with pytest.raises(EngineNotFound, match="none that answers"):  # and everything is imported
        connect(environ)
    os.seteuid(65534)
    try:
        with pytest.raises(EngineNotFound, match="group `docker`"):
            connect(environ)
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(("version", "found"), [
    ({**DOCKER, "Version": "4.3.1", "ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}]}, "Podman 4"),
    ({**DOCKER, "Os": "windows"}, "switch it to Linux"),
    ({**DOCKER, "Version": "18.09.1", "ApiVersion": "1.39"}, r"20\.10 .* found 18\.09\.1 \(API 1\.39\)"),
    ({"hello": "world"}, "none that answers"),
])  # fmt: skip
def test_an_engine_that_is_unfit_is_refused(version: dict[str, Any], found: str) -> None:
    with fake_engine(version) as environ, pytest.raises(EngineNotFound, match=found):
        connect(environ)


@pytest.mark.parametrize(("facts", "lacks"), [
    *(({fact: of}, 1) for fact in ("MemoryLimit", "SwapLimit", "PidsLimit", "CpuCfsQuota") for of in (False, None)),
    *(({"SecurityOptions": of}, 1) for of in (None, [], ["name=apparmor"], ["name=seccomp,profile=unconfined"])),
    ({"SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"]}, 0),
])  # fmt: skip
def test_a_limit_or_a_filter_that_the_engine_does_not_set_is_something_it_lacks(
    facts: dict[str, Any], lacks: int
) -> None:
    assert len(find_lacks({**ABLE, **facts})) == lacks
