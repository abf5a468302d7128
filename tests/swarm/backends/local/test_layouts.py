"""However a batch's calls are merged and laid out, what is learned of it is the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swarm.backends.algorithms.rows import train_rows
from swarm.backends.local.learning.learner import LocalLearner
from swarm.backends.local.model.policy import Policy
from swarm.backends.protocols import Batch
from swarm.job import Job
from tests.swarm.backends.local.forests import batch_of, grow_groups
from tests.swarm.backends.local.models import KINDS, VOCABULARY, make_model, make_policy

LAYOUTS = ("none", "linear", "tree")
ALGORITHMS = ("grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gspo")


def learner_of(policy: Policy, merging: str, **fields: Any) -> LocalLearner:
    return LocalLearner(policy, Job(merging=merging, **fields), {})  # type: ignore[arg-type]


def gradient(policy: Policy, batch: Batch, merging: str, **fields: Any) -> tuple[dict[str, float], Tensor]:
    """The metrics of an update, and the whole gradient its optimiser step would have used."""
    learner = learner_of(policy, merging, max_grad_norm=1e9, **fields)
    found: list[Tensor] = []

    def seen(_: float) -> None:
        found.extend(weight.grad.flatten() for weight in policy.model.parameters() if weight.grad is not None)

    learner._optimizer.step = seen  # type: ignore[method-assign]
    metrics = dict(learner.update(batch))
    return metrics, torch.cat(found)


def assert_alike(policy: Policy, seed: int, **fields: Any) -> None:
    grown = grow_groups(seed, VOCABULARY)
    found = {
        merging: gradient(policy, batch_of(grown, merged=merging != "none"), merging, **fields) for merging in LAYOUTS
    }
    metrics, expected = found["none"]
    assert expected.norm() > 0
    assert found["tree"][0]["merge/layout_tree"] == 1
    assert found["tree"][0]["tokens/forward"] <= found["linear"][0]["tokens/forward"]
    for merging in ("linear", "tree"):
        same = {
            name: value for name, value in metrics.items() if name.startswith(("actor/", "tokens/trained", "critic/"))
        }
        del same["tokens/trained_per_s"]
        assert {name: found[merging][0][name] for name in same} == pytest.approx(same, rel=1e-4, abs=1e-6)
        # A sum of terms of about 1 of both signs: what fp32 rounds away of the terms does not shrink with their sum.
        assert found[merging][0]["actor/pg_loss"] == pytest.approx(metrics["actor/pg_loss"], rel=1e-5, abs=1e-6)
        assert (found[merging][1] - expected).norm() <= 1e-5 * expected.norm()


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(KINDS),
    algorithm=st.sampled_from(ALGORITHMS),
    weighting=st.sampled_from(["episode", "token"]),
    correction=st.sampled_from(["off", "truncate", "mask"]),
    estimator=st.sampled_from(["k1", "k2", "k3"]),
    budget=st.sampled_from([16, 64, 2048]),
)
def test_loss_and_gradient_do_not_depend_on_merging(
    seed: int, kind: str, algorithm: str, weighting: str, correction: str, estimator: str, budget: int
) -> None:
    assert_alike(
        make_policy(kind),
        seed,
        algorithm=algorithm,
        loss_weighting=weighting,
        rollout_correction=correction,
        kl_estimator=estimator,
        micro_batch_tokens=budget,
        kl_coef=0.1,
        entropy_coef=0.01,
        temperature=0.8,
    )


def test_a_loss_whose_terms_cancel_is_the_same_to_their_rounding() -> None:
    """The loss is 0.01 here, a hundredth of its terms."""
    assert_alike(
        make_policy("qwen3"),
        1765,
        algorithm="grpo",
        loss_weighting="token",
        rollout_correction="truncate",
        kl_coef=0.1,
        entropy_coef=0.01,
        temperature=0.8,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_with_recomputed_layers_neither(kind: str) -> None:
    assert_alike(make_policy(kind), 3, gradient_checkpointing=True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_with_several_optimiser_steps_the_weights_end_alike(algorithm: str) -> None:
    """Weights of three updates of two epochs and two minibatches, rows against trees, on the same device.

    The two layouts sum the same fp32 terms in other orders: gradients differ by 1e-6 of their norm. AdamW divides each
    by its own root mean square, so where an entry's gradient is hardly more than that noise its step may turn, and be
    off by up to 2 learning rates; so single entries get that much, their mean a thousandth of the way gone.
    """
    ends = [trained(merging, algorithm) for merging in ("linear", "tree")]
    start = torch.cat([weight.detach().flatten() for weight in make_model("qwen3").parameters()])
    way = (ends[0] - start).abs().mean()
    assert way > 1e-3
    assert (ends[0] - ends[1]).abs().mean() < 1e-3 * way
    assert (ends[0] - ends[1]).abs().max() < 2e-3


def trained(merging: str, algorithm: str) -> Tensor:
    policy = make_policy("qwen3")
    learner = learner_of(policy, merging, algorithm=algorithm, epochs=2, minibatches=2, kl_coef=0.01)
    for step in range(3):
        learner.update(batch_of(grow_groups(step, VOCABULARY), step=step))
    return torch.cat([weight.detach().flatten() for weight in policy.model.parameters()])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), merging=st.sampled_from(LAYOUTS), budget=st.sampled_from([16, 40, 2048]))
def test_each_sampled_token_is_trained_exactly_once(seed: int, merging: str, budget: int) -> None:
    grown = grow_groups(seed, VOCABULARY)
    learner = learner_of(make_policy(), merging, micro_batch_tokens=budget)
    rows = [row for own in train_rows(batch_of(grown, merged=merging != "none").episodes) for row in own]
    laid_out = [row for micro in learner._micros(rows) for row in micro.rows]
    targets = torch.cat([row.targets for row in laid_out])
    rollout = torch.cat([row.rollout for row in laid_out])
    sampled = [token for _, nodes in grown for node in nodes for token in node.sampled]
    logprobs = torch.tensor([logprob for _, nodes in grown for node in nodes for logprob in node.logprobs])
    assert sorted(targets.tolist()) == sorted(sampled)
    assert torch.equal(rollout.sort().values, logprobs.sort().values)  # no two were drawn alike
