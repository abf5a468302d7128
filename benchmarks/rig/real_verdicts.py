"""Studies made of real runs: residuals of trainings that somebody else made, drawn again around a planted truth.

The runs are Dopamine's Atari baselines (`benchmarks/data/atari_baselines.json`, with provenance and licence): 6 agents
on 60 games, 5 seeds each. A score is made a share of its game's range, from the lowest run of any agent to the highest.
A residual is a run's distance from the mean of its agent's five; the mean was made of the same five, so that residuals
are too small by sqrt(4 / 5), and are made larger by that. There are three ways to draw a study of a game:

- `agent`: each arm draws from the five residuals of one agent, two agents a study: unequal noise is as it really is,
  but five values are few. Three draws of them are all equal in one of 25 arms, and nothing lies beyond the fifth.
- `game`: both arms draw from the thirty residuals of the game: less discrete, and of heavier tails, as loud and quiet
  agents are mixed; both arms have the same noise.
- `normal five`: a yardstick. As `agent`, but the five values are normal ones of that agent's spread, new ones for each
  study: what is false here is made by drawing from five values, and not by the noise.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean, variance
from typing import Any, Literal

from rig.simulated_verdicts import SD, Procedure, arm_data, judged, rate_of, sign_said
from studies.records.verdict import Verdict

DATA = Path(__file__).parents[1] / "data" / "atari_baselines.json"
SEED = 20261122
_MIDDLE = 0.5
_CORRECTION = math.sqrt(5 / 4)

Way = Literal["agent", "game", "normal five"]


@dataclass(frozen=True)
class Game:
    """A game's runs, as shares of its range."""

    name: str
    runs: Mapping[str, tuple[float, ...]]
    """Final values by agent, in the order of their seeds."""

    @cached_property
    def residuals(self) -> dict[str, list[float]]:
        """Each agent's distances from its mean, corrected for the mean being their own."""
        return {agent: [_CORRECTION * (x - fmean(runs)) for x in runs] for agent, runs in self.runs.items()}

    @cached_property
    def sd(self) -> float:
        """Noise between seeds, as the bank would say it: that of all agents."""
        return math.sqrt(fmean(variance(runs) for runs in self.runs.values()))


@cache
def games() -> tuple[Game, ...]:
    """Return all games."""
    scores: dict[str, dict[str, list[float]]] = json.loads(DATA.read_text())["scores"]
    found = []
    for name, runs in scores.items():
        values = [value for own in runs.values() for value in own]
        low, high = min(values), max(values)
        found.append(Game(name, {agent: tuple((x - low) / (high - low) for x in own) for agent, own in runs.items()}))
    return tuple(found)


def resampled(procedure: Procedure, way: Way, studies: int, *, planted: bool) -> dict[str, Any]:
    """Return what became of so many studies, the games in turn; planted: with the effect that so many seeds promise.

    The promise goes by the bank's noise, that of all agents on the game, as a real one would: two agents may be louder.
    Nothing is known of collapses: no run is left out.
    """
    rng = random.Random(f"{SEED} {procedure} {way} {planted}")
    counts = dict.fromkeys(("false_claim", "found", "wrong_sign", "equivalent"), 0)
    for number in range(studies):
        game = games()[number % len(games())]
        margin = procedure.margin * game.sd / SD
        effect = margin * rng.choice((-1, 1)) if planted else 0.0
        verdict = _study(procedure, game, way, effect, margin, rng)
        sign = sign_said(verdict)
        counts["false_claim"] += sign != 0 and sign * effect <= 0
        counts["found"] += verdict.verdict in ("supported", "refuted") and sign * effect > 0
        counts["wrong_sign"] += sign * effect < 0
        counts["equivalent"] += verdict.verdict == "equivalent"
    named = {name: rate_of(count, studies) for name, count in counts.items()}
    return {"rules": procedure.rules, "n": procedure.seeds, "way": way, "planted": planted, "studies": studies, **named}


def _study(procedure: Procedure, game: Game, way: Way, effect: float, margin: float, rng: random.Random) -> Verdict:
    residuals = game.residuals if way != "normal five" else _normal(game, rng)
    pool = [value for found in residuals.values() for value in found]
    first, second = rng.sample(sorted(residuals), 2)
    design = Procedure(procedure.rules, procedure.seeds, margin=margin).design(None)
    arms = {"control": (residuals[first], 0.0), "arm1": (residuals[second], effect)}
    runs = {
        name: [_MIDDLE + shift + value for value in rng.choices(pool if way == "game" else own, k=procedure.seeds)]
        for name, (own, shift) in arms.items()
    }
    return judged(design, {name: arm_data(name, values) for name, values in runs.items()})[0]


def _normal(game: Game, rng: random.Random) -> dict[str, list[float]]:
    """Return residuals of five normal runs of each agent, with its spread."""
    drawn = {
        agent: tuple(rng.gauss(0, math.sqrt(variance(runs))) for _ in runs) for agent, runs in sorted(game.runs.items())
    }
    return Game(game.name, drawn).residuals
