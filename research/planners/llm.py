"""LLMPlanner: a planner behind any OpenAI-compatible endpoint.

Each action is one conversation: asked, validated here whatever the endpoint promises, and returned with the error for
at most three tries; looks and notes take no try, and a repeated answer ends it. Looks come as tool calls or plain JSON,
are counted and capped. An endpoint that refuses a request (400, 422) is asked without tools, then without a response
format, then without both. Several JSON objects of which one may be a draft, or one cut short, are `UnusableAnswer`.

What passes (429, server faults, no answer) is waited for with growing pauses within a share of the study's time; an
endpoint that was never reached is not. After the verdicts there is a single try, and code concludes without a model.
The timeout bounds a whole request, as a server may trickle bytes for ever. Errors name host and port only; neither they
nor replies hold the key.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from research.errors import BadTopic, NoDesignAccepted, PlannerFailed
from research.planners import unsupported
from research.planners.context import (
    NO_REWARD_NOW,
    NO_TOOLS,
    PLAYS,
    PlannerContext,
    PlannerTools,
    ToolError,
    ToolResult,
)
from research.planners.history import redact_secrets, sanitize_line
from research.planners.prompts import (
    LOOK,
    MOST_SIDE_ACTIONS,
    MOST_TOOL_CALLS,
    confirm_side_action,
    correction,
    find_omission,
    messages,
    parse_action,
    response_format,
    schema,
)
from research.planners.protocol import Check, PlannerTurn
from research.planners.topic import normalize_topic
from research.proposals.actions import Action, AskUser, Note, Propose, ProposeDesign, Revise, SideAction
from research.proposals.reward_code import NOT_OFFERED
from research.text import describe
from studies.records.base import canonical
from studies.records.design import REWARD
from studies.records.verdict import planner_label

if TYPE_CHECKING:
    import openai

Kind = Literal["timeout", "unreachable", "dropped", "status", "unrecorded", "other"]
_SHORTEST_KEY = 8
"""Shorter ones are placeholders (`none`, `x`), which would be found in any text."""
_PASSING = frozenset({408, 409, 425, 429})
_SHOWN = 240


class EndpointError(Exception):
    """A request without a reply."""

    def __init__(self, kind: Kind, text: str = "", status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.status = status
        self.retry_after = retry_after
        """Seconds the endpoint asks to wait, where it does."""

    @property
    def is_transient(self) -> bool:
        by_status = self.status is not None and (self.status in _PASSING or self.status >= 500)
        return self.kind in ("timeout", "unreachable", "dropped") or by_status


class Endpoint(Protocol):
    """Where requests go."""

    @property
    def where(self) -> str: ...

    def complete(self, request: Mapping[str, Any], timeout_s: float) -> str:
        """Return the body of the reply to a chat completion request; raise EndpointError."""
        ...

    def redact(self, text: str) -> str:
        """Return a text in short and without the key."""
        ...


class OpenAiEndpoint:
    """An endpoint behind the openai client."""

    def __init__(self, api_key: str, base_url: str) -> None:
        self._api_key = api_key
        self._base_url = base_url

    @property
    def where(self) -> str:
        return url_origin(self._base_url)

    def complete(self, request: Mapping[str, Any], timeout_s: float) -> str:
        reply: Future[str] = Future()
        # A thread that nothing waits for: one that hears a trickle ends with it, or with the process.
        threading.Thread(target=self._run_request, args=(request, timeout_s, reply), daemon=True).start()
        try:
            return self.strip_key(reply.result(timeout_s))
        except TimeoutError as error:
            raise EndpointError("timeout") from error

    def _run_request(self, request: Mapping[str, Any], timeout_s: float, reply: Future[str]) -> None:
        try:
            reply.set_result(self._send(request, timeout_s))
        except BaseException as error:  # noqa: BLE001 - it is the asker's, whatever it is
            reply.set_exception(error)

    def _send(self, request: Mapping[str, Any], timeout_s: float) -> str:
        import openai

        try:
            with openai.OpenAI(
                api_key=self._api_key, base_url=self._base_url, timeout=timeout_s, max_retries=0
            ) as client:
                return client.chat.completions.with_raw_response.create(**request).text
        except openai.OpenAIError as error:
            raise self._convert_error(error) from error

    def redact(self, text: str) -> str:
        return shorten(self.strip_key(text))

    def strip_key(self, text: str) -> str:
        return text.replace(self._api_key, "***") if len(self._api_key) >= _SHORTEST_KEY else text

    def _convert_error(self, error: openai.OpenAIError) -> EndpointError:
        import openai

        if isinstance(error, openai.APITimeoutError):
            return EndpointError("timeout")
        if isinstance(error, openai.APIConnectionError):
            # By its name: which HTTP library the client stands on differs between its versions.
            return EndpointError("unreachable" if type(error.__cause__).__name__ == "ConnectError" else "dropped")
        if isinstance(error, openai.APIStatusError):
            waits = _parse_retry_after(error.response.headers.get("retry-after"))
            return EndpointError("status", self.redact(error.message), error.status_code, waits)
        return EndpointError("other", self.redact(str(error)))


def describe_failure(error: EndpointError, where: str, model: str, timeout_s: float) -> str:
    if error.kind == "unrecorded":
        return f"expected the request in {where}; found {error.text}; record it with --record, or ask without --replay"
    expected = f"expected an OpenAI-compatible endpoint at {where}"
    if error.kind == "timeout":
        return f"{expected}; found no answer within {timeout_s:g} s; try again or another --planner-model"
    if error.kind == "unreachable":
        return (
            f"{expected}; found nothing that answers there; start it, correct OPENAI_BASE_URL, or use --planner rules"
        )
    if error.kind == "dropped":
        return f"{expected}; found a connection that broke off; try again, and check OPENAI_BASE_URL and the network"
    if error.status in (401, 403):
        return f"{expected}; it refuses the key ({error.status}); check OPENAI_API_KEY"
    if error.status == 404:
        return f"{expected} with model {model!r}; found 404; check --planner-model and OPENAI_BASE_URL"
    if error.status == 429:
        return f"{expected}; it refuses for now (429, rate or credit); try again later"
    if error.status is not None:
        return f"{expected}; found status {error.status}: {error.text}; check --planner-model and the endpoint"
    return f"{expected}; found {error.text}; check --planner-model and the endpoint"


def shorten(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN else flat[: _SHOWN - 1] + "…"


def url_origin(base_url: str) -> str:
    parts = urlsplit(base_url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"


def _parse_retry_after(text: str | None) -> float | None:
    """Return the seconds of a Retry-After header; None where it names a date, or nothing."""
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None


LONGEST_ANSWER = 50_000
_MOST_BRACES = 100
"""Places at which an object is looked for; chatter before it seldom holds more braces."""
_NAMES = r"(?:\w+:)?(?:think|thinking|thought|reasoning|start_thinking)"
_OPENS = re.compile(rf"(?:<|\[|◁|<\|){_NAMES}(?:\|>|>|\]|▷)", re.IGNORECASE)
_CLOSES = re.compile(
    rf"(?:(?:<|\[|◁|<\|)/{_NAMES}|<\|end_thinking)(?:\|>|>|\]|▷)|<\|channel\|>final<\|message\|>", re.IGNORECASE
)
"""Marks around a model's thinking, of which its template may have written the first: of many families' templates."""


class Message(BaseModel):
    """What the model said."""

    content: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, value: Any) -> Any:
        """Join the parts that some endpoints answer with; those of thinking are left out."""
        if not isinstance(value, list):
            return value
        parts = [part for part in value if isinstance(part, dict) and part.get("type") in ("text", "output_text")]
        return "".join(str(part.get("text") or "") for part in parts)


class Choice(BaseModel):
    """One answer, and why it ended."""

    message: Message
    finish_reason: str | None = None


class Usage(BaseModel):
    """Tokens, as the endpoint counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @field_validator("*", mode="before")
    @classmethod
    def _default_to_zero(cls, value: Any) -> Any:
        return 0 if value is None else value


class ChatCompletion(BaseModel):
    """The part of a chat completion that is read."""

    choices: list[Choice] = Field(min_length=1)
    usage: Usage | None = None

    @classmethod
    def of(cls, body: str) -> ChatCompletion:
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            raise UnusableAnswer(f"the endpoint's reply is no chat completion: {describe(error)}") from error


class UnusableAnswer(Exception):
    """An answer that is no acceptable action; the text says why to the model, `message` to a person."""

    def __init__(self, why: str, message: str | None = None) -> None:
        super().__init__(why)
        self.message = message or why


def parse_json_object(answer: str) -> dict[str, Any]:
    """Return the one JSON object in what follows an answer's thinking; raise UnusableAnswer for none, one that is cut
    short, and several: which is the draft?
    """
    text = _strip_thinking(answer)[:LONGEST_ANSWER]
    found = _find_objects(text)
    meant = [value for value in found if value] or found[:1]
    if not meant:
        raise UnusableAnswer(f"expected one JSON object; found {shorten(answer)!r}")
    if any(value != meant[0] for value in meant):
        raise UnusableAnswer(f"expected one JSON object; found {len(meant)}: answer with the final one alone")
    return meant[0]


def _strip_thinking(answer: str) -> str:
    closes = [mark.end() for mark in _CLOSES.finditer(answer)]
    text = answer[closes[-1] :] if closes else answer
    opens = _OPENS.search(text)
    if opens is None:
        return text
    before = text[: opens.start()]
    if "{" not in before:
        raise UnusableAnswer("expected an answer after the thinking; found thinking that does not end: think less")
    return before


def _find_objects(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects side by side in a text; raise UnusableAnswer for one that is cut short."""
    decoder, found, after = json.JSONDecoder(), list[dict[str, Any]](), 0
    for brace in itertools.islice(re.finditer("{", text), _MOST_BRACES):
        if brace.start() < after:
            continue
        try:
            value, after = decoder.raw_decode(text, brace.start())
        except json.JSONDecodeError as error:
            if _is_truncated(error, text[brace.start() :]):
                raise UnusableAnswer("expected one JSON object; found one that is cut short: say less") from None
        except (ValueError, RecursionError):
            continue
        else:
            found += [value] if isinstance(value, dict) else []
    return found


def _is_truncated(error: json.JSONDecodeError, text: str) -> bool:
    """Return whether what began as an object ended before it was whole, and is not chatter in braces."""
    begins = re.match(r'\{\s*"', text) is not None
    return begins and (error.msg.startswith("Unterminated string") or error.pos >= len(error.doc.rstrip().rstrip("`")))


MOST_ANSWERED: Final = 24_000
"""Characters of all answers of one turn."""
MOST_OF_ONE: Final = 8_000
"""Characters of one answer."""
_NO_MORE: Final = "no look is left in this turn; act now, with one JSON object that fits the schema"


class _Function(BaseModel):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(BaseModel):
    """A call of a tool as a model writes it."""

    model_config = ConfigDict(extra="ignore")

    id: str = ""
    function: _Function


class ToolSession:
    """The looks of one turn: what was taken, and what is left."""

    def __init__(self, tools: PlannerTools, bare: Callable[[str], str]) -> None:
        self._tools = tools
        self._bare = bare
        self._left = MOST_ANSWERED
        self.results: list[ToolResult] = []

    @property
    def offered(self) -> Mapping[str, type[BaseModel]]:
        return self._tools.offered

    @property
    def is_exhausted(self) -> bool:
        return len(self.results) >= MOST_TOOL_CALLS or self._left <= 0

    @property
    def plays_seen(self) -> bool:
        return any(look.name == PLAYS for look in self.results)

    def schemas(self) -> list[dict[str, Any]]:
        return [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": " ".join((kind.__doc__ or "").split()),
                    "parameters": schema(kind),
                },
            }
            for name, kind in self.offered.items()
        ]

    def run_tool_calls(self, calls: Sequence[Any]) -> list[dict[str, Any]] | None:
        """Return the messages that a model's tool calls become, None for none; raise UnusableAnswer beyond the cap."""
        if not self.offered or not calls:
            return None
        if self.is_exhausted:
            raise UnusableAnswer(_NO_MORE)
        try:
            read = [ToolCall.model_validate(call) for call in calls]
        except ValidationError as error:
            raise UnusableAnswer(f"expected a tool call with a function's name; found {shorten(str(calls))}") from error
        named = [(call.id or f"look-{len(self.results)}-{number}", call.function) for number, call in enumerate(read)]
        said = [
            {
                "id": known,
                "type": "function",
                "function": {"name": function.name, "arguments": _arguments_text(function)},
            }
            for known, function in named
        ]
        answers = [
            {"role": "tool", "tool_call_id": known, "content": self._call(function.name, function.arguments)}
            for known, function in named
        ]
        return [{"role": "assistant", "content": None, "tool_calls": said}, *answers]

    def run_text_call(self, answer: str) -> list[dict[str, Any]] | None:
        """Return the messages that a look in plain JSON becomes, None for none; raise UnusableAnswer beyond the cap."""
        wish = _parse_tool_call(answer) if self.offered else None
        if wish is None:
            return None
        if self.is_exhausted:
            raise UnusableAnswer(_NO_MORE)
        name, arguments = wish
        shown = f"What your look at {shorten(name)} shows:\n{self._call(name, arguments)}"
        told = f"{shown}\n{'No look is left: act now.' if self.is_exhausted else 'Look again, or act.'}"
        return [{"role": "assistant", "content": answer}, {"role": "user", "content": told}]

    def _call(self, name: str, arguments: str | Mapping[str, Any] | None) -> str:
        """Take a look and return its answer as text; one that cannot be had is answered with the reason."""
        if self.is_exhausted:
            return json.dumps({"refused": _NO_MORE})
        name, values = sanitize_line(name)[:60], dict[str, Any]()
        try:
            values = _check_arguments(_parse_arguments(arguments))
            shown = dict(self._tools.answer(name, values))
        except ToolError as error:
            shown = {"refused": str(error)}
        text = self._truncate(self._bare(json.dumps(shown, ensure_ascii=False)))
        self._left -= len(text)
        self.results.append(ToolResult(name, values, text))
        return text

    def _truncate(self, text: str) -> str:
        most = min(MOST_OF_ONE, self._left)
        return text if len(text) <= most else f"{text[:most]}… (cut; ask for less)"


def _arguments_text(function: _Function) -> str:
    arguments = function.arguments
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})


def _parse_arguments(arguments: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the arguments of a look, which some endpoints give as an object and some as its text."""
    if isinstance(arguments, Mapping):
        return arguments
    if not (arguments or "").strip():
        return {}
    try:
        return parse_json_object(str(arguments))
    except UnusableAnswer as error:
        raise ToolError(f"expected arguments that are a JSON object; found {shorten(str(arguments))!r}") from error


def _check_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments that the log can hold: JSON knows numbers and characters that no file takes."""
    try:
        canonical(dict(values)).encode()
    except ValueError as error:
        raise ToolError(f"expected finite numbers and whole characters in the arguments; found {error}") from error
    return dict(values)


def _parse_tool_call(answer: str) -> tuple[str, str | Mapping[str, Any] | None] | None:
    try:
        value = parse_json_object(answer)
    except UnusableAnswer:
        return None
    name = value.get(LOOK)
    name = sanitize_line(name) if isinstance(name, str) else ""
    if not name or value.get("action", LOOK) != LOOK:
        return None
    if "arguments" in value:
        arguments = value["arguments"]
        return name, arguments if isinstance(arguments, str | Mapping) else None
    return name, {key: entry for key, entry in value.items() if key not in (LOOK, "action")}


_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 600.0
_MOST_DOUBLINGS = 10


class RetryingEndpoint:
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
                pause = max(_backoff_s(self._failed), error.retry_after or 0.0)
                self._left_s -= time.monotonic() - began + pause
                if not (error.is_transient and self.reached) or self._left_s < 0:
                    raise
                self._failed += 1
                self._last = str(error.status or error.kind)
                self._tell(f"{self._endpoint.where} gives no answer ({self._last}); asked again in {pause:.0f} s")
                self._sleep(pause)
            else:
                self.reached = True
                return reply

    def make_error(self, error: EndpointError, model: str) -> PlannerFailed:
        told = describe_failure(error, self._endpoint.where, model, self._timeout_s)
        again = f" (after {self._failed + 1} tries with pauses)" if self._failed else ""
        return PlannerFailed(told + again)

    def redact(self, text: str) -> str:
        return self._endpoint.redact(text)

    @property
    def note(self) -> str:
        times = "once" if self._failed == 1 else f"{self._failed} times"
        return f"The endpoint was waited for {times} ({self._last})." if self._failed else ""


def _backoff_s(failed: int) -> float:
    """Return the seconds to wait after so many failures: doubling, up to half less at random."""
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failed, _MOST_DOUBLINGS)) * random.uniform(0.5, 1.0)


_REFUSALS: Final = (400, 422)


@dataclass(frozen=True, slots=True)
class _RequestMode:
    """How a request is made."""

    tools: bool
    format: bool


_WAYS: Final = (
    _RequestMode(True, True),
    _RequestMode(False, True),
    _RequestMode(True, False),
    _RequestMode(False, False),
)


class ChatSession:
    """A growing list of messages, sent to an endpoint as it takes them."""

    def __init__(self, line: RetryingEndpoint, model: str, context: PlannerContext, tools: ToolSession) -> None:
        self._line = line
        self._model = model
        self._context = context
        self._tools = tools
        self._ways = [way for way in _WAYS if tools.offered or not way.tools]
        self._messages: list[dict[str, Any]] = []
        self.usage = Usage()

    def add(self, more: Sequence[dict[str, Any]]) -> None:
        self._messages = [*self._messages, *more]

    def next_message(self) -> Message:
        """Return what the model says next; raise UnusableAnswer for a reply that is no whole answer."""
        completion = ChatCompletion.of(self._fetch_body())
        if completion.usage is not None:
            self.usage = Usage(
                prompt_tokens=self.usage.prompt_tokens + completion.usage.prompt_tokens,
                completion_tokens=self.usage.completion_tokens + completion.usage.completion_tokens,
            )
        self._require_whole(completion.choices[0])
        return completion.choices[0].message

    def _require_whole(self, choice: Choice) -> None:
        message = choice.message
        if message.refusal:
            raise UnusableAnswer(f"the model refused: {shorten(message.refusal)}")
        if choice.finish_reason == "length":
            raise UnusableAnswer("the answer was cut off at the endpoint's token limit; be brief")
        is_look = message.tool_calls and self._tools.offered
        if not message.content and not is_look and (message.tool_calls or choice.finish_reason == "tool_calls"):
            raise UnusableAnswer(
                "expected a JSON object in the message's content; found a tool call, and there is no tool; write the "
                "object as the message itself"
            )

    @property
    def notes(self) -> list[str]:
        way, looks = self._ways[0], bool(self._tools.offered)
        told = [] if way.format else ["The endpoint takes no response_format; the schema stood in the prompt only."]
        told += ["The endpoint takes no tools; looks were asked for in JSON."] if looks and not way.tools else []
        return told

    def _fetch_body(self) -> str:
        """Return the endpoint's reply as text; what it refuses is left out from then on."""
        while True:
            try:
                return self._line.complete(self._build_request(self._ways[0]))
            except EndpointError as error:
                if error.status not in _REFUSALS or len(self._ways) == 1:
                    raise self._line.make_error(error, self._model) from error
                self._ways.pop(0)

    def _build_request(self, way: _RequestMode) -> Mapping[str, Any]:
        tools = self._context.tools if self._tools.offered else NO_TOOLS
        in_json = () if way.tools else self._tools.offered
        asked = messages(self._context, tools, by_tools=way.tools)
        request: dict[str, Any] = {"model": self._model, "messages": [*asked, *self._messages]}
        if way.tools:
            request |= {"tools": self._tools.schemas()} | ({"tool_choice": "none"} if self._tools.is_exhausted else {})
        return request | ({"response_format": response_format(self._context, in_json)} if way.format else {})


PLANNER = "llm"
FAILED = "failed"
"""What stands for the action of a turn that came to none."""


class ActionConversation:
    """One action: the conversation about it, its tries, looks and tokens."""

    def __init__(
        self, line: RetryingEndpoint, model: str, context: PlannerContext, check: Check, *, tries: int
    ) -> None:
        self._line = line
        self._model = model
        self._context = context
        self._check = check
        self._tries = tries
        self._tools = ToolSession(NO_TOOLS if context.stage == "conclude" else context.tools, redact_secrets)
        self._chat = ChatSession(line, model, context, self._tools)
        self._side_actions: list[SideAction] = []
        self._rejected: list[str] = []
        self._messages: list[str] = []
        """The same for a person."""
        self._answer = ""
        self._refused: str | None = None
        self._answers: set[str] = set()

    def run(self) -> PlannerTurn:
        try:
            return self._run_tries()
        except PlannerFailed as error:
            error.spent = self._failure_payload()
            raise

    def _failure_payload(self) -> dict[str, Any]:
        tokens = self._chat.usage
        return {
            "action": FAILED, "tries": len(self._rejected),
            "tokens": {"prompt": tokens.prompt_tokens, "completion": tokens.completion_tokens},
            "rejected": list(self._rejected), "note": "", "not_tested": [],
            "looks": [look.payload() for look in self._tools.results],
        }  # fmt: skip

    def _run_tries(self) -> PlannerTurn:
        for number in range(1, self._tries + 1):
            try:
                action = self._next_action()
            except UnusableAnswer as error:
                self._reject(error)
                if self._is_repeat():
                    break
                continue
            return self._make_turn(action, number)
        raise self._make_failure()

    def _make_failure(self) -> PlannerFailed:
        told = "; ".join(f"({number}) {shorten(error)}" for number, error in enumerate(self._messages, start=1))
        said = (
            f"expected a usable '{self._context.stage}' answer of model {self._model!r}; found {len(self._rejected)} "
            f"refused: {told}; try another --planner-model, or --planner rules"
        )
        return PlannerFailed(said) if self._refused is None else NoDesignAccepted(said, self._refused)

    def _make_turn(self, action: Action, tries: int) -> PlannerTurn:
        tokens = self._chat.usage
        return PlannerTurn(
            action, tries, tokens.prompt_tokens, tokens.completion_tokens, tuple(self._rejected), self._write_note(),
            self._find_untested(action), tool_results=tuple(self._tools.results),
            side_actions=tuple(self._side_actions),
        )  # fmt: skip

    def _next_action(self) -> Action:
        while True:
            self._await_answer()
            action = self._parse_answer(self._answer)
            if not isinstance(action, Note | Revise | AskUser):
                return action
            self._add_side_action(action)

    def _await_answer(self) -> None:
        while True:
            self._answer = ""
            message = self._chat.next_message()
            self._answer = message.content or ""
            looked = self._tools.run_tool_calls(message.tool_calls or ()) or self._tools.run_text_call(self._answer)
            if looked is None:
                return
            self._chat.add(looked)

    def _add_side_action(self, side_action: SideAction) -> None:
        if len(self._side_actions) >= MOST_SIDE_ACTIONS:
            raise UnusableAnswer(
                f"{MOST_SIDE_ACTIONS} things were written down in this turn, which is all that may be; act now"
            )
        if side_action in self._side_actions:
            raise UnusableAnswer("that was written down before, in this turn; act now")
        self._side_actions.append(side_action)
        told = confirm_side_action(MOST_SIDE_ACTIONS - len(self._side_actions))
        self._chat.add([self._assistant_message(), {"role": "user", "content": told}])

    def _is_repeat(self) -> bool:
        """Return whether a refused answer was given before, word for word: nothing new is to be expected."""
        known = bool(self._answer) and self._answer in self._answers
        self._answers.add(self._answer)
        if known:
            self._rejected[-1] += "; the same answer as before"
            self._messages[-1] += "; the same answer as before"
        return known

    def _find_untested(self, action: Action) -> tuple[str, ...]:
        said = action.not_tested.strip() if isinstance(action, Propose | ProposeDesign) else ""
        return (f'{planner_label(PLANNER, self._model)}: "{said}"',) if said else ()

    def _write_note(self) -> str:
        context, notes = self._context, list(self._chat.notes)
        if context.campaign is None:  # of a topic it is said once
            notes += [NOT_OFFERED] if context.stage == "propose" and context.lacks_reward else []
            notes += unsupported.split_requests(context.topic).without_effect if context.stage == "design" else []
        return " ".join([*notes, *([self._line.note] if self._line.note else [])])

    def _parse_answer(self, answer: str) -> Action:
        value = parse_json_object(answer)
        try:
            action = parse_action(self._context, value)
        except ValidationError as error:
            raise UnusableAnswer(describe(error)) from error
        refused = self._check(action)
        missing = self._find_omission(action)
        if refused is not None or missing is not None:
            parts = ([refused.model_feedback] if refused else []) + ([missing] if missing else [])
            self._refused = self._line.redact("; ".join(parts)) if isinstance(action, ProposeDesign) else None
            raise UnusableAnswer("; ".join(parts), refused.message if refused else missing)
        return action

    def _find_omission(self, action: Action) -> str | None:
        """Return what an action passes over: of the topic in a first round, or of what follows from the looks."""
        if isinstance(action, Propose) and self._tools.plays_seen:
            coded = any(entry.variable == REWARD for entry in action.hypotheses)
            return f"expected hypotheses about job fields; found a reward function: {NO_REWARD_NOW}" if coded else None
        first = self._context.campaign is None
        return find_omission(self._context, action) if first and isinstance(action, ProposeDesign) else None

    def _assistant_message(self) -> dict[str, str]:
        return {"role": "assistant", "content": self._answer[:LONGEST_ANSWER]}

    def _reject(self, error: UnusableAnswer) -> None:
        self._rejected.append(self._line.redact(str(error)))
        self._messages.append(self._line.redact(error.message))
        said = [self._assistant_message()] if self._answer else []
        self._chat.add([*said, {"role": "user", "content": correction(str(error))}])


TRIES = 3
CONCLUSION_TIMEOUT_S = 30.0
"""Longest a conclusion is waited for: the study is over without it."""
PATIENT_SHARE = 0.2
"""Share of the seconds left that a planner's turn may wait for its endpoint: hours, where the study has days."""


class LlmPlanner:
    """Plans by asking a language model."""

    name = PLANNER

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
        """`patience_s` is how long a turn may wait (default: `PATIENT_SHARE` of the time left); `note` hears of it."""
        self.model: str | None = model
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._sleep = sleep
        self._note = note
        self._reached = False
        """Whether the endpoint was ever there."""

    def act(self, context: PlannerContext, check: Check) -> PlannerTurn:
        if not context.topic.strip():
            raise BadTopic("expected a topic; found an empty one; say in a sentence what is to be studied")
        if context.campaign is None:  # later rounds are asked of a topic that was read
            known = [facts.name for facts in context.environments]
            if (missing := unsupported.explain_unavailable(normalize_topic(context), known)) is not None:
                raise BadTopic(missing)
        over = context.stage == "conclude"
        timeout_s = min(self._timeout_s, CONCLUSION_TIMEOUT_S) if over else self._timeout_s
        # Whoever proposed has answered before, in this process or another.
        reached = self._reached or context.stage != "propose" or context.campaign is not None
        patience_s = PATIENT_SHARE * context.seconds_left if self._patience_s is None else self._patience_s
        line = RetryingEndpoint(
            self._endpoint, timeout_s, 0.0 if over else patience_s, self._sleep, self._note, reached=reached
        )
        try:
            return ActionConversation(line, str(self.model), context, check, tries=1 if over else TRIES).run()
        finally:
            self._reached = line.reached
