"""What a study is asked to promise: the smallest effect of interest, the power to see it, looks and evaluation size.

They are settings of a study, given by flags and kept in `study.created`; a study of before they existed has the
defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from research.design.pricing import EVALUATION_EPISODES
from research.errors import DesignRefused
from research.proposals.actions import DEFAULT_EFFECT

DEFAULT_POWER = 0.8
DEFAULT_LOOKS = 3
MOST_LOOKS = 5
LEAST_EPISODES, MOST_EPISODES = 64, 8192
METRIC_RANGE = 1.0
"""The metric is a share: no difference of two shares reaches further."""


@dataclass(frozen=True, slots=True)
class StatisticalRequirements:
    """The promise that a design must keep; raises DesignRefused for one that no design could."""

    effect: float = DEFAULT_EFFECT
    """Smallest effect of interest, in the metric's own unit, where a hypothesis names none."""
    power: float = DEFAULT_POWER
    """Probability of a claim in the right direction, if the true difference is the effect."""
    looks: int = DEFAULT_LOOKS
    """Most times the data are analysed."""
    episodes: int = EVALUATION_EPISODES
    """Hidden episodes of each evaluation."""

    def __post_init__(self) -> None:
        check_effect(self.effect)
        if not 0.5 <= self.power <= 0.99:
            raise DesignRefused(f"expected a power from 0.5 to 0.99; found {self.power:g}; 0.8 is usual")
        if not 1 <= self.looks <= MOST_LOOKS:
            raise DesignRefused(f"expected 1 to {MOST_LOOKS} looks; found {self.looks}; use --looks {DEFAULT_LOOKS}")
        if not LEAST_EPISODES <= self.episodes <= MOST_EPISODES:
            raise DesignRefused(
                f"expected {LEAST_EPISODES} to {MOST_EPISODES} evaluation episodes; found {self.episodes}; "
                f"use --episodes {EVALUATION_EPISODES}"
            )

    @classmethod
    def asked(cls, effect: float | None, power: float, looks: int, episodes: int) -> Self:
        """Return the requirements that flags give; an effect of None was not given. Raises DesignRefused."""
        return cls(DEFAULT_EFFECT if effect is None else effect, power, looks, episodes)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Return the requirements in a study's settings."""
        return cls(
            effect=float(settings.get("effect", DEFAULT_EFFECT)),
            power=float(settings.get("power", DEFAULT_POWER)),
            looks=int(settings.get("looks", DEFAULT_LOOKS)),
            episodes=int(settings.get("episodes", EVALUATION_EPISODES)),
        )

    def wanted(self, effect: float | None) -> float:
        """Return the effect that counts where a planner wants `effect` (None: it named none).

        Raises DesignRefused for a larger one than the study's: what matters is the user's to say, and a difference that
        does would pass for none.
        """
        if effect is None:
            return self.effect
        if effect > self.effect:
            raise DesignRefused(
                f"expected a smallest_effect of at most {self.effect:g}, which is the study's; found {effect:g}; name "
                f"{self.effect:g} or a smaller one"
            )
        check_effect(effect)
        return effect

    def settings(self) -> dict[str, Any]:
        """Return them as a study's settings hold them."""
        return {"effect": self.effect, "power": self.power, "looks": self.looks, "episodes": self.episodes}


def check_effect(effect: float) -> None:
    """Raise DesignRefused for an effect that is none, or that no two shares can differ by."""
    if not 0 < effect < METRIC_RANGE:
        expected = f"expected a smallest effect above 0 and below {METRIC_RANGE:g}, as the metric is a share"
        told = f"{expected}; found {effect:g}"
        raise DesignRefused(
            f"{told}; use --effect {DEFAULT_EFFECT:g}, which is ten points of success", for_planner=told
        )


DEFAULT_REQUIREMENTS = StatisticalRequirements()
"""Ten points of success seen with power 0.8, at three looks or fewer."""
