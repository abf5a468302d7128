"""Long histories are bridged at the cost of short ones, and the whole template has the last word."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.fake import FakeRenderer
from swarm.rendering.messages import BackendError, Message, Tool
from swarm.timelines import Drift, normalise
from swarm.timelines.tree import select_anchors
from tests.swarm.timelines.agents import FAKE
from tests.swarm.timelines.desk import WEATHER, Desk, system, user
from tests.swarm.timelines.families import FAMILIES, Call, make_renderer

PARIS: Call = ("weather", {"city": "Paris"})


class CountingRenderer(FakeRenderer):
    shown = 0

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), generation_prompt: bool) -> str:
        self.shown += len(messages)
        return super().render(messages, tools=tools, generation_prompt=generation_prompt)


class StrictRenderer(FakeRenderer):
    """Refuses the result of a tool that nobody called before."""

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), generation_prompt: bool) -> str:
        called = {call["id"] for message in messages for call in message.get("tool_calls", ())}
        if any(message["role"] == "tool" and message["tool_call_id"] not in called for message in messages):
            raise BackendError("nobody called")
        return super().render(messages, tools=tools, generation_prompt=generation_prompt)


def chat(at: Desk, turns: int) -> None:
    history: list[dict[str, Any]] = []
    for turn in range(turns):
        history.append(user(str(turn)))
        history.append(at.serve(history, "ok").message)


def test_a_call_of_a_long_conversation_renders_no_more_than_one_of_a_short() -> None:
    costs = []
    for turns in (20, 80):
        renderer = CountingRenderer()
        at = Desk(FAKE, renderer)
        chat(at, turns)
        history = [message for n, call in enumerate(at.calls) for message in (user(str(n)), call.message)]
        renderer.shown = 0
        assert at.tree.prompt([*history, user("x")]).drift is Drift.CLEAN
        costs.append(renderer.shown)
    assert costs[0] == costs[1] < 40


def test_a_template_that_refuses_an_anchored_history_alone_is_shown_the_whole() -> None:
    at = Desk(FAMILIES["qwen3"], StrictRenderer(), [WEATHER])
    history = [user("a")]
    late: list[dict[str, Any]] = []
    for turn in range(15):
        written = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call><|end|>' if turn == 1 else "ok<|end|>"
        plan = at.tree.prompt(history, at.tools)
        served = at.answer(plan, at.renderer.encode(written), at.tools)
        late = served.results or late
        history = [*history, served.message, *(late if turn == 12 else []), user("and now?")]
    assert at.drift == [Drift.START, *[Drift.CLEAN] * 14]
    assert not at.tree.splices.trusted


@pytest.mark.parametrize("name", list(FAMILIES))
@pytest.mark.parametrize("thinks", [False, True])
def test_long_runs_of_every_family_are_rendered_as_the_whole_history_is(name: str, thinks: bool) -> None:
    family = FAMILIES[name]
    calls = not name.startswith("gemma")
    at = Desk(family, make_renderer(name), [WEATHER] if calls else [])
    history = [user("a")] if name == "gemma2" else [system("Be kind."), user("a")]
    for turn in range(18):
        asks = calls and turn % 6 != 5
        reasoning = "hm, let me see" if thinks and family.thinks and turn % 4 == 0 else ""
        served = at.serve(history, "" if asks else "It is sunny.", reasoning, [PARIS] if asks else [])
        fresh = at.renderer.render([normalise(m) for m in history], tools=at.tools, generation_prompt=True)
        ids = at.renderer.encode(fresh)
        assert (served.prompt == tuple(ids)) is (served.node.drift is not Drift.REALIGN)
        new = served.node.context[1:]
        assert ids[-len(new) :] == list(new)
        history = [*history, served.message, *(served.results or [user("and now?")])]
    assert at.tree.splices.trusted


ROLES = st.lists(st.sampled_from(["system", "user", "tool", "assistant", "thinks"]), max_size=40)


@given(ROLES)
def test_an_anchored_history_keeps_order_head_last_question_last_thinking_and_end(roles: list[str]) -> None:
    known: list[Mapping[str, Any]] = [
        {"role": "assistant", "content": str(n), "reasoning_content": "hm"}
        if role == "thinks"
        else {"role": role, "content": str(n)}
        for n, role in enumerate([*roles, "assistant"])
    ]
    short = select_anchors(known)
    places = [int(message["content"]) for message in short]
    assert places == sorted(set(places))
    head = list(itertools.takewhile(lambda n: known[n]["role"] != "assistant", range(len(known))))
    assert places[: len(head)] == head
    assert places[-1] == len(known) - 1
    for holds in (lambda m: m["role"] == "user", lambda m: "reasoning_content" in m):
        assert max(filter(lambda n: holds(known[n]), range(len(known))), default=0) in [0, *places]
    answers = sum(message["role"] == "assistant" for message in known)
    assert sum(message["role"] == "assistant" for message in short) <= min(answers, 5)
