"""What is seen of gymnasium's toys, and what can be done there, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

ACTIONS: Final[Mapping[str, Sequence[str]]] = {
    "FrozenLakeEnv": ("left", "down", "right", "up"),
    "CliffWalkingEnv": ("up", "right", "down", "left"),
    "TaxiEnv": ("south", "north", "east", "west", "pickup", "dropoff"),
    "BlackjackEnv": ("stick", "hit"),
}
_STEPS = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
_STOPS = ("R", "G", "Y", "B", "the taxi")


def actions_of(toy: Any) -> Sequence[str]:
    """Return the names of a toy's actions, in its order; numbers where it is not known here."""
    return ACTIONS.get(type(toy).__name__) or tuple(map(str, range(int(toy.action_space.n))))


def seen(toy: Any, state: Any) -> str:
    """Return what a player sees in a state."""
    view = _VIEWS.get(type(toy).__name__)
    return view(toy, state) if view else f"state {state}"


def _frozen_lake(toy: Any, state: int) -> str:
    """Draw the lake with the player at `@`, and say what lies around."""
    rows = [[cell.decode() for cell in row] for row in toy.desc.tolist()]
    row, column = divmod(int(state), toy.ncol)
    around = []
    for name, (down, right) in _STEPS.items():
        inside = 0 <= row + down < toy.nrow and 0 <= column + right < toy.ncol
        around.append(f"{name} {rows[row + down][column + right] if inside else 'edge'}")
    rows[row][column] = "@"
    return "\n".join([*(" ".join(cells) for cells in rows), ", ".join(around)])


def _cliff(toy: Any, state: int) -> str:
    row, column = divmod(int(state), toy.shape[1])
    last, right = toy.shape[0] - 1, toy.shape[1] - 1
    return f"row {row} column {column}; the goal is row {last} column {right}, the cliff all between in row {last}"


def _taxi(toy: Any, state: int) -> str:
    row, column, passenger, goal = toy.decode(int(state))
    drawn = "\n".join("".join(cell.decode() for cell in line) for line in toy.desc.tolist())
    return f"{drawn}\ntaxi in row {row} column {column}, passenger in {_STOPS[passenger]}, bound for {_STOPS[goal]}"


def _blackjack(toy: Any, state: Sequence[int]) -> str:
    mine, dealer, ace = map(int, state)
    return f"your cards are worth {mine}{' with an ace as 11' if ace else ''}, the dealer shows {dealer}"


_VIEWS: Final[Mapping[str, Callable[[Any, Any], str]]] = {
    "FrozenLakeEnv": _frozen_lake, "CliffWalkingEnv": _cliff, "TaxiEnv": _taxi, "BlackjackEnv": _blackjack,
}  # fmt: skip
