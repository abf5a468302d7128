"""What a study is asked to promise: the smallest effect of interest, the power to see it, looks and evaluation size.

They are settings of a study, given by flags and kept in `study.created`; a study of before they existed has the
defaults. What is asked for as a metric stands beside them: the effect is in its unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from research.design.estimates import EVALUATION_EPISODES
from research.errors import DesignRefused
from research.metrics.asked import AskedMetric
from research.metrics.judge import default_effect, span, with_unit
from studies.inquiry.ledger import MOST_ROUNDS
from studies.metrics.kinds.success import Success
from studies.records.design import Metric

DEFAULT_POWER = 0.8
DEFAULT_LOOKS = 3
MOST_LOOKS = 5
LEAST_EPISODES, MOST_EPISODES = 64, 8192


_LEAST_OF_RANGE: Final = 1e-3
"""No effect of a time or a cost is smaller than such a part of its range: who says less means a share of it."""
_SHARE: Final = Metric(meaning="hidden success", episodes=1)


@dataclass(frozen=True, slots=True)
class StatisticalRequirements:
    """The promise that a design must keep; raises DesignRefused for one that no design could."""

    effect: float | None = None
    """Smallest effect of interest, in the metric's own unit, where a hypothesis names none; None for the metric's."""
    power: float = DEFAULT_POWER
    """Probability of a claim in the right direction, if the true difference is the effect."""
    looks: int = DEFAULT_LOOKS
    """Most times the data are analysed."""
    episodes: int = EVALUATION_EPISODES
    """Hidden episodes of each evaluation before and after training."""
    metric: AskedMetric | None = None
    """What somebody asks runs to be judged by; None for success, or its gain where models are compared."""
    rounds: int | None = 1
    """Most rounds of the inquiry, over which its level is shared; None for as many as the budget leaves time for."""

    def __post_init__(self) -> None:
        _check_effect(self.effect, self.metric)
        if not 0.5 <= self.power <= 0.99:
            raise DesignRefused(f"expected a power from 0.5 to 0.99; found {self.power:g}; 0.8 is usual")
        if not 1 <= self.looks <= MOST_LOOKS:
            raise DesignRefused(f"expected 1 to {MOST_LOOKS} looks; found {self.looks}; use --looks {DEFAULT_LOOKS}")
        if self.rounds is not None and not 1 <= self.rounds <= MOST_ROUNDS:
            raise DesignRefused(f"expected 1 to {MOST_ROUNDS} rounds; found {self.rounds}; leave --rounds out")
        if not LEAST_EPISODES <= self.episodes <= MOST_EPISODES:
            raise DesignRefused(
                f"expected {LEAST_EPISODES} to {MOST_EPISODES} evaluation episodes; found {self.episodes}; "
                f"use --episodes {EVALUATION_EPISODES}"
            )

    @classmethod
    def asked(
        cls,
        effect: float | None,
        power: float,
        looks: int,
        episodes: int,
        metrics: Sequence[str] = (),
        rounds: int | None = 1,
    ) -> Self:
        """Return the requirements that flags give, None for what was not given; raise DesignRefused or BadMetric."""
        if len(metrics) > 1:
            raise DesignRefused(
                f"expected one metric; found --metric {' and --metric '.join(metrics)}; name the one that decides: a "
                "report tells others beside it"
            )
        return cls(effect, power, looks, episodes, AskedMetric.named(metrics[0]) if metrics else None, rounds)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Return the requirements in a study's settings."""
        effect = settings.get("effect")
        return cls(
            effect=None if effect is None else float(effect),
            power=float(settings.get("power", DEFAULT_POWER)),
            looks=int(settings.get("looks", DEFAULT_LOOKS)),
            episodes=int(settings.get("episodes", EVALUATION_EPISODES)),
            metric=AskedMetric.in_settings(settings),
            rounds=settings.get("rounds", 1),
        )

    def settings(self) -> dict[str, Any]:
        """Return them as a study's settings hold them."""
        effect = {} if self.effect is None else {"effect": self.effect}
        asked = {} if self.metric is None else self.metric.settings()
        rounds = {} if self.rounds == 1 else {"rounds": self.rounds}
        return {**effect, "power": self.power, "looks": self.looks, "episodes": self.episodes, **asked, **rounds}

    def least(self, metric: Metric) -> float:
        """Return the smallest effect of interest of a study that is judged by a metric.

        Raises DesignRefused for one that no two runs could differ by.
        """
        if self.effect is None:
            return default_effect(metric)
        require_within(self.effect, metric)
        return self.effect

    def wanted(self, effect: float | None, metric: Metric) -> float:
        """Return the effect that counts where a planner wants `effect` (None: it named none).

        Raises DesignRefused for a larger one than the study's: what matters is the user's to say, and a difference that
        does would pass for none.
        """
        least = self.least(metric)
        if effect is None:
            return least
        if effect > least and self.effect is None and metric.unit:
            return least  # a part of the range, which was another where it was named
        if effect > least:
            raise DesignRefused(
                f"expected a smallest_effect of at most {with_unit(metric, least)}, which is the study's; found "
                f"{effect:g}; name {least:g} or a smaller one"
            )
        require_within(effect, metric)
        return effect


def require_within(effect: float, metric: Metric) -> None:
    """Raise DesignRefused for an effect that is none, or that no two runs can differ by."""
    most = span(metric)
    least = 0.0 if metric.cut_at is None else _LEAST_OF_RANGE * most
    if least < effect < most:
        return
    ends = f"{metric.worst:g} to {metric.best:g}" if metric.unit else "a share"
    bounds = f"above {least:g} and below {with_unit(metric, most)}"
    told = f"expected a smallest effect {bounds}, as the metric is {ends}; found {effect:g}"
    usual = with_unit(metric, default_effect(metric))
    raise DesignRefused(f"{told}; use --effect {default_effect(metric):g}, which is {usual}", for_planner=told)


def _check_effect(effect: float | None, metric: AskedMetric | None) -> None:
    """Refuse an effect that is none of any metric of the kind: the range of others is known with their jobs."""
    if effect is None:
        return
    if metric is None or metric.kind == Success.name:
        require_within(effect, _SHARE)
    elif not (effect > 0 and math.isfinite(effect)):
        raise DesignRefused(
            f"expected a smallest effect above 0, in the unit of --metric {metric.text}; found {effect:g}; leave "
            "--effect out for the metric's own"
        )


DEFAULT_REQUIREMENTS = StatisticalRequirements()
"""Ten points of success seen with power 0.8, at three looks or fewer."""
