"""Linear layers over one input as one product: what the layers give, without a copy of their weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from swarm.backends.local.forwards.projections import CannotFuse, JoinedLinear


def _layers(bias: bool) -> list[nn.Linear]:
    return [nn.Linear(3, rows, bias=bias) for rows in (4, 2, 5)]


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_one_product_gives_what_the_layers_give_side_by_side(bias: bool) -> None:
    layers, x = _layers(bias), torch.randn(7, 3)
    projection = JoinedLinear(*layers)
    for _ in range(2):
        expected = torch.cat([layer(x) for layer in layers], -1)
        assert torch.allclose(projection(x), expected, atol=1e-6)
        sums = torch.ones(7, 11)
        projection.add_to(sums, x)
        assert torch.allclose(sums, expected + 1, atol=1e-6)
        for layer in layers:  # the second time: the weights changed in place
            for parameter in layer.parameters():
                parameter.mul_(2)


def test_the_values_of_the_layers_stay_as_they_were() -> None:
    layers = _layers(bias=True)
    before = [[value.clone() for value in layer.parameters()] for layer in layers]
    JoinedLinear(*layers)
    for layer, values in zip(layers, before, strict=True):
        assert all(torch.equal(new, old) for new, old in zip(layer.parameters(), values, strict=True))


def test_a_layer_that_does_more_than_a_product_is_refused() -> None:
    class Louder(nn.Linear):
        pass

    with pytest.raises(CannotFuse, match="Louder"):
        JoinedLinear(nn.Linear(3, 3), Louder(3, 3))


def test_a_bias_on_some_of_the_layers_is_refused() -> None:
    with pytest.raises(CannotFuse, match="only some"):
        JoinedLinear(nn.Linear(3, 3, bias=True), nn.Linear(3, 3, bias=False))
