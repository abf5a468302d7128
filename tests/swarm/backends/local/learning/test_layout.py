"""The plan packs rows into trees where that pays and the model allows it, and says which and why."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from swarm.backends.algorithms.rows import Row
from swarm.backends.local.learning import layout as plans
from swarm.backends.local.learning.layout import Layout, obstacle
from swarm.backends.local.learning.micro_batch import MicroBatch, PaddedRows
from swarm.backends.local.learning.trees import PackedRows
from swarm.backends.local.model.policy import Policy
from swarm.job import Job
from tests.swarm.backends.local.forests import row
from tests.swarm.backends.local.models import KINDS, WORDS, make_model, make_policy, make_real_vocabulary

ALIKE = [row([1, 2, 3, 4, 5, 6, 7, n]) for n in range(4)]
APART = [row([n, 2, 3, 4, 5, 6, 7, 8]) for n in range(4)]


def laid_out(rows: Sequence[Row], policy: Policy | None = None, **fields: Any) -> list[MicroBatch]:
    return list(Layout(policy or make_policy(), Job(**fields)).micro_batches(rows))


@pytest.mark.parametrize("kind", KINDS)
def test_models_with_full_attention_compute_trees(kind: str) -> None:
    assert obstacle(make_policy(kind)) is None


def test_in_bfloat16_too() -> None:
    assert obstacle(Policy(make_model().to(torch.bfloat16))) is None


@pytest.mark.parametrize("text", [WORDS, ()])
def test_special_tokens_on_which_bfloat16_goes_astray_cost_no_trees(text: Sequence[int]) -> None:
    assert obstacle(Policy(make_real_vocabulary(torch.bfloat16), text=text)) is None


def test_auto_packs_what_shares_enough() -> None:
    [micro] = laid_out(ALIKE)
    assert isinstance(micro, PackedRows)
    assert micro.tokens == 11


def test_auto_leaves_rows_that_share_nothing_as_they_are() -> None:
    [micro] = laid_out(APART)
    assert isinstance(micro, PaddedRows)


def test_auto_counts_what_the_budget_leaves_to_share() -> None:
    assert {type(micro) for micro in laid_out(ALIKE, micro_batch_tokens=16)} == {PackedRows}
    long = [row([*each.ids.tolist()] * 4) for each in ALIKE]
    assert {type(micro) for micro in laid_out(long, micro_batch_tokens=16)} == {PaddedRows}


def test_from_the_ratio_where_it_pays_on_it_is_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    for pays, layout in ((32 / 11, PackedRows), (32 / 11 + 1e-9, PaddedRows)):
        monkeypatch.setitem(plans.PAYS, "cpu", pays)
        assert [type(micro) for micro in laid_out(ALIKE)] == [layout]


@pytest.mark.parametrize(("merging", "layout"), [("tree", PackedRows), ("linear", PaddedRows), ("none", PaddedRows)])
def test_a_job_may_fix_the_layout(merging: str, layout: type) -> None:
    for rows in (ALIKE, APART):
        assert {type(micro) for micro in laid_out(rows, merging=merging)} == {layout}


@pytest.mark.parametrize("merging", ["auto", "tree", "linear"])
def test_every_row_is_laid_out_once_within_the_budget(merging: str) -> None:
    rows = [*ALIKE, *APART, row(list(range(40)))]
    micros = laid_out(rows, merging=merging, micro_batch_tokens=20)
    assert sorted(id(each) for micro in micros for each in micro.rows) == sorted(map(id, rows))
    assert all(micro.tokens <= 20 or len(micro.rows) == 1 for micro in micros)


def test_ragged_rows_are_packed_end_to_end_in_place_of_padding() -> None:
    ragged = [row(list(range(10 * n, 11 * n + 1))) for n in range(1, 40)]
    [micro] = laid_out(ragged, merging="linear")
    assert isinstance(micro, PackedRows)
    assert micro.tokens == sum(len(each.ids) for each in ragged)
    assert {segment.parent for segment in micro.tree.segments} == {-1}


def test_ragged_rows_are_padded_where_the_model_takes_no_packed_ones() -> None:
    model = make_model()
    model.set_attn_implementation("eager")
    ragged = [row(list(range(n))) for n in range(1, 40)]
    assert {type(micro) for micro in laid_out(ragged, Policy(model), merging="linear")} == {PaddedRows}


def test_without_rows_there_is_nothing_to_lay_out() -> None:
    assert laid_out([]) == []


@pytest.mark.parametrize("merging", ["auto", "tree"])
def test_a_model_of_another_attention_gets_rows_and_the_reason_is_said(
    merging: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    model.set_attn_implementation("eager")
    with caplog.at_level(logging.INFO, plans.__name__):
        assert {type(micro) for micro in laid_out(ALIKE, Policy(model), merging=merging)} == {PaddedRows}
    assert "layout=rows" in caplog.text
    assert "not transformers' SDPA" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_does_not_heed_the_tree_gets_rows(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Policy(make_real_vocabulary(dtype), text=WORDS)
    features = Policy.features

    def blind(self: Policy, ids: Tensor, tree: Any = None, attention_mask: Any = None, **others: Any) -> Tensor:
        return features(self, ids, **others)

    monkeypatch.setattr(Policy, "features", blind)
    assert "differ from those of its rows" in (obstacle(policy) or "")
    for merging in ("auto", "linear"):
        assert {type(micro) for micro in laid_out(ALIKE, policy, merging=merging)} == {PaddedRows}
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "event=no_trees cost=" in warning.message


def test_a_model_that_takes_no_tree_gets_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy()
    features = Policy.features

    def narrow(self: Policy, ids: Tensor, *, use_cache: bool) -> Tensor:
        return features(self, ids, use_cache=use_cache)

    monkeypatch.setattr(Policy, "features", narrow)
    assert "takes no tree" in (obstacle(policy) or "")


def test_a_layout_is_logged_when_it_changes_and_counted_each_time(caplog: pytest.LogCaptureFixture) -> None:
    plan = Layout(make_policy(), Job())
    with caplog.at_level(logging.INFO, plans.__name__):
        for rows in (ALIKE, ALIKE, APART, ALIKE):
            list(plan.micro_batches(rows))
    assert [record.message for record in caplog.records] == [
        "event=merging layout=tree merging=auto ratio=2.909 reason='a tree pays from 1.15'",
        "event=merging layout=rows merging=auto ratio=1.000 reason='a tree pays from 1.15'",
        "event=merging layout=tree merging=auto ratio=2.909 reason='a tree pays from 1.15'",
    ]
    assert plan.metrics() == {"merge/layout_tree": 0.75, "merge/layout_ratio": pytest.approx((3 * 32 / 11 + 1) / 4)}
    assert plan.metrics() == {"merge/layout_tree": 0.0}
