"""Interactions, trends and fields that go together, driven from a lock to the end, whole and by killed controllers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studies.records.design import Arm, Design, Hypothesis, RunSpec
from studies.records.design_parts import Look, Replication
from studies.verdicts.recompute import verdict_follows
from tests.research import designs
from tests.research.bench import Bench, scratch

A, B = "group_size", "learning_rate"


def crossed() -> Hypothesis:
    return designs.claim(
        variable="configuration", control={A: 8, B: 1e-3}, treatment={A: 16, B: 3e-3}, moderator=B
    )  # fmt: skip


def locked(claim: Hypothesis, **changes: Any) -> Design:
    arms = [
        Arm(name=f"arm-{n}", overrides=dict(value) if isinstance(value, dict) else {claim.variable: value})
        for n, value in enumerate(claim.settings)
    ]
    plain = designs.design(16).model_dump()
    given = {
        "hypotheses": [claim], "arms": arms, "control_arm": "arm-0", "shared_seeds": False, "noise": None,
        "test": "welch" if claim.kind == "difference" else "contrast", "equivalence_margin": 0.1,
        "looks": [Look(seeds=3, alpha=0.03), Look(seeds=4, alpha=0.04)], **changes,
    }  # fmt: skip
    return Design.model_validate({**plain, **given})


def synergy(spec: RunSpec) -> float:
    """Return the success of a run: only a large group with a large learning rate gains, by more than a quarter."""
    gain = 0.3 if spec.job[A] == 16 and spec.job[B] == 3e-3 else 0.0
    return 0.4 + gain + (spec.seed % 4) / 64


def driven(path: Path, design: Design) -> Bench:
    bench = Bench(path, design=design)
    bench.sandbox.rate = synergy
    return bench


def test_an_interaction_trains_all_four_arms_and_is_judged_once(tmp_path: Path) -> None:
    bench = driven(tmp_path, locked(crossed(), decision_table=designs.TABLE[1:]))
    state = bench.drive(bench.loop()).state
    assert {len(state.values(f"arm-{n}")) for n in range(4)} in ({3}, {4})
    (verdict,) = state.verdicts
    assert verdict.verdict == "supported"
    assert verdict.estimate == pytest.approx(0.3, abs=0.05)
    assert [arm.n for arm in verdict.arms] == [len(state.values(f"arm-{n}")) for n in range(4)]
    assert verdict_follows(state, verdict)


def test_a_killed_controller_changes_nothing_of_it() -> None:
    with scratch() as folder:
        whole = driven(folder / "whole", locked(crossed()))
        end = whole.drive(whole.loop()).state
        cut = driven(folder / "cut", locked(crossed()))
        state, killed = cut.drive_by_single_events(written=True)
        assert killed > 20
        assert [v.model_dump() for v in state.verdicts] == [v.model_dump() for v in end.verdicts]


def test_it_is_replicated_with_all_four_arms(tmp_path: Path) -> None:
    setting = Replication(environment="arith", seeds=(201, 202, 203))
    bench = driven(tmp_path, locked(crossed(), decision_table=designs.TABLE, replication=setting))
    state = bench.drive(bench.loop()).state
    arms = [run.spec.arm for run in state.runs_in("replicate")]
    assert {name: arms.count(name) for name in arms} == {f"arm-{n}": 3 for n in range(4)}
    (again,) = state.replications
    assert again.arms


def test_a_trend_trains_every_value(tmp_path: Path) -> None:
    ladder = (4, 8, 16)
    claim = designs.claim(control=4, treatment=16, ladder=ladder)
    bench = Bench(tmp_path, design=locked(claim))
    state = bench.drive(bench.loop()).state
    (verdict,) = state.verdicts
    assert verdict.verdict == "supported"
    assert [arm.weight for arm in verdict.arms] == pytest.approx([-1, 0, 1])
    assert verdict_follows(state, verdict)


def test_fields_that_go_together_are_driven_as_any_two_arms(tmp_path: Path) -> None:
    claim = designs.claim(variable="configuration", control={A: 8, B: 1e-3}, treatment={A: 16, B: 3e-3})
    bench = driven(tmp_path, locked(claim))
    state = bench.drive(bench.loop()).state
    (verdict,) = state.verdicts
    assert verdict.verdict == "supported"
    assert not verdict.arms
