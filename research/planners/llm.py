"""LLMPlanner: a planner behind any OpenAI-compatible endpoint.

Each action is one conversation: asked, validated here whatever the endpoint promises, and returned with the error for
at most three tries; looks and notes take no try, and a repeated answer ends it. Looks are tool calls, counted and
capped. An endpoint that refuses a request (400, 422) is asked without tools, so that nothing can be looked at, then
without a response format, then without both. Several JSON objects of which one may be a draft, or one cut short, are
`UnusableAnswer`.

After the verdicts there is a single try, and code concludes without a model.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import BaseModel, Field, ValidationError, field_validator

from research.errors import BadTopic, PlannerFailed
from research.planners.context import NO_REWARD_NOW, Check, PlannerContext, PlannerTurn, ToolResult
from research.planners.endpoint import Endpoint, EndpointError, RetryingEndpoint, shorten
from research.planners.history import redact_secrets, sanitize_line
from research.planners.prompts import (
    MOST_SIDE_ACTIONS,
    MOST_TOOL_CALLS,
    due_schema,
    find_unstated,
    messages,
    parse_action,
    schema,
)
from research.planners.tools import PLAYS, ToolError
from research.proposals.actions import Action, AskUser, Conclude, Note, Propose, ProposeDesign, Revise, SideAction
from research.text import describe
from studies.records.base import canonical
from studies.records.design import REWARD
from studies.records.verdict import planner_label

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


class ChatCompletion(BaseModel):
    """The part of a chat completion that is read; some endpoints count no tokens, or say null."""

    class Choice(BaseModel):
        message: Message
        finish_reason: str | None = None

    class Usage(BaseModel):
        prompt_tokens: int | None = 0
        completion_tokens: int | None = 0

    choices: list[Choice] = Field(min_length=1)
    usage: Usage | None = None


class UnusableAnswer(Exception):
    """An answer that is no acceptable action; the text says why to the model, `message` to a person."""

    def __init__(self, why: str, message: str | None = None) -> None:
        super().__init__(why)
        self.message = message or why


def parse_json_object(answer: str) -> dict[str, Any]:
    """Return the one JSON object in what follows an answer's thinking; raise UnusableAnswer for none, one that is cut
    short, and several: which is the draft?
    """
    closes = [mark.end() for mark in _CLOSES.finditer(answer)]
    text = answer[closes[-1] :] if closes else answer
    if (opens := _OPENS.search(text)) is not None:
        text = text[: opens.start()]
        if "{" not in text:
            raise UnusableAnswer("expected an answer after the thinking; found thinking that does not end: think less")
    text = text[:LONGEST_ANSWER]
    decoder, objects, after = json.JSONDecoder(), list[dict[str, Any]](), 0
    for start in (brace.start() for brace in itertools.islice(re.finditer("{", text), _MOST_BRACES)):
        if start < after:
            continue
        try:
            value, after = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            ended = error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip().rstrip("`"))
            if ended and re.match(r'\{\s*"', text[start:]):  # else it is chatter in braces
                raise UnusableAnswer("expected one JSON object; found one that is cut short: say less") from None
        except (ValueError, RecursionError):
            continue
        else:
            objects += [value] if isinstance(value, dict) else []
    meant = [value for value in objects if value] or objects[:1]
    if not meant:
        raise UnusableAnswer(f"expected one JSON object; found {shorten(answer)!r}")
    if any(value != meant[0] for value in meant):
        raise UnusableAnswer(f"expected one JSON object; found {len(meant)}: answer with the final one alone")
    return meant[0]


MOST_ANSWERED: Final = 24_000
"""Characters of all answers of one turn."""
MOST_OF_ONE: Final = 8_000
"""Characters of one answer."""
_NO_MORE: Final = "no look is left in this turn; act now, with one JSON object that fits the schema"


class PlannerToolCall(BaseModel):
    """A call of a tool as a model writes it."""

    class Function(BaseModel):
        name: str
        arguments: str | dict[str, Any] | None = None

    id: str = ""
    function: Function


_REFUSALS: Final = (400, 422)
PLANNER = "llm"
FAILED = "failed"
"""What stands for the action of a turn that came to none."""


class ActionConversation:
    """One action: the conversation about it, its tries, looks and tokens."""

    def __init__(
        self, line: RetryingEndpoint, model: str, context: PlannerContext, check: Check, *, tries: int
    ) -> None:
        self._line, self._model, self._context, self._check, self._tries = line, model, context, check, tries
        self._tools = None if context.stage == "conclude" else context.tools
        self._looks, self._left = list[ToolResult](), MOST_ANSWERED
        """What was looked at, and how many characters are left to look at."""
        ways = [(True, True), (False, True), (True, False), (False, False)]
        self._ways = [way for way in ways if self._tools is not None or not way[0]]
        """With tools, and with a response format: what the endpoint may still be asked with."""
        self._said: list[dict[str, Any]] = []
        self._prompt_tokens, self._completion_tokens = 0, 0
        self._side_actions: list[SideAction] = []
        self._rejected: list[tuple[str, str]] = []
        """Why answers were refused, for the model and for a person."""
        self._answer = ""
        self._refused: str | None = None
        self._answers: set[str] = set()

    def run(self) -> PlannerTurn:
        """Return the turn of the first answer that is taken; raise PlannerFailed, with what was spent on it."""
        try:
            for number in range(1, self._tries + 1):
                try:
                    action = self._next_action()
                except UnusableAnswer as error:
                    # The same answer once more, word for word: nothing new is to be expected.
                    repeated = bool(self._answer) and self._answer in self._answers
                    self._answers.add(self._answer)
                    again = "; the same answer as before" if repeated else ""
                    self._rejected.append(
                        (self._line.redact(str(error)) + again, self._line.redact(error.message) + again)
                    )
                    self._say(
                        f"That answer was refused: {error}. Answer again with one JSON object that fits the schema."
                    )
                    if repeated:
                        break
                else:
                    return self._make_turn(action, number)
            tries = "; ".join(f"({n}) {shorten(why)}" for n, (_, why) in enumerate(self._rejected, start=1))
            message = (
                f"expected a usable '{self._context.stage}' answer of model {self._model!r}; found "
                f"{len(self._rejected)} refused: {tries}; try another --planner-model, or --planner rules"
            )
            raise PlannerFailed(message, self._refused)
        except PlannerFailed as error:
            error.spent = replace(self._make_turn(Conclude(reason=FAILED), len(self._rejected)), note="").payload() | {
                "action": FAILED, "looks": [look.payload() for look in self._looks],
            }  # fmt: skip
            raise

    def _next_action(self) -> Action:
        while True:
            self._answer = ""
            try:
                completion = ChatCompletion.model_validate_json(self._fetch_body())
            except ValidationError as error:
                raise UnusableAnswer(f"the endpoint's reply is no chat completion: {describe(error)}") from error
            if (usage := completion.usage) is not None:
                self._prompt_tokens += usage.prompt_tokens or 0
                self._completion_tokens += usage.completion_tokens or 0
            message, ended = completion.choices[0].message, completion.choices[0].finish_reason
            if message.refusal:
                raise UnusableAnswer(f"the model refused: {shorten(message.refusal)}")
            if ended == "length":
                raise UnusableAnswer("the answer was cut off at the endpoint's token limit; be brief")
            if message.tool_calls and self._ways[0][0]:
                self._answer = message.content or ""
                self._said += self._run_tool_calls(message.tool_calls)
                continue
            if (message.tool_calls or ended == "tool_calls") and not message.content:
                raise UnusableAnswer(
                    "expected a JSON object in the message's content; found a tool call, and there is no tool; write "
                    "the object as the message itself"
                )
            self._answer = message.content or ""
            action = self._parse_answer(self._answer)
            if not isinstance(action, Note | Revise | AskUser):
                return action
            if len(self._side_actions) >= MOST_SIDE_ACTIONS:
                raise UnusableAnswer(
                    f"{MOST_SIDE_ACTIONS} things were written down in this turn, which is all that may be; act now"
                )
            if action in self._side_actions:
                raise UnusableAnswer("that was written down before, in this turn; act now")
            self._side_actions.append(action)
            left = MOST_SIDE_ACTIONS - len(self._side_actions)
            self._say(
                f"That is written down; {left or 'no'} more may be in this turn. Now go on, with one JSON object that "
                "fits the schema."
            )

    @property
    def _is_exhausted(self) -> bool:
        return len(self._looks) >= MOST_TOOL_CALLS or self._left <= 0

    def _run_tool_calls(self, calls: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the messages that a model's tool calls become; raise UnusableAnswer beyond the cap."""
        if self._is_exhausted:
            raise UnusableAnswer(_NO_MORE)
        try:
            read = [PlannerToolCall.model_validate(call) for call in calls]
        except ValidationError as error:
            raise UnusableAnswer(f"expected a tool call with a function's name; found {shorten(str(calls))}") from error
        said, answers = list[dict[str, Any]](), list[dict[str, Any]]()
        for number, call in enumerate(read, start=len(self._looks)):
            known, name, given = call.id or f"look-{number}", call.function.name, call.function.arguments
            text = given if isinstance(given, str) else json.dumps(given or {})
            said.append({"id": known, "type": "function", "function": {"name": name, "arguments": text}})
            answers.append({"role": "tool", "tool_call_id": known, "content": self._look(name, text)})
        return [{"role": "assistant", "content": None, "tool_calls": said}, *answers]

    def _look(self, name: str, arguments: str) -> str:
        """Take a look and return its answer as text; one that cannot be had is answered with the reason."""
        if self._is_exhausted:
            return json.dumps({"refused": _NO_MORE})
        assert self._tools is not None
        name, values = sanitize_line(name)[:60], dict[str, Any]()
        try:
            values = parse_json_object(arguments) if arguments.strip() else {}
            canonical(values).encode()  # JSON knows numbers and characters that no log takes
            shown = dict(self._tools.answer(name, values))
        except ToolError as error:
            shown = {"refused": str(error)}
        except UnusableAnswer:
            shown = {"refused": f"expected arguments that are a JSON object; found {shorten(arguments)!r}"}
        except ValueError as error:
            shown, values = {"refused": f"expected finite numbers and whole characters; found {error}"}, {}
        text = redact_secrets(json.dumps(shown, ensure_ascii=False))
        most = min(MOST_OF_ONE, self._left)
        text = text if len(text) <= most else f"{text[:most]}… (cut; ask for less)"
        self._left -= len(text)
        self._looks.append(ToolResult(name, values, text))
        return text

    def _fetch_body(self) -> str:
        """Return the endpoint's reply as text; what it refuses is left out from then on."""
        while True:
            by_tools, by_format = self._ways[0]
            tools = self._tools if by_tools else None
            asked = messages(self._context, tools, schema_apart=by_format)
            request: dict[str, Any] = {"model": self._model, "messages": [*asked, *self._said]}
            if tools is not None:
                offered = ((name, " ".join((kind.__doc__ or "").split()), kind) for name, kind in tools.offered.items())
                request["tools"] = [
                    {"type": "function", "function": {"name": name, "description": about, "parameters": schema(kind)}}
                    for name, about, kind in offered
                ]
                request |= {"tool_choice": "none"} if self._is_exhausted else {}
            if by_format:
                bare = due_schema(self._context, described=False)
                named = {"name": self._context.stage, "strict": True, "schema": bare}
                request |= {"response_format": {"type": "json_schema", "json_schema": named}}
            try:
                return self._line.complete(request)
            except EndpointError as error:
                if error.status not in _REFUSALS or len(self._ways) == 1:
                    raise self._line.make_error(error, self._model) from error
                self._ways.pop(0)

    def _parse_answer(self, answer: str) -> Action:
        value = parse_json_object(answer)
        try:
            action = parse_action(self._context, value)
        except ValidationError as error:
            raise UnusableAnswer(describe(error)) from error
        if (unstated := find_unstated(action)) is not None:
            raise UnusableAnswer(unstated)
        coded = isinstance(action, Propose) and any(entry.variable == REWARD for entry in action.hypotheses)
        if coded and any(look.name == PLAYS for look in self._looks):
            raise UnusableAnswer(f"expected hypotheses about job fields; found a reward function: {NO_REWARD_NOW}")
        if (refused := self._check(action)) is not None:
            self._refused = self._line.redact(refused.model_feedback) if isinstance(action, ProposeDesign) else None
            raise UnusableAnswer(refused.model_feedback, refused.message)
        return action

    def _say(self, text: str) -> None:
        """Answer what the model said last, where it said something."""
        answer = [{"role": "assistant", "content": self._answer[:LONGEST_ANSWER]}] if self._answer else []
        self._said += [*answer, {"role": "user", "content": text}]

    def _make_turn(self, action: Action, tries: int) -> PlannerTurn:
        by_tools, by_format = self._ways[0]
        notes = [] if by_format else ["The endpoint takes no response_format; the schema stood in the prompt only."]
        if self._tools is not None and not by_tools:
            notes.append("The endpoint takes no tools, so that nothing could be looked at.")
        said = action.not_tested.strip() if isinstance(action, Propose | ProposeDesign) else ""
        return PlannerTurn(
            action, tries, self._prompt_tokens, self._completion_tokens,
            rejected=tuple(why for why, _ in self._rejected),
            note=" ".join(filter(None, (*notes, self._line.note))),
            not_tested=(f'{planner_label(PLANNER, self._model)}: "{said}"',) if said else (),
            tool_results=tuple(self._looks), side_actions=tuple(self._side_actions),
        )  # fmt: skip


TRIES = 3
TIMEOUT_S = 120.0
"""Longest that one answer is waited for, unless `--planner-timeout` says otherwise."""
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
        timeout_s: float = TIMEOUT_S,
        patience_s: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`patience_s` is how long a turn may wait (default: `PATIENT_SHARE` of the time left); `note` hears of it."""
        self.model: str | None = model
        self._endpoint, self._timeout_s, self._patience_s = endpoint, timeout_s, patience_s
        self._sleep, self._note, self._reached = sleep, note, False
        """Whether the endpoint was ever there."""

    def act(self, context: PlannerContext, check: Check) -> PlannerTurn:
        if not context.topic.strip():
            raise BadTopic("expected a topic; found an empty one; say in a sentence what is to be studied")
        over, timeout_s = context.stage == "conclude", self._timeout_s
        # Whoever proposed has answered before, in this process or another.
        reached = self._reached or context.stage != "propose" or context.campaign is not None
        patience_s = PATIENT_SHARE * context.seconds_left if self._patience_s is None else self._patience_s
        if over:
            timeout_s, patience_s = min(timeout_s, CONCLUSION_TIMEOUT_S), 0.0
        line = RetryingEndpoint(self._endpoint, timeout_s, patience_s, self._sleep, self._note, reached=reached)
        try:
            return ActionConversation(line, str(self.model), context, check, tries=1 if over else TRIES).run()
        finally:
            self._reached = line.reached
