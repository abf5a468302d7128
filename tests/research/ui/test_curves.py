"""Curves of runs: by hashed snapshots, by the servers of running attempts, and what is said of logs that are gone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from research.ui import curves
from research.ui.curves import CurveReader, PlottedRun, metric_chart
from studies import RunState
from swarm.errors import Unreachable
from swarm.snapshot import Snapshot, StepRecord, StepWait
from swarm.wire import ServerState, Status
from tests.research.factories import make_home
from tests.studies.synthetic import STUDY, Synthetic, design

SUCCESS = "critic/success/mean"


class Server:
    """A server of an attempt that trained so many steps; it is silent where `step` is None."""

    def __init__(self) -> None:
        self.step: int | None = 0
        self.waits = ""
        self.asked: list[int] = []

    def __call__(self, folder: Path, after: int) -> tuple[Snapshot, Sequence[StepRecord]]:
        self.asked.append(after)
        if self.step is None:
            raise Unreachable("no swarm server answers")
        status = Status(state=ServerState.ROLLING, step=self.step)
        steps = [StepRecord(step=n, metrics={SUCCESS: n / 10}) for n in range(after + 1, self.step + 1)]
        waits = (StepWait(what="episodes", text=self.waits),) if self.waits else ()
        return Snapshot(at=0.0, status=status, waits=waits), steps


@pytest.fixture
def study(tmp_path: Path) -> Synthetic:
    return Synthetic(make_home(tmp_path / "home").study(STUDY))


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def reader(tmp_path: Path, server: Server, clock: list[float]) -> CurveReader:
    return CurveReader(make_home(tmp_path / "home"), server, lambda: clock[0])


def runs(study: Synthetic, collected: int) -> tuple[RunState, ...]:
    """Return the runs of a study of two seeds, of which the first ones are collected."""
    specs = study.begin(design(seeds=2))
    study.run_all(specs[:collected])
    return tuple(study.state().runs.values())


def plotted(found: Sequence[RunState]) -> list[PlottedRun]:
    arms = list(dict.fromkeys(run.spec.arm for run in found))
    return [PlottedRun(STUDY, run, run.spec.arm, arms.index(run.spec.arm)) for run in found]


def test_a_collected_run_has_every_metric_of_its_snapshot(study: Synthetic, reader: CurveReader) -> None:
    first, *_, last = runs(study, 1)
    found = reader.read(STUDY, first)
    assert found.names == ("critic/rewards/mean", SUCCESS)
    assert [x for x, _ in found.points(SUCCESS, 128)[:2]] == [128, 256]
    assert len(found.points(SUCCESS)) == 40
    assert found.points("nothing") == ()
    assert (reader.read(STUDY, last).names, reader.read(STUDY, last).fault) == ((), "")


def overwrite(path: Path) -> None:
    path.write_text("{}")


@pytest.mark.parametrize(("change", "says"), [(Path.unlink, "read"), (overwrite, "changed")])
def test_a_snapshot_that_is_not_what_was_collected_is_said_of_its_run_alone(
    study: Synthetic, reader: CurveReader, change: Callable[[Path], None], says: str
) -> None:
    found = runs(study, 4)
    change(study.folder / (found[0].collected or {})["snapshot"]["path"])
    shown, _ = metric_chart(reader, plotted(found), plotted(found), SUCCESS)
    (note,) = shown.notes
    assert found[0].run_id[:8] in note
    assert says in note
    assert len([of for of, _, _ in shown.lines if not of.mean]) == 3
    assert [of.name.split(", ")[0] for of, _, _ in shown.lines if of.mean] == [found[1].spec.arm]


def test_a_snapshot_is_read_once_and_anew_where_its_hash_is_another(
    study: Synthetic, reader: CurveReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_ = runs(study, 1)
    before = reader.read(STUDY, first)
    (study.folder / (first.collected or {})["snapshot"]["path"]).unlink()
    assert reader.read(STUDY, first) is before
    other = {**(first.collected or {}), "snapshot": {**(first.collected or {})["snapshot"], "sha256": "0" * 64}}
    assert reader.read(STUDY, RunState(first.run_id, first.spec, collected=other)).fault


def test_what_is_kept_is_bounded(study: Synthetic, reader: CurveReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "MOST_KEPT", 400)
    for run in runs(study, 4):
        reader.read(STUDY, run)
    assert len(reader._kept) == 2


def test_the_mean_of_an_arm_is_of_all_its_collected_runs_whichever_are_shown(
    study: Synthetic, reader: CurveReader
) -> None:
    every = plotted(runs(study, 4))
    whole, one = (metric_chart(reader, every, shown, SUCCESS, steps=True)[0] for shown in (every, every[:1]))
    (mean,) = [of for of, _, _ in one.lines if of.mean]
    assert mean in [of for of, _, _ in whole.lines]
    assert (whole.x_name, one.x_ticks) == ("training steps", whole.x_ticks)
    by_episodes, names = metric_chart(reader, every, every, SUCCESS)
    assert by_episodes.x_name == "training episodes"
    assert names == {SUCCESS, "critic/rewards/mean"}


def test_of_many_runs_each_arm_is_drawn_in_turn_and_the_rest_is_counted(
    study: Synthetic, reader: CurveReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "MOST_CURVES", 2)
    monkeypatch.setattr(curves, "MOST_AVERAGED", 3)
    every = plotted(runs(study, 4))
    shown, _ = metric_chart(reader, every, sorted(every, key=lambda each: each.place), SUCCESS, steps=True)
    assert {of.arm for of, _, _ in shown.lines if not of.mean} == {"group_size=4", "group_size=16"}
    assert [of.arm for of, _, _ in shown.lines if of.mean] == ["group_size=4"]
    assert [note for note in shown.notes if "2 of 4" in note]
    assert [note for note in shown.notes if "group_size=16" in note]


def test_a_running_attempt_is_asked_for_new_steps_alone_once_a_second(
    study: Synthetic, reader: CurveReader, server: Server, clock: list[float]
) -> None:
    study.launch(study.begin()[0])
    (run, *_) = study.state().runs.values()
    for clock[0], server.step in ((0, 2), (0.5, 4), (1, 3)):
        found = reader.read(STUDY, run)
    assert found.points(SUCCESS) == ((1, 0.1), (2, 0.2), (3, 0.3))
    assert found.snapshot is not None
    assert server.asked == [0, 2]
    clock[0], server.step = 2, 1  # its training began anew
    assert reader.read(STUDY, run).points(SUCCESS) == ((1, 0.1),)


def test_a_silent_server_keeps_what_it_told_and_is_not_asked_at_each_look(
    study: Synthetic, reader: CurveReader, server: Server, clock: list[float]
) -> None:
    study.launch(study.begin()[0])
    (run, *_) = study.state().runs.values()
    server.step = 2
    reader.read(STUDY, run)
    clock[0], server.step = 1, None
    for _ in range(3):
        found = reader.read(STUDY, run)
        assert found.fault
        assert len(found.points(SUCCESS)) == 2
    assert len(server.asked) == 2
    clock[0], server.step = 1 + curves.SILENT_S, 3
    assert (reader.read(STUDY, run).fault, len(found.points(SUCCESS))) == ("", 2)


def test_the_log_of_a_run_that_failed_is_read_where_it_is_asked_for(study: Synthetic, reader: CurveReader) -> None:
    spec = study.begin()[0]
    study.launch(spec)
    study.end(spec, status="failed", code="server_died")
    (run, *_) = study.state().runs.values()
    assert reader.read(STUDY, run) == curves.NOTHING
    assert "expected one" in reader.read(STUDY, run, log=True).fault


class Told(dict[str, Any]):
    """A server that answers with the same steps, whatever it is asked for."""

    def __call__(self, folder: Path, after: int) -> tuple[Snapshot, Sequence[StepRecord]]:
        status = Status(state=ServerState.ROLLING, step=9)
        return Snapshot(at=0.0, status=status), [StepRecord.model_construct(step=9, metrics=self)]


def test_a_server_that_tells_steps_again_has_each_once(study: Synthetic, tmp_path: Path) -> None:
    study.launch(study.begin()[0])
    (run, *_) = study.state().runs.values()
    times = iter(range(0, 100, 5))
    reader = CurveReader(make_home(tmp_path / "home"), Told({SUCCESS: 0.5}), lambda: float(next(times)))
    assert [reader.read(STUDY, run).points(SUCCESS) for _ in range(3)] == [((9, 0.5),)] * 3


@pytest.mark.parametrize("metrics", [{SUCCESS: 10**400}, [1], None])
def test_a_server_that_tells_no_numbers_has_a_fault(study: Synthetic, tmp_path: Path, metrics: Any) -> None:
    study.launch(study.begin()[0])
    (run, *_) = study.state().runs.values()

    def tell(folder: Path, after: int) -> tuple[Snapshot, Sequence[StepRecord]]:
        snapshot, _ = Told()(folder, after)
        return snapshot, [StepRecord.model_construct(step=9, metrics=metrics)]

    found = CurveReader(make_home(tmp_path / "home"), tell).read(STUDY, run)
    assert (found.names, bool(found.fault)) == ((), True)


def test_servers_are_asked_at_once_so_that_one_that_hangs_holds_no_other_up(study: Synthetic, tmp_path: Path) -> None:
    for spec in study.begin(design(seeds=2)):
        study.launch(spec)
    every = plotted(tuple(study.state().runs.values()))
    together = Barrier(len(every), timeout=60)

    def meet(folder: Path, after: int) -> tuple[Snapshot, Sequence[StepRecord]]:
        together.wait()
        return Told({SUCCESS: 0.5})(folder, after)

    found = CurveReader(make_home(tmp_path / "home"), meet).read_all(every)
    assert [each.names for each in found] == [(SUCCESS,)] * len(every)


def test_values_that_are_no_finite_numbers_are_counted_and_huge_ones_are_part_of_no_mean(
    study: Synthetic, reader: CurveReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"step": 1, "metrics": {SUCCESS: 1e308}}, {"step": 2, "metrics": {SUCCESS: 0.5}},
        {"step": 3, "metrics": {}, "not_finite": [SUCCESS]},
    ]  # fmt: skip
    monkeypatch.setattr(curves, "read_collected", lambda folder, stored: json.dumps({"history": rows}))
    every = plotted(runs(study, 4))
    chart, _ = metric_chart(reader, every, every, SUCCESS, steps=True)
    assert [of.points for of, _, _ in chart.lines if of.mean] == [((2, 0.5),)] * 2
    assert [note for note in chart.notes if note.startswith("4 values")] == list(chart.notes)
