"""What the plays of players who have learned nothing say against an environment: pure functions of their figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pydantic import BaseModel, ConfigDict

ORACLE: Final = "oracle"
DEMONSTRATIONS: Final = "demonstrations"
EMPTY: Final = "empty answers"
RANDOM: Final = "random answers"
MOST_EMPTY: Final = 0.6
"""Of the way from the least reward to the oracle's, and of the tasks to be solved: what an empty answer may have."""
MOST_RANDOM: Final = 0.8
"""What random answers may: two choices are right half the time."""
GOOD_ORACLE: Final = 0.9
RARE: Final = 0.05
"""Of demonstrations that succeed: of eight plays that imitate them, mostly none earns anything."""


class Player(BaseModel):
    """What the plays of one player came to: means over its plays."""

    model_config = ConfigDict(frozen=True)

    player: str
    plays: int
    reward: float
    success: float
    calls: float
    characters: float
    seconds: float
    """Of the environment's own code."""


def faults(players: Mapping[str, Player], reward_range: tuple[float, float]) -> Iterator[str]:
    """Yield what makes rewards unfit to be trained on, or success to be measured, a line each."""
    oracle = players.get(ORACLE)
    if oracle is not None:
        for other in players.values():
            if other.reward > oracle.reward:
                yield (
                    f"{other.player} earn {other.reward:.3g}, more than the oracle's {oracle.reward:.3g}: the oracle "
                    "or the reward is wrong"
                )
    yield from _unearned(players, reward_range[0], oracle.reward if oracle is not None else reward_range[1])


def _unearned(players: Mapping[str, Player], least: float, best: float) -> Iterator[str]:
    for name, most in ((EMPTY, MOST_EMPTY), (RANDOM, MOST_RANDOM)):
        found = players.get(name)
        if found is not None and _share(found.reward, least, best) > most:
            what = "an empty answer earns" if name == EMPTY else "random answers earn"
            yield f"{what} {found.reward:.3g} of {best:.3g}: the reward can be had without solving"
        elif found is not None and found.success > most:
            what = "an empty answer solves" if name == EMPTY else "random answers solve"
            yield f"{what} {found.success:.0%} of the tasks: success can be had without solving"


def remarks(players: Mapping[str, Player], *, oracle: bool, demonstrations: bool) -> Iterator[str]:
    """Yield what is no fault, but worth knowing before a study."""
    if not oracle:
        yield "no oracle: nobody has shown that its tasks can be solved; give it `oracle`"
    elif ORACLE in players and players[ORACLE].success < GOOD_ORACLE:
        yield f"the oracle solves {players[ORACLE].success:.0%} of its tasks: is there a better answer?"
    if not demonstrations:
        yield "no demonstrations: a tiny model cannot learn it, as it has nothing to imitate"
    elif DEMONSTRATIONS in players and players[DEMONSTRATIONS].success < RARE:
        yield (
            f"demonstrations solve {players[DEMONSTRATIONS].success:.0%} of {players[DEMONSTRATIONS].plays} tasks: a "
            "tiny model that imitates them is hardly ever rewarded, and learns nothing; let the player of `imitate` "
            "succeed more often"
        )
    elif DEMONSTRATIONS in players and players[DEMONSTRATIONS].success > GOOD_ORACLE:
        yield (
            f"demonstrations solve {players[DEMONSTRATIONS].success:.0%}: a tiny model that imitates them has little "
            "left to learn; let the player of `imitate` make mistakes"
        )


def _share(reward: float, least: float, best: float) -> float:
    return (reward - least) / (best - least) if best > least else 1.0
