"""Tool-call formats with tags: Hermes, Qwen, GLM XML, and plain answers.

Words and thinking stream as they come, and only what may be the beginning of a mark is held back; a call that cannot be
read, or was cut, goes back into the words with its mark. Thinking is read only where an answer begins. Line breaks that
templates write around thinking and before a call belong to the template: rendering gives them back. In XML-like calls
strings stand without quotes: the tool's schema tells a number from a string that looks like one.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from swarm.rendering import reading
from swarm.rendering.messages import AnswerFormat, Reader, Reasoning, Thinking, ToolCall, Words

Tools = Sequence[Mapping[str, Any]]
_TAIL = 64
"""Characters at a prompt's end among which an opened mark is looked for."""


@dataclass(frozen=True, slots=True)
class Calls:
    """How calls are read, and the marks around them. Without `close` a call ends at the next, or the end."""

    read: Callable[[str], Sequence[ToolCall] | None]
    """Returns the calls between the marks, None if they cannot be read; or raises UnterminatedString."""
    open: str = "<tool_call>"
    close: str = "</tool_call>"
    blank: str = "\n"
    """What the template writes between words and a call."""


class TaggedReader(reading.StepReader):
    """Reads marked thinking and calls. `leading`: characters which the template writes before an answer's words."""

    def __init__(
        self, thinking: Thinking | None = None, calls: Calls | None = None, *, opened: bool = False, leading: str = ""
    ) -> None:
        super().__init__(self._begin if thinking or leading else self._words)
        self._thinking = thinking
        self._calls = calls
        self._leading = leading
        self._before = ""  # what stood before a call's body: words again if it cannot be read
        self._searched = self._unterminated = 0
        if opened:
            self._skip_lines(self._think)

    def _begin(self, over: bool) -> bool:
        mark = self._thinking.open if self._thinking else ""
        rest = self._text.lstrip()
        if mark and rest.startswith(mark):
            self._text = rest[len(mark) :]
            self._skip_lines(self._think)
            return True
        if not over and (not rest or mark.startswith(rest)):
            return False
        self._text = self._text.lstrip(self._leading)
        self._step = self._words
        return True

    def _skip_lines(self, then: Callable[[bool], bool]) -> None:
        def skip(over: bool) -> bool:
            self._text = self._text.lstrip("\n")
            if self._text:
                self._step = then
            return bool(self._text)

        self._step = skip

    def _think(self, over: bool) -> bool:
        assert self._thinking is not None
        close = self._thinking.close
        thought, found, rest = self._text.partition(close)
        if found:
            self._pieces.text(Reasoning, thought.rstrip("\n"))
            self._text = rest
            self._skip_lines(self._words)
            return True
        sure = thought if over else thought[: len(thought) - reading.partial_match_size(thought, close)].rstrip("\n")
        self._give(Reasoning, len(sure))
        return False

    def _words(self, over: bool) -> bool:
        if self._calls is None:
            self._give(Words, len(self._text))
            return False
        words, found, rest = self._text.partition(self._calls.open)
        if found:
            spoken = words.removesuffix(self._calls.blank)
            self._pieces.text(Words, spoken)
            self._enter_call(words[len(spoken) :], rest)
            return True
        held = 0 if over else reading.partial_match_size(words, self._calls.open)
        sure = words[: len(words) - held]
        self._give(Words, len(sure if over else sure.removesuffix(self._calls.blank)))
        return False

    def _enter_call(self, space: str, body: str) -> None:
        assert self._calls is not None
        self._before = space + self._calls.open
        self._text = body
        self._searched = self._unterminated = 0
        self._step = self._call

    def _call(self, over: bool) -> bool:
        assert self._calls is not None
        mark = self._calls.close or self._calls.open
        end = self._text.find(mark, self._searched)
        if end < 0 and not over:
            self._searched = max(self._searched, len(self._text) - len(mark) + 1)
            return False
        if end < 0 and not self._calls.close:
            end = len(self._text)
        try:
            calls = self._calls.read(self._text[:end]) if end >= 0 else None
        except reading.UnterminatedString:
            self._searched = end + len(mark)
            self._unterminated += 1
            if end < len(self._text) and self._unterminated < reading.MAX_UNTERMINATED:
                return True
            calls = None
        if calls:
            self._pieces.calls(calls)
            self._text = self._text[end + len(self._calls.close) :]
            self._step = self._after
        else:
            self._pieces.text(Words, self._before)
            self._step = self._words
        return True

    def _after(self, over: bool) -> bool:
        assert self._calls is not None
        mark = self._calls.open
        rest = self._text.lstrip()
        if rest.startswith(mark):
            self._enter_call(self._text[: len(self._text) - len(rest)], rest[len(mark) :])
            return True
        if not over and mark.startswith(rest):
            return False
        self._step = self._words
        self._text = self._text if rest else ""
        return bool(rest)


class TaggedFormat(AnswerFormat):
    """Marked thoughts, if any, then words and the calls of the tools at hand; `leading` stands before words."""

    def __init__(
        self,
        name: str,
        thinking: Thinking | None = None,
        calls: Callable[[Tools], Calls] | None = None,
        *,
        leading: str = "",
    ) -> None:
        self.name = name
        self._thinking = thinking
        self._calls = calls
        self._leading = leading

    def special(self, tools: Tools = ()) -> bool:
        return True

    def thinking(self, prompt: str) -> Thinking | None:
        marks = self._thinking
        return marks if marks and prompt[-_TAIL:].rstrip().endswith(marks.open) else None

    def reader(self, prompt: str, tools: Tools = ()) -> Reader:
        calls = self._calls(tools) if tools and self._calls else None
        return TaggedReader(self._thinking, calls, opened=self.thinking(prompt) is not None, leading=self._leading)


class HermesFormat(TaggedFormat):
    """Calls as JSON; `thinks` where the template writes thinking."""

    def __init__(self, *, thinks: bool) -> None:
        super().__init__("hermes", Thinking() if thinks else None, lambda _: Calls(read_json))

    def special(self, tools: Tools = ()) -> bool:
        return self._thinking is not None or bool(tools)

    def grammar(self, tools: Tools, prompt: str = "") -> str | None:
        choice, rules = reading.json_calls(tools, '\n{"name": "', '", "arguments": ', "}\n")
        marks = {name: reading.quote(_MARKS[name]) for name in ("open", "close")}
        return reading.grammar(f"open ({choice}) close", {**rules, **marks}, self.thinking(prompt))


def read_json(body: str, arguments: Sequence[str] = ("arguments",)) -> Sequence[ToolCall] | None:
    call = reading.parse_call(body, arguments)
    return [call] if call else None


def _xml_calls(call: str, argument: str, before: str, after: str, tools: Tools) -> Calls:
    """Return how a family's calls are read: `call` matches a name and all arguments, `argument` a key and a value. A
    value is not whole while `before` stands in the text behind the last `after`."""
    whole, pairs, schemas = re.compile(call, re.DOTALL), re.compile(argument, re.DOTALL), reading.parameters(tools)

    def read(body: str) -> Sequence[ToolCall] | None:
        if body.rfind(before) > body.rfind(after):
            raise reading.UnterminatedString
        found = whole.fullmatch(body)
        if found is None:
            return None
        values: dict[str, str] = {}
        place, declared = 0, reading.properties(schemas.get(found[1], {}))
        while pair := pairs.match(found[2], place):
            key = pair[1].strip()
            values[key] = reading.as_json(pair[2], declared.get(key, {}))
            place = pair.end()
        members = ", ".join(f"{reading.quote(key)}: {value}" for key, value in values.items())
        return None if found[2][place:].strip() else [ToolCall(found[1], f"{{{members}}}")]

    return Calls(read)


qwen_calls = partial(
    _xml_calls,
    r"\s*<function=([^\s<>]+)>(.*)</function>\s*",
    r"\s*<parameter=([^\s<>]+)>\n?(.*?)\n?</parameter>",
    "<parameter=",
    "</parameter>",
)
"""`<function=name>` around `<parameter=key>` blocks; such calls cannot be forced."""
_glm_calls = partial(
    _xml_calls,
    r"\s*([^\s<]+)\s*(.*)",
    r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>",
    "<arg_value>",
    "</arg_value>",
)


class GlmFormat(TaggedFormat):
    """A name, then pairs of `<arg_key>` and `<arg_value>`; line breaks before words."""

    def __init__(self) -> None:
        super().__init__("glm", Thinking(), _glm_calls, leading="\n")

    def grammar(self, tools: Tools, prompt: str = "") -> str | None:
        """Return the grammar of one call: its arguments in the schema's order, strings without `<`."""
        rules = {name: reading.quote(mark) for name, mark in _MARKS.items()}
        calls: list[str] = []
        for number, (name, schema) in enumerate(reading.parameters(tools).items()):
            written = [reading.quote(f"{name}\n")]
            for place, (key, kind) in enumerate(reading.properties(schema).items()):
                rule = "/[^<]*/"
                if not reading.is_text(kind):
                    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
                    rule = reading.json_of({**kind, **shared})
                elif "enum" in kind:
                    rule = " | ".join(map(reading.quote, kind["enum"]))
                rules[f"arg_{number}_{place}"] = rule
                value = f'value_open arg_{number}_{place} value_close "\\n"'
                pair = f'key_open {reading.quote(key)} key_close "\\n" {value}'
                written.append(pair if key in schema.get("required", ()) else f"({pair})?")
            calls.append(" ".join(written))
        return reading.grammar(f"open ({' | '.join(calls)}) close", rules, self.thinking(prompt))


_MARKS = {
    "open": "<tool_call>", "close": "</tool_call>", "key_open": "<arg_key>", "key_close": "</arg_key>",
    "value_open": "<arg_value>", "value_close": "</arg_value>",
}  # fmt: skip
