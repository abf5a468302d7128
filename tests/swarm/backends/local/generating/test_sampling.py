"""Sampling: draws follow the distribution whose log-probs are reported."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.local.batcher import distribution, sample
from swarm.backends.protocols import Sampling
from tests.lazily import lazy

stats = lazy("scipy.stats")


def _uniforms(count: int) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    "rule", [Sampling(1), Sampling(1, temperature=0.5), Sampling(1, top_p=0.8), Sampling(1, top_k=3)]
)
def test_frequencies_match_the_reported_probabilities(rule: Sampling) -> None:
    logits = torch.randn(8, generator=torch.Generator().manual_seed(0)) * 2
    draws = 20_000
    ids, logprobs, _ = sample(logits.expand(draws, -1), [rule] * draws, _uniforms(draws))
    expected = distribution(logits[None], [rule])[0].double().exp()
    assert torch.allclose(logprobs.double(), expected.log()[ids])
    kept = expected > 0
    counts = torch.bincount(ids, minlength=8)
    assert counts[~kept].sum() == 0
    assert stats.chisquare(counts[kept].numpy(), (expected[kept] / expected[kept].sum() * draws).numpy()).pvalue > 1e-3


def test_temperature_divides_the_logits() -> None:
    logits = torch.tensor([[0.0, 1.0, 3.0]])
    assert torch.allclose(distribution(logits, [Sampling(1, temperature=2.0)]), (logits / 2).log_softmax(-1))


def test_top_p_keeps_the_fewest_tokens_whose_mass_reaches_it() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    cut = distribution(logits, [Sampling(1, top_p=0.7)])[0].exp()
    assert torch.allclose(cut, torch.tensor([0.625, 0.375, 0.0, 0.0]))
    assert torch.allclose(distribution(logits, [Sampling(1, top_p=0.01)])[0].exp(), torch.tensor([1.0, 0, 0, 0]))


def test_top_k_and_top_p_apply_in_that_order() -> None:
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    cut = distribution(logits, [Sampling(1, top_k=3, top_p=0.5)])[0].exp()
    assert torch.allclose(cut, torch.tensor([0.0, 4 / 7, 0.0, 3 / 7]))


def test_a_greedy_row_takes_the_likeliest_id_with_the_model_s_own_logprob() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [5.0, 0.0, 0.0]])
    rules = [Sampling(1, temperature=0.0, top_k=1), Sampling(1, temperature=0.0, top_logprobs=3)]
    ids, logprobs, top = sample(logits, rules, _uniforms(2))
    assert ids.tolist() == [1, 0]
    assert torch.allclose(logprobs, logits.log_softmax(-1)[[0, 1], [1, 0]])
    assert ([len(each) for each in top], top[1][0]) == ([0, 3], (0, logprobs[1].item()))


@pytest.mark.parametrize(
    "rule",
    [
        *({"temperature": cold} for cold in (1e-4, 1e-38, 1e-46, 1e-300)),
        *({"top_p": small} for small in (1e-9, 1e-50, 5e-324)),
    ],
    ids=str,
)
def test_the_coldest_temperature_and_the_smallest_top_p_draw_the_likeliest_id(rule: dict[str, float]) -> None:
    ids, logprobs, _ = sample(torch.tensor([[0.0, 2.0, 1.0]]), [Sampling(1, **rule)], _uniforms(1))  # type: ignore[arg-type]
    assert (ids.tolist(), logprobs.tolist()) == ([1], [0.0])


@given(st.lists(st.floats(-60, 60), min_size=2, max_size=20), st.sampled_from([0.0, 0.5, 1 - 2**-53]))
def test_a_draw_is_always_an_id_that_could_be_drawn(logits: list[float], uniform: float) -> None:
    row = torch.tensor([[*logits, -torch.inf]])
    ids, logprobs, _ = sample(row, [Sampling(1)], torch.tensor([uniform], dtype=torch.float64))
    assert 0 <= ids.item() < len(logits)
    assert torch.isfinite(logprobs).all()


def test_the_likeliest_ids_come_in_order_under_the_same_distribution_and_only_where_asked() -> None:
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log().repeat(3, 1)
    rules = [Sampling(1), Sampling(1, top_logprobs=2), Sampling(1, top_k=3, top_logprobs=9)]
    none, two, cut = sample(logits, rules, _uniforms(3)).top
    assert none == ()
    assert [token for token, _ in two] == [1, 3]
    assert [token for token, _ in cut] == [1, 3, 2]
    assert dict(two)[1] == pytest.approx(torch.tensor(0.4).log().item())
    assert dict(cut)[1] == pytest.approx(torch.tensor(4 / 9).log().item())


def test_a_large_vocabulary_is_drawn_from_as_its_exact_cumulative_distribution_says() -> None:
    logits = torch.randn(4, 5000, generator=torch.Generator().manual_seed(3)) * 3
    logits[:, 1000:2100] = -torch.inf
    draws = 500
    uniforms = _uniforms(4 * draws)
    ids, *_ = sample(logits.repeat(draws, 1), [Sampling(1)] * (4 * draws), uniforms)
    sums = logits.double().softmax(-1).cumsum(-1).repeat(draws, 1)
    low = sums.gather(-1, (ids[:, None] - 1).clamp(min=0))[:, 0] * (ids > 0)
    high = sums.gather(-1, ids[:, None])[:, 0]
    assert ((low - 1e-6 <= uniforms) & (uniforms <= high + 1e-6)).all()
    assert not ((ids >= 1000) & (ids < 2100)).any()


@given(st.integers(0, 2999), st.sampled_from([0.0, 0.5, 1 - 2**-53]))
def test_the_only_id_that_could_come_is_drawn_from_a_large_vocabulary(only: int, uniform: float) -> None:
    row = torch.full((1, 3000), -torch.inf)
    row[0, only] = 1.0
    ids, logprobs, _ = sample(row, [Sampling(1)], torch.tensor([uniform], dtype=torch.float64))
    assert (ids.item(), logprobs.item()) == (only, 0.0)


@given(st.integers(0, 999), st.integers(1, 2999))
def test_the_last_draw_of_a_large_vocabulary_is_an_id_that_could_come(seed: int, possible: int) -> None:
    logits = torch.full((1, 3000), -torch.inf)
    logits[0, :possible] = torch.randn(possible, generator=torch.Generator().manual_seed(seed)) * 5
    last = torch.tensor([1 - 2**-53], dtype=torch.float64)
    assert sample(logits, [Sampling(max_tokens=1)], last).ids.item() < possible


def test_a_row_s_cut_leaves_its_neighbours_alone() -> None:
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(2))
    rules = [Sampling(1), Sampling(1, top_k=3), Sampling(1, top_p=0.4), Sampling(1, top_k=5, top_p=0.9)]
    together = distribution(logits, rules)
    for row, rule in enumerate(rules):
        assert torch.allclose(together[row], distribution(logits[row : row + 1], [rule])[0])
    assert torch.equal(together[0], logits[0].log_softmax(-1))
    assert (together > -torch.inf).sum(-1)[:2].tolist() == [30, 3]
