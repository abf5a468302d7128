from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from studies.records.alpha import MOST_ROUNDS, AlphaAllocation, AlphaLedger, AlphaLedgers, RoundOutcome, weights
from studies.records.design import BUILT_IN, Design, Metric, RunSpec, Schedule
from studies.records.procedure import InterimAnalysis
from studies.records.runs import add_evaluation_steps
from swarm.job import Job
from tests.golden import refused
from tests.studies.synthetic import SOURCE, coded_design, design, hypothesis, staked
from tests.studies.synthetic import design as locked


def test_code_is_part_of_the_lock_to_the_last_byte_and_without_any_the_hash_is_what_it_was_before() -> None:
    locked = design()
    assert locked.hash() == "16e1fbb7d330b30ef3f235449a4a45228397143bdc0d4d750ce9d72c46325bbe"
    assert "code" not in locked.model_dump(mode="json")
    assert Design.model_validate(locked.model_dump(mode="json")) == locked
    locked = coded_design()
    assert locked.hash() != coded_design(SOURCE + "\n").hash()
    assert Design.model_validate(locked.model_dump(mode="json")).hash() == locked.hash()


@pytest.mark.parametrize("code", [{}, {"other": SOURCE}, {"dense": SOURCE, "spare": SOURCE}, {BUILT_IN: SOURCE}])
def test_code_must_be_what_the_arms_name(code: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="code must hold"):
        coded_design(code=code)


def test_empty_code_is_no_code_and_runs_that_differ_in_code_have_different_names() -> None:
    with pytest.raises(ValidationError, match=r"code\.dense"):
        coded_design("")
    with pytest.raises(ValidationError, match="code"):
        run("")
    assert len({run(code).run_id for code in (None, SOURCE, SOURCE + "\n")}) == 3
    assert "code" not in run(None).model_dump(mode="json")


def run(code: str | None) -> RunSpec:
    given: dict[str, Any] = {"study": "s", "design_hash": "0" * 64, "arm": "a", "seed": 1, "environment": "guess"}
    return RunSpec(**given, job={}, metric=Metric(meaning="m", episodes=2), code=code)


PLAIN = Metric(meaning="share of hidden tasks solved", episodes=64)


def scheduled(every: int) -> Metric:
    return PLAIN.model_copy(update={"schedule": Schedule(every=every, episodes=8)})


def job(steps: int, groups: int) -> dict[str, Any]:
    return Job(steps=steps, episodes_per_step=4 * groups, group_size=4).model_dump(mode="json", exclude={"tracking"})


@given(st.integers(1, 200), st.integers(1, 32), st.integers(1, 2000))
def test_a_schedule_gives_a_job_growing_steps_before_its_last_near_its_marks(
    steps: int, groups: int, every: int
) -> None:
    plain = job(steps, groups)
    found = add_evaluation_steps(plain, scheduled(every))
    after = found.get("evaluate_after", [])
    assert after == sorted(set(after))
    assert all(1 <= step < steps for step in after)
    for step in after:
        nearest = max(1, round(step * 4 * groups / every)) * every
        assert step == 1 or abs(step * 4 * groups - nearest) <= 2 * groups
    assert Job.from_record(found).evaluate_after == tuple(after)
    assert {**plain, **({"evaluate_after": after, "evaluation_episodes": 8} if after else {})} == found


DIFFERENCE = RoundOutcome(differences=True, equivalences=False)


@pytest.mark.parametrize(
    ("rounds", "levels"),
    [
        (12, [2.605, 0.859, 0.449, 0.283, 0.198, 0.148, 0.116, 0.093, 0.077, 0.065, 0.056, 0.049]),
        (6, [2.867, 0.946, 0.494, 0.312, 0.218, 0.163]), (4, [3.103, 1.024, 0.535, 0.338]), (1, [5.0]),
    ],
)  # fmt: skip
def test_without_claims_the_levels_are_the_published_ones(rounds: int, levels: list[float]) -> None:
    assert [100 * 0.05 * share for share in weights(rounds)] == pytest.approx(levels, abs=6e-4)
    assert [100 * level for level in AlphaLedger(rounds).future_levels()] == pytest.approx(levels, abs=6e-4)


def test_a_claim_hands_its_level_on_and_a_null_does_not_and_neither_ledger_pays_for_the_other() -> None:
    claimed = AlphaLedger(12).after(handed_on=True)
    assert 100 * claimed.level == pytest.approx(3.464, abs=6e-4)
    assert 100 * claimed.after(handed_on=False).level == pytest.approx(0.449, abs=6e-4)
    assert 100 * claimed.after(handed_on=True).level == pytest.approx(0.449 + 3.464, abs=6e-4)
    after = AlphaLedgers.begin(4).after(DIFFERENCE)
    assert after.differences.level > after.equivalences.level
    assert 100 * after.equivalences.level == pytest.approx(1.024, abs=6e-4)


@given(st.integers(1, MOST_ROUNDS), st.lists(st.booleans(), max_size=MOST_ROUNDS))
def test_the_levels_of_rounds_without_an_effect_up_to_the_first_false_claim_sum_to_alpha_at_most(
    rounds: int, handed_on: list[bool]
) -> None:
    ledger = AlphaLedger(rounds)
    for outcome in handed_on[:rounds]:
        ledger = ledger.after(handed_on=outcome)
    entries = ledger.entries()
    spent = sum(entry.level for entry in entries if not entry.handed_on)
    assert spent <= ledger.alpha * (1 + 1e-12)
    assert all(entry.level > 0 for entry in entries)


def test_an_inquiry_has_no_more_rounds_than_its_first_lock_says() -> None:
    ledger = AlphaLedger(1).after(handed_on=True)
    with pytest.raises(ValueError, match="them over"):
        _ = ledger.level
    with pytest.raises(ValueError, match="one more"):
        ledger.after(handed_on=True)


def test_a_stake_is_drawn_from_ledgers_and_never_made_by_hand() -> None:
    with refused(TypeError, "ledgers"):
        AlphaAllocation(object(), locked())
    assert staked(locked()).difference(1, "confirm") > 0
    with pytest.raises(ValueError, match="without a place"):
        AlphaLedgers.begin(2).allocate(locked())


def in_round(claims: int, *, equivalence: float, multiplicity: str = "dunnett_bonferroni", level: float = 1.0) -> None:
    """Lock a first round of two with so many claims, each look with these shares of its levels."""
    place = AlphaLedgers.begin(2).next_place()
    look = InterimAnalysis(seeds=5, alpha=level * place.difference, equivalence=equivalence * place.equivalence)
    values = (16, 32, 64)[:claims]
    told = tuple(hypothesis(f"h{number}", treatment=value) for number, value in enumerate(values, start=1))
    design = locked(told, inquiry=place, alpha=place.difference, looks=(look,), multiplicity=multiplicity)
    assert AlphaLedgers.begin(2).allocate(design).difference(1, "confirm") == place.difference


def test_claims_of_a_round_share_its_levels() -> None:
    in_round(1, equivalence=1.0, multiplicity="none")
    in_round(3, equivalence=1 / 3)
    for claims, how in ((3, {"equivalence": 1.0}), (1, {"equivalence": 1.0, "multiplicity": "none", "level": 1.1})):
        with pytest.raises(ValueError, match="and no more"):
            in_round(claims, **how)
    with pytest.raises(ValueError, match="3 of which"):
        in_round(3, equivalence=1 / 3, multiplicity="none")
