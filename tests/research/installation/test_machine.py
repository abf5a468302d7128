"""How many runs a machine carries: by cores, by memory, and by the size of what is trained."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from research.installation import machine


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 8)
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: SimpleNamespace(available=16 << 30))


@pytest.mark.parametrize(("parameters", "runs"), [(0, 8), (100_000, 8), (135_000_000, 3), (10**12, 1)])
def test_a_larger_model_leaves_room_for_fewer_runs_and_always_for_one(parameters: int, runs: int) -> None:
    assert machine.parallel(machine.run_bytes(parameters)) == runs


def test_what_a_check_saw_of_a_models_memory_goes_before_its_size() -> None:
    assert machine.parallel(machine.run_bytes(135_000_000, 1 << 30)) == 6
    assert machine.parallel(machine.run_bytes(135_000_000, 6 << 30)) == 2
