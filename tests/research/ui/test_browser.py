"""In a real browser: pages ask nobody else for anything, run nothing but what is ours, and can be used by everybody."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

from research.cli.ui import bind
from research.ui.access import Access
from research.ui.app import PageServer, make_app
from research.ui.export import export_pages
from research.ui.pages.addresses import PAGES
from research.ui.site import Site
from studies import EventLog, StudyLog
from tests.research.ui.conftest import add_gallery_study, make_home
from tests.research.ui.test_actions import _note
from tests.studies.synthetic import Synthetic, hypothesis

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (.ci/run installs it)"),
]
ATTACK = (
    "</script><img src=x onerror=alert(1)><script>alert(2)</script>{{7*7}}"
    "\x1b[31m\N{RIGHT-TO-LEFT OVERRIDE}\u200b' \" `"
)
INQUIRY, PLAIN, HOSTILE = "what-limits-guess", "group-size-in-guess", "hostile"


class Served:
    """Pages at a port of their own, over a home with studies of the gallery and one in which every text attacks."""

    def __init__(self, folder: Path) -> None:
        home = make_home(folder)
        self.log = EventLog(home.database)
        self.studies = {name: add_gallery_study(home, self.log, name) for name in (INQUIRY, PLAIN)}
        self._attack(home.study(HOSTILE), folder)
        self.studies[HOSTILE] = HOSTILE
        self.site = Site(home, self.log, Access(home.path / "ui/keys.json"))
        self.serve(0)

    def serve(self, port: int) -> None:
        listening = bind(port)
        self.port = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        app = make_app(self.site, PAGES, [self.url.removeprefix("http://")])
        self._server = PageServer(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, args=([listening],), daemon=True)
        self._thread.start()

    def _attack(self, folder: Path, beside: Path) -> None:
        made = Synthetic(beside / "made", study=HOSTILE, topic=f"Does a larger group help? {ATTACK}")
        claim = hypothesis("h1", statement=ATTACK, mechanism=ATTACK)
        made.create(planner={"name": ATTACK, "model": ATTACK})
        made.lock(made.design.model_copy(update={"hypotheses": (claim,)}))
        for event in made.log.read_unverified(HOSTILE):
            with self.log.transaction("write") as connection:
                names = ", ".join(f":{name}" for name in event)
                connection.execute(__import__("sqlalchemy").text(f"insert into events values ({names})"), event)
        shutil.copytree(made.folder, folder)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def addresses(self) -> list[str]:
        found = ["/", "/runs", "/compare", "/ask", "/help"]
        for study in self.studies.values():
            run = next(iter(self.site.state(study).every_run), None)
            found += [f"/s/{study}", f"/s/{study}/runs", f"/s/{study}/planner"]
            found += [f"/s/{study}/runs/{run}"] if run else []
        return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield (made := Served(tmp_path_factory.mktemp("served")))
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
    with sync_playwright() as playwright:
        yield (chromium := playwright.chromium.launch(executable_path=CHROMIUM, args=quiet))
        chromium.close()


def signed_in(browser: Browser, served: Served, **options: Any) -> tuple[BrowserContext, Page, list[str]]:
    """Return a page of somebody who is signed in, and where all that should not happen is noted."""
    context = browser.new_context(**options)
    page, noticed = context.new_page(), list[str]()
    page.on("console", lambda message: noticed.append(message.text))
    page.on("pageerror", lambda error: noticed.append(str(error)))
    page.on("dialog", lambda dialog: noticed.append(f"dialog: {dialog.message}") or dialog.dismiss())
    foreign = re.compile(rf"(?!{re.escape(served.url)}|data:|about:)")
    page.on("request", lambda request: noticed.append(request.url) if foreign.match(request.url) else None)
    page.goto(f"{served.url}/sign-in#key={served.site.access.owner_key}")
    page.wait_for_selector("#needs" if options.get("java_script_enabled", True) else "#key")
    return context, page, noticed


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (1400, "dark"), (400, "light"), (400, "dark")])
def test_every_page_is_accessible_fits_and_asks_nobody_else(
    browser: Browser, served: Served, width: int, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    size: Any = {"width": width, "height": 900}
    context, page, noticed = signed_in(browser, served, viewport=size, color_scheme=scheme, bypass_csp=False)
    script = Path(Axe().axe_script_path if hasattr(Axe(), "axe_script_path") else _axe_script()).read_text()
    wrong: dict[str, Any] = {}
    for address in served.addresses():
        answer = page.goto(served.url + address)
        assert answer is not None
        found = page.evaluate(f"async () => {{ {script}; return await axe.run(); }}")
        said = [f"{each['id']}: {each['nodes'][0]['html'][:160]}" for each in found["violations"]]
        if answer.status != 200:
            said.append(f"status {answer.status}")
        if page.evaluate("document.documentElement.scrollWidth") > width:
            said.append("it scrolls sideways")
        if said:
            wrong[address] = said
    context.close()
    assert wrong == {}
    assert noticed == []


def _axe_script() -> Path:
    import axe_playwright_python

    return Path(axe_playwright_python.__file__).parent / "axe.min.js"


def test_what_somebody_wrote_is_shown_and_never_run(browser: Browser, served: Served) -> None:
    context, page, noticed = signed_in(browser, served)
    for address in (f"/s/{HOSTILE}", f"/s/{HOSTILE}/planner", "/"):
        page.goto(served.url + address)
        text = page.inner_text("main")
        assert "onerror=alert(1)" in text
        assert "\\u202e" in text
        assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in page.content()
        assert "{{7*7}}" in text
    context.close()
    assert noticed == []


def test_an_event_reaches_an_open_page_and_keeps_what_its_reader_does(browser: Browser, served: Served) -> None:
    context, page, noticed = signed_in(browser, served)
    study = served.studies[PLAIN]
    page.goto(f"{served.url}/s/{study}")
    page.wait_for_selector("#live[data-state=live]")
    page.evaluate("window.scrollTo(0, 300)")
    page.evaluate("document.querySelectorAll('main details[id]')[0].open = true")
    opened, at = page.evaluate("document.querySelector('main details[open][id]').id"), page.evaluate("window.scrollY")
    head = served.site.state(study).head_hash
    StudyLog(served.log, study).change(_note, actor="user")
    fresh = served.site.state(study).head_hash
    page.wait_for_function("head => document.body.innerHTML.includes(head)", arg=fresh[:12])
    assert fresh != head
    assert page.evaluate("id => document.getElementById(id).open", opened)
    assert page.evaluate("window.scrollY") == at
    context.close()
    assert noticed == []


def test_more_tabs_than_a_browser_has_connections_are_all_live(browser: Browser, served: Served) -> None:
    context, first, noticed = signed_in(browser, served)
    study = served.studies[PLAIN]
    tabs = [context.new_page() for _ in range(8)]
    for page in tabs:
        page.goto(f"{served.url}/s/{study}")
    first.close()
    for page in tabs:
        page.wait_for_selector("#live[data-state=live]")
    StudyLog(served.log, study).change(_note, actor="user")
    fresh = served.site.state(study).head_hash
    for page in tabs:
        page.wait_for_function("head => document.body.innerHTML.includes(head)", arg=fresh[:12])
    context.close()
    assert noticed == []


def test_what_is_being_written_survives_what_happens_meanwhile(browser: Browser, served: Served) -> None:
    context, page, _ = signed_in(browser, served)
    study = served.studies[PLAIN]
    page.goto(f"{served.url}/s/{study}")
    page.wait_for_selector("#live[data-state=live]")
    page.evaluate("document.querySelectorAll('main details').forEach(each => { each.open = true })")
    field = page.locator("main textarea").first
    field.fill("half a sentence")
    StudyLog(served.log, study).change(_note, actor="user")
    page.wait_for_selector("#live[data-state=waiting]")
    assert field.input_value() == "half a sentence"
    context.close()


def test_a_study_is_signed_by_the_keyboard_alone(browser: Browser, served: Served) -> None:
    context, page, _ = signed_in(browser, served)
    study = served.studies[INQUIRY]
    for _ in range(30):
        page.keyboard.press("j")
        if study in page.evaluate("document.activeElement.textContent"):
            break
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/s/{study}")
    page.wait_for_selector("form[action='/do/sign']")
    for wanted, key in (("input[value=accept]", "Space"), ("button", "Enter")):
        element = page.locator(f"form[action='/do/sign'] {wanted}").first
        for _ in range(400):
            page.keyboard.press("Tab")
            if element.evaluate("each => each === document.activeElement"):
                break
        page.keyboard.press(key)
    page.wait_for_selector("#judgement .ok")
    signed = served.site.review_states()[study].signed
    assert [review.head for review in signed.values()] == [served.site.state(study).head_hash]
    context.close()


@pytest.mark.parametrize("size", [{"width": 400, "height": 800}, {"width": 1400, "height": 900}])
def test_what_was_signed_and_said_is_in_sight(browser: Browser, served: Served, size: Any) -> None:
    context, page, _ = signed_in(browser, served, viewport=size)
    page.goto(f"{served.url}/s/{served.studies[PLAIN]}")
    page.locator("article.claim details.comment summary").first.click()
    page.locator("article.claim details.comment textarea").first.fill("I doubt it")
    page.locator("article.claim details.comment button").first.click()
    page.wait_for_url("**#c-*", wait_until="load")
    covered = ".jumps" if size["width"] < 640 else ".bar"
    top = "each => document.querySelector(each).getBoundingClientRect()"
    assert page.evaluate(f"({top})(location.hash).top >= ({top})('{covered}').bottom - 1")
    page.check("input[value=changes]")
    page.click("#judgement button:text-is('Sign')")
    page.wait_for_url("**#judgement", wait_until="load")
    assert page.evaluate(f"0 <= ({top})('#judgement').top && ({top})('#judgement').top < innerHeight")
    context.close()


def test_without_scripts_one_reads_and_comments(browser: Browser, served: Served) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{served.url}/s/{served.studies[PLAIN]}")
    page.fill("#key", served.site.access.owner_key)
    page.click("#sign-in button")
    page.wait_for_url(f"**/s/{served.studies[PLAIN]}")
    page.locator("details.comment summary").first.click()
    page.locator("form[action='/do/comment'] textarea").first.fill("is three seeds enough?")
    page.locator("form[action='/do/comment'] button").first.click()
    page.wait_for_load_state()
    assert "is three seeds enough?" in page.inner_text("main")
    context.close()


def test_exported_pages_open_from_a_disk_without_a_network(browser: Browser, served: Served, tmp_path: Path) -> None:
    made = export_pages(served.site, PAGES, tmp_path / "pages", [served.studies[PLAIN]])
    context = browser.new_context(offline=True)
    page, noticed = context.new_page(), list[str]()
    page.on("console", lambda message: noticed.append(message.text))
    page.on("request", lambda request: noticed.append(request.url) if request.url.startswith("http") else None)
    assert len(made.pages) > 5
    for name in made.pages:
        page.goto((tmp_path / "pages" / name).as_uri())
        assert page.locator("form[method=post]").count() == 0
        for address in page.evaluate("[...document.querySelectorAll('a[href]')].map(each => each.href)"):
            path = address.partition("#")[0].removeprefix("file://")
            assert Path(path).exists() or not address.startswith("file:")
    context.close()
    assert noticed == []


def test_a_stream_that_ends_is_said_and_comes_back(browser: Browser, served: Served) -> None:
    context, page, _ = signed_in(browser, served)
    page.goto(served.url)
    page.wait_for_selector("#live[data-state=live]")
    served.close()
    page.wait_for_selector("#live[data-state=dead]")
    served.serve(served.port)
    page.wait_for_selector("#live[data-state=live]")
    context.close()
