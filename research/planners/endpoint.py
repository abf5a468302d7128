"""The address behind a language-model planner: one request, what goes wrong with it, and patience for what passes.

What passes (429, server faults, no answer) is waited for with growing pauses; an endpoint that was never reached is
not. The timeout bounds a whole request, as a server may trickle bytes for ever. Errors name host and port only; no
error, reply or recording holds the key.

Planners and recordings speak OpenAI's form; Anthropic's endpoint translates. A model's thinking goes back to it unread
with the call of a tool that followed it, as that API demands, under a name that no other endpoint uses.
"""

import json
import math
import random
import re
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, Protocol
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError, field_validator

from research.errors import NotReady, PlannerFailed
from research.installation.home import cause_of
from studies.records.base import canonical, digest

Kind = Literal["timeout", "unreachable", "dropped", "status", "unrecorded", "other"]
_SHORTEST_KEY = 8
"""Shorter ones are placeholders (`none`, `x`), which would be found in any text."""
_PASSING = frozenset({408, 409, 425, 429, "timeout", "unreachable", "dropped"})
"""Statuses and kinds of failure that pass, as faults of a server do."""
_SHOWN = 240
THINKING: Final = "anthropic_thinking"
USUAL_TOKENS: Final = 16_000
"""Most tokens of an answer where nobody says: this API wants a number."""
_ENDS: Final = {"max_tokens": "length", "model_context_window_exceeded": "length", "tool_use": "tool_calls"}
_MADE_BY = {"openai": "OpenAI's", "anthropic": "Anthropic's"}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 600.0
_MOST_DOUBLINGS = 10
_TIMES = re.compile(r'(\\?"(?:seconds_left|seconds_per_run_of_the_default_job)\\?": )[-+.\deE]+')


class EndpointError(Exception):
    """A request without a reply."""

    def __init__(self, kind: Kind, text: str = "", status: int | None = None, retry_after: float | None = None) -> None:
        """`retry_after` are the seconds that the endpoint asks to wait, where it does."""
        super().__init__(text)
        self.kind, self.text, self.status, self.retry_after = kind, text, status, retry_after


class Endpoint(Protocol):
    """Where requests go."""

    @property
    def where(self) -> str: ...

    @property
    def api(self) -> str:
        """Whose API it has, `openai` or `anthropic`: the beginning of its variables' names, in small letters."""
        ...

    def complete(self, request: Mapping[str, Any], timeout_s: float) -> str:
        """Return the body of the reply to a chat completion request; raise EndpointError."""
        ...

    def redact(self, text: str) -> str:
        """Return a text in short and without the key."""
        ...


class OpenAiEndpoint:
    """An endpoint behind the openai client."""

    api = "openai"

    def __init__(self, api_key: str, base_url: str) -> None:
        self._api_key, self.where = api_key, url_origin(base_url)
        self._client: dict[str, Any] = {"api_key": api_key, "base_url": base_url, "max_retries": 0}

    def complete(self, request: Mapping[str, Any], timeout_s: float) -> str:
        reply: Future[str] = Future()

        def send() -> None:
            try:
                reply.set_result(self._send(request, timeout_s))
            except BaseException as error:  # noqa: BLE001 - it is the caller's, whatever it is
                reply.set_exception(error)

        # A thread that nothing waits for: one that hears a trickle ends with it, or with the process.
        threading.Thread(target=send, daemon=True).start()
        try:
            return self.strip_key(reply.result(timeout_s))
        except TimeoutError as error:
            raise EndpointError("timeout") from error

    def _send(self, request: Mapping[str, Any], timeout_s: float) -> str:
        sdk = import_module(self.api)  # both clients are made alike, down to their errors
        try:
            return self._ask(request, timeout_s)
        except sdk.APITimeoutError as error:
            raise EndpointError("timeout") from error
        except sdk.APIConnectionError as error:
            # By its name: which HTTP library the client stands on differs between its versions.
            unreachable = type(error.__cause__).__name__ == "ConnectError"
            raise EndpointError("unreachable" if unreachable else "dropped") from error
        except sdk.APIStatusError as error:
            waits = None
            with suppress(KeyError, ValueError):  # it may name a date, or nothing
                waits = max(0.0, float(error.response.headers["retry-after"]))
            raise EndpointError("status", self.redact(error.message), error.status_code, waits) from error
        except (sdk.APIError, ValueError) as error:
            raise EndpointError("other", self.redact(str(error))) from error

    def _ask(self, request: Mapping[str, Any], timeout_s: float) -> str:
        import openai

        with openai.OpenAI(**self._client, timeout=timeout_s) as client:
            return client.chat.completions.with_raw_response.create(**request).text

    def redact(self, text: str) -> str:
        return shorten(self.strip_key(text))

    def strip_key(self, text: str) -> str:
        return text.replace(self._api_key, "***") if len(self._api_key) >= _SHORTEST_KEY else text


def shorten(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN else flat[: _SHOWN - 1] + "…"


def url_origin(base_url: str) -> str:
    parts = urlsplit(base_url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"


class AnthropicEndpoint(OpenAiEndpoint):
    """An endpoint behind the anthropic client."""

    api = "anthropic"

    def _ask(self, request: Mapping[str, Any], timeout_s: float) -> str:
        import anthropic

        with anthropic.Anthropic(**self._client, timeout=timeout_s) as client:
            return to_completion(client.messages.with_raw_response.create(**to_messages(request)).text())


def to_messages(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat completion request as one of the Messages API: turns alternate, the system prompt stands apart."""
    import anthropic

    turns: list[dict[str, Any]] = []
    for message in request["messages"]:
        role = "user" if message["role"] == "tool" else message["role"]
        if not turns or turns[-1]["role"] != role:
            turns.append({"role": role, "content": []})
        blocks, text = turns[-1]["content"], message.get("content") or ""
        if message["role"] == "tool":
            blocks.append({"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": text})
            continue
        blocks += [*message.get(THINKING, ()), *([{"type": "text", "text": text}] if text.strip() else [])]
        for call in message.get("tool_calls", ()):
            arguments: Any = {}
            with suppress(ValueError):  # of another model, which wrote no JSON
                arguments = json.loads(call["function"]["arguments"])
            given = arguments if isinstance(arguments, dict) else {}
            blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": given})
    system = turns.pop(0)["content"] if turns[0]["role"] == "system" else []
    most = request.get("max_completion_tokens", USUAL_TOKENS)
    asked = {"model": request["model"], "max_tokens": most, "system": system, "messages": turns}
    if functions := [tool["function"] for tool in request.get("tools", ())]:
        asked["tools"] = [
            {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in functions
        ]
    if choice := request.get("tool_choice"):
        asked["tool_choice"] = {"type": choice}
    config = {"effort": effort} if (effort := request.get("reasoning_effort")) else {}
    if form := request.get("response_format"):
        config["format"] = {"type": "json_schema", "schema": anthropic.transform_schema(form["json_schema"]["schema"])}
    return asked | ({"output_config": config} if config else {})


def to_completion(body: str) -> str:
    """Return the body of a reply as that of a chat completion; one that is no reply as it is, for others to refuse."""
    from anthropic.types import Message

    try:
        reply = Message.model_validate_json(body)
    except ValidationError:
        return body
    calls = [
        {"id": b.id, "type": "function", "function": {"name": b.name, "arguments": json.dumps(b.input)}}
        for b in reply.content
        if b.type == "tool_use"
    ]
    thinking = [b.model_dump() for b in reply.content if b.type in ("thinking", "redacted_thinking")]
    message = {"content": "".join(b.text for b in reply.content if b.type == "text"), "tool_calls": calls}
    message |= {THINKING: thinking} if thinking else {}
    message |= {"refusal": "its safety rules end the answer"} if reply.stop_reason == "refusal" else {}
    usage = reply.usage
    cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
    tokens = {"prompt_tokens": usage.input_tokens + cached, "completion_tokens": usage.output_tokens}
    choice = {"message": message, "finish_reason": _ENDS.get(str(reply.stop_reason), "stop")}
    return json.dumps({"model": str(reply.model), "choices": [choice], "usage": tokens})


class CompletionToolCall(BaseModel):
    """A call of a tool as a model writes it."""

    class Function(BaseModel):
        name: str
        arguments: str | dict[str, Any] | None = None

    id: str = ""
    function: Function


class Message(BaseModel):
    """What the model said."""

    content: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    anthropic_thinking: list[Any] | None = None
    """What goes back with the calls of its tools, unread."""

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        parts = [part for part in value if isinstance(part, dict) and part.get("type") in ("text", "output_text")]
        return "".join(str(part.get("text") or "") for part in parts)


class ChatCompletion(BaseModel):
    """The part of a chat completion that is read; some endpoints count no tokens, or say null, none or nonsense."""

    class Choice(BaseModel):
        message: Message
        finish_reason: str | None = None

    class Usage(BaseModel):
        prompt_tokens: int | None = None
        completion_tokens: int | None = None

        @field_validator("*", mode="before")
        @classmethod
        def _drop_no_count(cls, value: Any) -> int | None:
            return value if type(value) is int and 0 < value <= 10**9 else None

    choices: list[Choice] = Field(min_length=1)
    usage: Usage | None = None
    model: Any = None
    """What the endpoint calls the model that answered."""


class RetryingEndpoint:
    """The endpoint, with patience for what passes."""

    def __init__(
        self, model: str, endpoint: Endpoint, timeout_s: float, patience_s: float, sleep: Callable[[float], None],
        note: Callable[[str], None], *, reached: bool, turn_s: float = math.inf,
    ) -> None:  # fmt: skip
        """`turn_s` bounds all requests of a turn together."""
        self.model, self.reached, self.redact = model, reached, endpoint.redact
        self._endpoint, self._timeout_s, self._left_s = endpoint, timeout_s, patience_s
        self._sleep, self._tell = sleep, note
        self._failed, self._last, self._ends = 0, "", time.monotonic() + turn_s

    def complete(self, request: Mapping[str, Any]) -> str:
        """Return the reply's body; raise EndpointError once patience is at its end, or waiting would not help."""
        while True:
            began = time.monotonic()
            try:
                if (left_s := self._ends - began) <= 0:
                    raise EndpointError("timeout")
                reply = self._endpoint.complete(request, min(self._timeout_s, left_s))
            except EndpointError as error:
                self.reached = self.reached or error.kind != "unreachable"
                doubled = _FIRST_PAUSE_S * 2.0 ** min(self._failed, _MOST_DOUBLINGS)
                pause = max(min(_LONGEST_PAUSE_S, doubled) * random.uniform(0.5, 1.0), error.retry_after or 0.0)
                self._left_s -= time.monotonic() - began + pause
                passes = error.kind in _PASSING or error.status in _PASSING or (error.status or 0) >= 500
                if not (passes and self.reached) or self._left_s < 0:
                    raise
                self._failed += 1
                self._last = str(error.status or error.kind)
                self._tell(f"{self._endpoint.where} gives no answer ({self._last}); asked again in {pause:.0f} s")
                self._sleep(pause)
            else:
                self.reached = True
                return reply

    def make_error(self, error: EndpointError) -> PlannerFailed:
        """Return the failure that a person is told: expected, found, what to do."""
        api, status = self._endpoint.api, error.status
        expected = f"expected an endpoint like {_MADE_BY[api]} at {self._endpoint.where}"
        url, key = f"{api.upper()}_BASE_URL", f"{api.upper()}_API_KEY"
        whys: dict[object, str] = {
            "timeout": f"found no answer within {self._timeout_s:g} s; try again or another --planner-model, or wait "
            "longer (--planner-timeout)",
            "unreachable": f"found nothing that answers there; start it, correct {url}, or use --planner rules",
            "dropped": f"found a connection that broke off; try again, and check {url} and the network",
            "unrecorded": f"found {error.text}; record it with AJET_PLANNER_RECORD, or ask without AJET_PLANNER_REPLAY",
            404: f"found 404; check --planner-model and {url}",
            429: "it refuses for now (429, rate or credit); try again later",
        } | {code: f"it refuses the key ({code}); check {key}" for code in (401, 403)}
        if error.kind == "unrecorded":
            expected = f"expected the request in {self._endpoint.where}"
        elif status == 404:
            expected = f"{expected} with model {self.model!r}"
        text = error.text if status is None else f"status {status}: {error.text}"
        why = whys.get(error.kind) or whys.get(status) or f"found {text}; check --planner-model and the endpoint"
        again = f" (after {self._failed + 1} tries with pauses)" if self._failed else ""
        return PlannerFailed(f"{expected}; {why}{again}")

    @property
    def note(self) -> str:
        times = "once" if self._failed == 1 else f"{self._failed} times"
        return f"The endpoint was waited for {times} ({self._last})." if self._failed else ""


class _Failure(BaseModel, extra="forbid"):
    kind: Kind
    status: int | None = None
    text: str = ""


class _Exchange(BaseModel, extra="forbid"):
    request: str
    model: str
    reply: str | None = None
    failed: _Failure | None = None

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> "_Exchange":
        asked = {name: value for name, value in request.items() if name != "max_completion_tokens"}
        return cls(request=digest(_TIMES.sub(r"\g<1>0", canonical(asked))), model=str(request["model"]))


class Recorder:
    """An endpoint that writes down what another one says."""

    def __init__(self, endpoint: Endpoint, file: Path) -> None:
        self._endpoint, self._file = endpoint, file
        self.where, self.api, self.redact = endpoint.where, endpoint.api, endpoint.redact
        try:
            file.open("a").close()
        except OSError as error:
            raise NotReady(
                f"expected a file to record in; found {cause_of(error)} at {file}; name another one"
            ) from error

    def complete(self, request: Mapping[str, Any], timeout_s: float) -> str:
        """Return the other one's reply; raise what it raises. Both are written down."""
        line, failure = _Exchange.of(request), None
        try:
            line.reply = self._endpoint.complete(request, timeout_s)
        except EndpointError as error:
            failure, line.failed = error, _Failure(kind=error.kind, status=error.status, text=error.text)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(line.model_dump_json(exclude_none=True) + "\n")
        if failure is not None:
            raise failure
        return line.reply or ""


class Replay:
    """An endpoint that says what was recorded, and nothing else."""

    api = "openai"

    def __init__(self, file: Path) -> None:
        what, made = f"expected a recording of a planner at {file}", "name a file made with AJET_PLANNER_RECORD"
        try:
            texts = file.read_text(encoding="utf-8").split("\n")  # not at what JSON leaves in a text, such as U+2028
            lines = [_Exchange.model_validate_json(text) for text in texts if text.strip()]
        except OSError as error:
            raise NotReady(f"{what}; found {cause_of(error)}; {made}") from error
        except (ValidationError, UnicodeDecodeError) as error:
            raise NotReady(f"{what}; found something else; {made}") from error
        if not lines:
            raise NotReady(f"{what}; found an empty file; record one first")
        self.where, self.model, self._count = f"the recording {file.name}", lines[0].model, len(lines)
        self.redact = shorten
        self._left: defaultdict[str, deque[_Exchange]] = defaultdict(deque)
        for line in lines:
            self._left[line.request].append(line)

    def complete(self, request: Mapping[str, Any], timeout_s: float) -> str:
        """Return the next recorded reply to the request; raise the recorded failure, or that there is none."""
        asked = _Exchange.of(request)
        if not (lines := self._left.get(asked.request)):
            why = f"{self._count} other exchanges" if lines is None else "all its replies given before"
            raise EndpointError("unrecorded", f"{why} (the request is {asked.request[:12]}, of {asked.model})")
        line = lines.popleft()
        if line.failed is not None:
            raise EndpointError(line.failed.kind, line.failed.text, line.failed.status)
        return line.reply or ""
