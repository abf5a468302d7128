"""The page of a planner: its turns, its looks held to their hashes, its notebook, and what a person says to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from research.ui.pages.planner import CHANGED, GONE, compare_looks, page
from research.ui.site import Site, render
from studies.log.entries import PlannerAct

from .conftest import add_gallery_study, view_of

SAYS = json.dumps({"effects": []})
"""What a look at `priors` was answered in the gallery's inquiry."""


@pytest.fixture
def inquiry(site: Site) -> str:
    """An inquiry by a language model, of which an export has no words of looks."""
    return add_gallery_study(site.home, site.log, "what-limits-guess")


def keep_turn(site: Site, study: str, **answers: str) -> None:
    """Write the first turn's file with these answers to its looks."""
    acted = next(event.payload for event in site.log.read(study) if event.type == "planner.acted")
    looks = [
        {"name": look["name"], "arguments": look["arguments"], "answer": answers.get(look["name"], "made up")}
        for look in acted["looks"]
    ]
    turn = {"acted": dict(acted), "action": {"action": "conclude", "reason": "as told"}, "secret": "", "looks": looks}
    file = site.folder(study) / "planning/propose.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(turn))


def test_a_look_is_shown_where_it_has_the_hash_that_the_log_counted() -> None:
    counted = {"name": "runs", "arguments": {"round": 1}, "characters": 3}
    act = PlannerAct("propose", 1, {}, (), "", turn="1/propose/1", tool_calls=(
        counted | {"sha256": hashlib.sha256(b"abc").hexdigest()}, counted | {"sha256": "0" * 64},
        counted | {"sha256": "1" * 64}, counted | {"name": "episodes", "sha256": "2" * 64, "split": "hidden"},
    ))  # fmt: skip
    kept = {"name": "runs", "arguments": {"round": 1}, "answer": "abc"}
    first, changed, other, gone = compare_looks(act, [kept, kept, kept | {"arguments": {}}])
    assert (first["ok"], first["answer"]) == (True, "abc")
    assert [look["why"] for look in (changed, other, gone)] == [CHANGED, CHANGED, GONE]
    assert not any(look["answer"] for look in (changed, other, gone))
    assert [look["hidden"] for look in (first, gone)] == [False, True]


def test_words_of_looks_stand_on_the_page_as_counted_and_no_others(site: Site, inquiry: str) -> None:
    view = view_of(study=inquiry)
    assert "as counted" not in render(page(site, view), view)
    keep_turn(site, inquiry, priors=SAYS)
    shown = render(page(site, view), view)
    assert (shown.count("as counted"), shown.count(CHANGED), "made up" in shown) == (1, 3, False)


def test_a_turn_whose_file_is_spoilt_says_so_and_the_others_stand(site: Site, inquiry: str) -> None:
    keep_turn(site, inquiry)
    (site.folder(inquiry) / "planning/propose.json").write_text("{")
    first, *others = page(site, view_of(study=inquiry)).values["turns"]
    assert first["fault"]
    assert not any(turn["fault"] for turn in others)
    (site.folder(inquiry) / "planning/propose.json").unlink()
    (site.folder(inquiry) / "planning/propose.json").mkdir()
    assert page(site, view_of(study=inquiry)).values["turns"][0]["fault"]


def test_what_a_planner_noted_is_held_to_what_it_was_shown(site: Site, inquiry: str) -> None:
    turns = page(site, view_of(study=inquiry)).values["turns"]
    asides = {note.turn: doubt for turn in turns for note, _, doubt in turn["asides"]}
    assert "0.79" in asides["2/design/1"]


def test_its_plan_stands_as_scored_unless_a_verdict_does_not_follow(site: Site, inquiry: str) -> None:
    site.checked(site.state(inquiry), wait_s=60)
    view = view_of(study=inquiry)
    before = page(site, view)
    assert not before.values["doubted"]
    assert "followed" in render(before, view)
    run = next(iter(site.state(inquiry).runs.values()))
    (site.folder(inquiry) / run.collected["evaluation"]["path"]).write_text("{}")
    site.forget_checked(inquiry)
    site.checked(site.state(inquiry), wait_s=60)
    after = page(site, view)
    assert after.values["doubted"]
    assert "followed" not in render(after, view)


def test_turns_of_rules_have_deeds_and_no_looks(site: Site, study: str) -> None:
    made = page(site, view_of(study=study))
    assert made.values["turns"][0]["act"].turn == "1/propose/1"
    assert not any(turn["looks"] or turn["asides"] for turn in made.values["turns"])
    assert made.values["turns"][0]["did"]


def test_guidance_is_a_note_that_says_from_which_turn_on_it_is_shown(
    site: Site, inquiry: str, signed_in: Callable[..., TestClient]
) -> None:
    client, address = signed_in(), f"/s/{inquiry}/planner"
    site.state(inquiry)  # a page waits a moment for its log to be read, and then says that it is
    csrf = client.get(address).text.partition('name="csrf" value="')[2].partition('"')[0]
    form = {"csrf": csrf, "study": inquiry, "text": "look at <b>ties</b>", "back": address}
    answer = client.post("/do/note", data=form, headers={"origin": "http://127.0.0.1:8760"})
    assert "look at &lt;b&gt;ties&lt;/b&gt;" in answer.text
    assert "not shown to it yet" in answer.text


def test_who_may_not_steer_and_an_export_have_no_forms(site: Site, inquiry: str) -> None:
    reader = view_of("viewer", study=inquiry)
    assert "/do/note" not in render(page(site, reader), reader)
    assert not page(site, replace(view_of(study=inquiry), static=True)).values["may_note"]


def test_a_comment_on_a_turn_or_a_look_stands_there(site: Site, inquiry: str) -> None:
    state, view = site.state(inquiry), view_of("reviewer", study=inquiry)
    for about in ("turn 1/propose/1", "look 1/propose/2/3"):
        site.reviews(inquiry).append(state, "comment", by="ann", about=about, text=f"why {about}?")
    text = render(page(site, view), view)
    turn, look = text.index("why turn 1/propose/1?"), text.index("why look 1/propose/2/3?")
    assert text.index('id="turn-1"') < turn < text.index('id="turn-2"') < look < text.index('id="turn-2-look-4"')
