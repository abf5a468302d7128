"""Rows packed into trees: each prefix once, each row its path, where that pays; what is learned stays the same."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from swarm.algorithms.rows import Row
from swarm.backends.local import micro_batch as plans
from swarm.backends.local.learner import LocalLearner
from swarm.backends.local.policy import Policy
from swarm.backends.protocols import Batch
from swarm.job import Job
from tests.swarm.backends.local import models
from tests.swarm.backends.local.models import row
from tests.swarm.timelines.checks import parents

ALIKE = [row([1, 2, 3, 4, 5, 6, 7, n]) for n in range(4)]
APART = [row([n, 2, 3, 4, 5, 6, 7, 8]) for n in range(4)]


def laid_out(
    rows: Sequence[Row], policy: Policy | None = None, **fields: Any
) -> list[plans.PaddedRows | plans.PackedRows]:
    return list(plans.Layout(policy or models.make_policy(), Job(**fields)).micro_batches(rows))


LONG = [row([*each.ids.tolist()] * 4) for each in ALIKE]


@pytest.mark.parametrize(
    ("rows", "budget", "layout"),
    [
        (ALIKE, 2048, plans.PackedRows),
        (APART, 2048, plans.PaddedRows),
        (ALIKE, 16, plans.PackedRows),
        (LONG, 16, plans.PaddedRows),
    ],
)
def test_auto_packs_what_shares_enough_within_the_budget(rows: list[Row], budget: int, layout: type) -> None:
    micros = laid_out(rows, micro_batch_tokens=budget)
    assert {type(micro) for micro in micros} == {layout}
    assert rows is not ALIKE or budget < 2048 or [micro.tokens for micro in micros] == [11]
    assert laid_out([]) == []


def scored(policy: Policy, micro: plans.PaddedRows | plans.PackedRows) -> tuple[torch.Tensor, torch.Tensor]:
    return plans.score_tokens(policy, micro, torch.cat([each.targets for each in micro.rows]), 1.0)


def test_places_that_rows_share_are_predicted_at_once_and_are_what_each_row_alone_predicts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = models.make_policy()
    packed, head, predicted = plans.PackedRows(plans.sort_depth_first(ALIKE)), policy.head, list[int]()
    monkeypatch.setattr(policy, "head", lambda features: (predicted.append(len(features)), head(features))[1])
    with torch.no_grad():
        together = torch.stack(scored(policy, packed))
        assert predicted == [len(set(packed.places.tolist()))]
        alone = torch.cat([torch.stack(scored(policy, plans.PaddedRows([each]))) for each in packed.rows], 1)
    assert predicted[0] < alone.shape[1]
    assert torch.allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_large_vocabulary_is_computed_in_parts_with_the_same_gradient(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    policy = models.make_policy()
    packed, head, predicted = plans.PackedRows(plans.sort_depth_first(ALIKE)), policy.head, list[int]()
    monkeypatch.setattr(policy, "head", lambda features: (predicted.append(len(features)), head(features))[1])
    weights = list(policy.model.parameters())

    def learn() -> tuple[torch.Tensor, list[torch.Tensor]]:
        present, entropy = scored(policy, packed)
        loss = present.dot(torch.linspace(-1, 1, len(present))) + entropy.sin().sum()
        return torch.stack((present, entropy)).detach(), list(torch.autograd.grad(loss, weights))

    values, gradients = learn()
    predicted.clear()
    monkeypatch.setattr(plans, "AT_ONCE", size * policy.model.config.vocab_size)
    again, regained = learn()
    assert max(predicted) == size
    assert torch.allclose(again, values, atol=1e-5)
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(gradients, regained, strict=True))


def test_ragged_rows_are_packed_end_to_end_in_place_of_padding() -> None:
    ragged = [row(list(range(10 * n, 11 * n + 1))) for n in range(1, 40)]
    [micro] = laid_out(ragged, merging="linear")
    assert isinstance(micro, plans.PackedRows)
    assert micro.tokens == sum(len(each.ids) for each in ragged)
    assert {segment.parent for segment in micro.tree.segments} == {-1}


def test_on_a_gpu_there_are_rows_side_by_side_and_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    policy = models.make_policy()
    policy.device = torch.device("cuda")
    ragged = [row(list(range(n))) for n in range(1, 40)]
    with caplog.at_level(logging.INFO, plans.__name__):
        for rows in (ALIKE, ragged):
            assert {type(micro) for micro in laid_out(rows, policy)} == {plans.PaddedRows}
    assert not caplog.records


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("takes", [True, False], ids=["takes it", "refuses it"])
def test_a_model_that_does_not_heed_the_tree_gets_rows(
    takes: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Policy(models.make_real_vocabulary(dtype), text=models.WORDS)
    features = Policy.features

    def blind(self: Policy, ids: Tensor, attention_mask: Any = None, **others: Any) -> Tensor:
        if "tree" in others and not takes:
            raise TypeError("no tree")
        others.pop("tree", None)
        return features(self, ids, **others)

    monkeypatch.setattr(Policy, "features", blind)
    assert ("differ from those" if takes else "takes no tree") in (plans.find_tree_obstacle(policy) or "")
    for merging in ("auto", "linear"):
        assert {type(micro) for micro in laid_out(ALIKE, policy, merging=merging)} == {plans.PaddedRows}
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "event=no_trees cost=" in warning.message


def test_layouts_are_counted() -> None:
    plan = plans.Layout(models.make_policy(), Job())
    for rows in (ALIKE, ALIKE, APART, ALIKE):
        plan.count(plan.micro_batches(rows))
    assert plan.metrics() == {"merge/layout_tree": 0.75}
    assert plan.metrics() == {"merge/layout_tree": 0.0}


IDS = st.lists(st.integers(0, 2), min_size=1, max_size=9)
ROWS = st.lists(IDS, min_size=1, max_size=8)


def prefixes(rows: list[Row]) -> set[tuple[int, ...]]:
    return {tuple(each.ids[: n + 1].tolist()) for each in rows for n in range(len(each.ids))}


@given(ROWS)
def test_every_place_is_reached_through_its_own_row(drawn: list[list[int]]) -> None:
    packed = plans.PackedRows(plans.sort_depth_first([row(ids) for ids in drawn]))
    before = parents(packed)
    places = iter(packed.places.tolist())
    for each in packed.rows:
        for place in each.places.tolist():
            index, path = next(places), []
            assert packed.position[index] == place
            while index >= 0:
                path.append(int(packed.ids[index]))
                index = before[index]
            assert path[::-1] == each.ids[: place + 1].tolist()
    assert next(places, None) is None


@given(ROWS, st.integers(1, 20))
def test_no_tree_is_over_the_budget_but_a_long_row_and_what_shares_with_it(drawn: list[list[int]], tokens: int) -> None:
    rows = [row(ids) for ids in drawn]
    trees = list(plans.split_branches(plans.sort_depth_first(rows), tokens))
    for tree in trees:
        packed = plans.PackedRows(tree)
        assert packed.tokens == sum(branch.added for branch in tree) == len(prefixes(list(packed.rows)))
        assert packed.tokens <= tokens or len(tree) == 1 or all(branch.shared for branch in tree[1:])
        assert packed.tokens <= max(tokens, plans.LONGER * max(len(branch.row.ids) for branch in tree))
    assert sorted(id(branch.row) for tree in trees for branch in tree) == sorted(map(id, rows))


def test_rows_longer_than_the_budget_compute_what_they_share_once() -> None:
    rows = [row([*range(1, 21), end, end]) for end in range(30, 40)]
    trees = list(plans.split_branches(plans.sort_depth_first(rows), 16))
    assert [sum(branch.added for branch in tree) for tree in trees] == [32, 28]


def test_the_way_to_the_longest_row_comes_first_so_that_it_stands_in_one_piece() -> None:
    packed = plans.PackedRows(
        plans.sort_depth_first([row([1, 0]), row([1, 2, 0]), row([1, 2, 3, 4, 5]), row([1, 2, 3, 0])])
    )
    assert packed.ids.tolist() == [1, 2, 3, 4, 5, 0, 0, 0]
    assert [(run.start, run.end, run.below, run.seen) for run in packed.tree.runs] == [
        (0, 5, 8, None), (5, 6, 6, slice(0, 3)), (6, 7, 7, slice(0, 2)), (7, 8, 8, slice(0, 1)),
    ]  # fmt: skip


LAYOUTS = ("none", "linear", "tree")
ALGORITHMS = ("grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gspo")


def gradient(policy: Policy, batch: Batch, merging: str, **fields: Any) -> tuple[dict[str, float], Tensor]:
    policy.version = 0
    learner = LocalLearner(policy, Job.model_validate({"merging": merging, "max_grad_norm": 1e9, **fields}), {})
    found: list[Tensor] = []

    def seen(_: float) -> None:
        found.extend(weight.grad.flatten() for weight in policy.model.parameters() if weight.grad is not None)

    learner._optimizer.step = seen  # type: ignore[method-assign]
    metrics = dict(learner.update(batch))
    return metrics, torch.cat(found)


def assert_alike(policy: Policy, seed: int, **fields: Any) -> None:
    grown = models.grow_groups(seed, models.VOCABULARY)
    ways = [(merging, models.batch_of(grown, merged=merging != "none")) for merging in LAYOUTS]
    found = {merging: gradient(policy, batch, merging, **fields) for merging, batch in ways}
    found["apart"] = gradient(policy, ways[0][1], "tree", **fields)
    metrics, expected = found["none"]
    assert expected.norm() > 0
    assert found["tree"][0]["merge/layout_tree"] == 1
    assert found["tree"][0]["tokens/forward"] <= found["linear"][0]["tokens/forward"]
    for merging in ("linear", "tree", "apart"):
        for names, close in ((("actor/", "tokens/trained", "critic/"), 1e-4), (("training/", "rollout_corr/"), 1e-3)):
            same = {name: value for name, value in metrics.items() if name.startswith(names) and "per_s" not in name}
            assert {name: found[merging][0][name] for name in same} == pytest.approx(same, rel=close, abs=close / 100)
        # A sum of terms of about 1 of both signs: what fp32 rounds away of the terms does not shrink with their sum.
        assert found[merging][0]["actor/pg_loss"] == pytest.approx(metrics["actor/pg_loss"], rel=1e-5, abs=1e-6)
        assert (found[merging][1] - expected).norm() <= 1e-5 * expected.norm()


# a loss whose terms cancel is the same to their rounding
@example(1765, "qwen3", "grpo", "token", "truncate", "k3", 2048)
@settings(max_examples=12)
@given(
    seed=st.integers(0, 10_000), kind=st.sampled_from(models.KINDS), algorithm=st.sampled_from(ALGORITHMS),
    weighting=st.sampled_from(["episode", "token"]), correction=st.sampled_from(["off", "truncate", "mask"]),
    estimator=st.sampled_from(["k1", "k2", "k3"]), budget=st.sampled_from([16, 64, 2048]),
)  # fmt: skip
def test_loss_and_gradient_do_not_depend_on_merging(
    seed: int, kind: str, algorithm: str, weighting: str, correction: str, estimator: str, budget: int
) -> None:
    assert_alike(
        models.make_policy(kind), seed, algorithm=algorithm, loss_weighting=weighting, rollout_correction=correction,
        kl_estimator=estimator, micro_batch_tokens=budget, kl_coef=0.1, entropy_coef=0.01, temperature=0.8,
    )  # fmt: skip
