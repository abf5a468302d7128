"""A model from a folder that imitates: better at unseen demonstrations, served like any other, made once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import transformers

from swarm.backends import tiny_model as tiny
from swarm.backends.local import warm_start as imitation
from swarm.backends.local.micro_batch import split_rows
from swarm.backends.local.warm_start import _sum_loss, demonstration_rows, ensure_warm_start
from swarm.backends.tiny_model import build_tokenizer, encode_plays, said_by_assistant
from swarm.environments import Environment, Task, get_environment
from swarm.environments.base import Split
from swarm.errors import InvalidRequest
from swarm.job import Job, PathModel
from swarm.rendering.messages import BackendError
from swarm.rendering.renderer import HFRenderer, load_renderer
from swarm.timelines.node import TrainRow
from tests.swarm.backends.local.models import TEMPLATE, running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, tokenizer = tmp_path_factory.mktemp("llama"), tiny._tokenizer(get_environment("market"))
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.LlamaForCausalLM(config).save_pretrained(made)
    tokenizer.save_pretrained(made)
    return made


def job(folder: Path, **fields: object) -> Job:
    model = PathModel(path=str(folder), warm_start_steps=12)
    return Job(**{"environment": "market", "model": model, "device": "cpu", **fields})  # type: ignore[arg-type]


def held_out(folder: Path) -> Sequence[TrainRow]:
    market, renderer, rng = get_environment("market"), load_renderer(folder), random.Random(1)
    return [
        row
        for task in market.tasks("search")[:40]
        for row in demonstration_rows(renderer, market.demonstrate(task, rng))
    ]


@pytest.mark.slow
async def test_it_is_better_at_unseen_demonstrations_and_served_like_any_other(folder: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    made = ensure_warm_start(job(folder), tmp_path, lambda done, of: seen.append((done, of)))
    rows = held_out(folder)
    before, after = (
        mean_loss(transformers.AutoModelForCausalLM.from_pretrained(path), rows) for path in (folder, made)
    )
    assert after < before
    assert seen == [(step, 12) for step in range(1, 13)]
    assert (made / "chat_template.jinja").read_bytes() == (folder / "chat_template.jinja").read_bytes()
    async with running(job(folder), tmp_path) as backend:
        assert backend.model_name == folder.name
        loaded = mean_loss(backend.policy.model, rows)
    assert loaded == pytest.approx(after, abs=1e-5)
    written = (made / "model.safetensors").stat().st_mtime_ns
    assert ensure_warm_start(job(folder), tmp_path) == made
    assert (made / "model.safetensors").stat().st_mtime_ns == written


def test_the_loss_does_not_depend_on_how_rows_are_cut_for_memory(folder: Path) -> None:
    model, rows = transformers.AutoModelForCausalLM.from_pretrained(folder), held_out(folder)
    assert mean_loss(model, rows, 1) == pytest.approx(mean_loss(model, rows), rel=1e-5)


@torch.no_grad()
def mean_loss(model: Any, rows: Sequence[TrainRow], tokens: int = imitation.TOKENS_AT_ONCE) -> float:
    parts = split_rows(rows, tokens)
    return sum(float(_sum_loss(model, part)) for part in parts) / sum(sum(row.sampled) for row in rows)


class Mute(Environment):
    name: ClassVar[str] = "mute"
    title: ClassVar[str] = "mute"
    measures: ClassVar[str] = "nothing"

    def tasks(self, split: Split) -> tuple[Task, ...]:
        return (Task(split),)


@pytest.mark.parametrize(
    ("fields", "said"), [({"environment": "mute"}, "mute for warm_start_steps 12"),
                         ({"max_context": 64}, "within max_context 64.*raise max_context")],
)  # fmt: skip
def test_without_demonstrations_that_fit_it_is_refused(
    fields: dict[str, Any], said: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imitation, "get_environment", lambda name: Mute() if name == "mute" else get_environment(name))
    with pytest.raises((BackendError, InvalidRequest), match=said):
        ensure_warm_start(job(folder, **fields), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_process_makes_it_says_how_far_and_refuses_bad_input_in_a_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(model: Path) -> int:
        return imitation.main(["--job", job(model).model_dump_json(), "--models", str(tmp_path / "models")])

    assert run(folder) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "warm start 1/12"
    assert (Path(printed[-1]) / "model.safetensors").is_file()
    assert run(tmp_path / "nothing") == 2
    said = capsys.readouterr().err
    assert (str(tmp_path / "nothing") in said, said.count("\n")) == (True, 1)


@pytest.mark.parametrize("name", ["guess", "arith", "market"])
def test_a_tiny_model_imitates_what_a_server_would_show_and_sample(name: str) -> None:
    environment, rng = get_environment(name), random.Random(0)
    tokenizer = tiny._tokenizer(environment)
    renderer = HFRenderer(tokenizer)
    for task in environment.tasks("train")[::40]:
        play = environment.demonstrate(task, rng)
        (row,), (ids,) = demonstration_rows(renderer, play), encode_plays(tokenizer, [play])
        assert list(row.ids) == ids[: len(row.ids)]
        said = said_by_assistant(tokenizer, ids)
        assert (said[: len(row.ids)], any(said[len(row.ids) :])) == (list(map(bool, row.sampled)), False)


@pytest.mark.parametrize(
    ("tools", "missing"),
    [("", "the tool price"), ("{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}", "call of price")],
)
def test_a_template_that_knows_no_tools_or_writes_no_calls_is_refused(tools: str, missing: str) -> None:
    market, tokenizer = get_environment("market"), build_tokenizer([], 2048)
    tokenizer.chat_template = tools + TEMPLATE
    task = market.tasks("train")[0]
    play = next(p for seed in range(99) if len((p := market.demonstrate(task, random.Random(seed))).messages) > 2)
    with pytest.raises(BackendError, match=missing):
        demonstration_rows(HFRenderer(tokenizer), play)
