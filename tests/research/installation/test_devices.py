"""Devices: what a machine's tools say of them, whose runs they are for, and how many at once. The tools are fake."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path

import pytest

from research.design.pricing import runs_at_once
from research.files import read_json
from research.installation import machine
from research.installation.base_job import model_folder
from research.installation.home import Home
from research.installation.machine import Capacity, MachineSlots, device_variables, devices_of, find_devices
from research.runs.files import AttemptFolder, AttemptSpec
from research.runs.provenance import observe_conditions
from sandboxes import ProcessSandbox, SandboxSpec
from studies import EventLog
from studies.log.locks import Slot
from swarm.errors import SwarmError
from swarm.job import Job
from tests.research.bench import Bench
from tests.research.design.test_pricing import LARGE, checked
from tests.research.fakes import H100, FakeTool, gpus
from tests.research.installation.test_slots import FakeControllers
from tests.research.model_folders import model_at


@pytest.mark.parametrize(("visible", "ids"), [
    (None, "0123"), ("2,0", "20"), ("GPU-3aaaaaaa,1", "31"), ("1,9,2", "1"), ("", ""), ("-1", ""), ("7", ""),
])  # fmt: skip
def test_the_devices_are_those_that_the_tool_names_and_a_variable_leaves(
    tool: FakeTool, monkeypatch: pytest.MonkeyPatch, visible: str | None, ids: str
) -> None:
    tool("nvidia-smi", gpus(4))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found, fault = find_devices()
    assert "".join(device.id for device in found) == ids
    assert not fault
    assert all((device.name, device.memory) == (H100, 81559 << 20) for device in found)


def test_amds_are_found_by_their_own_tool(tool: FakeTool) -> None:
    cards = {
        f"card{n}": {"Card Series": "AMD Instinct MI300X", "VRAM Total Memory (B)": "206141652992"} for n in (0, 1)
    }
    tool("rocm-smi", f"echo '{json.dumps(cards | {'system': {}})}'")
    assert [(each.id, each.name, each.kind) for each in find_devices()[0]] == [
        ("0", "AMD Instinct MI300X", "rocm"), ("1", "AMD Instinct MI300X", "rocm"),
    ]  # fmt: skip
    assert not devices_of(Job())  # by a torch for CUDA
    variables = device_variables(Slot(1, 1, ("1",)))
    assert variables["HIP_VISIBLE_DEVICES"] == variables["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize(("line", "why"), [
    ("echo no driver; exit 9", "ended with 9: no driver"), ("sleep 5", "timed out after 0.2 seconds"),
    ("echo No devices were found", "was not understood"),
])  # fmt: skip
def test_a_tool_that_fails_or_hangs_is_a_line_and_no_error(
    tool: FakeTool, monkeypatch: pytest.MonkeyPatch, line: str, why: str
) -> None:
    monkeypatch.setattr(machine, "_TOOL_S", 0.2)
    tool("nvidia-smi", line)
    devices, fault = find_devices()
    assert not devices
    assert why in fault
    assert "\n" not in fault


@pytest.mark.parametrize(("fields", "torch", "count"), [
    ({}, "cu130", 4), ({}, "cpu", 0), ({"device": "cuda"}, "cpu", 4), ({"device": "cpu"}, "cu130", 0),
    ({"device": "mps"}, "cu130", 0), ({"backend": "fake"}, "cu130", 0), ({"backend": "verl"}, "cpu", 4),
    ({"backend": "verl", "verl": {"address": "10.0.0.1:6379"}}, "cu130", 0),
])  # fmt: skip
def test_a_job_has_devices_where_its_backend_will_choose_one(
    tool: FakeTool, monkeypatch: pytest.MonkeyPatch, fields: dict[str, object], torch: str, count: int
) -> None:
    tool("nvidia-smi", gpus(4))
    monkeypatch.setattr(machine, "_torch_build", lambda: torch)
    assert len(devices_of(Job.model_validate(fields))) == count


def test_so_many_runs_share_a_device_as_its_memory_is_known_to_hold(tool: FakeTool, tmp_path: Path) -> None:
    tool("nvidia-smi", gpus(8))
    large = Job(model=model_folder(str(model_at(tmp_path / "mine", shapes=(LARGE,)))))
    spread = Job.model_validate({"backend": "verl", "verl": {"trainers": 2, "replicas": 1, "tensor_parallel": 1}})

    def capacity(job: Job, peak: int | None = None) -> tuple[int, int, int]:
        found = runs_at_once([job], lambda job: None if peak is None else checked(job, peak_bytes=peak))
        return found.runs, found.each, found.share

    assert capacity(large) == (8, 1, 1)  # nobody measured it
    assert capacity(large, 30 << 30) == (16, 1, 2)
    assert capacity(large, 70 << 30) == (8, 1, 1)
    assert capacity(large, 1 << 30) == (32, 1, 4)  # as many as cores
    assert capacity(Job()) == (32, 1, 4)
    assert capacity(spread) == (2, 3, 1)
    assert runs_at_once([large], lambda job: None).describe() == f"8 x {H100}: 8 runs at once, one a device"
    assert not runs_at_once([Job(device="cpu")], lambda job: None).devices


def test_a_run_sees_the_devices_of_its_slot_alone_and_cores_are_no_device(tool: FakeTool, tmp_path: Path) -> None:
    tool("nvidia-smi", gpus(4))
    home, devices = Home(tmp_path, "sqlite://"), find_devices()[0]
    with closing(EventLog("sqlite://")) as log:

        def slots(study: str) -> MachineSlots:
            return MachineSlots(log, home, study, ProcessSandbox(home.sandboxes), FakeControllers("one", "two", "cpu"))  # type: ignore[arg-type]

        one, two, cpu = slots("one"), slots("two"), slots("cpu")
        whole, pair = Capacity(4, devices=devices), Capacity(2, devices=devices, each=2)
        assert all(one.take(f"one-{n}", 4, whole) for n in range(3))
        assert cpu.take("cpu-0", 1)
        assert not two.take("two-0", 2, pair)
        assert two.waits
        assert not one.take("one-3", 4, whole)  # who waits is served first, of both kinds of line each
        one.give_back("one-1")
        assert two.take("two-0", 2, pair)
        seen = [device_variables(each.slot_of(name)) for each, name in (
            (one, "one-0"), (one, "one-2"), (two, "two-0"), (cpu, "cpu-0")
        )]  # fmt: skip
        assert [each.get("CUDA_VISIBLE_DEVICES") for each in seen] == ["0", "2", "1,3", None]
        assert seen[2] == {
            "AJET_DEVICES": f"2 x {H100}", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,3",
        }  # fmt: skip
        assert [str(two.slot_of("two-0")), str(cpu.slot_of("cpu-0"))] == ["gpu 1,3 1/1", "cores 1/1"]
        assert Slot.read("gpu 1,3 1/1") == two.slot_of("two-0")


def test_each_run_of_a_study_is_given_a_device_and_says_of_which_kind_it_was(
    tool: FakeTool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool("nvidia-smi", gpus(2))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: range(2))  # one run a device
    for room in ("design.pricing", "runs.launcher"):  # the fake backend has none
        monkeypatch.setattr(f"research.{room}.devices_of", lambda job: find_devices()[0])
    bench, specs = Bench(tmp_path), list[SandboxSpec]()
    start = bench.sandbox.run
    monkeypatch.setattr(bench.sandbox, "run", lambda spec: (specs.append(spec), start(spec))[1])
    bench.loop().tick()
    assert [spec.environment["CUDA_VISIBLE_DEVICES"] for spec in specs] == ["0", "1"]
    folder = AttemptFolder(specs[0].directory)

    class Away:
        async def status(self, most: int = 0) -> None:
            raise SwarmError("nobody is there")

        episodes = status

    monkeypatch.setenv("AJET_DEVICES", specs[0].environment["AJET_DEVICES"])
    order = AttemptSpec.model_validate(read_json(folder.spec))
    seen = asyncio.run(observe_conditions(Away(), folder, order))  # type: ignore[arg-type]
    assert seen.hardware is not None
    assert seen.hardware.endswith(f"device 1 x {H100}")
