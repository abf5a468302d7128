"""What an audit of somebody's table must not do: find differences where there are none, or lean on names and order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from studies.errors import StudiesError
from studies.verdicts.audit import Audit, AuditedClaim, AuditQuestion, audit

ASK = AuditQuestion(arm="arm", metric="score")
GROUPED = ASK.model_copy(update={"group": "game"})
CLAIMED = ("supported", "refuted")


def table(*rows: Mapping[str, object]) -> pd.DataFrame:
    return pd.DataFrame([{name: str(value) for name, value in row.items()} for row in rows])


def of(values: Mapping[str, Iterable[object]], **also: object) -> pd.DataFrame:
    return table(*({"arm": arm, "score": value, **also} for arm, those in values.items() for value in those))


def games(rng: np.random.Generator, arms: Mapping[str, float], count: int, runs: int = 5) -> pd.DataFrame:
    """Return games of very different scales, in each of which an arm lies so many standard deviations above 0."""
    scale = 10.0 ** rng.uniform(-3, 4, count)
    return pd.concat(
        [
            of({arm: unit * rng.normal(mean, 1, runs) for arm, mean in arms.items()}, game=f"g{at}")
            for at, unit in enumerate(scale)
        ],
        ignore_index=True,
    )


def claimed(claims: Iterable[AuditedClaim]) -> int:
    return sum(claim.verdict in CLAIMED for claim in claims)


@pytest.mark.parametrize("baseline", ["", "a"])
def test_arms_that_are_alike_seldom_differ_and_arms_that_are_not_do(baseline: str) -> None:
    rng, ask, false = np.random.default_rng(7), GROUPED.model_copy(update={"baseline": baseline}), [0, 0]
    for _ in range(60):
        found = audit(games(rng, dict.fromkeys("abc", 0.0), 3), ask)
        false[0] += claimed(found.claims) > 0
        false[1] += claimed(found.in_groups) > 0
    assert max(false) <= 9  # of 5 % at the most, more than 9 in 60 have a probability of 0.1 %
    found = audit(games(rng, {"a": 0.0, "b": 4.0, "c": 0.0}, 10), ask)
    assert {(claim.treatment, claim.control): claim.verdict for claim in found.claims}["b", "a"] == "supported"
    assert claimed(found.in_groups) >= 8


def test_halves_of_one_arm_have_p_values_below_a_level_as_often_as_it_says() -> None:
    data = games(np.random.default_rng(3), {"x": 0.0, "y": 0.0}, 400)
    found = audit(data, GROUPED)
    p = np.array([claim.p for claim in found.in_groups])
    assert 0.02 < (p <= 0.05).mean() < 0.075
    assert 0.43 < p.mean() < 0.57
    assert claimed(found.in_groups) == 0
    of_rates = audit(data.assign(score=["01"[float(value) > 0] for value in data["score"]]), GROUPED)
    assert sum(claim.p is not None and claim.p <= 0.05 for claim in of_rates.in_groups) < 400 * 0.075


def by_pair(found: Audit, names: Mapping[str, str]) -> dict[Any, Any]:
    return {
        (names[one.treatment], names[one.control], one.group): replace(one, treatment="", control="")
        for one in (*found.claims, *found.in_groups)
    }


def test_order_of_rows_and_names_of_arms_do_not_matter() -> None:
    data = games(np.random.default_rng(5), {"a": 0.0, "b": 1.0, "c": 1.5}, 5)
    known = by_pair(audit(data, GROUPED), {name: name for name in "abc"})
    shuffled = data.sample(frac=1, random_state=1, ignore_index=True)
    assert by_pair(audit(shuffled, GROUPED), {name: name for name in "abc"}) == known
    names = {"a": "z", "b": "0.5", "c": "m n"}
    renamed = by_pair(audit(data.replace({"arm": names}), GROUPED), {new: old for old, new in names.items()})
    assert renamed == known


def test_units_scale_the_numbers_of_a_game_and_nothing_over_games() -> None:
    data, larger = games(np.random.default_rng(6), {"a": 0.0, "b": 1.0}, 3), 1024.0
    scaled = data.assign(score=[repr(float(value) * larger) for value in data["score"]])
    one, other = audit(data, GROUPED), audit(scaled, GROUPED)
    (a,), (b,) = one.claims, other.claims
    assert (a.verdict, a.estimate, a.low, a.p) == (b.verdict, *map(pytest.approx, (b.estimate, b.low, b.p)))
    for a, b in zip(one.in_groups, other.in_groups, strict=True):
        assert (b.estimate, b.low, b.detectable) == pytest.approx(
            [larger * v for v in (a.estimate, a.low, a.detectable)]
        )
        assert (a.verdict, a.seeds_needed, a.other_order) == (b.verdict, b.seeds_needed, b.other_order)


def test_lower_is_better_turns_the_claims_round() -> None:
    data = of({"a": (1, 2, 3), "b": (11, 12, 13)})
    (higher,), (lower,) = audit(data, ASK).claims, audit(data, ASK.model_copy(update={"better": "lower"})).claims
    assert (higher.treatment, lower.treatment) == ("b", "a")
    assert (higher.verdict, lower.verdict, higher.low) == ("supported", "supported", -(lower.high or 0))
    worse = audit(data, ASK.model_copy(update={"better": "lower", "baseline": "a"}))
    assert [claim.verdict for claim in worse.claims] == ["refuted"]


def test_an_interval_is_wider_the_more_arms_a_baseline_is_compared_with() -> None:
    ask, arms = ASK.model_copy(update={"baseline": "a"}), {"a": (1, 2, 3), "b": (3, 4, 5), "c": (0, 7, 8)}
    wide, narrow = audit(of(arms), ask).claims[0], audit(of({name: arms[name] for name in "ab"}), ask).claims[0]
    assert (wide.estimate, wide.p, wide.level) == (narrow.estimate, narrow.p, narrow.level)
    assert (wide.low or 0) < (narrow.low or 0) < 2 < (narrow.high or 0) < (wide.high or 0)


def test_one_run_of_each_is_counted_over_all_pairs() -> None:
    (claim,) = audit(of({"a": (1, 3, 5), "b": (2, 3, 9)}), ASK).claims
    assert claim.other_order == pytest.approx((2 + 1 + 0.5) / 9)  # 3 and 5 above 2, 5 above 3, and a tie


def test_a_margin_makes_what_is_alike_equivalent() -> None:
    data = of({"a": np.linspace(0, 1, 40), "b": np.linspace(0.01, 1.01, 40)})
    verdicts = [audit(data, ASK.model_copy(update={"margin": margin})).claims[0].verdict for margin in (0.5, 0.02)]
    assert verdicts == ["equivalent", "inconclusive"]


def test_what_is_equivalent_may_be_more_than_chance_and_is_told_so() -> None:
    data = of({"a": np.linspace(0, 1, 400), "b": np.linspace(0.2, 1.2, 400)})
    (claim,) = audit(data, ASK.model_copy(update={"margin": 0.5})).claims
    assert (claim.verdict, claim.nonzero) == ("equivalent", True)


def test_a_number_that_is_written_in_two_ways_is_one_arm_where_all_arms_are_numbers() -> None:
    data = of({"0.01": (1, 2), "1e-2": (3,), "0.1": (4, 5)})
    for baseline in ("", "0.010"):
        found = audit(data, ASK.model_copy(update={"baseline": baseline}))
        assert found.cells == {"": {"0.01": [1, 2, 3], "0.1": [4, 5]}}
        assert any("1e-2 as 0.01" in line for line in found.remarks)
    for other in ("x", "nan", "snan"):
        assert len(audit(pd.concat([data, of({other: (1, 2)})], ignore_index=True), ASK).cells[""]) == 4 - (
            other == "nan"
        )


def test_what_has_no_finite_value_is_left_out_and_counts_against_the_target() -> None:
    found = audit(of({"a": (1, 2, "", "nan", "inf"), "b": (3, 4)}), ASK.model_copy(update={"target": 2.0}))
    assert (found.claims[0].n_control, found.claims[0].n_treatment) == (2, 2)
    assert any("3 of 5 of a" in line for line in found.remarks)
    assert (found.reached["a"].mean, found.reached["b"].mean) == (0.2, 1.0)


def test_arms_of_one_run_or_without_variance_are_told_and_not_tested() -> None:
    found = audit(of({"a": (1,), "b": (2, 2), "c": (3, 3), "d": (2, 2)}), ASK)
    told = {(claim.treatment, claim.control): claim.verdict for claim in found.claims}
    assert (told["b", "a"], told["c", "b"], told["d", "b"]) == ("invalid", "invalid", "inconclusive")


def test_seeds_that_recur_over_groups_are_named_as_what_may_depend_on_each_other() -> None:
    rows = of({"a": (1, 2), "b": (3, 4)}).assign(seed=["0", "0"] * 2, game=["x", "y"] * 2)
    ask = ASK.model_copy(update={"seed": "seed", "group": "game"})
    assert any("(seed) in 2 groups" in line for line in audit(rows, ask).remarks)


def test_a_value_whose_square_is_not_finite_counts_as_none() -> None:
    found = audit(of({"a": (1, 2, 1e200), "b": (3, 4)}), ASK)
    assert found.claims[0].n_control == 2


STEPS = table(*(
    {"arm": arm, "run": f"{arm}{run}", "step": step, "score": "" if step == 3 else 10 * step + run + (arm == "b")}
    for arm in "ab" for run in range(3) for step in range(4) if (arm, run, step) != ("b", 2, 2)
))  # fmt: skip


@pytest.mark.parametrize(("at", "a", "b"), [(None, [20, 21, 22], [13, 21, 22]), (1.0, [10, 11, 12], [11, 12, 13])])
def test_of_the_rows_of_a_run_the_last_that_was_logged_counts_or_one_step(
    at: float | None, a: list[float], b: list[float]
) -> None:
    ask = ASK.model_copy(update={"run": "run", "step": "step", "at": at})
    for rows in (STEPS, STEPS.iloc[::-1].reset_index(drop=True)):
        assert audit(rows, ask).cells == {"": {"a": a, "b": b}}


@pytest.mark.parametrize(("at", "told"), [(None, True), (1.0, False)])
def test_runs_that_end_at_unlike_steps_are_told_unless_one_step_is_asked_for(at: float | None, told: bool) -> None:
    found = audit(STEPS, ASK.model_copy(update={"run": "run", "step": "step", "at": at}))
    assert any("unlike steps, 1 to 2" in line for line in found.remarks) == told
    alike = STEPS[STEPS["step"] < "2"].reset_index(drop=True)
    assert not audit(alike, ASK.model_copy(update={"run": "run", "step": "step"})).remarks


@pytest.mark.parametrize(("at", "used"), [(1.5, 1), (9.0, 3)])
def test_where_no_row_is_at_the_step_the_last_before_it_counts_and_is_named(at: float, used: int) -> None:
    rows = STEPS.assign(score=STEPS["step"])
    found = audit(rows, ASK.model_copy(update={"run": "run", "step": "step", "at": at}))
    assert found.cells[""]["a"] == [used] * 3
    assert any(
        f"no row is at step {at:g}: the last ones before count, to step {used}" in line for line in found.remarks
    )


def test_a_run_that_ended_before_the_step_has_no_value_there() -> None:
    rows = STEPS[~((STEPS["run"] == "a0") & (STEPS["step"] > "0"))].reset_index(drop=True)
    found = audit(rows, ASK.model_copy(update={"run": "run", "step": "step", "at": 1.0}))
    assert (found.cells[""]["a"], any("1 of 3 of a" in line for line in found.remarks)) == ([11, 12], True)


def test_what_goes_with_the_arm_is_named() -> None:
    rows = [
        {"arm": arm, "score": score, "lr": lr, "host": host, "same": "x"}
        for arm, lr in (("a", "0.1"), ("b", "0.2"))
        for score, host in ((1, "h"), (2, "i"), (3, "h"))
    ]
    assert audit(table(*rows), ASK).confounds == {"lr": {"a": "0.1", "b": "0.2"}}


@pytest.mark.parametrize(
    ("rows", "ask", "words"),
    [
        (of({"a": (1, 2)}), {}, ("two arms", "a alone")),
        (of({"a": (1, "x"), "b": (3,)}), {}, ("a number in score", "row 2", "'x'")),
        (of({"a": (1, "0,5"), "b": (3,)}), {}, ("'0,5'", "point")),
        (of({"a": (1, 2), "b": (3,)}, seed=0), {"seed": "seed"}, ("one row a run", "2 of a, 0", "--run")),
        (STEPS.drop(columns="run"), {"step": "step"}, ("one row a run", "step that varies", "--run")),
        (STEPS, {}, ("one row a run", "4 of a, a0 (run)", "--run")),
        (of({"a": (1, 2), "b": (3, 4)}).assign(run="r", task=["x", "y"] * 2), {"run": "run", "group": "task"},
         ("one group each", "a, r (run) in 2 groups")),
        (of({"a": (1, 2), "b": (3,)}), {"baseline": "c"}, ("--baseline", "a, b")),
        (of({"": (1, 2)}), {}, ("rows with something in arm",)),
        (of({str(arm): (arm,) for arm in range(200)}), {}, ("3,000 comparisons at most", "200 arms", "--baseline")),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_read_so_is_refused(
    rows: pd.DataFrame, ask: dict[str, object], words: tuple[str, ...]
) -> None:
    with pytest.raises(StudiesError) as refusal:
        audit(rows, ASK.model_copy(update=ask))
    assert [word for word in words if word not in str(refusal.value)] == []
