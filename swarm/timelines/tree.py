"""The call tree of one episode: which ids were seen, sampled, and are shown next.

The ids from the root through a node are exactly what the engine saw and sampled in that call. A request whose history
is what was served continues that node: its prompt is the served ids, then the rendering of the new messages alone, so
that re-tokenisation can never change a trained token.

    prompt -> (the engine samples) -> finished -> (the node is made durable) -> keep

Calls of one episode may interleave these as they like. Knows the model only through its Renderer.

`TemplateSplices` asks the template alone where its text goes on after a served answer: with what came before the
answer, with all messages, and with the first new message begun differently. The last two part inside the first new
message, and the last end of an answer before that is where the served one ends. Only that special tokens end an answer
is assumed. Long histories are rendered anchored: the head, the turn with the last user message, the last turn with
thinking, and the last two turns. It is audited against the whole history at every doubling and every new order of
roles; after the first disagreement whole histories are rendered for good.

`Matcher` tells which served calls a list of messages begins with, by canonical keys in a trie. Two messages have equal
keys exactly when they say the same: absent, null and empty optional fields are one; text parts equal the joined string;
a tool call is its function's name and its arguments as JSON, whatever its id; outer whitespace of an assistant's words
and thinking does not count. Arguments with half a character, or nested hundreds deep, stay text.

Matching begins where one of the latest histories ended, compared as plain values; from there a message in the form it
had last time costs one comparison.
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any

from pydantic_core import from_json

from swarm.rendering.messages import BackendError, Message, Renderer, Tool
from swarm.timelines.node import Drift, Node, common_length, pack

_EMPTY: tuple[Any, ...] = (None, "", [], {}, ())
_IDS = frozenset({"id", "tool_call_id"})
"""Fields that only tie a result to its call: clients and dialects write them anew."""


def normalise(message: Message) -> dict[str, Any]:
    """Return the message as templates want it. It has no null or empty optional field, its text parts are joined, and
    the arguments of its tool calls are objects where they are valid JSON objects."""
    if len(message) == 2 and type(message.get("content")) is str and "role" in message:
        return dict(message)
    kept = {name: value for name, value in message.items() if name == "role" or value not in _EMPTY}
    content, calls = kept.get("content", ""), kept.get("tool_calls")
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    kept["content"] = content
    if isinstance(calls, Sequence) and not isinstance(calls, str):
        kept["tool_calls"] = plain = list(calls)
        for place, call in enumerate(plain):
            function = called_function(call)
            arguments = _parse_arguments(function.get("arguments"))
            if isinstance(arguments, Mapping):
                plain[place] = {**call, "function": {**function, "arguments": arguments}}
    return kept


def canonical(message: Message) -> Hashable:
    """Return a key that equal messages share; a plain message's is the pair of its role and text."""
    role = message.get("role")
    if len(message) == 2 and type(message.get("content")) is str and "role" in message:
        return role, message["content"].strip() if role == "assistant" else message["content"]
    plain = {name: value for name, value in normalise(message).items() if name not in _IDS}
    if role == "assistant":
        trimmed = {name: value.strip() if isinstance(value, str) else value for name, value in plain.items()}
        plain = {name: value for name, value in trimmed.items() if value != "" or name in ("role", "content")}
    if plain.keys() == {"role", "content"} and isinstance(plain["content"], str):
        return role, plain["content"]
    if isinstance(calls := plain.get("tool_calls"), list):
        functions = [(call, called_function(call)) for call in calls]
        plain["tool_calls"] = [
            [of.get("name"), _parse_arguments(of.get("arguments"))] if of else call for call, of in functions
        ]
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), default=str)


def called_function(call: object) -> Mapping[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    return function if isinstance(function, Mapping) else {}


def _parse_arguments(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return from_json(arguments)  # unlike json's, it refuses half characters, and depths that others fail on
    except ValueError:
        return arguments


@dataclass(slots=True, eq=False)
class History:
    """Where one list of messages ends. `node` is the call that served the last of them, if one did. form: the message
    in the form it last came in, None until it came in a request. answered: calls were served here."""

    children: dict[Hashable, History] = field(default_factory=dict)
    node: Node | None = None
    answered: bool = False
    form: Message | None = None
    _last: History | None = None

    def find_child(self, message: Message) -> History | None:
        if self._last is not None and self._last.form == message:
            return self._last
        found = self.children.get(canonical(message))
        if found is not None:
            self._last = found
        return found

    def extend(self, messages: Sequence[Message]) -> History:
        history = self
        for message in messages:
            following = history.find_child(message)
            if following is None:
                following = history.children.setdefault(canonical(message), History(form=message))
                history._last = following
            history = following
        return history


@dataclass(frozen=True, slots=True)
class Match:
    """How far a list of messages is known. node: the last call that served one of them, whose answer is message number
    `length` (None, 0 where no call did). at: where its answer ends in the trie. departs: behind it, another answer
    stands where one was served. restated: a known message came back in a form that templates may render differently."""

    node: Node | None
    length: int
    at: History
    departs: bool
    restated: bool


_LATEST = 4
"""Histories a matcher remembers: about as many as an agent goes on with in turns."""


class Matcher:
    """Matches the requests that were told of the same tools."""

    def __init__(self) -> None:
        self.root = History()
        self._latest: list[tuple[tuple[Message, ...], Match]] = []

    def match(self, messages: tuple[Message, ...]) -> Match:
        known: tuple[Message, ...] = ()
        node: Node | None = None
        length, at = 0, self.root
        for remembered, match in self._latest:
            if messages[: len(remembered)] == remembered:
                known, node, length, at = remembered, match.node, match.length, match.at
                break
        departs, altered = False, False
        forms: list[Message] = []  # equal to the messages, and kept already
        history = at
        for position, message in enumerate(messages[length:], start=length + 1):
            following = history.find_child(message)
            served = following is not None and following.node is not None
            departs = departs or (history.answered and message.get("role") == "assistant" and not served)
            if following is None:
                break
            history, before = following, following.form
            if before is None or before != message or _has_object_arguments(message):
                history.form = message  # templates may see the difference
                altered = altered or (before is not None and _form_key(before) != _form_key(message))
            forms.append(history.form or message)
            if history.node is not None:
                node, length, at, departs = history.node, position, history, False
        result = Match(node, length, at, departs, altered)
        if result.restated:
            self._latest.clear()
        forms = forms[: length - len(known)]
        if node is not None and not any(map(_has_object_arguments, forms)):
            self._latest = [((*known, *forms), result), *self._latest[: _LATEST - 1]]
        return result


def _has_object_arguments(message: Message) -> bool:
    """Tell whether tool arguments came as objects, whose order templates show and plain comparison does not."""
    calls = message.get("tool_calls")
    return isinstance(calls, list) and not all(isinstance(called_function(c).get("arguments"), str) for c in calls)


def _form_key(message: Message) -> str:
    return repr(sorted(normalise(message).items()))


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
    prompt_ids: Sequence[int]
    prompt_text: str
    drift: Drift
    shared: int
    exact: bool
    asked: tuple[History, tuple[Message, ...]]
    tools: tuple[Tool, ...]


@dataclass(slots=True)
class _NodeState:
    """What is known of a node beyond its ids: `length` and `shared` are of its prompt's `prompt_text`. aligned: its
    prompt is exact, as `Prompt.exact`; None where messages came back in another form since. exact: its answer is too;
    None until it is continued."""

    length: int
    shared: int
    aligned: bool | None
    exact: bool | None = None


_TAG = re.compile(r"\s*<\w+>")


@dataclass(frozen=True, slots=True)
class TemplateSplice:
    """A template's text, cut at the end of a served answer. before: all text up to there. answer: the answer as the
    template writes it, without its opening and its end mark; None where it opens it otherwise than it was asked for.
    rest: what follows, from the end mark (or, in a template that writes none, the next role's opening) through the
    opening of the next answer."""

    before: str
    answer: str | None
    rest: str


def _vary_beginning(new: Sequence[Message]) -> list[Message]:
    """Return `new` with another letter for the words of its first message, or with a message where there is none. A tag
    that the words begin with stays, since some templates tell tool results from questions by it."""
    if not new:
        return [{"role": "user", "content": "a"}]
    content = new[0].get("content")
    words = content if isinstance(content, str) else ""
    tag = _TAG.match(words)
    kept = tag[0] if tag else ""
    letter = "b" if words[len(kept) :].lstrip().startswith("a") else "a"
    return [{**new[0], "content": kept + letter}, *new[1:]]


_LAST_TURNS = 3
"""Turns kept at the end: the served answer and the two before it."""


class TemplateSplices:
    """The splices of one episode's histories; `ends` are the texts that may follow an answer."""

    def __init__(self, renderer: Renderer, ends: Sequence[str]) -> None:
        self._renderer = renderer
        self._ends = tuple(ends)
        self._closing: bool | None = None
        self._audited: set[tuple[Any, ...]] = set()
        self.trusted = True
        """No anchored history disagreed with the whole one so far: long ones are bridged by a few of their messages."""

    def find(
        self, known: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool], *, whole: bool = False
    ) -> TemplateSplice | None:
        """Return where `known`, whose last message is a served answer, goes on with `new`. None where the template
        changes what comes before the answer because of what follows it, or leaves out something the answer says.
        `before` is of the whole history only where `whole`."""
        short = known if whole or not self.trusted else select_anchors(known)
        if len(short) == len(known):
            return self._splice(known, new, tools)
        kind = (len(known).bit_length(), bool(tools), *dict.fromkeys(message.get("role") for message in new))
        audit = kind not in self._audited
        self._audited.add(kind)
        result = self._splice(known, new, tools) if audit else None
        try:
            cut = self._splice(short, new, tools)
        except BackendError:  # the template takes whole histories only
            self.trusted = False
            return result if audit else self._splice(known, new, tools)
        if not audit:
            return cut
        texts = [(found.answer, found.rest) if found else None for found in (result, cut)]
        self.trusted = texts[0] == texts[1]
        return result

    def _splice(
        self, history: Sequence[Message], following: Sequence[Message], tools: Sequence[Tool]
    ) -> TemplateSplice | None:
        known, new = [normalise(message) for message in history], [normalise(message) for message in following]
        text = self._renderer.render([*known, *new], tools=tools, generation_prompt=True)
        opened = self._renderer.render(known[:-1], tools=tools, generation_prompt=True)
        same = text.startswith(opened)
        asked = opened if same else self._renderer.render(known[:-1], tools=tools, generation_prompt=False)
        if not text.startswith(asked):
            return None
        varied = self._renderer.render([*known, *_vary_beginning(new)], tools=tools, generation_prompt=True)
        if new and varied == text:
            return None  # the new message's words are not shown: there is no telling where it begins
        written = text[len(asked) : len(asked) + common_length(text[len(asked) :], varied[len(asked) :])]
        end = max(written.rfind(mark) for mark in self._ends)
        said = [known[-1].get("content"), known[-1].get("reasoning_content")]
        said += [called_function(call).get("name") for call in known[-1].get("tool_calls", ())]
        squeezed = "".join(written[: max(end, 0)].split())  # whatever its spaces
        if end < 0 or not all("".join(part.split()) in squeezed for part in said if isinstance(part, str)):
            return None
        end += len(asked)
        return TemplateSplice(text[:end], text[len(asked) : end] if same else None, text[end:])

    def closes(self, known: Sequence[Message], tools: Sequence[Tool]) -> bool:
        """Tell whether the template itself ends an answer with a mark, whatever follows; it is asked once."""
        if self._closing is None:
            plain = [normalise(message) for message in known]
            shown = self._renderer.render(plain, tools=tools, generation_prompt=False)
            self._closing = shown.rstrip().endswith(self._ends)
        return self._closing


def select_anchors(known: Sequence[Message]) -> Sequence[Message]:
    """Return the messages of a history, which ends with an answer, that tell what its template writes next. A turn is
    an answer and what follows it; what comes before the first is the head."""
    roles = [message.get("role") for message in known]
    answers = [position for position, role in enumerate(roles) if role == "assistant"]
    if len(answers) <= _LAST_TURNS + 1:
        return known
    asked = len(roles) - 1 - roles[::-1].index("user") if "user" in roles else -1
    thoughts = (
        place
        for place in reversed(answers)
        if known[place].get("reasoning_content") or "</think>" in str(known[place].get("content"))
    )
    thought = next(thoughts, -1)
    kept = {*range(len(answers) - _LAST_TURNS, len(answers)), *(bisect(answers, at) - 1 for at in (asked, thought))}
    ends = [*answers[1:], len(known)]
    turns = [known[answers[turn] : ends[turn]] for turn in sorted(kept - {-1})]
    return [*known[: answers[0]], *chain.from_iterable(turns)]


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
        if not len(sampled) == len(logprobs) == len(versions):
            raise ValueError(f"ids, log-probs, versions differ: {len(sampled)}, {len(logprobs)}, {len(versions)}")
        index, self._next = self._next, self._next + 1
        whole = prompt.prompt_text + text
        served = (prompt.context, tuple(sampled), tuple(logprobs), tuple(versions))
        return Node(index, prompt.parent, *served, whole, prompt.drift, trained, agent, cut)

    def keep(self, prompt: Prompt, node: Node, answer: Message) -> Node:
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
        return node

    def _find_matcher(self, tools: Sequence[Tool]) -> tuple[tuple[Tool, ...], Matcher]:
        sent = tuple(tools)
        for known in self._histories:
            if known[0] == sent:
                return known
        return sent, Matcher()

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
        prompt = array("i", node.path_bytes() + pack("i", context))
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
