"""A form does what the command does, as the study was seen, or says what happened since."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from research.errors import BadInput
from research.ui.actions import ACTIONS, act, lines_since
from research.ui.site import Page, Site, render
from studies import EventType, StudyLog
from tests.research.ui.conftest import view_of

SignIn = Callable[..., TestClient]


def seen(site: Site, study: str, **fields: str) -> dict[str, str]:
    return {"study": study, "seen": site.state(study).head_hash, "back": f"/s/{study}", **fields}


def test_a_note_on_a_page_is_the_event_of_the_command(site: Site, study: str) -> None:
    assert act(site, view_of(), "note", seen(site, study, text="the machine was moved")) == f"/s/{study}"
    last = site.log.last(study)
    assert last is not None
    assert last.type is EventType.DESIGN_AMENDED
    assert last.actor == "user"
    assert last.payload["amendment"]["reason"] == "the machine was moved"


@pytest.mark.parametrize("action", sorted(name for name, each in ACTIONS.items() if each.asks_again))
def test_what_costs_or_ends_something_is_asked_again_where_the_study_went_on(
    site: Site, study: str, action: str
) -> None:
    form = seen(
        site, study, digest="0", text="why", typed=study, hypothesis="h1", budget="9h", code="x", decision="accept"
    )
    StudyLog(site.log, study).change(_note, actor="user")
    head = site.state(study).head_hash
    found = act(site, view_of(), action, form)
    assert isinstance(found, Page)
    assert found.status == 409
    assert found.values["head"] == head
    assert "csrf" not in found.values["fields"]
    assert site.state(study).head_hash == head


def test_between_the_look_and_the_write_nothing_comes(site: Site, study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form = seen(site, study, budget="9h", text="more")
    state = site.state(study)
    StudyLog(site.log, study).change(_note, actor="user")
    monkeypatch.setattr(site, "state", lambda name: state)  # as one who looked before
    found = act(site, view_of(), "budget", form)
    assert isinstance(found, Page)
    assert found.status == 409


def test_what_the_command_refuses_a_page_refuses(site: Site, study: str) -> None:
    with pytest.raises(BadInput, match="asks nothing"):
        act(site, view_of(), "approve", seen(site, study, digest="0"))
    with pytest.raises(BadInput, match="concluded"):
        act(site, view_of(), "budget", seen(site, study, budget="9h", text="more"))
    with pytest.raises(BadInput, match="in full"):
        act(site, view_of(), "stop", seen(site, study, typed="something else"))


def test_a_form_without_a_field_is_refused_in_one_line(site: Site, study: str) -> None:
    with pytest.raises(HTTPException) as refused:
        act(site, view_of(), "note", seen(site, study))
    assert refused.value.status_code == 400


def test_an_action_leads_back_to_a_page_of_ours_alone(site: Site, study: str) -> None:
    for elsewhere in (
        "//elsewhere.example",
        "/\\elsewhere.example",
        "/\t/elsewhere.example",
        "https://elsewhere.example",
    ):
        assert act(site, view_of(), "note", seen(site, study, text="x") | {"back": elsewhere}) == "/"


def test_who_asks_again_is_led_back_to_where_it_was_asked_first(site: Site, study: str) -> None:
    asked = seen(site, study, typed=study) | {"seen": "0" * 64}
    view = replace(view_of(), address="/do/stop")
    page = act(site, view, "stop", asked)
    assert isinstance(page, Page)
    fields = dict(re.findall('name="([^"]+)" value="([^"]*)"', render(page, view).split('action="/do/stop"')[1]))
    assert fields == asked | {"seen": site.state(study).head_hash, "csrf": ""}


def test_what_is_refused_leads_back_to_where_it_was_asked(signed_in: SignIn, site: Site, study: str) -> None:
    client = signed_in()
    form = seen(site, study, typed="x") | {"csrf": site.access.csrf(client.cookies["ajet"])}
    found = client.post("/do/stop", data=form)
    assert found.status_code == 422
    assert f'href="/s/{study}"' in found.text


def test_what_happened_since_is_told_in_the_lines_of_the_terminal(site: Site, study: str) -> None:
    events = site.log.read(study)
    collected = next(event for event in events if event.type is EventType.RUN_COLLECTED)
    since = lines_since(site, site.state(study), collected.hash)
    everything = lines_since(site, site.state(study), "no head")
    assert since
    assert since == everything[-len(since) :] or set(since) < set(everything)
    assert lines_since(site, site.state(study), events[-1].hash) == []


def _note(state: Any) -> Any:
    amendment = {"kind": "note", "target": "", "value": None, "reason": "another person", "lowers": False}
    return EventType.DESIGN_AMENDED, {"amendment": amendment}
