"""What a language model must state where other planners have a default: what would matter, and what would refute it.

The same actions with fewer of their fields optional. An accepted answer is turned into the plain action. Where a
planner may decline, it says so in the same flat object, as strict endpoints take no choice between two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field

from research.planner.digest import Stage
from research.proposals.actions import (
    MOST_HYPOTHESES,
    Action,
    Conclude,
    Decline,
    Number,
    Propose,
    ProposeDesign,
    ProposedHypothesis,
    ProposedScreen,
)


class StatedHypothesis(ProposedHypothesis):
    """One claim: the treatment value of one job field moves the metric away from the control value's."""

    smallest_effect: Number = Field(gt=0)
    """The smallest difference of the metric that would matter; at most the study's `smallest_effect`."""
    falsifier: str = Field(min_length=1, max_length=500)
    """The cheapest observation that would show the claim to be false."""


class StatedPropose(Propose):
    """Put hypotheses on the board, or say that a search for the best values comes first."""

    hypotheses: tuple[StatedHypothesis, ...] = Field(default=(), max_length=MOST_HYPOTHESES)
    """One to three hypotheses; none if `search` is true."""

    def plain(self) -> Propose:
        """Return the action without the demands on it."""
        return Propose.model_validate(self.model_dump())


class StatedScreen(ProposedScreen):
    """A search: candidates are trained shortly with one seed, and the best of them are then confirmed on fresh seeds.

    The control is the job's default values of the knobs; the claim on each confirmed candidate is written by code.
    """

    smallest_effect: Number = Field(gt=0)
    """The smallest difference of the metric that would matter; at most the study's `smallest_effect`."""


class StatedDesign(ProposeDesign):
    """Ask for a comparison of all proposed hypotheses in one environment, or for the screen that finds the arms."""

    screen: StatedScreen | None = None
    """The screen, if you proposed a search; null otherwise."""

    def plain(self) -> ProposeDesign:
        """Return the action without the demands on it."""
        return ProposeDesign.model_validate(self.model_dump())


ACTIONS: Final[Mapping[Stage, type[StatedPropose] | type[StatedDesign] | type[Conclude]]] = {
    "propose": StatedPropose,
    "design": StatedDesign,
    "conclude": Conclude,
}
"""The action that each stage expects."""
DECLINABLE: Final[tuple[Stage, ...]] = ("propose", "design")
"""Stages in which a planner may decline instead."""


def stated(stage: Stage, answer: Mapping[str, Any]) -> Action:
    """Return the action that an answer states; raise pydantic's ValidationError for one that is none of the stage's."""
    if stage not in DECLINABLE:
        return Conclude.model_validate(answer)
    if answer.get("action") == "decline":
        return Decline.model_validate({name: answer[name] for name in ("action", "reason") if name in answer})
    kind = StatedPropose if stage == "propose" else StatedDesign
    return kind.model_validate({name: value for name, value in answer.items() if name != "reason"}).plain()
