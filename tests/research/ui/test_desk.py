"""The desk shows what needs a person first, then every study, filtered by its address."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from research.ui.actions import act
from research.ui.pages import desk
from research.ui.site import Site, render
from studies import EventType
from studies.proof import DOES_NOT_FOLLOW
from studies.report.wording import span
from tests.research.factories import make_study
from tests.research.ui.conftest import add_gallery_study, view_of
from tests.studies.log.test_people import ask


def shown(site: Site, **query: str) -> dict[str, Any]:
    view = replace(view_of(), query={name: (value,) for name, value in query.items()})
    page = desk.page(site, view)
    assert render(page, view)
    return dict(page.values)


def test_a_home_without_studies_says_how_to_begin_one(site: Site) -> None:
    view = view_of()
    assert "ajet research" in render(desk.page(site, view), view)


def test_a_concluded_study_is_to_be_reviewed_with_its_claims(site: Site, study: str) -> None:
    (need,) = shown(site)["needs"]
    assert (need["kind"], need["study"]) == ("review", study)
    (row,) = shown(site)["rows"]
    assert row["claims"] == need["claims"]
    assert row["claims"][0][:2] == ("h1", "supported")


def test_a_verdict_that_does_not_follow_shows_no_number(site: Site, study: str) -> None:
    run = next(
        run for run in site.state(study).every_round[0].runs.values() if run.spec.phase == "confirm" and run.collected
    )
    assert run.collected is not None
    (site.folder(study) / run.collected["evaluation"]["path"]).write_text("{}")
    (row,) = shown(site)["rows"]
    assert row["claims"][0][1:] == (DOES_NOT_FOLLOW, "")
    assert next(need["what"] for need in shown(site)["needs"]) == "does not follow"


def test_a_study_that_cannot_be_read_hides_no_other(site: Site, study: str) -> None:
    other = add_gallery_study(site.home, site.log, "group-size-in-guess")
    with site.log.transaction("write") as connection:
        connection.exec_driver_sql("update events set payload = '{}' where study = ? and seq = 3", (other,))
    values = shown(site)
    assert {row["study"]: row["plain_status"] for row in values["rows"]} == {study: "concluded", other: "corrupt"}
    assert ("cannot be read", other) in [(need["what"], need["study"]) for need in values["needs"]]


@pytest.mark.parametrize(
    ("query", "found"),
    [({"find": "learning RATE"}, 1), ({"find": "nothing like it"}, 0), ({"status": "concluded"}, 1),
     ({"verdict": "invalid"}, 0), ({"review": "review"}, 1), ({"from": "9999999999999"}, 1), ({"from": "-1"}, 1)],
)  # fmt: skip
def test_rows_are_chosen_by_the_address(site: Site, study: str, query: dict[str, str], found: int) -> None:
    assert len(shown(site, **query)["rows"]) == found


def test_a_claim_stands_with_the_interval_that_decided(site: Site) -> None:
    study = add_gallery_study(site.home, site.log, "group-size-in-guess")
    (verdict,) = site.state(study).every_round[0].verdicts
    assert verdict.verdict == "equivalent"
    assert verdict.equivalence is not None
    (row,) = shown(site)["rows"]
    assert row["claims"][0][2].endswith(f"({span(verdict.equivalence.low, verdict.equivalence.high)})")


@pytest.mark.parametrize("action", ["approve", "deny"])
def test_what_a_study_asks_is_answered_on_the_desk(site: Site, action: str) -> None:
    made = make_study(site.home, log=site.log)
    made.create()
    made.lock()
    ask(made)
    view = view_of()
    html = render(desk.page(site, view), view)
    (form,) = re.findall(f'<form method="post" action="/do/{action}".*?</form>', html, re.DOTALL)
    fields = dict(re.findall('name="([^"]+)" value="([^"]*)"', form))
    assert act(site, view, action, fields) == "/"
    assert site.state(made.study).approvals[0].granted == (action == "approve")


def test_what_a_planner_asks_stands_on_the_desk_until_somebody_says_something(site: Site) -> None:
    made = make_study(site.home, log=site.log)
    made.create({"name": "anthropic", "model": "m"})
    made.append(EventType.PLANNER_ASKED, text="Does arith matter?", turn="1/propose/1", index=0)
    assert ("answer", "Does arith matter?") in [(need["kind"], need["said"]) for need in shown(site)["needs"]]
    assert act(site, view_of(), "note", {"study": made.study, "text": "It does."}) == "/"
    assert "answer" not in [need["kind"] for need in shown(site)["needs"]]
