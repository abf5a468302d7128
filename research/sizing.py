"""How many seeds a comparison gets: as many as its promise needs and the budget affords, or a refusal with its prices.

Each alternative in a refusal is computed by the same rules that refuse: whoever takes one gets a design. They are more
seeds (the budget they cost), a larger effect, a larger evaluation (where the bank knows its part of the noise) and,
where time is short, shorter runs. Pairing seeds needs no alternative: it is chosen by itself where it is known to help.
Longer runs are not offered: no bank knows what they do to the noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from research.budget import format_seconds
from research.errors import DesignRefused
from research.noise_bank import NOISE_SEEDS, NoiseBank
from research.planner.actions import LEAST_SEEDS
from research.pricing import EVALUATION_EPISODES
from research.purse import Purse, Stage
from research.shape import Shape
from research.sight import MOST_SEEDS, Sight
from research.terms import MOST_EPISODES, Terms
from studies.procedure import Noise
from studies.records import Metric
from swarm.environments.registry import environments

SHORTEST_STEPS = 5
_AFTER_NOISE_SEEDS = 3
"""Seeds of an arm that must still be affordable after A/A runs, or those would teach what nobody can use."""


class Refused(DesignRefused):
    """Sound, but too dear or too weak: `need_s` is the price of what would do; `shorter`: shorter runs would."""

    def __init__(self, message: str, *, need_s: float, shorter: bool = False, for_planner: str | None = None) -> None:
        super().__init__(message, for_planner=for_planner)
        self.need_s = need_s
        self.shorter = shorter


@dataclass(frozen=True, slots=True)
class Sized:
    """A comparison with its number of seeds."""

    shape: Shape
    seeds: int
    sight: Sight
    noise: Noise
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Sizing:
    """What sizes are judged by."""

    terms: Terms
    purse: Purse
    bank: NoiseBank

    def size(self, shape: Shape, wanted: int) -> Sized:
        """Return the size: the seeds that are needed, or more if they are wanted and affordable. Raises Refused."""
        noise, sight = self.sight(shape)
        need = sight.seeds_needed(shape.effect)
        if need is None or not self.purse.affords(self.stages(shape, need)):
            raise self._refused(shape, sight, need)
        whole = self.searched(shape, need)
        for seeds in range(max(need, wanted), need, -1):
            if sight.sees(seeds, shape.effect) and self.purse.affords(self.stages(whole, seeds)):
                return Sized(whole, seeds, sight, noise, self.stages(whole, seeds))
        return Sized(whole, need, sight, noise, self.stages(whole, need))

    def sight(self, shape: Shape) -> tuple[Noise, Sight]:
        """Return the bank's word on a shape and what it lets see; raise Refused where there is none."""
        noise = self._noise(shape, self.terms.episodes)
        if noise is None:
            raise Refused(f"{self.unknown(shape)} A/A runs come first", need_s=0.0)
        return noise, self._seen_by(shape, noise)

    def unknown(self, shape: Shape) -> str | None:
        """Return why the bank has no word on a shape, in a sentence; None where it has."""
        job = shape.comparison.base
        return self.bank.why_not(job.environment, job, metric_of(job.environment, self.terms.episodes))

    def stages(self, shape: Shape, seeds: int, episodes: int | None = None) -> tuple[Stage, ...]:
        """Return what is run with so many seeds, at the worst."""
        job, plays = shape.comparison.base, episodes or self.terms.episodes
        still = (Stage("zero-lr", 1, self.purse.price.plumbing(job, plays)),) if self.bank.unchecked(job) else ()
        return (*still, *shape.stages(seeds, self.purse, plays))

    def noise_stage(self, shape: Shape) -> tuple[Stage, ...]:
        """Return the A/A runs and the least that has to follow; raise Refused where they are not affordable."""
        stages = self.noise_first(shape)
        if not self.purse.affords(stages):
            still = "One run with a learning rate of 0 and " if self.bank.unchecked(shape.comparison.base) else ""
            why = (
                f"{self.unknown(shape)} {still}{NOISE_SEEDS} A/A runs first, and then {_AFTER_NOISE_SEEDS} seeds x "
                f"{shape.arms} arms: {self.purse.priced(stages)}; {self.purse.stated()}"
            )
            less = next((n for n in _lengths(shape) if self._affords_noise(shorter(shape, n))), None)
            ways = _ways([*self._fewer_steps(shape, less), *_smaller(shape)])
            raise Refused(
                f"{why}: use {self.purse.flags(stages)}", need_s=self.purse.cost(stages), shorter=less is not None,
                for_planner=f"{why}: {ways}",
            )  # fmt: skip
        return stages

    def _affords_noise(self, shape: Shape) -> bool:
        return self.purse.affords(self.noise_first(shape))

    def noise_first(self, shape: Shape) -> tuple[Stage, ...]:
        """Return A/A runs and the least that has to follow them."""
        runs = Stage("A/A", NOISE_SEEDS, self.purse.price.run(shape.comparison.base, self.terms.episodes))
        return (runs, *self.stages(shape, _AFTER_NOISE_SEEDS))

    def _noise(self, shape: Shape, episodes: int) -> Noise | None:
        job = shape.comparison.base
        return self.bank.find(job.environment, job, metric_of(job.environment, episodes))

    def _seen_by(self, shape: Shape, noise: Noise) -> Sight:
        return Sight(noise, shape.arms, shape.families, shape.compared, self.terms.power, self.terms.looks)

    def searched(self, shape: Shape, seeds: int) -> Shape:
        """Return the shape with the largest screen that leaves its confirmation affordable."""
        if shape.screen is None:
            return shape
        sizes = range(shape.points, shape.screen.candidates, -1)
        wider = (shape.searching(candidates) for candidates in sizes)
        return next((entry for entry in wider if self.purse.affords(self.stages(entry, seeds))), shape)

    def affordable(self, shape: Shape) -> int | None:
        """Return the most seeds that the budget affords; None for fewer than a test needs."""
        counts = range(MOST_SEEDS, LEAST_SEEDS - 1, -1)
        return next((seeds for seeds in counts if self.purse.affords(self.stages(shape, seeds))), None)

    def _refused(self, shape: Shape, sight: Sight, need: int | None) -> Refused:
        offers = [*self._offers(shape, sight, need)]
        ways = f": {'; or '.join(offers)}" if offers else "; nothing that a flag sets would do"
        cost = self.purse.cost(self.stages(shape, need or MOST_SEEDS))
        steps = None if need is None else self.shorter_steps(shape, need)
        why = self._why(shape, sight, need)
        wishes = _ways([*self._fewer_steps(shape, steps), *self._plainer(shape, sight), *_smaller(shape)])
        return Refused(f"{why}{ways}", need_s=cost, shorter=steps is not None, for_planner=f"{why}: {wishes}")

    def _why(self, shape: Shape, sight: Sight, need: int | None) -> str:
        """Say what would be needed, what there is, and what can be seen with it."""
        promise = f"an effect of {shape.effect:g} with power {self.terms.power:g}"
        noise = f"the noise between seeds in {shape.comparison.base.environment} is {sight.noise.sd:.3f}"
        if need is None:
            seen = sight.detectable(MOST_SEEDS)
            can = f"{MOST_SEEDS} see {seen:g}" if seen else f"{MOST_SEEDS} see none"
            return f"no {MOST_SEEDS} seeds see {promise}, as {noise}; {can}"
        stages, most = self.stages(shape, need), self.affordable(shape)
        seen = sight.detectable(most) if most else None
        can = f"{most} seeds are affordable and see {seen:g}; " if seen else ""
        return (
            f"{promise} needs {need} seeds x {shape.arms} arms, as {noise}: {self.purse.priced(stages)}; {can}"
            f"{self.purse.stated()}"
        )

    def _plainer(self, shape: Shape, sight: Sight) -> Iterator[str]:
        """Offer a planner, which wished for a smaller effect than the study's, one that can be seen."""
        most = self.affordable(shape)
        effect = sight.detectable(most) if most else None
        if effect is not None and shape.effect < effect <= self.terms.effect:
            yield f"name a larger smallest_effect, {effect:g} (the study's is {self.terms.effect:g})"

    def _offers(self, shape: Shape, sight: Sight, need: int | None) -> Iterator[str]:
        if need is not None:
            yield f"use {self.purse.flags(self.stages(shape, need))}"
        yield from self._larger_effect(shape, sight)
        yield from self._larger_evaluation(shape, need)
        yield from self._shorter(shape, need)

    def _larger_effect(self, shape: Shape, sight: Sight) -> Iterator[str]:
        most = self.affordable(shape)
        effect = sight.detectable(most) if most else None
        if effect is not None and effect > shape.effect:
            yield f"look for a larger effect, --effect {effect:g}"

    def _larger_evaluation(self, shape: Shape, need: int | None) -> Iterator[str]:
        """Offer the smallest of the next sizes of evaluation with which a design is affordable, or its budget."""
        for episodes in _sizes(self.terms.episodes):
            noise = self._noise(shape, episodes)
            fewer = self._seen_by(shape, noise).seeds_needed(shape.effect) if noise and noise.evaluation_sd else None
            if fewer is None or (need is not None and fewer >= need):
                continue
            stages = self.stages(shape, fewer, episodes)
            flags = " ".join(filter(None, (f"--episodes {episodes}", self.purse.flags(stages))))
            if need is None or self.purse.cost(stages) < self.purse.cost(self.stages(shape, need)):
                yield f"evaluate on more episodes, {flags} ({fewer} seeds, {format_seconds(self.purse.cost(stages))})"
                return

    def _shorter(self, shape: Shape, need: int | None) -> Iterator[str]:
        if need is not None:
            yield from self._fewer_steps(shape, self.shorter_steps(shape, need))

    def _fewer_steps(self, shape: Shape, steps: int | None) -> Iterator[str]:
        if steps is not None:
            yield f"train {steps} steps instead of {shape.comparison.base.steps}"

    def shorter_steps(self, shape: Shape, seeds: int) -> int | None:
        """Return the most steps, of halves of those wanted, with which so many seeds are affordable."""
        fitting = (n for n in _lengths(shape) if self.purse.affords(self.stages(shorter(shape, n), seeds)))
        return next(fitting, None)


def shorter(shape: Shape, steps: int) -> Shape:
    """Return the shape with another length of training."""
    comparison = replace(
        shape.comparison,
        base=shape.comparison.base.model_copy(update={"steps": steps}),
        jobs=tuple(job.model_copy(update={"steps": steps}) for job in shape.comparison.jobs),
    )
    replication = tuple(job.model_copy(update={"steps": steps}) for job in shape.replication)
    return replace(shape, comparison=comparison, replication=replication)


def _smaller(shape: Shape) -> Iterator[str]:
    """Yield what a planner may ask for less of; whether it is enough is seen when it asks."""
    if shape.replication:
        yield "leave the replication out"
    if shape.screen is not None:
        yield "search fewer knobs" if len(shape.screen.knobs) > 1 else "search fewer values"
        if shape.screen.confirmed > 1:
            yield "confirm fewer candidates"
    elif shape.claims > 1:
        yield "propose fewer hypotheses"


def _ways(wishes: list[str]) -> str:
    return "; or ".join([*wishes, "decline, and say why"])


def metric_of(environment: str, episodes: int = EVALUATION_EPISODES) -> Metric:
    """Return what runs in an environment are judged by."""
    measures = environments()[environment].measures
    meaning = f"share of {episodes} hidden episodes, played after the last step, in which {measures}"
    return Metric(meaning=meaning, episodes=episodes)


def _lengths(shape: Shape) -> Iterator[int]:
    """Yield shorter trainings, each half of the one before; none where the length is varied, or screened."""
    if shape.screen is not None or any("steps" in arm.overrides for arm in shape.comparison.arms):
        return
    steps = shape.comparison.base.steps // 2
    while steps >= SHORTEST_STEPS:
        yield steps
        steps //= 2


def _sizes(episodes: int) -> Iterator[int]:
    """Yield the sizes of evaluation that are offered: twice, four times, ... as many episodes."""
    return (size for power in range(1, 5) if (size := episodes * 2**power) <= MOST_EPISODES)
