"""Prefect's own page in a browser: its buttons are there for a study and are obeyed, and a report's pictures show."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from research.orchestration.server import PrefectServer
from tests.research.orchestration.shown import CANCELLED, PATIENCE_S, PAUSED, Asking, Told, Watched, artifacts_of, visit
from tests.studies.synthetic import STUDY as SYNTHETIC

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow


def click(page: Page, server: PrefectServer, watched: Watched, button: str, confirmed: str) -> None:
    """Choose from the flow run's menu and confirm, as a person would, until a server that may be busy has done it."""
    done = False
    while not done:
        visit(page, server, f"runs/flow-run/{watched.flow_run.id}")
        page.get_by_role("button", name="Open menu").click()
        page.get_by_role("menuitem", name=button, exact=True).click()
        with page.expect_response(lambda reply: reply.url.endswith(("/set_state", "/resume"))) as pressed:
            page.get_by_role("button", name=confirmed, exact=True).click()
        done = pressed.value.ok


def test_the_buttons_are_there_and_are_obeyed(page: Page, server: PrefectServer, watched: Watched) -> None:
    click(page, server, watched, "Pause", "Pause Flow Run")
    watched.refresh()
    assert watched.tick().paused_reason == PAUSED
    click(page, server, watched, "Resume", "Resume")
    watched.refresh()
    assert watched.tick().paused_reason is None
    click(page, server, watched, "Cancel", "Cancel Flow Run")
    watched.refresh()
    assert watched.tick().stopped_reason == CANCELLED


def test_a_question_is_answered_in_its_form(page: Page, server: PrefectServer, asking: Asking) -> None:
    visit(page, server, f"runs/flow-run/{asking.flow_run.id}")
    page.get_by_role("button", name="Open menu").click()
    page.get_by_role("menuitem", name="Resume", exact=True).click()
    form = page.get_by_role("dialog")
    form.get_by_text("at most 8 runs").wait_for()
    form.get_by_label("Select Answer").click()
    page.get_by_role("option", name="approve", exact=True).click()
    form.get_by_label("Note").fill("within this week")
    with page.expect_response(lambda reply: reply.url.endswith("/resume")) as pressed:
        form.get_by_role("button", name="Resume", exact=True).click()
    assert pressed.value.ok, pressed.value.text()
    deadline = time.monotonic() + PATIENCE_S
    while not asking.state().approvals:  # a server that is busy may not have told it by the first look
        assert time.monotonic() < deadline, asking.shown()
        asking.refresh()
    (given,) = asking.state().approvals
    assert (given.granted, given.by, given.note) == (True, "Prefect", "within this week")
    assert asking.shown() == "Running"


def test_every_picture_of_a_report_is_drawn(page: Page, server: PrefectServer, told: Told) -> None:
    figures = told.conclude().count("](figures/")
    _, run = told.begin()
    report = artifacts_of(told.client, run)[f"{SYNTHETIC}-report"]["id"]
    visit(page, server, f"artifacts/artifact/{report}")
    assert figures
    drawn = "count => [...document.images].filter(one => one.complete && one.naturalWidth > 0).length === count"
    page.wait_for_function(drawn, arg=figures)  # the page draws anew while it loads
