"""A world made by hand: every value and every price is written down, so that a rule's claims can be foretold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simlab.worlds.world import Configuration, Played, Scalar


@dataclass
class HandMade:
    """Runs show the truth, plus what `lucky` adds to the run of a configuration with a seed; a step costs a minute."""

    values: Mapping[tuple[Scalar, ...], float]
    knobs: Mapping[str, tuple[Scalar, ...]]
    lucky: Mapping[int, float] = field(default_factory=dict)
    """What is added to the score of the n-th run, from 0."""
    steps: int = 9
    ran: list[tuple[tuple[Scalar, ...], int, int]] = field(default_factory=list)
    """Every run: place, seed, steps."""

    def true_value(self, configuration: Configuration) -> float:
        return self.values[self._place(configuration)]

    def kept_value(self, configuration: Configuration) -> float:
        return self.true_value(configuration)

    def run(self, configuration: Configuration, seed: int, steps: int | None = None) -> Played:
        length = self.steps if steps is None else steps
        value = self.true_value(configuration) * length / self.steps + self.lucky.get(len(self.ran), 0.0)
        self.ran.append((self._place(configuration), seed, length))
        return Played(0.0, value, value)

    def hours(self, configuration: Configuration, steps: int | None = None) -> float:
        return (self.steps if steps is None else steps) / 60

    def seconds(self, configuration: Configuration, steps: int, neighbours: int = 0) -> float:
        return 60.0 * steps

    def _place(self, configuration: Configuration) -> tuple[Scalar, ...]:
        return tuple(configuration[name] for name in self.knobs)
