from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from studies import StudyState
from studies.records.design import CONFIGURATION, Arm
from studies.records.verdict import PlannerMessage
from studies.report.build import render_report
from studies.report.evidence import gather
from studies.report.summary import describe_recipe, list_surprises, why_ended
from studies.verdicts.recipe import find_untested_pairs, recipes
from tests.golden import assert_golden
from tests.studies.asked_on import Inquiry
from tests.studies.report.pages import Page, section

pytestmark = pytest.mark.slow

ORDER = (
    "Asked", "Known", "Ruled out", "Surprises", "Best recipe", "Why it ended", "Ask next",
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


def test_the_ledgers_say_what_each_round_had_and_handed_on(told: Inquiry, markdown: str) -> None:
    assert_golden(section(markdown, "The error ledgers"))


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
    assert Counter(re.findall(r'<figure id="([^"]+)"', html)) == Counter(name.removesuffix(".svg") for name in written)


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


def test_a_refuted_direction_and_a_missed_prediction_surprise(inquiry: Inquiry) -> None:
    asked, evidence = inquiry.state.rounds[0], gather(inquiry.state.rounds[0], inquiry.folder)
    assert list_surprises(asked, evidence) == ()
    refuted = replace(asked, verdicts=(asked.verdicts[0].model_copy(update={"verdict": "refuted"}),))
    assert list_surprises(refuted, evidence) == (), "an open question has no direction that could be refuted"
    sided = (asked.design.hypotheses[0].model_copy(update={"sought": "difference"}),)
    state = replace(asked, design=asked.design.model_copy(update={"hypotheses": sided}))
    for changes in ({"verdict": "refuted"}, {"within_prediction": False}):
        changed = state.verdicts[0].model_copy(update=changes)
        assert_golden("\n".join(list_surprises(replace(state, verdicts=(changed,)), evidence)))


def test_what_a_planner_writes_is_quoted_below_the_results_and_held_to_the_claims(inquiry: Inquiry) -> None:
    said = PlannerMessage(by="llm m", text="r2h1 is supported; r3h1 too.", unfounded=())
    second = replace(inquiry.state.rounds[1], why_asked="h1 was REFUTED, which is confirmed.")
    state = replace(inquiry.state, said=said, rounds_before=(inquiry.state.rounds[0], second))
    page = render_report(state, inquiry.folder)["report.md"].replace("\\", "")
    why, last = page.index("h1 was REFUTED"), page.index("r2h1 is supported")
    assert "(verdicts that were not reached: REFUTED" in page[why : why + 120]
    assert page.index("## Round 2") < page.index("**Verdict:**", page.index("## Round 2")) < why
    assert page.rindex("**Verdict:**") < last


def test_how_far_an_inquiry_is_and_what_ended_it_is_said(inquiry: Inquiry) -> None:
    running = inquiry.until(lambda state: state.round == 2 and bool(state.verdicts))
    assert "**How far it is:**" in render_report(running.state, inquiry.folder)["report.md"]
    first = inquiry.state.rounds[0]
    over = replace(first, concluded_reason="judged", settings={**first.settings, "max_runs": len(first.runs)})
    assert f" {len(first.runs)} runs" in why_ended(over)
    assert_golden(f"{why_ended(running.state)}\n{why_ended(over)}")


RATE = "learning_rate"
SHOWN = {"verdict": "supported", "estimate": 0.2, "low": 0.1, "high": 0.3}


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


def test_values_are_said_to_hold_together_only_where_each_was_tried_with_those_before_it(inquiry: Inquiry) -> None:
    first, _, third = inquiry.state.rounds
    later = replace(third, verdicts=(third.verdicts[0].model_copy(update=SHOWN),))
    base = {**later.design.base_job, RATE: 0.003}
    without = replace(later, design=later.design.model_copy(update={"base_job": base}))
    for second, untested in ((later, False), (without, True)):
        designs = {each.round: each.design for each in (first, second)}
        (found,) = (recipe for recipe in recipes((first, second)) if recipe.environment == "arith")
        assert any(find_untested_pairs(found.values, designs)) == untested
        assert [list(value.fields) for value in found.values] == [[RATE], ["episodes_per_step"]]
    assert_golden("\n".join(describe_recipe(replace(without, rounds_before=(first,)))))


def test_a_search_that_goes_on_from_the_best_of_another_adds_to_its_recipe(inquiry: Inquiry) -> None:
    first, second, third = inquiry.state.rounds
    begin, found = {RATE: 0.001, "group_size": 8}, {RATE: 0.003, "group_size": 16}
    begun = compared(first, begin, found, begin, **SHOWN)
    nearer = compared(second, {RATE: 0.003}, {RATE: 0.01}, found, **SHOWN)
    assert better(begun, nearer) == [(1, {"group_size": 16}, {"group_size": 8}), (2, {RATE: 0.01}, {RATE: 0.003})]
    elsewhere = compared(third, {RATE: 0.0003}, {RATE: 0.01}, {RATE: 0.0003, "group_size": 16}, **SHOWN)
    assert better(begun, elsewhere) == [(1, found, begin)]
