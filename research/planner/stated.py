"""What a language model must state where other planners have a default: what would matter, and what would refute it.

The same actions with fewer of their fields optional. An accepted answer is turned into the plain action.
"""

from __future__ import annotations

from pydantic import Field

from research.planner.actions import MOST_HYPOTHESES, Number, Propose, ProposeDesign, ProposedHypothesis, ProposedScreen


class StatedHypothesis(ProposedHypothesis):
    """One claim: the treatment value of one job field moves the hidden-task success away from the control value's."""

    smallest_effect: Number = Field(gt=0, le=1)
    """The smallest difference of success rates that would matter, such as 0.1; smaller ones count as none."""
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

    smallest_effect: Number = Field(gt=0, le=1)
    """The smallest difference of success rates that would matter, such as 0.1; smaller ones count as none."""


class StatedDesign(ProposeDesign):
    """Ask for a comparison of all proposed hypotheses in one environment, or for the screen that finds the arms."""

    screen: StatedScreen | None = None
    """The screen, if you proposed a search; null otherwise."""

    def plain(self) -> ProposeDesign:
        """Return the action without the demands on it."""
        return ProposeDesign.model_validate(self.model_dump())
