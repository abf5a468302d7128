"""The review of a study: its claims as its files bear them out, what was said of them, and what may be done to it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from research.design.known_findings import KnownFindings
from research.errors import BadInput
from research.ui import site as site_module
from research.ui.actions import act
from research.ui.app import LiveHub
from research.ui.pages import review
from research.ui.site import CheckedStudy, Page, Site, render
from studies import EventType, StudyLog
from studies.errors import LogCorrupt, StudiesError
from studies.log.reviews import threat_anchor
from studies.log.study import EXPLORE
from studies.records.alpha import Exploration
from studies.report.elements import list_drawings
from tests.research.design.test_prior_findings import known
from tests.research.factories import make_study
from tests.research.ui.conftest import add_gallery_study, view_of
from tests.research.ui.test_actions import _note
from tests.studies.log.test_people import ask
from tests.studies.synthetic import Synthetic


def shown(site: Site, study: str, role: Any = "owner", **query: str) -> tuple[Page, str]:
    view = replace(view_of(role, study=study), query={name: (value,) for name, value in query.items()})
    site.checked(site.state(study), wait_s=60.0)
    page = review.page(site, view)
    return page, render(page, view)


def cards(page: Page) -> list[dict[str, Any]]:
    return [card for each in page.values["rounds"] for card in each["cards"]]


def form(site: Site, study: str, **fields: str) -> dict[str, str]:
    return {"study": study, "seen": site.state(study).head_hash, "back": f"/s/{study}", **fields}


def actions_of(html: str) -> set[str]:
    return set(re.findall(r'action="/do/(\w+)"', html))


@pytest.fixture
def made(site: Site) -> Synthetic:
    """Return a study of this home that is created, and has no design yet."""
    made = make_study(site.home, log=site.log)
    made.create()
    return made


def collected_file(site: Site, study: str) -> Path:
    run = next(run for run in site.state(study).runs.values() if run.spec.phase == "confirm" and run.collected)
    assert run.collected is not None
    return site.folder(study) / str(run.collected["evaluation"]["path"])


def test_a_claim_stands_with_what_was_predicted_and_observed(site: Site, study: str) -> None:
    page, html = shown(site, study)
    card = cards(page)[0]
    (verdict,) = site.state(study).rounds[0].verdicts
    assert (card["kind"], card["about"], card["verdict"]) == ("judged", "r1/h1", verdict)
    assert card["bar"]["estimate"] is not None
    assert card["observed"] in html
    assert card["look"] == "1 of 1"
    assert 'id="r1/h1"' in html
    assert f'href="/ask?evidence={study}/1/h1"' in html


def test_a_claim_says_what_became_of_it_elsewhere(site: Site, study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = known(study=study, replications={"again": "not replicated"}, challenges=('challenged by other: "no"',))
    monkeypatch.setattr(review, "load_findings", lambda home, log: KnownFindings((one,), {}))
    assert "not replicated by 1 (again); challenged by other" in shown(site, study)[1]


def test_each_figure_that_the_log_names_stands_as_it_was_written(site: Site, study: str) -> None:
    page, html = shown(site, study)
    paths = {figure["path"] for figure in page.values["figures"]}
    assert paths == {f"figures/{drawn.name}.svg" for drawn in list_drawings(page.values["content"].body)}
    assert all(f'src="/s/{study}/{path}"' in html for path in paths)
    assert "<svg" not in html.replace('<svg class="interval"', "")


@pytest.mark.parametrize("name", ["learning-rate-in-guess", "lora-rank-and-what-followed", "what-limits-guess"])
def test_studies_of_one_round_and_of_several_are_shown_whole(site: Site, name: str) -> None:
    study = add_gallery_study(site.home, site.log, name)
    page, html = shown(site, study)
    claimed = [f"r{each.round}/{verdict.hypothesis}" for each in site.state(study).rounds for verdict in each.verdicts]
    assert [card["about"] for card in cards(page) if card["kind"] == "judged"] == claimed
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert " style=" not in html


def test_while_files_are_checked_no_number_stands(site: Site, study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "checked", lambda state, wait_s=0.0: None)
    page, html = shown(site, study, "reviewer")
    assert {card["kind"] for card in cards(page)} == {"checking"}
    verdict = site.state(study).verdicts[0]
    assert f"{verdict.estimate:.3f}" not in html
    assert not re.search(r"supported|interval|<img", html)
    assert "sign" not in actions_of(html)


def test_a_page_that_did_not_wait_is_told_when_its_files_are_checked(site: Site, study: str) -> None:
    state, slow = site.state(study), Future[CheckedStudy]()
    site._checks[study] = (state.head_hash, slow)
    assert site.checked(state, wait_s=0.0) is None
    told = list[tuple[str, ...]]()
    hub = LiveHub(site)
    hub._tell = lambda event, studies: told.append((event, *studies))  # type: ignore[method-assign]
    hub.tell_checked()
    assert told == []
    slow.set_result(CheckedStudy(state.head_hash, None, "", {}))
    hub.tell_checked()
    assert told == [("moved", study)]


def test_a_verdict_that_does_not_follow_has_its_reason_and_no_number(site: Site, study: str) -> None:
    path = collected_file(site, study)
    path.write_bytes(path.read_bytes() + b" ")
    page, html = shown(site, study)
    wrong = next(card for card in cards(page) if card["kind"] == "fault")
    assert page.values["content"] is None
    assert page.values["figures"] == []
    assert wrong["fault"] in html
    assert wrong["answer"].sentence not in html
    assert "bar" not in wrong
    assert f"{wrong['verdict'].estimate:.3f}" not in html
    with pytest.raises(BadInput, match="holds"):
        act(site, view_of(), "sign", form(site, study, decision="accept"))


def test_a_lock_that_was_changed_takes_the_numbers_of_its_round_away(site: Site, study: str) -> None:
    name = site.state(study).lock_file
    assert name is not None
    (site.folder(study) / name).write_text("{}")
    page, html = shown(site, study)
    assert [card["kind"] for card in cards(page)] == ["judged"] * 3 + ["fault"]
    assert "the lock" in cards(page)[-1]["fault"]
    assert page.values["content"] is None
    assert "sign" not in actions_of(html)


def test_a_report_that_was_changed_is_said_so_and_can_be_built_again(site: Site, study: str) -> None:
    (site.folder(study) / "report.html").write_text("better numbers")
    page, html = shown(site, study)
    assert page.values["checked"].changed == ("report.html",)
    assert "<iframe" not in html
    assert "sign" not in actions_of(html)
    act(site, view_of(), "build", form(site, study))
    site.forget_checked(study)
    page, html = shown(site, study)
    assert page.values["checked"].changed == ()
    assert "<iframe" in html
    assert (site.folder(study) / "report.kept-1.html").read_text() == "better numbers"


def test_files_of_another_installation_prove_nothing(site: Site, study: str) -> None:
    site.folder(study).rename(site.home.path / "elsewhere")
    page, html = shown(site, study)
    assert {card["kind"] for card in cards(page)} == {"fault"}
    assert "expected the folder of study" in html


def test_before_its_design_a_study_says_what_was_asked(site: Site, made: Synthetic) -> None:
    page, html = shown(site, made.study)
    assert cards(page) == []
    assert made.topic in html
    assert {"pause", "stop", "budget"} <= actions_of(html)
    assert not {"veto", "accept", "note", "sign"} & actions_of(html)


def test_without_a_verdict_the_claim_says_which_runs_are_there(site: Site, made: Synthetic) -> None:
    made.lock()
    made.run(made.plan()[0])
    page, html = shown(site, made.study)
    (card,) = cards(page)
    assert card["kind"] == "open"
    assert "valid run" in card["answer"].sentence
    assert card["predicted"] in html
    assert "1 of at most" in page.values["progress"]
    assert "veto" in actions_of(html)


def test_a_study_that_stopped_says_why_and_can_go_on(site: Site, made: Synthetic) -> None:
    made.lock()
    made.append(EventType.STUDY_STOPPED, reason="the machine <b>burns</b>")
    page, html = shown(site, made.study)
    assert page.values["content"].partial in html.replace("&lt;", "<").replace("&gt;", ">")
    assert "<b>burns" not in html
    assert {"resume"} <= actions_of(html)
    assert not {"pause", "stop"} & actions_of(html)


def test_a_paused_study_can_go_on_or_be_stopped(site: Site, made: Synthetic) -> None:
    made.append(EventType.STUDY_PAUSED, reason="lunch")
    assert {"resume", "stop"} <= actions_of(shown(site, made.study)[1])
    assert "pause" not in actions_of(shown(site, made.study)[1])


def test_a_concluded_study_offers_only_what_can_still_do_something(site: Site, study: str) -> None:
    expected = {"check", "comment", "sign", "note"}
    assert actions_of(shown(site, study)[1]) == expected
    assert actions_of(shown(site, study, "reviewer")[1]) == expected - {"note"}
    assert actions_of(shown(site, study, "viewer")[1]) == {"check"}


def test_an_export_has_no_form_and_no_part_that_asks_a_server(site: Site, study: str) -> None:
    view = replace(view_of(study=study), static=True, banner="a copy")
    html = render(review.page(site, view), view)
    assert not re.search("<form|<iframe|<script", html)
    assert "judged" in {card["kind"] for card in cards(review.page(site, view))}


def test_a_study_that_waits_is_approved_or_denied_on_its_page(site: Site, made: Synthetic) -> None:
    made.lock()
    digest = ask(made)
    html = shown(site, made.study)[1]
    assert {"approve", "deny"} <= actions_of(html)
    act(site, view_of(), "approve", form(site, made.study, digest=digest, note="go"))
    assert site.state(made.study).approvals[0].granted
    assert not {"approve", "deny"} & actions_of(shown(site, made.study)[1])


def test_an_exploration_shows_its_runs_and_that_nothing_was_tested(site: Site, made: Synthetic) -> None:
    design = made.design
    metric = design.metric.model_copy(update={"split": "search", "key": "search/success"})
    fields = {"environment": "guess", "base_job": design.base_job, "arms": design.arms, "seed": 7, "metric": metric}
    plan = Exploration.model_validate({"why": "Does it move?", **fields})
    study = make_study(site.home, "s-explored", site.log)
    study.create(settings={"budget_s": 900.0, "max_runs": None, "parallel": 2, "approve": "none", EXPLORE: True})
    planned = {"plan": plan.model_dump(mode="json"), "hash": plan.hash(), "seconds_per_run": 3.0, "turn": ""}
    study.append(EventType.EXPLORATION_PLANNED, **planned)
    page, html = shown(site, "s-explored")
    assert cards(page) == []
    assert page.values["rounds"][0]["lone"].label in html
    assert [block.title for block in page.values["rounds"][0]["tried"]] == ["Tried without a claim"]
    assert "Does it move?" in html or "not begun" in html


def test_a_report_of_before_something_happened_can_be_built_again(site: Site, made: Synthetic) -> None:
    made.lock()
    assert "build" in actions_of(shown(site, made.study)[1])
    made.report()
    made.append(EventType.STUDY_PAUSED, reason="lunch")
    page, html = shown(site, made.study)
    assert page.values["built"] == ""
    assert "build" in actions_of(html)


def test_what_steers_an_eye_is_made_visible_in_a_reports_own_words_too(site: Site) -> None:
    made = make_study(site.home, log=site.log, topic="does <img src=x> \u202egnol help?")
    made.create()
    html = shown(site, made.study)[1]
    assert "\u202e" not in html
    assert r"\u202egnol" in html
    assert "<img" not in html


def test_a_code_is_offered_for_acceptance_where_a_run_ended_by_it(site: Site, made: Synthetic) -> None:
    made.lock()
    made.give_up(made.plan()[0], "lost")
    assert shown(site, made.study)[0].values["may_do"]["accept"] == ["lost"]
    made.amend(target="lost")
    assert shown(site, made.study)[0].values["may_do"]["accept"] == []


def test_a_comment_stands_at_its_claim_and_is_answered_resolved_and_opened_again(site: Site, study: str) -> None:
    reviewer = view_of("reviewer")
    where = act(site, reviewer, "comment", form(site, study, about="r1/h1", text="seed 3 looks <b>stuck</b>"))
    assert where == f"/s/{study}#c-1"
    act(site, reviewer, "reply", form(site, study, to="1", text="agreed"))
    (thread,) = shown(site, study)[0].values["threads"]["r1/h1"]
    assert [entry.text for entry in (thread.first, *thread.answers)] == ["seed 3 looks <b>stuck</b>", "agreed"]
    html = shown(site, study)[1]
    assert html.index('id="r1/h1"') < html.index('id="c-1"') < html.index("</article>")
    assert "<b>stuck" not in html
    assert actions_of(html) >= {"reply", "resolve"}
    act(site, reviewer, "resolve", form(site, study, to="1"))
    assert shown(site, study)[0].values["reviewed"].open_count == 0
    assert "reopen" in actions_of(shown(site, study)[1])
    act(site, reviewer, "reopen", form(site, study, to="1"))
    assert shown(site, study)[0].values["reviewed"].open_count == 1


def test_a_threat_can_be_commented_on_and_nothing_that_is_not_there(site: Site) -> None:
    study = add_gallery_study(site.home, site.log, "group-size-in-guess")
    threat = shown(site, study)[0].values["threats"][0]
    act(site, view_of(), "comment", form(site, study, about=threat["about"], text="is it?"))
    assert [*shown(site, study)[0].values["threads"]] == [threat_anchor(threat["blocks"][0].items[0].text)]
    for about in ("threat no-such-thing", "r7/h1", "javascript:alert(1)"):
        with pytest.raises(StudiesError):
            act(site, view_of(), "comment", form(site, study, about=about, text="x"))
    with pytest.raises(BadInput):
        act(site, view_of(), "reply", form(site, study, to="²", text="x"))


def test_a_comment_on_a_run_stands_with_a_link_to_it(site: Site, study: str) -> None:
    run = next(iter(site.state(study).runs))
    act(site, view_of(), "comment", form(site, study, about=f"run {run}", text="odd"))
    page, html = shown(site, study)
    assert [entry[:2] for entry in page.values["elsewhere"]] == [(f"run {run}", f"/s/{study}/runs/{run}")]
    assert f'href="/s/{study}/runs/{run}"' in html


def test_a_signature_names_head_and_report_and_is_of_an_earlier_one_once_the_study_moved(
    site: Site, study: str
) -> None:
    state = site.state(study)
    act(site, view_of("reviewer"), "sign", form(site, study, decision="accept", text="fine"))
    page, html = shown(site, study)
    (signed,) = page.values["reviewed"].signed.values()
    assert (signed.by, signed.decision, signed.head) == ("ann", "accept", state.head_hash)
    assert "of what stands here" in html
    act(site, view_of(), "note", form(site, study, text="later"))
    assert "of an earlier head" in shown(site, study)[1]


def test_a_file_that_changed_without_an_event_is_seen_before_anybody_signs(site: Site, study: str) -> None:
    assert "sign" in actions_of(shown(site, study)[1])
    collected_file(site, study).write_text("{}")
    with pytest.raises(BadInput, match="holds"):
        act(site, view_of(), "sign", form(site, study, decision="accept"))
    assert site.reviews(study).state().entries == ()


def test_a_forged_comment_takes_comments_and_signatures_away_and_not_the_study(site: Site, study: str) -> None:
    reviewer = view_of("reviewer")
    act(site, reviewer, "comment", form(site, study, about="r1/h1", text="fine"))
    act(site, reviewer, "sign", form(site, study, decision="accept", text="as it is"))
    with site.log.transaction("write") as connection:
        connection.exec_driver_sql("update reviews set payload = replace(payload, 'fine', 'poor') where seq = 1")
    page, html = shown(site, study)
    assert cards(page)[0]["kind"] == "judged"
    assert "review 1 (comment)" in html
    assert "accepts it" not in html
    assert "poor" not in html
    with pytest.raises(LogCorrupt):
        act(site, reviewer, "reply", form(site, study, to="1", text="why?"))


def test_what_only_a_verification_finds_keeps_a_study_from_being_signed(site: Site, study: str) -> None:
    run = next(run for run in site.state(study).runs.values() if run.collected)
    assert run.collected is not None
    (site.folder(study) / str(run.collected["snapshot"]["path"])).write_bytes(b"other curves")
    with pytest.raises(BadInput, match="holds"):
        act(site, view_of(), "sign", form(site, study, decision="accept"))
    assert site.reviews(study).state().entries == ()


def test_what_went_on_since_is_looked_at_before_it_can_be_signed(site: Site, study: str) -> None:
    before = form(site, study, decision="accept")
    act(site, view_of(), "note", form(site, study, text="later"))
    answer = act(site, view_of("reviewer"), "sign", before)
    assert isinstance(answer, Page)
    assert "/do/sign" not in render(answer, view_of("reviewer"))


def test_advice_on_a_claim_stands_where_all_that_it_may_rest_on_follows(site: Site) -> None:
    study = add_gallery_study(site.home, site.log, "what-limits-guess")
    advised = "In practice" in shown(site, study)[1]
    name = site.state(study).lock_file
    assert name is not None
    (site.folder(study) / name).write_text("{}")
    site.forget_checked(study)
    page, html = shown(site, study)
    assert {card["kind"] for card in cards(page)} == {"judged", "fault"}
    assert (advised, "In practice" in html) == (True, False)


def test_a_claim_without_a_lock_leads_to_no_page_of_evidence(site: Site, made: Synthetic) -> None:
    made.append(EventType.HYPOTHESIS_PROPOSED, **made.design.hypotheses[0].model_dump(mode="json"))
    page, html = shown(site, made.study)
    assert [card["locked"] for card in cards(page)] == [False]
    assert "/ask?evidence=" not in html


def test_a_study_that_is_to_give_more_evidence_leads_to_the_claim(site: Site) -> None:
    made = make_study(site.home, log=site.log)
    made.create(settings={"budget_s": 900.0, "max_runs": None, "parallel": 2, "approve": "none", "follows": "s-1/1/h1"})
    assert 'href="/s/s-1"' in shown(site, made.study)[1]


def test_verification_lists_what_holds_and_what_drifted(site: Site, study: str) -> None:
    assert act(site, view_of("viewer"), "check", form(site, study)) == f"/s/{study}?verify=1"
    page, html = shown(site, study, verify="1")
    assert page.values["proof"].holds
    assert page.study == ""  # so that no event has it verified again and again
    collected_file(site, study).write_text("{}")
    act(site, view_of("viewer"), "check", form(site, study))
    page, html = shown(site, study, verify="1")
    assert not page.values["proof"].holds
    assert str(page.values["proof"].drifts[0]).split(":")[0] in html
    assert shown(site, study)[0].values["proof"] is None


def test_a_log_that_cannot_be_read_is_said_so(site: Site, study: str, signed_in: Callable[..., TestClient]) -> None:
    record = StudyLog(site.log, study)
    assert record.state().head_hash
    with site.log.transaction("write") as connection:
        connection.exec_driver_sql("update events set payload = '{}' where seq = 3")
    with pytest.raises(LogCorrupt):
        shown(site, study)
    answer = signed_in("viewer").get(f"/s/{study}")
    assert answer.status_code == 422
    assert "event 3" in answer.text


def test_a_browser_is_shown_the_page(study: str, signed_in: Callable[..., TestClient]) -> None:
    answer = signed_in("viewer").get(f"/s/{study}")
    assert answer.status_code == 200
    assert len(answer.content) < 300_000


def test_what_was_checked_stands_until_it_is_checked_again_unless_something_was_judged(
    site: Site, study: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, checks = site.checked(site.state(study), 60.0), threading.Event()
    assert first is not None
    real = site_module.check
    monkeypatch.setattr(site_module, "check", lambda *given: checks.wait(60) and real(*given))
    StudyLog(site.log, study).change(_note, actor="user")
    noted = site.state(study)
    assert site.checked(noted, 0.0) is first
    last = noted.verdicts[-1].model_copy(update={"reason": "another"})
    assert site.checked(replace(noted, verdicts=(last,)), 0.0) is None
    checks.set()
    again = site.checked(noted, 60.0)
    assert again is not None
    assert again.head == noted.head_hash


def test_a_check_counts_that_ended_after_its_study_went_on_and_none_that_began_before_it_was_forgotten(
    site: Site, study: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks, real = threading.Event(), site_module.check
    monkeypatch.setattr(site_module, "check", lambda *given: checks.wait(60) and real(*given))
    first = site.state(study)
    assert site.checked(first, 0.0) is None
    StudyLog(site.log, study).change(_note, actor="user")
    noted = site.state(study)
    checks.set()
    site._checks[study][1].result(60.0)
    checks.clear()
    found = site.checked(noted, 0.0)
    assert found is not None
    assert found.head == first.head_hash
    older = site._checks[study][1]
    site.forget_checked(study)
    kept: list[CheckedStudy] = []
    site._checks[study], site._last[study] = (noted.head_hash, Future()), kept
    checks.set()
    older.result(60.0)
    assert kept == []
    assert site.checked(noted, 0.0) is None
