"""The planner behind any OpenAI-compatible endpoint: asks, validates, and returns a bad answer with the error.

An action gets three tries. Answers are constrained by the endpoint where it can (`response_format`), by the prompt
where it cannot, and validated here in both cases, so nothing depends on the endpoint's manners. Failures of the
endpoint itself are not retried beyond the SDK's own retry. Errors name the endpoint by host and port only and hold no
key. A server that trickles bytes for ever is not bounded by the timeout, which is between bytes.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError

from research.errors import BadTopic, PlannerFailed
from research.planner.actions import Action
from research.planner.digest import Digest
from research.planner.prompts import ACTIONS, correction, messages, response_format
from research.planner.protocol import Check, PlannerTurn
from research.planner.rewards import NOT_OFFERED
from research.validation import describe

if TYPE_CHECKING:
    import openai

OPENAI = "https://api.openai.com/v1"
TRIES = 3
_LONGEST_ANSWER = 50_000
_MOST_BRACES = 100
"""Places at which an object is looked for; chatter before it seldom holds more braces."""
_SHOWN = 240
_SHORTEST_KEY = 8
"""Shorter ones are placeholders (`none`, `x`), which would be found in any text."""
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


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
    """An answer that is no acceptable action; the text says why."""


class LlmPlanner:
    """Plans by asking a language model."""

    name = "llm"

    def __init__(
        self, model: str, *, api_key: str, base_url: str = OPENAI, timeout_s: float = 120.0, max_retries: int = 1
    ) -> None:
        self.model: str | None = model
        self._api_key = api_key
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._max_retries = max_retries

    def act(self, digest: Digest, check: Check) -> PlannerTurn:
        """Return the due action; PlannerFailed if the endpoint fails or no try is acceptable."""
        if not digest.topic.strip():
            raise BadTopic("expected a topic; found an empty one; say in a sentence what is to be studied")
        import openai

        with openai.OpenAI(
            api_key=self._api_key, base_url=self._base_url, timeout=self._timeout_s, max_retries=self._max_retries
        ) as client:
            return _Turn(client, str(self.model), digest, check, self._failure, self._redacted).take()

    def _failure(self, error: openai.OpenAIError) -> PlannerFailed:
        """Return the endpoint's failure as one line for a person."""
        import openai

        where, model = host_of(self._base_url), self.model
        expected = f"expected an OpenAI-compatible endpoint at {where}"
        if isinstance(error, openai.APITimeoutError):
            return PlannerFailed(
                f"{expected}; found no answer within {self._timeout_s:g} s; try again or another --model"
            )
        if isinstance(error, openai.APIConnectionError):
            return PlannerFailed(f"{expected}; found nothing that answers there; check OPENAI_BASE_URL and the network")
        if isinstance(error, (openai.AuthenticationError, openai.PermissionDeniedError)):
            return PlannerFailed(f"{expected}; it refuses the key ({error.status_code}); check OPENAI_API_KEY")
        if isinstance(error, openai.NotFoundError):
            return PlannerFailed(f"{expected} with model {model!r}; found 404; check --model and OPENAI_BASE_URL")
        if isinstance(error, openai.RateLimitError):
            return PlannerFailed(f"{expected}; it refuses for now (429, rate or credit); try again later")
        if isinstance(error, openai.APIStatusError):
            text = self._redacted(error.message)
            return PlannerFailed(
                f"{expected}; found status {error.status_code}: {text}; check --model and the endpoint"
            )
        return PlannerFailed(f"{expected}; found {self._redacted(str(error))}; check --model and the endpoint")

    def _redacted(self, text: str) -> str:
        """Return a text in short, without the key; refused tries are written into the event log."""
        return _short(text.replace(self._api_key, "***") if len(self._api_key) >= _SHORTEST_KEY else text)


class _Turn:
    """One action: the conversation about it, its tries and its tokens."""

    def __init__(
        self,
        client: openai.OpenAI,
        model: str,
        digest: Digest,
        check: Check,
        failure: Callable[[openai.OpenAIError], PlannerFailed],
        redacted: Callable[[str], str],
    ) -> None:
        self._client = client
        self._model = model
        self._digest = digest
        self._check = check
        self._failure = failure
        self._redacted = redacted
        self._messages: list[dict[str, str]] = messages(digest)
        self._format: dict[str, Any] | None = response_format(digest)
        self._usage = _Usage()
        self._rejected: list[str] = []

    def take(self) -> PlannerTurn:
        """Ask until an answer is acceptable, `TRIES` times at most."""
        for number in range(1, TRIES + 1):
            answer = ""
            try:
                answer = self._ask()
                action = self._accepted(answer)
            except _Unusable as error:
                self._reject(answer, str(error))
                continue
            tokens = self._usage
            return PlannerTurn(
                action, number, tokens.prompt_tokens, tokens.completion_tokens, tuple(self._rejected), self._note()
            )
        told = "; ".join(f"({number}) {_short(error)}" for number, error in enumerate(self._rejected, start=1))
        raise PlannerFailed(
            f"expected a usable '{self._digest.stage}' answer of model {self._model!r}; found {TRIES} refused ones: "
            f"{told}; try another --model, or --planner rules"
        )

    def _note(self) -> str:
        notes = [] if self._format else ["The endpoint takes no response_format; the schema stood in the prompt only."]
        notes += [NOT_OFFERED] if self._digest.stage == "propose" and self._digest.lacks_reward else []
        return " ".join(notes)

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
            raise _Unusable(f"the model refused: {_short(choice.message.refusal)}")
        if choice.finish_reason == "length":
            raise _Unusable("the answer was cut off at the endpoint's token limit; be brief")
        return choice.message.content or ""

    def _body(self) -> str:
        """Return the endpoint's reply as text; a refused `response_format` is left out from then on."""
        import openai

        try:
            return self._post()
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            if self._format is None:
                raise self._failure(error) from error
            self._format = None
            return self._body()
        except openai.OpenAIError as error:
            raise self._failure(error) from error

    def _post(self) -> str:
        request: dict[str, Any] = {"model": self._model, "messages": self._messages}
        if self._format is not None:
            request["response_format"] = self._format
        return self._client.chat.completions.with_raw_response.create(**request).text

    def _accepted(self, answer: str) -> Action:
        value = _json_object(answer)
        try:
            action = ACTIONS[self._digest.stage].model_validate(value)
        except ValidationError as error:
            raise _Unusable(describe(error)) from error
        refused = self._check(action)
        if refused is not None:
            raise _Unusable(refused)
        return action

    def _reject(self, answer: str, error: str) -> None:
        self._rejected.append(self._redacted(error))
        said = [{"role": "assistant", "content": answer[:_LONGEST_ANSWER]}] if answer else []
        self._messages = [*self._messages, *said, {"role": "user", "content": correction(error)}]


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
    raise _Unusable(f"expected one JSON object; found {_short(answer)!r}")


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN else flat[: _SHOWN - 1] + "…"


def host_of(base_url: str) -> str:
    """Return scheme, host and port of an address: no user, password, path or query."""
    parts = urlsplit(base_url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"
