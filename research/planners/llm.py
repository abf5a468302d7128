"""LLMPlanner: a planner behind an endpoint of a language model, any that is like OpenAI's, or Anthropic's.

Each action is one conversation: asked, validated here whatever the endpoint promises, and returned with the error for
at most three tries; looks and notes take no try, and a repeated answer ends it. An endpoint that refuses a request is
asked without tools, then without a response format, then without both; one that gives no answer hands the turn to a
second one, if there is one. After a lock a whole turn is bounded, and code concludes without a model.
"""

import itertools
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from research.errors import BadTopic, DesignRefused, PlannerFailed
from research.planners import endpoint as endpoints
from research.planners import prompts
from research.planners.context import NO_CODE_NOW, Check, PlannerContext, PlannerTurn, ToolResult
from research.planners.endpoint import RetryingEndpoint, shorten
from research.planners.history import redact_secrets, sanitize_line
from research.planners.memory import find_repeated
from research.planners.tools import PLAYS, ToolError, shows_hidden_plays
from research.proposals.actions import Action, Conclude, Propose, ProposeDesign, SideAction, Write
from research.text import describe
from studies.records.base import canonical
from studies.records.design import SLOTS
from studies.records.verdict import ANALYSE, planner_label, quoted

LONGEST_ANSWER = 50_000
_MOST_OF_NAME: Final = 120
_MOST_BRACES = 100
"""Places at which an object is looked for; chatter before it seldom holds more braces."""
_NAMES = r"(?:\w+:)?(?:think|thinking|thought|reasoning|start_thinking)"
_OPENS = re.compile(rf"(?:<|\[|◁|<\|){_NAMES}(?:\|>|>|\]|▷)", re.IGNORECASE)
_CLOSES = re.compile(
    rf"(?:(?:<|\[|◁|<\|)/{_NAMES}|<\|end_thinking)(?:\|>|>|\]|▷)|<\|channel\|>final<\|message\|>", re.IGNORECASE
)
"""Marks around a model's thinking, of which its template may have written the first: of many families' templates."""
MOST_ANSWERED: Final = 24_000
"""Characters of all answers of one turn."""
MOST_OF_ONE: Final = 8_000
"""Characters of one answer."""
_NO_MORE: Final = "no look is left in this turn; act now, with one JSON object that fits the schema"
_CHARACTERS: Final = 4
"""Of a request for each token, about: it is counted once it is answered."""
_PRICE: Final = r"^\d+(\.\d+)?,\d+(\.\d+)?$"
_LEAST_ANSWER: Final = 256
"""Tokens below which no answer is asked for."""
PLANNER = "llm"
FAILED = "failed"
"""What stands for the action of a turn that came to none."""
TRIES = 3
TIMEOUT_S = 600.0
"""Longest that one answer is waited for, unless `--planner-timeout` says otherwise: those that reason take minutes."""
PATIENT_SHARE = 0.2
"""Share of the seconds left that a planner's turn may wait for its endpoint: hours, where the study has days."""


class UnusableAnswer(Exception):
    """An answer that is no acceptable action; the text says why to the model, `message` to a person."""

    def __init__(self, why: str, message: str | None = None) -> None:
        super().__init__(why)
        self.message = message or why


def parse_json_object(answer: str) -> dict[str, Any]:
    """Return the JSON object in what follows an answer's thinking, of several the last, at its very end or in a fence;
    raise UnusableAnswer for none, one that is cut short, and several before other words: which is the draft?"""
    closes = [mark.end() for mark in _CLOSES.finditer(answer)]
    text = answer[closes[-1] :] if closes else answer
    if (opens := _OPENS.search(text)) is not None:
        text = text[: opens.start()]
        if "{" not in text:
            raise UnusableAnswer("expected an answer after the thinking; found thinking that does not end: think less")
    text = text[:LONGEST_ANSWER]
    decoder, objects, after, final = json.JSONDecoder(), list[dict[str, Any]](), 0, False
    outer = (brace.start() for brace in re.finditer("{", text) if brace.start() >= after)
    for start in itertools.islice(outer, _MOST_BRACES):
        try:
            value, after = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            ended = error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip().rstrip("`"))
            if ended and re.match(r'\{\s*"', text[start:]):  # else it is chatter in braces
                raise UnusableAnswer("expected one JSON object; found one that is cut short: say less") from None
        except (ValueError, RecursionError):
            continue
        else:
            objects += [value]
            if value:
                final = not text[after:].strip("` \n\r\t") or re.search(r"```\w*\s*$", text[:start]) is not None
    meant = [value for value in objects if value] or objects[:1]
    if not meant:
        raise UnusableAnswer(f"expected one JSON object; found {shorten(answer)!r}")
    if any(value != meant[0] for value in meant) and not final:
        raise UnusableAnswer(f"expected one JSON object; found {len(meant)}: answer with the final one alone")
    return meant[-1]


def _option(about: str, **bounds: Any) -> Any:
    return Field(default=None, description=about, **bounds)


class PlannerOptions(BaseModel):
    """How a language model plans. Each is a flag, a field of Prefect's form, and a variable such as
    AJET_PLANNER_TIMEOUT; a study keeps its flags."""

    model_config = ConfigDict(extra="forbid")

    planner_endpoint: Literal["openai", "anthropic"] | None = _option(
        "Whose API it has, where variables of both are set."
    )
    planner_timeout: float | None = _option("Seconds that one answer is waited for (600).", ge=1, le=86_400)
    planner_tokens: int | None = _option("Most tokens of one answer, its thinking included.", ge=1024)
    planner_effort: str | None = _option("How much it reasons, in the endpoint's words: low, high.", pattern="^[a-z]+$")
    planner_price: str | None = _option("IN,OUT: price of a million tokens, read and written.", pattern=_PRICE)
    planner_max_tokens: int | None = _option("Most tokens of the study, read and written; then rules plan.", ge=1)
    planner_max_cost: float | None = _option("The same in money, by --planner-price.", gt=0, allow_inf_nan=False)
    planner_fallback: str | None = _option(
        "MODEL@openai, @anthropic or @URL: asked if it is silent.", pattern="^[^@]+@[^@]+$"
    )

    def cost(self, tokens: Mapping[str, float]) -> float | None:
        """Return the price of tokens, None where nobody named prices."""
        if self.planner_price is None:
            return None
        read, written = map(float, self.planner_price.split(","))
        return (tokens["prompt"] * read + tokens["completion"] * written) / 1e6


class ActionConversation:
    """One action: the conversation about it, its tries, looks and tokens."""

    def __init__(
        self, lines: Sequence[RetryingEndpoint], context: PlannerContext, check: Check, options: PlannerOptions,
        total: dict[str, float],
    ) -> None:  # fmt: skip
        """`total` is what the study took until now (`prompt`, `completion`); it is counted on."""
        self._lines, self._context, self._check = list(lines), context, check
        self._options, self._total, self._spent = options, total, dict[str, dict[str, float]]()
        self._sizes = 0, 0
        """Characters of the last request and its reply."""
        self._gone = ""
        """Who gave no answer, and who was asked then."""
        self._tools = None if context.stage in ("conclude", "review") else context.tools
        self._looks, self._left = list[ToolResult](), MOST_ANSWERED
        """What was looked at, and how many characters are left to look at."""
        self._ways = self._list_ways()
        """With tools, and with a response format: what the endpoint may still be asked with."""
        self._said: list[dict[str, Any]] = []
        self._side_actions: list[SideAction] = []
        self._rejected: list[tuple[str, str]] = []
        """Why answers were refused, for the model and for a person."""
        self._answer = ""
        self._written: tuple[Write, DesignRefused] | None = None
        """The last answer to the topic that was refused: it is printed with marks where no better one follows."""
        self._refused: str | None = None
        self._answers: set[str] = set()
        self._models: dict[str, None] = {}

    @property
    def _line(self) -> RetryingEndpoint:
        return self._lines[0]

    def _list_ways(self) -> list[tuple[bool, bool]]:
        ways = [(True, True), (False, True), (True, False), (False, False)]
        return [way for way in ways if self._tools is not None or not way[0]]

    def run(self) -> PlannerTurn:
        """Return the turn of the first answer that is taken; raise PlannerFailed, with what was spent on it."""
        try:
            for number in range(1, TRIES + 1):
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
                f"expected a usable '{self._context.stage}' answer of model {self._line.model!r}; found "
                f"{len(self._rejected)} refused: {tries}; try another --planner-model, or --planner rules"
            )
            raise PlannerFailed(message, self._refused)
        except PlannerFailed as error:
            if self._written is not None:
                return replace(self._make_turn(self._written[0], len(self._rejected)), refused=self._written[1])
            error.spent = replace(self._make_turn(Conclude(reason=FAILED), len(self._rejected)), note="").payload() | {
                "action": FAILED, "looks": [look.payload() for look in self._looks],
            }  # fmt: skip
            raise

    def _next_action(self) -> Action:
        while True:
            self._answer = ""
            try:
                completion = endpoints.ChatCompletion.model_validate_json(self._fetch_body())
            except ValidationError as error:
                raise UnusableAnswer(f"the endpoint's reply is no chat completion: {describe(error)}") from error
            if isinstance(completion.model, str) and (model := sanitize_line(completion.model, _MOST_OF_NAME)):
                self._models[model] = None
            message, ended = completion.choices[0].message, completion.choices[0].finish_reason
            self._count(completion.usage, "tools" if message.tool_calls and self._ways[0][0] else self._context.stage)
            if message.refusal:
                raise UnusableAnswer(f"the model refused: {shorten(message.refusal)}")
            if ended == "length":
                raise UnusableAnswer("the answer was cut off at the endpoint's token limit; be brief")
            if message.tool_calls and self._ways[0][0]:
                self._answer = message.content or ""
                said, *answers = self._run_tool_calls(message.tool_calls)
                thinking = {endpoints.THINKING: message.anthropic_thinking} if message.anthropic_thinking else {}
                self._said += [said | {"content": self._answer[:LONGEST_ANSWER] or None} | thinking, *answers]
                continue
            if (message.tool_calls or ended == "tool_calls") and not message.content:
                raise UnusableAnswer(
                    "expected a JSON object in the message's content; found a tool call, and there is no tool; write "
                    "the object as the message itself"
                )
            self._answer = message.content or ""
            action = self._parse_answer(self._answer)
            if not isinstance(action, SideAction):
                return action
            left = prompts.MOST_SIDE_ACTIONS - len(self._side_actions) - 1
            if left < 0:
                raise UnusableAnswer(
                    f"{prompts.MOST_SIDE_ACTIONS} things were written down in this turn, which is all that may be; "
                    "act now"
                )
            if action in self._side_actions:
                raise UnusableAnswer("that was written down before, in this turn; act now")
            self._side_actions.append(action)
            self._say(
                f"That is written down; {left or 'no'} more may be in this turn. Now go on, with one JSON object that "
                "fits the schema."
            )

    def _count(self, usage: endpoints.ChatCompletion.Usage | None, purpose: str) -> None:
        spent = self._spent.setdefault(purpose, {"prompt": 0, "completion": 0})
        for kind, characters in zip(spent, self._sizes, strict=True):
            count = None if usage is None else getattr(usage, f"{kind}_tokens")
            spent[kind] += count or 0
            self._total[kind] += characters / _CHARACTERS if count is None else count  # where nobody counts, too

    def _cap(self, request: dict[str, Any]) -> int | None:
        """Return the most tokens that an answer may have, None for any; raise PlannerFailed where a cap leaves none."""
        options, read = self._options, len(json.dumps(request)) / _CHARACTERS
        most, caps = [float(options.planner_tokens or endpoints.USUAL_TOKENS)], list[str]()
        if options.planner_max_tokens is not None:
            caps.append(f"--planner-max-tokens {options.planner_max_tokens}")
            most.append(options.planner_max_tokens - sum(self._total.values()) - read)
        if options.planner_max_cost is not None:
            spent = options.cost({**self._total, "prompt": self._total["prompt"] + read}) or 0.0
            each = options.cost({"prompt": 0, "completion": 1}) or 1e-9
            caps.append(f"--planner-max-cost {options.planner_max_cost:g}")
            most.append((options.planner_max_cost - spent) / each)
        if min(most) < _LEAST_ANSWER:
            money = "" if (cost := options.cost(self._total)) is None else f" for {cost:.2f}"
            tokens = sum(self._total.values())
            raise PlannerFailed(
                f"expected room for an answer under {' and '.join(caps)}; found {tokens:,.0f} tokens spent{money}: no "
                "model is asked any more; `ajet study resume` takes a larger cap"
            )
        return int(min(most)) if options.planner_tokens or min(most) < endpoints.USUAL_TOKENS else None

    @property
    def _is_exhausted(self) -> bool:
        return len(self._looks) >= prompts.MOST_TOOL_CALLS or self._left <= 0

    def _run_tool_calls(self, calls: Sequence[Any]) -> list[dict[str, Any]]:
        if self._is_exhausted:
            raise UnusableAnswer(_NO_MORE)
        try:
            read = [endpoints.CompletionToolCall.model_validate(call) for call in calls]
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
        split = "" if "refused" in shown else str(shown.get("split", "hidden"))
        text = redact_secrets(json.dumps(shown, ensure_ascii=False))
        most = min(MOST_OF_ONE, self._left)
        text = text if len(text) <= most else f"{text[:most]}… (cut; ask for less)"
        self._left -= len(text)
        made = shown.get("quoted") if name == ANALYSE else None
        self._looks.append(ToolResult(name, values, text, split if name == PLAYS else "", made))
        return text

    def _fetch_body(self) -> str:
        while True:
            by_tools, by_format = self._ways[0]
            tools = self._tools if by_tools else None
            asked = prompts.messages(self._context, tools, schema_apart=by_format)
            request: dict[str, Any] = {"model": self._line.model, "messages": [*asked, *self._said]}
            if self._options.planner_effort is not None:
                request["reasoning_effort"] = self._options.planner_effort
            if tools is not None:
                forms = [(name, prompts.schema(kind)) for name, kind in tools.offered.items()]
                abouts = [" ".join(form.pop("description").split()) for _, form in forms]
                request["tools"] = [
                    {"type": "function", "function": {"name": name, "description": about, "parameters": form}}
                    for (name, form), about in zip(forms, abouts, strict=True)
                ]
                request |= {"tool_choice": "none"} if self._is_exhausted else {}
            if by_format:
                bare = prompts.due_schema(self._context, described=False)
                named = {"name": self._context.stage, "strict": True, "schema": bare}
                request |= {"response_format": {"type": "json_schema", "json_schema": named}}
            if (most := self._cap(request)) is not None:
                request["max_completion_tokens"] = most
            try:
                body = self._line.complete(request)
                self._sizes = len(json.dumps(request)), len(body)
                return body
            except endpoints.EndpointError as error:
                if error.status in (400, 422) and len(self._ways) > 1:
                    self._ways.pop(0)
                    continue
                failed = self._line.make_error(error)
                if len(self._lines) == 1:
                    raise PlannerFailed(f"{self._gone}{failed.message}") from error
                self._gone = f"{failed.message}; {self._lines[1].model} was asked instead. "
                self._lines.pop(0)
                self._ways = self._list_ways()
                for message in self._said:
                    message.pop(endpoints.THINKING, None)

    def _parse_answer(self, answer: str) -> Action:
        value = parse_json_object(answer)
        try:
            action = prompts.parse_action(self._context, value)
        except ValidationError as error:
            raise UnusableAnswer(describe(error)) from error
        if isinstance(action, Propose) and any(not claim.falsifier for claim in action.hypotheses):
            raise UnusableAnswer(
                "falsifier: expected the cheapest observation that would show the claim to be false; found none"
            )
        if (repeated := find_repeated(self._context, action)) is not None:
            raise UnusableAnswer(repeated)
        coded = isinstance(action, Propose) and any(entry.variable in SLOTS for entry in action.hypotheses)
        if coded and any(shows_hidden_plays(look.payload()) for look in self._looks):
            raise UnusableAnswer(f"expected hypotheses about job fields; found code: {NO_CODE_NOW}")
        if (refused := self._check(action)) is not None:
            self._written = (action, refused) if isinstance(action, Write) else None
            self._refused = self._line.redact(refused.model_feedback) if isinstance(action, ProposeDesign) else None
            raise UnusableAnswer(refused.model_feedback, refused.message)
        return action

    def _say(self, text: str) -> None:
        answer = [{"role": "assistant", "content": self._answer[:LONGEST_ANSWER]}] if self._answer else []
        self._said += [*answer, {"role": "user", "content": text}]

    def _make_turn(self, action: Action, tries: int) -> PlannerTurn:
        by_tools, by_format = self._ways[0]
        notes = [self._gone.strip()] if self._gone else []
        notes += [] if by_format else ["The endpoint takes no response_format; the schema stood in the prompt only."]
        if self._tools is not None and not by_tools:
            notes.append("The endpoint takes no tools, so that nothing could be looked at.")
        said = action.not_tested.strip() if isinstance(action, Propose | ProposeDesign) else ""
        prompt, completion = (sum(int(one[kind]) for one in self._spent.values()) for kind in ("prompt", "completion"))
        priced = {name: (each, self._options.cost(each)) for name, each in self._spent.items()}
        spent = {name: each | ({} if cost is None else {"cost": cost}) for name, (each, cost) in priced.items()}
        return PlannerTurn(
            action, tries, prompt, completion, spent=spent if sum((prompt, completion)) else {},
            rejected=tuple(why for why, _ in self._rejected),
            note=" ".join(filter(None, (*notes, self._line.note))),
            not_tested=(f"{planner_label(PLANNER, self._line.model)}: {quoted(said)}",) if said else (),
            models=tuple(self._models), tool_results=tuple(self._looks), side_actions=tuple(self._side_actions),
        )  # fmt: skip


class LlmPlanner:
    """Plans by asking a language model."""

    name = PLANNER

    def __init__(
        self, model: str, endpoint: endpoints.Endpoint, *, options: PlannerOptions | None = None,
        fallback: tuple[str, endpoints.Endpoint] | None = None, patience_s: float | None = None,
        sleep: Callable[[float], None] = time.sleep, note: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        """`patience_s` is how long a turn may wait (default: `PATIENT_SHARE` of the time left); `note` hears of it."""
        self.model: str | None = model
        self._endpoints = [(model, endpoint), *([] if fallback is None else [fallback])]
        self._options, self._patience_s = options or PlannerOptions(), patience_s
        self._sleep, self._note, self._reached = sleep, note, False
        """Whether the endpoint was ever there."""
        self._total: dict[str, float] | None = None

    def act(self, context: PlannerContext, check: Check) -> PlannerTurn:
        if not context.topic.strip():
            raise BadTopic("expected a topic; found an empty one; say in a sentence what is to be studied")
        timeout_s = self._options.planner_timeout or TIMEOUT_S
        # Whoever proposed has answered before, in this process or another.
        reached = self._reached or context.stage != "propose" or context.campaign is not None
        patience_s = PATIENT_SHARE * context.seconds_left if self._patience_s is None else self._patience_s
        patient = context.stage in prompts.DECLINABLE  # a study goes on, and ends, without its words
        patience = [patience_s if patient else 0.0, 0.0]  # none for the second one, which is asked once
        most_s = math.inf if patient else max(timeout_s * len(self._endpoints), PATIENT_SHARE * context.seconds_left)
        lines = [
            RetryingEndpoint(model, source, timeout_s, left, self._sleep, self._note, reached=reached, turn_s=most_s)
            for (model, source), left in zip(self._endpoints, patience, strict=False)
        ]
        if self._total is None:  # it goes on from what the study took in another process
            self._total = {"prompt": 0.0, "completion": 0.0, **context.tokens_spent}
        try:
            return ActionConversation(lines, context, check, self._options, self._total).run()
        finally:
            self._reached = lines[0].reached
