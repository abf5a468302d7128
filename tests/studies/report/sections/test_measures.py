"""Reports on metrics that are no success: words, units, figures, other measures, and that verify holds them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from studies import EventType, StudyState
from studies.metrics import registry
from studies.proof import verify
from studies.records.design_parts import CollapseRule
from studies.records.errors import ReportError
from studies.report import build_report
from studies.report.headline.headline import headline
from studies.report.measures import flown
from studies.report.parts.evidence import gather
from studies.report.parts.others import other_metrics
from studies.report.view import view
from tests.studies.measured import MeasuredStudy, measured_design, metric

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
    return build_report(made.state(), made.folder).markdown.read_text().replace("\\", "")


def content(state: StudyState, folder: Path) -> Any:
    return view(state, gather(state, folder))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_report_and_is_verified_down_to_its_files(tmp_path: Path, kind: str) -> None:
    made = study(tmp_path, kind)
    report = build_report(made.state(), tmp_path)
    made.append(EventType.REPORT_BUILT, **report.payload(tmp_path))
    proof = verify(made.study, made.log.stored(made.study), tmp_path)
    assert proof.drifts == ()


@pytest.mark.parametrize("kind", ["episodes", "collapse"])
def test_a_value_that_its_files_do_not_give_is_found(tmp_path: Path, kind: str) -> None:
    made = study(tmp_path, kind)
    state = made.state()
    run = next(iter(state.runs.values()))
    key = run.spec.metric.key
    forged = {**run.measurements, key: run.measurements[key].model_copy(update={"value": 0.5})}
    with pytest.raises(ReportError, match="its files give"):
        gather(replace(state, runs={**state.runs, run.run_id: replace(run, measurements=forged)}), tmp_path)


def test_a_time_is_told_in_its_unit_with_the_share_that_got_there(tmp_path: Path) -> None:
    (answer,) = headline(study(tmp_path, "episodes").state()).answers
    assert answer.verdict == "supported"
    assert re.search(
        r"runs took [\d,]+ episodes to 0\.7 hidden success on average, against [\d,]+ with 4", answer.sentence
    )
    assert "It was reached by 5 of 5 with 16 (0.48 to 1.00) and 5 of 5 with 4 (0.48 to 1.00)" in answer.sentence
    assert re.search(
        r"expect about [\d,]+ fewer \([\d,]+ to [\d,]+\) episodes to 0\.7 hidden success\.", answer.practice
    )


def test_a_claim_of_time_says_how_many_stuck_trainings_would_undo_it(tmp_path: Path) -> None:
    made = study(tmp_path, "episodes")
    (answer,) = headline(made.state()).answers
    said = re.search(
        r"So this is of trainings that get there: that up to 45 % per arm never do is not ruled out, and (\d+) % would "
        r"undo it\.",
        answer.sentence,
    )
    assert said is not None
    threat = re.search(
        r"h1: every run with group_size=16 got there\. What is claimed would not hold of all trainings if ([\d.]+) % "
        r"of them never did, and so few runs leave up to 45 % open\.",
        page(made),
    )
    assert threat is not None
    assert round(float(threat.group(1))) == int(said.group(1))


def test_the_same_is_said_of_studies_that_locked_nothing_of_it(tmp_path: Path) -> None:
    made = MeasuredStudy(tmp_path)
    made.whole(measured_design(metric("episodes", 0.7)))
    assert "So this is of trainings" not in headline(made.state()).answers[0].sentence
    assert "h1: every run with group_size=16 got there." in page(made)


def test_a_few_runs_of_one_arm_alone_that_never_got_there_are_a_threat(tmp_path: Path) -> None:
    slow = study(tmp_path / "slow", "episodes", stuck={SLOW: 1})
    assert [(rate.count, rate.of) for rate in slow.state().verdicts[0].reached] == [(4, 5), (5, 5)]
    said = page(slow)
    assert "h1: 1 of 5 runs with group_size=4 never got there, and no run of the other arm" in said
    assert "5,120 episodes stand in for their time" in said
    assert "and no run of the other arm" not in page(study(tmp_path / "quick", "episodes"))


def test_what_most_never_reached_is_no_number_anywhere(tmp_path: Path) -> None:
    made = study(tmp_path, "episodes", ends={SLOW: 0.5, QUICK: 0.55})
    state = made.state()
    head = headline(state)
    assert "Not reached by any arm within 5,120 episodes" in head.answers[0].sentence
    assert "ask for a threshold that most reach" in head.answers[0].practice
    assert "--metric episodes:0.4 " in head.next.command
    found = content(state, tmp_path)
    rows = [[entry.text for entry in row] for row in found.arms.rows]
    assert [row[3:] for row in rows] == [["0 of 5", "not reached by 5 of 5", "–"]] * 2
    assert found.shifts.arms[0].interval is None
    assert len(found.shifts.arms[0].missed) == 5
    assert "5,120 (0.000)" not in page(made)


def test_the_hidden_curve_has_every_look_the_threshold_and_the_horizon(tmp_path: Path) -> None:
    made = study(tmp_path, "episodes")
    found = content(made.state(), tmp_path).hidden
    assert (found.threshold, found.horizon, found.unit) == (0.7, 5120.0, "training episodes")
    assert [x for x, _ in found.arms[0].seeds[0].points] == list(range(0, 5121, 512))
    assert "![Hidden success](figures/hidden-curves.svg)" in page(made)


def test_without_looks_during_training_there_is_no_hidden_curve(tmp_path: Path) -> None:
    assert content(study(tmp_path, "reward").state(), tmp_path).hidden is None


def test_other_measures_stand_beside_with_differences_and_no_claim(tmp_path: Path) -> None:
    made = study(tmp_path, "episodes")
    found = content(made.state(), tmp_path).appendix.others
    names = [row[0].text for row in found.rows]
    assert "hidden success" in names
    assert "area under the hidden curve (speed and level together)" in names
    assert "seconds to 0.7 hidden success" in names
    assert "mean hidden reward" not in names  # of this environment it is success again
    assert "episodes to 0.7 hidden success" not in names  # the one that was locked
    assert "Exploratory: no claim rests on them." in page(made)


def test_what_a_solution_costs_is_among_them_cut_at_what_a_play_may_take(tmp_path: Path) -> None:
    others = {metric.key: metric for metric in other_metrics(study(tmp_path, "episodes").state())}
    assert others["hidden/tokens_per_solved"].worst == 256


def test_no_course_is_told_of_trainings_that_nobody_looked_at(tmp_path: Path) -> None:
    found = content(study(tmp_path, "collapse", collapsed={SLOW: 5}).state(), tmp_path).appendix.others
    names = [row[0].text for row in found.rows]
    assert names == ["hidden success", "gain in hidden success"]


def test_a_measure_that_says_something_else_than_the_verdict_is_named(tmp_path: Path) -> None:
    said = page(study(tmp_path, "episodes", ends={SLOW: 0.5}))
    (line,) = [line for line in said.splitlines() if "other measures of the same runs" in line]
    assert "tell the arms apart, where the verdict does not" in line
    assert "hidden success differs by +0." in line


def test_a_measure_that_agrees_with_the_verdict_is_no_surprise(tmp_path: Path) -> None:
    assert "other measures of the same runs" not in page(study(tmp_path, "episodes"))


def test_the_whole_area_is_said_to_confound_speed_with_level(tmp_path: Path) -> None:
    made = MeasuredStudy(tmp_path / "all")
    made.whole(measured_design(metric("area")))
    assert "confounds speed with the level" in page(made)
    below = MeasuredStudy(tmp_path / "below")
    below.whole(measured_design(metric("area", 0.7)))
    assert "confounds speed with the level" not in page(below)


def test_a_metric_that_no_simulated_study_has_flown_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flown, "FLOWN", frozenset({"", "success"}))
    assert "was not measured over simulated studies" in page(study(tmp_path / "time", "episodes"))
    assert "was not measured over simulated studies" not in page(study(tmp_path / "plain", "success"))


def test_rates_are_told_as_counts_with_the_exact_p(tmp_path: Path) -> None:
    made = study(tmp_path, "collapse", collapsed={SLOW: 5})
    (answer,) = headline(made.state()).answers
    assert answer.verdict == "supported"
    assert "0 of 5 trainings collapsed, against 5 of 5 trainings with 4 (exact p 0.002;" in answer.sentence
    assert "Boschloo's exact test of two rates" in page(made)


def test_too_few_runs_for_rates_say_what_they_see(tmp_path: Path) -> None:
    made = study(tmp_path, "collapse", collapsed={SLOW: 2})
    (answer,) = headline(made.state()).answers
    assert answer.verdict == "inconclusive"
    assert "0 against 83 % is seen here with 80 % probability" in answer.practice


def test_collapses_are_told_where_they_count_with_their_value(tmp_path: Path) -> None:
    made = study(tmp_path, "episodes", collapsed={SLOW: 2})
    found = content(made.state(), tmp_path).appendix.collapses
    assert [(row[0].text, row[1].text) for row in found.rows] == [(SLOW, "2 of 5"), (QUICK, "0 of 5")]
    assert made.state().verdicts[0].collapses == ()


class Telling(MeasuredStudy):
    """Its plays say how many tokens and turns they took: fewer, the better the policy."""

    def _part(self, version: int, share: float, of: int) -> dict[str, Any]:
        found = super()._part(version, share, of)
        for number, play in enumerate(found["episodes"]):
            play.update(tokens=20 + number % 60, facts={"turns": 8 - 6 * share + number % 2})
        return found


@pytest.mark.parametrize(
    ("kind", "of", "said", "practice"),
    [
        ("tokens", "", "the mean of tokens per solved hidden task was ", r"expect about [\d.]+ fewer \([\d.]+ to "),
        ("fact", "turns", "the mean of hidden turns was ", r"expect about −[\d.]+ \(from −[\d.]+ to −"),
        ("transfer", "arith", "hidden success on arith was 0.", r"expect about \+0\.\d\d\d \(from \+0\."),
    ],
)
def test_what_plays_cost_or_say_and_what_is_solved_elsewhere_are_judged_told_and_verified(
    tmp_path: Path, kind: str, of: str, said: str, practice: str
) -> None:
    made = Telling(tmp_path, ends={SLOW: 0.7})
    made.whole(measured_design(metric(kind, of=of), collapse=CollapseRule()))
    (answer,) = headline(made.state()).answers
    assert answer.verdict == "supported"
    assert said in answer.sentence
    assert "lay 5 of 5" not in answer.sentence  # a cut that no run met
    assert re.search(practice, answer.practice)
    made.append(EventType.REPORT_BUILT, **build_report(made.state(), tmp_path).payload(tmp_path))
    assert verify(made.study, made.log.stored(made.study), tmp_path).drifts == ()
    assert "got there. What is claimed" not in page(made)
    assert "was not measured over simulated studies" in page(made)


class Saying(MeasuredStudy):
    """Its environment says of each play but the first how many turns it took."""

    def _part(self, version: int, share: float, of: int) -> dict[str, Any]:
        found = super()._part(version, share, of)
        for play in found["episodes"][1:]:
            play["facts"] = {"turns": 3.0}
        return found


def test_plays_of_which_a_number_was_not_said_are_counted_and_no_part_of_its_mean(tmp_path: Path) -> None:
    made = Saying(tmp_path)
    made.whole(measured_design(metric("reward")))
    table = content(made.state(), tmp_path).appendix.facts
    assert [[entry.text for entry in row] for row in table.rows] == [["turns", *["3.000 (of 5 plays not said)"] * 2]]


def test_an_arm_s_rate_has_exact_limits_and_no_spread(tmp_path: Path) -> None:
    made = study(tmp_path, "collapse", collapsed={SLOW: 5})
    found = content(made.state(), tmp_path)
    assert [[entry.text for entry in row][3:] for row in found.arms.rows] == [["5 of 5", "–"], ["0 of 5", "–"]]
    interval = found.shifts.arms[1].interval
    assert (interval.mean, interval.low, interval.high) == pytest.approx((0.0, 0.0, 0.5218), abs=1e-4)


def test_arms_that_stood_at_the_threshold_before_training_are_named(tmp_path: Path) -> None:
    made = MeasuredStudy(tmp_path)
    made.whole(measured_design(metric("episodes", 0.1)))
    assert "stood at the threshold before training" in page(made)
