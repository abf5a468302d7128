"""The isolation, read as a table: what a spec becomes, and which specs become nothing."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandboxes.docker import launch
from sandboxes.docker.engine import ContainerEngine
from sandboxes.inside.init import CHUNK_BYTES, SHORT_LINE, TAIL_BYTES
from sandboxes.spec import Limits, SandboxError, SandboxSpec

SPEC = SandboxSpec(
    "one", ("python3", "agent.py"), Path("/"), {"OF": "the spec"}, {"study": "s"}, 60.0, image="sha256:1",
    results={"report.json": 1000}, exchange=Path("/exchange"), ports={8000: "server.sock"},
    limits=Limits(memory_bytes=100 << 20, cpus=0.5, processes=50, open_files=60, file_bytes=70, workspace_bytes=80),
)  # fmt: skip


def test_every_option_of_a_container_is_in_this_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    made = launch.container_options(SPEC, "installation", volume="volume")
    disk = "rw,nosuid,nodev,noexec,mode=0700,uid=10001,gid=10001,nr_inodes=16384,size=80"
    log = {"max-size": str(launch.log_bytes(SPEC)), "max-file": "1", "compress": "false", "mode": "blocking"}
    assert json.loads(made.pop("command")[0]) == {
        "command": ["python3", "agent.py"], "time_limit_s": 60.0, "grace_s": launch.GRACE_S, "output_bytes": 4 << 20,
        "results": {"report.json": 1000}, "ports": {"8000": "/run/ajet/server.sock"}, "tied": None,
    }  # fmt: skip
    assert made == {
        "name": "one.installation", "image": "sha256:1", "entrypoint": ["python3", "-I", "-S", "/opt/ajet/init.py"],
        "working_dir": "/workspace", "use_config_proxy": False, "user": "10001:10001", "hostname": "sandbox",
        "environment": {"HOME": "/workspace/home", "TMPDIR": "/workspace/tmp", "OF": "the spec"},
        "labels": launch.labels(SPEC, "installation", "container"),
        "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"], "privileged": False, "ipc_mode": "private",
        "cgroupns": "private", "network_mode": "none", "dns": ["192.0.2.1"], "dns_search": ["."],
        "read_only": True, "tmpfs": {"/workspace": disk, "/tmp": disk}, "shm_size": 16 << 20,
        "mounts": [
            {"Target": "/input", "Source": "volume", "Type": "volume", "ReadOnly": True,
             "VolumeOptions": {"NoCopy": True}},
            {"Target": "/run/ajet", "Source": "/exchange", "Type": "bind", "ReadOnly": True},
        ],
        "mem_limit": 100 << 20, "memswap_limit": 100 << 20, "nano_cpus": 500_000_000, "pids_limit": 50,
        "ulimits": [
            {"Name": name, "Soft": most, "Hard": most} for name, most in (("core", 0), ("fsize", 70), ("nofile", 60))
        ],
        "log_config": {"Type": "json-file", "Config": log}, "device_requests": None, "init": False,
        "auto_remove": False, "restart_policy": {"Name": "no"}, "healthcheck": {"test": ["NONE"]},
        "stop_signal": "SIGTERM",
    }  # fmt: skip
    bare = launch.container_options(replace(SPEC, exchange=None, ports={}), "installation", volume=None)
    assert bare["mounts"] == []


def test_what_carries_its_input_in_has_no_right_and_nothing_to_run() -> None:
    assert launch.loader_options(SPEC, "installation", "volume") == {
        "name": "one.installation.loader", "image": "sha256:1", "entrypoint": ["/nothing"], "user": "10001:10001",
        "labels": launch.labels(SPEC, "installation", "loader"), "cap_drop": ["ALL"], "network_mode": "none",
        "mounts": [{"Target": "/input", "Source": "volume", "Type": "volume", "ReadOnly": False,
                    "VolumeOptions": {"NoCopy": True}}],
    }  # fmt: skip


def logged(line: str) -> int:
    entry = {"log": line, "stream": "stdout", "time": "2026-01-01T00:00:00.123456789Z"}
    return len(json.dumps(entry, separators=(",", ":"))) + 1


@pytest.mark.parametrize("most", [SHORT_LINE, 64 << 20])
def test_the_engines_log_holds_the_worst_output_and_the_frames_behind_it(most: int) -> None:
    """A log beyond its bound is cut at its beginning, and PID 1's words would be lost."""
    output = most // SHORT_LINE * logged("\x01" * (SHORT_LINE - 1) + "\n") + TAIL_BYTES * logged("\n")
    chunk = base64.b64encode(bytes(CHUNK_BYTES)).decode()
    results = -(-launch.MOST_RESULT_BYTES // CHUNK_BYTES) * logged(json.dumps({"result": "a" * 128, "data": chunk}))
    one = replace(SPEC, limits=Limits(output_bytes=most), results={"a" * 128: launch.MOST_RESULT_BYTES})
    assert output + results < launch.log_bytes(one) < 4 * (output + results)


def test_labels_say_whose_it_is_and_the_specs_own_cannot_stand_in_for_ours() -> None:
    made = launch.labels(replace(SPEC, labels={"installation": "forged", "study": "s"}), "mine", "container")
    said = {"ajet.installation": "mine", "ajet.label.installation": "forged", "ajet.label.study": "s"}
    assert made.items() >= said.items()


@pytest.mark.parametrize(("change", "said"), [
    ({"name": "../escape"}, "name must match"), ({"name": ".hidden"}, "name must match"),
    ({"name": "a" * 129}, "name must match"),
    ({"results": {"../up": 1}}, "result's name"),
    ({"results": {"a": 0}}, "above 0 for result a"),
    ({"results": {"a": 1 << 30}}, "67108864 bytes"),
    ({"command": ()}, "command to run"), ({"command": ("a\0b",)}, "without zero bytes"),
    ({"command": ("a" * 200_000,)}, "100000 bytes"),
    ({"image": None}, "ajet sandbox build"), ({"exchange": None}, "the exchange folder"),
    ({"ports": {1: "../a.sock"}}, "found a path"),
    ({"limits": Limits(processes=0)}, "above 0 for processes"),
    ({"limits": Limits(workspace_bytes=0)}, "above 0 for workspace_bytes"),
    ({"limits": Limits(cpus=float("nan"))}, "above 0 for cpus"),
    ({"limits": Limits(cpus=1e-10)}, "0.01 CPUs"),
    ({"limits": Limits(memory_bytes=-1)}, "above 0 for memory_bytes"),
    ({"time_limit_s": 0.0}, "above 0 for time_limit_s"),
    ({"gpus": ("all",)}, "UUID.*'all'"),
    ({"environment": {"LD_PRELOAD": "/input/x.so"}}, "loader's.*'LD_PRELOAD'"),
    ({"environment": {"A=B": ""}}, "name of a variable"),
])  # fmt: skip
def test_a_spec_that_no_container_can_be_made_of_is_refused_in_a_line(change: dict[str, Any], said: str) -> None:
    launch.check(SPEC)
    with pytest.raises(SandboxError, match=said) as told:
        launch.check(replace(SPEC, **change))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(("engine", "image", "changes", "refusal"), [
    ({}, {}, {"gpus": ("GPU-8f1c",)}, "GPU-8f1c.*nvidia runtime"),
    ({"lacks": ("a limit: delegate",)}, {}, {}, "lacks a limit: delegate"),
    ({}, {"Labels": None}, {}, "ajet sandbox build --base"),
    ({}, {"Labels": {"ajet.client": "x"}, "Volumes": {"/data": {}}}, {}, "without volumes.*/data"),
], ids=["no GPUs", "lacks what isolates", "no client image", "a volume"])  # fmt: skip
def test_what_engine_and_image_cannot_do_is_refused_before_anything_is_made(
    tmp_path: Path, engine: dict[str, Any], image: dict[str, Any], changes: dict[str, Any], refusal: str
) -> None:
    images = SimpleNamespace(get=lambda _: SimpleNamespace(attrs={"Config": image}))
    client: Any = SimpleNamespace(images=images)
    weak = ContainerEngine(client, "unix:///engine", version="27.1.0", **engine)
    with pytest.raises(SandboxError, match=refusal):
        launch.make(weak, "installation", replace(SPEC, **changes), tmp_path)
    assert list(tmp_path.iterdir()) == []
    launch.check_engine(replace(weak, gpus=True), replace(SPEC, **changes, trusted=True))
