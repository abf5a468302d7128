"""What a training began with: equal hashes for equal weights, an adapter or none, and others for any other weight."""

from __future__ import annotations

import pytest
import torch

from swarm.backends.local.model.adapters import add_adapter
from swarm.backends.local.provenance import provenance, weights_hash
from tests.swarm.backends.local.models import KINDS, make_model


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_that_has_learned_nothing_is_no_other_beginning(kind: str) -> None:
    plain, adapted = make_model(kind), make_model(kind)
    add_adapter(adapted, rank=3, alpha=6.0, seed=1)
    assert weights_hash(plain) == weights_hash(make_model(kind)) == weights_hash(adapted)


def test_other_weights_have_another_hash() -> None:
    hashes = {weights_hash(make_model(seed=seed)) for seed in (0, 1)}
    moved = make_model()
    with torch.no_grad():
        next(moved.parameters())[0, 0] += 1e-3
    assert len({*hashes, weights_hash(moved), weights_hash(make_model().to(torch.bfloat16))}) == 4


def test_the_template_is_hashed_too() -> None:
    model = make_model()
    one, other = provenance(model, "{{ a }}"), provenance(model, "{{ b }}")
    assert one["weights"] == other["weights"]
    assert one["template"] != other["template"]
