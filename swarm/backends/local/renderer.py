"""Renders messages with the model's own chat template and turns text into ids and back.

Promises: the text is exactly what the template gives; special tokens in text become their ids; nothing is added at
either end. What ends an assistant message is read from the template itself, not assumed.
Knows nothing of timelines: which ids are served and which are rendered anew is not decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from swarm.answers import PLAIN, AnswerFormat
from swarm.backends.protocols import BackendError, Message, Tool

_PROBE = "probe"


class HFRenderer:
    """Implements `Renderer` over a Hugging Face tokenizer with a chat template."""

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise BackendError("the tokenizer has no chat template: use a chat model, or add chat_template.jinja")
        if not getattr(tokenizer, "is_fast", False):
            raise BackendError("the tokenizer has no tokenizer.json: save it as a fast tokenizer")
        self._tokenizer = tokenizer
        self._encoder = tokenizer.backend_tokenizer
        self._eos_id = self._find_eos()

    @property
    def eos_id(self) -> int:
        """Id that ends an assistant message."""
        return self._eos_id

    @property
    def eos_text(self) -> str:
        """Text of `eos_id` as the template writes it."""
        return str(self._encoder.id_to_token(self._eos_id))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """All ids that end an answer, `eos_id` first."""
        return (self._eos_id,)

    @property
    def answers(self) -> AnswerFormat:
        """How the model writes thinking and tool calls."""
        return PLAIN

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), generation_prompt: bool) -> str:
        """Return the chat template's text; raise BackendError for messages or tools the template refuses."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=generation_prompt
            )
        except (TemplateError, TypeError, ValueError, KeyError, IndexError) as error:
            raise BackendError(f"the chat template refuses these messages: {error}") from error
        return text

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, special tokens recognised, nothing added at either end."""
        ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of `ids`; special tokens are left out unless `special`."""
        text: str = self._encoder.decode(list(ids), skip_special_tokens=not special)
        return text

    def _find_eos(self) -> int:
        """Return the first special id the template writes after an assistant's words."""
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": _PROBE}]
        after = self.render(messages, generation_prompt=False).rpartition(_PROBE)[2]
        special = set(self._tokenizer.all_special_ids)
        special |= {i for i, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        found = next((token for token in self.encode(after) if token in special), None)
        if found is None:
            raise BackendError(
                f"expected the chat template to end an assistant message with a special token, found {after!r}: "
                "mend the template"
            )
        return found


def load_renderer(folder: Path) -> HFRenderer:
    """Load the tokenizer in `folder`; raise BackendError with what is missing."""
    from transformers import AutoTokenizer

    if not (folder / "tokenizer.json").is_file():
        raise BackendError(f"{folder} holds no tokenizer.json: save the model's fast tokenizer there")
    try:
        return HFRenderer(AutoTokenizer.from_pretrained(folder, local_files_only=True))
    except (OSError, ValueError, KeyError) as error:
        raise BackendError(f"the tokenizer in {folder} does not load: {error}") from error
    except BackendError as error:
        raise BackendError(f"{folder}: {error}") from error
