"""The locked procedure in words: everything that was fixed is told, and nothing that was not."""

from __future__ import annotations

from typing import Any

from studies.records.design import CONFIGURATION, Arm, Design
from studies.records.design_parts import Knob, Look, Noise, Promise, Replication, Rule, Rung, Screen, Watchdog
from studies.report.parts.parts import Table
from studies.report.sections import procedure
from tests.golden import assert_golden
from tests.studies.synthetic import design, hypothesis

NOISE = Noise(sd=0.031, df=24, evaluation_sd=0.019, episodes=512, correlation=0.1, pairs=12, basis="three studies")
SCREEN = Screen(
    knobs=(Knob(field="group_size", values=(4, 8)), Knob(field="learning_rate", values=(0.001, 0.003))),
    sampler="surface", candidates=4, initial=2, rungs=(Rung(steps=10, keep=2), Rung(steps=40, keep=1)), seed=77,
)  # fmt: skip


def text(table: Table) -> str:
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


def test_all_that_was_fixed_is_told_and_an_old_design_as_it_was() -> None:
    assert_golden(text(procedure.design_facts(full(), "ab" * 32)))
    assert_golden(text(procedure.design_facts(design(), None)))
    parts = (procedure.looks_table(design()), procedure.rules_table(design()), procedure.limits_table(None))
    assert parts == (None, None, None)
    assert procedure.stakes_table(design().hypotheses) is None


def test_looks_and_rules_are_listed_with_kill_conditions_first() -> None:
    claim = hypothesis(kill_if="hi < 0.01", smallest_effect=0.05, falsifier="no rise", confounds=("longer episodes",))
    locked = full(hypotheses=(claim,))
    tables = (procedure.looks_table(locked), procedure.rules_table(locked), procedure.stakes_table(locked.hypotheses))
    assert_golden("\n\n".join(map(text, tables)))


def test_only_the_limits_that_are_on_are_listed() -> None:
    said = text(procedure.limits_table(Watchdog(kl=0.5, grad_norm=20)))
    assert "kl | 0.5" in said
    assert "grad norm | 20" in said
    assert "entropy" not in said


def test_a_screen_is_described_before_there_are_arms() -> None:
    alone = {"screen": SCREEN, "arms": (Arm(name="control", overrides={}),), "control_arm": "control"}
    locked = Design(**(dict(full()) | alone | {"hypotheses": ()}))
    assert procedure.what_differs(locked) == "group_size, learning_rate"
    assert_golden(procedure.screen_said(SCREEN))


def test_a_configuration_differs_in_its_fields() -> None:
    values = {"group_size": 8, "learning_rate": 0.003}
    claim = hypothesis(variable=CONFIGURATION, control={"group_size": 4, "learning_rate": 0.001}, treatment=values)
    arms = (Arm(name="control", overrides=claim.control), Arm(name="c1", overrides=values))
    locked = Design(**(dict(design()) | {"hypotheses": (claim,), "arms": arms, "control_arm": "control"}))
    assert procedure.what_differs(locked) == "group_size, learning_rate"
