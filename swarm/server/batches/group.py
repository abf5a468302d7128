"""A group: episodes of one task and stream, whose rewards are compared with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from swarm.store import Sample
from swarm.timelines import Node

_CONTEXT_BYTES = 40
_SAMPLED_BYTES = 80
"""What CPython keeps for a token: a place in a tuple and an int; where sampled, log-prob and version besides."""


@dataclass(slots=True, eq=False)
class Group:
    """Episodes of one task and stream; `touched_at` is when one was last admitted, ended or given up.

    `open` holds the ids of members that have not ended; `whole_since` counts up over groups as they become whole;
    `played` is set when it was whole once, `skipped` once its task failed so often that nobody is to complete it.
    `turn` is the one of the stream's task list that it was begun for, None where a client named the task.
    """

    name: str
    task_id: str
    stream: str
    touched_at: float
    open: set[str] = field(default_factory=set)
    ended: list[Sample] = field(default_factory=list)
    whole_since: int | None = None
    played: bool = False
    skipped: bool = False
    turn: int | None = None

    def __len__(self) -> int:
        return len(self.open) + len(self.ended)

    @property
    def episodes(self) -> list[str]:
        """The ids of its members."""
        return [*self.open, *(sample.episode for sample in self.ended)]

    @property
    def constant(self) -> bool:
        """All its rewards are equal."""
        found = {each.reward for sample in self.ended for each in sample.trained_rewards}
        return len(found | {sample.reward for sample in self.ended if not sample.call_rewards}) == 1


def bytes_of(nodes: Sequence[Node]) -> int:
    """Return the bytes the captured tokens of an episode hold."""
    return sum(_CONTEXT_BYTES * len(node.context) + _SAMPLED_BYTES * len(node.sampled) for node in nodes)
