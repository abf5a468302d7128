"""The locked procedure in words: everything that was fixed is told, and nothing that was not."""

from __future__ import annotations

from typing import Any

from studies.records.design import CONFIGURATION, Arm, Design
from studies.records.design_parts import Knob, Look, Noise, Promise, Replication, Rule, Rung, Screen, Watchdog
from studies.report.parts.parts import Table
from studies.report.sections import procedure
from tests.studies.synthetic import design, hypothesis

NOISE = Noise(sd=0.031, df=24, evaluation_sd=0.019, episodes=512, correlation=0.1, pairs=12, basis="three studies")
SCREEN = Screen(
    knobs=(Knob(field="group_size", values=(4, 8)), Knob(field="learning_rate", values=(0.001, 0.003))),
    sampler="surface", candidates=4, initial=2, rungs=(Rung(steps=10, keep=2), Rung(steps=40, keep=1)), seed=77,
)  # fmt: skip


def text(table: Table | None) -> str:
    assert table is not None
    return "\n".join(" | ".join(cell.text for cell in row) for row in table.rows)


def full(**changes: Any) -> Design:
    given: dict[str, Any] = {
        "test": "pooled", "noise": NOISE, "promise": Promise(power=0.8, effect=0.05), "equivalence_margin": 0.05,
        "looks": (Look(seeds=3, alpha=0.014), Look(seeds=5, alpha=0.045)), "multiplicity": "dunnett_bh",
        "counted_as_worst": ("NAN",), "exclusions": ("LOST",), "most_excluded": 0.2,
        "replication": Replication(environment="arith", seeds=(1, 2, 3)),
        "watchdog": Watchdog(kl=0.5), "decision_table": (Rule(name="futile", when="hi < 0.02", then="settle"),),
    }  # fmt: skip
    return design(**(given | changes))


def test_all_that_was_fixed_is_told() -> None:
    said = text(procedure.design_facts(full(), "ab" * 32))
    for part in (
        "one variance for all arms", "alpha 0.05 spent over 2 looks", "0.050 with probability 80 %", "within ±0.050",
        "Dunnett", "0.031 between seeds (24 degrees of freedom)", "evaluation alone 0.019 at 512 episodes",
        "12 pairs", "three studies", "arith, 3 seeds", "LOST", "NAN: the run counts with 0.000", "20 %", "ab" * 32,
    ):  # fmt: skip
        assert part in said


def test_an_old_design_is_told_as_it_was() -> None:
    said = text(procedure.design_facts(design(), None))
    assert "Welch's t-test (unequal variances), two-sided, alpha 0.05" in said
    for absent in ("looks", "probability", "Several claims", "Noise known", "Replication", "at their worst"):
        assert absent not in said
    parts = (procedure.looks_table(design()), procedure.rules_table(design()), procedure.limits_table(None))
    assert parts == (None, None, None)
    assert procedure.stakes_table(design().hypotheses) is None


def test_looks_and_rules_are_listed_with_kill_conditions_first() -> None:
    claim = hypothesis(kill_if="hi < 0.01", smallest_effect=0.05, falsifier="no rise", confounds=("longer episodes",))
    locked = full(hypotheses=(claim,))
    assert text(procedure.looks_table(locked)).splitlines() == [
        "1 | 3 | 0.0140 | 98.6 %",
        "2 | 5 | 0.0450 | 95.5 %",
    ]
    rules = text(procedure.rules_table(locked)).splitlines()
    assert rules[0].startswith("kill h1 | hi < 0.01")
    assert rules[1].startswith("futile | hi < 0.02 | gather no more seeds")
    assert rules[-1].endswith("no rule holds | gather no more seeds")
    assert text(procedure.stakes_table(locked.hypotheses)) == 'h1 | 0.050 | "no rise" | longer episodes'


def test_only_the_limits_that_are_on_are_listed() -> None:
    said = text(procedure.limits_table(Watchdog(kl=0.5, grad_norm=20)))
    assert "kl | 0.5" in said
    assert "grad norm | 20" in said
    assert "entropy" not in said


def test_a_screen_is_described_before_there_are_arms() -> None:
    alone = {"screen": SCREEN, "arms": (Arm(name="control", overrides={}),), "control_arm": "control"}
    locked = Design(**(dict(full()) | alone | {"hypotheses": ()}))
    assert procedure.what_differs(locked) == "group_size, learning_rate"
    said = procedure.screen_said(SCREEN)
    assert "4 candidates (group_size in 4, 8; learning_rate in 0.001, 0.003)" in said
    assert "Each trains 10 steps; the best 2 train 40 steps; the best 1 of the last round are confirmed" in said
    assert "No claim rests on a screen" in said


def test_a_configuration_differs_in_its_fields() -> None:
    values = {"group_size": 8, "learning_rate": 0.003}
    claim = hypothesis(variable=CONFIGURATION, control={"group_size": 4, "learning_rate": 0.001}, treatment=values)
    arms = (Arm(name="control", overrides=claim.control), Arm(name="c1", overrides=values))
    locked = Design(**(dict(design()) | {"hypotheses": (claim,), "arms": arms, "control_arm": "control"}))
    assert procedure.what_differs(locked) == "group_size, learning_rate"
