from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from research.installation import machine
from research.planners.context import PlannerContext
from tests.research.bench import scratch
from tests.research.fakes import FakeTool


@pytest.fixture
def digest() -> Callable[..., PlannerContext]:
    def make(topic: str, **facts: Any) -> PlannerContext:
        return PlannerContext(
            **{"topic": topic, "seconds_left": 600.0, "seconds_per_run": 58.0, "parallel": 2, **facts}
        )

    return make


@pytest.fixture
def fast_path() -> Iterator[Path]:
    with scratch() as folder:
        yield folder


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTool]:
    """Puts a tool on PATH that runs lines of shell, on a machine of 32 cores with a torch for CUDA."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine, "_torch_build", lambda: "cu130")
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: range(32))
    memory = SimpleNamespace(available=1 << 40, total=1 << 40)
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: memory)

    def write(name: str, lines: str) -> None:
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / "bin" / name).chmod(0o755)
        machine.find_devices.cache_clear()

    yield write
    machine.find_devices.cache_clear()
