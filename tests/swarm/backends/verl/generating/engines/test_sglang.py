"""What the adapter makes of SGLang's words, and how tokens are drawn in its process. Nothing of SGLang is imported."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.local.generating.sampling import distribution
from swarm.backends.protocols import BackendError, Sampling
from swarm.backends.verl.generating.engines import drawing, loading, sglang
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
    with pytest.raises(BackendError, match=r"found none: .*docs/cluster\.md"):
        sglang.check()


def spec(folder: Path, **fields: Any) -> ReplicaSpec:
    config = {
        "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 128, "max_position_embeddings": 256,
        "vocab_size": 9,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").touch()
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
    """Says what is scripted for each request, and keeps what was asked and ended."""

    def __init__(self, script: Sequence[Sequence[dict[str, Any]]] = ()) -> None:
        self.script, self.idle = list(script), True
        self.asked: list[tuple[int, int]] = []
        self.aborted: list[str] = []
        self.rid_to_state: dict[str, Any] = {}

    async def generate_request(self, asked: tuple[int, int]) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(asked)
        for said in self.script.pop(0):
            yield said

    def abort_request(self, name: str) -> None:
        self.aborted.append(name)

    async def flush_cache(self, timeout_s: float) -> Any:
        return SimpleNamespace(success=self.idle, message="a request runs")


def streaming(manager: FakeManager) -> sglang.SglangStream:
    stream = object.__new__(sglang.SglangStream)
    stream._manager, stream._vocabulary = manager, 9
    stream._request = lambda name, ids, sampling, salt, seed, room: (len(ids), room)  # type: ignore[method-assign]
    return stream


def said(ids: Sequence[int], reason: dict[str, Any] | None = None) -> dict[str, Any]:
    places = [(-0.5, token, None) for token in ids]
    top = [[(-0.5, token, None), (-1.5, 8, None)] for token in ids]
    about = {"output_token_logprobs": places, "output_top_logprobs": top, "finish_reason": reason}
    return {"output_ids": list(ids[-1:]), "meta_info": about}


async def answer(manager: FakeManager, **rule: Any) -> list[int]:
    pieces = [piece async for piece in streaming(manager).stream("r", [3, 4], Sampling(6, **rule), "0")]
    assert all(len(piece.ids) == len(piece.logprobs) == len(piece.top) for piece in pieces)
    return [token for piece in pieces for token in piece.ids]


async def test_an_end_of_the_model_s_that_is_none_of_the_request_s_is_gone_on_from() -> None:
    ends = [{"type": "stop", "matched": token} for token in (7, 5)]
    manager = FakeManager([[said([1]), said([1, 7], ends[0])], [said([2, 5], ends[1])]])
    assert await answer(manager, stop_ids=(5,)) == [1, 7, 2, 5]
    assert manager.asked == [(2, 6), (4, 4)]


ENDED = {"type": "abort", "message": "Aborted", "status_code": None}


@pytest.mark.parametrize("reason", [{"type": "length", "length": 2}, ENDED])
async def test_what_is_full_or_ended_is_not_asked_for_again_and_no_token_comes_twice(reason: dict[str, Any]) -> None:
    """A request that is ended while it waits to go on is said to have its last id once more."""
    manager = FakeManager([[said([1]), said([1, 2]), said([1, 2], reason)]])
    assert await answer(manager) == [1, 2]


async def test_whoever_goes_away_early_ends_the_request() -> None:
    manager = FakeManager([[said([1]), said([1, 2])]])
    async with aclosing(streaming(manager).stream("r", [3], Sampling(9), "0")) as stream:
        await anext(stream)
        assert manager.aborted == []
    assert manager.aborted == ["r"]


async def test_what_sglang_refuses_and_numbers_that_are_none_are_said() -> None:
    refused = {"meta_info": {"finish_reason": {"type": "abort", "message": "too long", "status_code": 400}}}
    with pytest.raises(BackendError, match=": too long"):
        await answer(FakeManager([[refused]]))
    broken = said([1])
    broken["meta_info"]["output_token_logprobs"] = [(math.nan, 1, None)]
    with pytest.raises(BackendError, match="no finite numbers"):
        await answer(FakeManager([[broken]]))


async def test_new_weights_wait_until_nothing_runs_and_the_ended_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = FakeManager()
    stream = streaming(manager)
    ordered: list[str] = []

    async def load(what: str, path: str = "") -> list[str]:
        ordered.append(what)
        return []

    monkeypatch.setattr(stream, "_load", load)
    manager.rid_to_state = {"ended": SimpleNamespace(finished=True), "open": SimpleNamespace(finished=False)}
    await stream.begin_weights()
    assert (ordered, list(manager.rid_to_state)) == (["begin"], ["open"])
    manager.idle = False
    with pytest.raises(ReplicaDied, match=r"not idle .* a request runs"):
        await stream.begin_weights()
    assert ordered == ["begin"]


async def test_who_waits_for_an_answer_of_a_dead_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = FakeManager()
    process = SimpleNamespace(is_alive=lambda: False)
    manager._subprocess_watchdog = SimpleNamespace(_processes=[process])  # type: ignore[attr-defined]
    monkeypatch.setattr(sglang, "_LOOK_S", 0.01)
    with pytest.raises(ReplicaDied, match="ended before"):
        await streaming(manager)._watched(asyncio.Event().wait())


class Model(torch.nn.Linear):
    """Loads what it knows of a bucket, as SGLang's models do, and drops the rest."""

    def load_weights(self, weights: Sequence[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            if name in (known := dict(self.named_parameters())):
                known[name].data.copy_(weight)


def told(model: Model, folder: Path, what: str, path: str = "") -> list[str]:
    folder.mkdir()
    loading.command(model, loading.asked(what, folder, path))
    return loading.answered(folder, 1)


def test_a_weight_that_did_not_come_is_named_whatever_the_bucket_called_it(tmp_path: Path) -> None:
    model, bucket = Model(2, 2), str(tmp_path / "bucket.pt")
    torch.save({"weight": torch.ones(2, 2), "prefixed.bias": torch.ones(2)}, bucket)
    assert told(model, tmp_path / "1", "begin") == told(model, tmp_path / "2", "load", bucket) == []
    assert told(model, tmp_path / "3", "finish") == ["bias"]
    torch.save({"bias": torch.ones(2)}, bucket)
    told(model, tmp_path / "4", "load", bucket)
    assert told(model, tmp_path / "5", "finish") == []
    assert all((weight == 1).all() for weight in model.parameters())


def test_what_fails_in_its_process_is_told_and_so_is_one_that_did_not_answer(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(3, 3)}, tmp_path / "bucket.pt")
    with pytest.raises(BackendError, match=r"weights: RuntimeError: .*size"):
        told(Model(2, 2), tmp_path / "1", "load", str(tmp_path / "bucket.pt"))
    (tmp_path / "2").mkdir()
    with pytest.raises(BackendError, match=r"expected 2 processes .* 0 answered"):
        loading.answered(tmp_path / "2", 2)


RULES = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.7]), "top_p": st.sampled_from([1.0, 0.7, 0.2]),
        "top_k": st.sampled_from([0, 1, 3]), "seed": st.integers(0, 1 << 62), "top_logprobs": st.integers(0, 5),
    }
)  # fmt: skip


@given(rules=st.lists(RULES, min_size=1, max_size=4), place=st.integers(0, 1 << 20), seed=st.integers(0, 99))
def test_a_draw_and_its_logprob_are_its_request_s_own(rules: list[dict[str, Any]], place: int, seed: int) -> None:
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


def test_a_row_of_no_numbers_is_nothing_to_the_others() -> None:
    logits = torch.zeros(3, 4)
    logits[1, 2], logits[2, 0] = torch.nan, torch.inf
    rule = {"temperature": 1.0, "top_p": 0.9, "top_k": 2, "seed": 1, "top_logprobs": 1}
    _, logprobs, _ = drawing.drawn(logits, [rule] * 3, [0, 1, 2])
    assert logprobs.isnan().tolist() == [False, True, True]
