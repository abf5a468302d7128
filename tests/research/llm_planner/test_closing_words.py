"""A planner's last words: what in them is in no fact, and which verdicts they claim that nobody reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.planners.context import ArmFacts, Digest
from research.planners.prompts import voiced
from studies.records.verdict import PlannerWords, Verdict, quotation
from tests.golden import assert_golden
from tests.research.factories import make_verdict

MakeDigest = Callable[..., Digest]


def verdict(name: str = "h1", said: str = "inconclusive", **changes: Any) -> Verdict:
    values = {"estimate": 0.158, "low": -0.0421, "high": 0.3581, "p": 0.0312, "mean_control": 0.4,
              "mean_treatment": 0.558, "n_control": 2, "n_treatment": 2}  # fmt: skip
    return make_verdict(hypothesis=name, verdict=said, **values | changes)


def judged(*verdicts: Verdict) -> Digest:
    arms = (ArmFacts("group_size=8", 2, 0.4), ArmFacts("group_size=16", 2, 0.558))
    return Digest(
        topic="group size 8 vs 16", seconds_left=1234.0, seconds_per_run=58.0, parallel=2,
        verdicts=verdicts or (verdict(),), arms=arms,
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "The difference is +0.158 (0.16, or 0.2).", "It rose by 15.8 % [-4.2 %, 35.8 %].", "16 percentage points.",
        "2 + 2 runs, 4 in all, of 2 arms.", "p = 0.03; from 0.40 to 0.56.", "group_size=16 instead of 8",
        "About 1,234 seconds are left.", "95 % of such intervals hold it.", "Nothing was shown about h1.",
    ],
)  # fmt: skip
def test_a_fact_in_any_rounding_is_founded(text: str) -> None:
    assert voiced("llm m", text, judged()).unfounded == ()


@pytest.mark.parametrize(
    ("text", "unfounded"),
    [
        ("p < 0.0001", ("0.0001",)), ("It rose by 0.61, by 61 %, and 0.61 again.", ("0.61", "61 %")),
        ("The difference is -0.158.", ("-0.158",)), ("12 runs of 5,000 episodes show 1e-9.", ("12", "5,000", "1e-9")),
        ("Success is 99.9 percent.", ("99.9 percent",)),
    ],
)  # fmt: skip
def test_a_number_in_no_fact_is_named_as_it_is_written(text: str, unfounded: tuple[str, ...]) -> None:
    assert voiced("llm m", text, judged()).unfounded == unfounded


@given(fact=st.floats(min_value=-1, max_value=1), digits=st.integers(min_value=2, max_value=6))
def test_whatever_the_fact_its_roundings_are_founded_and_what_is_far_from_all_facts_is_not(
    fact: float, digits: int
) -> None:
    facts = judged(verdict(estimate=fact))
    shown = f"{fact:.{digits}f}"
    assert voiced("llm m", f"The difference is {shown}.", facts).unfounded == ()
    assert voiced("llm m", f"The difference is {abs(fact) + 8.375:.3f}.", facts).unfounded != ()


@given(st.text(max_size=200))
def test_any_words_are_read_without_an_error(text: str) -> None:
    said = voiced("llm m", text, judged())
    assert said.text == text
    assert all(number in text for number in said.unfounded or ())


@pytest.mark.parametrize(
    ("text", "contradicted"),
    [
        ("The claim is strongly SUPPORTED.", ("SUPPORTED",)), ("It is inconclusive, and not supported.", ()),
        ("Neither supported nor refuted.", ()), ("h1 is Equivalent; h2 is refuted.", ("Equivalent", "refuted")),
        ("h2 is supported.", ()),
    ],
)  # fmt: skip
def test_a_verdict_that_was_not_reached_is_named(text: str, contradicted: tuple[str, ...]) -> None:
    alone = "h2" not in text
    digest = judged() if alone else judged(verdict("h1"), verdict("h2", "supported"))
    assert voiced("llm m", text, digest).contradicted == contradicted


def test_a_verdict_is_held_against_the_hypothesis_that_its_clause_names() -> None:
    both = judged(verdict("h1"), verdict("h2", "supported"))
    assert voiced("llm m", "h1 is supported, while h2 is inconclusive.", both).contradicted == (
        "supported",
        "inconclusive",
    )


def test_a_verdict_that_is_said_of_no_claim_by_its_id_is_every_claims_or_not_reached() -> None:
    both = judged(verdict("h1"), verdict("h2", "supported"))
    said = "The learning rate is supported too. Easy-first order is proven! h2 is confirmed."
    assert voiced("llm m", said, both).contradicted == ("supported", "proven")
    alike = judged(verdict("h1", "supported"), verdict("h2", "supported"))
    assert voiced("llm m", "Both are supported.", alike).contradicted == ()


def test_a_quotation_says_who_said_it_and_what_is_wrong_with_it() -> None:
    said = PlannerWords(
        by="llm m", text="It is\nSUPPORTED, p < 0.0001.", unfounded=("0.0001",), contradicted=("SUPPORTED",)
    )
    assert_golden(quotation(said))
    assert quotation(PlannerWords(by="llm m", text="So it is.", unfounded=())) == 'llm m: "So it is."'
    assert_golden(quotation(PlannerWords(by="llm m", text="So it is.")))
