"""A planner's words: what may stand in an answer by references, what in prose is not so, how a plan scores."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.log.entries import PlannerAct, PlannerNote, Stamp
from studies.log.study import StudyState
from studies.records.procedure import PlanNode
from studies.records.verdict import AnswerFigure, Mediation, Verdict
from studies.report.answer import END, OUTSIDE, AnswerFacts, list_sentences, score_plan
from studies.report.prose import find_contradictions, find_unfounded
from tests.research.factories import make_verdict
from tests.studies.synthetic import Synthetic

KNOWN = AnswerFacts(
    {"h1.estimate": "+0.12", "h1.verdict": "supported, higher"},
    frozenset({"h1", "r2h1", "round 1", "group_size=16", "guess"}),
    {1: {"arms": ("group_size=16",), "metrics": ("actor/entropy",)}},
)
FACTS = ["group size 8 vs 16", 1234.0, "95 %", 2, 4, 0.158, -0.0421, 0.3581, 0.0312, 0.4, 0.558]


@pytest.mark.parametrize("text", [
    "In round 1 {h1.verdict}: by {h1.estimate}, in group_size=16, as h1 says.", "A manifold of ideas by one arm.", "",
    "Größe ändert π nicht; second, {h1.estimate}.",
])  # fmt: skip
def test_names_and_references_may_stand_in_an_answer(text: str) -> None:
    assert KNOWN.find_faults(text) == ()
    assert "{" not in KNOWN.quote(text)


@pytest.mark.parametrize(("text", "faults"), [
    ("It rose by 0.2, or twenty per cent.", ("0.2", "twenty", "per cent")),
    ("\uff10.\uff12 or \u00bd or \u2163 or \u4e8c\u5341", ("\uff10.\uff12", "\u00bd", "\u2163", "\u4e8c\u5341")),
    ("thirty-seven, a three-fold, a tenth", ("thirty", "seven", "three-fold")),
    ("It is PROVEN, \u0455upported, sup\u200bported, signi\u0301ficant.",
     ("\u0455upported", "PROVEN", "supported", "significant")),
    ("h1 is not {h1.verdict}, and {h9.low}", ("{h9.low}", "not {h1.verdict}")),
    ("It is false that {h1.verdict}", ("not {h1.verdict}",)), ("group_size=16x better", ("group_size=16x",)),
    ("{h1.estimate and {{h1.verdict}}", ("{",)), ("group_size=1600 in round 2 of r3h1", ()),
    ("no real effect, p<0.01", ("p<0.01", "no real effect")), ("<b>3</b> `7`", ("<b>3</b>", "`7`")),
])  # fmt: skip
def test_numbers_verdicts_and_references_to_nothing_are_found_in_any_disguise(
    text: str, faults: tuple[str, ...]
) -> None:
    found = KNOWN.find_faults(text)
    assert found
    assert not [fault for fault in faults if not any(fault in each for each in found)]
    assert "not by reference" in KNOWN.quote(text)


@given(st.text(st.characters(categories=["Nd", "Nl", "No"]), min_size=1), st.text(max_size=20))
def test_no_digit_of_any_script_stands_free_in_an_answer(digits: str, around: str) -> None:
    assert KNOWN.find_faults(f"{around.replace('{', '').replace('}', '')} {digits}")


def test_figures_are_of_arms_and_metrics_that_were_logged() -> None:
    assert KNOWN.check({}, [AnswerFigure(metric="actor/entropy", arms=("group_size=16",))]) == []
    for wrong in (
        {"metric": "no"},
        {"metric": "actor/entropy", "arms": ("b",)},
        {"metric": "actor/entropy", "round": 2},
    ):
        assert len(KNOWN.check({}, [AnswerFigure(**wrong)])) == 1


def test_what_was_said_of_a_mediator_may_be_referred_to(study: Synthetic) -> None:
    state = study.whole()
    moved = Mediation(metric="logged:actor/entropy:last", expected="increase", result="moved", estimate=0.25)
    state = replace(state, verdicts=(state.verdicts[0].model_copy(update={"mediators": (moved,)}),))
    facts = AnswerFacts.of(state, {})
    text = "By {h1.by(logged:actor/entropy:last).estimate}: {arm:group_size=16.mean} is {arm:group_size=16@1.mean}."
    assert facts.quote(text).startswith("By +0.250: 0.")
    assert facts.find_faults(text) == ()


def test_sentences_end_at_no_point_within_a_reference() -> None:
    assert list_sentences("By {h1.estimate}. So it\nis!", "", "Yes.") == ("By {h1.estimate}.", "So it is!", "Yes.")


def verdict(name: str = "h1", said: str = "inconclusive", **changes: Any) -> Verdict:
    values = {"estimate": 0.158, "low": -0.0421, "high": 0.3581, "p": 0.0312, "mean_control": 0.4,
              "mean_treatment": 0.558, "n_control": 2, "n_treatment": 2}  # fmt: skip
    return make_verdict(hypothesis=name, verdict=said, **values | changes)


@pytest.mark.parametrize(
    ("text", "unfounded"),
    [
        *((text, ()) for text in (
            "The difference is +0.158 (0.16, or 0.2).", "It rose by 15.8 % [-4.2 %, 35.8 %].", "16 percentage points.",
            "2 + 2 runs, 4 in all, of 2 arms.", "p = 0.03; from 0.40 to 0.56.", "group_size=16 instead of 8",
            "About 1,234 seconds are left.", "95 % of such intervals hold it.", "Nothing was shown about h1.",
        )),
        ("p < 0.0001", ("0.0001",)), ("It rose by 0.61, by 61 %, and 0.61 again.", ("0.61", "61 %")),
        ("The difference is -0.158.", ("-0.158",)), ("12 runs of 5,000 episodes show 1e-9.", ("12", "5,000", "1e-9")),
        ("Success is 99.9 percent.", ("99.9 percent",)),
    ],
)  # fmt: skip
def test_a_number_in_no_fact_in_any_rounding_is_named_as_it_is_written(text: str, unfounded: tuple[str, ...]) -> None:
    assert find_unfounded(text, FACTS) == unfounded


@given(fact=st.floats(min_value=-1, max_value=1), digits=st.integers(min_value=2, max_value=6))
def test_roundings_of_any_fact_are_founded_and_what_is_far_from_all_facts_is_not(fact: float, digits: int) -> None:
    facts = [*FACTS, fact]
    shown = f"{fact:.{digits}f}"
    assert find_unfounded(f"The difference is {shown}.", facts) == ()
    assert find_unfounded(f"The difference is {abs(fact) + 8.375:.3f}.", facts) != ()


@pytest.mark.parametrize(
    ("text", "reached", "contradicted"),
    [
        ("The claim is strongly SUPPORTED.", "inconclusive", ("SUPPORTED",)),
        ("It is inconclusive, and not supported.", "inconclusive", ()),
        ("Neither supported nor refuted.", "inconclusive", ()),
        ("h1 is Equivalent; h2 is refuted.", "inconclusive supported", ("Equivalent", "refuted")),
        ("h2 is supported.", "inconclusive supported", ()),
        ("h1 is supported, while h2 is inconclusive.", "inconclusive supported", ("supported", "inconclusive")),
        ("Its rate is supported too. Easy-first order is proven! h2 is confirmed.", "inconclusive supported",
         ("supported", "proven")),
        ("Both are supported.", "supported supported", ()),
        ("Round 2 was supported and round 1 refuted.", "refuted refuted supported", ()),
        ("The claim of round 2 is proven.", "supported supported inconclusive", ("proven",)),
        ("A significant gain in h1, r4h1 is supported.", "inconclusive", ("significant", "supported")),
        ("There is no effect of h1; h2 was not significant.", "inconclusive equivalent", ("no effect",)),
    ],
)  # fmt: skip
def test_a_verdict_is_held_against_its_claim(text: str, reached: str, contradicted: tuple[str, ...]) -> None:
    verdicts = [verdict(name, said) for name, said in zip(("h1", "h2", "r2h1"), reached.split(), strict=False)]
    assert find_contradictions(text, verdicts) == contradicted


NODES = (
    PlanNode(id="n1", question="Do groups help?", if_supported="n2", if_equivalent="n3"),
    PlanNode(id="n2", question="Elsewhere, too?"),
    PlanNode(id="n3", question="Does the rate?"),
)
OTHER = (PlanNode(id="n1", question="Do groups help?", if_equivalent="n2"), *NODES[1:])


def plan(seq: int, nodes: tuple[PlanNode, ...] = NODES, round: int = 1) -> PlannerNote:
    return PlannerNote(seq, "", "plan", "Why.", round, f"{round}/propose/1", 0, nodes=nodes)


def planned(*rounds: tuple[str, tuple[str, ...]], plans: tuple[PlannerNote, ...] = (), ended: str = "") -> StudyState:
    """Return what is scored of a study: of each round the node that its proposal names, and its verdicts.

    Round number n is locked by event 10 n; a refused proposal of node n9 came before each.
    """
    states = [
        SimpleNamespace(
            round=number, locked=Stamp(10 * number, ""), open_claims=[] if verdicts else ["h1"],
            verdicts=[SimpleNamespace(hypothesis=f"h{n}", verdict=name) for n, name in enumerate(verdicts, 1)],
        )
        for number, (_, verdicts) in enumerate(rounds, start=1)
    ]  # fmt: skip
    acts = [
        PlannerAct("propose", 1, {}, (), "", turn=f"{number}/propose/{attempt}", node=node)
        for number, (own, _) in enumerate(rounds, start=1)
        for attempt, node in ((1, "n9"), (2, own))
    ]
    decisions = (SimpleNamespace(rule="ask on while level and budget tell something", action="end", reason=ended),)
    whole = SimpleNamespace(
        notebook=plans or (plan(5),), rounds=states, planner_acts=acts, decisions=decisions if ended else ()
    )
    return cast(StudyState, cast(Any, whole))


IN_WORDS = "nothing more is asked, in the words of llm: “Enough.”"


@pytest.mark.parametrize(("scored", "expected"), [
    (planned(("n1", ("supported",)), ("n2", ("inconclusive",)), ended=IN_WORDS),
     [("n1", 1, "n2", "n2", True), ("n2", 2, END, END, True), ("n3", None, None, "", None)]),
    (planned(("n1", ("supported",)), ("n3", ())),
     [("n1", 1, "n2", "n3", False), ("n2", None, None, "", None), ("n3", 2, None, "", None)]),
    (planned(("n1", ("equivalent", "supported")), ("n2", ())),  # of two ends no branch tells
     [("n1", 1, None, "n2", None), ("n2", 2, None, "", None), ("n3", None, None, "", None)]),
    (planned(("n1", ("supported",)), ended="no further question could be had"),  # nothing that it chose
     [("n1", 1, "n2", "", None), ("n2", None, None, "", None), ("n3", None, None, "", None)]),
    (planned(("n1", ("refuted",)), ("", ("supported",))),
     [("n1", 1, END, OUTSIDE, False), ("n2", None, None, "", None), ("n3", None, None, "", None)]),
    (planned(("n1", ("equivalent",)), ("n2", ()), plans=(plan(5), plan(15, OTHER, 2))),  # held to what stood before
     [("n1", 1, "n3", "n2", False), ("n2", 2, None, "", None), ("n3", None, None, "", None)]),
    (planned(("n1", ("supported",)), ("n2", ()), plans=(plan(5), plan(15, NODES[::2], 2))),  # of the plan before
     [("n1", 1, "n2", "n2", True), ("n3", None, None, "", None), ("n2", 2, None, "", None)]),
    (planned(), [(node.id, None, None, "", None) for node in NODES]),  # nothing is locked yet
    (planned(("n1", ("equivalent",)), plans=(plan(15, round=2),)),  # a plan after the lock planned nothing of it
     [("n1", None, None, "", None), ("n2", None, None, "", None), ("n3", None, None, "", None)]),
])  # fmt: skip
def test_a_plan_is_scored_by_what_stood_before_the_data(scored: StudyState, expected: list[Any]) -> None:
    assert [(o.node.id, o.round, o.branch, o.came, o.followed) for o in score_plan(scored)] == expected


def test_without_a_plan_nothing_is_scored() -> None:
    whole = cast(StudyState, cast(Any, SimpleNamespace(notebook=())))
    assert score_plan(whole) == ()
