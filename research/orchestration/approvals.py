"""A study's question for approval as a form on Prefect's page: a paused flow run of its own, which no process runs.

The form of a question is found again by a key that follows from the question alone, so that whoever comes later (the
next session, a server whose database was lost) has one form for it and no second. Its fields are filled with `wait`:
whoever presses Resume without reading has answered nothing, and is asked again. An answer goes to the study's log as
any other does; where somebody answered elsewhere before, the form is closed and says so. Nothing here times out.

Import this module only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

from __future__ import annotations

import json
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, Literal
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import FlowRunCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Paused
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from research.errors import BadApproval
from research.scheduling.approvals import how_to_answer, priced
from research.study.stop import MOST_NOTE, answer
from studies import StudyLog, StudyState
from studies.log.study_state import ApprovalAnswer, AskedApproval

_FLOW: Final = "ajet approval"
_KEYS: Final = {"schema": "approval-schema", "response": "approval-response", "description": "approval-description"}
_LASTS_S: Final = 10 * 365 * 86_400
"""Seconds that a form may stay open: Prefect fails a flow run whose pause has expired."""


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
            given = self.answer(form)
            if given is not None:
                self._carry_out(asked, given)
        self.settle(self._record.state())

    def settle(self, state: StudyState) -> None:
        """Close the form of each question that is not open any more, with how it ended."""
        still_open = None if state.open_question is None else state.open_question.digest
        answers = {given.asked.digest: given for given in state.approvals}
        for asked in state.questions:
            if asked.digest != still_open and asked.digest not in self._closed:
                for form in self._forms_of(asked):
                    self.close(form, answers.get(asked.digest))
                self._closed.add(asked.digest)

    def ask(self, state: StudyState, asked: AskedApproval) -> UUID:
        """Return the form of a question, put up if it is not up already."""
        form, status = self._found_or_made(asked)
        if status is None:
            self._store(form, "schema", json.dumps(ApprovalForm.model_json_schema()))
            self._store(form, "description", json.dumps(_described(state, asked)))
            self._put_up(form)
        return form

    def answer(self, form: UUID) -> ApprovalForm | None:
        """Return what was answered in a form; None while that is nothing, whatever else was done to it."""
        state = self._client.read_flow_run(form).state
        if state is not None and state.is_paused():
            return None
        given = self._given(form)  # stored together with the state that Resume sets
        if given is not None and given.answer != "wait":
            return given
        with suppress(PrefectHTTPStatusError):
            self._client.delete_flow_run_input(form, key=_KEYS["response"])
        self._put_up(form)
        return None

    def close(self, form: UUID, given: ApprovalAnswer | None) -> None:
        """Give a form its last state: approved, denied, or not needed any more."""
        if given is None:
            last = State[Any](type=StateType.CANCELLED, name="Not needed", message="it is not asked any more")
        else:
            note = f" ({given.note})" if given.note else ""
            kind, name = (StateType.COMPLETED, "Approved") if given.granted else (StateType.CANCELLED, "Denied")
            last = State[Any](type=kind, name=name, message=f"{given.said()}{note}")
        self._client.set_flow_run_state(form, last, force=True)

    def _carry_out(self, asked: AskedApproval, given: ApprovalForm) -> None:
        with suppress(BadApproval):  # somebody was faster elsewhere; the form is closed with that answer
            answer(self._record, asked.digest, "Prefect", given.note, granted=given.answer == "approve")

    def _found_or_made(self, asked: AskedApproval) -> tuple[UUID, object]:
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

    def _forms_of(self, asked: AskedApproval) -> list[UUID]:
        """Return the form of a question, if it has one here that is not closed."""
        by_key = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=[_key(asked)]))
        found = self._client.read_flow_runs(flow_run_filter=by_key)
        return [run.id for run in found if run.state is None or not run.state.is_final()]

    def _put_up(self, form: UUID) -> None:
        waiting: State[Any] = Paused(timeout_seconds=_LASTS_S, reschedule=False, message="waits for your answer")
        waiting.state_details.run_input_keyset = _KEYS
        self._client.set_flow_run_state(form, waiting, force=True)

    def _store(self, form: UUID, what: str, value: str) -> None:
        try:
            self._client.create_flow_run_input(form, key=_KEYS[what], value=value)
        except PrefectHTTPStatusError as error:
            if error.response.status_code != HTTPStatus.CONFLICT:  # there already
                raise

    def _given(self, form: UUID) -> ApprovalForm | None:
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


def _key(asked: AskedApproval) -> str:
    return f"{asked.question.study}/{asked.digest}"


def _described(state: StudyState, asked: AskedApproval) -> str:
    """Return what stands above the form, as Markdown."""
    topic = " ".join(state.topic.split()).replace("`", "'")
    return (
        f"The study `{state.id}` asks to begin **{asked.question.would}**: {priced(asked)}.\n\n"
        f"Asked: `{topic}`\n\nChoose `approve` or `deny` and press *Resume*. The study's controller takes the answer "
        f"within seconds; where none works on it, the next one does (`ajet study resume {state.id}`). In a terminal: "
        f"{how_to_answer(state)}\n"
    )
