"""Random agents: whatever a client may do to its history, drawn from a list of numbers so that it shrinks."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from swarm.backends.fake import FakeRenderer
from swarm.rendering.messages import BackendError, Message, Renderer, Tool
from swarm.timelines import Prompt, normalise
from tests.swarm.timelines.desk import CLOCK, WEATHER, Desk, user
from tests.swarm.timelines.families import FAMILIES, Call, Family

_WORDS = ("a", "b", " c ", "x</think>y", "é", "", "the answer is 42", "{}", "<|im_end|>", "<|user|>", "\n\n")
_TOOLS: tuple[list[dict[str, Any]], ...] = ([], [WEATHER], [WEATHER, CLOCK], [CLOCK, WEATHER])
_ODD_IDS = (0xE4, 0xB8, 0xFF, 0x20)
Messages = list[dict[str, Any]]


def renderer_of(name: str, change: Callable[[Sequence[Message]], Sequence[Message]]) -> type[FakeRenderer]:
    """Return a renderer whose template changes the messages before it writes them."""

    def render(
        self: FakeRenderer, messages: Sequence[Message], *, tools: Sequence[Tool] = (), generation_prompt: bool
    ) -> str:
        return FakeRenderer.render(self, change(messages), tools=tools, generation_prompt=generation_prompt)

    return type(name, (FakeRenderer,), {"render": render})


def thoughtless(message: Message) -> Message:
    return {**message, "content": message["content"].split("</think>")[-1]}


TrimmingRenderer = renderer_of("Trimming", lambda shown: [{**m, "content": m["content"].strip()} for m in shown])
ForgettingRenderer = renderer_of("Forgetting", lambda shown: [*map(thoughtless, shown[:-1]), *shown[-1:]])
"""Leaves thinking out of all answers but a last one: Qwen3's way."""
ThoughtlessRenderer = renderer_of("Thoughtless", lambda shown: [*map(thoughtless, shown)])
"""Leaves thinking out of all answers: DeepSeek-R1's way."""
FAKE = Family("fake", "", (), "", lambda content, reasoning, calls: content + "<|end|>")
FAKES: tuple[type[FakeRenderer], ...] = (FakeRenderer, TrimmingRenderer, ForgettingRenderer, ThoughtlessRenderer)
REAL = tuple(FAMILIES)


class Agent:
    """Plays one episode. Every number is one call: which history it goes on from, what it does to it, what it gets."""

    def __init__(self, family: Family, renderer: Renderer, names: itertools.count[int]) -> None:
        self.desk = Desk(family, renderer, names=names)
        self.sent: list[tuple[Messages, int, Prompt]] = []
        self.refused = 0
        self._histories: list[tuple[Messages, int]] = []
        self._waiting: list[tuple[Prompt, Messages, int, int]] = []

    def play(self, numbers: Sequence[int]) -> None:
        """Play one call a number; calls that are left waiting are answered last, newest first."""
        for number in numbers:
            self._call(number)
        while self._waiting:
            self._answer(*self._waiting.pop())

    def _call(self, number: int) -> None:
        number, base = divmod(number, 7)
        number, action = divmod(number, 13)
        number, place = divmod(number, 5)
        history, tools = (
            self._histories[-1 - base % len(self._histories)]
            if self._histories
            else ([], place % 2 if self.desk.family.template else 0)
        )
        messages, tools = self._acted(copy.deepcopy(history), action, place, tools)
        try:
            prompt = self.desk.tree.prompt(messages, _TOOLS[tools])
        except BackendError:
            self.refused += 1
            return
        self.sent.append((messages, tools, prompt))
        if action == 12:  # its answer is long in coming
            self._waiting.append((prompt, messages, tools, number))
        else:
            self._answer(prompt, messages, tools, number)

    def _acted(self, history: Messages, action: int, place: int, tools: int) -> tuple[Messages, int]:
        """Return the next messages: mostly what was served and a new one, but see the other actions."""
        asked = self._asked(history, place)
        if not history:
            return [*([{"role": "system", "content": "be kind"}] if place % 2 else []), user(_WORDS[place])], tools
        if action == 4:  # the same request again
            return history[:-1], tools
        if action == 5:  # an earlier message says something else
            changed = history[place % len(history)]
            changed["content"] += "!"
        elif action == 6:  # thinking is not sent back
            for message in history:
                message.pop("reasoning_content", None)
        elif action == 7:  # only the beginning is sent back
            return [*history[: 1 + place % len(history)], *asked], tools
        elif action == 8:  # a summary of it, and the end
            return [user("so far: " + str(len(history))), *history[-2:], *asked], tools
        elif action == 9:  # other tools, or others first
            tools = (tools + 1 + place) % len(_TOOLS)
        elif action == 10:  # the same in another form
            history = [_restated(message, place) for message in history]
        elif action == 11:  # words nobody served
            return [*history, *asked, {"role": "assistant", "content": "put in"}, user("and?")], tools
        return [*history, *asked], tools

    def _asked(self, history: Messages, place: int) -> Messages:
        calls = history[-1].get("tool_calls", ()) if history else ()
        results = [
            {"role": "tool", "tool_call_id": call["id"], "name": "weather", "content": _WORDS[(n + place) % 7]}
            for n, call in enumerate(calls)
        ]
        return results or [user(_WORDS[place])]

    def _answer(self, prompt: Prompt, messages: Messages, tools: int, number: int) -> None:
        number, content = divmod(number, len(_WORDS))
        number, thinks = divmod(number, 3)
        number, called = divmod(number, 3)
        number, cut = divmod(number, 6)
        reasoning = "hm, let me see" if thinks and self.desk.family.thinks else ""
        given: list[Call] = [("weather", {"city": "Paris", "days": number % 3})] if called and tools else []
        if called == 2 and given and self.desk.family.parallel:
            given.append(("weather", {"city": 'R"o\nme'}))
        sampled = self.desk.sampled(prompt, _WORDS[content], reasoning, given)
        if cut == 1:
            sampled = sampled[: len(sampled) // 2]
        elif cut == 2:  # ids that no text is encoded to
            sampled = [*sampled[:-1], *_ODD_IDS[: 1 + number % 4], sampled[-1]]
        served = self.desk.answer(prompt, sampled, _TOOLS[tools])
        self._histories.append(([*messages, served.message], tools))

    def check_fresh(self) -> None:
        """A call's drift says how its prompt relates to its messages, rendered and tokenised afresh."""
        renderer = self.desk.renderer
        for messages, tools, prompt in self.sent:
            text = renderer.render([normalise(m) for m in messages], tools=_TOOLS[tools], generation_prompt=True)
            fresh = tuple(renderer.encode(text))
            assert (tuple(prompt.prompt_ids) == fresh) is prompt.exact, (prompt.drift, text)
            assert prompt.exact or prompt.drift in ("realign", "fork")
            assert prompt.drift != "start" or prompt.parent is None
            assert prompt.drift not in ("clean", "realign") or prompt.parent is not None
            if prompt.parent is not None:
                assert text.endswith(prompt.prompt_text)
                assert tuple(renderer.encode(prompt.prompt_text))[prompt.shared :] == prompt.context
            assert prompt.parent is None or tuple(prompt.prompt_ids)[: len(prompt.parent.path_ids())] == tuple(
                prompt.parent.path_ids()
            )


def _restated(message: dict[str, Any], place: int) -> dict[str, Any]:
    changed = {**message, "name": None, "annotations": []}
    if place % 2 and message["role"] == "assistant":
        changed["content"] = f"\n{message['content']} "
    if message["role"] == "tool" or "tool_calls" not in message:
        return changed
    changed["tool_calls"] = [{**call, "id": "other" + call["id"], "index": 0} for call in message["tool_calls"]]
    return changed
