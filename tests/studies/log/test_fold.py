from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from studies import Event, EventType, LogCorrupt, UnknownStudy, fold
from studies.records.design import RunSpec
from tests.studies.synthetic import Synthetic, design, hypothesis


def ready(s: Synthetic) -> list[RunSpec]:
    s.create()
    s.lock()
    return s.plan()


def test_a_whole_study_folds_to_what_was_written(study: Synthetic) -> None:
    state = study.whole()
    assert (state.status, state.topic, state.design) == ("concluded", study.topic, study.design)
    assert len(state.runs) == 10
    assert all(run.status == "collected" and run.active is None for run in state.runs.values())
    assert [verdict.verdict for verdict in state.verdicts] == ["supported"]
    assert state.values("group_size=16").keys() == {run.run_id for run in state.runs_of("group_size=16")}
    events = study.log.read(study.study)
    assert (state.event_count, state.head_hash) == (len(events), events[-1].hash)
    assert state.locked.seq < state.first_launch.seq
    assert state.elapsed_s == pytest.approx(1.5 * (state.event_count - 1))


def test_the_status_moves_as_the_study_does(study: Synthetic) -> None:
    steps: list[tuple[str, Callable[[], object]]] = [
        ("planning", study.create),
        ("running", study.lock),
        ("stopped", lambda: study.append(EventType.STUDY_STOPPED, reason="by the user")),
        ("running", lambda: study.append(EventType.STUDY_RESUMED, command=["ajet", "study", "resume"])),
        ("judged", lambda: ([study.run(spec) for spec in study.plan()], study.judge())),
        ("concluded", study.conclude),
    ]
    for status, step in steps:
        step()
        assert study.state().status == status
    assert study.state().resumed_count == 1


def test_a_run_moves_from_planned_to_collected_with_every_attempt_kept(study: Synthetic) -> None:
    spec = ready(study)[0]
    steps: list[tuple[str, Callable[[], object]]] = [
        ("planned", lambda: None), ("running", lambda: study.launch(spec)),
        ("ended", lambda: study.end(spec, 1, "lost", "LOST", "it vanished")),
        ("collected", lambda: study.run(spec, 2)),
    ]  # fmt: skip
    for status, step in steps:
        step()
        run = study.state().runs[spec.run_id]
        assert (run.status, run.active is not None) == (status, status == "running")
    assert [(a.number, a.status, a.code) for a in run.attempts] == [(1, "lost", "LOST"), (2, "finished", "")]
    assert run.seconds == pytest.approx(sum(a.seconds or 0 for a in run.attempts))


def test_a_run_knows_when_what_happened_to_it(study: Synthetic) -> None:
    first, second, *_ = ready(study)
    study.launch(first)
    running = study.state().runs[first.run_id]
    assert (running.attempts[0].ended, running.settled) == ("", "")
    ended, collected = study.end(first), study.collect(first)
    given_up = study.append(EventType.RUN_INVALIDATED, run_id=second.run_id, code="vetoed", reason="not needed")
    planned = [event.ts for event in study.log.read(study.study) if event.type is EventType.RUN_PLANNED]
    runs = study.state().runs
    assert [run.planned for run in runs.values()] == planned
    assert (runs[first.run_id].attempts[0].ended, runs[first.run_id].settled) == (ended.ts, collected.ts)
    assert runs[second.run_id].settled == given_up.ts


def test_an_invalid_run_is_kept_but_counts_for_nothing(study: Synthetic) -> None:
    victim = ready(study)[0]
    study.run(victim)
    assert victim.run_id in study.state().values(victim.arm)
    study.append(EventType.RUN_INVALIDATED, run_id=victim.run_id, code="NAN", reason="loss became NaN")
    invalid = study.state().runs[victim.run_id]
    assert (invalid.status, bool(invalid.measurements)) == ("invalid", True)
    assert victim.run_id not in study.state().values(victim.arm)


def test_a_verdict_falls_when_the_data_it_rests_on_change(study: Synthetic) -> None:
    specs = ready(study)
    for spec in specs[:8]:
        study.run(spec)
    study.judge()
    assert study.state().status == "judged"
    study.run(specs[8])
    state = study.state()
    assert state.verdicts == ()
    assert [v.n_control for v in state.superseded] == [4]
    study.judge()
    study.append(EventType.RUN_INVALIDATED, run_id=specs[9].run_id, code="LOST", reason="never ran")
    assert len(study.state().verdicts) == 1  # a run without data changes no verdict


def test_a_report_stands_until_anything_happens_after_it(study: Synthetic) -> None:
    study.whole()
    built = {"markdown": {"path": "report.md", "sha256": "a"}, "html": {"path": "report.html", "sha256": "b"}}
    study.append(EventType.REPORT_BUILT, **built)
    assert study.state().report == built
    study.append(EventType.STUDY_RESUMED, command=[])
    assert study.state().report is None


def test_waits_before_a_stop_or_a_resumption_are_not_worked(study: Synthetic) -> None:
    study.create()
    study.lock()  # five events so far, 1.5 s apart
    study.append(EventType.STUDY_STOPPED, reason="by the user")
    study.append(EventType.STUDY_RESUMED, command=[])
    assert study.state().worked_s == pytest.approx(6.0)
    assert study.state().elapsed_s == pytest.approx(9.0)


def test_every_prefix_of_a_log_folds_and_no_fold_depends_on_another(study: Synthetic) -> None:
    finished = study.whole()
    events = study.log.read(study.study)
    for cut in range(1, len(events)):
        state = fold(events[:cut])
        assert state.event_count == cut
        assert {run.status for run in state.runs.values()} <= {"planned", "running", "ended", "collected", "invalid"}
        assert fold(events[:cut]) == state
    assert fold(events) == finished


def propose(s: Synthetic, name: str = "h1") -> Event:
    return s.append(EventType.HYPOTHESIS_PROPOSED, **hypothesis(name).model_dump())


def lock(s: Synthetic, **changes: Any) -> Event:
    locked = {"design": s.design.model_dump(), "hash": s.design.hash(), "file": "design.lock"}
    return s.append(EventType.DESIGN_LOCKED, **{**locked, **changes})


Step = Callable[[Synthetic], object]
UNFIT: dict[str, tuple[Step, str]] = {
    "a second creation": (lambda s: (ready(s), s.create()), "exactly one study.created"),
    "an event before the creation": (lambda s: s.append(EventType.STUDY_STOPPED, reason="x"), "exactly one"),
    "a hypothesis twice": (lambda s: (s.create(), propose(s), propose(s)), "was proposed before"),
    "a hypothesis after the lock": (lambda s: (ready(s), propose(s, "h9")), "after the design was locked"),
    "a second lock": (lambda s: (ready(s), lock(s)), "one lock per study"),
    "a lock that names no file": (
        lambda s: (s.create(), s.append(EventType.DESIGN_LOCKED, design=s.design.model_dump(), hash="")),
        "not a valid record: file: "),
    "a lock whose hash is another's": (lambda s: (s.create(), lock(s, hash="f" * 64)), "the lock says ffffffffffff"),
    "a design that is none": (lambda s: (s.create(), lock(s, design={"arms": []}, hash="")), "not a valid record"),
    "a run before the lock": (lambda s: (s.create(), s.plan()), "a run under the locked design"),
    "a run under another design": (
        lambda s: (s.create(), s.lock(), s.plan(design(seeds=6))), "a run under the locked design"),
    "a run whose id is another's": (
        lambda s: (s.create(), s.lock(), s.append(
            EventType.RUN_PLANNED, run_id="0" * 16, spec=s.spec("group_size=4", s.design.seeds[0]).model_dump())),
        "the event says 0000000000000000"),
    "a run twice": (lambda s: (ready(s), s.plan()), "was planned before"),
    "a launch of an unknown run": (
        lambda s: (ready(s), s.append(EventType.ATTEMPT_LAUNCHED, run_id="x", attempt=1, name="n")),
        "no run 'x' was planned"),
    "two attempts at once": (lambda s: [s.launch(spec, n) for spec in ready(s)[:1] for n in (1, 2)], "is running"),
    "an attempt's number twice": (
        lambda s: [(s.launch(x), s.end(x, 1, "lost"), s.launch(x, 1)) for x in ready(s)[:1]], "expected attempt 2"),
    "an attempt that goes on from none": (
        lambda s: s.launch(ready(s)[0], 2, begins={"resumes": 1}), "go on from an earlier attempt"),
    "the end of no attempt": (lambda s: s.end(ready(s)[0]), "nothing to end"),
    "an unknown way to end": (lambda s: [(s.launch(x), s.end(x, 1, "gone")) for x in ready(s)[:1]], "status: .*'gone'"),
    "a launch after collection": (lambda s: [(s.run(x), s.launch(x, 2)) for x in ready(s)[:1]], "is collected"),
    "a collection of a failed attempt": (
        lambda s: [(s.launch(x), s.end(x, 1, "failed"), s.collect(x)) for x in ready(s)[:1]], "did not finish"),
    "a measurement of a run not collected": (
        lambda s: s.append(
            EventType.MEASUREMENT_RECORDED, run_id=ready(s)[0].run_id, key="k", value=1.0, n=1, sha256=""),
        "of a collected run only"),
    "a measurement bound to no file": (
        lambda s: [(s.run(x), s.append(
            EventType.MEASUREMENT_RECORDED, run_id=x.run_id, key="k", value=1.0, n=1, sha256=""))
            for x in ready(s)[:1]],
        "bound to no collected file"),
    "an invalidation twice": (
        lambda s: [s.append(EventType.RUN_INVALIDATED, run_id=x.run_id, code="c", reason="") for x in ready(s)[:1] * 2],
        "was invalidated before"),
    "planning after the conclusion": (
        lambda s: (ready(s), s.conclude(), s.append(EventType.VERDICT_COMPUTED)), "was concluded before"),
    "a payload without its fields": (
        lambda s: (s.create(), s.append(EventType.DECISION_TAKEN, rule="r")), "not a valid record: action: "),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFIT)
def test_what_cannot_follow_is_refused_and_named(study: Synthetic, name: str) -> None:
    step, said = UNFIT[name]
    with pytest.raises(LogCorrupt, match=said) as caught:
        (step(study), study.state())  # a step may fold as well
    assert f"of study {study.study}" in str(caught.value)
    assert f"event {caught.value.seq} ({caught.value.type})" in str(caught.value)


def test_a_fold_of_nothing_is_no_study() -> None:
    with pytest.raises(UnknownStudy):
        fold([])


def test_how_a_copy_at_wandb_stands_is_told_of_an_attempt_also_after_the_conclusion(study: Synthetic) -> None:
    state = study.whole()
    run_id = next(iter(state.runs))
    about = {"run_id": run_id, "attempt": 1, "url": "https://wandb.example/r"}
    before = state.runs[run_id].attempts[0]
    assert (before.url, before.standing, before.standing_reason) == ("", "", "")
    study.append(EventType.ATTEMPT_COPIED, **about, standing="sending")
    study.append(EventType.ATTEMPT_COPIED, **about, standing="failed", reason="W&B shows 3 of 4 steps")
    found = study.state()
    said = {"url": about["url"], "standing": "failed", "standing_reason": "W&B shows 3 of 4 steps"}
    assert found.runs[run_id].attempts == (replace(before, **said),)
    assert found.verdicts == state.verdicts, "nothing follows from a copy"


@pytest.mark.parametrize(("word", "standing"), [("same", "sent"), ("differs", "sent"), ("lacking", "failed")])
def test_what_was_said_of_copies_when_they_were_compared_is_still_read(
    study: Synthetic, word: str, standing: str
) -> None:
    run_id = next(iter(study.whole().runs))
    study.append(EventType.ATTEMPT_COPIED, run_id=run_id, attempt=1, url="https://wandb.example/r", standing=word)
    assert study.state().runs[run_id].attempts[0].standing == standing


@pytest.mark.parametrize("wrong", [{"attempt": 2}, {"standing": "fine"}, {"run_id": "nobody"}])
def test_a_copy_of_nothing_is_refused(study: Synthetic, wrong: dict[str, Any]) -> None:
    run_id = next(iter(study.whole().runs))
    about = {"run_id": run_id, "attempt": 1, "url": "https://wandb.example/r", "standing": "sent"}
    study.append(EventType.ATTEMPT_COPIED, **{**about, **wrong})
    with pytest.raises(LogCorrupt, match=r"attempt\.copied"):
        study.state()
