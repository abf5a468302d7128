"""What a chat template does with tools, thought and system messages, found out by rendering.

Knows nothing of weights.
"""

from __future__ import annotations

from swarm.answers import AnswerFormat, gathered
from swarm.backends.protocols import BackendError, Message, Renderer, Tool
from swarm.models import TemplateCheck

_USER: Message = {"role": "user", "content": "What is the weather in Oslo?"}
_SYSTEM: Message = {"role": "system", "content": "Answer in one word."}
_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "weather_of_a_city",
        "description": "Say what the weather is.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_THOUGHTS = (
    "<think>thought</think>word",
    "[THINK]thought[/THINK]word",
    "<|channel|>analysis<|message|>thought<|end|><|start|>assistant<|channel|>final<|message|>word",
)


def check_template(renderer: Renderer) -> TemplateCheck:
    """Return what the renderer's template does; raise BackendError where it does not render a plain question."""
    plain = renderer.render([_USER], generation_prompt=True)
    refusal: str | None = None
    try:
        with_tools = renderer.render([_USER], tools=[_TOOL], generation_prompt=True)
    except BackendError as error:
        with_tools, refusal = plain, str(error)
    return TemplateCheck(
        answers=renderer.answers.name,
        tools="refused" if refusal else "rendered" if _names_the_tool(with_tools) else "ignored",
        tools_refusal=refusal,
        thinking=_tells_thought(renderer.answers, plain),
        system=_takes_system(renderer),
    )


def _names_the_tool(text: str) -> bool:
    return str(_TOOL["function"]["name"]) in text


def _tells_thought(answers: AnswerFormat, prompt: str) -> bool:
    for text in _THOUGHTS:
        reader = answers.reader(prompt)
        if "thought" in gathered([*reader.feed(text), *reader.finish()]).reasoning:
            return True
    return False


def _takes_system(renderer: Renderer) -> bool:
    try:
        return str(_SYSTEM["content"]) in renderer.render([_SYSTEM, _USER], generation_prompt=True)
    except BackendError:
        return False
