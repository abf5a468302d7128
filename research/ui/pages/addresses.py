"""Which page stands at which address."""

from collections.abc import Mapping
from typing import Final

from research.ui.pages import compare, desk, episode, plan, planner, review, run, runs
from research.ui.site import Page, PageMaker

PAGES: Final[Mapping[str, PageMaker]] = {
    "/": desk.page, "/s/{study}": review.page, "/s/{study}/runs": runs.page, "/s/{study}/runs/{run}": run.page,
    "/s/{study}/runs/{run}/e/{episode}": episode.page, "/s/{study}/planner": planner.page, "/runs": runs.page,
    "/servers/{server}/e/{episode}": episode.page, "/compare": compare.page, "/ask": plan.page,
    "/help": lambda site, view: Page("help.html.jinja", "Keys and signs", {}),
}  # fmt: skip
