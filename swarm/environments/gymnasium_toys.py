"""gymnasium's toys of numbered states and actions, put into words: `gymnasium:FrozenLake-v1?is_slippery=false`.

Options are those of `gymnasium.make`. FrozenLake has a map for each task, of `size` and `p` (as `generate_random_map`
has them), unless one is named. A task is what its opening says. The rewards of a play are added up and brought to 0..1
by what they could be; a play that does not come to its end, for instance by an answer that names no action, is worth
nothing.
"""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from swarm.environments.adapters import require_same, seed_of
from swarm.environments.base import Environment, Game, Message, Outcome, Task, said, text_of
from swarm.errors import InvalidRequest

ACTIONS: Final[Mapping[str, Sequence[str]]] = {
    "FrozenLakeEnv": ("left", "down", "right", "up"),
    "CliffWalkingEnv": ("up", "right", "down", "left"),
    "TaxiEnv": ("south", "north", "east", "west", "pickup", "dropoff"),
}
_STEPS = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
_STOPS = ("R", "G", "Y", "B", "the taxi")


def describe_state(toy: Any, state: Any) -> str:
    match type(toy).__name__:
        case "FrozenLakeEnv":
            rows = [[cell.decode() for cell in row] for row in toy.desc.tolist()]
            row, column = divmod(int(state), toy.ncol)
            around = []
            for name, (down, right) in _STEPS.items():
                inside = 0 <= row + down < toy.nrow and 0 <= column + right < toy.ncol
                around.append(f"{name} {rows[row + down][column + right] if inside else 'edge'}")
            rows[row][column] = "@"
            return "\n".join([*(" ".join(cells) for cells in rows), ", ".join(around)])
        case "CliffWalkingEnv":
            row, column = divmod(int(state), toy.shape[1])
            last = toy.shape[0] - 1
            goal = f"the goal is row {last} column {toy.shape[1] - 1}, the cliff all between in row {last}"
            return f"row {row} column {column}; {goal}"
        case "TaxiEnv":
            row, column, passenger, stop = toy.decode(int(state))
            drawn = "\n".join("".join(cell.decode() for cell in line) for line in toy.desc.tolist())
            where = f"taxi in row {row} column {column}, passenger in {_STOPS[passenger]}, bound for {_STOPS[stop]}"
            return f"{drawn}\n{where}"
        case _:
            return f"state {state}"


Transition = tuple[float, int, float, bool]
Transitions = Mapping[int, Mapping[int, Sequence[Transition]]]
DISCOUNT: Final = 0.95
"""So that the shorter of two ways is the better one."""
_CLOSE: Final = 1e-6


def is_deterministic(table: Transitions) -> bool:
    return all(len(follow) == 1 for actions in table.values() for follow in actions.values())


def policy(table: Transitions) -> dict[int, int]:
    values = dict.fromkeys(table, 0.0)

    def returns(follow: Sequence[Transition]) -> float:
        return sum(chance * (reward + (0.0 if ends else DISCOUNT * values[to])) for chance, to, reward, ends in follow)

    change = 1.0
    while change > _CLOSE:
        change = 0.0
        for state, actions in table.items():
            value = max(map(returns, actions.values()))
            change, values[state] = max(change, abs(value - values[state])), value
    return {state: max(actions, key=lambda action, of=actions: returns(of[action])) for state, actions in table.items()}  # type: ignore[misc]


OPTIONS: Final = frozenset({"size", "p"})
"""Of `generate_random_map`; gymnasium.make does not take them."""


def maps_of(first: Any, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the options of maps to be made, or None; InvalidRequest for named maps without chance, or impossible."""
    if type(first).__name__ != "FrozenLakeEnv":
        return None
    if {"desc", "map_name"} & options.keys():
        if is_deterministic(first.P):
            raise InvalidRequest(
                "expected a lake with more than one task; a map that is named, without chance, is one task; leave "
                "map_name out, as size=4 draws a map for each task, or let the ice be slippery: is_slippery=true"
            )
        return None
    size, density = options.get("size", first.nrow), options.get("p", 0.8)
    if not (isinstance(size, int) and 3 <= size <= 16 and isinstance(density, int | float) and 0.4 <= density <= 1.0):
        raise InvalidRequest(f"expected maps of size 3 to 16 and p 0.4 to 1; found {size} and {density}")
    return {"size": size, "p": density}


MOST_STEPS: Final = 100
"""Where the toy sets no limit."""


class ToyGame(Game):
    """One play of a toy."""

    def __init__(self, toy: Any, seed: int) -> None:
        self._toy, self.inside = toy, toy.unwrapped
        self.table: Transitions = self.inside.P
        self.actions = ACTIONS.get(type(self.inside).__name__) or tuple(
            map(str, range(int(self.inside.action_space.n)))
        )
        self.state, _ = toy.reset(seed=seed)
        self._total, self._last, self._steps = 0.0, 0.0, 0
        self._terminated = self._ended = False

    def opening(self) -> list[Message]:
        first = f"{describe_state(self.inside, self.state)}\nAnswer with one of: {', '.join(self.actions)}."
        return [{"role": "user", "content": first}]

    def answer(self, message: Message) -> list[Message]:
        named = [word for word in re.findall(r"\w+", text_of(message).lower()) if word in self.actions]
        if self._ended or not named:
            return []
        self.state, reward, self._terminated, truncated, _ = self._toy.step(self.actions.index(named[-1]))
        self._last, self._total, self._steps = float(reward), self._total + float(reward), self._steps + 1
        self._ended = self._terminated or truncated
        return [] if self._ended else [{"role": "user", "content": describe_state(self.inside, self.state)}]

    def outcome(self) -> Outcome:
        """Return the sum of the rewards, from 0 for the least there could be to 1 for the largest."""
        follows = [follow for actions in self.table.values() for follow in actions.values()]
        ending, going = (
            [reward for follow in follows for *_, reward, end in follow if end == ends] for ends in (True, False)
        )
        limit = self._toy.spec.max_episode_steps  # steps, the last of which may end the play
        low = limit * min(0.0, *going) + min(0.0, *ending)
        high = max(limit * max(0.0, *going) + max(0.0, *ending), low + 1.0)
        reward = min(1.0, max(0.0, (self._total - low) / (high - low))) if self._ended else 0.0
        facts = {"return": self._total, "steps": float(self._steps)}
        return Outcome(reward, self._terminated and self._last >= max(ending, default=0.0), facts)


class Toy(Environment):
    """An environment that gymnasium calls a toy and that says what follows each action, begun by seeds."""

    measures: ClassVar[str] = "the play ends with the largest reward that an end can have"

    def __init__(self, name: str, options: Mapping[str, Any], maps: Mapping[str, Any] | None) -> None:
        self.title = f"gymnasium's {name}"  # type: ignore[misc]  # of each one its own
        self._name, self._options, self._maps = name, options, maps
        self._policies: dict[str, Mapping[int, int]] = {}

    def start_game(self, seed: int) -> ToyGame:
        import gymnasium
        from gymnasium.envs.toy_text.frozen_lake import generate_random_map

        own = {} if self._maps is None else {"desc": generate_random_map(**self._maps, seed=seed_of(seed))}
        return ToyGame(gymnasium.make(self._name, disable_env_checker=True, **self._options, **own), seed_of(seed))

    def generate(self, seed: int) -> Task:
        """Return the opening of a seed, which is all there is to it unless chance comes after."""
        game = self.start_game(seed)
        decided = self._maps is not None or is_deterministic(game.table)
        return Task(str(seed), {"opening": game.opening()[0]["content"], **({} if decided else {"chance": seed})})

    def game(self, task: Task) -> ToyGame:
        game = self.start_game(int(task.id))
        require_same(task, "opening", game.opening()[0]["content"], "gymnasium")
        return game

    def oracle(self, task: Task, messages: Sequence[Message]) -> str:
        game = self.game(task)
        for message in messages:
            if message["role"] == "assistant":
                game.answer(message)
        return self._best(game)

    def imitate(self, task: Task, rng: random.Random) -> list[Message]:
        """Return a play by someone who takes the best action half of the time, and any otherwise."""
        game = self.game(task)
        messages = following = game.opening()
        while following:
            move = said(rng.choice(game.actions) if rng.random() < 0.5 else self._best(game))
            following = game.answer(move)
            messages = [*messages, move, *following]
        return messages

    def _best(self, game: ToyGame) -> str:
        key = str(getattr(game.inside, "desc", ""))
        if key not in self._policies:
            self._policies[key] = policy(game.table)
        return game.actions[self._policies[key][int(game.state)]]


def make(name: str, options: Mapping[str, Any]) -> Toy:
    import gymnasium

    try:
        limit = {"max_episode_steps": gymnasium.spec(name).max_episode_steps or MOST_STEPS}
        given = {key: value for key, value in options.items() if key not in OPTIONS}
        first = gymnasium.make(name, **{**limit, **given}).unwrapped
        maps = maps_of(first, options)
        if not isinstance(first.action_space, gymnasium.spaces.Discrete):
            raise InvalidRequest(f"expected numbered actions; {name} takes {first.action_space!s:.100}")
        if not hasattr(first, "P"):
            found = f"{name} sees {first.observation_space!s:.100}"
            raise InvalidRequest(f"expected an environment of gymnasium that says what follows each action; {found}")
        toy = Toy(name, {**limit, **(options if maps is None else given)}, maps)
        toy.generate(0)
    except (gymnasium.error.Error, TypeError, ValueError, LookupError, ImportError) as error:
        raise InvalidRequest(f"expected an environment of gymnasium; {' '.join(str(error).split())}") from error
    return toy
