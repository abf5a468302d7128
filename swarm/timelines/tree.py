"""The call tree of one episode: which ids were seen, sampled, and are shown next.

The ids from the root through a node are exactly what the engine saw and sampled in that call. A request whose history
is what was served continues that node: its prompt is the served ids, then the rendering of the new messages alone, so
that re-tokenisation can never change a trained token.

    prompt -> (the engine samples) -> finished -> (the node is made durable) -> keep

Calls of one episode may interleave these as they like. Knows the model only through its Renderer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from swarm.rendering.messages import Message, Renderer, Tool
from swarm.timelines.matching import History, Match, Matcher, canonical, normalise
from swarm.timelines.node import Drift, Node
from swarm.timelines.splice import TemplateSplice, TemplateSplices

Encode = Callable[[str], Sequence[int]]
"""Returns the ids of a text, as `Renderer.encode` does."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """How one request will be shown to the engine.

    prompt_ids: all ids; context: those that are new since `parent`. prompt_text: the template's text from where
    `parent` ended (its end mark included), so it ends as the whole prompt does. shared: how many ids at the
    beginning of `prompt_text` are `parent`'s own. exact: the messages, rendered and tokenised afresh, give these ids.
    asked: where in the tree its messages begin to be new, and which are. tools: as they were first sent.
    """

    parent: Node | None
    context: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    prompt_text: str
    drift: Drift
    shared: int
    exact: bool
    asked: tuple[History, tuple[Message, ...]]
    tools: tuple[Tool, ...]


@dataclass(slots=True)
class _NodeState:
    """What is known of a node beyond its ids: `length` and `shared` are of its prompt's `prompt_text`.

    aligned: its prompt is exact, as `Prompt.exact`; None where messages came back in another form since. exact: its
    answer is too; None until it is continued.
    """

    length: int
    shared: int
    aligned: bool | None
    exact: bool | None = None


class CallTree:
    """All finished calls of one episode, by index."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._stops = frozenset(renderer.stop_ids)
        self._ends = tuple(renderer.decode([token], special=True) for token in {renderer.eos_id, *self._stops})
        self.splices = TemplateSplices(renderer, self._ends)
        self._histories: list[tuple[tuple[Tool, ...], Matcher]] = []
        self._answers: set[Hashable] = set()
        self._served: dict[int, _NodeState] = {}
        self._next = 0
        self.nodes: list[Node] = []

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = (), encode: Encode | None = None) -> Prompt:
        """Return the prompt for `messages`; raise BackendError if the template refuses them. `encode` takes the place
        of the renderer's own; what it raises leaves the tree as it was."""
        encode = encode or self._renderer.encode
        sent = tuple(messages)
        tools, histories = self._find_matcher(tools)
        found = histories.match(sent)
        if found.restated:
            for served in self._served.values():
                served.aligned = served.exact = None
        if found.node is not None:
            prompt = self._extend(found, found.node, sent, tools, encode)
            if prompt is not None:
                return prompt
        plain = [normalise(message) for message in sent]
        text = self._renderer.render(plain, tools=tools, generation_prompt=True)
        ids = tuple(encode(text))
        drift = (
            Drift.FORK
            if found.node is not None
            or found.departs
            or any(m.get("role") == "assistant" and canonical(m) in self._answers for m in sent)
            else Drift.START
        )
        return Prompt(None, ids, ids, text, drift, 0, True, (histories.root, sent), tools)

    def make_node(
        self,
        prompt: Prompt,
        sampled: Sequence[int],
        logprobs: Sequence[float],
        versions: Sequence[int],
        *,
        text: str,
        trained: bool = True,
        agent: str = "",
        cut: bool = False,
    ) -> Node:
        """Return the node of a finished call, which the tree does not hold yet; `text` is what `sampled` decodes to."""
        if not len(sampled) == len(logprobs) == len(versions):
            raise ValueError(f"ids, log-probs, versions differ: {len(sampled)}, {len(logprobs)}, {len(versions)}")
        index, self._next = self._next, self._next + 1
        served = tuple(sampled), tuple(logprobs), tuple(versions)
        whole = prompt.prompt_text + text
        return Node(index, prompt.parent, prompt.context, *served, whole, prompt.drift, trained, agent, cut)

    def keep(self, prompt: Prompt, node: Node, answer: Message) -> None:
        at, new = prompt.asked
        if prompt.parent is None:
            histories = self._find_matcher(prompt.tools)
            if not any(histories[1] is matcher for _, matcher in self._histories):  # kept once a call was served
                self._histories.append(histories)
            at = histories[1].root
        end = at.extend(new)
        end.answered = True
        key = canonical(answer)
        history = end.children.setdefault(key, History())
        history.node = history.node or node  # of two calls that said the same, the first may be continued already
        self._answers.add(key)
        self._served[node.index] = _NodeState(len(prompt.prompt_text), prompt.shared, prompt.exact)
        self.nodes.append(node)
        self.nodes.sort(key=attrgetter("index"))

    def add(
        self,
        prompt: Prompt,
        sampled: Sequence[int],
        logprobs: Sequence[float],
        versions: Sequence[int],
        *,
        text: str,
        answer: Message,
    ) -> Node:
        node = self.make_node(prompt, sampled, logprobs, versions, text=text)
        self.keep(prompt, node, answer)
        return node

    def _find_matcher(self, tools: Sequence[Tool]) -> tuple[tuple[Tool, ...], Matcher]:
        sent = tuple(tools)
        return next((told for told in self._histories if told[0] == sent), (sent, Matcher()))

    def _extend(
        self, found: Match, node: Node, sent: tuple[Message, ...], tools: tuple[Tool, ...], encode: Encode
    ) -> Prompt | None:
        known, new = sent[: found.length], sent[found.length :]
        blind = self._served[node.index].exact is None and self._served[node.index].aligned is None
        cut = self.splices.find(known, new, tools, whole=blind)
        if cut is None:
            return None
        ids = tuple(encode(cut.rest))
        whole = bool(node.sampled) and node.sampled[-1] in self._stops
        same = whole and ids[:1] == node.sampled[-1:]
        if whole and not same and not self.splices.closes(known, tools):
            return None  # it sampled the opening of another role than the one that follows
        exact = self._is_exact(node, cut, encode, whole=whole) and (same or not whole)
        drift = Drift.FORK if found.departs else Drift.CLEAN if exact else Drift.REALIGN
        context = ids[1:] if whole else ids  # an answer cut short is closed, unsampled
        prompt = (*node.path_ids(), *context)
        return Prompt(node, context, prompt, cut.rest, drift, int(whole), exact, (found.at, new), tools)

    def _is_exact(self, node: Node, cut: TemplateSplice, encode: Encode, *, whole: bool) -> bool:
        """Tell whether the history, rendered and tokenised afresh, gives the ids served through `node`. Only the node's
        own text is looked at, unless earlier messages came back in another form."""
        served = self._served[node.index]
        if served.exact is None and served.aligned is None:
            ids = node.path_ids()
            served.exact = list(encode(cut.before)) == (ids[:-1] if whole else ids)
        elif served.exact is None:
            exact = False
            if served.aligned and cut.answer is not None:
                fresh = encode(node.text[: served.length] + cut.answer)
                spoken = node.sampled[:-1] if whole else node.sampled
                exact = tuple(fresh[served.shared :]) == node.context + spoken
            served.exact = exact
        return served.exact
