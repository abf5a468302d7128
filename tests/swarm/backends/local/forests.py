"""Rows and call trees that share beginnings, as conversations of a group do."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from swarm.backends.algorithms.rows import Row
from swarm.backends.protocols import Batch, TrainEpisode
from swarm.timelines import Drift, Node, linear_rows, unmerged_rows


def row(ids: Sequence[int], trained: Sequence[int] = ()) -> Row:
    """A row that predicts a sampled id at each of the places `trained`, at all of them where none are given."""
    places = torch.tensor(trained or range(len(ids)))
    return Row(0, "g", torch.tensor(ids), places, places % 2, -1.0 - places, torch.zeros(len(places), dtype=torch.long))


def grow(rng: random.Random, prompt: Sequence[int], calls: int, vocabulary: int) -> list[Node]:
    """An episode: calls go on from any earlier one, repeat a part of what was served, or begin anew."""
    nodes: list[Node] = []
    for index in range(calls):
        fresh = tuple(rng.randrange(vocabulary) for _ in range(rng.randint(0, 5)))
        parent = rng.choice(nodes) if nodes and rng.random() < 0.6 else None
        if parent is not None:
            context = fresh
        elif nodes and rng.random() < 0.7:  # thinking is left out: a part of the history, then other ids
            served = rng.choice(nodes).path_ids()
            context = (*served[: rng.randint(1, len(served))], *fresh)
        else:
            context = (*prompt, *fresh)
        sampled = tuple(rng.randrange(vocabulary) for _ in range(rng.randint(1, 4)))
        logprobs = tuple(rng.uniform(-5.0, -3.0) for _ in sampled)
        nodes.append(Node(index, parent, context, sampled, logprobs, (0,) * len(sampled), "", Drift.START))
    return nodes


def grow_groups(seed: int, vocabulary: int, groups: int = 3, members: int = 3) -> list[tuple[str, list[Node]]]:
    """Episodes by group; members of a group begin with its prompt, and all groups with the same words."""
    rng = random.Random(seed)
    system = [rng.randrange(vocabulary) for _ in range(3)]
    grown = []
    for group in range(groups):
        prompt = [*system, *(rng.randrange(vocabulary) for _ in range(rng.randint(1, 6)))]
        grown += [(f"g{group}", grow(rng, prompt, rng.randint(1, 4), vocabulary)) for _ in range(members)]
    return grown


def batch_of(grown: Sequence[tuple[str, list[Node]]], *, merged: bool = True, step: int = 0) -> Batch:
    """The episodes as a batch, of uneven rewards and weights."""
    rows = linear_rows if merged else unmerged_rows
    return Batch(
        step,
        tuple(
            TrainEpisode(f"e{n}", group, float(n * 7 % 5), rows(nodes), (1.0, 0.5, 2.0)[n % 3])
            for n, (group, nodes) in enumerate(grown)
        ),
    )
