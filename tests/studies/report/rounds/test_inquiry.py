"""The report of an inquiry: answers first, the rounds in order, the ledgers; every run, act and figure in its place."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from studies import ReportError, StudyState
from studies.report.build import render_report
from studies.report.figures import drawing
from studies.report.parts.evidence import Evidence, gather
from studies.report.rounds.ending import why_ended
from studies.report.rounds.spending import ledger_section
from studies.report.rounds.surprises import surprised
from tests.studies.asked_on import TOPIC, Inquiry
from tests.studies.report.test_build import Page

ORDER = (
    "Asked", "What is known", "Ruled out", "What surprised", "Best recipe", "Ask next", "Why it ended",
    "## Claims by round", "## Round 1 of at most 3", "## Round 2 of at most 3", "## Round 3 of at most 3",
    "## Threats to every round", "## The error ledgers", "## Every run", "## Cost",
)  # fmt: skip


@pytest.fixture(scope="module")
def markdown(told: Inquiry) -> str:
    return (told.folder / "report.md").read_text().replace("\\", "")


@pytest.fixture(scope="module")
def html(told: Inquiry) -> str:
    return (told.folder / "report.html").read_text()


def section(markdown: str, number: int) -> str:
    begin = markdown.index(f"## Round {number} of")
    return markdown[begin : markdown.index("\n## ", begin + 1)]


def test_answers_come_first_then_the_rounds_in_order_then_the_ledgers(markdown: str) -> None:
    places = [markdown.index(heading) for heading in ORDER]
    assert places == sorted(places)


def test_what_is_known_is_each_claim_with_effect_interval_and_level(markdown: str) -> None:
    assert f"**Asked:** {TOPIC}" in markdown
    for number, label, numbers in (
        (1, "Supported", "difference +0.209, 99.86 % interval +0.068 to +0.350, n = 6 + 6"),
        (2, "Supported", "difference +0.229, 95.77 % interval +0.164 to +0.294, n = 5 + 5"),
        (3, "Equivalent", "difference −0.019, 98.93 % interval −0.090 to +0.052, n = 8 + 8"),
    ):
        (line,) = re.findall(rf"  - Round {number}: \*\*{label}:\*\* .*", markdown)
        assert numbers in line
    ruled_out = (
        "Round 3, in arith: a difference of 0.100 or more by episodes_per_step 256 against 64 (98.93 % interval)."
    )
    assert f"- **Ruled out:**\n\n  - {ruled_out}\n" in markdown


def test_each_round_stands_with_its_reason_level_table_and_figures(told: Inquiry, markdown: str) -> None:
    for state in told.state.rounds:
        part = section(markdown, state.round)
        assert f"figures/round-{state.round}-predictions.svg" in part
        assert f"figures/round-{state.round}-before-after.svg" in part
        assert "| Hypothesis | Difference | Interval | Runs | Predicted | Inside | Verdict |" in part
        assert str(state.design_hash) in part
        assert state.why_asked in part
    assert "4.43 % on claims of a difference, 1.10 % on claims of no difference" in section(markdown, 2)
    assert "What was found of learning_rate in arith is tried in guess." in section(markdown, 2)


def test_the_ledgers_say_what_each_round_had_and_handed_on(told: Inquiry, markdown: str) -> None:
    differences, alike = (entry.entries for entry in ledger_section(told.state).tables)
    assert [[cell.text for cell in row] for row in differences.rows] == [
        ["1", "3.33 %", "0.00 %", "3.33 %", "yes"],
        ["2", "1.10 %", "3.33 %", "4.43 %", "yes"],
        ["3", "0.57 %", "4.43 %", "5.00 %", "the last round"],
    ]
    assert [row[4].text for row in alike.rows] == ["no", "no", "the last round"]
    assert "| 2 | 1.10 % | 3.33 % | 4.43 % | yes |" in markdown


def test_every_run_act_and_decision_of_every_round_is_accounted_for(told: Inquiry, markdown: str) -> None:
    state = told.state
    runs = markdown[markdown.index("## Every run") :]
    assert f"{len(state.every_run)} planned runs = {len(state.every_run)} collected + 0 invalid" in runs
    assert all(f" | {run_id} | " in runs for run_id in state.every_run)
    assert all(f"| {act.turn} | {act.action} |" in runs for act in state.planner_acts)
    assert all(decision.reason in runs for each in state.rounds for decision in each.decisions)
    seconds = sum(run.seconds for run in state.every_run.values())
    assert f"{round(seconds // 60)} min" in runs[runs.index("Time in runs, all attempts added up") :][:80]


def test_every_figure_is_written_shown_and_of_a_name_of_its_own(told: Inquiry, markdown: str, html: str) -> None:
    written = {path.name for path in (told.folder / "figures").iterdir()}
    assert {f"figures/{name}" for name in written} == set(re.findall(r"\((figures/[^)]+)\)", markdown))
    assert {"effects.svg", "levels.svg"} < written
    assert Counter(re.findall(r'<figure id="([^"]+)"', html)) == Counter(name.removesuffix(".svg") for name in written)


def test_the_page_is_whole_and_fetches_nothing(html: str) -> None:
    read = Page(html)
    assert [link for link in read.links if not link.startswith("#")] == []
    ids = Counter(re.findall(r'<(?!path|g|use|clipPath|svg)[a-z0-9]+[^>]* id="([^"]+)"', html))
    assert [name for name, count in ids.items() if count > 1] == []


def test_the_same_state_and_files_give_the_same_bytes(told: Inquiry) -> None:
    shown = replace(told, events=told.events[:-1])
    drawing.drawn_once.cache_clear()
    again = render_report(shown.state, told.folder)
    assert {name: (told.folder / name).read_text() for name in again} == again


def test_words_of_the_topic_and_of_the_planner_are_no_markup(inquiry: Inquiry) -> None:
    state = replace(inquiry.state, topic="<script>alert(1)</script> | **x**", why_asked="<i>why</i> `x`")
    pages = render_report(state, inquiry.folder)
    assert "<script>" not in pages["report.html"]
    assert "<i>why" not in pages["report.html"]
    assert "<script>" not in pages["report.md"]


def test_a_verdict_of_an_earlier_round_that_does_not_follow_refuses_the_report(inquiry: Inquiry) -> None:
    first, second = inquiry.state.rounds_before
    forged = first.verdicts[0].model_copy(update={"estimate": 0.3})
    state = replace(inquiry.state, rounds_before=(replace(first, verdicts=(forged,)), second))
    with pytest.raises(ReportError, match="the verdict on h1 does not follow"):
        render_report(state, inquiry.folder)


def test_a_lock_of_an_earlier_round_that_was_edited_stands_above_the_answers(told: Inquiry, tmp_path: Path) -> None:
    edited = replace(told, events=told.events[:-1]).reported(tmp_path / "s")
    (edited.folder / "design-2.lock").write_text("{}")
    page = render_report(edited.state, edited.folder)["report.md"].replace("\\", "")
    assert page.index("The lock design-2.lock was changed") < page.index("**Asked:**")


def evidence_of(state: StudyState, inquiry: Inquiry) -> Evidence:
    return gather(state, inquiry.folder)


def test_a_refuted_direction_and_a_missed_prediction_surprise(inquiry: Inquiry) -> None:
    state = inquiry.state.rounds[0]
    assert surprised(state, evidence_of(state, inquiry)) == ()
    turned = state.verdicts[0].model_copy(update={"verdict": "refuted"})
    said = surprised(replace(state, verdicts=(turned,)), evidence_of(state, inquiry))
    assert "h1 was refuted: learning_rate 0.01 against 0.003 brought the opposite of the increase" in said[0]
    missed = state.verdicts[0].model_copy(update={"within_prediction": False})
    (said_of,) = surprised(replace(state, verdicts=(missed,)), evidence_of(state, inquiry))
    assert "(+0.209) fell outside the interval predicted for h1 (−0.100 to +0.250)" in said_of


def test_an_inquiry_that_goes_on_says_how_far_it_is(inquiry: Inquiry) -> None:
    running = inquiry.until(lambda state: state.round == 2 and bool(state.verdicts))
    assert (
        why_ended(running.state) == "The inquiry is in round 2 of at most 3; nobody has said yet that it is the last."
    )
    page = render_report(running.state, inquiry.folder)["report.md"]
    assert "**How far it is:**" in page


def test_runs_that_are_used_up_are_named_as_what_ended_it(inquiry: Inquiry) -> None:
    first = inquiry.state.rounds[0]
    over = replace(first, concluded_reason="judged", settings={**first.settings, "max_runs": len(first.runs)})
    assert why_ended(over) == (
        f"After round 1 of at most 3, no further one was asked: all {len(first.runs)} runs that were allowed are used "
        "up."
    )
