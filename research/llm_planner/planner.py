"""The planner behind any OpenAI-compatible endpoint: asks, validates, and returns a bad answer with the error.

An action gets three tries. Answers are constrained by the endpoint where it can (`response_format`), by the prompt
where it cannot, and validated here in both cases, so nothing depends on the endpoint's manners. A model that says the
same again is asked no more.

What passes (429, a fault of the server, no answer, nobody there any more) is waited for with growing pauses, within a
share of the study's time while nothing is locked; an endpoint that was never reached is not. Once there are verdicts
nothing waits for a model: a single try, and code concludes without it.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from research.errors import BadTopic, PlannerFailed
from research.llm_planner.coverage import left_out
from research.llm_planner.endpoint import Endpoint, EndpointError, failure, short
from research.llm_planner.prompts import correction, messages, response_format
from research.llm_planner.strict_actions import stated
from research.planner.digest import Digest
from research.planner.protocol import Check, PlannerTurn
from research.planner.rewards import NOT_OFFERED
from research.proposals.actions import Action, Propose, ProposeDesign
from research.topic import absent
from research.topic.mentions import readable
from research.topic.requests import split_requests
from research.validation import describe
from studies.records.planner_words import who

TRIES = 3
CONCLUSION_TIMEOUT_S = 30.0
"""Longest a conclusion is waited for: the study is over without it."""
PATIENT_SHARE = 0.2
"""Share of the seconds left that a planner's turn may wait for its endpoint: hours, where the study has days."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 600.0
_MOST_DOUBLINGS = 10
_LONGEST_ANSWER = 50_000
_MOST_BRACES = 100
"""Places at which an object is looked for; chatter before it seldom holds more braces."""
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Completion(BaseModel):
    """The part of a chat completion that is read."""

    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


class _Unusable(Exception):
    """An answer that is no acceptable action; the text says why to the model, `told` to a person."""

    def __init__(self, why: str, told: str | None = None) -> None:
        super().__init__(why)
        self.told = told or why


class LlmPlanner:
    """Plans by asking a language model."""

    name = "llm"

    def __init__(
        self,
        model: str,
        endpoint: Endpoint,
        *,
        timeout_s: float = 120.0,
        patience_s: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`patience_s` is how long a turn may wait for the endpoint; by default it follows from the time left.

        `note` is told of each pause.
        """
        self.model: str | None = model
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._sleep = sleep
        self._note = note
        self._reached = False
        """Whether the endpoint was ever there."""

    def act(self, digest: Digest, check: Check) -> PlannerTurn:
        """Return the due action; PlannerFailed if the endpoint fails or no try is acceptable."""
        if not digest.topic.strip():
            raise BadTopic("expected a topic; found an empty one; say in a sentence what is to be studied")
        if (missing := absent.unavailable(readable(digest), [facts.name for facts in digest.environments])) is not None:
            raise BadTopic(missing)
        over = digest.stage == "conclude"
        timeout_s = min(self._timeout_s, CONCLUSION_TIMEOUT_S) if over else self._timeout_s
        # Whoever proposed has answered before, in this process or another.
        reached = self._reached or digest.stage != "propose"
        line = _PatientEndpoint(
            self._endpoint, timeout_s, self._patience(digest), self._sleep, self._note, reached=reached
        )
        try:
            return _ActionConversation(line, str(self.model), digest, check, tries=1 if over else TRIES).take()
        finally:
            self._reached = line.reached

    def _patience(self, digest: Digest) -> float:
        if digest.stage == "conclude":
            return 0.0
        return PATIENT_SHARE * digest.seconds_left if self._patience_s is None else self._patience_s


class _PatientEndpoint:
    """The endpoint, with patience for what passes."""

    def __init__(
        self,
        endpoint: Endpoint,
        timeout_s: float,
        patience_s: float,
        sleep: Callable[[float], None],
        note: Callable[[str], None],
        *,
        reached: bool,
    ) -> None:
        self.reached = reached
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._left_s = patience_s
        self._sleep = sleep
        self._tell = note
        self._failed = 0
        self._last = ""

    def complete(self, request: Mapping[str, Any]) -> str:
        """Return the reply's body; raise EndpointError once patience is at its end, or waiting would not help."""
        while True:
            began = time.monotonic()
            try:
                reply = self._endpoint.complete(request, self._timeout_s)
            except EndpointError as error:
                self.reached = self.reached or error.kind != "unreachable"
                pause = max(_pause(self._failed), error.retry_after or 0.0)
                self._left_s -= time.monotonic() - began + pause
                if not (error.passing and self.reached) or self._left_s < 0:
                    raise
                self._failed += 1
                self._last = str(error.status or error.kind)
                self._tell(f"{self._endpoint.where} gives no answer ({self._last}); asked again in {pause:.0f} s")
                self._sleep(pause)
            else:
                self.reached = True
                return reply

    def failed(self, error: EndpointError, model: str) -> PlannerFailed:
        """Return the failure as one line for a person."""
        told = failure(error, self._endpoint.where, model, self._timeout_s)
        again = f" (after {self._failed + 1} tries with pauses)" if self._failed else ""
        return PlannerFailed(told + again)

    def redacted(self, text: str) -> str:
        """Return a text in short, without the key."""
        return self._endpoint.redacted(text)

    @property
    def note(self) -> str:
        """What the turn waited for, in a sentence; empty for nothing."""
        times = "once" if self._failed == 1 else f"{self._failed} times"
        return f"The endpoint was waited for {times} ({self._last})." if self._failed else ""


class _ActionConversation:
    """One action: the conversation about it, its tries and its tokens."""

    def __init__(self, line: _PatientEndpoint, model: str, digest: Digest, check: Check, *, tries: int) -> None:
        self._line = line
        self._model = model
        self._digest = digest
        self._check = check
        self._tries = tries
        self._messages: list[dict[str, str]] = messages(digest)
        self._format: dict[str, Any] | None = response_format(digest)
        self._usage = _Usage()
        self._rejected: list[str] = []
        self._told: list[str] = []
        """The same for a person."""
        self._answers: set[str] = set()

    def take(self) -> PlannerTurn:
        """Ask until an answer is acceptable, as often as it may."""
        for number in range(1, self._tries + 1):
            answer = ""
            try:
                answer = self._ask()
                action = self._accepted(answer)
            except _Unusable as error:
                self._reject(answer, error)
                if self._repeats(answer):
                    break
                continue
            tokens = self._usage
            return PlannerTurn(
                action, number, tokens.prompt_tokens, tokens.completion_tokens, tuple(self._rejected), self._note(),
                self._not_tested(action),
            )  # fmt: skip
        told = "; ".join(f"({number}) {short(error)}" for number, error in enumerate(self._told, start=1))
        raise PlannerFailed(
            f"expected a usable '{self._digest.stage}' answer of model {self._model!r}; found {len(self._rejected)} "
            f"refused: {told}; try another --planner-model, or --planner rules"
        )

    def _repeats(self, answer: str) -> bool:
        """Return whether a refused answer was given before, word for word: nothing new is to be expected."""
        known = bool(answer) and answer in self._answers
        self._answers.add(answer)
        if known:
            self._rejected[-1] += "; the same answer as before"
            self._told[-1] += "; the same answer as before"
        return known

    def _not_tested(self, action: Action) -> tuple[str, ...]:
        """Return what the action says that it leaves out, quoted."""
        said = action.not_tested.strip() if isinstance(action, Propose | ProposeDesign) else ""
        return (f'{who(LlmPlanner.name, self._model)}: "{said}"',) if said else ()

    def _note(self) -> str:
        notes = [] if self._format else ["The endpoint takes no response_format; the schema stood in the prompt only."]
        notes += [NOT_OFFERED] if self._digest.stage == "propose" and self._digest.lacks_reward else []
        notes += split_requests(self._digest.topic).without_effect if self._digest.stage == "design" else []
        return " ".join([*notes, *([self._line.note] if self._line.note else [])])

    def _ask(self) -> str:
        try:
            completion = _completion(self._body())
        except ValidationError as error:
            raise _Unusable(f"the endpoint's reply is no chat completion: {describe(error)}") from error
        if completion.usage is not None:
            self._usage = _Usage(
                prompt_tokens=self._usage.prompt_tokens + completion.usage.prompt_tokens,
                completion_tokens=self._usage.completion_tokens + completion.usage.completion_tokens,
            )
        choice = completion.choices[0]
        if choice.message.refusal:
            raise _Unusable(f"the model refused: {short(choice.message.refusal)}")
        if choice.finish_reason == "length":
            raise _Unusable("the answer was cut off at the endpoint's token limit; be brief")
        if not choice.message.content and (choice.message.tool_calls or choice.finish_reason == "tool_calls"):
            raise _Unusable(
                "expected a JSON object in the message's content; found a tool call, and there is no tool; write the "
                "object as the message itself"
            )
        return choice.message.content or ""

    def _body(self) -> str:
        """Return the endpoint's reply as text; a refused `response_format` is left out from then on."""
        request: dict[str, Any] = {"model": self._model, "messages": self._messages}
        try:
            return self._line.complete(request | ({"response_format": self._format} if self._format else {}))
        except EndpointError as error:
            if error.status not in (400, 422) or self._format is None:
                raise self._line.failed(error, self._model) from error
            self._format = None
            return self._body()

    def _accepted(self, answer: str) -> Action:
        value = _json_object(answer)
        try:
            action = stated(self._digest.stage, value)
        except ValidationError as error:
            raise _Unusable(describe(error)) from error
        refused = self._check(action)
        missing = left_out(self._digest, action) if isinstance(action, ProposeDesign) else None
        if refused is not None or missing is not None:
            parts = ([refused.for_planner] if refused else []) + ([missing] if missing else [])
            raise _Unusable("; ".join(parts), refused.message if refused else missing)
        return action

    def _reject(self, answer: str, error: _Unusable) -> None:
        self._rejected.append(self._line.redacted(str(error)))
        self._told.append(self._line.redacted(error.told))
        said = [{"role": "assistant", "content": answer[:_LONGEST_ANSWER]}] if answer else []
        self._messages = [*self._messages, *said, {"role": "user", "content": correction(str(error))}]


def _completion(body: str) -> _Completion:
    return _Completion.model_validate_json(body)


def _json_object(answer: str) -> dict[str, Any]:
    """Return the first JSON object in an answer: thinking, code fences and chatter around it are tolerated."""
    text = _THINKING.sub("", answer)[:_LONGEST_ANSWER]
    decoder = json.JSONDecoder()
    for brace in itertools.islice(re.finditer("{", text), _MOST_BRACES):
        try:
            value, _ = decoder.raw_decode(text, brace.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    raise _Unusable(f"expected one JSON object; found {short(answer)!r}")


def _pause(failed: int) -> float:
    """Return the seconds to wait after so many failures: doubling, up to half less at random."""
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failed, _MOST_DOUBLINGS)) * random.uniform(0.5, 1.0)
