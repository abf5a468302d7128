"""Progress counts what a study may come to, not what it has written down so far."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from research.study.progress import StudyProgress, progress_of
from studies import EventType
from tests.research.bench import MOST_TICKS, Bench
from tests.research.designs import design, every_stage, noise_plan
from tests.studies.synthetic import Synthetic


def watched(bench: Bench) -> Iterator[StudyProgress]:
    loop = bench.loop()
    for _ in range(MOST_TICKS):
        result = loop.tick()
        yield progress_of(result.state)
        if result.done:
            return
        bench.clock.advance(1)


def test_runs_of_looks_that_are_not_planned_yet_are_to_come(tmp_path: Path) -> None:
    seen = list(watched(Bench(tmp_path, design=design(16))))
    assert (seen[0].done, seen[0].most) == (0, 8), "three looks of at most four seeds, of which two are planned"
    assert [now.done for now in seen if now.percent == 100.0] == [seen[-1].done]
    assert str(seen[0]) == "0 of at most 8 runs done"
    assert seen[-1].concluded


@pytest.mark.parametrize("staged", [False, True])
def test_nothing_is_whole_before_the_study_is(tmp_path: Path, staged: bool) -> None:
    bench = Bench(tmp_path, design=every_stage(), noise=noise_plan()) if staged else Bench(tmp_path)
    for now in watched(bench):
        assert now.done <= (now.most or 0)
        assert (now.percent == 100.0) == now.concluded


def test_noise_runs_are_counted_as_what_they_are(tmp_path: Path) -> None:
    first = next(watched(Bench(tmp_path, design=every_stage(), noise=noise_plan())))
    assert str(first) == f"0 of {len(noise_plan().seeds)} A/A runs done, the design comes after them"


def test_a_veto_takes_its_runs_away_and_a_study_without_a_plan_has_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda order: "never", design=design(16, 32))
    loop = bench.loop()
    assert progress_of(loop.state()) == StudyProgress(0, None, concluded=False, design_open=True)
    assert progress_of(loop.tick().state).most == 12
    bench.append(EventType.HYPOTHESIS_VETOED, hypothesis="h2", reason="settled elsewhere")
    assert progress_of(loop.state()).most == 8


def test_a_study_that_is_cut_short_stays_where_it_was(tmp_path: Path) -> None:
    synthetic = Synthetic(tmp_path)
    synthetic.create()
    synthetic.lock()
    for spec in synthetic.plan()[:8]:
        synthetic.run(spec)
    synthetic.append(EventType.STUDY_STOPPED, reason="budget: used up")
    assert progress_of(synthetic.state()).percent == 80.0
