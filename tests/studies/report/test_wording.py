from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies import ReportError, StudyState
from studies.records.base import canonical
from studies.records.design import Metric
from studies.report import wording
from studies.report.evidence import AFTER, BEFORE, SUCCESS, gather
from studies.verdicts.wording import deciding_interval
from tests.golden import refused
from tests.studies.synthetic import Synthetic, design, hypothesis, judged


def rewritten(state: StudyState, folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> StudyState:
    run_id, run = next(iter(state.runs.items()))
    path = folder / run.collected[name]["path"]
    value = json.loads(path.read_text())
    change(value)
    path.write_text(canonical(value))
    record = {**run.collected[name], "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    changed = replace(run, collected={**run.collected, name: record})
    return replace(state, runs={**state.runs, run_id: changed})


def test_numbers_are_computed_again_from_the_files(finished: tuple[StudyState, Path]) -> None:
    state = finished[0]
    evidence = gather(*finished)
    assert evidence.files == 20
    assert evidence.curve_key == SUCCESS
    for run_id, found in evidence.runs.items():
        measured = {key: known.value for key, known in state.runs[run_id].measurements.items()}
        assert found.recomputed == {key: measured[key] for key in (AFTER, BEFORE)}
        assert (found.steps, len(found.curves[SUCCESS])) == (40, 40)


def one_episode_flipped(value: dict[str, Any]) -> None:
    episodes = value["final"]["episodes"]
    episodes[0]["success"] = not episodes[0]["success"]


REFUSED: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "an episode changed before hashing": ("evaluation", one_episode_flipped),
    "an episode left out": ("evaluation", lambda v: v["final"]["episodes"].pop()),
    "no final episodes": ("evaluation", lambda v: v.pop("final")),
    "another run's file": ("snapshot", lambda v: v.update(run_id="other")),
    "another design's run": ("snapshot", lambda v: v.update(design_hash="f" * 64)),
    "no history": ("snapshot", lambda v: v.pop("history")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_contradicts_the_log_is_refused(study: Synthetic, name: str) -> None:
    kind, change = REFUSED[name]
    state = rewritten(study.whole(), study.folder, kind, change)
    with refused(ReportError, next(iter(state.runs))):
        gather(state, study.folder)


def test_files_that_are_gone_or_damaged_are_named_and_of_a_run_that_was_given_up_stand_in_nobodys_way(
    study: Synthetic,
) -> None:
    state = study.whole()
    run_id, run = next(iter(state.runs.items()))
    path = study.folder / run.collected["evaluation"]["path"]
    path.unlink()
    with pytest.raises(ReportError, match=rf"evaluation of run {run_id} at .*No such file"):
        gather(state, study.folder)
    path.write_text("damaged")
    with pytest.raises(ReportError, match=run_id):
        gather(state, study.folder)
    stray = replace(run, collected={**run.collected, "snapshot": {**run.collected["snapshot"], "path": "../../secret"}})
    with pytest.raises(ReportError, match="outside the study"):
        gather(replace(state, runs={run_id: stray}), study.folder)
    given_up = replace(state, runs={**state.runs, run_id: replace(run, invalid=("evaluation_unreadable", "x"))})
    assert run_id not in gather(given_up, study.folder).runs


METRIC = Metric(meaning="share of hidden tasks solved", episodes=512)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, "–"), (0.4, "0.4 s"), (9.96, "10.0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (272, "4 min 32 s"),
     (3599.7, "1 h 00 min"), (11_100, "3 h 05 min"), (200_000, "55 h 33 min")],
)  # fmt: skip
def test_durations_are_said_as_people_say_them(seconds: float | None, said: str) -> None:
    assert wording.duration(seconds) == said


def test_numbers_keep_their_sign_and_three_decimals_and_commands_can_be_pasted() -> None:
    signed = [wording.format_signed(value) for value in (0.12, -0.0304, -0.0004, -0.0)]
    assert signed == ["+0.120", "\N{MINUS SIGN}0.030", "0.000", "0.000"]
    assert wording.number(-0.0004) == "0.000"
    assert wording.number(None) == "–"
    assert wording.p_value(1e-9) == "< 0.001"
    assert wording.percent(0.95) == "95 %"
    assert wording.true_minus("from -0.1 to co-run") == "from \N{MINUS SIGN}0.1 to co-run"
    assert [wording.plural(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert wording.command_line(["ajet", "research", "is it's so?"]) == """ajet research 'is it'"'"'s so?'"""
    assert wording.command_line("make research") == "make research"


@pytest.mark.parametrize(
    ("low", "high", "unit", "said"),
    [(-1.681, 294, "episodes", "−2 to +294"), (-0.3, 294, "episodes", "−0.3 to +294.0"), (-16, 348, "s", "−16 to +348"),
     (0.0002, 0.1, "", "+0.0002 to +0.1000"), (-0.25, 0, "", "−0.250 to 0.000"), (None, 1, "", "–")],
)  # fmt: skip
def test_the_ends_of_an_interval_have_the_digits_of_its_scale(low: Any, high: float, unit: str, said: str) -> None:
    assert wording.span(low, high, unit=unit) == said


@given(st.lists(st.integers(0, 512), min_size=2, max_size=6), st.lists(st.integers(0, 512), min_size=2, max_size=6))
def test_the_ladder_never_says_more_than_the_verdict(control: list[int], treatment: list[int]) -> None:
    claim = hypothesis()
    verdict = judged(
        claim, {f"c{i}": n / 512 for i, n in enumerate(control)}, {f"t{i}": n / 512 for i, n in enumerate(treatment)},
        alpha=0.05,
    )  # fmt: skip
    text = wording.finding(claim, verdict, METRIC, deciding_interval(design(), verdict))
    assert ("no evidence" in text) == (verdict.verdict == "inconclusive")
    assert ("other side" in text) == (verdict.verdict == "refuted")
    assert "no effect" not in text
    other = wording.finding(claim, verdict, METRIC.model_copy(update={"key": "hidden/reward"}), None)
    assert verdict.verdict == "invalid" or "hidden/reward was" in other, "another metric is called by its key"
    if verdict.verdict in ("supported", "refuted"):
        assert f"difference {wording.format_signed(verdict.estimate)}" in text
        assert f"n = {len(treatment)} + {len(control)}" in text
