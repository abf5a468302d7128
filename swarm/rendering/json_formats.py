"""Tool-call formats written as JSON or Python: Harmony, Llama 3, Mistral, fenced blocks.

- Llama 3: an answer that is JSON as a whole, one call or several separated by `;`, maybe after `<|python_tag|>`.
- Mistral: `[TOOL_CALLS]` before a JSON list (to v7) or before each call as `name[ARGS]{...}`, to the next or the end.
- Fenced (Gemma): `tool_code` holds Python, of which only literal keyword arguments are read; `json` holds JSON.
- Harmony (gpt-oss): messages on channels, each with a header and a body: analysis is thinking, final is words,
  commentary is words too unless its header is addressed to a function, which makes it a call. The mark that ends a call
  is a stop id and may be missing from the text.
"""

import ast
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from swarm.rendering import reading
from swarm.rendering.messages import AnswerFormat, Piece, Reader, Reasoning, Thinking, ToolCall, Words
from swarm.rendering.tagged import Calls, TaggedFormat, Tools, read_json

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_HEADERS = (_START, _CHANNEL, " to=", "<|constrain|>", _MESSAGE)
"""What a header may begin with; text that begins otherwise is words."""
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_end = re.compile("|".join(map(re.escape, _ENDS)))
_recipient = re.compile(r"to=([^\s<]+)")
_channel = re.compile(re.escape(_CHANNEL) + r"\s*(\w+)")
_LONGEST = 256
"""Characters within which a header must end; text without its end is words."""


class _HarmonyReader(reading.StepReader):
    def __init__(self, opening: str, tools: bool) -> None:
        super().__init__(self._between)
        self._tools = tools
        self._raw = ""  # the present message's header, as it was sampled
        self._name = ""
        self._searched = self._unterminated = 0
        self._prompted = opening
        if _MESSAGE in opening:
            self._enter(opening)

    def _words(self, over: bool) -> bool:
        return self._stream(Words, over)

    def _between(self, over: bool) -> bool:
        text = self._text
        if not over and (not text or any(mark.startswith(text) for mark in _HEADERS)):
            return False
        if not text.startswith(_HEADERS):
            self._step = self._words
            return bool(text)
        head, mark, rest = text.partition(_MESSAGE)
        if not mark and not over and len(text) < _LONGEST:
            return False
        if not mark or len(head) + len(mark) > _LONGEST:
            self._step = self._words
            return True
        self._raw, self._text = head + mark, rest
        self._enter(self._prompted + head)
        return True

    def _enter(self, header: str) -> None:
        recipient, channel = _recipient.search(header), _channel.search(header)
        self._prompted = ""
        if recipient:
            self._name = recipient[1].removeprefix("functions.")
            known = self._tools and self._name and self._name != recipient[1]
            self._searched = self._unterminated = 0
            if known:
                self._step = self._call
            else:
                self._refuse_call()
        else:
            analysis = channel is not None and channel[1] == "analysis"
            self._step = partial(self._stream, Reasoning) if analysis else self._words

    def _stream(self, kind: type[Words] | type[Reasoning], over: bool) -> bool:
        end = _end.search(self._text)
        if end:
            self._pieces.text(kind, self._text[: end.start()])
            self._text = self._text[end.end() :]
            self._step = self._between
            return True
        held = 0 if over else max(reading.partial_match_size(self._text, mark) for mark in _ENDS)
        self._give(kind, len(self._text) - held)
        return False

    def _call(self, over: bool) -> bool:
        end = _end.search(self._text, self._searched)
        if end is None and not over:
            self._searched = max(self._searched, len(self._text) - max(map(len, _ENDS)) + 1)
            return False
        body = self._text[: end.start()] if end else self._text
        try:
            whole = reading.members(body) is not None
        except reading.UnterminatedString:
            self._unterminated += 1
            if end and self._unterminated < reading.MAX_UNTERMINATED:
                self._searched = end.end()
                return True
            whole = False
        if not whole:
            self._refuse_call()
            return True
        self._pieces.calls([ToolCall(self._name, body.strip())])
        self._text = self._text[end.end() :] if end else ""
        self._step = self._between
        return True

    def _refuse_call(self) -> None:
        self._pieces.text(Words, self._raw)
        self._step = self._words


class HarmonyFormat(AnswerFormat):
    """A thought is its own message; calls, marked by ids that no text names, cannot be forced."""

    name = "harmony"

    def special(self, tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        return True

    def reader(self, prompt: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reader:
        return _HarmonyReader(prompt[prompt.rfind(_START) :] if _START in prompt else "", bool(tools))


def _read_python(body: str) -> Sequence[ToolCall] | None:
    calls: list[ToolCall] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = ast.parse(body.strip(), mode="eval").body
        for node in code.elts if isinstance(code, ast.List) else [code]:
            if not isinstance(node, ast.Call) or node.args or any(word.arg is None for word in node.keywords):
                return None
            values = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
            arguments = json.dumps(values, ensure_ascii=False, allow_nan=False)
            if not reading.is_sendable(arguments):
                return None
            calls.append(ToolCall(ast.unparse(node.func), arguments))
    except SyntaxError as error:
        if "unterminated" in str(error.msg):
            raise reading.UnterminatedString from error
        return None
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
    return calls


class FencedFormat(TaggedFormat):
    """Calls in the language the template names; Python calls have no JSON grammar."""

    def __init__(self, language: Literal["tool_code", "json"]) -> None:
        read = _read_python if language == "tool_code" else partial(read_json, arguments=("arguments", "parameters"))
        super().__init__("fenced", None, lambda _: Calls(read, f"```{language}\n", "```"))

    def special(self, tools: Tools = ()) -> bool:
        return False


_TAG = "<|python_tag|>"
_ARGUMENT_KEYS = ("parameters", "arguments")
_KEYS = ('"name"', '"type"', '"function"', *(f'"{key}"' for key in _ARGUMENT_KEYS))
_opening = re.compile(r"\{\s*")


class _Llama3Reader(Reader):
    def __init__(self) -> None:
        self._text = ""
        self._spoken = False

    def feed(self, text: str) -> Sequence[Piece]:
        if self._spoken:
            return (Words(text),) if text else ()
        self._text += text
        if _may_call(self._text):
            return ()
        self._spoken = True
        return (Words(self._text),)

    def finish(self) -> Sequence[Piece]:
        if self._spoken or not self._text:
            return ()
        try:
            texts = reading.split_values(self._text.strip().removeprefix(_TAG), ";") or []
            calls = [call for call in (reading.parse_call(text, _ARGUMENT_KEYS) for text in texts) if call is not None]
        except reading.UnterminatedString:
            texts, calls = [], []
        return calls if calls and len(calls) == len(texts) else (Words(self._text),)


def _may_call(text: str) -> bool:
    rest = text.lstrip()
    if _TAG.startswith(rest):
        return True
    opening = _opening.match(rest.removeprefix(_TAG).lstrip() or "{")
    key = opening.string[opening.end() :][: max(map(len, _KEYS))] if opening else ""
    return opening is not None and any(known.startswith(key) or key.startswith(known) for known in _KEYS)


class Llama3Format(AnswerFormat):
    """Llama 3.1 to 3.3."""

    name = "llama3"

    def special(self, tools: Tools = ()) -> bool:
        return True

    def reader(self, prompt: str, tools: Tools = ()) -> Reader:
        return _Llama3Reader() if tools else super().reader(prompt)

    def grammar(self, tools: Tools, prompt: str = "") -> str | None:
        return reading.grammar(*reading.json_calls(tools, '{"name": "', '", "parameters": ', "}"))


_ARGUMENTS_MARK = "[ARGS]"


def _read_mistral(body: str) -> Sequence[ToolCall] | None:
    body = body.strip()
    if body.startswith("["):
        texts = reading.split_values(body[1:-1] if body.endswith("]") else body[1:])
        calls = [reading.parse_call(text) for text in texts or ()]
        found = [call for call in calls if call is not None]
        return found if len(found) == len(calls) else None
    head, mark, arguments = body.partition(_ARGUMENTS_MARK)
    name, given = head.partition("[CALL_ID]")[0].strip(), arguments.strip()
    if not name or not mark or body.startswith("{") or reading.members(given) is None:
        return None
    return [ToolCall(name, given)]


_MISTRAL = Calls(_read_mistral, "[TOOL_CALLS]", "", "")


class MistralFormat(TaggedFormat):
    """A space before words; `thinks`: it knows `[THINK]`; `lists` calls: not `[ARGS]`."""

    def __init__(self, *, thinks: bool, lists: bool) -> None:
        marks = Thinking("[THINK]", "[/THINK]") if thinks else None
        super().__init__("mistral", marks, lambda _: _MISTRAL, leading=" ")
        self._lists = lists

    def grammar(self, tools: Tools, prompt: str = "") -> str | None:
        marks = {"open": reading.quote(_MISTRAL.open)}
        if self._lists:
            choice, rules = reading.json_calls(tools, '[{"name": "', '", "arguments": ', "}]")
        else:
            choice, rules = reading.json_calls(tools, "", "", "", mark="arguments")
            marks["arguments"] = reading.quote(_ARGUMENTS_MARK)
        return reading.grammar(f"open ({choice})", {**rules, **marks}, self.thinking(prompt))
