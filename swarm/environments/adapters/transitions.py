"""What follows each action in each state of a toy: the rewards that can be had, and the best play.

Functions of gymnasium's tables: for each state and action a list of (chance, state, reward, whether it ends).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

Transition = tuple[float, int, float, bool]
Transitions = Mapping[int, Mapping[int, Sequence[Transition]]]
DISCOUNT: Final = 0.95
"""So that the shorter of two ways is the better one."""
BOUNDS: Final[Mapping[str, tuple[float, float]]] = {"BlackjackEnv": (-1.0, 1.5)}
"""What plays can be worth in toys that do not say what follows an action."""
_CLOSE: Final = 1e-6


def certain(table: Transitions) -> bool:
    """Return whether an action in a state always has the same consequence."""
    return all(len(follow) == 1 for actions in table.values() for follow in actions.values())


def bounds(toy: Any, limit: int) -> tuple[float, float]:
    """Return the least and the largest sum of rewards within `limit` steps, the last of which may end the play."""
    if (table := getattr(toy, "P", None)) is None:
        return BOUNDS[type(toy).__name__]
    ending = [reward for _, _, reward, ends in _all(table) if ends]
    going = [reward for _, _, reward, ends in _all(table) if not ends]
    low = limit * min(0.0, *going) + min(0.0, *ending)
    return low, max(limit * max(0.0, *going) + max(0.0, *ending), low + 1.0)


def full_reward(table: Transitions | None) -> float:
    """Return the largest reward with which a play can end; 1 where none says what follows an action."""
    if table is None:
        return 1.0
    return max((reward for _, _, reward, ends in _all(table) if ends), default=0.0)


def policy(table: Transitions) -> dict[int, int]:
    """Return the best action in each state, by value iteration."""
    values = dict.fromkeys(table, 0.0)
    change = 1.0
    while change > _CLOSE:
        change = 0.0
        for state, actions in table.items():
            value = max(_worth(follow, values) for follow in actions.values())
            change, values[state] = max(change, abs(value - values[state])), value
    return {
        state: max(actions, key=lambda action, of=actions: _worth(of[action], values))  # type: ignore[misc]
        for state, actions in table.items()
    }


def _worth(follow: Sequence[Transition], values: Mapping[int, float]) -> float:
    return sum(chance * (reward + (0.0 if ends else DISCOUNT * values[to])) for chance, to, reward, ends in follow)


def _all(table: Transitions) -> Iterator[Transition]:
    for actions in table.values():
        for follow in actions.values():
            yield from follow
