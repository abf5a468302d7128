"""What benchmarks learn that play no game: groups of conversations in ids; and what a training's steps took.

Needs no more than the local backend's learner does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from swarm.backends.protocols import Batch, TrainEpisode
from swarm.timelines import Drift, Node, linear_rows, token_counts, tree_tokens, unmerged_rows


@dataclass(frozen=True, slots=True)
class Step:
    """One training step: when it was done (seconds since the training began), and what it measured."""

    at: float
    reward: float
    success: float
    generate_s: float
    update_s: float
    """Seconds of the learner's update; what is neither this nor generation is the rest of the step."""
    generate_ids: float = 0.0
    update_ids: float = 0.0
    """Ids that the model was fed in either, padding included; 0 where nobody counted them."""
    cpu_s: float = 0.0
    """CPU seconds of the process that learns, from some moment until the step was done."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A training that was carried out."""

    steps: tuple[Step, ...]
    cpu_s: float
    """CPU seconds of all processes that took part, while it trained."""

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self)))


MEMBERS = 8
"""Conversations of a group where nothing else is said."""


@dataclass(frozen=True)
class Workload:
    """Groups of conversations in full length; `thought` of an answer's tokens are left out of later prompts."""

    prompt: int
    answer: int
    observed: int
    turns: int
    groups: int = 1
    thought: int = 0
    members: int = MEMBERS

    @property
    def name(self) -> str:
        """What it is called in the table."""
        return f"T = {self.turns}" + (", thinking dropped" if self.thought else "")

    @property
    def layouts(self) -> tuple[str, ...]:
        """Where thinking is dropped, linear rows are the unmerged ones."""
        return ("none", "tree") if self.thought else ("none", "linear", "tree")


def conversations(load: Workload, scale: int, vocabulary: int) -> list[tuple[str, list[Node]]]:
    """Return the calls of each episode, with its group; lengths are those of the load over `scale`."""
    rng, known = Random(load.turns), range(vocabulary)

    def words(length: int) -> tuple[int, ...]:
        return tuple(rng.choices(known, k=max(1, round(length / scale))))

    played = []
    for group in range(load.groups):
        task = words(load.prompt)
        for _ in range(load.members):
            turns: list[tuple[tuple[int, ...], ...]] = [
                (words(load.thought), words(load.answer - load.thought), words(load.observed))
            ]
            turns += [tuple(map(words, (load.thought, load.answer - load.thought, load.observed)))
                      for _ in range(load.turns - 1)]  # fmt: skip
            played.append((f"g{group}", thoughtful(task, turns) if load.thought else plain(task, turns)))
    return played


def plain(task: tuple[int, ...], turns: Sequence[tuple[tuple[int, ...], ...]]) -> list[Node]:
    """Return the calls of a conversation in which each goes on from the one before."""
    nodes: list[Node] = []
    for _, reply, observed in turns:
        nodes.append(node(len(nodes), nodes[-1] if nodes else None, task, reply))
        task = observed
    return nodes


def thoughtful(task: tuple[int, ...], turns: Sequence[tuple[tuple[int, ...], ...]]) -> list[Node]:
    """Return the calls of a conversation in which later prompts have no thinking in them."""
    nodes: list[Node] = []
    for thought, reply, observed in turns:
        nodes.append(node(len(nodes), None, task, thought + reply))
        task += reply + observed
    return nodes


def node(index: int, parent: Node | None, context: tuple[int, ...], sampled: tuple[int, ...]) -> Node:
    """Return a call whose tokens were sampled with the log-prob that random weights give."""
    return Node(index, parent, context, sampled, (-7.6,) * len(sampled), (0,) * len(sampled), "", Drift.START)


def batch_of(played: Sequence[tuple[str, list[Node]]], layout: str) -> Batch:
    """Return the episodes as the server sends them; rewards differ within a group."""
    rows = unmerged_rows if layout == "none" else linear_rows
    return Batch(
        0, tuple(TrainEpisode(f"e{n}", group, float(n % 3), rows(nodes)) for n, (group, nodes) in enumerate(played))
    )


def ids_of(played: Sequence[tuple[str, list[Node]]]) -> dict[str, int]:
    """Return the ids in each layout."""
    counts = [token_counts(nodes) for _, nodes in played]
    groups = dict.fromkeys(group for group, _ in played)
    trees = [[nodes for member, nodes in played if member == group] for group in groups]
    return {
        "none": sum(unmerged for _, unmerged in counts),
        "linear": sum(linear for linear, _ in counts),
        "tree": sum(map(tree_tokens, trees)),
    }
