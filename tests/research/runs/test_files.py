"""An attempt in this process: how it ends, goes on from another, and is stopped by a rule."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from research.errors import NotReady
from research.files import read_json, write_json
from research.installation.base_job import model_folder
from research.runs.attempt import Attempt, main
from research.runs.files import AttemptFolder, AttemptOutcome, AttemptProgress, AttemptSpec, read_evaluations
from research.runs.wandb_log import READ_AGAIN_S, TrackedRun, TrainingMonitor
from studies.checks.alarms import DEFAULT_WATCHDOG
from studies.checks.conditions import CollectError
from studies.metrics import Asked
from studies.metrics.builtin import Transfer
from studies.records.procedure import Watchdog
from studies.records.runs import MODEL_CHANGED, TRAINING_NAN, AttemptFailed
from swarm.wire import AwaitedAdvantages, ServerState, Status
from tests.research.factories import edit, make_order, with_run, with_schedule
from tests.research.model_folders import model_at
from tests.research.runs.fake_attempt import FakeAttempt, Play, evaluate, for_ever, train

ORDER = make_order(steps=8, episodes_per_step=8, group_size=4)
SCHEDULED = with_schedule(ORDER, every=2, episodes=8)
BLOWN, CALM = ({"actor/ppo_kl": kl, "critic/rewards/mean": 0.1} for kl in (5.0, 0.01))
STRICT = {"watchdog": Watchdog(kl=1.0, patience=1)}


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("research.runs.attempt.AsyncSwarmClient", lambda server, token: server)
    monkeypatch.setattr("research.runs.attempt.POLL_S", 0.001)


@pytest.fixture
def folder(tmp_path: Path) -> AttemptFolder:
    return AttemptFolder(tmp_path / "attempt")


async def refused(attempt: Attempt, code: str) -> str:
    outcome = await attempt.run()
    assert (outcome.status, outcome.code) == ("failed", code), outcome.reason
    return outcome.reason


async def test_an_attempt_finishes_with_each_evaluation_in_its_place(folder: AttemptFolder) -> None:
    attempt = FakeAttempt(folder, SCHEDULED)
    outcome = await attempt.run()
    assert (outcome.status, outcome.code, outcome.resumed_at) == ("finished", "ok", None)
    assert attempt.started == ["evaluator-initial", "evaluator-during", "client", "evaluator-final"]
    assert set(outcome.stages) == {"boot", "initial", "train", "final", "stop"}
    assert set(outcome.files) == {f"evaluation-{name}.json" for name in ("initial", "during", "final")}
    assert [each.policy_version for each in read_evaluations(folder.evaluation("during"))] == [2, 4, 6]
    progress = AttemptProgress.model_validate(read_json(folder.progress))
    assert (progress.stage, progress.hidden_success) == ("stop", 0.5)
    assert attempt.server.asked == ["train", "stop"]


async def test_the_last_policy_plays_another_environment_where_success_there_is_asked_for(
    folder: AttemptFolder,
) -> None:
    attempt = FakeAttempt(folder, with_run(ORDER, metric=Transfer().define(Asked("solved", 8, 16, of="arith"))))
    assert (await attempt.run()).status == "finished"
    assert attempt.started == ["evaluator-initial", "client", "evaluator-other", "evaluator-final"]


async def dies(attempt: FakeAttempt) -> int:
    attempt.server.step = 1
    return -9


async def leaves(attempt: FakeAttempt) -> int:
    return 0


async def outlives_its_server(attempt: FakeAttempt) -> int:
    attempt.server.died.set()
    return 3


@pytest.mark.parametrize(("role", "play", "code", "said"), [
    ("client", dies, "client_died", "its last words"), ("client", leaves, "client_stopped", "step 0 of 8"),
    ("initial", dies, "evaluator_died", "its last words"), ("during", dies, "evaluator_died", "its last words"),
    ("final", dies, "evaluator_died", "its last words"), ("final", leaves, "evaluator_failed", "evaluation-final.json"),
    ("client", outlives_its_server, "server_died", "killed by signal 9"),  # of which its client dies
])  # fmt: skip
async def test_what_ends_before_its_work_is_done_fails_the_attempt_by_its_name(
    folder: AttemptFolder, role: str, play: Play, code: str, said: str
) -> None:
    attempt = FakeAttempt(folder, SCHEDULED, **{role: play})
    assert said in await refused(attempt, code)
    assert attempt.playing == 0  # nothing is left running


@pytest.mark.parametrize("busy", [False, True])
async def test_a_training_that_breaks_down_is_told_as_such_though_its_client_dies_of_it_unseen_by_the_watch(
    folder: AttemptFolder, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    async def play(attempt: FakeAttempt) -> int:
        attempt.server.facts = {"state": ServerState.FAILED, "not_finite": True, "reason": "no loss", "step": 2}
        return 3

    async def take(self: Attempt, status: Status) -> None:
        """Read a log for longer than a client takes to die."""
        if status.step:
            await asyncio.Event().wait()

    if busy:
        monkeypatch.setattr(Attempt, "_handle_status", take)
    attempt = FakeAttempt(folder, ORDER, client=play)
    assert "no loss" in await refused(attempt, TRAINING_NAN)
    assert attempt.server.asked[-1] == "stop"  # so that its log is whole


async def test_an_evaluation_of_which_nothing_ends_fails_the_attempt_by_its_name(folder: AttemptFolder) -> None:
    async def hangs(attempt: FakeAttempt) -> int:
        await attempt.server.reach(4)
        attempt.server.facts = {"awaited_evaluations": 5}
        return await for_ever(attempt)

    async def play(attempt: FakeAttempt) -> int:
        attempt.server.step = 4
        return await for_ever(attempt)

    order = SCHEDULED.model_copy(update={"play_s": 5.0})
    attempt = FakeAttempt(folder, order, during=hangs, client=play)
    attempt._training = TrainingMonitor(folder, order, now=partial(next, count()))
    reason = await refused(attempt, "evaluator_timeout")
    assert ("step 4" in reason, "10 s" in reason) == (True, True)


async def test_a_training_that_a_rule_stops_is_evaluated_once_no_update_is_in_progress(folder: AttemptFolder) -> None:
    order, looks = SCHEDULED.model_copy(update=STRICT), 0

    async def play(attempt: FakeAttempt) -> int:
        attempt.server.step, attempt.server.facts = 2, {"metrics": BLOWN, "updating": True}
        return await for_ever(attempt)

    async def final(attempt: FakeAttempt) -> int:
        assert not attempt.server.facts["updating"]
        return await evaluate("evaluator-final")(attempt)

    attempt = FakeAttempt(folder, order, client=play, final=final)
    status = attempt.server.status

    async def learned_after_a_while() -> Status:
        nonlocal looks
        looks += attempt.server.step
        attempt.server.facts |= {"updating": looks < 20}
        return await status()

    attempt.server.status = learned_after_a_while  # type: ignore[method-assign]
    attempt._training = TrainingMonitor(folder, order, Log(BLOWN, BLOWN))
    outcome = await attempt.run()
    assert (outcome.status, outcome.stopped_by) == ("finished", "kl_blow_up"), outcome.reason
    assert attempt.playing == 0


async def test_a_client_that_a_rule_stops_first_answers_the_batch_that_waits_for_its_advantages(
    folder: AttemptFolder,
) -> None:
    order, asked = with_run(make_order().model_copy(update=STRICT), slots={"advantage": "= reward"}), list[int]()

    async def play(attempt: FakeAttempt) -> int:
        attempt.server.step, attempt.server.facts = 2, {"metrics": BLOWN}
        return await for_ever(attempt)

    async def advantages() -> AwaitedAdvantages:
        asked.append(attempt.playing)
        return AwaitedAdvantages(rewards=(1.0,) if len(asked) < 3 else ())

    attempt = FakeAttempt(folder, order, client=play)
    attempt.server.advantages = advantages  # type: ignore[attr-defined]
    attempt._training = TrainingMonitor(folder, order, Log(BLOWN, BLOWN))
    outcome = await attempt.run()
    assert (outcome.status, outcome.stopped_by, asked) == ("finished", "kl_blow_up", [1, 1, 1]), outcome.reason


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def resumed(folder: AttemptFolder) -> AttemptSpec:
    """An order that goes on with an attempt whose training was at step 5 and evaluated at 2 and 4."""
    first = FakeAttempt(AttemptFolder(folder.path.parent / "first"), SCHEDULED, step=0)
    asyncio.run(first.run())
    write_json(folder.evaluation("initial"), read_json(first.folder.evaluation("initial")))
    write_json(folder.kept, read_json(first.folder.evaluation("during")))
    initial, kept = sha256(folder.evaluation("initial")), sha256(folder.kept)
    return SCHEDULED.model_copy(update={"initial_sha256": initial, "during_sha256": kept, "resumes": 1})


@pytest.mark.parametrize(("step", "kept"), [(8, 3), (5, 2), (4, 1), (2, 0)])
async def test_an_attempt_that_goes_on_keeps_the_evaluations_before_its_step_and_plays_the_others_again(
    folder: AttemptFolder, resumed: AttemptSpec, step: int, kept: int
) -> None:
    edit(folder.kept, lambda value: [each["episodes"][0].update(reward=0.25) for each in value["evaluations"]])
    before = folder.evaluation("initial").read_bytes()
    attempt = FakeAttempt(folder, resumed.model_copy(update={"during_sha256": sha256(folder.kept)}), step=step)
    outcome = await attempt.run()
    assert (outcome.status, outcome.resumed_at, "initial" in outcome.stages) == ("finished", step, False)
    assert attempt.started == ["evaluator-during", "client", "evaluator-final"]
    assert folder.evaluation("initial").read_bytes() == before
    found = read_evaluations(folder.evaluation("during"))
    assert [each.policy_version for each in found] == [2, 4, 6]
    assert [each.episodes[0].reward == 0.25 for each in found] == [True] * kept + [False] * (3 - kept)


async def test_a_training_that_a_rule_stopped_stays_stopped(folder: AttemptFolder, resumed: AttemptSpec) -> None:
    order = resumed.model_copy(update=STRICT)
    attempt = FakeAttempt(folder, order, step=5)
    attempt._training = TrainingMonitor(folder, order, Log(*[BLOWN] * 5))
    outcome = await attempt.run()
    assert (outcome.status, outcome.stopped_by, outcome.resumed_at) == ("finished", "kl_blow_up", 5), outcome.reason
    assert (attempt.started, attempt.server.step) == (["evaluator-final"], 5)  # no step was added


@pytest.mark.parametrize(
    ("file", "code"),
    [("initial", "evaluation_unreadable"), ("kept", "evaluation_unreadable"), ("lost", "evaluation_incomplete")],
)
async def test_an_attempt_does_not_go_on_with_evaluations_that_were_changed_or_are_gone(
    folder: AttemptFolder, resumed: AttemptSpec, file: str, code: str
) -> None:
    path = folder.evaluation("initial") if file == "initial" else folder.kept
    path.write_text(path.read_text().replace("true", "false"))
    if file == "lost":
        edit(path, lambda value: value["evaluations"].pop(0))
        resumed = resumed.model_copy(update={"during_sha256": sha256(path)})
    attempt = FakeAttempt(folder, resumed, step=5)
    await refused(attempt, code)
    assert attempt.started == []


def run_main(folder: AttemptFolder, monkeypatch: pytest.MonkeyPatch, order: dict[str, str] | None = None) -> int:
    write_json(folder.spec, order or ORDER.model_dump(mode="json"))
    monkeypatch.setattr(sys, "argv", ["attempt", str(folder.path)])
    return main()


def test_whoever_is_told_to_end_again_and_again_ends_all_that_plays_and_leaves_no_outcome(
    folder: AttemptFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[FakeAttempt] = []

    async def play(attempt: FakeAttempt) -> int:
        made.append(attempt)
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            return await for_ever(attempt)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.01)

    monkeypatch.setattr("research.runs.attempt.Attempt", partial(FakeAttempt, client=play))
    assert run_main(folder, monkeypatch) == 128 + signal.SIGTERM
    assert made[0].playing == 0
    assert not folder.outcome.exists()


@pytest.mark.parametrize(("client", "code"), [(train, 0), (dies, 1)])
def test_the_outcome_of_an_attempt_is_written_and_told_by_its_exit_code(
    folder: AttemptFolder, monkeypatch: pytest.MonkeyPatch, client: Play, code: int
) -> None:
    monkeypatch.setattr("research.runs.attempt.Attempt", partial(FakeAttempt, client=client))
    assert run_main(folder, monkeypatch) == code
    assert (AttemptOutcome.model_validate(read_json(folder.outcome)).status == "finished") == (code == 0)


def test_an_order_that_is_none_is_refused_in_one_line(
    folder: AttemptFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(folder, monkeypatch, {"study": "s1"}) == 2
    assert str(folder.spec) in capsys.readouterr().err
    assert not folder.outcome.exists()


@pytest.mark.parametrize(
    ("script", "how"), [("echo another server runs >&2; exit 2", "exit code 2"), ("kill -KILL $$", "signal 9")]
)
async def test_a_server_that_cannot_start_is_a_failed_boot_with_its_last_words(
    folder: AttemptFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, how: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o700)
    monkeypatch.setattr("research.runs.attempt.python_of", lambda backend: str(python))
    reason = await refused(Attempt(folder, ORDER), "boot_failed")
    assert (how in reason, "another server runs" in reason) == (True, "echo" in script)


async def test_an_attempt_at_a_run_with_code_starts_nothing_without_containers(folder: AttemptFolder) -> None:
    with pytest.raises(NotReady):
        await Attempt(folder, with_run(ORDER, code="def reward(): ...")).run()
    assert not folder.log("server").exists()


async def test_an_attempt_trains_no_model_that_changed_since_it_was_named(
    folder: AttemptFolder, tmp_path: Path
) -> None:
    model = model_folder(str(model_at(tmp_path / "model")))
    job = {**ORDER.spec.job, "model": model.model_dump(mode="json")}
    model_at(tmp_path / "model", b"others")
    order = with_run(make_order(models=str(tmp_path / "models")), job=job)
    assert "changed" in await refused(Attempt(folder, order), MODEL_CHANGED)
    assert not folder.server.exists()


class Log:
    def __init__(self, *rows: dict[str, float]) -> None:
        self.history = {step: dict(row) for step, row in enumerate(rows, 1)}
        self.reads = 0

    def __call__(self, directory: Path, run_id: str) -> TrackedRun:
        self.reads += 1
        if not self.history:
            raise CollectError("tracking_unreadable", "it is being written")
        return TrackedRun("ajet", "s1", run_id, {}, self.history)


def watch(log: Log) -> tuple[TrainingMonitor, SimpleNamespace]:
    """Return a monitor by the usual limits, and its clock."""
    clock = SimpleNamespace(now=0.0)
    order: AttemptSpec = make_order().model_copy(update={"watchdog": DEFAULT_WATCHDOG})
    return TrainingMonitor(AttemptFolder(Path("nowhere")), order, log, lambda: clock.now), clock


def heard(watching: TrainingMonitor, *rows: dict[str, float], first: int = 1) -> None:
    async def hear() -> None:
        for step, metrics in enumerate(rows, first):
            await watching.update(Status(state=ServerState.ROLLING, step=step, metrics=metrics))

    asyncio.run(hear())


@pytest.mark.parametrize("log", [Log(CALM, BLOWN, CALM, BLOWN), Log()])
def test_what_the_log_does_not_show_stops_nothing_and_is_looked_up_again_after_a_while(log: Log) -> None:
    watching, clock = watch(log)
    heard(watching, BLOWN, BLOWN, BLOWN, BLOWN)
    assert watching.alarm is None
    assert log.reads == 1
    log.history = dict.fromkeys(range(1, 6), BLOWN)
    clock.now = READ_AGAIN_S
    heard(watching, BLOWN, first=5)
    assert watching.alarm is not None
    assert log.reads == 2


def test_a_suspicion_that_the_log_refutes_is_not_looked_up_again_until_there_is_another() -> None:
    watching, clock = watch(log := Log(*[CALM] * 3))
    heard(watching, BLOWN, BLOWN, BLOWN, CALM)
    for step in (5, 6):
        clock.now += READ_AGAIN_S
        heard(watching, CALM, first=step)
    assert (watching.alarm, log.reads) == (None, 1)
    clock.now += READ_AGAIN_S
    log.history |= dict.fromkeys(range(4, 10), BLOWN)
    heard(watching, BLOWN, BLOWN, BLOWN, first=7)
    assert watching.alarm is not None
    assert log.reads == 2


def test_a_log_that_lacks_earlier_steps_is_waited_for_and_then_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    watching, clock = watch(log := Log(CALM))

    async def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr("research.runs.wandb_log.asyncio.sleep", sleep)
    with pytest.raises(AttemptFailed, match=r"expected 4 steps .*found 1"):
        asyncio.run(watching.load_history(5))
    assert log.reads > 100
