"""Chat templates with the ways of six families of models, their special tokens, and how such a model writes an answer.

They are written for these tests and no copies: what counts is what each family does to a history. Tokenizers are
trained on the spot over a few sentences, so ids are small and text is cut into pieces of several characters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from swarm.rendering.renderer import HFRenderer

Call = tuple[str, Mapping[str, Any]]
"""A tool's name and its arguments."""

CORPUS = [
    "The weather in Paris is sunny and warm today, and in Rome it rains.",
    "system user assistant tool model function name arguments parameters description type object string",
    'I will call the tool now: {"name": "weather", "arguments": {"city": "Paris", "days": 3}}',
    "thinking about the question, then the answer: one two three four five six seven eight nine ten",
    "# Tools\n\nYou may call functions.\n<tools>\n</tools>\n<tool_call>\n</tool_call>\n<tool_response>\n",
    "<think>\nhm, let me see\n</think>\n\nThe answer is 42.\nAvailable functions:\n",
] * 4


@dataclass(frozen=True)
class Family:
    """One family: template, special tokens, and `write`: the text a model samples for an answer, end mark and all."""

    name: str
    template: str
    specials: tuple[str, ...]
    eos: str
    write: Callable[[str, str, Sequence[Call]], str]
    thinks: bool = False
    parallel: bool = True

    def renderer(self) -> HFRenderer:
        return make_renderer(self.name)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _hermes_calls(calls: Sequence[Call]) -> str:
    return "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {_json(given)}}}\n</tool_call>' for name, given in calls
    )


QWEN25 = Family(
    "qwen2.5",
    """\
{%- macro calls(m) %}{% for c in m.tool_calls %}{% set f = c.function %}
{{- '\\n<tool_call>\\n{"name": "' ~ f.name ~ '", "arguments": ' ~ (f.arguments | tojson) ~ '}\\n</tool_call>' }}
{%- endfor %}{% endmacro %}
{%- set told = messages[0].role == 'system' %}
{%- set system = messages[0].content if told else 'You are a helpful assistant.' %}
{{- '<|im_start|>system\\n' ~ system }}
{%- if tools %}{{ '\\n\\n# Tools\\n\\n<tools>' }}{% for t in tools %}{{ '\\n' ~ (t | tojson) }}{% endfor %}
{{- '\\n</tools>' }}{% endif %}
{{- '<|im_end|>\\n' }}
{%- for m in messages %}
{%- if m.role == 'system' and loop.first %}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' ~ m.content ~ '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- elif m.role == 'assistant' and m.tool_calls %}
{{- '<|im_start|>assistant' ~ ('\\n' ~ m.content if m.content else '') ~ calls(m) ~ '<|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "<|im_end|>",
    lambda content, _, calls: "\n".join(filter(None, (content, _hermes_calls(calls)))) + "<|im_end|>",
)


def _qwen3(content: str, reasoning: str, calls: Sequence[Call]) -> str:
    thought = f"<think>\n{reasoning}\n</think>\n\n" if reasoning else ""
    return thought + "\n".join(part for part in (content, _hermes_calls(calls)) if part) + "<|im_end|>"


QWEN3 = Family(
    "qwen3",
    """\
{%- if tools or messages[0].role == 'system' %}{{ '<|im_start|>system\\n' }}
{{- messages[0].content if messages[0].role == 'system' else '' }}
{%- if tools %}{{ '\\n\\n# Tools\\n\\n<tools>' }}{% for t in tools %}{{ '\\n' ~ (t | tojson) }}{% endfor %}
{{- '\\n</tools>' }}{% endif %}{{ '<|im_end|>\\n' }}{% endif %}
{%- set ns = namespace(query=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.query = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'system' and loop.first %}
{%- elif m.role == 'assistant' %}
{%- set thought = m.reasoning_content if m.reasoning_content is string else '' %}
{%- set words = m.content %}
{%- if not thought and '</think>' in words %}
{%- set thought = words.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set words = words.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.query and (loop.last or thought) %}
{{- '<think>\\n' ~ thought.strip('\\n') ~ '\\n</think>\\n\\n' }}{% endif %}
{{- words }}
{%- for c in m.tool_calls %}{% set f = c.function %}
{{- '\\n' if (loop.first and words) or not loop.first else '' }}
{{- '<tool_call>\\n{"name": "' ~ f.name ~ '", "arguments": ' }}
{{- f.arguments if f.arguments is string else f.arguments | tojson }}{{ '}\\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' ~ m.content ~ '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- else %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "<|im_end|>",
    _qwen3,
    thinks=True,
)


def _llama3(content: str, reasoning: str, calls: Sequence[Call]) -> str:
    if calls:
        ((name, given),) = calls
        return f'{{"name": "{name}", "parameters": {_json(given)}}}<|eom_id|>'
    return f"{content}<|eot_id|>"


LLAMA3 = Family(
    "llama3",
    """\
{{- bos_token }}
{%- macro head(role) %}{{ '<|start_header_id|>' ~ role ~ '<|end_header_id|>\\n\\n' }}{% endmacro %}
{%- set told = messages[0].role == 'system' %}
{{- head('system') }}
{%- if tools %}{{ 'Environment: ipython\\n' }}{% endif %}
{{- 'Cutting Knowledge Date: December 2023\\n\\n' ~ (messages[0].content | trim if told else '') }}
{%- if tools %}{% for t in tools %}{{ '\\n' ~ (t | tojson(indent=4)) }}{% endfor %}{% endif %}
{{- '<|eot_id|>' }}
{%- for m in messages %}
{%- if m.role == 'system' and loop.first %}
{%- elif m.tool_calls %}
{%- if m.tool_calls | length != 1 %}
{{- raise_exception('This model only supports single tool-calls at once!') }}{% endif %}
{%- set f = m.tool_calls[0].function %}
{{- head('assistant') ~ '{"name": "' ~ f.name ~ '", "parameters": ' ~ (f.arguments | tojson) ~ '}' }}
{{- '<|eom_id|>' }}
{%- elif m.role == 'tool' or m.role == 'ipython' %}{{ head('ipython') ~ (m.content | tojson) ~ '<|eot_id|>' }}
{%- else %}{{ head(m.role) ~ (m.content | trim) ~ '<|eot_id|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ head('assistant') }}{% endif %}""",
    ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
    "<|eot_id|>",
    _llama3,
    parallel=False,
)


def _mistral(content: str, reasoning: str, calls: Sequence[Call]) -> str:
    if calls:
        listed = [{"name": name, "arguments": given, "id": f"{n:09d}"} for n, (name, given) in enumerate(calls)]
        return f"[TOOL_CALLS] {_json(listed)}</s>"
    return f" {content}</s>"


MISTRAL = Family(
    "mistral",
    """\
{{- bos_token }}
{%- set told = messages[0].role == 'system' %}
{%- set turns = messages[1:] if told else messages %}
{%- set ns = namespace(user=0, parity=0) %}
{%- for m in turns %}{% if m.role == 'user' %}{% set ns.user = loop.index0 %}{% endif %}
{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
{%- if (m.role == 'user') != (ns.parity % 2 == 0) %}
{{- raise_exception('after the optional system message, roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}{% set ns.parity = ns.parity + 1 %}{% endif %}{% endfor %}
{%- for m in turns %}
{%- if m.role == 'user' %}
{%- if tools and loop.index0 == ns.user %}
{{- '[AVAILABLE_TOOLS] ' ~ (tools | tojson) ~ '[/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST] ' ~ (messages[0].content ~ '\\n\\n' if told and loop.index0 == ns.user else '') ~ m.content ~ '[/INST]' }}
{%- elif m.tool_calls %}{{ '[TOOL_CALLS] [' }}
{%- for c in m.tool_calls %}
{%- if c.id is not defined or c.id | length != 9 %}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}
{{- '{"name": "' ~ c.function.name ~ '", "arguments": ' ~ (c.function.arguments | tojson) }}
{{- ', "id": "' ~ c.id ~ '"}' ~ (', ' if not loop.last else '') }}
{%- endfor %}{{ ']' ~ eos_token }}
{%- elif m.role == 'assistant' %}{{ ' ' ~ (m.content | trim) ~ eos_token }}
{%- elif m.role == 'tool' %}
{%- if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}
{{- '[TOOL_RESULTS] {"content": ' ~ (m.content | tojson) ~ ', "call_id": "' ~ m.tool_call_id ~ '"}[/TOOL_RESULTS]' }}
{%- else %}{{ raise_exception('Only user, assistant and tool roles are supported') }}{% endif %}
{%- endfor %}""",
    (
        "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
        "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
    ),
    "</s>",
    _mistral,
)  # fmt: skip


def _gemma(content: str, reasoning: str, calls: Sequence[Call]) -> str:
    return f"{content}<end_of_turn>"


_GEMMA = """\
{{- bos_token }}
{%- set told = messages[0].role == 'system' %}
{%- if told and REFUSED %}{{ raise_exception('System role not supported') }}{% endif %}
{%- set turns = messages[1:] if told else messages %}
{%- for m in turns %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{%- set role = 'model' if m.role == 'assistant' else m.role %}
{{- '<start_of_turn>' ~ role ~ '\\n' ~ (messages[0].content ~ '\\n\\n' if told and loop.first else '') }}
{{- m.content | trim ~ '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

GEMMA = Family(
    "gemma", _GEMMA.replace("REFUSED", "false"), ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), "<eos>", _gemma
)
GEMMA2 = Family("gemma2", _GEMMA.replace("REFUSED", "true"), GEMMA.specials, "<eos>", _gemma)


def _glm(content: str, reasoning: str, calls: Sequence[Call]) -> str:
    thought = f"\n<think>{reasoning}</think>" if reasoning else "\n<think></think>"
    words = f"\n{content}" if content else ""
    told = "".join(
        f"\n<tool_call>{name}\n"
        + "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{value if isinstance(value, str) else _json(value)}</arg_value>\n"
            for key, value in given.items()
        )
        + "</tool_call>"
        for name, given in calls
    )
    return thought + words + told + ("<|observation|>" if calls else "<|user|>")


GLM = Family(
    "glm4",
    """\
[gMASK]<sop>
{%- if tools %}{{ '<|system|>\\n# Tools\\n<tools>' }}{% for t in tools %}{{ '\\n' ~ (t | tojson) }}{% endfor %}
{{- '\\n</tools>' }}{% endif %}
{%- set ns = namespace(query=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.query = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set thought = m.reasoning_content if m.reasoning_content is string and loop.index0 > ns.query else '' %}
{{- '<|assistant|>\\n<think>' ~ thought.strip() ~ '</think>' }}
{{- '\\n' ~ m.content.strip() if m.content.strip() else '' }}
{%- for c in m.tool_calls %}{{ '\\n<tool_call>' ~ c.function.name ~ '\\n' }}
{%- for key, value in c.function.arguments.items() %}
{{- '<arg_key>' ~ key ~ '</arg_key>\\n<arg_value>' ~ (value if value is string else value | tojson) }}
{{- '</arg_value>\\n' }}{% endfor %}{{ '</tool_call>' }}{% endfor %}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|observation|>' }}{% endif %}
{{- '\\n<tool_response>\\n' ~ m.content ~ '\\n</tool_response>' }}
{%- else %}{{ '<|' ~ m.role ~ '|>\\n' ~ m.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}""",
    ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    "<|endoftext|>",
    _glm,
    thinks=True,
)


def _harmony(content: str, reasoning: str, calls: Sequence[Call]) -> str:
    thought = f"<|channel|>analysis<|message|>{reasoning}<|end|><|start|>assistant" if reasoning else ""
    if not calls:
        return f"{thought}<|channel|>final<|message|>{content}<|return|>"
    ((name, given),) = calls
    said = f"<|channel|>commentary<|message|>{content}<|end|><|start|>assistant" if content else ""
    return f"{thought}{said} to=functions.{name}<|channel|>commentary json<|message|>{_json(given)}<|call|>"


HARMONY = Family(
    "gpt-oss",
    """\
{{- '<|start|>system<|message|>You are a large language model.\\nKnowledge cutoff: 2024-06\\n\\n' }}
{{- '# Valid channels: analysis, commentary, final.<|end|>' }}
{%- set told = messages[0].role in ('system', 'developer') %}
{%- if told or tools %}{{ '<|start|>developer<|message|>' }}
{%- if told %}{{ '# Instructions\\n\\n' ~ messages[0].content ~ '\\n\\n' }}{% endif %}
{%- if tools %}{{ '# Tools\\n\\nnamespace functions {\\n' }}{% for t in tools %}
{{- 'type ' ~ t.function.name ~ ' = (_: ' ~ (t.function.parameters | tojson) ~ ') => any;\\n' }}{% endfor %}
{{- '}' }}{% endif %}{{ '<|end|>' }}{% endif %}
{%- set ns = namespace(tool='') %}
{%- for m in (messages[1:] if told else messages) %}
{%- if m.role == 'assistant' %}
{%- set later = namespace(final=false) %}
{%- for n in (messages[1:] if told else messages)[loop.index:] %}
{%- if n.role == 'assistant' and not n.tool_calls %}{% set later.final = true %}{% endif %}{% endfor %}
{%- if m.tool_calls %}
{%- if m.reasoning_content and not later.final %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' ~ m.reasoning_content ~ '<|end|>' }}{% endif %}
{%- if m.content %}{{ '<|start|>assistant<|channel|>commentary<|message|>' ~ m.content ~ '<|end|>' }}{% endif %}
{%- set ns.tool = m.tool_calls[0].function.name %}
{{- '<|start|>assistant to=functions.' ~ ns.tool ~ '<|channel|>commentary json<|message|>' }}
{{- m.tool_calls[0].function.arguments | tojson }}{{ '<|call|>' }}
{%- elif loop.last and not add_generation_prompt %}
{%- if m.reasoning_content %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' ~ m.reasoning_content ~ '<|end|>' }}{% endif %}
{{- '<|start|>assistant<|channel|>final<|message|>' ~ m.content ~ '<|return|>' }}
{%- else %}{{ '<|start|>assistant<|channel|>final<|message|>' ~ m.content ~ '<|end|>' }}{% endif %}
{%- elif m.role == 'tool' %}
{{- '<|start|>functions.' ~ ns.tool ~ ' to=assistant<|channel|>commentary<|message|>' }}
{{- m.content | tojson }}{{ '<|end|>' }}
{%- else %}{{ '<|start|>' ~ m.role ~ '<|message|>' ~ m.content ~ '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}""",
    (
        "<|endoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>",
        "<|return|>",
    ),
    "<|return|>",
    _harmony,
    thinks=True,
    parallel=False,
)  # fmt: skip

FAMILIES = {f.name: f for f in (QWEN25, QWEN3, LLAMA3, MISTRAL, GEMMA, GEMMA2, GLM, HARMONY)}


def train(specials: Sequence[str], *, spaced: bool = False) -> Tokenizer:
    """Return a BPE tokenizer over `CORPUS`: byte-level, or (`spaced`) over characters with a mark for spaces."""
    if spaced:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        alphabet = ["<unk>", *(f"<0x{n:02X}>" for n in range(256))]
        trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=alphabet, show_progress=False)
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=450, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return tokenizer


def make_tokenizer(family: Family, *, spaced: bool = False) -> transformers.PreTrainedTokenizerFast:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=train(family.specials, spaced=spaced),
        bos_token=family.specials[0],
        eos_token=family.eos,
        chat_template=family.template,
        clean_up_tokenization_spaces=False,
    )


@cache
def make_renderer(name: str, *, spaced: bool = False) -> HFRenderer:
    return HFRenderer(make_tokenizer(FAMILIES[name], spaced=spaced))
