"""What a study shows at Prefect: rows, log lines, artifacts (progress, verdicts, links), its question's form.

A thread finds or starts the server and refreshes the study's flow run every few seconds: it reads the run's state and
the study's log, reconciles both and publishes what is new. A study never waits for Prefect or fails with it: errors are
one line and are retried; only a study that is over waits, for a bounded time, to show its end. A flow run that
Prefect's engine executes is ended by its own process (`research.orchestration.flow`), one of a terminal's study here.

Import only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple

from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound
from prefect.states import Running

from research.controller.interventions import answer_question, request_continue, request_pause, request_stop
from research.controller.progress import progress_lines, progress_of
from research.errors import BadInput
from research.installation.home import Home, attempt_in
from research.orchestration import prefect_api, task_rows
from research.orchestration.supervision import pages_address
from research.runs.files import AttemptFolder, read_progress
from research.scheduler.approvals import describe_cost, how_to_answer
from studies import EventLog, RunState, StudyLog, StudyState
from studies.log.entries import AttemptState


class StudyArtifact(NamedTuple):
    """What is published under `name` when it is another than before."""

    name: str
    type: Literal["markdown", "table", "progress"]
    data: str | float
    description: str
    """Prefect shows it above."""


def build_artifacts(state: StudyState, pages: str = "") -> Iterator[StudyArtifact]:
    """Yield what there is to show of a study; `pages` is the address of its page."""
    progress = progress_of(state)
    yield StudyArtifact("progress", "progress", progress.percent, str(progress))
    links = f"- Pages: {f'[{pages}]({pages})' if pages else '`ajet ui`'}\n- Plan: `ajet study show {state.id}`\n"
    if state.report is not None:
        links += f"- Report: `ajet study report {state.id}`\n"
    read_on = "Where the plan, the curves and the report are read, and the study is reviewed, signed and steered."
    yield StudyArtifact("links", "markdown", links, read_on)
    rows = [
        ({} if state.most_rounds == 1 else {"round": each.round}) | {name: getattr(verdict, name) for name in _COLUMNS}
        for each in state.rounds
        for verdict in (*each.interim, *each.verdicts, *each.replications)
    ]
    if rows:
        short = [{key: f"{cell:.4g}" if isinstance(cell, float) else cell for key, cell in row.items()} for row in rows]
        judged = "What the data say about each hypothesis, computed by code under the locked design, look by look."
        yield StudyArtifact("verdicts", "table", json.dumps(short), judged)


_COLUMNS: Final = (
    "hypothesis", "phase", "look", "verdict", "final", "estimate", "low", "high", "level", "p", "p_adjusted",
    "n_control", "n_treatment", "test", "reason",
)  # fmt: skip
"""Of the table of verdicts."""


def question_of(state: StudyState) -> prefect_api.Question | None:
    """Return what a study asks a person; None for nothing."""
    if (request := state.open_question) is None:
        return None
    topic = " ".join(state.topic.split()).replace("`", "'")
    text = (
        f"The study `{state.id}` asks to begin **{request.question.would}**: {describe_cost(request)}.\n\n"
        f"Asked: `{topic}`\n\nChoose `approve` or `deny` and press *Resume*. The study's controller takes the answer "
        f"within seconds; where none works on it, the next one does (`ajet study resume {state.id}`). In a terminal: "
        f"{how_to_answer(state)}\n"
    )
    return prefect_api.Question(request.digest, text)


def take_answer(flow_run: prefect_api.FlowRun, record: StudyLog) -> None:
    """Write the answer that was given in the form of a study's question into its log; the first one counts."""
    if (question := question_of(record.state())) is None:
        return
    if (answer := flow_run.read_answer(question)) is not None:
        with suppress(BadInput):  # somebody was faster elsewhere
            answer_question(record, question.digest, "Prefect", answer.note, granted=answer.answer == "approve")


class Projection:
    """Publishes to the flow run of a study in a session that began as of `begun`; `folder` is the study's.

    `told` says that an earlier session published to it; `pages` where the study's page is served now.
    """

    def __init__(
        self, flow_run: prefect_api.FlowRun, begun: StudyState, folder: Path, *, told: bool,
        pages: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        self._pages = pages
        self.flow_run, self._begun, self._folder = flow_run, begun, folder
        self._state: StudyState | None = None
        self._rows: dict[str, task_rows.TaskRow] = {}
        self._artifacts: dict[str, StudyArtifact] = {}
        """What is shown by name, which is not published again."""
        self._logged = {key for key, _ in (progress_lines(begun) if begun.resumed_count else ())}
        rows = task_rows.build_rows(begun) if told else ()
        self._written = {(row.key, line.key) for row in rows for line in task_rows.state_lines(row)}
        """Lines of the rows' logs that were told."""
        self._over = {(each.name, each.url) for _, _, each in _attempts_of(begun) if each.status is not None}
        """Attempts of which nothing more is told, unless they get another page at W&B."""

    def update(self, state: StudyState, *, over: bool = False) -> None:
        """Publish what is new; once the study is `over`, no row stays open."""
        if over or state is not self._state or self.flow_run.task_runs.needs_resend:
            rows = {row.key: task_rows.reopen_row(row, self._begun) for row in task_rows.build_rows(state)}
            if over:
                why = "its flow run ended; `ajet study resume` goes on with the study"
                rows = {key: task_rows.close_row(row, state.last_ts, "Cancelled", why) for key, row in rows.items()}
            for key, row in self._rows.items():
                if key not in rows:
                    why = "the study came to need it no more"
                    rows[key] = task_rows.close_row(row, state.last_ts, "Not needed", why)
            self.flow_run.task_runs.put(rows.values())
            self._rows = rows
            self._write((row.key, line) for row in rows.values() for line in task_rows.state_lines(row))
            for artifact in build_artifacts(state, self._pages()):
                if self._artifacts.get(artifact.name) != artifact:
                    name, type, data, description = artifact
                    key = f"{self._begun.id.lower().replace('_', '-')}-{name}"
                    self.flow_run.publish(key, type, data, description)
                    self._artifacts[name] = artifact
            lines = {key: line for key, line in progress_lines(state) if key not in self._logged}
            if lines:
                self.flow_run.log(lines.values())
                self._logged |= lines.keys()
        attempts = [one for one in _attempts_of(state) if (one[2].name, one[2].url) not in self._over]
        self._write(line for one in attempts for line in self._training_lines(*one))
        self._over |= {(attempt.name, attempt.url) for _, _, attempt in attempts if attempt.status is not None}
        self._state = state

    def _write(self, lines: Iterable[tuple[str, task_rows.TrainingLine]]) -> None:
        new = {(key, line.key): (key, line) for key, line in lines if (key, line.key) not in self._written}
        if new:
            self.flow_run.task_runs.log(new.values())
            self._written |= new.keys()

    def _training_lines(
        self, round: int, run: RunState, attempt: AttemptState
    ) -> Iterator[tuple[str, task_rows.TrainingLine]]:
        folder = AttemptFolder(attempt_in(self._folder, run.run_id, attempt.number))
        lines = list(task_rows.tracking_lines(attempt, folder, self._folder))
        if (progress := read_progress(folder)) is not None:
            lines = [*task_rows.training_lines(attempt, progress), *lines]
        yield from ((task_rows.attempt_key(run, attempt.number, round), line) for line in lines)


def _attempts_of(state: StudyState) -> Iterator[tuple[int, RunState, AttemptState]]:
    for entry in state.every_round:
        yield from ((entry.round, run, attempt) for run in entry.all_runs.values() for attempt in run.attempts)


@dataclass(eq=False)
class ControllerSession:
    """A study's flow run in the session that began as of `begun`. Every call raises what Prefect's client raises."""

    home: Home
    log: EventLog
    begun: StudyState
    client: SyncPrefectClient
    executed: bool = False
    """Whether Prefect's engine runs this process for the flow run, which is then ended elsewhere."""
    _beaten: float = -math.inf
    _shown: Projection | None = None
    _agreed: prefect_api.Activity = prefect_api.Activity.RUNNING

    def __post_init__(self) -> None:
        self._record = StudyLog(self.log, self.begun.id)

    def refresh(self, notes: list[str] | None = None) -> None:
        """Carry out clicks since the last refresh and publish what is new; lines that were told leave `notes`."""
        self._with_flow_run(lambda shown: self._refresh(shown, [] if notes is None else notes))

    def close(self, error: BaseException | None) -> None:
        """Publish how the session ended; its flow run is ended even where something else cannot be published."""

        def publish(shown: Projection) -> None:
            state = self._record.state()
            end = prefect_api.describe_end(state, error)
            shown.flow_run.read()  # one that is gone is noticed before anything is published
            try:
                shown.update(state, over=end.how != "left")
            finally:
                if not self.executed:
                    shown.flow_run.end(end)

        self._with_flow_run(publish)

    def _refresh(self, shown: Projection, notes: list[str]) -> None:
        """Set the flow run's state before the study's, so that the least time is left for a click in between."""
        at_prefect = shown.flow_run.read_state()
        if at_prefect.put_back and self.executed:
            return
        action = at_prefect.action
        if (
            self._agreed is prefect_api.Activity.ASKING and action is prefect_api.UserAction.CONTINUE
        ):  # the form was sent
            take_answer(shown.flow_run, self._record)
            action = None
        state = self._record.state()
        both, ask = prefect_api.reconcile(self._agreed, action, prefect_api.activity(state))
        question = question_of(state) if both is prefect_api.Activity.ASKING else None
        as_is = at_prefect.shows is both and (question is None or at_prefect.digest == question.digest)
        if ask is not prefect_api.UserAction.STOP and not as_is and state.stopped_reason is None:
            reason = state.paused_reason or prefect_api.action_reason(prefect_api.UserAction.PAUSE)
            shown.flow_run.show(both, reason, question)
        match ask:
            case prefect_api.UserAction.STOP:
                request_stop(self.home, self.log, self.begun.id, prefect_api.action_reason(ask))
            case prefect_api.UserAction.PAUSE:
                request_pause(self.log, self.begun.id, prefect_api.action_reason(ask))
            case prefect_api.UserAction.CONTINUE:
                request_continue(self.log, self.begun.id)
        self._agreed = both
        if (now := time.monotonic()) - self._beaten >= prefect_api.BEAT_S:
            shown.flow_run.send_heartbeat()
            self._beaten = now
        if count := len(notes):  # more may come meanwhile
            shown.flow_run.log(notes[:count])
            del notes[:count]
        shown.update(self._record.state())

    def _with_flow_run(self, do: Callable[[Projection], None]) -> None:
        try:
            self._shown = self._shown or self._begin()
            do(self._shown)
        except ObjectNotFound:
            self._shown = self._begin()
            do(self._shown)

    def _begin(self) -> Projection:
        begun, resumed = self.begun, True
        if (run := prefect_api.find_flow_run(self.client, self.home, begun.id)) is None:
            run, resumed = prefect_api.create_flow_run(self.client, self.home, begun, Running()), False
        flow_run = prefect_api.FlowRun(self.client, run.id)
        flow_run.adopt(begun)
        told = resumed and (not self.executed or run.run_count > 1)
        if resumed and not self.executed:
            flow_run.show(prefect_api.Activity.RUNNING, "")
        self._agreed = prefect_api.Activity.RUNNING
        pages = partial(pages_address, self.home, begun.id)
        return Projection(flow_run, begun, self.home.study(begun.id), told=told, pages=pages)
