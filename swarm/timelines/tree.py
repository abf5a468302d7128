"""The call tree of one episode: which ids the engine saw, which it sampled, and what to show it next.

A node is one served call: the ids that were new to the engine (context), then the ids it sampled, with their
log-probs and policy versions. The ids from the root through a node are exactly what the engine saw and
sampled in that call. A request whose history is what was served continues that node: its prompt is the served
ids, then the rendering of the new messages alone, so that re-tokenisation can never change a trained token.

Promises nothing about rewards or leases, and knows the model only through its Renderer.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from swarm.backends.protocols import Message, Renderer
from swarm.timelines.messages import canonical, normalise


class Drift(StrEnum):
    """How a request's prompt relates to what was served before."""

    START = "start"
    """A conversation begins: no earlier answer is part of it."""
    CLEAN = "clean"
    """The history is what was served; its ids are kept as they are."""
    FORK = "fork"
    """The history was rewritten, or the template renders it differently now: rendered afresh."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One served call.

    context: new prompt ids after the parent's last id (the whole prompt at a root). sampled, logprobs,
    versions: of equal length. text: the template's text from the root through the answer and its end mark.
    """

    index: int
    parent: Node | None
    context: tuple[int, ...]
    sampled: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    text: str
    drift: Drift = Drift.START

    def path(self) -> list[Node]:
        """Return the nodes from the root to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def path_ids(self) -> list[int]:
        """Return all ids from the root through this node's sampled ones."""
        return [token for node in self.path() for token in (*node.context, *node.sampled)]


@dataclass(frozen=True, slots=True)
class Plan:
    """How one request will be shown to the engine: `prompt_ids` are all ids, `context` the ones new since `parent`."""

    parent: Node | None
    context: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    prompt_text: str
    drift: Drift
    messages: tuple[Message, ...]


@dataclass(slots=True)
class _History:
    """A message history as a trie: `node` is the call that served its last message, if one did."""

    children: dict[Hashable, _History] = field(default_factory=dict)
    node: Node | None = None


class Tree:
    """All finished calls of one episode, in the order they finished."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._root = _History()
        self.nodes: list[Node] = []
        self.drift: dict[Drift, int] = dict.fromkeys(Drift, 0)

    def plan(self, messages: Sequence[Message]) -> Plan:
        """Return the prompt for `messages`; raise BackendError if the template refuses them."""
        plain = tuple(normalise(message) for message in messages)
        text = self._renderer.render(plain, generation_prompt=True)
        node, length = self._longest_known(plain)
        if node is not None:
            rest = self._rest(node, plain[:length], text)
            if rest is not None:
                return self._continue(node, rest, text, plain)
        ids = tuple(self._renderer.encode(text))
        return Plan(None, ids, ids, text, self._unmatched(plain), plain)

    def add(
        self,
        plan: Plan,
        sampled: Sequence[int],
        logprobs: Sequence[float],
        versions: Sequence[int],
        *,
        text: str,
        answer: Message,
    ) -> Node:
        """Keep a finished call: `text` is what `sampled` decodes to, `answer` the message that was served."""
        if not len(sampled) == len(logprobs) == len(versions):
            raise ValueError(f"ids, log-probs, versions differ: {len(sampled)}, {len(logprobs)}, {len(versions)}")
        node = Node(
            index=len(self.nodes),
            parent=plan.parent,
            context=plan.context,
            sampled=tuple(sampled),
            logprobs=tuple(logprobs),
            versions=tuple(versions),
            text=plan.prompt_text + text + self._renderer.eos_text,
            drift=plan.drift,
        )
        self.nodes.append(node)
        self.drift[plan.drift] += 1
        history = self._root
        for message in (*plan.messages, answer):
            history = history.children.setdefault(canonical(message), _History())
        history.node = node
        return node

    def _longest_known(self, messages: Sequence[Message]) -> tuple[Node | None, int]:
        history, found, length = self._root, None, 0
        for position, message in enumerate(messages, start=1):
            following = history.children.get(canonical(message))
            if following is None:
                break
            history = following
            if history.node is not None:
                found, length = history.node, position
        return found, length

    def _rest(self, node: Node, known: Sequence[Message], text: str) -> str | None:
        """Return the text that follows the served one, or None where the template no longer renders what was served."""
        if text.startswith(node.text):
            return text[len(node.text) :]
        eos = self._renderer.eos_text
        before = self._renderer.render(known, generation_prompt=False)
        cut = before[: before.rfind(eos) + len(eos)] if eos in before else before
        same = _without_spaces(cut) == _without_spaces(node.text)  # templates trim answers; that changes no meaning
        return text[len(cut) :] if same and text.startswith(cut) else None

    def _continue(self, node: Node, rest: str, text: str, messages: tuple[Message, ...]) -> Plan:
        """Return the plan of a request that extends `node`; an answer cut short gets its end mark, unsampled."""
        whole = bool(node.sampled) and node.sampled[-1] == self._renderer.eos_id
        context = tuple(self._renderer.encode(rest))
        if not whole:
            context = (self._renderer.eos_id, *context)
        return Plan(node, context, (*node.path_ids(), *context), text, Drift.CLEAN, messages)

    def _unmatched(self, messages: Sequence[Message]) -> Drift:
        answered = any(message.get("role") == "assistant" for message in messages)
        return Drift.FORK if self.nodes and answered else Drift.START


def _without_spaces(text: str) -> str:
    return "".join(text.split())
