"""HFRenderer: messages to text by the model's own chat template, text to ids and back.

What a template does (its end marks, how it takes calls and their ids, which answer format it means) is found by
rendering short probe conversations and by the marks in its source, never by a model's name. Messages are adapted
without changing what they say: `developer` becomes `system` where the template knows none, tool-call ids are shortened
or made up.
"""

import ctypes
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import TemplateError

from swarm.rendering.json_formats import FencedFormat, HarmonyFormat, Llama3Format, MistralFormat
from swarm.rendering.messages import AnswerFormat, BackendError, Message, Thinking, Tool, load_error
from swarm.rendering.tagged import GlmFormat, HermesFormat, TaggedFormat, qwen_calls


def detect(template: str) -> AnswerFormat:
    """Return the format of the models that a chat template (its Jinja source) is of; plain where it names no marks."""
    thinks = "<think>" in template or "</think>" in template
    if "<|channel|>" in template and "<|message|>" in template:
        return HarmonyFormat()
    if "[TOOL_CALLS]" in template:
        return MistralFormat(thinks="[THINK]" in template, lists="[ARGS]" not in template)
    if "<arg_key>" in template:
        return GlmFormat()
    if "<tool_call>" in template:
        if "<function=" not in template:
            return HermesFormat(thinks=thinks)
        return TaggedFormat("qwen-xml", Thinking() if thinks else None, qwen_calls)
    if "<|python_tag|>" in template or ("<|start_header_id|>" in template and '"parameters"' in template):
        return Llama3Format()
    if "```tool_code" in template:
        return FencedFormat("tool_code")
    if "```json" in template and "<start_of_turn>" in template:
        return FencedFormat("json")
    return TaggedFormat("think", Thinking()) if thinks else AnswerFormat()  # the former as DeepSeek-R1


_MOST_CHARACTERS = 16_000_000
"""Most text in the cache, about 100 MB with its ids."""

_LONG = 16_384
"""Characters that take some 10 ms."""


class Encoding:
    """Encodes with a `tokenizers` tokenizer; `marks` are special tokens at which text may be cut."""

    def __init__(self, encoder: Any, marks: Sequence[str]) -> None:
        self._encoder = encoder
        self._cut = re.compile("(?=" + "|".join(map(re.escape, marks)) + ")") if marks else None
        self._cache: dict[str, list[int]] = {}
        self._characters = 0

    def ids(self, text: str) -> list[int]:
        if self._cut is None:
            return self._encode(text)
        ids: list[int] = []
        for part in self._cut.split(text):
            if part:
                own = self._cache.get(part)
                if own is None:
                    own = self._encode(part)
                    if self._characters > _MOST_CHARACTERS:
                        self._cache.clear()
                        self._characters = 0
                    self._cache[part] = own
                    self._characters += len(part)
                ids += own
        return ids

    def _encode(self, text: str) -> list[int]:
        """Return the ids of a text that is not cut; a long one lets other threads go on meanwhile."""
        if len(text) < _LONG:
            ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        else:  # `encode` keeps Python's lock
            ids = self._encoder.encode_batch([text], add_special_tokens=False)[0].ids
        return ids


_PROBE = "probe"
SHORT_ID = 9
"""Characters of the only tool-call ids that some templates (Mistral's) take."""
_USER: Message = {"role": "user", "content": "hi"}
_SAID: Message = {"role": "assistant", "content": _PROBE}
_TOOL: Tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}


def _make_call(named: str = "0" * SHORT_ID) -> dict[str, Any]:
    function: Mapping[str, Any] = {"name": "f", "arguments": {"x": _PROBE}}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": named, "type": "function", "function": function}]}


_RESULT: Message = {"role": "tool", "content": "ok", "name": "f", "tool_call_id": "0" * SHORT_ID}


def with_short_ids(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with tool-call ids of `SHORT_ID` letters and digits; a result without one takes the next."""
    fitted: list[Message] = []
    open_ids: dict[str, None] = {}  # in their order
    for message in messages:
        calls = message.get("tool_calls")
        if isinstance(calls, list) and all(isinstance(call, Mapping) for call in calls):
            named = [{**call, "id": _short(call.get("id"), number)} for number, call in enumerate(calls)]
            open_ids = dict.fromkeys(call["id"] for call in named)
            message = {**message, "tool_calls": named}
        elif message.get("role") == "tool":
            given = message.get("tool_call_id")
            unnamed = next(iter(open_ids), _short(None, 0))
            own = _short(given, 0) if given else unnamed
            open_ids.pop(own, None)
            message = {**message, "tool_call_id": own}
        fitted.append(message)
    return fitted


def _short(given: Any, number: int) -> str:
    if not given:
        return f"{number:0{SHORT_ID}d}"
    text = str(given)
    fits = len(text) == SHORT_ID and text.isascii() and text.isalnum()
    return text if fits else blake2b(text.encode(), digest_size=8).hexdigest()[:SHORT_ID]


_REFUSALS = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""What a template raises on messages it was not written for."""
RENDER_S = 30.0
T = TypeVar("T")


class HFRenderer:
    """Implements `Renderer` over a Hugging Face tokenizer; `stops`: further end ids, of generation_config.json."""

    def __init__(self, tokenizer: Any, stops: Sequence[int] = ()) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise BackendError("the tokenizer has no chat template: use a chat model, or add chat_template.jinja")
        if not getattr(tokenizer, "is_fast", False):
            raise BackendError("the tokenizer has no tokenizer.json: save it as a fast tokenizer")
        self._tokenizer = tokenizer
        self.encoder: Any = tokenizer.backend_tokenizer
        self.encoder.no_truncation()  # which trainers leave in tokenizer.json: a text is all of it, and nothing more
        self.encoder.no_padding()
        self._encoding = Encoding(self.encoder, ())
        template = tokenizer.chat_template
        self.template = source = template if isinstance(template, str) else "\n".join(template.values())
        self.answers = detect(source)
        self._knows_developer = "developer" in source
        self._short_ids = False
        self._short_ids = not self._takes_call_ids()
        added, own = tokenizer.added_tokens_decoder, tokenizer.eos_token_id
        self._special = {*tokenizer.all_special_ids, *(token for token, text in added.items() if text.special)}
        after = self.render([_USER, _SAID, _USER], generation_prompt=True).rpartition(_PROBE)[2]
        closing = self._special_ids(after)
        if not closing:
            raise BackendError(
                f"expected the chat template to follow an assistant message with a special token, found {after!r}: "
                "mend the template"
            )
        self.eos_id = closing[0]
        self.stop_ids = tuple(dict.fromkeys([*self._end_ids(), *stops, *([] if own is None else [own])]))
        # text is cut at ends of answers, if this tokenizer gives the same ids for the parts
        ends = [added[token] for token in {self.eos_id, *self.stop_ids} if token in added]
        cuts = sorted(str(token.content) for token in ends if not (token.lstrip or token.single_word))
        parted = Encoding(self.encoder, cuts)
        probe = "".join(f" a  b\n{cut} \n c {cut}" for cut in cuts)
        if parted.ids(probe) == self.encode(probe):
            self._encoding = parted

    @property
    def ids(self) -> int:
        """One more than the greatest id that this tokenizer makes of a text."""
        vocabulary: dict[str, int] = self.encoder.get_vocab(with_added_tokens=True)
        return 1 + max(vocabulary.values())

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), generation_prompt: bool) -> str:
        fitted = list(messages)
        if not self._knows_developer:
            fitted = [{**one, "role": "system"} if one.get("role") == "developer" else one for one in fitted]
        if self._short_ids:
            fitted = with_short_ids(fitted)
        try:
            text: str = self._tokenizer.apply_chat_template(
                fitted, tools=list(tools) or None, tokenize=False, add_generation_prompt=generation_prompt
            )
        except _REFUSALS as error:
            raise BackendError(f"the chat template refuses these messages: {error}") from error
        return text

    def encode(self, text: str) -> list[int]:
        return self._encoding.ids(text)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        text: str = self.encoder.decode(list(ids), skip_special_tokens=not special)
        return text

    def _special_ids(self, text: str) -> list[int]:
        return [token for token in self.encode(text) if token in self._special]

    def _takes_call_ids(self) -> bool:
        try:
            self.render([_USER, _make_call(), _RESULT], tools=(_TOOL,), generation_prompt=True)
        except BackendError:
            return True
        named = "call_of_some_length"
        result = {**_RESULT, "tool_call_id": named}
        try:
            self.render([_USER, _make_call(named), result], tools=(_TOOL,), generation_prompt=True)
        except BackendError:
            return False
        return True

    def _end_ids(self) -> Iterator[int]:
        """Yield the ids that end answers, in words, then in a call: a mark, or the next role's opening if none is."""
        for answer, result in ((_SAID, _USER), (_make_call(), _RESULT)):
            try:
                last = self.render([_USER, answer], tools=(_TOOL,), generation_prompt=False)
                going_on = self.render([_USER, answer, result], tools=(_TOOL,), generation_prompt=True)
            except BackendError:  # the template knows no tools
                continue
            if _PROBE not in last:
                continue
            behind = going_on[len(last) :] if going_on.startswith(last) else ""
            yield from self._special_ids(last.rpartition(_PROBE)[2])[-1:] or self._special_ids(behind)[:1]


def load_renderer(folder: Path) -> HFRenderer:
    """Load the tokenizer in `folder`; raise BackendError with what is missing."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        config = folder / "generation_config.json"
        named = json.loads(config.read_text()).get("eos_token_id") if config.is_file() else None
        stops = [named] if isinstance(named, int) else list(named or ())
        return render_with_timeout(lambda: HFRenderer(tokenizer, stops))
    except (OSError, ValueError, KeyError) as error:
        raise load_error(f"the tokenizer in {folder}", error) from error
    except BackendError as error:
        raise BackendError(f"{folder}: {error}") from error


def render_with_timeout(render: Callable[[], T]) -> T:
    """Return what is rendered of a few messages; BackendError where a template loops: an exception ends its thread."""
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(render())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            done.set_exception(error)

    thread = threading.Thread(target=work, name="template", daemon=True)
    thread.start()
    try:
        return done.result(RENDER_S)
    except TimeoutError:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        raise BackendError(
            f"the chat template takes longer than {RENDER_S:g} s for a few messages: it may loop; take another"
        ) from None
