"""textarena's games for one player: `textarena:Mastermind-v0`.

What the game says is the user's turn, what the policy says is the move, and invalid moves are dealt with by the game.
A task is the state in which a seed begins a game, told by its hash; whoever plays begins it again from the seed in the
task's id. The package draws from Python's one generator of random numbers: each play has a state of its own for it.
"""

import hashlib
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Final

from swarm.environments.adapters import require_same, seed_of, unknown_error
from swarm.environments.base import Environment, Game, Message, Outcome, Task, text_of
from swarm.errors import InvalidRequest

_CHANCE: Final = threading.Lock()
"""Held by whoever draws from `random`."""


class ArenaGame(Game):
    """One play, from its seed."""

    def __init__(self, new: Any, seed: int) -> None:
        from textarena import SinglePlayerState

        self._drawn = random.Random(seed).getstate()
        with self._chance():
            self._arena = new()
            self._arena.reset(num_players=1, seed=seed)
        self._inside = self._arena
        while hasattr(self._inside, "env"):
            self._inside = self._inside.env
        self.for_one = isinstance(self._inside.state, SinglePlayerState)
        self._first = self._read_observation()
        state = repr((self._inside.state.game_state, self._first))
        self.start = hashlib.sha256(state.encode()).hexdigest()[:16]

    def opening(self) -> list[Message]:
        return [{"role": "user", "content": self._first}]

    def answer(self, message: Message) -> list[Message]:
        with self._chance():
            done, _ = self._arena.step(text_of(message))
        return [] if done else [{"role": "user", "content": self._read_observation()}]

    def outcome(self) -> Outcome:
        rewards, said = self._arena.close()
        facts = {"turns": said[0]["turn_count"], "invalid move": float(said[0]["invalid_move"])}
        return Outcome(max(-1.0, min(1.0, rewards[0])) if rewards else 0.0, facts=facts)

    def _read_observation(self) -> str:
        _, seen = self._inside.get_observation()
        return "\n".join(text for _, text, kind in seen if kind.name != "PLAYER_ACTION") or "Your move."

    @contextmanager
    def _chance(self) -> Iterator[None]:
        with _CHANCE:
            others = random.getstate()
            random.setstate(self._drawn)
            try:
                yield
            finally:
                self._drawn = random.getstate()
                random.setstate(others)


class Arena(Environment):
    """One game of the package, begun by seeds."""

    reward_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    solved_at: ClassVar[float] = 1.0
    measures: ClassVar[str] = "the game gives its full reward, 1"

    def __init__(self, name: str, new: Any) -> None:
        self.title = f"textarena's {name}"  # type: ignore[misc]  # of each one its own
        self._new = new

    def generate(self, seed: int) -> Task:
        return Task(str(seed), {"start": ArenaGame(self._new, seed_of(seed)).start})

    def game(self, task: Task) -> ArenaGame:
        game = ArenaGame(self._new, seed_of(int(task.id)))
        require_same(task, "start", game.start, "textarena")
        return game


def make(name: str, options: Mapping[str, Any]) -> Arena:
    import textarena
    from textarena.envs.registration import ENV_REGISTRY

    if name not in ENV_REGISTRY:
        raise unknown_error("a game of textarena", name, ENV_REGISTRY)
    new = partial(textarena.make, name, **options)
    try:
        for_one = ArenaGame(new, 0).for_one
    except Exception as error:  # whatever keeps a game from its start
        said = " ".join(str(error).split())
        why = f"cannot be begun ({type(error).__name__}: {said:.200})"
        if isinstance(error, SyntaxError):
            why = "is written for Python 3.12 or newer"
        elif isinstance(error, LookupError) and "nltk" in said:
            why = "needs words of nltk: python -m nltk.downloader words averaged_perceptron_tagger_eng"
        elif "layer" in said and isinstance(error, AssertionError | ValueError):
            why = f"is for more players than one ({said:.100})"
        raise InvalidRequest(f"expected a game of textarena that can be played here; {name} {why}") from error
    if not for_one:
        raise InvalidRequest(f"expected a game of textarena for one player; {name} is for more")
    return Arena(name, new)
