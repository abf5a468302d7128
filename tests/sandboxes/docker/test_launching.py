"""What is refused before an engine is asked for anything, and how GPUs are asked for.

No machine of these tests has a GPU: what is held is the request an engine gets, not that a container computes on one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes import DockerSandbox, SandboxError, SandboxSpec
from sandboxes.docker import options
from sandboxes.docker.engine import ContainerEngine
from sandboxes.docker.launching import check_engine

GPU = "GPU-8f1c2d7e-0000-4444-8888-123456789abc"


def spec(folder: Path, *, trusted: bool = False, gpus: tuple[str, ...] = ()) -> SandboxSpec:
    return SandboxSpec(
        name="a", command=("true",), directory=folder, image="sha256:0", trusted=trusted, gpus=gpus
    )  # fmt: skip


def test_gpus_are_asked_for_by_uuid_and_nothing_is_where_none_is_named(tmp_path: Path) -> None:
    wanted = options.container(spec(tmp_path, gpus=(GPU,)), "installation", local=True, volume=None)
    (request,) = wanted["device_requests"]
    assert (request["DeviceIDs"], request["Count"]) == ([GPU], 0)
    assert "gpu" in request["Capabilities"][0]
    assert options.container(spec(tmp_path), "installation", local=True, volume=None)["device_requests"] is None


def test_gpus_of_an_engine_that_has_none_are_refused_before_anything_is_made(
    engine: ContainerEngine, tmp_path: Path
) -> None:
    sandbox = DockerSandbox(tmp_path / "sandboxes", replace(engine, gpus=False))
    with pytest.raises(SandboxError, match=f"hands GPUs to containers .{GPU}.; the one at .* has no nvidia runtime"):
        sandbox.run(spec(tmp_path, gpus=(GPU,)))
    assert not (tmp_path / "sandboxes" / "a" / "spec.json").exists()
    check_engine(replace(engine, gpus=True), spec(tmp_path, gpus=(GPU,)))


def test_untrusted_code_is_refused_by_an_engine_that_lacks_what_the_isolation_needs(
    engine: ContainerEngine, tmp_path: Path
) -> None:
    weak = replace(engine, lacks=("a limit of processes: delegate the controllers",))
    with pytest.raises(SandboxError, match="lacks a limit of processes: delegate the controllers"):
        DockerSandbox(tmp_path / "sandboxes", weak).run(spec(tmp_path))
    check_engine(weak, spec(tmp_path, trusted=True))
