"""Families of worlds for searches: each draws its truth from a seed, with one kind of structure.

A family is one difficulty: plain main effects, pairs that matter together, optima inside a ladder, thresholds, knobs
that do nothing, loud or quiet seeds, short runs that say little, collapses. All share the knobs, which are job fields,
and have their control anywhere on them. What no family knows is how often real training is like it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations, count
from math import log2

from simlab.worlds import Collapse, Effect, Interaction, MainEffect, Planted, Scalar, Threshold, best

KNOBS: Mapping[str, tuple[Scalar, ...]] = {
    "learning_rate": (0.0001, 0.0003, 0.001, 0.003, 0.01),
    "group_size": (4, 8, 16, 32),
    "epochs": (1, 2, 4),
    "clip_ratio": (0.1, 0.2, 0.4),
    "normalize_advantage": (False, True),
}
"""360 configurations."""
LEARNED_ON = ("main effects", "optimum inside")
"""Families that the defaults of a screen were chosen on (`simlab.screens`); the others are held
out."""
NOTHING = "nothing"
"""The family without any effect: there is nothing to find in it, so that it has no regret."""
CEILING = 0.9
"""Highest mean success of a configuration, so that hardly a run is cut off at the top."""
LEAST_GAIN = 0.05
"""In every other family the best configuration is above the control by this or more."""


def names() -> tuple[str, ...]:
    """Return the names of all families."""
    return tuple(_FAMILIES)


def drawn(family: str, seed: int) -> Planted:
    """Return a world of a family; raise ValueError if there is none of this name."""
    if family not in _FAMILIES:
        raise ValueError(f"expected a family of worlds ({', '.join(_FAMILIES)}); found {family!r}")
    worlds = (_FAMILIES[family](random.Random(f"{family}:{seed}:{attempt}"), seed) for attempt in count())
    return next(world for world in worlds if family == NOTHING or world_gain(world) >= LEAST_GAIN)


def world_gain(world: Planted) -> float:
    """Return how far the best configuration is above the control."""
    return best(world)[1] - world.true_value(world.base)


def _world(source: random.Random, seed: int, effects: tuple[Effect, ...]) -> Planted:
    """Return a world of these effects with usual noise: the control anywhere, at a success of 0.3 to 0.5."""
    base = {name: source.choice(values) for name, values in KNOBS.items()}
    world = Planted(
        seed=seed, knobs=KNOBS, base=base, effects=effects, pairing=0.3, rung_correlation=0.7, centre=0.0
    )  # fmt: skip
    wanted = source.uniform(0.3, 0.5) - world.true_value(base)
    return replace(world, centre=min(wanted, CEILING - best(world)[1]))


def _ramp(source: random.Random, name: str, rise: float) -> MainEffect:
    """Return a main effect that goes one way along a ladder, early, late or evenly."""
    values, bend = KNOBS[name], source.choice((0.5, 1.0, 2.0))
    return MainEffect(name, {value: rise * (at / (len(values) - 1)) ** bend for at, value in enumerate(values)})


def _hill(source: random.Random, name: str, depth: float) -> MainEffect:
    """Return a main effect with its top inside the ladder."""
    values = KNOBS[name]
    top = source.uniform(0.5, len(values) - 1.5)
    return MainEffect(name, {value: -depth * ((at - top) / (len(values) - 1)) ** 2 for at, value in enumerate(values)})


def _step(source: random.Random, name: str, rise: float) -> MainEffect:
    """Return a main effect that is there from one value of the ladder on."""
    values = KNOBS[name]
    first = source.randrange(1, len(values))
    return MainEffect(name, {value: rise * (at >= first) for at, value in enumerate(values)})


def _ramps(source: random.Random, size: float) -> tuple[MainEffect, ...]:
    return tuple(_ramp(source, name, source.gauss(0, size)) for name in KNOBS)


def _main(source: random.Random, seed: int) -> Planted:
    return _world(source, seed, _ramps(source, 0.08))


def _inside(source: random.Random, seed: int) -> Planted:
    hills = tuple(_hill(source, name, source.uniform(0.2, 0.5)) for name in ("learning_rate", "group_size", "epochs"))
    return _world(source, seed, (*hills, *_ramps(source, 0.04)[3:]))


def _pairs(source: random.Random, seed: int) -> Planted:
    """Two pairs of knobs turn each other's effect around; main effects are small."""
    ladders = [name for name in KNOBS if name != "normalize_advantage"]
    chosen = source.sample(list(combinations(ladders, 2)), 2)
    crossed = tuple(
        Interaction(
            (a, b), source.choice((-1, 1)) * source.uniform(0.08, 0.15) / _reach(a, b), (_middle(a), _middle(b))
        )
        for a, b in chosen
    )
    return _world(source, seed, (*crossed, *_ramps(source, 0.04)))


def _middle(name: str) -> float:
    values = [float(value) for value in KNOBS[name]]
    return float((values[0] * values[-1]) ** 0.5)


def _reach(first: str, second: str) -> float:
    """Return how many doublings squared lie between the middle and the corner of two ladders."""
    return log2(float(KNOBS[first][-1]) / _middle(first)) * log2(float(KNOBS[second][-1]) / _middle(second))


def _steps(source: random.Random, seed: int) -> Planted:
    chosen = source.sample(list(KNOBS), 3)
    steps = tuple(_step(source, name, source.choice((-1, 1)) * source.uniform(0.06, 0.15)) for name in chosen)
    return _world(source, seed, steps)


def _mostly_null(source: random.Random, seed: int) -> Planted:
    name = source.choice(list(KNOBS))
    return _world(source, seed, (_step(source, name, source.choice((-1, 1)) * source.uniform(0.1, 0.15)),))


def _nothing(source: random.Random, seed: int) -> Planted:
    return _world(source, seed, ())


def _loud(source: random.Random, seed: int) -> Planted:
    return replace(_main(source, seed), seed_sd=0.1)


def _quiet(source: random.Random, seed: int) -> Planted:
    return replace(_main(source, seed), seed_sd=0.01)


def _telling_rungs(source: random.Random, seed: int) -> Planted:
    return replace(_inside(source, seed), rung_correlation=0.9)


def _silent_rungs(source: random.Random, seed: int) -> Planted:
    return replace(_inside(source, seed), rung_correlation=0.3)


def _collapses(source: random.Random, seed: int) -> Planted:
    return replace(_main(source, seed), collapse=Collapse(0.0, Threshold("learning_rate", 0.003, 0.25)))


def _everything(source: random.Random, seed: int) -> Planted:
    hill, pairs = _hill(source, "learning_rate", source.uniform(0.2, 0.5)), _pairs(source, seed)
    crossed = tuple(effect for effect in pairs.effects if isinstance(effect, Interaction))[:1]
    stepped = (_step(source, "epochs", source.gauss(0, 0.08)), _ramp(source, "clip_ratio", source.gauss(0, 0.05)))
    world = _world(source, seed, (hill, *crossed, *stepped))
    return replace(
        world, seed_sd=0.06, rung_correlation=0.5, collapse=Collapse(0.0, Threshold("learning_rate", 0.01, 0.1))
    )


_FAMILIES: Mapping[str, Callable[[random.Random, int], Planted]] = {
    "main effects": _main,
    "optimum inside": _inside,
    "pairs": _pairs,
    "thresholds": _steps,
    "mostly null": _mostly_null,
    NOTHING: _nothing,
    "loud seeds": _loud,
    "quiet seeds": _quiet,
    "telling rungs": _telling_rungs,
    "silent rungs": _silent_rungs,
    "collapses": _collapses,
    "everything": _everything,
}
