"""What is known: every verdict that stands with its conditions, found by words, held against one another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.design.known_findings import (
    FindingConditions,
    KnownFinding,
    find_contradictions,
    findings_of,
    load_findings,
    search_findings,
)
from research.installation.home import Home
from research.planners.tools import find_related
from studies import EventLog
from tests.golden import assert_golden
from tests.research.factories import make_home
from tests.research.in_rounds import InRounds

TOPIC = "Does a larger group size help on guess?"
HERE = FindingConditions(
    environment="guess", model="tiny", model_key="m1", metric="hidden:hidden/success", metric_name="hidden success",
    job="j1", fields={},
)  # fmt: skip
FOUND = KnownFinding(
    study="s", round=1, hypothesis="h1", phase="confirm", claim="Whether group_size = 16 raises the hidden success.",
    variable="group_size", control=4, treatment=16, verdict="supported", estimate=0.1, low=0.05, high=0.15, level=0.95,
    n_control=5, n_treatment=5, exploratory=False, lock="l", conditions=HERE,
)  # fmt: skip


def known(**changes: Any) -> KnownFinding:
    where = {name: changes.pop(name) for name in list(changes) if name in FindingConditions.model_fields}
    return FOUND.model_copy(update={**changes, "conditions": HERE.model_copy(update=where)})


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path / "home")


@pytest.fixture
def log(home: Home) -> Iterator[EventLog]:
    with closing(EventLog(home.database)) as log:
        yield log


def test_each_round_of_a_study_is_a_finding_with_its_conditions(tmp_path: Path) -> None:
    first, second = findings_of(InRounds(tmp_path).two_rounds(epochs=2), tmp_path)
    assert (first.name, second.name) == ("s-synthetic/1/h1", "s-synthetic/2/r2h1")
    assert_golden(first.claim)
    assert (first.verdict, first.n_control, first.n_treatment, first.conditions.environment) == (
        "supported", 5, 5, "guess",
    )  # fmt: skip
    assert first.level > 0.95  # a round of several has a part of the level
    assert 0 < first.low < first.estimate
    assert first.lock != second.lock
    assert first.conditions.job == second.conditions.job  # the field that is compared is no condition of it
    assert first.conditions.fields == second.conditions.fields == {"epochs": 2, "max_context": 256}


def test_a_verdict_whose_files_changed_is_named_and_has_no_numbers(tmp_path: Path) -> None:
    study = InRounds(tmp_path)
    state = study.two_rounds()
    next(tmp_path.glob(f"runs/{next(iter(state.runs))}/evaluation.json")).unlink()
    first, second = findings_of(state, tmp_path)
    assert first.verdict == "supported"
    assert (second.verdict, second.estimate, second.low, second.level) == ("does not follow", None, None, None)
    assert "cannot be" in second.doubt


@pytest.mark.parametrize(("words", "named"), [
    *((words, True) for words in ("", "group", "group_size", "GROUP size", "supp", "guess tiny", "16",
                                  "hidden success", "s/1/h1", "rollouts per prompt")),
    *((words, False) for words in ("roup", "refuted", "group arith", "6", "learning rate")),
])  # fmt: skip
def test_words_name_what_has_all_of_them(words: str, named: bool) -> None:
    assert search_findings([FOUND], tuple(words.split())) == ((FOUND,) if named else ())


def test_a_contradiction_is_flagged_with_the_conditions_in_which_its_sides_differ() -> None:
    lower = known(
        study="t", verdict="refuted", estimate=-0.1, low=-0.2, high=-0.05, environment="arith", fields={"epochs": 2}
    )
    (found,) = find_contradictions([FOUND, lower])
    assert (found.one, found.other) == ((FOUND,), (lower,))
    assert [part.split(":")[0] for part in found.differ] == ["environment", "epochs"]
    assert_golden("\n".join(found.differ))
    (found,) = find_contradictions([FOUND, known(verdict="refuted", estimate=-0.1, low=-0.2, high=-0.05)])
    assert found.differ == ()
    (found,) = find_contradictions([FOUND, known(verdict="refuted", estimate=-0.1, model_key="m2")])
    assert_golden("\n".join(found.differ))


@pytest.mark.parametrize(
    ("changes", "contradictions"),
    [
        ({"control": 16, "treatment": 4, "verdict": "refuted", "estimate": -0.1, "low": -0.15, "high": -0.05}, 0),
        ({"control": 16, "treatment": 4}, 1),
        ({"verdict": "equivalent", "estimate": 0.0, "low": -0.04, "high": 0.04}, 1),
        ({"verdict": "equivalent", "estimate": 0.03, "low": 0.0, "high": 0.06}, 0),
    ],
    ids=["the same from the other side", "the other from there", "intervals apart", "intervals that meet"],
)
def test_what_can_both_hold_is_no_contradiction(changes: dict[str, Any], contradictions: int) -> None:
    assert len(find_contradictions([FOUND, known(**changes)])) == contradictions


@given(st.lists(st.tuples(st.sampled_from([(4, 16), (16, 4)]), st.floats(0.01, 1), st.booleans()), max_size=12))
def test_findings_that_all_say_the_same_never_contradict(made: list[tuple[tuple[int, int], float, bool]]) -> None:
    findings = [
        known(
            control=control, treatment=treatment, verdict="supported" if claimed else "refuted",
            estimate=size if treatment == 16 else -size,
        )
        for (control, treatment), size, claimed in made
    ]  # fmt: skip
    assert find_contradictions(findings) == ()


@pytest.mark.slow
def test_a_planner_finds_what_other_studies_found_and_not_its_own(home: Home, log: EventLog) -> None:
    InRounds.of(home, "one").two_rounds()
    InRounds.of(home, "two").two_rounds()
    found = find_related(load_findings(home, log).findings, "two", TOPIC, 8)
    assert {entry.id.split("/")[0] for entry in found} == {"one"}
    assert any("supported" in entry.text and "group_size = 16" in entry.text for entry in found)
    assert find_related(load_findings(home, log).findings, "two", "xylophone", 8) == ()
    assert len(find_related(load_findings(home, log).findings, "three", "", 3)) == 3
