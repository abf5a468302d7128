"""How long an attempt is waited for, and what of its files counts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.errors import BadModel
from research.files import read_json
from research.installation.base_job import model_folder
from research.runs.files import (
    LEAST_SILENCE_S,
    AttemptFolder,
    AttemptSpec,
    Evaluation,
    NewestSuccess,
    due_versions,
    evaluations_before,
    find_kept_file,
    missing_versions,
    read_evaluations,
    write_evaluations,
)
from research.runs.launcher import LEAST_TIME_LIMIT_S, TIME_LIMIT_FACTOR
from research.runs.provenance import LISTED, READS, count_overlap, file_hashes
from research.runs.wandb_log import TrackedRun
from research.runs.workers import play_arguments
from studies import EventType
from studies.records.design import Design, Price
from swarm.client.async_client import EPISODE_TIMEOUT_S
from swarm.wire import EpisodeSummary
from tests.research.bench import STUDY, Bench
from tests.research.designs import base_job, design
from tests.research.factories import make_order, with_schedule
from tests.research.model_folders import model_at

THREE_HOURS = 3 * 3600.0


def priced(seconds: float, **changes: Any) -> Design:
    price = Price(runs=8, parallel=2, seconds_per_run=seconds, total_s=4 * seconds, basis="made up")
    return design(16, price=price, **changes)


def orders(bench: Bench) -> list[AttemptSpec]:
    launched = [event.payload for event in bench.events() if event.type is EventType.ATTEMPT_LAUNCHED]
    folders = (AttemptFolder(bench.home.attempt(STUDY, said["run_id"], said["attempt"])) for said in launched)
    return [AttemptSpec.model_validate(read_json(folder.spec)) for folder in folders]


@pytest.mark.parametrize(
    ("run_s", "bounds"),
    [
        (40.0, (LEAST_TIME_LIMIT_S, EPISODE_TIMEOUT_S, LEAST_SILENCE_S)),
        (THREE_HOURS, (TIME_LIMIT_FACTOR * THREE_HOURS, THREE_HOURS, 2 * THREE_HOURS / 3)),
    ],
)
def test_an_attempt_is_waited_for_by_what_a_run_takes(
    tmp_path: Path, run_s: float, bounds: tuple[float, float, float]
) -> None:
    bench = Bench(tmp_path, design=priced(run_s), budget_s=1e6)
    bench.loop().tick()
    order = orders(bench)[0]
    assert (order.time_limit_s, order.play_s, order.silence_s) == bounds
    for role in ("client", "evaluator-final"):
        played = play_arguments(order, role, server="http://x", out="out")  # type: ignore[arg-type]
        assert played[played.index("--timeout") + 1] == f"{bounds[1]:g}"


def brought(tmp_path: Path) -> Design:
    model = model_folder(str(model_at(tmp_path / "model")))
    return priced(10.0, base_job={**base_job(), "model": model.model_dump(mode="json")})


@pytest.mark.parametrize("measured", [True, False])
def test_what_runs_were_seen_to_take_goes_before_the_price_and_what_is_left_bounds_the_first_of_an_unknown_model(
    tmp_path: Path, measured: bool
) -> None:
    chosen = priced(10.0) if measured else brought(tmp_path)
    bench = Bench(tmp_path / "home", design=chosen, budget_s=50_000.0)
    bench.slow(3000.0, 300.0)
    bench.drive(bench.loop())
    first, *_, last = orders(bench)
    assert first.time_limit_s == (LEAST_TIME_LIMIT_S if measured else 50_000.0)
    assert last.time_limit_s == pytest.approx(TIME_LIMIT_FACTOR * 3000.0)


@pytest.mark.parametrize("ticks", [0, 1])
def test_a_model_that_changed_since_it_was_named_is_trained_no_more(tmp_path: Path, ticks: int) -> None:
    bench = Bench(tmp_path / "home", design=brought(tmp_path))
    loop = bench.loop()
    loop.plan()
    for _ in range(ticks):
        loop.tick()
    begun = orders(bench)
    assert bool(begun) == bool(ticks)
    model_at(tmp_path / "model", b"others")
    with pytest.raises(BadModel, match="changed"):
        bench.drive(loop)
    assert orders(bench) == begun
    model_at(tmp_path / "model")
    state = bench.drive(loop).state
    assert state.status == "concluded"
    known = model_folder(str(tmp_path / "model")).sha256
    assert {run.spec.job["model"]["sha256"] for run in state.runs.values()} == {known}
    assert state.prepared["confirm"]["sha256"] == known


def episode(task: str, **changed: Any) -> EpisodeSummary:
    known: dict[str, Any] = {"kind": "train", "state": "consumed", "step": 1} | changed
    return EpisodeSummary(id=task, task_id=task, stream="default", owner="x", calls=1, tokens=1, **known)


def test_only_tasks_that_were_both_trained_on_and_evaluated_overlap() -> None:
    listed = [
        episode("a"), episode("b"), episode("b"),
        episode("c", kind="eval", step=None),
        episode("d", step=None, state="aborted"),
    ]  # fmt: skip
    assert (count_overlap(listed, {"b", "c", "d", "e"}), count_overlap(listed, {"x"})) == (1, 0)
    assert count_overlap([episode("a")] * LISTED, {"a"}) is None, "some may be missing from the list"


class Reader:
    """Reads a log as one that was closed or not, and lets W&B write on meanwhile."""

    def __init__(self, *ended: bool, writes: int = 0) -> None:
        self._ended = iter(ended)
        self._writes = writes

    def __call__(self, path: Path) -> TrackedRun:
        if self._writes:
            self._writes -= 1
            path.write_bytes(path.read_bytes() + b"more")
        return TrackedRun(ended=next(self._ended, True))


@pytest.mark.parametrize(
    ("ended", "writes", "log"),
    [((True,), 0, b"log"), ((False, True), 2, b"logmoremore"), ((False,) * READS, 0, None)],
    ids=["whole", "still written", "never whole"],
)
def test_files_are_hashed_as_they_are_and_a_log_once_it_is_whole(
    tmp_path: Path, ended: tuple[bool, ...], writes: int, log: bytes | None
) -> None:
    folder, order = AttemptFolder(tmp_path), make_order()
    assert file_hashes(folder, order, Reader()) == {}
    folder.evaluation("final").write_text("{}")
    path = tmp_path / "wandb" / f"offline-run-1-{order.tracking_id}" / f"run-{order.tracking_id}.wandb"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"log")
    contents = {"evaluation-final.json": b"{}", **({} if log is None else {str(path.relative_to(tmp_path)): log})}
    assert file_hashes(folder, order, Reader(*ended, writes=writes)) == {
        name: hashlib.sha256(content).hexdigest() for name, content in contents.items()
    }


STEPS = 8


def made_by(attempt: int, version: int) -> Evaluation:
    """Return an evaluation that tells who made it."""
    play = {"task_id": "t", "sample": attempt, "success": attempt % 2 == 0, "reward": 0.0}
    found: dict[str, Any] = {"environment": "guess", "split": "hidden", "policy_version": version, "episodes": [play]}
    return Evaluation.model_validate(found)


@given(st.lists(st.tuples(st.integers(0, STEPS), st.integers(0, STEPS), st.booleans()), max_size=5))
def test_however_often_it_is_gone_on_each_version_has_the_evaluation_of_its_last_weights(
    lives: list[tuple[int, int, bool]],
) -> None:
    """Each life goes on from at most where the one before came, trains so many steps, and may hand nothing over."""
    spec, reached = with_schedule(make_order(steps=STEPS), every=2), 0
    expected: dict[int, int] = {}
    with TemporaryDirectory() as place:
        source: AttemptFolder | None = None
        for number, (back, trained, lost) in enumerate([*lives, (0, STEPS, False)]):
            folder, begins = AttemptFolder(Path(place) / str(number)), max(0, reached - back)
            kept = find_kept_file(source) if source is not None else None
            found = evaluations_before([] if kept is None else read_evaluations(kept), begins)
            if missing := missing_versions(spec, found, begins):
                assert any(version not in expected for version in missing)
                begins, found = 0, []  # it starts from nothing
            expected = {version: who for version, who in expected.items() if version < begins}
            write_evaluations(folder.evaluation("during"), found)
            reached = min(STEPS, begins + trained)
            new = [version for version in spec.evaluate_after if begins <= version < reached]
            if not lost:
                current = read_evaluations(folder.evaluation("during"))
                write_evaluations(
                    folder.evaluation("during"), [*current, *(made_by(number, version) for version in new)]
                )
                expected |= dict.fromkeys(new, number)
            source = folder
        assert source is not None
        last = read_evaluations(source.evaluation("during"))
    assert {each.policy_version: each.episodes[0].sample for each in last} == expected
    assert missing_versions(spec, last, reached) == [
        version for version in due_versions(spec, reached) if version not in expected
    ]


def test_the_newest_success_is_told_once_and_no_file_and_half_a_file_are_none(tmp_path: Path) -> None:
    path = tmp_path / "evaluation-during.json"
    shown = NewestSuccess(path)
    assert shown.read() is None
    write_evaluations(path, [made_by(1, 2), made_by(2, 4)])
    assert shown.read() == 1.0
    assert shown.read() is None
    path.write_text("{")
    assert shown.read() is None
