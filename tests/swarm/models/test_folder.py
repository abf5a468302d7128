"""A folder that cannot be a model is refused by one line that says what was found and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swarm.errors import InvalidRequest
from swarm.models import model_place, require_model_folder
from tests.golden import assert_golden
from tests.swarm.models.folders import weights_file, whole_folder


def refusal(path: str | Path) -> str:
    with pytest.raises(InvalidRequest) as refused:
        require_model_folder(path)
    assert "\n" not in refused.value.message
    return refused.value.message


def test_a_bare_name_is_a_folder_of_the_models_but_one_that_is_here_alone_and_all_else_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "models"
    whole_folder(models / "mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model_place("mine", models) == models / "mine"
    for path in ("other", "some/mine", "./mine", str(tmp_path / "mine"), ".", "..", ""):
        assert model_place(path, models) == Path(path)
    assert model_place("gone", models) == models / "gone", "where it is missed is said"


def test_a_missing_folder_is_told_as_missing_and_a_name_of_a_hub_with_the_command_that_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    require_model_folder(str(whole_folder(tmp_path / "models" / "mine")))
    for missing in (tmp_path / "nothing", "models/mien"):
        assert "no such folder" in refusal(missing)
    assert_golden(refusal("Qwen/Qwen3-0.6B"))


@pytest.mark.parametrize(("name", "words"), [("model.safetensors", "the folder it lies in"), ("m.gguf", "GGUF is not")])
def test_a_file_in_place_of_a_folder_is_told_as_one(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / name).write_bytes(b"")
    said = refusal(tmp_path / name)
    assert "found the file" in said
    assert words in said


def test_the_model_below_a_hub_s_cache_is_pointed_at(tmp_path: Path) -> None:
    inner = whole_folder(tmp_path / "models--a--b" / "snapshots" / "abc")
    assert f"give {inner}" in refusal(tmp_path / "models--a--b")


Spoil = Callable[[Path], object]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda m: (m / "config.json").unlink(), "holds no config.json"),
        (lambda m: (m / "config.json").rename(m / "adapter_config.json"), "an adapter alone"),
        (lambda m: (m / "config.json").write_text("{"), "expected JSON in"),
        (lambda m: (m / "config.json").write_text("[]"), "expected a JSON object"),
        (lambda m: (m / "config.json").write_text("{}"), "name a model_type"),
        (lambda m: (m / "model.safetensors").unlink(), "holds no *.safetensors: save"),
        (lambda m: (m / "model.safetensors").rename(m / "pytorch_model.bin"), "but pytorch_model.bin, which is not"),
        (lambda m: (m / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n"), "LFS pointer"),
        (lambda m: (m / "model.safetensors").write_bytes(b"nonsense and more of it"), "no file of safetensors"),
        (lambda m: (m / "model.safetensors").write_bytes(b""), "no file of safetensors"),
        (lambda m: (m / "tokenizer.json").unlink(), "holds no tokenizer.json"),
        (lambda m: (m / "chat_template.jinja").unlink(), "no chat template"),
        (lambda m: (m / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"w": "model.safetensors", "v": "model-2.safetensors"}})), "lacks 1 of"),
    ],
)  # fmt: skip
def test_what_is_missing_or_damaged_is_named(tmp_path: Path, spoil: Spoil, words: str) -> None:
    folder = whole_folder(tmp_path / "m")
    spoil(folder)
    assert words in refusal(folder)


@pytest.mark.parametrize("kept", [8, 20, -1, None])
def test_weights_that_were_not_copied_whole_or_go_on_are_seen_without_reading_them(
    tmp_path: Path, kept: int | None
) -> None:
    file = whole_folder(tmp_path / "m") / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole + b"\0" if kept is None else whole[:kept])
    assert "not copied whole" in refusal(tmp_path / "m")


def test_a_template_in_the_tokenizer_s_settings_or_among_several_is_one(tmp_path: Path) -> None:
    folder = whole_folder(tmp_path / "m")
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    require_model_folder(folder)
    (folder / "tokenizer_config.json").unlink()
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ messages }}")
    require_model_folder(folder)


def test_weights_in_several_files_pass(tmp_path: Path) -> None:
    folder = whole_folder(tmp_path / "m")
    weights_file(folder / "model-2.safetensors", 7)
    names = {"w": "model.safetensors", "v": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    require_model_folder(folder)
