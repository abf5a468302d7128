"""Which format a model answers in, by the marks its chat template contains.

A template writes an assistant's thinking and calls back into the history the way the model wrote them, so its
source names every mark. Where marks of several families stand in one template, the more particular one decides.
"""

from __future__ import annotations

from swarm.answers.families.fenced import FencedFormat
from swarm.answers.families.harmony import HarmonyFormat
from swarm.answers.families.hermes import HermesFormat
from swarm.answers.families.llama3 import Llama3Format
from swarm.answers.families.mistral import MistralFormat
from swarm.answers.families.plain import PLAIN
from swarm.answers.families.tagged import ThinkFormat
from swarm.answers.families.xml import GlmFormat, QwenXmlFormat
from swarm.answers.grammar.answer import AnswerFormat


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
        return QwenXmlFormat(thinks=thinks) if "<function=" in template else HermesFormat(thinks=thinks)
    if _llama3(template):
        return Llama3Format()
    return _fenced(template) or (ThinkFormat() if thinks else PLAIN)


def _llama3(template: str) -> bool:
    return "<|python_tag|>" in template or ("<|start_header_id|>" in template and '"parameters"' in template)


def _fenced(template: str) -> AnswerFormat | None:
    if "```tool_code" in template:
        return FencedFormat("tool_code")
    return FencedFormat("json") if "```json" in template and "<start_of_turn>" in template else None
