"""How fast are the pages of `ajet ui`, and what do they cost a training?

    python benchmarks/pages.py                 everything: about 25 minutes
    python benchmarks/pages.py --quick         small sizes, a few events and one pair of windows
    python benchmarks/pages.py --only PART     only this part (pages, events, training, episode, browser); may be given
                                               several times, and with --json the others stay as they were written
    python benchmarks/pages.py --json          also writes benchmarks/results/pages.json
    python benchmarks/pages.py --check         exit code 1 unless the goals below are met

*Pages*: desk, review and runs over studies of 10, 1,000 and 10,000 runs whose files are all there and hold, and the
desk of 1,000 studies, from `ajet ui` in a process of its own, by HTTP: the first look, the median of warm ones, and the
seconds of a core of the server that one takes, for which it counts little what else the machine does.
*Events*: from the moment before a note is appended to a log until the frame in which an open Review page of its study
shows the new head, in real Chromium, with 1 tab and with 8 of one browser.
*Training*: steps per minute of a real training of the tiny model on `guess`, with 8 tabs on the Runs page of its study
and without, within one training, in windows by turns: without, with, with, without. The browser is on the same machine.
*Episode*: of 100,000 tokens, from the click until it is shown, and the elements of its page; its tokens are in memory.
*Browser*: what axe-core finds, messages of the console, and requests to other hosts, on all pages over studies of the
gallery, at widths of 400 and 1,400, in light and in dark.

Goals: a warm page takes at most 100 ms at 10 runs, 200 at 1,000, 500 at 10,000, and the desk of 1,000 studies 300; an
event is shown within 0.8 s (median) and 2 s (99th percentile); 8 tabs slow a training by at most 2 %; an episode takes
at most 1 s and 25,000 elements; and the browser finds nothing.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

import httpx
from rig.frame import circumstances, concluded, earlier, parser, tell
from rig.pages_measured import (
    RunningStudy,
    Served,
    SizedStudy,
    add_gallery_study,
    browser_s,
    browsing,
    long_episode,
    make_home,
    serving,
    serving_episode,
)
from rig.studies_at_scale import ManyStudies, Pattern
from simlab.sim_run import scratch

from research.controller.interventions import add_note
from research.installation.tiny_model import prepare_model
from studies import EventLog, StudyLog

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAME = "pages"
WARM_MS = {10: 100.0, 1_000: 200.0, 10_000: 500.0}
DESK_MS, DESK_STUDIES = 300.0, 1_000
MEDIAN_S, WORST_S = 0.8, 2.0
TABS = 8
WINDOW_S, PAIRS = 20.0, 12
MOST_SLOWED = 0.02
EPISODE_S, EPISODE_NODES = 1.0, 25_000
LOOKS = 9
APART_S = 1.2
"""Between two looks at a page: what is kept for a second serves none of them."""
WATCH = """() => {
  window.shown = [];
  const look = () => requestAnimationFrame(() => {
    const head = document.querySelector("#head code");
    window.shown.push([Date.now() / 1000, head ? head.title : ""]);
  });
  new MutationObserver(look).observe(document.querySelector("main"), {childList: true, subtree: true});
}"""


def main() -> int:
    """Measure; return the exit code."""
    options = parser(__doc__, quick="small sizes, few events, one pair of windows")
    options.add_argument("--only", action="append", choices=PARTS, help="only this part")
    arguments = options.parse_args()
    figures: dict[str, Any] = {part: found for part, found in earlier(NAME).items() if arguments.only}
    figures["circumstances"] = circumstances(arguments)
    with scratch() as source, tempfile.TemporaryDirectory(prefix="ajet-pages-") as folder:
        pattern = Pattern.flown(source / "pattern")
        for part in arguments.only or PARTS:
            before = os.getloadavg()[0]
            figures[part] = PARTS[part](Path(folder) / part, pattern, source / "pattern", quick=arguments.quick)
            figures[part]["load"] = [round(before, 1), round(os.getloadavg()[0], 1)]
            tell(f"{part}, load {before:.1f} to {os.getloadavg()[0]:.1f}")
            for name, value, goal, unit in goals({part: figures[part]}):
                said = "" if goal is None else f", goal {goal:g}: {'missed' if value > goal else 'kept'}"
                print(f"  {value:10.4g} {unit:<3} {name}{said}", flush=True)
    missed = [
        f"{name} {value:.4g} {unit}" for name, value, goal, unit in goals(figures) if goal is not None and value > goal
    ]
    return concluded(NAME, figures, missed, arguments)


def measure_pages(folder: Path, pattern: Pattern, source: Path, *, quick: bool) -> dict[str, Any]:
    """Return what pages take the server, by size of their study, and the desk of many studies."""
    rows = []
    for runs in (10, 100) if quick else WARM_MS:
        home = make_home(folder / str(runs))
        study = SizedStudy(home, pattern, source, runs)
        tell(f"{runs} runs in {study.events} events")
        with serving(home) as served, closing(served.signed_in()) as client:
            for name, address in (("desk", "/"), ("runs", f"/s/{study.name}/runs"), ("review", f"/s/{study.name}")):
                rows.append({"runs": runs, "page": name, **_looked(served, client, address)})
                tell(str(rows[-1]))
    count = 20 if quick else DESK_STUDIES
    many = ManyStudies(folder / "many", pattern, source, count)
    with serving(many.home) as served, closing(served.signed_in()) as client:
        desk = {"studies": count, **_looked(served, client, "/")}
    return {"rows": rows, "desk": desk}


def _looked(served: Served, client: httpx.Client, address: str) -> dict[str, float]:
    """Return what a page takes: to be answered first, until nothing of it is still being checked, and when warm."""
    began = time.monotonic()
    answer = client.get(address)
    first_s = time.monotonic() - began
    while (answer := client.get(address)).status_code == 202 or "Checking the files of" in answer.text:
        time.sleep(0.2)
    whole_s, times, used = time.monotonic() - began, [], 0.0
    for _ in range(LOOKS):
        time.sleep(APART_S)
        before, began = served.cpu_s(), time.monotonic()
        answer = client.get(address)
        times.append(time.monotonic() - began)
        used += served.cpu_s() - before
        assert answer.status_code == 200, answer.text[:300]
    return {
        "first ms": round(1000 * first_s), "whole ms": round(1000 * whole_s), "warm ms": round(1000 * median(times), 1),
        "cpu ms": round(1000 * used / LOOKS, 1), "KB": round(len(answer.content) / 1000),
    }  # fmt: skip


@contextmanager
def tabs_at(browser: Browser, served: Served, count: int) -> Iterator[list[Page]]:
    """Open tabs of somebody who is signed in, all of them in sight."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{served.url}/sign-in#key={served.key}")
    page.wait_for_url(f"{served.url}/")
    yield [page, *(context.new_page() for _ in range(count - 1))]
    context.close()


def visit(page: Page, address: str) -> None:
    """Show a page, once its study is read."""
    while (answer := page.goto(address)) is not None and answer.status == 202:
        page.wait_for_timeout(100)


def measure_events(folder: Path, pattern: Pattern, source: Path, *, quick: bool) -> dict[str, Any]:
    """Return how long events take from a log to the pixels of open pages."""
    home = make_home(folder)
    study = SizedStudy(home, pattern, source, 10)
    rows = []
    with serving(home) as served, browsing() as browser, closing(EventLog(home.database)) as log:
        for count in (1, TABS):
            with tabs_at(browser, served, count) as tabs:
                for tab in tabs:
                    visit(tab, f"{served.url}/s/{study.name}")
                    tab.wait_for_selector("#live[data-state=live]")
                    tab.evaluate(WATCH)
                tabs[0].wait_for_timeout(1500)
                waits = [
                    wait for n in range(5 if quick else 40) for wait in _shown_after(StudyLog(log, study.name), tabs, n)
                ]
                ordered = sorted(waits)
                worst = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
                rows.append({"tabs": count, "shown": len(waits), "p50 s": median(waits), "p99 s": worst})
    return {"rows": rows}


def _shown_after(record: StudyLog, tabs: list[Page], number: int) -> Iterator[float]:
    """Append an event, and yield after how long each tab showed it, the wait for one that never did."""
    tabs[0].wait_for_timeout(random.Random(number).uniform(300, 1300))
    began = time.time()
    head = add_note(record, f"event {number}").hash
    for tab in tabs:
        found: list[Any] = []
        while not found and time.time() - began < 15:
            found = [at for at, shown in tab.evaluate("window.shown") if shown == head]
            tab.wait_for_timeout(0 if found else 50)
        yield (found[0] if found else time.time()) - began


def measure_training(folder: Path, pattern: Pattern, _: Path, *, quick: bool) -> dict[str, Any]:
    """Return the steps per minute of a training with tabs open and without, in windows by turns."""
    home = make_home(folder)
    study = RunningStudy(home, pattern)
    prepare_model(study.job, home.models, tell)
    window_s, pairs = (6.0, 1) if quick else (WINDOW_S, PAIRS)
    found: dict[bool, list[float]] = {False: [], True: []}
    with (
        serving(home) as served,
        browsing() as browser,
        tabs_at(browser, served, TABS) as tabs,
        study.training() as run,
    ):
        while study.step()[0] < 3:
            assert run.poll() is None, "the training ended"
            time.sleep(0.5)
        server, chromium = 0.0, 0.0
        for number in range(2 * pairs):
            opened = number % 4 in (1, 2)
            for tab in tabs:
                visit(tab, f"{served.url}/s/{study.name}/runs" if opened else "about:blank")
            tabs[0].wait_for_timeout(2000)
            before, began = study.step()
            before_s, shown_s = served.cpu_s(), browser_s()
            tabs[0].wait_for_timeout(1000 * window_s)
            after, ended = study.step()
            found[opened].append(60 * (after - before) / (ended - began))
            if opened:
                server += (served.cpu_s() - before_s) / window_s / pairs
                chromium += (browser_s() - shown_s) / window_s / pairs
            tell(f"{'8 tabs' if opened else 'none'}: {found[opened][-1]:.1f} steps a minute")
    ratios = [1 - slow / fast for fast, slow in zip(found[False], found[True], strict=True)]
    return {
        "window s": window_s, "pairs": pairs, "steps per minute, none": fmean(found[False]),
        "steps per minute, tabs": fmean(found[True]), "slowed": fmean(ratios), "server, cores": server,
        "browser, cores": chromium,
        "standard error": stdev(ratios) / pairs**0.5 if pairs > 1 else None,
    }  # fmt: skip


def measure_episode(folder: Path, pattern: Pattern, source: Path, *, quick: bool) -> dict[str, Any]:
    """Return how long an episode takes from the click until it is shown, and how many elements it has."""
    record = long_episode(5 if quick else 25, 4_000)
    rows = {}
    with serving_episode(make_home(folder), record) as (url, key), browsing() as browser:
        page = browser.new_page()
        page.goto(f"{url}/sign-in#key={key}")
        page.wait_for_url(f"{url}/")
        for name, query in (("usual", ""), ("each token apart", "?tokens=all")):
            times = []
            for _ in range(5):
                page.goto(f"{url}/help")
                page.goto(f"{url}/servers/-/e/long{query}")
                page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
                times.append(page.evaluate("performance.now()") / 1000)
            nodes = page.evaluate("document.getElementsByTagName('*').length")
            rows[name] = {"shown s": round(median(times), 3), "worst s": round(max(times), 3), "nodes": nodes}
    return {"tokens": record.tokens, **rows}


def measure_browser(folder: Path, pattern: Pattern, source: Path, *, quick: bool) -> dict[str, Any]:
    """Return how much a browser finds wrong with all pages over studies of the gallery and one of no files."""
    import axe_playwright_python

    script = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
    home = make_home(folder)
    studies = [add_gallery_study(home, each) for each in ("what-limits-guess", "group-size-in-guess")]
    with closing(EventLog(home.database)) as log:
        runs = [f"/s/{each}/runs/{next(iter(StudyLog(log, each).state().every_run))}" for each in studies]
    parts = [f"/s/{each}{part}" for each in studies for part in ("", "/runs", "/planner")]
    addresses = ["/", "/runs", "/compare", "/ask", "/help", "/s/nobody", *parts, *runs]
    counts = {"pages": 0, "axe violations": 0, "console messages": 0, "requests off the host": 0, "too wide": 0}
    found: list[str] = []
    with serving(home) as served, browsing() as browser:

        def noticed(kind: str, text: str) -> None:
            counts[kind] += 1
            found.append(f"{kind}: {text[:200]}")

        for width in (1400, 400):
            for scheme in ("light", "dark"):
                context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
                page = context.new_page()
                page.on("console", lambda message: _told(message) and noticed("console messages", message.text))
                page.on("pageerror", lambda error: noticed("console messages", str(error)))
                page.on("request", partial(_of_another, served.url, noticed))
                page.goto(f"{served.url}/sign-in#key={served.key}")
                page.wait_for_url(f"{served.url}/")
                for address in addresses[:4] if quick else addresses:
                    visit(page, served.url + address)
                    counts["pages"] += 1
                    for each in page.evaluate(f"async () => {{ {script}; return await axe.run(); }}")["violations"]:
                        noticed("axe violations", f"{address} at {width}, {scheme}: {each['id']}")
                    if page.evaluate("document.documentElement.scrollWidth") > width:
                        noticed("too wide", f"{address} at {width}")
                context.close()
    return {**counts, "found": sorted(set(found))}


def _told(message: Any) -> bool:
    """Return whether the console says more than that the page of a study that is not there is not there."""
    return not (message.location["url"].endswith("/s/nobody") and "404" in message.text)


def _of_another(url: str, noticed: Callable[[str, str], None], request: Any) -> None:
    if not request.url.startswith((url, "data:", "about:")):
        noticed("requests off the host", request.url)


PARTS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "pages": measure_pages, "events": measure_events, "training": measure_training, "episode": measure_episode,
    "browser": measure_browser,
}  # fmt: skip


def goals(figures: Mapping[str, Any]) -> Iterator[tuple[str, float, float | None, str]]:
    """Yield each figure: its name, value, what it may be at most, and unit."""
    if part := figures.get("pages"):
        for row in part["rows"]:
            name = f"{row['page']}, {row['runs']:,} runs"
            yield f"{name}: warm", row["warm ms"], WARM_MS.get(row["runs"]), "ms"
            yield f"{name}: first look", row["first ms"], None, "ms"
            yield f"{name}: first look, all files checked", row["whole ms"], None, "ms"
            yield f"{name}: warm, of a core", row["cpu ms"], None, "ms"
        desk = part["desk"]
        yield f"desk of {desk['studies']:,} studies: warm", desk["warm ms"], DESK_MS, "ms"
        yield f"desk of {desk['studies']:,} studies: first look", desk["first ms"], None, "ms"
    for row in figures.get("events", {}).get("rows", ()):
        yield f"event to pixel, {row['tabs']} tabs: median", row["p50 s"], MEDIAN_S, "s"
        yield f"event to pixel, {row['tabs']} tabs: 99th percentile", row["p99 s"], WORST_S, "s"
    if part := figures.get("training"):
        yield f"a training slowed by {TABS} tabs", 100 * part["slowed"], 100 * MOST_SLOWED, "%"
        if part["standard error"] is not None:
            yield "its standard error", 100 * part["standard error"], None, "%"
        yield "steps per minute without tabs", part["steps per minute, none"], None, ""
        for name in ("server", "browser"):
            yield f"cores of the {name} with tabs", part[f"{name}, cores"], None, ""
    if part := figures.get("episode"):
        for name in ("usual", "each token apart"):
            yield f"episode of {part['tokens']:,} tokens, {name}", part[name]["shown s"], EPISODE_S, "s"
            yield f"episode of {part['tokens']:,} tokens, {name}: elements", part[name]["nodes"], EPISODE_NODES, ""
    if part := figures.get("browser"):
        for name in ("axe violations", "console messages", "requests off the host", "too wide"):
            yield f"{name} on {part['pages']} pages", part[name], 0, ""


if __name__ == "__main__":
    sys.exit(main())
