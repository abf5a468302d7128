from __future__ import annotations

from pathlib import Path

import pytest

from studies import EventType
from studies.log.study import ASK_RULE
from studies.records.alpha import Exploration, exploration_spec
from tests.golden import assert_golden
from tests.studies.asked_on import STUDY, Inquiry
from tests.studies.report.pages import section

pytestmark = pytest.mark.usefixtures("undrawn")
WHY = {"rule": "stop when the wall-clock budget is used up", "action": "stop", "reason": "600 s of work are used up"}


def built(inquiry: Inquiry, folder: Path) -> str:
    """Return the report as Markdown of an inquiry that verifies with it; its first part is as it was."""
    reported = inquiry.reported(folder)
    proof = reported.verified()
    assert [str(drift) for drift in proof.drifts] == []
    assert proof.held["rebuilt file"] == proof.held["page"] + proof.held["figure"]
    page = (folder / "report.md").read_text().replace("\\", "")
    assert_golden(page.partition("\n## ")[0])
    assert_golden(section(page, "The error ledgers"))
    return page


def in_round_2(inquiry: Inquiry, attempts: int) -> Inquiry:
    """Return the inquiry before the lock of round 2, after so many of its first runs were collected; nothing runs."""
    return inquiry.until(
        lambda state: (
            (state.round, state.design) == (2, None)
            and sum(run.status == "collected" for run in state.runs.values()) >= attempts
            and not any(run.active for run in state.runs.values())
        )
    )


def test_a_round_that_is_given_up_is_told_and_its_runs_are_accounted_for(inquiry: Inquiry, tmp_path: Path) -> None:
    reason = "round 2 came to no lock, and nothing was tested in it: no noise"
    ended = in_round_2(inquiry, 1).then(EventType.STUDY_CONCLUDED, reason=reason)
    (over,) = ended.state.given_up
    page = built(ended, tmp_path / "s")
    assert_golden(section(page, "Round 2 of at most 3: given up"))
    assert f"{len(ended.state.every_run)} planned runs = " in page
    assert all(f"| {run_id} |" in page for run_id in over.runs)


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.slow
def test_a_budget_that_is_used_up_within_a_round_ends_it_with_what_was_judged(
    inquiry: Inquiry, tmp_path: Path, stopped: bool
) -> None:
    judged = inquiry.until(lambda state: state.round == 2 and bool(state.decided))
    ended = judged.then(EventType.DECISION_TAKEN, **WHY)
    if stopped:
        built(ended.then(EventType.STUDY_STOPPED, reason=f"budget: {WHY['reason']}"), tmp_path / "s")
    else:
        built(ended.then(EventType.STUDY_CONCLUDED, reason="the hypothesis is judged"), tmp_path / "c")


def test_an_inquiry_of_one_round_says_why_it_did_not_ask_on(inquiry: Inquiry, tmp_path: Path) -> None:
    settled = inquiry.until(lambda state: state.round == 2)
    alone = Inquiry(settled.events[:-1], settled.folder)
    asked = next(n for n, event in enumerate(alone.events) if event.payload.get("turn", "").startswith("2/"))
    reason = "rules sees nothing more to ask: <b>all</b> is known"
    ended = Inquiry(alone.events[:asked], alone.folder)
    ended = ended.then(EventType.DECISION_TAKEN, rule=ASK_RULE, action="end", reason=reason)
    page = built(ended.then(EventType.STUDY_CONCLUDED, reason="the hypothesis is judged"), tmp_path / "s")
    assert "## Round 1 of at most 3: learning_rate 0.01 against" in page
    assert "<b>all</b>" not in (tmp_path / "s" / "report.html").read_text()


def test_what_was_tried_without_a_claim_is_labelled_and_its_runs_are_accounted_for(
    inquiry: Inquiry, tmp_path: Path
) -> None:
    begun = inquiry.until(lambda state: state.round == 2)
    design = begun.state.rounds[0].design
    metric = design.metric.model_copy(update={"split": "search", "key": "search/success"})
    fields = {"environment": "arith", "base_job": design.base_job, "arms": design.arms, "seed": 7, "metric": metric}
    plan = Exploration(why="Is it <i>stable</i>?", **fields)
    planned = {"plan": plan.model_dump(mode="json"), "hash": plan.hash(), "seconds_per_run": 3.0, "turn": ""}
    tried = begun.then(EventType.EXPLORATION_PLANNED, **planned)
    spec = exploration_spec(STUDY, plan, plan.arms[1], plan.seed)
    tried = tried.then(EventType.RUN_PLANNED, run_id=spec.run_id, spec=spec.model_dump(mode="json"))
    page = built(tried.then(EventType.STUDY_STOPPED, reason="nobody waits"), tmp_path / "s")
    assert_golden("\n".join(line for line in page.split("\n") if "xploration" in line or "| planned |" in line))
    (row,) = [line for line in page.split("\n") if line.startswith(f"| 2 | {spec.run_id} |")]
    assert row.endswith("| explore |")
    assert "<i>stable" not in (tmp_path / "s" / "report.html").read_text()
