"""Number codes hold an order: that is all they are for."""

import torch

from swarm.backends.tiny.number_codes import number_codes


def codes(seed: int = 0) -> torch.Tensor:
    generator_state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        return number_codes(200, 64)
    finally:
        torch.set_rng_state(generator_state)


def test_neighbours_are_closer_than_distant_numbers() -> None:
    distances = torch.cdist(codes(), codes())
    near = torch.stack([distances[n, n + 2] for n in range(198)])
    far = torch.stack([distances[n, (n + 100) % 200] for n in range(198)])
    assert near.max() < far.min()


def test_every_number_has_its_own_code() -> None:
    distances = torch.cdist(codes(), codes()) + 10.0 * torch.eye(200)
    assert distances.min() > 0.1


def test_the_same_random_numbers_give_the_same_codes() -> None:
    assert torch.equal(codes(), codes())
    assert not torch.equal(codes(), codes(seed=1))
