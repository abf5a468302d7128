from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from studies import EventType, StudiesError, StudyState
from studies.proof import export, read_export, verify
from studies.proof.evidence import Findings
from studies.proof.verify import check_rounds, check_task_seeds
from studies.records.base import canonical
from studies.records.design import Design, Metric, NoisePlan, task_seed_of
from studies.statistics.power import spend_alpha
from tests.golden import assert_golden
from tests.studies.asked_on import STUDY, Inquiry
from tests.studies.proof.forging import Row, payload_of, rehashed, rehashed_with_report, with_other_byte, with_payload

pytestmark = pytest.mark.slow

Change = Callable[[Any], Any]


@pytest.fixture
def copied(told: Inquiry, tmp_path: Path) -> Inquiry:
    return replace(told, folder=Path(shutil.copytree(told.folder, tmp_path / "copied")))


def places(inquiry: Inquiry, rows: list[Row] | None = None) -> str:
    return "\n".join(str(drift) for drift in inquiry.verified(rows).drifts)


def numbered(rows: list[Row], kind: EventType, occurrence: int = 1) -> int:
    return [place for place, row in enumerate(rows) if row["type"] == kind][occurrence - 1]


def with_change(rows: list[Row], place: int, change: Change) -> list[Row]:
    changed = with_payload(rows[place], change(payload_of(rows[place])))
    return [*rows[:place], changed, *rows[place + 1 :]]


def relocked(inquiry: Inquiry, number: int, change: Change) -> str:
    """Return what is found of a log that ends with the lock of a round, whose design was changed in log and file."""
    rows = inquiry.rows[: numbered(inquiry.rows, EventType.DESIGN_LOCKED, number) + 1]
    payload = payload_of(rows[-1])
    text = canonical(change(payload["design"]))
    (inquiry.folder / payload["file"]).write_text(text, newline="\n")
    forged = payload | {"design": change(payload["design"]), "hash": hashlib.sha256(text.encode()).hexdigest()}
    for page in ("report.md", "report.html"):
        (inquiry.folder / page).unlink()
    return places(inquiry, rehashed([*rows[:-1], with_payload(rows[-1], forged)]))


def test_an_inquiry_holds_in_every_round(told: Inquiry) -> None:
    proof = told.verified(head=told.rows[-1]["hash"])
    runs = len(told.state.every_run)
    assert [str(drift) for drift in proof.drifts] == []
    assert proof.notes == ()
    assert {name: proof.held[name] for name in ("lock", "link", "level", "spending", "file", "measurement")} == {
        "lock": 3, "link": 3, "level": 3, "spending": 3, "file": 2 * runs, "measurement": 2 * runs,
    }  # fmt: skip
    assert proof.held["verdict"] == sum(event.type is EventType.VERDICT_COMPUTED for event in told.events)
    assert proof.held["rebuilt file"] == proof.held["figure"] + 2


@pytest.mark.parametrize("name", ["design.lock", "design-2.lock", "design-3.lock"])
def test_the_lock_of_any_round_that_was_edited_or_is_gone_is_named(copied: Inquiry, name: str) -> None:
    path = copied.folder / name
    before = path.read_bytes()
    path.write_bytes(with_other_byte(before, len(before) // 2))
    assert f"{name} was changed" in places(copied)
    path.unlink()
    assert f"{name} cannot be read" in places(copied)


@pytest.mark.parametrize("kind", ["evaluation", "snapshot"])
def test_a_file_or_figure_of_an_earlier_round_that_was_edited_is_named(copied: Inquiry, kind: str) -> None:
    names = [copied.state.rounds[number].runs_in("confirm")[-1].collected[kind]["path"] for number in (0, 1)]
    names.append("figures/round-2-before-after.svg")
    for name in names:
        path = copied.folder / name
        path.write_bytes(with_other_byte(path.read_bytes(), 40))
    found = places(copied)
    assert all(f"{name}: expected the sha256" in found for name in names)


@pytest.mark.parametrize("changes", [{"verdict": "inconclusive"}, {"level": 0.95}, {"estimate": 0.3}])
def test_a_verdict_of_an_earlier_round_that_was_changed_is_named_with_all_brought_into_line(
    copied: Inquiry, changes: dict[str, Any]
) -> None:
    rows = copied.rows
    place = next(n for n, row in enumerate(rows) if row["type"] == "verdict.computed")
    found = places(copied, rehashed_with_report(with_change(rows, place, lambda old: old | changes), copied.folder))
    assert f"verdict on h1 (event {place + 1}): " in found


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (2, lambda old: old | {"alpha": 0.05, "inquiry": old["inquiry"] | {"difference": 0.05}}),
        (3, lambda old: old | {"inquiry": old["inquiry"] | {"previous": "0" * 64}}),
        (3, lambda old: old | {"looks": [look | {"alpha": old["inquiry"]["difference"]} for look in old["looks"]]}),
    ],
    ids=["more than the ledgers give", "another lock before it", "looks that spend more than the level"],
)
def test_a_lock_that_the_rounds_before_do_not_lead_to_is_named(copied: Inquiry, number: int, change: Change) -> None:
    assert_golden(relocked(copied, number, change))


def drifts_with(state: StudyState, change: Callable[[Design], Design]) -> list[str]:
    findings = Findings()
    check_rounds(replace(state, locked_design=change(state.locked_design)), findings)
    return [str(drift) for drift in findings.drifts]


def test_levels_and_links_are_computed_once_more_whatever_the_fold_let_pass(inquiry: Inquiry) -> None:
    def with_place(**changes: Any) -> Callable[[Design], Design]:
        return lambda design: design.model_copy(update={"inquiry": design.inquiry.model_copy(update=changes)})  # type: ignore[union-attr]  # it has a place

    assert drifts_with(inquiry.state, with_place()) == []
    level, spending = drifts_with(inquiry.state, with_place(equivalence=0.0057))
    (link,) = drifts_with(inquiry.state, with_place(previous="f" * 64))
    assert_golden(f"{level}\n{spending}\n{link}")


def test_tasks_that_the_study_does_not_draw_are_named(inquiry: Inquiry) -> None:
    def with_seed(plan: Any, metric: Metric, seed: int | None) -> Any:
        return plan.model_copy(update={"metric": metric.model_copy(update={"task_seed": seed})})

    due = task_seed_of(STUDY, "arith")
    design = inquiry.state.locked_design
    noise = NoisePlan(environment="arith", job={}, seeds=(1, 2), metric_key="hidden/success", episodes=8)
    for seed, held in ((None, 0), (due, 2), (due + 1, 0)):
        findings, plan = Findings(), with_seed(noise, noise.judged, seed)
        locked = with_seed(design, design.metric, seed)
        check_task_seeds(replace(inquiry.state, locked_design=locked, noise_plan=plan, explorations=()), findings)
        assert findings.held["task seed"] == held
        assert len(findings.drifts) == (2 if seed == due + 1 else 0)
    assert f"it is {due + 1}, of this study in arith it is {due}" in str(findings.drifts[-1])


@pytest.mark.parametrize("screened", [False, True])
def test_claims_of_no_difference_spend_a_part_of_the_level_each(inquiry: Inquiry, screened: bool) -> None:
    """As the compiler locks them, whatever the number of claims, also of a screen that has none yet."""

    def with_two(design: Design) -> Design:
        alike = spend_alpha([look.seeds for look in design.looks], design.inquiry.equivalence / 2)
        looks = [a.model_copy(update={"equivalence": b.alpha}) for a, b in zip(design.looks, alike, strict=True)]
        screen = SimpleNamespace(confirmed=2) if screened else None
        claims = () if screened else design.hypotheses * 2
        return design.model_copy(update={"looks": tuple(looks), "hypotheses": claims, "screen": screen})

    assert drifts_with(inquiry.state, with_two) == []


def test_an_export_takes_every_round_along_and_verifies_elsewhere(told: Inquiry, tmp_path: Path) -> None:
    away = tmp_path / "away"
    names = export(STUDY, told.rows, told.folder, away)
    assert {"design.lock", "design-2.lock", "design-3.lock", "figures/round-1-predictions.svg"} <= set(names)
    assert sum(name.startswith("runs/") for name in names) == 2 * len(told.state.every_run)
    assert "- `design-2.lock`, `design-3.lock`" in (away / "README.md").read_text()
    study, rows, broken = read_export(away)
    assert (broken, verify(study, rows, away).drifts) == ([], ())
    (away / "design-2.lock").unlink()
    assert "design-2.lock" in "".join(str(drift) for drift in verify(study, rows, away).drifts)
    (away / "design-2.lock").symlink_to(told.folder / "design-2.lock")
    with pytest.raises(StudiesError, match=r"design-2\.lock, which"):
        read_export(away)
