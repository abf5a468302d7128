"""Renders messages with the model's own chat template and turns text into ids and back.

Promises: the text is exactly what the template gives; special tokens in text become their ids; nothing is added at
either end. What ends an assistant message is read from the template itself, not assumed.
Knows nothing of timelines: which ids are served and which are rendered anew is not decided here.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import TemplateError

from swarm.answers import AnswerFormat, detect
from swarm.backends.protocols import BackendError, Message, Tool, not_loaded
from swarm.backends.rendering.adapt import as_system, with_short_ids
from swarm.backends.rendering.encoding import Encoding
from swarm.backends.rendering.marks import closing_id, end_ids, takes_call_ids

_REFUSALS = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""What a template raises on messages it was not written for."""
RENDER_S = 30.0
T = TypeVar("T")


class HFRenderer:
    """Implements `Renderer` over a Hugging Face tokenizer with a chat template.

    `stops` are further ids that end an answer, as the model's generation_config.json names them.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[int] = ()) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise BackendError("the tokenizer has no chat template: use a chat model, or add chat_template.jinja")
        if not getattr(tokenizer, "is_fast", False):
            raise BackendError("the tokenizer has no tokenizer.json: save it as a fast tokenizer")
        self._tokenizer = tokenizer
        self._encoder = tokenizer.backend_tokenizer
        self._encoder.no_truncation()  # which trainers leave in tokenizer.json: a text is all of it, and nothing more
        self._encoder.no_padding()
        self._encoding = Encoding(self._encoder, ())
        self.template = source = _source(tokenizer.chat_template)
        self._answers = detect(source)
        self._knows_developer = "developer" in source
        self._short_ids = False
        self._short_ids = not takes_call_ids(self._rendered)
        self._eos_id, self._stop_ids = self._find_ends(stops)
        self._encoding = self._remembering()

    @property
    def ids(self) -> int:
        """One more than the greatest id that this tokenizer makes of a text."""
        vocabulary: dict[str, int] = self._encoder.get_vocab(with_added_tokens=True)
        return 1 + max(vocabulary.values())

    @property
    def eos_id(self) -> int:
        """Id that closes an assistant message in a history; where the template has none, the next user's opening."""
        return self._eos_id

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """All ids that end an answer: to words, to a call of a tool, then those its configuration names."""
        return self._stop_ids

    @property
    def answers(self) -> AnswerFormat:
        """How the model writes thinking and tool calls."""
        return self._answers

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), generation_prompt: bool) -> str:
        """Return the chat template's text; raise BackendError for messages or tools the template refuses."""
        return self._rendered(messages, tools, generation_prompt)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, special tokens recognised, nothing added at either end."""
        return self._encoding.ids(text)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of `ids`; special tokens are left out unless `special`."""
        text: str = self._encoder.decode(list(ids), skip_special_tokens=not special)
        return text

    def _rendered(self, messages: Sequence[Message], tools: Sequence[Tool], generation_prompt: bool) -> str:
        fitted = list(messages) if self._knows_developer else as_system(messages)
        if self._short_ids:
            fitted = with_short_ids(fitted)
        try:
            text: str = self._tokenizer.apply_chat_template(
                fitted, tools=list(tools) or None, tokenize=False, add_generation_prompt=generation_prompt
            )
        except _REFUSALS as error:
            raise BackendError(f"the chat template refuses these messages: {error}") from error
        return text

    def _find_ends(self, stops: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """Return the id that closes an answer in a history, and all that end a sampled one."""
        special = set(self._tokenizer.all_special_ids)
        special |= {i for i, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        closing = closing_id(self._rendered, self.encode, special)
        written = list(end_ids(self._rendered, self.encode, special))
        own = self._tokenizer.eos_token_id
        return closing, tuple(dict.fromkeys([*written, *stops, *([] if own is None else [own])]))

    def _remembering(self) -> Encoding:
        """Return an encoding that cuts text at ends of answers, if this tokenizer gives the same ids for the parts."""
        added = self._tokenizer.added_tokens_decoder
        ends = [added[token] for token in {self._eos_id, *self._stop_ids} if token in added]
        cuts = sorted(str(token.content) for token in ends if not (token.lstrip or token.single_word))
        parted = Encoding(self._encoder, cuts)
        probe = "".join(f" a  b\n{cut} \n c {cut}" for cut in cuts)
        return parted if parted.ids(probe) == self.encode(probe) else self._encoding


def load_renderer(folder: Path) -> HFRenderer:
    """Load the tokenizer in `folder`; raise BackendError with what is missing."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return in_time(lambda: HFRenderer(tokenizer, _configured_stops(folder)))
    except (OSError, ValueError, KeyError) as error:
        raise not_loaded(f"the tokenizer in {folder}", error) from error
    except BackendError as error:
        raise BackendError(f"{folder}: {error}") from error


def in_time(render: Callable[[], T]) -> T:
    """Return what is rendered of a few messages; BackendError where the template, which may loop, takes too long.

    It is Python, in a thread of its own, which the exception that is raised in it ends.
    """
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


def _source(template: Any) -> str:
    """Return the Jinja source of a chat template, which may be several by name."""
    return template if isinstance(template, str) else "\n".join(template.values())


def _configured_stops(folder: Path) -> list[int]:
    """Return the ids that generation_config.json, if there is one, says end an answer."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return []
    named = json.loads(path.read_text()).get("eos_token_id")
    return [named] if isinstance(named, int) else list(named or ())
