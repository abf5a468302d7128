"""What a report says of looks, amendments and vetoes, and of numbers that were not in the lock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from studies import EventType
from studies.log.lock_file import LOCK_FILE, write_lock
from studies.records.design import Design
from studies.records.design_parts import Look
from studies.records.errors import ReportError
from studies.report import build_report
from studies.report.parts.parts import Table
from studies.report.sections import exploratory, stages
from studies.report.sections.deviations import deviation_table
from studies.verdicts.judge import judge_hypothesis
from tests.studies.synthetic import Synthetic, design

LOOKED = design(test="pooled", looks=(Look(seeds=3, alpha=0.014), Look(seeds=5, alpha=0.045)))


@pytest.fixture
def study(tmp_path: Path) -> Synthetic:
    return Synthetic(tmp_path)


def text(table: Table | None) -> str:
    assert table is not None
    return "\n".join(" | ".join(cell.text for cell in row) for row in table.rows)


def look(study: Synthetic, number: int, act: str | None = None) -> str:
    """Judge at a look as the loop does; return the verdict."""
    verdict = judge_hypothesis(study.state(), "h1", look=number)
    study.append(EventType.VERDICT_COMPUTED, **verdict.model_dump(mode="json"))
    action = act or ("continue" if not verdict.final and verdict.verdict == "inconclusive" else "settle")
    reason = f"look {number}"
    study.append(
        EventType.DECISION_TAKEN, rule="look-again", action=action, reason=reason, hypothesis="h1", look=number
    )
    return verdict.verdict


def looked(study: Synthetic, chosen: Design = LOOKED, *, treatment: float = 0.53, sd: float = 0.03) -> None:
    """Write a study that looks twice."""
    study.means["group_size=16"], study.sd = treatment, sd
    study.create()
    study.lock(chosen)
    specs = [study.spec(arm.name, seed) for seed in chosen.seeds for arm in chosen.arms]
    for spec in specs:
        study.append(EventType.RUN_PLANNED, run_id=spec.run_id, spec=spec.model_dump(mode="json"))
        study.run(spec)
        if specs.index(spec) == 5:
            look(study, 1)
    look(study, 2)


def test_each_look_stands_in_the_report_with_its_level_and_what_followed(study: Synthetic) -> None:
    looked(study)
    state = study.conclude()
    lines = text(stages.looks_taken(state)).splitlines()
    assert [line.split(" | ")[1:3] for line in lines] == [["1", "3 + 3"], ["2", "5 + 5"]]
    assert "(98.6 %)" in lines[0]
    assert "continue (look-again)" in lines[0]
    report = build_report(state, study.folder).markdown.read_text()
    assert "Look by look" in report
    assert "look 2 of 2" in report


def test_one_look_needs_no_list_of_looks(study: Synthetic) -> None:
    assert stages.looks_taken(study.whole()) is None


def test_a_study_that_goes_on_says_so_beside_its_verdict(study: Synthetic) -> None:
    chosen = LOOKED
    study.means["group_size=16"] = 0.53
    study.create()
    study.lock(chosen)
    specs = [study.spec(arm.name, seed) for seed in chosen.seeds[:3] for arm in chosen.arms]
    for spec in specs:
        study.append(EventType.RUN_PLANNED, run_id=spec.run_id, spec=spec.model_dump(mode="json"))
        study.run(spec)
    assert look(study, 1, "continue") == "inconclusive"
    report = build_report(study.state(), study.folder).markdown.read_text()
    assert "This is look 1; the study goes on." in report
    assert "Partial report" in report


def test_amendments_and_vetoes_stand_in_the_report_in_their_order(study: Synthetic) -> None:
    study.create()
    study.lock(LOOKED)
    amendment = {"kind": "note", "target": "", "value": None, "reason": "the machine\nwas moved"}
    study.append(EventType.DESIGN_AMENDED, amendment=amendment)
    study.append(EventType.HYPOTHESIS_VETOED, hypothesis="h1", reason="answered elsewhere")
    budget = {"kind": "budget", "target": "", "value": 3600.0, "reason": "more time"}
    study.append(EventType.DESIGN_AMENDED, amendment=budget)
    lines = text(deviation_table(study.state())).splitlines()
    assert [line.split(" | ")[2] for line in lines] == [
        "note",
        "veto of h1: no more runs for it",
        "budget of 1 h 00 min",
    ]
    assert "the machine was moved | before any result" in lines[0]
    report = build_report(study.state(), study.folder)
    assert "Deviations from the lock" in report.markdown.read_text()
    assert "answered elsewhere" in report.html.read_text()


def test_a_study_as_it_was_locked_lists_no_deviation(study: Synthetic) -> None:
    assert deviation_table(study.whole()) is None


def test_what_was_not_in_the_lock_is_called_exploratory(study: Synthetic) -> None:
    state = study.whole()
    row = text(exploratory.table_of(state)).split(" | ")
    assert row[0] == "h1"
    assert float(row[1].replace("−", "-")) > 0, "the synthetic treatment is better"
    assert row[3] == "0 of 5 (0.00 to 0.43)", "Wilson's interval of no collapse in five runs"
    assert "No claim rests on these numbers" in build_report(state, study.folder).markdown.read_text()


def test_runs_that_end_below_their_start_have_collapsed(study: Synthetic) -> None:
    study.means["group_size=16"] = 0.1
    row = text(exploratory.table_of(study.whole())).split(" | ")
    assert row[3].startswith("5 of 5")
    assert row[4].startswith("0 of 5")


def test_no_report_is_built_on_a_verdict_that_no_look_gives(study: Synthetic) -> None:
    looked(study)
    state = study.state()
    (verdict,) = state.verdicts
    broken = replace(state, verdicts=(verdict.model_copy(update={"verdict": "refuted"}),))
    with pytest.raises(ReportError, match="does not follow"):
        build_report(broken, study.folder)


def test_a_lock_file_that_was_edited_is_told(study: Synthetic) -> None:
    study.create()
    write_lock(study.folder, study.design)
    study.append(
        EventType.DESIGN_LOCKED, design=study.design.model_dump(mode="json"), hash=study.design.hash(), file=LOCK_FILE
    )
    whole = build_report(study.state(), study.folder).markdown.read_text()
    assert "was changed" not in whole
    path = study.folder / LOCK_FILE
    path.write_text(path.read_text().replace("group_size", "group-size"))
    edited = build_report(study.state(), study.folder).markdown.read_text()
    assert "**Did not hold.** The lock design.lock was changed" in edited
