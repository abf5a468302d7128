import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandboxes.docker.engine import ContainerEngine, NoEngine, connect, lacks, offers_gpus, shares_this_kernel

ABLE: dict[str, Any] = {
    "KernelVersion": os.uname().release,
    "OperatingSystem": "Debian GNU/Linux 12",
    "MemoryLimit": True, "SwapLimit": True, "PidsLimit": True, "CpuCfsQuota": True,
    "SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"],
}  # fmt: skip
DOCKER = {"Version": "27.1.0", "ApiVersion": "1.46", "Os": "linux", "Components": [{"Name": "Engine"}]}


@contextmanager
def fake_engine(version: dict[str, Any], facts: dict[str, Any] = ABLE) -> Iterator[dict[str, str]]:
    """Serve an engine's two answers about itself; yield the environment that names it."""

    class FakeEngine(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(version if self.path.endswith("/version") else facts).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing is printed."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeEngine) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield {"DOCKER_HOST": f"tcp://127.0.0.1:{server.server_port}"}
        server.shutdown()


def test_the_engine_of_this_machine_is_local_and_lacks_nothing(engine: ContainerEngine) -> None:
    assert engine.local
    assert engine.lacks == ()


def test_an_engine_whose_files_are_not_ours_is_not_local(engine: ContainerEngine, tmp_path: Path) -> None:
    """As for a controller in a container that has the engine's socket: same kernel, other files."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system of its own")
    code = "import os; from sandboxes.docker.engine import connect; print(connect(os.environ).local)"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$TMPDIR" && exec "$0" -c "$1"', sys.executable, code],
        env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "False\n"


@pytest.mark.parametrize("other", [
    {"KernelVersion": "6.10.14-linuxkit"}, {"OperatingSystem": "Docker Desktop"},
    {"SecurityOptions": ["name=seccomp,profile=builtin", "name=selinux"]},
])  # fmt: skip
def test_an_engine_whose_containers_cannot_use_our_sockets_is_not_local(other: dict[str, Any]) -> None:
    assert shares_this_kernel(ABLE)
    assert not shares_this_kernel({**ABLE, **other})


def test_an_engine_over_tcp_is_not_local() -> None:
    with fake_engine(DOCKER) as environ:
        found = connect(environ)
    assert (found.local, found.version, found.host) == (False, "27.1.0", environ["DOCKER_HOST"])


def test_the_environments_proxies_and_ca_bundles_do_not_stand_between_us_and_an_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere")
    with fake_engine(DOCKER) as environ:
        assert not connect(environ).client.api.trust_env


def test_no_engine_is_a_line_that_says_where_it_was_looked_for_and_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(NoEngine, match=r"no\.sock \(from DOCKER_HOST\).*install Docker Engine") as refusal:
        connect({"DOCKER_HOST": f"unix://{tmp_path}/no.sock"})
    assert "\n" not in str(refusal.value)
    assert "answers (No such file or directory)" in str(refusal.value), "and no tuple of Python"


def test_a_socket_that_is_closed_to_this_user_is_said_to_be(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else for a moment")
    environ = {"DOCKER_HOST": f"unix://{tmp_path}/closed/docker.sock"}
    (tmp_path / "closed").mkdir(mode=0o700)
    with pytest.raises(NoEngine, match="none that answers"):  # and everything is imported
        connect(environ)
    os.seteuid(65534)
    try:
        with pytest.raises(NoEngine, match="group `docker`"):
            connect(environ)
    finally:
        os.seteuid(0)


def test_ssh_that_fails_is_quoted_without_its_user(tmp_path: Path) -> None:
    with pytest.raises(NoEngine, match="Connection refused") as refusal:
        connect({**os.environ, "DOCKER_HOST": "ssh://somebody@127.0.0.1:9"})
    assert "somebody" not in str(refusal.value)


def test_a_machine_without_ssh_is_told_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(NoEngine, match="ssh on PATH"):
        connect({"DOCKER_HOST": "ssh://machine", "PATH": str(tmp_path)})


@pytest.mark.parametrize(("version", "found"), [
    ({**DOCKER, "Version": "4.3.1", "ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}]}, "Podman 4"),
    ({**DOCKER, "Os": "windows"}, "switch it to Linux"),
    ({**DOCKER, "Version": "18.09.1", "ApiVersion": "1.39"}, r"20\.10 .* found 18\.09\.1 \(API 1\.39\)"),
])  # fmt: skip
def test_an_engine_that_is_unfit_is_refused(version: dict[str, Any], found: str) -> None:
    with fake_engine(version) as environ, pytest.raises(NoEngine, match=found):
        connect(environ)


def test_what_answers_but_is_no_engine_is_refused_in_a_line() -> None:
    with fake_engine({"hello": "world"}) as environ, pytest.raises(NoEngine, match="none that answers"):
        connect(environ)


@pytest.mark.parametrize("fact", ["MemoryLimit", "SwapLimit", "PidsLimit", "CpuCfsQuota"])
def test_a_limit_the_engine_cannot_set_is_something_it_lacks(fact: str) -> None:
    assert len(lacks({**ABLE, fact: False})) == 1
    assert len(lacks({key: value for key, value in ABLE.items() if key != fact})) == 1


@pytest.mark.parametrize("options", [None, [], ["name=apparmor"], ["name=seccomp,profile=unconfined"]])
def test_an_engine_that_filters_no_system_calls_lacks_something(options: list[str] | None) -> None:
    (missing,) = lacks({**ABLE, "SecurityOptions": options})
    assert "filter" in missing


def test_a_rootless_engine_with_all_controllers_lacks_nothing() -> None:
    assert lacks({**ABLE, "SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"]}) == ()


def test_gpus_are_offered_by_nvidias_runtime_or_by_named_devices() -> None:
    assert not offers_gpus({"Runtimes": {"runc": {}}, "DiscoveredDevices": [{"Source": "cdi", "ID": "acme.com/x=0"}]})
    assert offers_gpus({"Runtimes": {"runc": {}, "nvidia": {}}})
    assert offers_gpus({"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=GPU-8f1c"}]})


@pytest.mark.slow
def test_podman_is_refused_in_a_line() -> None:
    podman = shutil.which("podman")
    if podman is None or os.geteuid() != 0:
        pytest.skip("podman is not installed, or we are not root")
    with tempfile.TemporaryDirectory(prefix="pod") as short:  # podman takes no long run folder
        environ, folder = {"DOCKER_HOST": f"unix://{short}/podman.sock"}, Path(short)
        places = ["--root", str(folder / "root"), "--runroot", str(folder / "run"), "--cgroup-manager", "cgroupfs"]
        service = [podman, *places, "system", "service", "--time", "0", environ["DOCKER_HOST"]]
        with subprocess.Popen(service, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                refusal = until_answered(lambda: connect(environ), process)
            finally:
                process.terminate()
        subprocess.run(["umount", str(folder / "root" / "overlay")], check=False, stderr=subprocess.DEVNULL)
    assert "found Podman" in refusal


def until_answered(ask: Callable[[], object], process: subprocess.Popen[bytes]) -> str:
    """Return the refusal of an engine that is starting."""
    while process.poll() is None:
        with pytest.raises(NoEngine) as refusal:
            ask()
        if "none that answers" not in str(refusal.value):
            return str(refusal.value)
        time.sleep(0.02)
    raise AssertionError("podman did not start")
