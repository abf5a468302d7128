"""Prompts of a tree are those that packages with the families' own formats give, where these work offline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from renderers.qwen3 import Qwen3Renderer  # type: ignore[import-untyped]
from tokenizers import AddedToken

from swarm.rendering.messages import Message, Tool
from swarm.rendering.renderer import HFRenderer
from swarm.timelines import Drift
from tests.swarm.timelines.desk import WEATHER, Desk, user
from tests.swarm.timelines.families import MISTRAL, QWEN3, Call, make_tokenizer

PARIS: Call = ("weather", {"city": "Paris", "days": 3})
ROME: Call = ("weather", {"city": "Rome"})
_MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


@pytest.fixture(scope="module")
def qwen3() -> tuple[HFRenderer, Qwen3Renderer]:
    """Our renderer and theirs, over one tokenizer in which the marks of tools and thinking are tokens."""
    tokenizer = make_tokenizer(QWEN3)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in _MARKS])
    return HFRenderer(tokenizer), Qwen3Renderer(tokenizer)


@pytest.mark.parametrize("calls", [[PARIS], [PARIS, ROME]])
@pytest.mark.parametrize("reasoning", ["", "hm, let me see"])
def test_a_run_of_tools_is_bridged_to_the_same_ids(
    qwen3: tuple[HFRenderer, Qwen3Renderer], calls: list[Call], reasoning: str
) -> None:
    ours, theirs = qwen3
    at = Desk(QWEN3, ours)
    history: list[dict[str, Any]] = [user("What is the weather in Paris?")]
    for _ in range(3):
        plan = at.tree.prompt(history)
        served = at.answer(plan, at.sampled(plan, "", reasoning, calls), [WEATHER])
        results = served.results
        bridged = theirs.bridge_to_next_turn(list(served.prompt), list(served.node.sampled), results)
        history = [*history, served.message, *results]
        assert bridged is not None
        assert tuple(at.tree.prompt(history).prompt_ids) == tuple(bridged.token_ids)


def test_thinking_that_is_dropped_renders_afresh_to_the_same_ids(qwen3: tuple[HFRenderer, Qwen3Renderer]) -> None:
    ours, theirs = qwen3
    at = Desk(QWEN3, ours)
    history: list[dict[str, Any]] = [user("a")]
    for _ in range(3):
        served = at.serve(history, "The answer.", "hm, let me see")
        assert served.prompt == tuple(theirs.render_ids(history, add_generation_prompt=True))
        history = [*history, served.message, user("b")]
    assert at.drift == [Drift.START, Drift.FORK, Drift.FORK]


class TekkenRenderer:
    """Mistral's own tokenizer, as its package ships it, behind a template without the older spaces."""

    def __init__(self) -> None:
        self.whole = MistralTokenizer.v3(is_tekken=True)
        self._inner = self.whole.instruct_tokenizer.tokenizer
        self._marks = re.compile("(" + "|".join(map(re.escape, MISTRAL.specials)) + ")")
        template = re.sub(r"(\[INST\]|\[TOOL_CALLS\]|\[AVAILABLE_TOOLS\]|\[TOOL_RESULTS\]) ", r"\1", MISTRAL.template)
        bare = replace(MISTRAL, template=template.replace("' ' ~ (m.content | trim)", "m.content"))
        self._text = HFRenderer(make_tokenizer(bare))
        self.eos_id = self.encode("</s>")[0]
        self.stop_ids = (self.eos_id,)
        self.answers = self._text.answers

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), generation_prompt: bool) -> str:
        return self._text.render(messages, tools=tools, generation_prompt=generation_prompt)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in filter(None, self._marks.split(text)):
            special = part in MISTRAL.specials
            ids += [self._inner.get_special_token(part)] if special else self._inner.encode(part, bos=False, eos=False)
        return ids

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        policy = SpecialTokenPolicy.KEEP if special else SpecialTokenPolicy.IGNORE
        text: str = self._inner.decode(list(ids), special_token_policy=policy)
        return text


@pytest.mark.slow
def test_mistrals_own_tokenizer_gives_the_ids_of_a_tool_conversation() -> None:
    renderer = TekkenRenderer()
    family = replace(MISTRAL, write=lambda content, reasoning, calls: f"{content}</s>")
    at = Desk(family, renderer, [WEATHER])
    history: list[dict[str, Any]] = [{"role": "system", "content": "Be kind."}, user("What is the weather in Paris?")]
    for turn in range(4):
        call = f'{{"name": "weather", "arguments": {{"city": "Paris", "days": {turn}}}, "id": "00000000{turn}"}}'
        plan = at.tree.prompt(history, at.tools)
        request: Any = ChatCompletionRequest.model_validate({"messages": history, "tools": at.tools})
        theirs = renderer.whole.encode_chat_completion(request)
        assert tuple(plan.prompt_ids) == tuple(theirs.tokens)
        served = at.answer(
            plan, renderer.encode(f"[TOOL_CALLS][{call}]</s>" if turn < 3 else "It is sunny.</s>"), at.tools
        )
        for named in served.message.get("tool_calls", ()):
            named["id"] = f"00000000{turn}"
        results = [{**result, "name": "weather"} for result in served.results]
        history = [*history, served.message, *(results or [user("Thanks.")])]
    assert at.drift == [Drift.START, Drift.CLEAN, Drift.CLEAN, Drift.CLEAN]
    assert at.tree.prompt(history, at.tools).drift is Drift.FORK  # system prompt and tools move to the last question
