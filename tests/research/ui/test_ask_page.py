"""The page Ask: what a study would be, what it takes to begin it, and more evidence on a claim."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from research.controller.options import ResearchOptions
from research.errors import BadInput, NotReady
from research.ui import previews
from research.ui.actions import act, find_evidence
from research.ui.pages.plan import page
from research.ui.previews import Preview, Previews, read_options
from research.ui.site import Page, Site, View, render
from studies import fold
from tests.research.banks import bank

from .conftest import add_gallery_study, view_of

VARY = {"vary": "group_size=4,16", "env": "guess", "rounds": "1"}


@pytest.fixture(autouse=True)
def _own_home(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_HOME", str(site.home.path))
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    shipped = bank(0.03, evaluation_sd=0.02, environments=("guess",))
    monkeypatch.setattr("research.design.noise_bank.load_shipped_bank", lambda: shipped)


@pytest.fixture
def inquiry(site: Site) -> str:
    return add_gallery_study(site.home, site.log, "what-limits-guess")


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a worker was given."""
    taken: list[str] = []

    def find_worker(home: object) -> Callable[[str], str]:
        def give(study: str) -> str:
            taken.append(study)
            return f"http://prefect/{study}"

        return give

    monkeypatch.setattr(previews, "find_worker", find_worker)
    monkeypatch.setattr("research.ui.actions.find_worker", find_worker)
    monkeypatch.setenv("AJET_SANDBOX", "process")
    return taken


def asking(role: Any = "owner", **query: str) -> View:
    asked = {name: tuple(text.split("\n")) for name, text in query.items()}
    return replace(view_of(role), query=asked, address=f"/ask?{urlencode(query)}")


def shown(site: Site, view: View) -> tuple[Page, str]:
    """Return the page once its preview is done."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Previews.find, "__kwdefaults__", {"ask_model": False, "wait_s": 60.0})
        made = page(site, view)
    return made, render(made, view)


def test_a_question_is_shown_as_what_was_understood_with_power_price_and_its_command(site: Site) -> None:
    made, text = shown(site, asking(topic="group size 4 vs 16 on guess"))
    assert made.values["understood"] == "ajet research --vary group_size=4,16 --env guess"
    assert made.values["command"] == "ajet research 'group size 4 vs 16 on guess'"
    for part in ("the design", "run-hours", "hypothesis h1", made.values["worker"].split(";")[0].replace("'", "&#39;")):
        assert part in text, part
    assert "/do/begin" not in text, "without a worker there is nothing to press"


def test_a_refusal_names_the_way_to_it_and_links_there(site: Site) -> None:
    made, text = shown(site, asking(topic="group size 4 vs 16 on guess on the moon"))
    assert made.values["preview"].refused
    assert made.values["understood_at"].startswith("/ask?vary=group_size")
    assert "ask that instead" in text


@pytest.mark.parametrize(
    "asked",
    [
        {"vary": "reward=built-in,/etc/hosts.py"}, {"vary": "model=/models/a,/models/b"}, {"env": "/tmp/env"},
        {"topic": "--planner=llm"}, {"topic": "a\x1b[2Jb"}, {"effect": "much"},
    ],
)  # fmt: skip
def test_a_page_reads_no_files_and_takes_no_flags_for_words(asked: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        read_options({**VARY, **asked})


def test_a_preview_that_takes_long_says_so_and_nobody_else_waits(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()

    def make(home: object, log: object, asked: ResearchOptions) -> Preview:
        free.wait(60.0)
        return Preview(None, f"refused: {asked.vary}")

    monkeypatch.setattr(previews, "make_preview", make)
    monkeypatch.setattr(Previews.find, "__kwdefaults__", {"ask_model": False, "wait_s": 0.0})
    view = asking(**VARY)
    assert "data-again" in render(page(site, view), view)
    free.set()
    made, text = shown(site, view)
    assert made.values["preview"].refused
    assert "data-again" not in text


def test_a_language_model_is_asked_where_somebody_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def make(home: object, log: object, options: ResearchOptions) -> Preview:
        asked.append(options.planner_model)
        return Preview(None, "it declined")

    monkeypatch.setattr(previews, "make_preview", make)
    query = {"topic": "What limits guess?", "planner": "llm", "planner_model": "m"}
    view = asking(**query)
    text = render(page(site, view), view)
    assert ("/do/plan" in text, asked) == (True, [])
    reader = asking("reviewer", **query)
    assert "/do/plan" not in render(page(site, reader), reader)
    act(site, view, "plan", {**query, "back": view.address})
    made, _ = shown(site, view)
    assert (made.values["preview"].refused, asked) == ("it declined", ["m"])


def test_a_study_begins_with_the_worker_once(site: Site, given: list[str]) -> None:
    form = {**VARY, "once": "one", "csrf": ""}
    first, again = act(site, view_of(), "begin", form), act(site, view_of(), "begin", form)
    (study,) = given
    assert first == again == f"/s/{study}"
    state = site.state(study)
    assert state.served
    assert state.command == ["ajet", "research", "--vary", "group_size=4,16", "--env", "guess", "--rounds", "1"]


def test_a_study_that_was_begun_and_could_not_be_handed_over_is_begun_no_second_time(
    site: Site, given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(study: str) -> str:
        raise NotReady("the worker went away")

    monkeypatch.setattr(previews, "find_worker", lambda home: lost)
    form = {**VARY, "once": "one"}
    with pytest.raises(NotReady):
        act(site, view_of(), "begin", form)
    assert [act(site, view_of(), "begin", form)] == [f"/s/{study}" for study in site.log.studies()]


def test_without_a_worker_nothing_is_begun(site: Site) -> None:
    with pytest.raises(NotReady):
        act(site, view_of(), "begin", dict(VARY))
    assert site.log.studies() == []


def test_who_may_not_steer_begins_nothing(site: Site, given: list[str]) -> None:
    with pytest.raises(HTTPException):
        act(site, view_of("reviewer"), "begin", dict(VARY))
    assert given == []


def test_evidence_shows_the_claim_the_ways_and_how_manieth_study_it_would_be(site: Site, inquiry: str) -> None:
    made, text = shown(site, asking(evidence=f"{inquiry}/1/h1"))
    assert made.values["evidence"].finding.verdict == "equivalent"
    assert "number 2 here" in text
    note, budget, study = made.values["ways"]
    assert (bool(note.refused), bool(budget.refused), study.refused) == (True, True, ""), "it is concluded"
    assert "power" in study.told
    assert f"ajet study reproduce {inquiry} --claims h1" in text


def test_a_claim_that_does_not_follow_has_no_number(site: Site, inquiry: str) -> None:
    run = next(iter(site.state(inquiry).rounds[0].runs_in("confirm")))
    (site.folder(inquiry) / run.collected["evaluation"]["path"]).write_text("{}")  # type: ignore[index]
    made, _ = shown(site, asking(evidence=f"{inquiry}/1/h1"))
    assert made.values["evidence"].finding.verdict == "does not follow"
    assert not re.search(r"0\.\d", made.values["evidence"].result)


def test_an_open_inquiry_says_what_the_next_round_would_cost_and_see(site: Site, inquiry: str) -> None:
    found = find_evidence(site, f"{inquiry}/1/h1")
    judged = fold(site.log.read(inquiry)[:142])
    running = fold(site.log.read(inquiry)[:100])
    for state, part in ((judged, "power at the smallest effect"), (running, "this round's lock: 10 runs")):
        word, budget, study = replace(found, study=state, round=state).ways(site)
        assert part in word.told
        assert budget.refused
        assert study.refused


def test_a_request_stands_beside_the_claim_and_a_new_study_names_it(site: Site, inquiry: str, given: list[str]) -> None:
    state = site.state(inquiry)
    form = {"study": inquiry, "claim": "1/h1", "seen": state.head_hash, "text": "few seeds"}
    act(site, view_of("reviewer"), "evidence", {**form, "way": "ask"})
    with pytest.raises(HTTPException):
        act(site, view_of("reviewer"), "evidence", {**form, "way": "study"})
    with pytest.raises(BadInput):
        act(site, view_of(), "evidence", {**form, "way": "study", "text": "few" * 2000})
    assert given == []
    where = act(site, view_of(), "evidence", {**form, "way": "study", "budget": "2h", "text": "few\0 seeds"})
    assert where == f"/s/{given[0]}"
    begun = site.state(given[0])
    assert begun.reproduces is not None
    assert (begun.reproduces.study, begun.budget_s, begun.served) == (inquiry, 7200.0, True)
    assert [verdict.hypothesis for verdict in begun.reproduces.verdicts] == ["h1"]
    asks = [thread.first for thread in site.reviews(inquiry).state().threads]
    assert [(entry.kind, entry.about) for entry in asks] == [("ask", "r1/h1")] * 2
    assert given[0] in asks[1].text


def test_a_request_on_a_study_that_went_on_is_asked_again(site: Site, inquiry: str) -> None:
    form = {"study": inquiry, "claim": "1/h1", "seen": "0" * 64, "text": "other values", "way": "ask"}
    again = act(site, view_of("reviewer"), "evidence", form)
    assert isinstance(again, Page)
    assert (again.status, site.reviews(inquiry).state().threads) == (409, ())


def test_the_page_is_whole_in_a_browser(site: Site, signed_in: Callable[..., TestClient]) -> None:
    client = signed_in()
    assert client.get("/ask").status_code == 200
    assert client.get("/ask?evidence=none/1/h1").status_code == 404
