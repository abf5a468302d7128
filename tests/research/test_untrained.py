"""The untrained policy is evaluated once for the runs that begin with it: which they are, and what follows for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from research.controller.planning import Planning
from research.design.compiler import DesignCompiler
from research.design.noise_bank import NoiseBank, model_key
from research.design.pricing import BOTH_EVALUATIONS, ObservedRun, Pricing, make_pricing, median_seconds, price_key
from research.errors import DesignRefused
from research.files import write_json
from research.installation.home import Home
from research.runs.collect import collect
from research.runs.files import AttemptFolder, AttemptSpec
from research.runs.workers import play_arguments
from studies import EventLog, EventType, StudyLog, StudyState, fold
from studies.checks.conditions import CollectError
from studies.log.event import row_of
from studies.metrics import kinds
from studies.proof import verify
from studies.records.design import Budget, RunSpec, task_seed_of
from studies.records.runs import (
    PLUMBING_ARM,
    PLUMBING_JOB,
    TRAINING_FIELDS,
    begins_alike,
    confirm_spec,
    shares_untrained,
    zero_lr_spec,
)
from studies.report import build_report
from swarm.job import Job
from tests.research.bench import STUDY, Bench, Knows
from tests.research.factories import edit, make_order, with_run
from tests.research.fakes import (
    BASE,
    PRICING,
    ScriptedPlanner,
    create_study,
    evaluation,
    read_fake_tracking,
    write_results,
)
from tests.research.runs.fake_attempt import FakeAttempt
from tests.research.test_plumbing import TASKS, shared_design, shared_plan
from tests.studies.synthetic import append

OTHER: dict[str, Any] = {
    "environment": "arith", "model": {"kind": "tiny", "seed": 1}, "start_from": "elsewhere", "backend": "fake",
    "temperature": 0.7, "max_tokens": 8, "max_context": 128, "max_concurrency": 8, "kv_cache_bytes": 1 << 20,
    "engine": "others", "device": "cuda", "dtype": "bfloat16", "lease_ttl_s": 5.0, "drain_timeout_s": 5.0,
    "verl": {"gpus": 2}, "environment_args": {"max_turns": 3}, "tracking": {"project": "mine"},
}  # fmt: skip
"""Another value of each job field that is no matter of training alone."""


def value_of(job: Job) -> dict[str, Any]:
    return job.model_dump(mode="json")


def test_each_job_field_is_a_matter_of_training_alone_or_keeps_runs_from_sharing_an_evaluation() -> None:
    assert TRAINING_FIELDS | OTHER.keys() == Job.model_fields.keys()
    assert not TRAINING_FIELDS & OTHER.keys()
    assert PLUMBING_JOB.keys() <= TRAINING_FIELDS
    for name, value in OTHER.items():
        assert not begins_alike(value_of(Job()), {**value_of(Job()), name: value}), name
    assert begins_alike(value_of(Job()), {**value_of(Job()), **dict.fromkeys(TRAINING_FIELDS, "another")})


def test_a_job_field_that_nobody_listed_keeps_runs_from_sharing_an_evaluation() -> None:
    assert not begins_alike({**value_of(Job()), "a_new_field": 1}, value_of(Job()))
    assert not begins_alike(value_of(Job()), {**value_of(Job()), "a_new_field": False})


def specs() -> tuple[RunSpec, RunSpec]:
    """Return a run of a treatment, and the one that evaluated the untrained policy of its study."""
    design = shared_design(16)
    return confirm_spec(STUDY, design, "d", design.arms[1], 101), zero_lr_spec(STUDY, shared_plan(), "n", 77)


@pytest.mark.parametrize("change", [
    {"metric": {"task_seed": 8}}, {"metric": {"task_seed": None}}, {"metric": {"split": "search"}},
    {"environment": "arith"}, {"arm": PLUMBING_ARM}, {"job": {"temperature": 0.5}},
])  # fmt: skip
def test_a_run_shares_the_evaluation_of_its_own_policy_on_its_own_tasks_alone(change: dict[str, Any]) -> None:
    run, untrained = specs()
    assert shares_untrained(run, untrained)
    fewer = run.metric.model_copy(update={"episodes": 7})
    assert shares_untrained(run.model_copy(update={"metric": fewer}), untrained)
    values = {
        name: {**run.job, **value} if name == "job"
        else run.metric.model_copy(update=value) if name == "metric" else value
        for name, value in change.items()
    }  # fmt: skip
    assert not shares_untrained(run.model_copy(update=values), untrained)


def test_only_a_gain_is_measured_from_a_beginning_of_each_run() -> None:
    assert [name for name, kind in kinds().items() if kind.reads_initial] == ["gain"]


def with_tasks(order: AttemptSpec, seed: int = 9) -> AttemptSpec:
    return with_run(order, metric=order.spec.metric.model_copy(update={"task_seed": seed}))


def test_evaluators_play_the_tasks_of_the_study_and_a_client_those_of_its_run() -> None:
    order = with_tasks(make_order(seed=3))
    seeds = [
        played[played.index("--seed") + 1]
        for role in ("client", "evaluator-initial", "evaluator-final")
        if (played := play_arguments(order, role, server="http://x", out="out"))  # type: ignore[arg-type]
    ]
    assert seeds == ["3", "9", "9"]


def given(folder: AttemptFolder, order: AttemptSpec, episodes: int = 16) -> AttemptSpec:
    """Put an evaluation of so many plays into an attempt's folder, as its launcher does."""
    initial = evaluation(order.spec, 0, 0.25, episodes)
    sha256 = write_json(folder.evaluation("initial"), initial)
    return order.model_copy(update={"initial_sha256": sha256, "initial_of": "z", "initial_episodes": episodes})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AttemptFolder:
    monkeypatch.setattr("research.runs.attempt.AsyncSwarmClient", lambda server, token: server)
    monkeypatch.setattr("research.runs.attempt.POLL_S", 0.001)
    return AttemptFolder(tmp_path / "attempt")


async def test_an_attempt_that_was_given_an_evaluation_makes_none_before_training(folder: AttemptFolder) -> None:
    attempt = FakeAttempt(folder, given(folder, with_tasks(make_order())))
    assert (await attempt.run()).status == "finished"
    assert attempt.started == ["client", "evaluator-final"]


async def test_the_run_that_evaluates_the_untrained_policy_does_so_once_before_its_steps(folder: AttemptFolder) -> None:
    attempt = FakeAttempt(folder, with_run(with_tasks(make_order()), arm=PLUMBING_ARM))
    assert (await attempt.run()).status == "finished"
    assert attempt.started == ["evaluator-initial", "client"]


async def test_an_attempt_does_not_begin_with_a_copy_that_was_changed(folder: AttemptFolder) -> None:
    order = given(folder, with_tasks(make_order()))
    edit(folder.evaluation("initial"), lambda value: value["episodes"][0].update(reward=0.5))
    outcome = await FakeAttempt(folder, order).run()
    assert (outcome.code, "of run z" in outcome.reason) == ("evaluation_unreadable", True)


def test_a_copy_may_have_another_number_of_plays_and_must_be_of_the_drawn_tasks_and_as_it_was_given(
    folder: AttemptFolder, tmp_path: Path
) -> None:
    order = given(folder, with_tasks(make_order()), episodes=16)
    write_results(folder, order, 0.5)
    found = collect(folder, order, tmp_path / "study", read_fake_tracking)
    curve = found.payload["conditions"]["course"]
    last = order.spec.metric.episodes
    assert (curve["start"], curve["end"], curve["plays"]) == (0.25, 0.5, 2 * 16 * last // (16 + last))
    assert found.payload["evaluation"]["episodes"] == last
    for change in ({"initial_episodes": 15}, {"initial_sha256": "0" * 64}):
        with pytest.raises(CollectError):
            collect(folder, order.model_copy(update=change), tmp_path / "study", read_fake_tracking)
    other = given(folder, with_tasks(make_order(), 10), episodes=16)
    mixed = with_tasks(order).model_copy(update={"initial_sha256": other.initial_sha256})
    with pytest.raises(CollectError, match="its seed draws"):
        collect(folder, mixed, tmp_path / "study", read_fake_tracking)


def test_runs_evaluate_for_themselves_where_the_run_that_was_to_do_it_for_all_was_lost(fast_path: Path) -> None:
    lost = Bench(
        fast_path, lambda order: "failed" if order.spec.arm == PLUMBING_ARM else "ok", shared_design(16),
        shared_plan(seeds=()),
    )  # fmt: skip
    state = lost.drive(lost.loop())
    assert [run.status for run in state.runs_in("noise")] == ["invalid"]
    assert state.verdicts
    assert {run.untrained for run in state.runs_in("confirm")} == {""}


@pytest.mark.slow
def test_a_run_that_goes_on_keeps_the_shared_evaluation(tmp_path: Path) -> None:
    bench = Bench(tmp_path, design=shared_design(16), noise=shared_plan(seeds=()))

    def script(order: AttemptSpec) -> str:
        if order.attempt == 1 and order.initial_of:
            attempt = AttemptFolder(bench.home.attempt(STUDY, order.run_id, 1))
            attempt.server.mkdir()
            return "lost"
        return "ok"

    bench.sandbox.script = script
    state = bench.drive(bench.loop())
    (still,) = state.runs_in("noise")
    for run in state.runs_in("confirm"):
        assert [(attempt.resumes, attempt.initial_of) for attempt in run.attempts] == [
            (None, still.run_id), (1, still.run_id)
        ]  # fmt: skip
        assert len({attempt.initial_sha256 for attempt in run.attempts}) == 1
        assert run.measurements["hidden/success/initial"].value == still.measurements["hidden/success/initial"].value


CHECKED = frozenset({(BASE.environment, model_key(BASE))})


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.locate({"AJET_HOME": str(tmp_path)}).prepare()


@pytest.fixture
def log(home: Home) -> Iterator[EventLog]:
    with closing(EventLog(home.database)) as log:
        create_study(log, STUDY)
        yield log


def plan(home: Home, log: EventLog, bank: NoiseBank) -> StudyState:
    record = StudyLog(log, STUDY)
    record.state()
    planned = Planning(home, log, record, ScriptedPlanner(), lambda: PRICING, BASE, noise_bank=lambda log: bank)
    planned.plan(fold(log.read(STUDY)), lambda: 600.0)
    return fold(log.read(STUDY))


def test_a_study_begins_with_the_run_that_evaluates_for_all_though_its_machinery_was_seen_before(
    home: Home, log: EventLog
) -> None:
    state = plan(home, log, Knows(checked=CHECKED))
    (noise, seed) = state.noise_plan, task_seed_of(STUDY, BASE.environment)
    assert noise is not None
    assert (noise.seeds, noise.plumbing is None, noise.judged.task_seed) == ((), False, seed)
    locked = plan(home, log, Knows(checked=CHECKED)).design  # and goes on where that run was lost
    assert locked is not None
    assert locked.metric.task_seed == seed


def test_a_machinery_that_nobody_saw_is_not_gone_on_with(home: Home, log: EventLog) -> None:
    plan(home, log, Knows(checked=frozenset()))
    with pytest.raises(DesignRefused, match="learning rate of 0 that changes nothing"):
        plan(home, log, Knows(checked=frozenset()))


def test_a_bank_that_asks_for_no_such_run_gets_none(home: Home, log: EventLog) -> None:
    assert plan(home, log, Knows()).design is not None
    assert fold(log.read(STUDY)).noise_plan is None


@pytest.mark.parametrize(("seconds", "times"), [(1.0, 1.0), (30.0, 3.0)])
def test_the_first_run_says_how_long_runs_take_here_and_never_that_they_take_less(
    home: Home, log: EventLog, seconds: float, times: float
) -> None:
    state = plan(home, log, Knows(checked=CHECKED))
    noise = state.noise_plan
    assert noise is not None
    assert noise.plumbing is not None
    spec = zero_lr_spec(STUDY, noise, str(state.noise_hash), noise.plumbing)
    priced = PRICING.plumbing(Job.from_record(noise.job), noise.episodes)
    run = {"run_id": spec.run_id}
    append(log, STUDY, EventType.RUN_PLANNED, {**run, "spec": spec.model_dump(mode="json")})
    append(log, STUDY, EventType.ATTEMPT_LAUNCHED, {**run, "attempt": 1, "name": spec.run_id})
    ended = {"attempt": 1, "status": "finished", "code": "ok", "reason": "", "seconds": seconds / 10 * priced}
    append(log, STUDY, EventType.ATTEMPT_ENDED, {**run, **ended})
    after = PRICING.after_noise(fold(log.read(STUDY)))
    assert after.times == pytest.approx(times)
    assert "learning rate of 0 took" in after.basis


def test_a_run_that_shares_an_evaluation_is_priced_with_one() -> None:
    job, listed = Job(), make_pricing(2)
    metric = shared_design(16).metric
    shared = replace(listed, untrained=job)
    one = listed.estimates.evaluations(job, metric.episodes)
    both = listed.run_with_evaluations(job, metric)
    assert shared.run_with_evaluations(job.model_copy(update={"learning_rate": 0.5}), metric) == pytest.approx(
        both - one
    )
    assert shared.run_with_evaluations(job.model_copy(update={"temperature": 0.5}), metric) == pytest.approx(both)
    on_search = metric.model_copy(update={"split": "search"})
    assert shared.run_with_evaluations(job, on_search) == pytest.approx(both)
    gain = metric.model_copy(update={"key": "hidden/success_gain"})
    assert shared.run_with_evaluations(job, gain) == pytest.approx(both)


@pytest.mark.parametrize("episodes", [512, BOTH_EVALUATIONS])
def test_a_seen_run_with_other_evaluations_is_the_price_of_one_with_as_many(episodes: int) -> None:
    seen: Pricing = make_pricing(2, {price_key(Job()): ObservedRun(30.0, episodes)})
    assert seen.run(Job(), episodes) == pytest.approx(30.0)
    assert seen.run(Job(), 512) - seen.run(Job(), 256) == pytest.approx(seen.estimates.evaluations(Job(), 256))


def test_runs_with_and_without_an_evaluation_before_training_make_no_common_median(fast_path: Path) -> None:
    bench = Bench(fast_path, design=shared_design(16), noise=shared_plan(seeds=()))
    state = bench.drive(bench.loop())
    episodes = state.design.metric.episodes if state.design is not None else 0
    seen = median_seconds(bench.log)
    assert {found.episodes for found in seen.values()} == {episodes}
    (still,) = state.runs_in("noise")
    assert price_key(Job.model_validate(still.spec.job)) in seen


def test_hashes_of_specs_without_a_task_seed_are_as_before() -> None:
    run, _ = specs()
    old = run.model_copy(update={"metric": run.metric.model_copy(update={"task_seed": None})})
    assert "task_seed" not in old.model_dump(mode="json")["metric"]
    assert old.task_seed == old.seed
    assert run.task_seed == TASKS


def test_a_later_round_with_the_same_policy_begins_without_such_a_run_and_one_with_another_makes_its_own() -> None:
    _, untrained = specs()
    first = DesignCompiler(PRICING, Budget(wall_clock_s=600), bank=Knows(checked=CHECKED))
    later, lost = replace(first, untrained=(untrained,)), replace(first, tried=True)
    job, colder = BASE.model_copy(update={"learning_rate": 0.5}), BASE.model_copy(update={"temperature": 0.5})
    made = [[compiler.makes_zero_lr_run(each) for each in (job, colder)] for compiler in (first, later, lost)]
    assert made == [[True, True], [False, True], [False, False]]

    def shares(compiler: DesignCompiler, job: Job) -> bool:
        """Return whether a design's runs are priced without an evaluation of the untrained policy each."""
        draft: Any = Mock(job=job, metric=lambda *_: untrained.metric, stages=lambda _seeds, price, _metric: (price,))
        return compiler.stages(draft, 3)[-1].untrained == job

    assert [shares(later, each) for each in (job, colder)] == [True, True]
    assert [shares(lost, each) for each in (job, colder)] == [False, False]


@pytest.mark.slow
@pytest.mark.parametrize("written", [True, False])
def test_whenever_its_controller_is_killed_each_run_has_the_one_evaluation(tmp_path: Path, written: bool) -> None:
    bench = Bench(tmp_path, design=shared_design(16), noise=shared_plan(seeds=()))
    bench.build_report = build_report
    state, killed = bench.drive_by_single_events(written=written)
    (still,) = state.runs_in("noise")
    assert killed > 20
    assert {run.untrained for run in state.runs_in("confirm")} == {still.run_id}
    assert verify(STUDY, [row_of(event) for event in bench.events()], bench.home.study(STUDY)).drifts == ()
