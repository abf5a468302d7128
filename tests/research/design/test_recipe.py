"""A recipe holds what was confirmed and nothing else, and says what was never confirmed together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from research.design.known_findings import Recipe, recipe_of
from research.installation.base_job import base_settings
from studies import EventType, StudyState, judge_hypothesis
from studies.records.design import Arm
from studies.report.summary import describe_recipe
from swarm.job import Job
from tests.golden import assert_golden
from tests.research.in_rounds import InRounds
from tests.studies.synthetic import Synthetic, base_job, hypothesis


@pytest.fixture
def study(tmp_path: Path) -> InRounds:
    study = InRounds(tmp_path)
    study.means |= {"group_size=4": 0.52, "group_size=16": 0.66, "group_size=32": 0.80}
    study.create()
    return study


def go_on(study: InRounds) -> None:
    if study.state().verdicts:
        study.begin_next()


def answered(study: InRounds, *values: int) -> None:
    go_on(study)
    study.ask(*values)
    study.answer()


def asked(study: InRounds, variable: str, control: Any, treatment: Any, gain: float, **changes: Any) -> None:
    """Ask and answer a round about any field: the treatment is better by `gain`."""
    go_on(study)
    arms = tuple(Arm(name=f"{variable}={value}", overrides={variable: value}) for value in (control, treatment))
    study.means |= {arms[0].name: 0.5, arms[1].name: 0.5 + gain}
    number = study.state().round
    unused = {"unused_control": changes.pop("unused", False)}
    claim = hypothesis("h1" if number == 1 else f"r{number}h1", treatment, control=control, variable=variable, **unused)
    study.ask(**{"hypotheses": (claim,), "arms": arms, "control_arm": arms[0].name, **changes})
    study.answer()


def told(study: Synthetic) -> Recipe:
    return recipe_of(study.state(), study.folder)


def job(recipe: Recipe) -> Job:
    return Job.model_validate(recipe.job)


def base(state: StudyState, **changes: Any) -> Job:
    return Job.from_record({**state.rounds[0].design.base_job, **changes})


def test_the_newest_of_a_chain_is_taken_with_its_evidence(tmp_path: Path) -> None:
    study = InRounds(tmp_path)
    state = study.two_rounds(steps=30, epochs=2)
    found = told(study)
    assert job(found).equals(base(state, group_size=32))
    assert (found.job["environment"], found.job["group_size"], found.job["epochs"]) == ("guess", 32, 2)
    assert not {"seed", "tracking", "evaluate_after"} & found.job.keys()
    (value,) = found.confirmed
    assert (value.fields, value.over) == ({"group_size": 32}, {"group_size": 16})
    assert value.finding.name == "s-synthetic/2/r2h1"
    assert value.finding.lock == state.design_hash
    assert (found.apart, found.notes) == ((), ())


def test_where_the_treatment_is_worse_the_control_is_what_was_confirmed(study: InRounds) -> None:
    answered(study, 16, 4)
    (value,) = told(study).confirmed
    assert (value.fields, value.over, value.finding.verdict) == ({"group_size": 16}, {"group_size": 4}, "refuted")


def test_before_a_lock_it_is_the_job_that_was_given(tmp_path: Path) -> None:
    study, given = Synthetic(tmp_path), Job(steps=7, environment="arith")
    study.create(settings={"budget_s": 900.0, "max_runs": None, "parallel": 2, **base_settings(given)})
    found = told(study)
    assert job(found).equals(given)
    assert_golden(found.notes[0])


@pytest.mark.parametrize("together", [True, False])
def test_values_of_two_rounds_are_together_where_the_later_one_held_the_earlier(
    study: InRounds, together: bool
) -> None:
    answered(study)
    asked(study, "epochs", 1, 2, 0.2, **({"base_job": base_job(group_size=16)} if together else {}))
    found = told(study)
    assert job(found).equals(base(study.state(), group_size=16, epochs=2))
    first = found.confirmed[0]
    assert (first.held_by, first.not_held_by) == (((2,), ()) if together else ((), (2,)))
    apart = () if together else ("group_size = 16 (round 1) and epochs = 2 (round 2) were never confirmed together",)
    assert found.apart == apart


def test_the_report_and_the_job_of_a_study_are_one_recipe(study: InRounds) -> None:
    answered(study)
    asked(study, "group_size", 4, 16, -0.2)
    assert told(study).confirmed == ()
    assert describe_recipe(study.state())[0].startswith("Nothing was confirmed")
    answered(study, 16, 32)
    (value,), said = told(study).confirmed, describe_recipe(study.state())
    assert value.fields == {"group_size": 32}
    assert [line for line in said if "rather than" in line and f"{value.text} rather than" not in line] == []


def test_a_value_that_was_compared_with_another_one_than_the_best_so_far_is_left_out(study: InRounds) -> None:
    answered(study)
    asked(study, "group_size", 4, 32, 0.2)
    found = told(study)
    assert found.job["group_size"] == 16
    assert_golden(found.notes[0].partition(": ")[2])


@pytest.mark.parametrize(("compared", "unused", "why"), [
    (("group_size", 2, 32), True, "against a control nobody uses"),
    (("environment.max_turns", 3, 6), False, "each evaluated at its own environment.max_turns"),
])  # fmt: skip
def test_a_value_that_is_better_than_what_nobody_uses_or_in_a_game_of_its_own_is_no_part_of_a_recipe(
    study: InRounds, compared: tuple[str, int, int], unused: bool, why: str
) -> None:
    asked(study, *compared, 0.2, unused=unused)
    found = told(study)
    assert (found.confirmed, why in " ".join(found.notes)) == ((), True)


def test_a_verdict_that_does_not_follow_confirms_nothing(study: InRounds) -> None:
    answered(study)
    (study.folder / "design.lock").write_text("{}")
    found = told(study)
    assert (found.confirmed, job(found).equals(base(study.state()))) == ((), True)


def test_values_that_no_job_can_have_together_are_not_put_together(study: InRounds) -> None:
    answered(study)
    asked(study, "episodes_per_step", 128, 136, 0.2)
    found = told(study)
    assert job(found).equals(base(study.state(), group_size=16))
    assert_golden("\n".join(found.notes))


def test_a_claim_that_an_amendment_made_exploratory_confirms_nothing(study: InRounds) -> None:
    study.ask()
    for spec in study.plan():
        study.run(spec)
    state = study.state()
    verdict = judge_hypothesis(state, "h1", look=1).model_copy(update={"exploratory": True})
    study.append(EventType.VERDICT_COMPUTED, **verdict.model_dump(mode="json"))
    assert told(study).confirmed == ()


def test_what_is_asked_again_and_not_shown_again_is_taken_back(study: InRounds) -> None:
    asked(study, "epochs", 1, 2, 0.3)
    asked(study, "epochs", 1, 2, 0.0)
    found = told(study)
    assert found.confirmed == ()
    assert any("not shown" in note for note in found.notes)
