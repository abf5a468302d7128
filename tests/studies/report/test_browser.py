from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from studies.records.design import Arm
from studies.report import build_report
from tests.studies.asked_on import Inquiry
from tests.studies.synthetic import Synthetic, design

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (.ci/run installs it)"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=quiet)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    synthetic = Synthetic(tmp_path_factory.mktemp("study"), topic="Does <b>a larger</b> group help? " + "word " * 40)
    return build_report(synthetic.whole(), synthetic.folder).html


def opened(browser: Browser, report: Path, *, width: int, scheme: str) -> tuple[Page, list[str]]:
    """Open the report; return its page and everything that went wrong or was asked of a network."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    noticed: list[str] = []
    page.on("request", lambda request: noticed.append(request.url) if request.url != report.as_uri() else None)
    page.on("console", lambda message: noticed.append(message.text))
    page.on("pageerror", lambda error: noticed.append(str(error)))
    page.goto(report.as_uri())
    return page, [entry for entry in noticed if not entry.startswith("data:")]


@pytest.mark.parametrize("width", [390, 1200])
def test_a_report_needs_nothing_but_itself_fits_and_is_light_or_dark(
    browser: Browser, report: Path, width: int
) -> None:
    colours = set()
    for scheme in ("light", "dark"):
        page, noticed = opened(browser, report, width=width, scheme=scheme)
        assert noticed == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("svg").count() >= 3
        assert page.locator("b", has_text="a larger").count() == 0
        body = "getComputedStyle(document.body)"
        colours.add(page.evaluate(f"{body}.backgroundColor + {body}.color"))
        page.context.close()
    assert len(colours) == 2


@pytest.mark.parametrize("width", [390, 1200])
def test_what_nobody_reads_at_first_is_folded_until_it_is_asked_for(
    browser: Browser, told: Inquiry, report: Path, width: int
) -> None:
    for path, detail in ((told.folder / "report.html", "round-2-detail"), (report, "detail")):
        page, noticed = opened(browser, path, width=width, scheme="light")
        assert noticed == []
        assert path != report or len(page.locator("main").inner_text().split()) < 900
        for name in (detail, "appendix"):
            assert page.locator(f"#{name} table").first.is_hidden()
            page.locator(f"#{name} > summary").click()
            assert page.locator(f"#{name} table").first.is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.context.close()


def test_names_of_arms_are_whole_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    long = "learning_rate=0.003+group_size=16+temperature=0.7+clip_ratio=0.28"[:64]
    arms = (Arm(name=long, overrides={"group_size": 4}), Arm(name="b", overrides={"group_size": 16}))
    synthetic = Synthetic(tmp_path, means={long: 0.5, "b": 0.6})
    built = build_report(synthetic.whole(design(arms=arms, control_arm=long)), tmp_path)
    page, _ = opened(browser, built.html, width=400, scheme="light")
    cut = page.evaluate(
        "[...document.querySelectorAll('td[class*=arm-]')].filter(td => td.scrollWidth > td.clientWidth + 1).length"
    )
    assert page.locator("td[class*=arm-]").count() > 0
    assert cut == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    drawn = page.locator("figure svg").evaluate_all("all => all.map(one => one.textContent.replace(/\\s+/g, ''))")
    assert sum(long in text for text in drawn) >= 2
    page.context.close()
