from __future__ import annotations

from typing import Any

import pytest

from studies import EventType, LogCorrupt, StudyState
from studies.records.verdict import ApprovalRequest
from studies.report.build import render_report
from tests.golden import assert_golden, refused
from tests.studies.synthetic import STUDY, Synthetic


@pytest.fixture
def synthetic(study: Synthetic) -> Synthetic:
    study.create()
    study.lock()
    return study


def ask(synthetic: Synthetic, stage: str = "design", **changes: Any) -> str:
    state = synthetic.state()
    values = {
        "study": STUDY, "number": len(state.questions) + 1, "stage": stage, "lock": state.design_hash, "runs": 10,
        "seconds": 375.0, "left_s": 900.0, "would": "all that is locked",
    }  # fmt: skip
    question = ApprovalRequest.model_validate(values | changes)
    synthetic.append(EventType.APPROVAL_ASKED, question=question.model_dump(mode="json"), digest=question.digest())
    return question.digest()


def say(synthetic: Synthetic, digest: str, *, granted: bool = True, **changes: Any) -> StudyState:
    type = EventType.APPROVAL_GIVEN if granted else EventType.APPROVAL_DENIED
    synthetic.append(type, **{"digest": digest, "by": "terminal", "note": "", **changes})
    return synthetic.state()


def test_an_open_question_makes_a_study_wait_until_it_is_answered(synthetic: Synthetic) -> None:
    digest = ask(synthetic)
    state = synthetic.state()
    assert (state.status, state.open_question.digest) == ("waiting", digest)
    after = say(synthetic, digest, by="Prefect", note="go on")
    assert (after.status, after.open_question) == ("running", None)
    (given,) = after.approvals
    assert (given.asked, given.granted, given.by, given.note) == (state.open_question, True, "Prefect", "go on")


def test_a_denial_stops_the_study_also_a_paused_one(synthetic: Synthetic) -> None:
    digest = ask(synthetic)
    synthetic.append(EventType.STUDY_PAUSED, reason="for the night")
    assert synthetic.state().status == "paused"
    state = say(synthetic, digest, granted=False)
    assert (state.status, state.paused_reason) == ("stopped", None)
    assert_golden(state.stopped_reason)
    assert state.denial == state.approvals[-1]
    synthetic.append(EventType.STUDY_RESUMED, command=[])
    assert synthetic.state().denial is None
    assert ask(synthetic) != digest, "the same question asked again"


def test_a_later_question_takes_the_place_of_an_open_one_and_a_conclusion_leaves_none(synthetic: Synthetic) -> None:
    first = ask(synthetic)
    second = ask(synthetic, "look 1")
    state = synthetic.state()
    assert [each.digest for each in state.questions] == [first, second]
    assert state.open_question == state.questions[-1]
    assert state.approvals == ()
    assert synthetic.conclude().open_question is None


@pytest.mark.parametrize("changes", [{"number": 2}, {"lock": "ab" * 32}, {"study": "another"}], ids=list)
def test_a_question_that_cannot_be_is_refused(synthetic: Synthetic, changes: dict[str, Any]) -> None:
    ask(synthetic, **changes)
    with refused(LogCorrupt):
        synthetic.state()


def test_a_question_whose_digest_is_not_its_own_is_refused(synthetic: Synthetic) -> None:
    ask(synthetic)
    asked = synthetic.log.read(STUDY)[-1].payload["question"]
    synthetic.append(EventType.APPROVAL_ASKED, question={**asked, "number": 2}, digest="0" * 64)
    with refused(LogCorrupt, "digest"):
        synthetic.state()


def test_a_stopped_study_asks_nothing(synthetic: Synthetic) -> None:
    synthetic.append(EventType.STUDY_STOPPED, reason="enough")
    ask(synthetic)
    with refused(LogCorrupt, "stopped"):
        synthetic.state()


@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize("answered", [True, False], ids=["answered", "replaced"])
def test_an_answer_is_to_the_question_that_is_open_and_given_once(
    synthetic: Synthetic, answered: bool, granted: bool
) -> None:
    digest = ask(synthetic)
    say(synthetic, digest) if answered else ask(synthetic, "look 1")
    with pytest.raises(LogCorrupt, match="is not open"):
        say(synthetic, digest, granted=granted)


def test_nobody_else_answers(synthetic: Synthetic) -> None:
    digest = ask(synthetic)
    with refused(LogCorrupt, "'planner'"):
        say(synthetic, digest, by="planner")


def test_the_report_says_who_approved_what_and_when_and_of_nothing_asked_no_word(synthetic: Synthetic) -> None:
    pages = render_report(synthetic.state(), synthetic.folder)
    assert "asked to approve" not in pages["report.md"] + pages["report.html"]
    say(synthetic, ask(synthetic, would="the first half"), note="within *this* week")
    say(synthetic, ask(synthetic, "look 2", would="the second half"), granted=False, by="command")
    text = render_report(synthetic.state(), synthetic.folder)["report.md"]
    (section,) = [part for part in text.split("\n#") if part.startswith("## What people were asked to approve")]
    assert_golden(section)
    assert "denied by a command" in text.split("\n- **Asked")[0], "it is a partial report, and why"
