"""Studies whose runs do not say what they are judged by, or never get to the threshold: no number, and what to do."""

from __future__ import annotations

from pathlib import Path

from research.results.failure_codes import EXCLUDED_CODES, WORST_CODES
from studies.records.design import Metric
from studies.report import build_report
from studies.report.headline.headline import headline
from tests.research.bench import Bench
from tests.studies.measured import measured_design, metric
from tests.studies.synthetic import base_job


def bench(path: Path, asked: Metric) -> Bench:
    locked = measured_design(
        asked, seeds=3, base_job=base_job(backend="fake"), exclusions=EXCLUDED_CODES, counted_as_worst=WORST_CODES,
        scope_reached=asked.cut_at is not None,
    )  # fmt: skip
    made = Bench(path, design=locked)
    made.build_report = build_report
    return made


def test_runs_that_do_not_say_what_they_are_judged_by_are_given_up_at_once(tmp_path: Path) -> None:
    made = bench(tmp_path, metric("fact", of="turns"))
    state = made.drive(made.loop()).state
    assert [(run.invalid or ("",))[0] for run in state.runs.values()] == ["not_measurable"] * 6
    assert {len(run.attempts) for run in state.runs.values()} == {1}
    (run, *_) = state.runs.values()
    assert run.invalid is not None
    assert "expected turns of every hidden episode; found 256 of 256 without it" in run.invalid[1]
    assert state.verdicts[0].verdict == "invalid"


def test_a_threshold_that_nobody_reaches_ends_with_shares_and_one_that_most_reach(tmp_path: Path) -> None:
    made = bench(tmp_path, metric("episodes", 0.99))
    state = made.drive(made.loop()).state
    head = headline(state)
    assert head.answers[0].sentence.startswith("Not reached by any arm within 5,120 episodes: hidden success of 0.99")
    assert head.next.why.startswith("which is faster to 0.")
    assert "--metric episodes:0." in head.next.command
    assert state.verdicts[0].estimate is None
