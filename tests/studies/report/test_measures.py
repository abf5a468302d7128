from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from studies import EventType
from studies.errors import ReportError
from studies.metrics import registry
from studies.proof import verify
from studies.records.procedure import CollapseRule
from studies.report import build_report, measures
from studies.report.build import render_report
from studies.report.design_tables import collapse_table
from studies.report.evidence import Evidence, gather, other_metrics
from studies.report.figure_data import hidden_curves, shifts
from studies.report.measures import facts_table, others_table
from studies.report.run_tables import arm_table
from studies.report.summary import headline
from tests.golden import assert_golden
from tests.studies.measured import MeasuredStudy, measured_design, metric
from tests.studies.report.pages import section

pytestmark = pytest.mark.usefixtures("undrawn")
KINDS = ("episodes", "seconds", "area", "reward", "collapse", "success", "gain")
SLOW, QUICK = "group_size=4", "group_size=16"


def study(folder: Path, kind: str, *, threshold: float | None = None, **how: Any) -> MeasuredStudy:
    chosen = MeasuredStudy(folder, **how)
    takes = "threshold" in registry.BUILT_IN[kind].takes
    rates = {"test": "boschloo"} if registry.BUILT_IN[kind].rates else {}
    asked = metric(kind, threshold or (0.7 if takes else None))
    chosen.whole(measured_design(asked, scope_reached=asked.cut_at is not None, **rates))
    return chosen


def page(made: MeasuredStudy) -> str:
    return render_report(made.state(), made.folder)["report.md"].replace("\\", "")


def evidence(made: MeasuredStudy) -> Evidence:
    return gather(made.state(), made.folder)


def texts(found: Any) -> list[list[str]]:
    return [[entry.text for entry in row] for row in found.rows]


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> MeasuredStudy:
    return study(tmp_path_factory.mktemp("episodes"), "episodes")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_report_and_is_verified_down_to_its_files(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # with figures
    made = study(tmp_path, kind)
    report = build_report(made.state(), tmp_path)
    made.append(EventType.REPORT_BUILT, **report.payload(tmp_path))
    proof = verify(made.study, made.log.read_unverified(made.study), tmp_path)
    assert proof.drifts == ()


@pytest.mark.parametrize("kind", ["episodes", "collapse"])
def test_a_value_that_its_files_do_not_give_is_found(tmp_path: Path, kind: str) -> None:
    made = study(tmp_path, kind)
    state = made.state()
    run = next(iter(state.runs.values()))
    key = run.spec.metric.key
    forged = {**run.measurements, key: run.measurements[key].model_copy(update={"value": 0.5})}
    with pytest.raises(ReportError, match="files give"):
        gather(replace(state, runs={**state.runs, run.run_id: replace(run, measurements=forged)}), tmp_path)


def threat_of(made: MeasuredStudy, words: str) -> str:
    (line,) = [line for line in page(made).splitlines() if words in line]
    return line


TOLD: dict[str, tuple[str, dict[str, Any], str]] = {
    "a few runs of one arm never got there": ("episodes", {"stuck": {SLOW: 1}}, "supported"),
    "most never got there": ("episodes", {"ends": {SLOW: 0.5, QUICK: 0.55}}, "inconclusive"),
    "other measures say something else": ("episodes", {"ends": {SLOW: 0.5}}, "inconclusive"),
    "collapses that count with their value": ("episodes", {"collapsed": {SLOW: 2}}, "supported"),
    "rates": ("collapse", {"collapsed": {SLOW: 5}}, "supported"),
    "too few runs for rates": ("collapse", {"collapsed": {SLOW: 2}}, "inconclusive"),
}


@pytest.mark.parametrize("name", TOLD)
def test_a_time_and_a_rate_are_told_with_who_got_there_and_who_collapsed(tmp_path: Path, name: str) -> None:
    """What most never reached is no number anywhere; a rate is a count with its exact p and limits."""
    kind, how, verdict = TOLD[name]
    made = study(tmp_path, kind, **how)
    state, markdown = made.state(), page(made)
    head = headline(state)
    assert head.answers[0].verdict == verdict
    assert state.verdicts[0].collapses == ()
    lines = [line for line in markdown.splitlines() if "other measures of" in line or "no run of the" in line]
    tables = [" | ".join(row) for found in (arm_table(state), collapse_table(state)) if found for row in texts(found)]
    ends = [(arm.interval and (round(arm.interval.low, 4), round(arm.interval.high, 4))) for arm in shifts(state).arms]
    answer = (head.answers[0].sentence, head.answers[0].practice, head.next.command)
    others = [row[0] for row in texts(others_table(state, evidence(made)))]
    assert_golden("\n".join((*answer, *lines, *tables, *others, str(ends))))
    assert ("Boschloo's exact test" in markdown) == (kind == "collapse")
    assert "5,120 (0.000)" not in markdown


def test_a_time_is_told_in_its_unit_with_the_share_that_got_there_and_that_would_undo_it(
    episodes: MeasuredStudy, tmp_path: Path
) -> None:
    (answer,) = headline(episodes.state()).answers
    assert answer.verdict == "supported"
    threat = threat_of(episodes, "every run with")
    assert_golden(f"{answer.sentence}\n{answer.practice}\n{threat}")
    shares = [float(re.search(r"([\d.]+) %(?: would| of them)", text)[1]) for text in (answer.sentence, threat)]
    assert round(shares[1]) == shares[0]
    made = MeasuredStudy(tmp_path)
    made.whole(measured_design(metric("episodes", 0.7)))
    assert "So this is of trainings" not in headline(made.state()).answers[0].sentence, "nothing of it was locked"
    assert threat_of(made, "every run with")


def test_the_hidden_curve_has_every_look_the_threshold_and_the_horizon(episodes: MeasuredStudy) -> None:
    found = hidden_curves(episodes.state(), evidence(episodes))
    assert (found.threshold, found.horizon, found.unit) == (0.7, 5120.0, "training episodes")
    assert [x for x, _ in found.arms[0].seeds[0].points] == list(range(0, 5121, 512))
    assert "![Hidden success](figures/hidden-curves.svg)" in page(episodes)


def test_without_looks_during_training_there_is_no_hidden_curve(tmp_path: Path) -> None:
    made = study(tmp_path, "reward")
    assert hidden_curves(made.state(), evidence(made)) is None


def test_other_measures_stand_beside_with_differences_and_no_claim(episodes: MeasuredStudy) -> None:
    """Without the one that was locked, and the mean reward, which is success again; no surprise where they agree."""
    assert_golden(section(page(episodes), "Other measures"))
    assert "other measures of" not in page(episodes)
    others = {metric.key: metric for metric in other_metrics(episodes.state())}
    assert others["hidden/tokens_per_solved"].worst == 256, "cut at what a play may take"


def test_a_metric_that_no_simulated_study_has_flown_says_so(
    tmp_path: Path, episodes: MeasuredStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "SIMULATED_KINDS", frozenset({"", "success"}))
    assert "not measured over simulated" in page(episodes)
    assert "not measured over simulated" not in page(study(tmp_path, "success"))


class Telling(MeasuredStudy):
    """Its plays say how many tokens and turns they took: fewer, the better the policy; the first may say nothing."""

    silent = False

    def _part(self, version: int, share: float, of: int) -> dict[str, Any]:
        found = super()._part(version, share, of)
        for number, play in enumerate(found["episodes"]):
            if number or not self.silent:
                play.update(tokens=20 + number % 60, facts={"turns": 8 - 6 * share + number % 2})
        return found


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "of"), [("tokens", ""), ("fact", "turns"), ("transfer", "arith")])
def test_what_plays_cost_or_say_and_what_is_solved_elsewhere_are_judged_told_and_verified(
    tmp_path: Path, kind: str, of: str
) -> None:
    made = Telling(tmp_path, ends={SLOW: 0.7})
    made.whole(measured_design(metric(kind, of=of), collapse=CollapseRule()))
    (answer,) = headline(made.state()).answers
    assert answer.verdict == "supported"
    assert_golden(f"{answer.sentence}\n{answer.practice}")  # without a cut that no run met
    made.append(EventType.REPORT_BUILT, **build_report(made.state(), tmp_path).payload(tmp_path))
    assert verify(made.study, made.log.read_unverified(made.study), tmp_path).drifts == ()
    assert "got there." not in page(made)
    assert "not measured over simulated" in page(made)


def test_plays_of_which_a_number_was_not_said_are_counted_and_no_part_of_its_mean(tmp_path: Path) -> None:
    made = Telling(tmp_path)
    made.silent = True
    made.whole(measured_design(metric("reward")))
    (row,) = texts(facts_table(made.state(), evidence(made)))
    assert_golden(" | ".join(row))


CONFOUNDS = "confounds speed with the level"


@pytest.mark.parametrize(
    ("kind", "threshold", "threat", "named"),
    [("area", None, CONFOUNDS, True), ("area", 0.7, CONFOUNDS, False), ("episodes", 0.1, "stood at the thresh", True)],
)
def test_a_threat_of_the_whole_area_or_of_a_threshold_met_before_training_is_named(
    tmp_path: Path, kind: str, threshold: float | None, threat: str, named: bool
) -> None:
    made = MeasuredStudy(tmp_path)
    made.whole(measured_design(metric(kind, threshold)))
    assert (threat in page(made)) == named
