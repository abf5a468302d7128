"""The tiny model's tokenizer: a fixed vocabulary over bytes, and a ChatML-like template with tools.

Whole numbers up to `LARGEST_NUMBER` and the words an environment says are one token each, so that an answer is
one number and an end. Every other text falls back to its UTF-8 bytes: anything can be encoded, and decodes to
itself. Nothing is learned from data, so the same words give the same ids everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

LARGEST_NUMBER = 199
START, END, PAD = "<|im_start|>", "<|im_end|>", "<|pad|>"
ASSISTANT = "assistantĊ"
"""The token after `START` that opens an answer (`Ċ` is how byte-level vocabularies write a newline)."""

_ROLES = ("system\n", "user\n", "assistant\n", "tool\n")
CALL_MARKS = (
    '<tool_call>\n{"name": "', '", "arguments": {"', '"}}\n</tool_call>', "}}\n</tool_call>", '": "', '": ', '", "',
)  # fmt: skip
"""What the template writes around the names and values of a call. Each is one token of a model that is shown tools, so
that a call takes hardly more tokens than it has words; longer marks come before those they begin with."""
_PIECE = r"\p{N}{1,3}| ?\p{L}+[ \n]?|[^\p{N}\p{L}]"
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% if messages and messages[0]['role'] == 'system' %}"
    "{{ messages[0]['content'] or '' }}\n{% endif %}<tools>\n"
    "{% for tool in tools %}{{ tool['function'] | tojson }}\n{% endfor %}</tools>\n"
    'Call: <tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call><|im_end|>{% endif %}'
    "{% for message in messages %}{% if not (tools and loop.first and message['role'] == 'system') %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}{% if message['content'] or not loop.first %}{{ '\n' }}{% endif %}"
    "<tool_call>\n{\"name\": {{ call['function']['name'] | tojson }}, \"arguments\": "
    "{% if call['function']['arguments'] is string %}{{ call['function']['arguments'] }}"
    "{% else %}{{ call['function']['arguments'] | tojson }}{% endif %}}\n</tool_call>{% endfor %}"
    "<|im_end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML without the newline between messages: what follows a served answer begins at a special token.

Tools and calls are written as Hermes does, in the fewest words, for these are bytes to the model. Without tools it says
what it said before it knew them. Its marks are plain text: the
vocabulary of a model that is shown no tools, and with it the weights, are as they were.
"""


def _splitter(marks: Sequence[str]) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join([*map(re.escape, marks), _PIECE])), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _pieces(texts: Iterable[str], marks: Sequence[str]) -> list[str]:
    splitter = _splitter(marks)
    return sorted({piece for text in texts for piece, _ in splitter.pre_tokenize_str(text)})


def build_tokenizer(
    texts: Iterable[str], max_length: int, marks: Sequence[str] = ()
) -> transformers.PreTrainedTokenizerFast:
    """Return a tokenizer in which every word of `texts` is one token; `max_length` is the model's, in tokens.

    `marks` are one token each too, wherever they stand.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = _pieces(_ROLES, marks) + _pieces(marks, marks) + _pieces(texts, marks)
    numbers = [str(number) for number in range(LARGEST_NUMBER + 1)]
    vocabulary: dict[str, int] = {}
    for piece in (PAD, START, END, *numbers, *alphabet, *words):
        vocabulary.setdefault(piece, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = _splitter(marks)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in (PAD, START, END)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
