"""The estimator `gae`: a critic, held to transformers' own and to verl's functions, fails and goes on."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from swarm.backends.local import checkpoint
from swarm.backends.local.model_files import write_model
from swarm.backends.protocols import Batch, NotFinite, TrainEpisode
from swarm.backends.verl.cluster import run_checks
from swarm.job import Job
from swarm.rendering.messages import BackendError
from swarm.timelines import Drift, Node, linear_rows, unmerged_rows
from tests.lazily import lazy
from tests.swarm.backends.local.models import make_batch, make_tokenizer
from tests.swarm.backends.verl.actors import exported
from tests.swarm.backends.verl.learning import support
from tests.swarm.backends.verl.learning.support import Ranks

core_algos = lazy("verl.trainer.ppo.core_algos")
transformers = lazy("transformers")
adapter = lazy("swarm.backends.verl.adapter")

pytestmark = pytest.mark.timeout(240)
_TOLD = {
    *(f"critic/{name}" for name in ("vf_loss", "vf_clipfrac", "vpred_mean", "vf_explained_var", "grad_norm", "lr")),
    *(f"critic/{name}/{each}" for name in ("values", "returns", "advantages") for each in ("mean", "max", "min")),
    *(f"timing_s/{name}" for name in ("values", "update_critic", "update_actor")),
}


def _job(own: Mapping[str, Any] | None = None, names: Mapping[str, str] | None = None, **fields: Any) -> Job:
    verl = {"advantage_estimator": "gae", "critic": {"learning_rate": 1e-3, **(own or {})}, **(names or {})}
    return Job(**{"backend": "verl", "learning_rate": 1e-3, "verl": verl, **fields})


def _state(rank: Any) -> dict[str, Tensor]:
    state = rank._critic.module.state_dict()
    return {name: getattr(value, "full_tensor", lambda value=value: value)() for name, value in state.items()}


def _on_ranks(learner: Any, work: Any) -> list[Any]:
    import ray

    found: list[Any] = ray.get([each.__ray_call__.remote(work) for each in learner.group._actors], timeout=60)
    return found


def _everything(learner: Any) -> list[Any]:
    return _on_ranks(learner, lambda rank: rank._sets())


def _bit_equal(one: list[Any], other: list[Any]) -> bool:
    return all(
        ours.keys() == theirs.keys()
        and all(ours[name].keys() == theirs[name].keys() for name in ours)
        and all(torch.equal(ours[name][key], theirs[name][key]) for name in ours for key in ours[name])
        for ours, theirs in zip(one, other, strict=True)
    )


def _compared(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.split("/")[0] not in ("timing_s", "tokens")}


def _rewarded(batch: Batch) -> Batch:
    episodes = [replace(each, reward=i * 7 % 5 / 4) for i, each in enumerate(batch.episodes)]
    return replace(batch, episodes=(replace(episodes[0], weight=3.0), *episodes[1:]))


@pytest.mark.parametrize("parts", [1, 3])
def test_the_loss_and_its_gradient_are_verl_s_however_it_is_cut(parts: int) -> None:
    pytest.importorskip("verl")
    from swarm.backends.verl.critic import ValueLoss, _value_metrics
    from swarm.backends.verl.learner import RowPartition
    from tests.swarm.backends.verl.learning.test_contract import make_rows

    made, draws = _job({"clip_range": 0.3}), torch.Generator().manual_seed(0)
    rows, advantages, weights = make_rows(1, made)
    table, counts = torch.randn(11, generator=draws).requires_grad_(), [len(row.targets) for row in rows]
    before, returns = (torch.randn(sum(counts), generator=draws) for _ in range(2))
    for row, own, due in zip(rows, before.split(counts), returns.split(counts), strict=True):
        row.values, row.returns = own, due
    present = table[torch.cat([row.ids[row.places] for row in rows])]
    shares = torch.cat([torch.full(row.targets.shape, weights[row.episode]) for row in rows])
    expected = core_algos.compute_value_loss(present, returns, before, shares, 0.3, "token-sum")[0]
    _, clipped = core_algos.compute_value_loss(present, returns, before, torch.ones_like(shares), 0.3, "token-sum")
    loss, gradient = ValueLoss(made), torch.zeros(11)
    for batch in RowPartition(rows, parts).batches(advantages, weights):
        batch.set_non_tensor("dp_size", 1)
        ids = batch["input_ids"]
        values = torch.nested.nested_tensor_from_jagged(table[ids.values()], ids.offsets())
        gradient += torch.autograd.grad(loss({"values": values}, batch)[0], table)[0]
    assert torch.allclose(gradient, torch.autograd.grad(expected, table)[0], atol=1e-5)
    told = loss.sums.metrics(1)
    assert told["critic/vf_loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert told["critic/vpred_mean"] == pytest.approx(present.mean().item(), abs=1e-5)
    assert told["critic/vf_clipfrac"] == pytest.approx(clipped.item(), abs=1e-5)
    explained = 1 - (returns - before).var() / (returns.var() + 1e-5)
    found = _value_metrics(before.split(counts), returns.split(counts))
    assert found["critic/vf_explained_var"] == pytest.approx(explained.item(), rel=1e-4)
    assert found["critic/values/max"] == before.max().item()


def test_an_estimate_by_hand() -> None:
    """Two episodes, whose tokens lie in rows that take turns: V 0.5, 0.25, 0.1 and R 1; V 0.2, 0.4 and R 0."""
    pytest.importorskip("verl")
    found = adapter.estimate_gae(
        _job({"discount": 0.9, "gae_lambda": 0.5}), [0.0, 1.0, 9.0], torch.tensor([0.2, 0.5, 0.25, 0.4, 0.1]),
        torch.tensor([0, 1, 1, 0, 1]),
    )  # fmt: skip
    # the last: R - V; before it: discount V' - V + discount lambda A'
    third = 1 - 0.1
    second = 0.9 * 0.1 - 0.25 + 0.45 * third
    first = 0.9 * 0.25 - 0.5 + 0.45 * second
    lost = 0 - 0.4
    before = 0.9 * 0.4 - 0.2 + 0.45 * lost
    plain = torch.tensor([before, first, second, lost, third])
    assert torch.allclose(found[1], plain + torch.tensor([0.2, 0.5, 0.25, 0.4, 0.1]), atol=1e-6)
    assert torch.allclose(found[0], (plain - plain.mean()) / plain.std(), atol=1e-5)


def _interrupted() -> tuple[Node, ...]:
    def call(index: int, parent: Node | None, context: tuple[int, ...]) -> Node:
        sampled = (20 + index, 30 + index)
        return Node(index, parent, context, sampled, (-3.0, -3.0), (0, 0), "", Drift.START)

    first = call(0, None, (5, 6, 7))
    return first, call(1, None, (8, 9)), call(2, first, (10,))


def test_tokens_follow_one_another_as_their_calls_did_however_they_are_merged(ranks: Ranks, llama: Path) -> None:
    learner = ranks.learner(llama, _job({"discount": 0.9, "gae_lambda": 0.5}), 2)
    nodes = _interrupted()
    told = []
    for make in (linear_rows, unmerged_rows):
        episodes = (
            TrainEpisode("a", "g", 1.0, make(nodes, by_call=True)),
            TrainEpisode("b", "g", 0.0, make(nodes[:1], by_call=True)),
        )
        update = learner._begin(Batch(0, episodes))
        learner._fill_logprobs(update)
        told.append(
            {
                (row.episode, call, each): found
                for row in update.all_rows
                if row.calls is not None and row.advantages is not None and row.returns is not None
                for call, *found, each in zip(
                    row.calls.tolist(), row.advantages.tolist(), row.returns.tolist(), row.targets.tolist(), strict=True
                )
            }
        )
    merged, apart = told
    assert len(merged) == 8
    assert [row.calls.tolist() for row in learner._begin(Batch(0, episodes[:1])).all_rows] == [[0, 0], [1, 1], [2, 2]]
    assert {key: pytest.approx(value, abs=1e-5) for key, value in apart.items()} == merged


def test_the_clip_holds_a_value_near_what_it_was() -> None:
    pytest.importorskip("verl")
    present, before = torch.tensor([0.3, 0.9], requires_grad=True), torch.tensor([0.0, 0.0])
    loss, clipped = adapter.value_loss(_job(), present, before, torch.tensor([1.0, 1.0]), torch.tensor([0.25, 2.0]))
    assert clipped == 0.5
    assert loss.item() == pytest.approx(0.5 * (0.25 * 0.7**2 + 2.0 * 0.5**2))
    assert torch.autograd.grad(loss, present)[0].tolist() == pytest.approx([-0.25 * 0.7, 0.0])


def test_it_begins_the_same_on_any_number_of_ranks_and_by_the_seed(ranks: Ranks, llama: Path, qwen2: Path) -> None:
    for folder in (llama, qwen2):
        one, two, other = (
            _on_ranks(ranks.learner(folder, _job(seed=seed), world), _state)[0]
            for world, seed in ((1, 0), (2, 0), (1, 1))
        )
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)
        assert {key for key in one if not torch.equal(one[key], other[key])} == {"score.weight"}
        assert one["score.weight"].abs().max() > 0


@pytest.mark.parametrize(
    "names", [{}, {"policy_loss": "gspo", "rollout_correction": "decoupled_token_icepop"}], ids=["plain", "named"]
)
def test_several_steps_learn_the_same_on_two_ranks_cut_small(names: dict[str, str], ranks: Ranks, llama: Path) -> None:
    fields: dict[str, Any] = {"epochs": 2, "minibatches": 2, "max_grad_norm": 0.5, "weight_decay": 0.1}
    own = {"learning_rate": 5e-3, "clip_range": 0.02}
    whole = _job(own, names, **fields)
    cut = _job(own, names, micro_batch_tokens=32, gradient_checkpointing=True, **fields)
    policy, _ = support.local(whole)
    batch = _rewarded(make_batch(policy, drift=0.05))
    one, two = ranks.learner(llama, whole, 1), ranks.learner(llama, cut, 2)
    expected, found = one.update(batch), two.update(batch)
    assert expected["critic/vf_clipfrac"] > 0.1
    assert set(found) == set(expected)
    for name in (*_TOLD - {each for each in _TOLD if each.startswith("timing")}, "actor/pg_loss", "actor/grad_norm"):
        assert found[name] == pytest.approx(expected[name], rel=1e-3, abs=10 * support.CLOSE), name
    state, other = (_on_ranks(each, _state)[0] for each in (one, two))
    gaps = torch.cat([(state[name] - other[name]).abs().flatten() for name in state])
    assert (gaps > 10 * support.CLOSE).double().mean().item() < 1e-3


def test_an_adapter_is_the_policy_s_alone(ranks: Ranks, llama: Path) -> None:
    made = _job(lora_rank=4, kl_coef=0.1)
    policy, _ = support.local(made)
    learner = ranks.learner(llama, made, 1)
    before = _everything(learner)[0]
    learner.update(_rewarded(make_batch(policy)))
    after = _everything(learner)[0]
    assert all(".lora_" in name for name in after[checkpoint.MODEL])
    assert not any(".lora_" in name for name in after[checkpoint.CRITIC])
    moved = [
        name
        for name, each in after[checkpoint.CRITIC].items()
        if not torch.equal(each, before[checkpoint.CRITIC][name])
    ]
    assert set(moved) == set(after[checkpoint.CRITIC])


def _broken(learner: Any, where: str) -> None:
    called = []
    if where == "begin":
        _refusing(learner.group, where)
        return
    work = getattr(learner, where)

    def fails(*arguments: Any, **named: Any) -> Any:
        called.append(where)
        if len(called) == 2:
            setattr(learner, where, work)
            raise NotFinite("made up")
        return work(*arguments, **named)

    setattr(learner, where, fails)


def _refusing(group: Any, method: str) -> None:
    call = group.call_all

    def refused(name: str, *arguments: Any, **named: Any) -> Any:
        if name != method:
            return call(name, *arguments, **named)
        group.call_all = call
        raise BackendError("made up")

    group.call_all = refused


@pytest.mark.parametrize("where", ["begin", "_gradient", "_step", "_value_gradient", "_value_step"])
def test_an_update_that_fails_leaves_both_as_they_were(where: str, ranks: Ranks, llama: Path) -> None:
    made = _job(minibatches=2)
    policy, _ = support.local(made)
    batches = [_rewarded(make_batch(policy, seed=seed, drift=0.05)) for seed in range(2)]
    straight = ranks.learner(llama, made, 2)
    expected = [_compared(straight.update(batch)) for batch in batches]
    weights = _everything(straight)
    tried = ranks.learner(llama, made, 2)
    assert _compared(tried.update(batches[0])) == expected[0]
    before = _everything(tried)
    _broken(tried, where)
    with pytest.raises(BackendError, match="made up"):
        tried.update(batches[1])
    assert tried.version == 1
    assert _bit_equal(_everything(tried), before)
    assert _compared(tried.update(batches[1])) == expected[1]
    assert _bit_equal(_everything(tried), weights)


@pytest.mark.parametrize(("wrote", "reads"), [(2, 1), (1, 2)])
def test_another_number_of_ranks_goes_on_from_a_checkpoint_and_the_policy_alone_is_made_a_folder(
    wrote: int, reads: int, ranks: Ranks, llama: Path, tmp_path: Path
) -> None:
    made = _job(model={"kind": "path", "path": str(llama)})
    policy, _ = support.local(made)
    batches = [_rewarded(make_batch(policy, seed=seed, drift=0.05)) for seed in range(2)]
    first = ranks.learner(llama, made, wrote)
    first.update(batches[0])
    first.save(tmp_path / "c")
    saved, critics = exported(first), _on_ranks(first, _state)[0]
    assert not any("score" in name for name in saved)
    other = ranks.learner(llama, made, reads)
    other.load(tmp_path / "c")
    found = _on_ranks(other, _state)[0]
    assert all(torch.equal(found[name], critics[name]) for name in critics)
    (tmp_path / "out").mkdir()
    write_model(made, tmp_path, tmp_path / "c", tmp_path / "out", apart=False, say=lambda _: None)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert set(loaded) == set(saved)
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    metrics = (_compared(first.update(batches[1])), _compared(other.update(batches[1])))
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-3, abs=10 * support.CLOSE)


def test_a_checkpoint_without_a_critic_is_refused_and_changes_nothing(
    ranks: Ranks, llama: Path, tmp_path: Path
) -> None:
    learner = ranks.learner(llama, _job(), 1)
    before = _everything(learner)
    learner.save(tmp_path / "plain")
    support.said_again(tmp_path / "plain", critic=False)
    with pytest.raises(BackendError, match=r"has no critic.*gae"):
        learner.load(tmp_path / "plain")
    assert _bit_equal(_everything(learner), before)


def test_an_update_in_which_nothing_was_sampled_has_finite_metrics(ranks: Ranks, llama: Path) -> None:
    made = _job()
    policy, _ = support.local(made)
    batch = make_batch(policy)
    bare = tuple(
        replace(each, rows=tuple(replace(row, sampled=(0,) * len(row.ids)) for row in each.rows))
        for each in batch.episodes
    )
    metrics = ranks.learner(llama, made, 2).update(replace(batch, episodes=bare))
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["critic/values/mean"] == metrics["critic/vf_loss"] == metrics["critic/vf_explained_var"] == 0.0


def test_a_model_that_transformers_has_no_critic_of_is_refused_in_a_line(ranks: Ranks, tmp_path: Path) -> None:
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "max_position_embeddings"), 16)
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": len(make_tokenizer())}
    transformers.OlmoForCausalLM(transformers.OlmoConfig(**sizes, **heads)).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    expected = r"gae: transformers has no token classification of olmo, .*take reinforce"
    with pytest.raises(BackendError, match=expected):
        ranks.learner(tmp_path, _job(), 1)
    told = {each.what: each for each in run_checks(_job(model={"kind": "path", "path": str(tmp_path)}), tmp_path)}[
        "model"
    ]
    assert not told.there
    assert re.search(expected, told.said)
    with pytest.raises(BackendError, match=r"critic of stablelm.*take reinforce"):
        adapter.require_critic(transformers.StableLmConfig())
