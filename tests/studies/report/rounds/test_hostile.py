"""Reports of inquiries that ended otherwise than planned: each is built, accounts for every run, and verifies."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.scheduling import steps
from studies import EventType
from studies.inquiry.exploration import Exploration, exploration_spec
from studies.report.rounds.ending import ASK_RULE
from tests.studies.asked_on import STUDY, Inquiry


def built(inquiry: Inquiry, folder: Path) -> str:
    """Return the report as Markdown of an inquiry that verifies with it."""
    reported = inquiry.reported(folder)
    proof = reported.verified()
    assert [str(drift) for drift in proof.drifts] == []
    assert proof.held["rebuilt file"] == proof.held["page"] + proof.held["figure"]
    return (folder / "report.md").read_text().replace("\\", "")


def in_round_2(inquiry: Inquiry, attempts: int) -> Inquiry:
    """Return the inquiry before the lock of round 2, after so many of its A/A runs were collected; nothing runs."""
    return inquiry.until(
        lambda state: (
            (state.round, state.design) == (2, None)
            and sum(run.status == "collected" for run in state.runs.values()) >= attempts
            and not any(run.active for run in state.runs.values())
        )
    )


def test_an_inquiry_that_is_stopped_before_the_lock_of_a_round_says_so_and_keeps_what_is_known(
    inquiry: Inquiry, tmp_path: Path
) -> None:
    page = built(in_round_2(inquiry, 2).then(EventType.STUDY_STOPPED, reason="nobody waits"), tmp_path / "s")
    assert "Partial report: the study is stopped (nobody waits)." in page
    assert "Round 1: **Supported:** in arith, with learning_rate = 0.01" in page
    assert "Round 2: **No verdict:** the study was stopped before a design was locked (nobody waits)." in page
    assert "## Round 2 of at most 3\n" in page
    assert "No design is locked yet." in page
    assert "The inquiry was stopped in round 2 of at most 3 (nobody waits)." in page
    assert "ajet study resume inq-3" in page
    assert "| 2 | 1.10 % | 3.33 % | 4.43 % | not locked: nothing was spent |" in page


def test_a_round_that_is_given_up_is_told_and_its_runs_are_accounted_for(inquiry: Inquiry, tmp_path: Path) -> None:
    reason = "round 2 came to no lock, and nothing was tested in it: no noise"
    ended = in_round_2(inquiry, 3).then(EventType.STUDY_CONCLUDED, reason=reason)
    (over,) = ended.state.given_up
    page = built(ended, tmp_path / "s")
    assert "Round 2: **Given up:** it came to no lock: nothing was tested in it." in page
    assert f'The next round was given up: "{reason}".' in page
    assert "## Round 2 of at most 3: given up" in page
    runs = len(ended.state.every_run)
    assert f"{runs} planned runs = " in page
    assert all(f"| {run_id} |" in page for run_id in over.runs)
    assert f"| 2, given up | {len(over.runs)} |" in page
    assert "not locked: nothing was spent" in page
    last = page[page.index("## Round 2 of at most 3: given up") : page.index("## The error ledgers")]
    assert "- **Note.** Client and evaluators of" in last
    assert "rather than learning_rate = 0.003" in page


def test_a_budget_that_is_used_up_within_a_round_ends_it_with_what_was_judged(inquiry: Inquiry, tmp_path: Path) -> None:
    judged = inquiry.until(lambda state: state.round == 2 and bool(state.decided))
    why = "stop when the wall-clock budget is used up"
    ended = judged.then(EventType.DECISION_TAKEN, rule=why, action="stop", reason="600 s of work are used up")
    ended = ended.then(EventType.STUDY_STOPPED, reason="budget: 600 s of work are used up")
    page = built(ended, tmp_path / "s")
    assert "The inquiry was stopped in round 2 of at most 3 (budget: 600 s of work are used up)." in page
    assert "ajet study amend inq-3 --budget" in page
    concluded = judged.then(EventType.DECISION_TAKEN, rule=why, action="stop", reason="600 s of work are used up")
    concluded = concluded.then(EventType.STUDY_CONCLUDED, reason="the hypothesis is judged")
    page = built(concluded, tmp_path / "c")
    assert 'no further one was asked: the budget was used up ("600 s of work are used up").' in page
    assert "| 3 | 0.57 % |" in page


def test_an_inquiry_of_one_round_says_why_it_did_not_ask_on(inquiry: Inquiry, tmp_path: Path) -> None:
    settled = inquiry.until(lambda state: state.round == 2)
    alone = Inquiry(settled.events[:-1], settled.folder)
    asked = next(n for n, event in enumerate(alone.events) if event.payload.get("turn", "").startswith("2/"))
    reason = "rules sees nothing more to ask: <b>all</b> is known"
    ended = Inquiry(alone.events[:asked], alone.folder)
    ended = ended.then(EventType.DECISION_TAKEN, rule=ASK_RULE, action="end", reason=reason)
    page = built(ended.then(EventType.STUDY_CONCLUDED, reason="the hypothesis is judged"), tmp_path / "s")
    assert f'no further one was asked: "{reason}".' in page
    assert "learning_rate in arith: 1 round of an inquiry" in page
    assert "## Round 1 of at most 3: learning_rate 0.01 against 0.003, in arith" in page
    assert "<b>all</b>" not in (tmp_path / "s" / "report.html").read_text()


def test_what_was_tried_without_a_claim_is_labelled_and_its_runs_are_accounted_for(
    inquiry: Inquiry, tmp_path: Path
) -> None:
    begun = inquiry.until(lambda state: state.round == 2)
    design = begun.state.rounds[0].design
    assert design is not None
    metric = design.metric.model_copy(update={"split": "search", "key": "search/success"})
    plan = Exploration(
        why="Is it <i>stable</i>?",
        environment="arith",
        base_job=design.base_job,
        arms=design.arms,
        seed=7,
        metric=metric,
    )
    tried = begun.then(
        EventType.EXPLORATION_PLANNED, plan=plan.model_dump(mode="json"), hash=plan.hash(), seconds_per_run=3.0, turn=""
    )
    spec = exploration_spec(STUDY, plan, plan.arms[1])
    tried = tried.then(EventType.RUN_PLANNED, run_id=spec.run_id, spec=spec.model_dump(mode="json"))
    page = built(tried.then(EventType.STUDY_STOPPED, reason="nobody waits"), tmp_path / "s")
    assert "Exploration: 2 single runs in arith, one seed for all (7), scored on search tasks. No claim rests" in page
    assert f"| learning_rate=0.01 | learning_rate = 0.01 | {spec.run_id} | planned |" in page
    assert "| learning_rate=0.003 | learning_rate = 0.003 | – | not begun |" in page
    (row,) = [line for line in page.split("\n") if line.startswith(f"| 2 | {spec.run_id} |")]
    assert row.endswith("| explore |")
    assert "<i>stable" not in (tmp_path / "s" / "report.html").read_text()


def test_the_rule_by_which_nothing_more_is_asked_is_the_loops() -> None:
    assert steps.ASK_RULE == ASK_RULE


@pytest.mark.parametrize("standing", ["differs", "same"])
def test_a_copy_of_an_earlier_rounds_log_that_is_looked_at_later_is_told_in_its_round(
    inquiry: Inquiry, tmp_path: Path, standing: str
) -> None:
    first = next(iter(inquiry.state.rounds[0].runs.values()))
    copied = inquiry.then(
        EventType.ATTEMPT_COPIED, run_id=first.run_id, attempt=1, url="https://wandb.example/x", standing=standing,
        reason="step 3" if standing == "differs" else "",
    )  # fmt: skip
    page = built(copied, tmp_path / "s")
    assert f"| {first.run_id} | 1 | https://wandb.example/x |" in page
    threat = f"W&amp;B's copy of run {first.run_id}, attempt 1 differs from its log (step 3)"
    first_round = page[page.index("## Round 1 of") : page.index("## Round 2 of")]
    assert (threat in first_round) == (standing == "differs")
