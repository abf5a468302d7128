"""A check loads a model as a server does and measures it; what a server would refuse is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.local import model_check, policy
from swarm.backends.local.fused_forward import CannotFuse
from swarm.backends.local.model_check import main
from swarm.job import Job, PathModel
from swarm.models import ModelCheck, conditions
from tests.swarm.backends.local.models import TEMPLATE, save_folder


@pytest.fixture(autouse=True)
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads the figures here, so that one round is enough."""
    monkeypatch.setattr(model_check, "_LONG_ENOUGH_S", 0.0)


def job(folder: Path, **fields: Any) -> Job:
    return Job(**{"model": PathModel(path=str(folder)), "max_context": 64, "device": "cpu", **fields})


def checked(job: Job, out: Path) -> ModelCheck:
    assert main(["--job", job.model_dump_json(), "--folder-hash", "abc", "--out", str(out)]) == 0
    return ModelCheck.model_validate_json(out.read_bytes())


@pytest.mark.slow
def test_a_model_served_by_the_fast_ways_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = job(save_folder(tmp_path / "m"))
    found = checked(asked, tmp_path / "out.json")
    assert (found.fused, found.fused_lost, found.trees, found.trees_lost) == (True, None, True, None)
    assert (found.architecture, found.positions, found.folder_hash) == ("llama", 256, "abc")
    assert found.trained_parameters == found.parameters > 1000
    assert found.logprob_gap < 1e-4 < found.logprob_tolerance
    assert found.conditions == conditions(asked)
    assert found.fed_per_sampled_token < 1.5, "prompts are fed once for a group"
    assert found.busy > 0
    assert 0 < found.loaded_bytes <= found.peak_bytes
    assert found.fits_at_once == 64 < found.memory_holds
    for seconds in (
        found.seconds_per_prompt_token, found.seconds_per_generated_token, found.seconds_per_learned_token
    ):  # fmt: skip
        assert 0 < seconds < 1
    assert len(capsys.readouterr().out.splitlines()) == 4, "a line as each part begins"


@pytest.mark.slow
def test_what_is_lost_is_said_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unfused(*_: object) -> None:
        raise CannotFuse("nobody wrote one")

    monkeypatch.setattr(policy, "fused_forward", unfused)
    found = checked(job(save_folder(tmp_path / "m"), merging="linear"), tmp_path / "out.json")
    assert found.fed_per_sampled_token > 2.5, "prompts are fed once for an episode"
    assert (found.fused, found.fused_lost) == (False, "nobody wrote one")
    assert "`linear`" in str(found.trees_lost)


@pytest.mark.slow
def test_an_adapter_is_told_from_the_weights_below_it(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "m")
    whole, adapted = (checked(job(folder, lora_rank=rank), tmp_path / "out.json") for rank in (0, 2))
    assert adapted.parameters == whole.parameters > adapted.trained_parameters > 0
    assert adapted.fused == (adapted.fused_lost is None)


@pytest.mark.slow
def test_a_bound_on_the_cache_bounds_what_fits(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "m")
    free = checked(job(folder), tmp_path / "out.json")
    bytes_of_one = free.cache_bytes_per_token * 65
    bounded = checked(job(folder, kv_cache_bytes=max(1 << 16, 3 * bytes_of_one)), tmp_path / "out.json")
    assert bounded.fits_at_once == max(1 << 16, 3 * bytes_of_one) // bytes_of_one


@pytest.mark.parametrize(
    ("template", "tools", "thinking"),
    [
        (TEMPLATE, "ignored", False),
        (TEMPLATE + "{% if tools %}{{ raise_exception('no tools') }}{% endif %}", "refused", False),
        ("{% if tools %}{{ tools | tojson }} <tool_call> <think>{% endif %}" + TEMPLATE, "rendered", True),
    ],
)
@pytest.mark.slow
def test_what_a_template_does_with_tools_is_said(tmp_path: Path, template: str, tools: str, thinking: bool) -> None:
    folder = save_folder(tmp_path / "m")
    (folder / "chat_template.jinja").write_text(template)
    found = checked(job(folder), tmp_path / "out.json").template
    assert (found.tools, found.thinking, found.system) == (tools, thinking, True)
    assert ("no tools" in str(found.tools_refusal)) == (tools == "refused")


def test_what_a_server_would_refuse_is_one_line_and_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_folder(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 64}))
    out = tmp_path / "out.json"
    capsys.readouterr()  # how far saving the folder was
    for asked in (job(folder), job(folder, max_context=9999), job(tmp_path / "nothing")):
        assert main(["--job", asked.model_dump_json(), "--folder-hash", "abc", "--out", str(out)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert not out.exists()
