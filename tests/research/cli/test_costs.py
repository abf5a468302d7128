"""What goes at once and what it costs, as `ajet doctor` and `ajet study plan` say it of a machine with fake GPUs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from research.errors import BadInput
from research.installation.machine import Capacity, Device, PriceTable, cores
from tests.research.cli.conftest import Ajet
from tests.research.fakes import H100, FakeTool, gpus
from tests.research.model_folders import model_at
from tests.studies.synthetic import Synthetic

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


GPUS = tuple(Device(str(n), H100, 80 << 30) for n in range(8))
ON = {
    "cores": Capacity(cores()), "gpus": Capacity(8, devices=GPUS), "shared": Capacity(4, devices=GPUS[:2], share=4),
    "pairs": Capacity(2, devices=GPUS[:4], each=2), "servers": Capacity(2, ("http://a:1", "http://b:1")),
}  # fmt: skip
TABLE = {"currency": "USD", "gpu_hour": {H100: 2.5}, "cpu_hour": 0.5, "server_hour": {"http://a:1": 3, "*": 1}}


@pytest.mark.parametrize(("on", "text", "hours"), [
    ("gpus", "2h", 2), ("gpus", "8gpuh", 1), ("gpus", "10 USD", 0.5), ("gpus", "4h, 16gpuh ,60usd", 2),
    ("shared", "1gpuh", 1), ("shared", "5USD", 2), ("pairs", "2gpuh", 0.5), ("servers", "8USD", 2),
    ("gpus", "99999999gpuh", 365 * 24), ("cores", f"{3 * cores()}cpuh", 3), ("cores", f"{0.5 * cores()}usd", 1),
])  # fmt: skip
def test_a_budget_of_devices_or_money_is_for_how_long_all_runs_at_once_hold_them(
    on: str, text: str, hours: float
) -> None:
    assert PriceTable.model_validate(TABLE).seconds_for(text, ON[on]) == pytest.approx(3600 * hours)


@pytest.mark.parametrize(("on", "text", "named"), [
    ("cores", "8gpuh", "no GPUs"), ("gpus", "8cpuh", "no cores"), ("servers", "8gpuh", "no GPUs"),
    ("gpus", "5EUR", "USD (prices.json)"), ("gpus", "USD", "found 'USD'"), ("gpus", "2h,", "found ''"),
    ("gpus", "0USD", "1 s at least"), ("gpus", "0.00001 USD", "found '0.00001 USD'"),
    ("gpus", "-2gpuh", "found '-2gpuh'"),
])  # fmt: skip
def test_a_budget_that_cannot_be_told_in_time_is_refused(on: str, text: str, named: str) -> None:
    with pytest.raises(BadInput, match=re.escape(named)):
        PriceTable.model_validate(TABLE).seconds_for(text, ON[on])


def test_what_has_no_price_has_no_budget_of_money(ajet: Ajet, tool: FakeTool, home: Path) -> None:
    tool("nvidia-smi", gpus(2))
    home.mkdir(exist_ok=True)
    (home / "prices.json").write_text('{"currency": "USD", "cpu_hour": 0.5}')
    assert f"no price of {H100}" in ajet("study", "plan", TOPIC, "--budget", "5USD").refused()
    (home / "prices.json").write_text('{"currency": "USD", "gpu_hour": {"*": 2}}')
    ended = ajet("study", "plan", TOPIC, "--budget", "36USD")
    assert (ended.code, "--budget 36USD is 9 h" in ended.err) == (0, True)


def test_an_amended_budget_may_be_money(ajet: Ajet, locked: Synthetic, home: Path) -> None:
    (home / "prices.json").write_text(json.dumps({"currency": "USD", "cpu_hour": 1 / cores()}))
    said = ajet("study", "amend", "--budget", "2USD", "--reason", "more", "--json").data
    assert said["amendment"]["value"] == pytest.approx(7200)
