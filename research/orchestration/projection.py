"""What a study shows at Prefect: rows, log lines, artifacts and the approval form.

A thread finds or starts the server and refreshes the session's flow run every few seconds: it reads the run's state and
the study's log, reconciles both and publishes what is new. A user's action becomes an event of the log, as with the
command line. A study never waits for Prefect or fails with it: errors are one line and are retried; only a study that
is over waits, for a bounded time, to show its end.

A question for approval is a paused flow run with a key that follows from the question, so there is one form for it. Its
fields are filled with `wait`: Resume without reading answers nothing.

Import only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self
from uuid import UUID, uuid4

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import FlowRunCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Paused
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from research.controller.interventions import MOST_NOTE, answer_question, request_continue, request_pause, request_stop
from research.controller.progress import StudyProgress, progress_lines, progress_of
from research.errors import BadApproval
from research.files import ignore_disk_full, read_json, write_json
from research.installation.home import Home, attempt_in
from research.orchestration.artifacts import DESCRIPTIONS, LiveCurves, StudyArtifact, build_artifacts
from research.orchestration.prefect_api import (
    BEAT_S,
    LASTS_S,
    Activity,
    FlowRun,
    FlowRunGone,
    UserAction,
    action_reason,
    activity,
    close_abandoned,
    describe_end,
    reconcile,
)
from research.orchestration.server import PrefectServer, PrefectUnavailable, client_environment, ensure_server
from research.orchestration.task_rows import (
    TaskRow,
    TrainingLine,
    attempt_key,
    build_rows,
    cancel_row,
    end_row,
    find_tracking_log,
    outcome_lines,
    state_lines,
    tracking_lines,
    training_lines,
)
from research.runs.files import AttemptFolder, read_progress
from research.scheduler.approvals import describe_cost, how_to_answer
from studies import EventLog, RunState, StudyLog, StudyState
from studies.log.study import ApprovalAnswer, AttemptState, LoggedApprovalRequest

_FLOW: Final = "ajet approval"
_KEYS: Final = {"schema": "approval-schema", "response": "approval-response", "description": "approval-description"}


class ApprovalForm(BaseModel):
    """What the form has for fields."""

    model_config = ConfigDict(title="Approval")

    answer: Literal["wait", "approve", "deny"] = Field(
        default="wait", description="deny stops the study; wait leaves the question open."
    )
    note: str = Field(default="", max_length=MOST_NOTE, description="For the report; may stay empty.")


class ApprovalForms:
    """The forms of one study's questions on one server. Every call raises what Prefect's client raises."""

    def __init__(self, client: SyncPrefectClient, record: StudyLog) -> None:
        self._client = client
        self._record = record
        self._closed: set[str] = set()

    def refresh(self, state: StudyState) -> None:
        """Have the form of the open question up, take the answer that was given in it, and close what is answered."""
        if (asked := state.open_question) is not None:
            form = self.ask(state, asked)
            if (given := self.read_answer(form)) is not None:
                with suppress(BadApproval):  # somebody was faster elsewhere; the form is closed with that answer
                    answer_question(
                        self._record, asked.digest, "Prefect", given.note, granted=given.answer == "approve"
                    )
        self.close_answered(self._record.state())

    def close_answered(self, state: StudyState) -> None:
        still_open = None if state.open_question is None else state.open_question.digest
        answers = {given.asked.digest: given for given in state.approvals}
        for asked in state.questions:
            if asked.digest != still_open and asked.digest not in self._closed:
                for form in self._forms_of(asked):
                    self.close(form, answers.get(asked.digest))
                self._closed.add(asked.digest)

    def ask(self, state: StudyState, asked: LoggedApprovalRequest) -> UUID:
        form, status = self._find_or_create(asked)
        if status is None:
            self._store(form, "schema", json.dumps(ApprovalForm.model_json_schema()))
            self._store(form, "description", json.dumps(_describe_question(state, asked)))
            self._open_form(form)
        return form

    def read_answer(self, form: UUID) -> ApprovalForm | None:
        """Return what was answered in a form; None while that is nothing, whatever else was done to it."""
        state = self._client.read_flow_run(form).state
        if state is not None and state.is_paused():
            return None
        given = self._read_response(form)  # stored together with the state that Resume sets
        if given is not None and given.answer != "wait":
            return given
        with suppress(PrefectHTTPStatusError):
            self._client.delete_flow_run_input(form, key=_KEYS["response"])
        self._open_form(form)
        return None

    def close(self, form: UUID, given: ApprovalAnswer | None) -> None:
        if given is None:
            last = State[Any](type=StateType.CANCELLED, name="Not needed", message="it is not asked any more")
        else:
            note = f" ({given.note})" if given.note else ""
            kind, name = (StateType.COMPLETED, "Approved") if given.granted else (StateType.CANCELLED, "Denied")
            last = State[Any](type=kind, name=name, message=f"{given.describe()}{note}")
        self._client.set_flow_run_state(form, last, force=True)

    def _find_or_create(self, asked: LoggedApprovalRequest) -> tuple[UUID, object]:
        """Return the form's flow run and its state, which is None where it was made just now, or left half made."""
        flow = self._client.create_flow_from_name(_FLOW)
        question = asked.question
        wanted = FlowRunCreate(
            name=f"{question.study}: approve {question.stage}?", flow_id=flow, tags=["approval", question.study],
            idempotency_key=_key(asked),
        )  # fmt: skip
        made = self._client.request("POST", "/flow_runs/", json=wanted.model_dump(mode="json", exclude_unset=True))
        found = made.raise_for_status().json()
        status = found["state"]
        return UUID(found["id"]), None if status is None or status["type"] == "PENDING" else status

    def _forms_of(self, asked: LoggedApprovalRequest) -> list[UUID]:
        by_key = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=[_key(asked)]))
        found = self._client.read_flow_runs(flow_run_filter=by_key)
        return [run.id for run in found if run.state is None or not run.state.is_final()]

    def _open_form(self, form: UUID) -> None:
        waiting: State[Any] = Paused(timeout_seconds=LASTS_S, reschedule=False, message="waits for your answer")
        waiting.state_details.run_input_keyset = _KEYS
        self._client.set_flow_run_state(form, waiting, force=True)

    def _store(self, form: UUID, what: str, value: str) -> None:
        try:
            self._client.create_flow_run_input(form, key=_KEYS[what], value=value)
        except PrefectHTTPStatusError as error:
            if error.response.status_code != HTTPStatus.CONFLICT:  # there already
                raise

    def _read_response(self, form: UUID) -> ApprovalForm | None:
        try:
            raw = self._client.read_flow_run_input(form, key=_KEYS["response"])
        except PrefectHTTPStatusError as error:
            if error.response.status_code == HTTPStatus.NOT_FOUND:
                return None
            raise
        try:
            return ApprovalForm.model_validate_json(raw)
        except ValidationError:  # whoever writes to the server by other means than the form
            return None


def _key(asked: LoggedApprovalRequest) -> str:
    return f"{asked.question.study}/{asked.digest}"


def _describe_question(state: StudyState, asked: LoggedApprovalRequest) -> str:
    topic = " ".join(state.topic.split()).replace("`", "'")
    return (
        f"The study `{state.id}` asks to begin **{asked.question.would}**: {describe_cost(asked)}.\n\n"
        f"Asked: `{topic}`\n\nChoose `approve` or `deny` and press *Resume*. The study's controller takes the answer "
        f"within seconds; where none works on it, the next one does (`ajet study resume {state.id}`). In a terminal: "
        f"{how_to_answer(state)}\n"
    )


REDRAW_S: Final = 30.0
"""Least seconds between two drawings of a study that is under way: each takes half a second."""


class Projection:
    """Publishes to the flow run of a session that began at `since`; `folder` is the study's."""

    def __init__(self, flow_run: FlowRun, since: StudyState, folder: Path) -> None:
        self._flow_run = flow_run
        self._since = since
        self._folder = folder
        self._state: StudyState | None = None
        self._rows: dict[str, TaskRow] = {}
        self._artifacts = _ArtifactPublisher(flow_run, since.id)
        self._curves = LiveCurves(folder)
        self._trainings = _TrainingLogs(flow_run, since, folder, self._curves)
        self._redrawn = -REDRAW_S
        self._told = {key for key, _ in (progress_lines(since) if since.resumed_count else ())}

    def update(self, state: StudyState, *, over: bool = False) -> None:
        """Publish what is new; once the session is `over`, no row stays open."""
        if over or state is not self._state or self._flow_run.task_runs.needs_resend:
            self._put_rows(state, over)
            self._publish(state)
            self._log(state)
        if self._trainings.update(state):
            self._publish(state)
        self._draw(state, at_once=over)
        self._state = state

    def _put_rows(self, state: StudyState, over: bool) -> None:
        now = {row.key: end_row(row, state.last_ts) if over else row for row in build_rows(state, self._since)}
        for key, row in self._rows.items():
            if key not in now:
                now[key] = cancel_row(row, state.last_ts) if row.open else row
        self._flow_run.task_runs.put(now.values())
        self._rows = now
        self._trainings.write((row.key, line) for row in now.values() for line in state_lines(row))

    def _publish(self, state: StudyState) -> None:
        self._artifacts.publish_progress(progress_of(state))
        for artifact in build_artifacts(state, self._folder, self._trainings.find_log):
            self._artifacts.publish(artifact)

    def _draw(self, state: StudyState, at_once: bool) -> None:
        now = time.monotonic()
        if not at_once and now - self._redrawn < REDRAW_S:
            return
        self._curves.read(state)
        version = self._curves.version(state)
        if any(version):
            draw = StudyArtifact("curves", "markdown", version, lambda: self._curves.markdown(state), replaces=True)
            self._artifacts.publish(draw)
            self._redrawn = now

    def _log(self, state: StudyState) -> None:
        lines = {key: line for key, line in progress_lines(state) if key not in self._told}
        if lines:
            self._flow_run.log(lines.values())
            self._told |= lines.keys()


class _ArtifactPublisher:
    """The artifacts of a study, named as Prefect allows; one that did not change is not published again."""

    def __init__(self, flow_run: FlowRun, study: str) -> None:
        self._flow_run = flow_run
        self._study = study.lower().replace("_", "-")
        self._versions: dict[str, Hashable] = {}
        self._shown: dict[str, UUID] = {}

    def publish(self, artifact: StudyArtifact) -> None:
        if self._versions.get(artifact.name) != artifact.version:
            before = self._shown.get(artifact.name) if artifact.replaces else None
            self._show(artifact.name, artifact.type, artifact.make(), DESCRIPTIONS[artifact.name], before)
            self._versions[artifact.name] = artifact.version

    def publish_progress(self, now: StudyProgress) -> None:
        if self._versions.get("progress") != now:
            self._show("progress", "progress", now.percent, str(now), self._shown.get("progress"))
            self._versions["progress"] = now

    def _show(self, name: str, type: str, data: object, description: str, before: UUID | None) -> None:
        key = f"{self._study}-{name}"
        self._shown[name] = self._flow_run.publish(key, type, data, description, before)


class _TrainingLogs:
    """Tells of each attempt of a session what its own files say of its progress, each line once."""

    def __init__(self, flow_run: FlowRun, since: StudyState, folder: Path, curves: LiveCurves) -> None:
        self._flow_run = flow_run
        self._folder = folder
        self._curves = curves
        self._over = {
            (attempt.name, attempt.url) for _, _, attempt in _attempts_of(since) if attempt.status is not None
        }
        """Attempts of which nothing more is told, unless they get another page at W&B."""
        self._open: list[tuple[int, RunState, AttemptState]] = []
        self._told: set[tuple[str, str]] = set()
        self._logs: dict[str, str | None] = {}
        self._state: StudyState | None = None

    def update(self, state: StudyState) -> bool:
        """Tell what is new of attempts that run or just ended; return whether the W&B log of one was found."""
        known = len(self._logs)
        if state is not self._state:
            self._open = [one for one in _attempts_of(state) if (one[2].name, one[2].url) not in self._over]
            self._state = state
        self.write(line for one in self._open for line in self._lines(*one))
        self._over |= {(attempt.name, attempt.url) for _, _, attempt in self._open if attempt.status is not None}
        self._open = [one for one in self._open if one[2].status is None]
        return len(self._logs) > known

    def write(self, lines: Iterable[tuple[str, TrainingLine]]) -> None:
        new = {(key, line.key): (key, line) for key, line in lines if (key, line.key) not in self._told}
        if new:
            self._flow_run.task_runs.log(new.values())
            self._told |= new.keys()

    def find_log(self, run: RunState, attempt: AttemptState) -> str | None:
        """Return where the W&B log of an attempt is; looked up until it is found, or the attempt is over."""
        if attempt.name not in self._logs:
            found = find_tracking_log(self._files(run, attempt), self._folder)
            if found is None and attempt.status is None:
                return None
            self._logs[attempt.name] = found
        return self._logs[attempt.name]

    def _lines(self, round: int, run: RunState, attempt: AttemptState) -> Iterator[tuple[str, TrainingLine]]:
        folder, key = self._files(run, attempt), attempt_key(run, attempt.number, round)
        progress = read_progress(folder)
        if progress is not None:
            self._curves.add_progress(run.run_id, attempt.number, progress)
            yield from ((key, line) for line in training_lines(attempt, progress))
        yield from ((key, line) for line in tracking_lines(attempt, self.find_log(run, attempt)))
        if attempt.status is not None:
            yield from ((key, line) for line in outcome_lines(attempt, folder))

    def _files(self, run: RunState, attempt: AttemptState) -> AttemptFolder:
        return AttemptFolder(attempt_in(self._folder, run.run_id, attempt.number))


def _attempts_of(state: StudyState) -> Iterator[tuple[int, RunState, AttemptState]]:
    for entry in state.every_round:
        yield from ((entry.round, run, attempt) for run in entry.runs.values() for attempt in run.attempts)


@dataclass(slots=True)
class _ProjectedRun:
    flow_run: FlowRun
    projection: Projection
    agreed: Activity = Activity.RUNNING


class ControllerSession:
    """The flow run of the session that began at `since`. Every call raises what Prefect's client raises."""

    def __init__(
        self, home: Home, log: EventLog, since: StudyState, client: SyncPrefectClient, taken: UUID | None = None
    ) -> None:
        """`taken` is the flow run that a worker started this process for; else, or once it is gone, one is made."""
        self._home = home
        self._log = log
        self._since = since
        self._client = client
        self._study = StudyLog(log, since.id)
        self._forms = ApprovalForms(client, self._study)
        self._note = home.study(since.id) / "prefect.json"
        self._key = uuid4()
        self._taken = taken
        self._beaten = -math.inf
        self._shown: _ProjectedRun | None = None

    def refresh(self, notes: list[str] | None = None) -> None:
        """Carry out clicks since the last refresh and publish what is new; lines that were told leave `notes`."""
        self._with_flow_run(lambda shown: self._refresh(shown, [] if notes is None else notes))

    def close(self, error: BaseException | None) -> None:
        """Publish how the session ended; its flow run is ended even where something else cannot be published."""

        def publish(shown: _ProjectedRun) -> None:
            state = self._study.state()
            shown.flow_run.read_state()  # one that is gone is noticed before anything is published
            try:
                shown.projection.update(state, over=True)
                self._forms.close_answered(state)
            finally:
                shown.flow_run.end(describe_end(state, error))

        self._with_flow_run(publish)
        shown = self._shown  # the note may be a later session's
        if shown is not None and _read_open_flow_run(self._note) == str(shown.flow_run.id):
            self._note.unlink(missing_ok=True)

    def _refresh(self, shown: _ProjectedRun, notes: list[str]) -> None:
        """Set the flow run's state before the study's, so that the least time is left for a click in between."""
        state = self._study.state()
        found = shown.flow_run.read_state()
        both = reconcile(shown.agreed, found.action, activity(state))
        if both.ask is not UserAction.STOP and found.shows is not both.activity:
            shown.flow_run.show(both.activity, state.paused_reason or action_reason(UserAction.PAUSE))
        match both.ask:
            case UserAction.STOP:
                request_stop(self._home, self._log, self._since.id, action_reason(both.ask))
            case UserAction.PAUSE:
                request_pause(self._log, self._since.id, action_reason(both.ask))
            case UserAction.CONTINUE:
                request_continue(self._log, self._since.id)
        shown.agreed = both.activity
        if (now := time.monotonic()) - self._beaten >= BEAT_S:
            shown.flow_run.send_heartbeat()
            self._beaten = now
        if told := len(notes):  # more may come meanwhile
            shown.flow_run.log(notes[:told])
            del notes[:told]
        self._forms.refresh(self._study.state())
        shown.projection.update(self._study.state())

    def _with_flow_run(self, do: Callable[[_ProjectedRun], None]) -> None:
        try:
            self._shown = self._shown or self._begin()
            do(self._shown)
        except FlowRunGone:
            self._taken = None  # one of our own follows
            self._shown = self._begin()
            do(self._shown)

    def _begin(self) -> _ProjectedRun:
        study, taken = self._since, self._taken
        if (earlier := _read_open_flow_run(self._note)) is not None and earlier != str(taken):
            close_abandoned(self._client, earlier)
        if taken is not None:
            flow_run = FlowRun.adopt(self._client, taken, study.id, study.topic)
        else:
            flow_run = FlowRun.begin(self._client, self._home, study.id, study.topic, str(self._key))
        write_json(self._note, {"flow_run": str(flow_run.id)})
        return _ProjectedRun(flow_run, Projection(flow_run, study, self._home.study(study.id)))


def _read_open_flow_run(path: Path) -> str | None:
    try:
        note = read_json(path)
    except ValueError:
        return None
    return note.get("flow_run") if isinstance(note, dict) else None


REFRESH_S = 2.0
"""Seconds between two refreshes: what is clicked is carried out after so many."""
_AGAIN_S = 10.0
"""Seconds between two tries of a server that is gone."""
_RARELY_S = 600.0
"""The same, at most, of one that was never there."""
_LEAVING_S = 5.0
"""Most seconds that a study which is left at once waits until that is shown."""
_CLOSING_S = 30.0
"""The same for one that is over."""

Say = Callable[[str], None]
"""Takes one line for whoever watches."""


class PrefectView:
    """Shows one session of a study, which begins at `since`, from entering to leaving; `url` is where, once known."""

    def __init__(self, home: Home, since: StudyState, say: Say, warn: Say, taken: UUID | None = None) -> None:
        """`say` takes where it is shown, `warn` that it is not; `taken` is a flow run as in ControllerSession."""
        self.url: str | None = None
        self.own = False
        """Whether the server is one that `ajet up --stop` ends."""
        self._home = home
        self._since = since
        self._say = ignore_disk_full(say)
        self._warn = ignore_disk_full(warn)
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._taken = taken
        self._lost = False
        self._notes: list[str] = []
        self._thread = threading.Thread(target=self._work, name="prefect-view", daemon=True)

    def observe(self, state: StudyState) -> None:
        """Take the state after a tick; what is shown is read from the log instead."""

    def note(self, line: str) -> None:
        self._notes.append(line)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._error = error
        self._over.set()
        leaving = error is not None and not isinstance(error, Exception)
        with suppress(KeyboardInterrupt):  # whoever waits no longer is not kept
            self._thread.join(_LEAVING_S)
            if self._thread.is_alive() and not leaving:
                self._say("waiting for Prefect to show how the study ended")
                self._thread.join(_CLOSING_S - _LEAVING_S)

    def _work(self) -> None:
        try:
            if (server := self._server()) is not None:
                self._show(server)
        except Exception as error:  # noqa: BLE001 - what starts or connects may raise anything, and ends the view only
            self._warn(f"Prefect's view ended ({type(error).__name__}: {error}); the study goes on without it")

    def _server(self) -> PrefectServer | None:
        """Return a server as soon as there is one; say once why there is none; None where the study ended before."""
        again_s = _AGAIN_S
        while True:
            try:
                return ensure_server(self._home.prefect)
            except (PrefectUnavailable, OSError) as error:  # a full disk, say, has room again
                if again_s == _AGAIN_S:
                    self._warn(f"{error}; the study goes on without Prefect's view, which is tried again")
            if self._over.wait(again_s):
                return None
            again_s = min(2 * again_s, _RARELY_S)  # one that does not come up costs two minutes of a core

    def _show(self, server: PrefectServer) -> None:
        self.url, self.own = server.url, server.password is not None
        self._say(server.line)
        os.environ.update(client_environment(self._home.prefect))
        from research.orchestration.prefect_api import connect  # Prefect reads its settings at import

        with connect(server.api) as client, closing(EventLog(self._home.database)) as log:
            session = ControllerSession(self._home, log, self._since, client, self._taken)
            self._try(lambda: session.refresh(self._notes))
            while not self._over.wait(_AGAIN_S if self._lost else REFRESH_S):
                self._try(lambda: session.refresh(self._notes))
            self._try(lambda: session.close(self._error))

    def _try(self, look: Callable[[], None]) -> None:
        try:
            look()
        except Exception as error:  # noqa: BLE001 - a client's errors are many; none may end what it only shows
            if not self._lost:
                why = " ".join(f"{type(error).__name__}: {error}".split())
                self._warn(f"Prefect's view is interrupted ({why}); the study goes on without it")
            self._lost = True
        else:
            if self._lost:
                self._warn("Prefect's view is back")
            self._lost = False
