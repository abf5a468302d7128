from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from research.planners.history import RoundFacts
from studies import StudyState
from studies.log.entries import PlannerNote
from studies.records.design import CONFIGURATION, Arm
from studies.records.verdict import PlannerMessage, quoted
from studies.report.build import render_report
from studies.report.claims import quotes
from studies.report.prose import mark
from studies.report.summary import describe_recipe
from studies.report.tables import notebook_table
from studies.verdicts.recipe import recipes
from studies.verdicts.wording import deciding_interval
from tests.golden import assert_golden
from tests.studies.asked_on import Inquiry
from tests.studies.report.pages import Page, section

pytestmark = pytest.mark.slow

ORDER = (
    "Asked", "Judged by", "Known", "Topic", "Best recipe", "Why it ended", "Ask next",
    "## Round 1 of at most 3", "## Round 2 of at most 3", "## Round 3 of at most 3",
    "## Threats to every round", "## The error ledgers", "## Every run", "## Cost",
)  # fmt: skip


@pytest.fixture(scope="module")
def markdown(told: Inquiry) -> str:
    return (told.folder / "report.md").read_text().replace("\\", "")


@pytest.fixture(scope="module")
def html(told: Inquiry) -> str:
    return (told.folder / "report.html").read_text()


def test_answers_come_first_then_the_rounds_in_order_then_the_ledgers(markdown: str) -> None:
    places = [markdown.index(heading) for heading in ORDER]
    assert places == sorted(places)
    assert_golden(markdown.partition("\n## ")[0])


def test_each_round_stands_with_its_reason_level_table_and_figures(told: Inquiry, markdown: str) -> None:
    for state in told.state.rounds:
        part = section(markdown, f"Round {state.round} of")
        assert f"figures/round-{state.round}-predictions.svg" in part
        assert f"figures/round-{state.round}-before-after.svg" in part
        assert str(state.design_hash) in part
        assert state.why_asked in part
    assert_golden(section(markdown, "Round 2 of").partition("![")[0])


def test_every_run_act_and_decision_of_every_round_is_accounted_for(told: Inquiry, markdown: str) -> None:
    state = told.state
    runs = markdown[markdown.index("## Every run") :]
    assert f"{len(state.every_run)} planned runs = {len(state.every_run)} collected + 0 invalid" in runs
    assert all(f" | {run_id} | " in runs for run_id in state.every_run)
    assert all(f"| {act.turn} | {act.action} |" in runs for act in state.planner_acts)
    assert all(decision.reason in runs for each in state.rounds for decision in each.decisions)
    seconds = sum(run.seconds for run in state.every_run.values())
    assert f"{round(seconds // 60)} min" in runs[runs.index("Time in runs, all attempts added up") :][:80]


def test_the_page_is_whole_fetches_nothing_and_shows_words_as_words(inquiry: Inquiry, html: str) -> None:
    assert [link for link in Page(html).links if not link.startswith("#")] == []
    ids = Counter(re.findall(r'<(?!path|g|use|clipPath|svg)[a-z0-9]+[^>]* id="([^"]+)"', html))
    assert [name for name, count in ids.items() if count > 1] == []
    state = replace(inquiry.state, topic="<script>alert(1)</script> | **x**", why_asked="<i>why</i> `x`")
    pages = render_report(state, inquiry.folder)
    assert not [name for name in ("report.md", "report.html") if "<script>" in pages[name]]
    assert "<i>why" not in pages["report.html"]


def test_a_lock_of_an_earlier_round_that_was_edited_stands_above_the_answers(told: Inquiry, tmp_path: Path) -> None:
    edited = replace(told, events=told.events[:-1]).reported(tmp_path / "s")
    (edited.folder / "design-2.lock").write_text("{}")
    page = render_report(edited.state, edited.folder)["report.md"].replace("\\", "")
    assert page.index("lock design-2.lock was changed") < page.index("**Asked:**")


def by_model(state: StudyState) -> StudyState:
    before = tuple(map(by_model, state.rounds_before))
    return replace(state, planner={"name": "llm", "model": "m"}, rounds_before=before)


def test_what_a_planner_writes_is_quoted_below_the_results_and_held_to_the_claims(inquiry: Inquiry) -> None:
    said = PlannerMessage(by="llm m", text="r2h1 is supported; r3h1 too.", unfounded=())
    second = replace(inquiry.state.rounds[1], why_asked="h1 was REFUTED, which is confirmed.")
    state = replace(inquiry.state, said=said, rounds_before=(inquiry.state.rounds[0], second))
    page = render_report(by_model(state), inquiry.folder)["report.md"].replace("\\", "")
    why, last = page.index("h1 was REFUTED"), page.index("r2h1 is supported")
    assert "(verdicts that were not reached: REFUTED" in page[why : why + 120]
    assert page.index("## Round 2") < page.index("**Verdict:**", page.index("## Round 2")) < why
    assert page.rindex("**Verdict:**") < last


def test_false_words_are_marked_wherever_they_are_printed_and_true_ones_are_not(inquiry: Inquiry) -> None:
    state = by_model(inquiry.state)
    (one, *_), (three, *_) = state.rounds[0].verdicts, state.rounds[2].verdicts
    true = f"h1 is {one.verdict}, r3h1 {three.verdict}; learning_rate 0.01 gave {one.estimate:+.3f} in round 1."
    for text, marks in (
        (true, ""),
        (
            "Round 1 was refuted, p < 0.0071.",
            " (numbers that are in no fact: 0.0071; verdicts that were not reached: refuted)",
        ),
        ("r9h1 is supported", " (verdicts that were not reached: supported)"),
    ):
        assert mark(text, state.rounds) == text + marks
    first = state.rounds[0]
    assert mark("It is refuted, by 0.0071.", (replace(first, verdicts=()),)) == "It is refuted, by 0.0071."
    by_rules = replace(first, planner={"name": "rules", "model": None})
    assert mark("Nothing is refuted, by 0.0071.", (by_rules,)) == "Nothing is refuted, by 0.0071.", "code's own words"
    [claim, *_] = state.rounds[2].design.hypotheses
    said = claim.model_copy(update={"mechanism": f"From {claim.control} to {claim.treatment} it rises by 0.4321."})
    third = replace(state.rounds[2], design=state.rounds[2].design.model_copy(update={"hypotheses": (said,)}))
    assert next(quotes(third)).lines[-1] == f"{said.mechanism} (numbers that are in no fact: 0.4321)"
    assert quoted('a". Code: “b”') == '"a\'. Code: ‘b’"'
    assert quoted("a \u202eb\x1b[2J") == '"a b[2J"'
    note = PlannerNote(1, "", "note", "r2h1 was refuted", 3, "3/propose/1", 0)
    noted = replace(state, notes={("3/propose/1", 0): note})
    assert "not reached: refuted" in notebook_table(noted).rows[0][-1].text
    told = RoundFacts.of(replace(state.rounds[1], why_asked="h1 was refuted")).facts(whole=True)
    assert "not reached: refuted" in told["asked_because"]
    decided = deciding_interval(state.rounds[2].design, state.rounds[2].verdicts[0])
    assert RoundFacts.of(state.rounds[2]).facts(whole=False)["claims"][0]["low"] == pytest.approx(decided.low, abs=1e-4)


RATE = "learning_rate"


def compared(
    state: StudyState,
    control: dict[str, Any],
    treatment: dict[str, Any],
    base: dict[str, Any] | None = None,
    **verdict: Any,
) -> StudyState:
    """Return a round as if it had compared these values in arith, of one field or of a configuration."""
    (claim,) = state.design.hypotheses
    pair: dict[str, Any] = {"variable": CONFIGURATION, "control": control, "treatment": treatment}
    if len(treatment) == 1 and base is None:
        ((name, value),) = treatment.items()
        pair = {"variable": name, "control": control[name], "treatment": value}
    arms = tuple(Arm(name=f"arm-{n}", overrides=fields) for n, fields in enumerate((control, treatment)))
    design = state.design.model_copy(
        update={
            "environment": "arith",
            "arms": arms,
            "control_arm": "arm-0",
            "hypotheses": (claim.model_copy(update=pair),),
        }
        | {"base_job": {**state.design.base_job, **(base or {})}}
    )
    return replace(state, design=design, verdicts=(state.verdicts[0].model_copy(update=verdict),))


def rates(state: StudyState, control: float, treatment: float, **verdict: Any) -> StudyState:
    return compared(state, {RATE: control}, {RATE: treatment}, **verdict)


def better(*rounds: StudyState) -> list[tuple[int, Any, Any]]:
    (found,) = (recipe for recipe in recipes(rounds) if recipe.environment == "arith")
    return [(value.round, dict(value.fields), dict(value.over)) for value in found.values]


def test_a_recipe_holds_of_each_setting_what_the_last_confirmation_of_a_comparison_showed(inquiry: Inquiry) -> None:
    first, second, third = inquiry.state.rounds
    assert {recipe.environment: list(recipe.values[0].fields) for recipe in recipes(inquiry.state.rounds)} == {
        "arith": [RATE], "guess": [RATE],
    }  # fmt: skip
    best = (1, {RATE: 0.01}, {RATE: 0.003})
    again, unsettled = rates(second, 0.003, 0.01, verdict="inconclusive"), rates(first, 0.003, 0.01, final=False)
    exploratory = rates(first, 0.003, 0.01, exploratory=True)
    for rounds, expected in (
        ((first, again), []),
        ((first, rates(second, 0.003, 0.01, verdict="refuted", estimate=-0.2, low=-0.3, high=-0.1)), []),
        ((first, rates(second, 0.01, 0.03)), [(2, {RATE: 0.03}, {RATE: 0.01})]),
        ((first, rates(second, 0.01, 0.03, verdict="inconclusive")), [best]),
        ((first, rates(second, 0.0003, 0.001)), [best]),
        ((exploratory,), []),
        ((exploratory, rates(second, 0.003, 0.01)), [(2, *best[1:])]),
        ((replace(unsettled, decided={}),), []),
    ):
        assert better(*rounds) == expected
    taken_back = replace(third, rounds_before=(first, again), design=None, verdicts=())
    assert_golden("\n".join((*describe_recipe(inquiry.state), *describe_recipe(taken_back))))
