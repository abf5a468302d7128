"""What goes at once and what it costs, as `ajet doctor` and `ajet study plan` say it of a machine with fake GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.research.cli.conftest import Ajet
from tests.research.fakes import H100, FakeTool, gpus
from tests.research.model_folders import model_at

TOPIC = "group size 4 vs 16 on guess"


def planned(ajet: Ajet, *flags: str) -> dict[str, Any]:
    ended = ajet("study", "plan", TOPIC, "--budget", "9h", "--json", *flags)
    assert ended.code == 0, ended.err
    return json.loads(ended.out) | {"said": ended.err}


@pytest.mark.parametrize(("lines", "torch", "found"), [
    (gpus(8), "cu130", f"8 x {H100}: 8 runs at once, one a device"), (gpus(8), "cpu", "this torch was not built"),
    ("exit 9", "cu130", "nvidia-smi ended with 9"),
])  # fmt: skip
def test_doctor_names_the_gpus_or_why_runs_have_none(
    ajet: Ajet, tool: FakeTool, monkeypatch: pytest.MonkeyPatch, lines: str, torch: str, found: str
) -> None:
    tool("nvidia-smi", lines)
    monkeypatch.setattr("research.installation.machine._torch_build", lambda: torch)
    (gpu,) = (check for check in json.loads(ajet("doctor", "--json").out)["checks"] if check["name"] == "gpu")
    assert found in gpu["found"]
    assert gpu["level"] == ("ok" if found.endswith("a device") else "optional")


def test_a_plan_has_a_device_a_run_at_most_as_many_as_asked(ajet: Ajet, tool: FakeTool, tmp_path: Path) -> None:
    tool("nvidia-smi", gpus(8))
    large = ("--model", str(model_at(tmp_path / "mine", shapes=((30_000, 4_500),))))
    whole, four = planned(ajet, *large), planned(ajet, *large, "--parallel", "4")
    assert whole["at_once"] == f"8 x {H100}: 8 runs at once, one a device"
    assert (four["at_once"], four["said"]) == (f"8 x {H100}: 4 runs at once, one a device", "")
    assert whole["total_s"] < four["total_s"]
    assert whole["cost"]["gpu_hours"] == pytest.approx(sum(stage["run_hours"] for stage in whole["stages"]))
    assert "more than is carried; 8 x" in planned(ajet, *large, "--parallel", "9")["said"]
    assert ajet("study", "plan", TOPIC, "--parallel", "0").code == 2


def test_money_is_by_the_table_alone(ajet: Ajet, tool: FakeTool, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool("nvidia-smi", gpus(2))
    cost = planned(ajet)["cost"]
    assert (cost["money"], cost["unpriced"]) == (None, [H100])
    assert cost["tokens"]["trained"] > 0
    home.mkdir(exist_ok=True)
    table = home / "prices.json"
    for prices, each in (({H100: 2.5, "*": 9}, 2.5), ({"another": 1, "*": 9}, 9)):
        table.write_text(json.dumps({"currency": "USD", "gpu_hour": prices}))
        found = planned(ajet)["cost"]
        assert (found["money"], found["currency"]) == (pytest.approx(each * found["gpu_hours"]), "USD")
    monkeypatch.setenv("AJET_PRICES", str(table.with_name("none.json")))
    assert "none.json" in ajet("study", "plan", TOPIC).err
    table.write_text('{"gpu_hours": {}}')
    monkeypatch.setenv("AJET_PRICES", str(table))
    ended = ajet("study", "plan", TOPIC)
    assert (ended.code, ended.err.count("\n")) == (2, 1)


def test_runs_without_a_device_have_hours_of_cores(ajet: Ajet, home: Path) -> None:
    home.mkdir(exist_ok=True)
    (home / "prices.json").write_text('{"cpu_hour": 0.5}')
    cost = planned(ajet, "--parallel", "1")["cost"]
    assert cost["gpu_hours"] == 0
    assert cost["money"] == pytest.approx(cost["core_hours"] / 2)
