"""What the adapter makes of SGLang's words, and how tokens are drawn in its process. Nothing of SGLang is imported."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from swarm.backends.local.generating.sampling import distribution
from swarm.backends.protocols import BackendError, Sampling
from swarm.backends.verl.generating.engines import drawing, model_folder, sglang
from swarm.backends.verl.generating.engines.spec import ReplicaDied, ReplicaSpec


def test_the_known_one_is_named_and_others_and_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang, "version", lambda name: "0.5.12")
    assert sglang.check() == "SGLang 0.5.12"
    monkeypatch.setattr(sglang, "version", lambda name: "0.5.23")
    with pytest.raises(BackendError, match=r"expected SGLang 0\.5\.12.*found 0\.5\.23"):
        sglang.check()

    def none(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(sglang, "version", none)
    with pytest.raises(BackendError, match=r"found none: install it as docs/cluster\.md says, or leave"):
        sglang.check()


def spec(folder: Path, **fields: Any) -> ReplicaSpec:
    config = {
        "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 128, "max_position_embeddings": 256,
        "vocab_size": 9,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"a": torch.ones(1), "b": torch.ones(1)}, folder / "model.safetensors")
    return ReplicaSpec(**{"folder": str(folder), "max_context": 96, "max_concurrency": 4, "kv_cache_bytes": 1 << 20,
                          "engine": "sglang", **fields})  # fmt: skip


def test_what_fits_no_cache_and_no_position_is_refused_before_sglang_is_imported(tmp_path: Path) -> None:
    for fields, said in (
        ({"max_context": 300}, "max_context of at most 256"),
        ({"kv_cache_bytes": 1 << 16}, "kv_cache_bytes of at least 212992, .* found 65536"),
    ):
        with pytest.raises(BackendError, match=said):
            sglang.require_servable(spec(tmp_path, **fields))


def test_a_cache_holds_what_advances_at_once_within_its_limit(tmp_path: Path) -> None:
    of_a_token = 2 * 2 * 4 * 32 * 4
    assert sglang.cached_tokens(spec(tmp_path, kv_cache_bytes=1 << 30)) == 4 * (96 + sglang.SPARE)
    assert sglang.cached_tokens(spec(tmp_path, kv_cache_bytes=1 << 19)) == (1 << 19) // of_a_token


class FakeManager:
    """Says what is scripted for each request, and keeps how long the prompts were."""

    def __init__(self, script: Sequence[Sequence[dict[str, Any]]]) -> None:
        self.script, self.idle = list(script), True
        self.asked: list[tuple[int, int]] = []

    async def generate_request(self, asked: tuple[int, int]) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(asked)
        for said in self.script.pop(0):
            yield said

    async def flush_cache(self, timeout_s: float) -> Any:
        return type("Answer", (), {"success": self.idle, "message": "a request runs"})


def streaming(manager: FakeManager) -> sglang.SglangStream:
    stream = object.__new__(sglang.SglangStream)
    stream._manager, stream._vocabulary, stream._loaded = manager, 9, {"a"}
    stream._request = lambda name, ids, sampling, salt, seed, room: (len(ids), room)  # type: ignore[method-assign]
    return stream


def said(ids: Sequence[int], reason: dict[str, Any] | None = None) -> dict[str, Any]:
    places = [(-0.5, token, None) for token in ids]
    top = [[(-0.5, token, None), (-1.5, 8, None)] for token in ids]
    about = {"output_token_logprobs": places, "output_top_logprobs": top, "finish_reason": reason}
    return {"output_ids": list(ids), "meta_info": about}


async def test_an_end_of_the_model_s_that_is_none_of_the_request_s_is_gone_on_from() -> None:
    manager = FakeManager(
        [[said([1]), said([7], {"type": "stop", "matched": 7})], [said([2, 5], {"type": "stop", "matched": 5})]]
    )
    pieces = [piece async for piece in streaming(manager).stream("r", [3, 4], Sampling(6, stop_ids=(5,)), "0")]
    assert [token for piece in pieces for token in piece.ids] == [1, 7, 2, 5]
    assert manager.asked == [(2, 6), (4, 4)]
    assert pieces[0].logprobs == (-0.5,)
    assert pieces[0].top == (((1, -0.5), (8, -1.5)),)


@pytest.mark.parametrize("reason", [{"type": "length", "length": 2}, {"type": "abort", "message": "told to"}])
async def test_what_is_full_or_ended_is_not_asked_for_again(reason: dict[str, Any]) -> None:
    manager = FakeManager([[said([1, 2]), said([], reason)]])
    pieces = [piece async for piece in streaming(manager).stream("r", [3], Sampling(9), "0")]
    assert [token for piece in pieces for token in piece.ids] == [1, 2]


async def test_weights_that_did_not_come_are_named_and_none_come_while_something_runs(tmp_path: Path) -> None:
    manager = FakeManager([])
    stream = streaming(manager)
    stream._folder = Path(spec(tmp_path).folder)
    assert await stream.finish_weights() == ["b"]
    await stream.begin_weights()
    assert await stream.finish_weights() == ["a", "b"]
    manager.idle = False
    with pytest.raises(ReplicaDied, match=r"not idle .* a request runs"):
        await stream.begin_weights()


def test_names_of_weights_are_those_of_all_files_of_either_kind(tmp_path: Path) -> None:
    torch.save({"c": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    assert model_folder.weight_names(tmp_path) == {"c"}
    save_file({"a": torch.ones(1)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(1)}, tmp_path / "two.safetensors")
    assert model_folder.weight_names(tmp_path) == {"a", "b"}


RULES = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.7]),
        "top_p": st.sampled_from([1.0, 0.7, 0.2]),
        "top_k": st.sampled_from([0, 1, 3]),
        "seed": st.integers(0, 1 << 62),
        "top_logprobs": st.integers(0, 5),
    }
)


@given(rules=st.lists(RULES, min_size=1, max_size=4), place=st.integers(0, 1 << 20), seed=st.integers(0, 99))
def test_a_draw_is_its_request_s_own_and_its_logprob_that_of_what_was_cut(
    rules: list[dict[str, Any]], place: int, seed: int
) -> None:
    logits = torch.randn(len(rules), 11, generator=torch.Generator().manual_seed(seed))
    ids, logprobs, top = drawing.drawn(logits, rules, [place + number for number in range(len(rules))])
    asked = [Sampling(1, rule["temperature"], rule["top_p"], rule["top_k"]) for rule in rules]
    expected = distribution(logits, asked)
    assert torch.equal(logprobs, expected.gather(-1, ids[:, None])[:, 0])
    assert (logprobs > -torch.inf).all()
    assert all(len(found) <= rule["top_logprobs"] for found, rule in zip(top, rules, strict=True))
    for number, rule in enumerate(rules):
        alone, _, _ = drawing.drawn(logits[number : number + 1], [rule], [place + number])
        assert alone.item() == ids[number]


def test_uniform_numbers_are_uniform_enough_and_none_is_one() -> None:
    found = torch.tensor([drawing.uniform_of(seed, place) for seed in range(50) for place in range(40)])
    assert 0 <= found.min() < 0.01
    assert 0.99 < found.max() < 1
    assert abs(found.mean() - 0.5) < 0.03
