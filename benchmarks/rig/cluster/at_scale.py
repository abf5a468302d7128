"""What part of a step of a large model the backend's own work would be: a formula, from constants that were measured.

Nothing here was run at that size. Arithmetic is assumed: 6 N FLOP for each id of an update and 2 N for each id that is
read or sampled (Kaplan et al. 2020, section 2.1, without attention), at `flop_s`. A real generation is slower by far,
for it reads all weights for every token: so that the part that this gives is the largest that it can be. Constants are
of one CPU core and its memory, and of one rank and one replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

GOAL: Final = 0.05


@dataclass(frozen=True, slots=True)
class ScaleStep:
    """A step at scale; all of it is assumed, before anything was measured."""

    episodes: int = 1024
    calls: int = 4
    """Calls of an episode, one after another."""
    ids: int = 2048
    """Of an episode's row."""
    sampled: int = 1024
    parameters: float = 1e9
    weight_bytes: int = 2
    flop_s: float = 4e14
    """Of learner and replica: 40 % of the dense bf16 rate that an H100's maker states (989e12)."""

    @property
    def all_ids(self) -> int:
        """Ids of the batch."""
        return self.episodes * self.ids

    @property
    def arithmetic_s(self) -> float:
        """Seconds of rollout and update, one after the other."""
        return (6 + 2) * self.parameters * self.all_ids / self.flop_s


STEPS: Final = (ScaleStep(episodes=256), ScaleStep(), ScaleStep(episodes=4096))
JUDGED: Final = ScaleStep().episodes
"""Episodes of the step that the goal is about."""


def own_seconds(constants: Mapping[str, Any], step: ScaleStep) -> dict[str, float]:
    """Return the seconds that the backend adds to a step, by part.

    Of `constants`: `update` holds, for each part, seconds of a call, a row and an id; `publish` of a call and a byte;
    `rollout` of a call on its way and of a token in the replica's process.
    """
    update = {
        part: each["a call"] + each["a row"] * step.episodes + each["an id"] * step.all_ids
        for part, each in constants["update"].items()
    }
    published = constants["publish"]
    rollout = constants["rollout"]
    return {
        **update,
        "weights to the replica": published["a call"] + published["a byte"] * step.parameters * step.weight_bytes,
        "calls on their way": rollout["a call"] * step.calls,
        "tokens on their way": rollout["a token"] * step.sampled * step.episodes,
    }


def forecast(constants: Mapping[str, Any], step: ScaleStep) -> dict[str, Any]:
    """Return a step's assumptions, the seconds of its arithmetic and of the backend's own parts, and their share."""
    own = own_seconds(constants, step)
    added = sum(own.values())
    return {
        "assumed": asdict(step),
        "arithmetic, s": step.arithmetic_s,
        "own, s": own,
        "own, all, s": added,
        "part": added / (added + step.arithmetic_s),
    }
