"""Which figures a report draws, from its content; those of several rounds by names of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from studies.report.inquiry import InquiryView
from studies.report.view import ReportView

if TYPE_CHECKING:
    from studies.report.figures.drawing import Figure


def figures(content: ReportView, prefix: str = "") -> dict[str, Figure]:
    """Return the figures of a study of one round, or (with a prefix of their names) of one of several, by name."""
    # matplotlib takes most of a second, which a command that builds no report should not wait for.
    from studies.report.figures import drawing

    rewards = enumerate(content.training.reward_curves, start=1)
    drawn = [
        drawing.predictions(content.forecasts, prefix) if content.forecasts else None,
        drawing.before_after(content.shifts, prefix) if content.shifts else None,
        drawing.hidden_curves(content.hidden, prefix) if content.hidden else None,
        drawing.learning_curves(content.curves, prefix) if content.curves else None,
        drawing.screen(content.stages.screened, prefix) if content.stages.screened else None,
        drawing.training(content.training.curves, prefix) if content.training.curves else None,
        *(drawing.training_reward(data, number, prefix) for number, data in rewards),
    ]
    return {figure.name: figure for figure in drawn if figure is not None}


def inquiry_figures(content: InquiryView) -> dict[str, Figure]:
    """Return the figures of an inquiry by name: those over all rounds, then each round's."""
    from studies.report.figures import rounds  # see figures

    whole = [*(rounds.effects(data, number) for number, data in enumerate(content.effects, start=1))]
    whole.append(rounds.levels(content.levels))
    found = {figure.name: figure for figure in whole}
    for section in content.rounds:
        if section.content is not None:
            found |= figures(section.content, section.prefix)
    return found
