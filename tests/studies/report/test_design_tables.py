from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from studies import EventType
from studies.errors import ReportError
from studies.log.event_log import LOCK_FILE
from studies.records.design import CONFIGURATION, Arm, Design
from studies.records.procedure import (
    InterimAnalysis,
    Knob,
    Noise,
    PowerTarget,
    Replication,
    Rule,
    Rung,
    Screen,
    Watchdog,
)
from studies.report import design_tables
from studies.report.build import render_report
from studies.report.claims import deviation_table
from studies.report.elements import Table
from studies.verdicts.judge import judge_hypothesis
from tests.golden import assert_golden
from tests.studies.report.pages import missing, pages, section
from tests.studies.synthetic import Synthetic, design, hypothesis

pytestmark = pytest.mark.usefixtures("undrawn")
LOOKED = design(test="pooled", looks=(InterimAnalysis(seeds=3, alpha=0.014), InterimAnalysis(seeds=5, alpha=0.045)))
FUTILE = "verdict == 'inconclusive' and p > 0.5"


def text(table: Table) -> str:
    return "\n".join(" | ".join(cell.text for cell in row) for row in table.rows)


def look(study: Synthetic, number: int, act: str | None = None) -> str:
    verdict = judge_hypothesis(study.state(), "h1", look=number)
    study.append(EventType.VERDICT_COMPUTED, **verdict.model_dump(mode="json"))
    action = act or ("continue" if not verdict.final and verdict.verdict == "inconclusive" else "settle")
    decided = {"rule": "look-again", "action": action, "reason": f"look {number}"}
    study.append(EventType.DECISION_TAKEN, **decided, hypothesis="h1", look=number)
    return verdict.verdict


def begin(study: Synthetic, chosen: Design, seeds: int) -> None:
    for seed in chosen.seeds[len(study.state().runs) // 2 : seeds]:
        for spec in [study.spec(arm.name, seed) for arm in chosen.arms]:
            study.append(EventType.RUN_PLANNED, run_id=spec.run_id, spec=spec.model_dump(mode="json"))
            study.run(spec)


def test_each_look_stands_in_the_report_with_its_level_and_what_followed(study: Synthetic) -> None:
    study.means["group_size=16"] = 0.53
    study.create()
    study.lock(LOOKED)
    begin(study, LOOKED, 3)
    assert look(study, 1, "continue") == "inconclusive"
    partial, _ = pages(study)
    assert "This is look 1" in partial
    assert "Partial report" in partial
    begin(study, LOOKED, 5)
    look(study, 2)
    state = study.conclude()
    lines = text(design_tables.interim_table(state)).splitlines()
    assert [line.split(" | ")[1:3] for line in lines] == [["1", "3 + 3"], ["2", "5 + 5"]]
    markdown, page = pages(study)
    assert_golden(section(markdown, "Look by look"))
    assert "look 2 of 2" in markdown
    assert missing(markdown, page) == []
    (verdict,) = state.verdicts
    with pytest.raises(ReportError, match="does not follow"):
        render_report(replace(state, verdicts=(verdict.model_copy(update={"verdict": "refuted"}),)), study.folder)


def test_amendments_and_vetoes_stand_in_the_report_in_their_order(study: Synthetic) -> None:
    study.create()
    study.lock(LOOKED)
    amendment = {"kind": "note", "target": "", "value": None, "reason": "the machine\nwas moved"}
    study.append(EventType.DESIGN_AMENDED, amendment=amendment)
    study.append(EventType.HYPOTHESIS_VETOED, hypothesis="h1", reason="answered elsewhere")
    budget = {"kind": "budget", "target": "", "value": 3600.0, "reason": "more time"}
    study.append(EventType.DESIGN_AMENDED, amendment=budget)
    markdown, page = pages(study)
    assert_golden(section(markdown, "Deviations from the lock"))
    assert "answered elsewhere" in page.text


def test_what_was_locked_is_no_deviation_and_a_lock_file_that_was_edited_is_told(study: Synthetic) -> None:
    state = study.whole()
    assert design_tables.interim_table(state) is deviation_table(state) is None
    assert "was changed" not in pages(study)[0]
    path = study.folder / LOCK_FILE
    path.write_text(path.read_text().replace("group_size", "group-size"))
    assert "**Did not hold.** The lock design.lock" in pages(study)[0]


NOISE = Noise(sd=0.031, df=24, evaluation_sd=0.019, episodes=512, correlation=0.1, pairs=12, basis="three studies")
SCREEN = Screen(
    knobs=(Knob(field="group_size", values=(4, 8)), Knob(field="learning_rate", values=(0.001, 0.003))),
    sampler="surface", candidates=4, initial=2, rungs=(Rung(steps=10, keep=2), Rung(steps=40, keep=1)), seed=77,
)  # fmt: skip


def full(**changes: Any) -> Design:
    given: dict[str, Any] = {
        "test": "pooled", "noise": NOISE, "promise": PowerTarget(power=0.8, effect=0.05), "equivalence_margin": 0.05,
        "looks": (InterimAnalysis(seeds=3, alpha=0.014), InterimAnalysis(seeds=5, alpha=0.045)),
        "multiplicity": "dunnett_bh", "counted_as_worst": ("NAN",), "exclusions": ("LOST",), "most_excluded": 0.2,
        "replication": Replication(environment="arith", seeds=(1, 2, 3)),
        "watchdog": Watchdog(kl=0.5), "decision_table": (Rule(name="futile", when=FUTILE, then="settle"),),
    }  # fmt: skip
    return design(**(given | changes))


def test_all_that_was_fixed_is_told_and_an_old_design_as_it_was() -> None:
    assert_golden(text(design_tables.design_facts(full(), "ab" * 32)))
    assert_golden(text(design_tables.design_facts(design(), None)))
    assert design_tables.analyses_table(design()) is design_tables.rules_table(design()) is None
    assert design_tables.limits_table(None) is design_tables.stakes_table(design().hypotheses) is None


def test_looks_and_rules_are_listed_with_kill_conditions_first() -> None:
    claim = hypothesis(kill_if=FUTILE, smallest_effect=0.05, falsifier="no rise", confounds=("longer episodes",))
    locked = full(hypotheses=(claim,))
    stakes = design_tables.stakes_table(locked.hypotheses)
    tables = (design_tables.analyses_table(locked), design_tables.rules_table(locked), stakes)
    assert_golden("\n\n".join(map(text, tables)))


def test_only_the_limits_that_are_on_are_listed() -> None:
    assert_golden(text(design_tables.limits_table(Watchdog(kl=0.5, grad_norm=20))))


def test_a_screen_is_described_before_there_are_arms_and_a_configuration_differs_in_its_fields() -> None:
    alone = {"screen": SCREEN, "arms": (Arm(name="control", overrides={}),), "control_arm": "control"}
    searched = Design(**(dict(full()) | alone | {"hypotheses": ()}))
    values = {"group_size": 8, "learning_rate": 0.003}
    claim = hypothesis(variable=CONFIGURATION, control={"group_size": 4, "learning_rate": 0.001}, treatment=values)
    arms = (Arm(name="control", overrides=claim.control), Arm(name="c1", overrides=values))
    found = Design(**(dict(design()) | {"hypotheses": (claim,), "arms": arms, "control_arm": "control"}))
    assert design_tables.what_differs(searched) == design_tables.what_differs(found) == "group_size, learning_rate"
    assert_golden(design_tables.describe_screen(SCREEN))
