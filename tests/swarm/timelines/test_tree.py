"""A tree of calls: what a prompt goes on from, and messages that say the same have the same key."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import pytest

from swarm.backends.fake import EOS_ID, FakeRenderer
from swarm.timelines import CallTree, Drift, Node, canonical, normalise
from tests.swarm.timelines.agents import TrimmingRenderer, renderer_of
from tests.swarm.timelines.desk import user


@pytest.fixture
def tree() -> CallTree:
    return CallTree(FakeRenderer())


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def serve(tree: CallTree, messages: list[dict[str, Any]], text: str, *, tools: Any = ()) -> Node:
    sampled = [*text.encode(), EOS_ID]
    prompt = tree.prompt(messages, tools)
    count = len(sampled)
    return tree.keep(prompt, tree.make_node(prompt, sampled, [-0.5] * count, [0] * count, text=text), said(text))


def test_a_continued_history_keeps_the_served_ids_and_adds_only_what_is_new(tree: CallTree) -> None:
    first = serve(tree, [user("a")], "1")
    prompt = tree.prompt([user("a"), said("1"), user("b")])
    assert (prompt.parent, prompt.drift) == (first, Drift.CLEAN)
    assert list(prompt.prompt_ids) == first.path_ids() + list(prompt.context)
    assert bytes(i for i in prompt.context if i != EOS_ID) == b"<|user|>b<|assistant|>"


@pytest.mark.parametrize(("calls", "later", "parent", "drift"), [
    (2, "2", 1, Drift.CLEAN), (2, "REWRITTEN", 0, Drift.FORK), (1, "PUT IN", 0, Drift.CLEAN),
])  # fmt: skip
def test_the_longest_known_history_is_continued_and_what_else_was_answered_is_context(
    calls: int, later: str, parent: int, drift: Drift
) -> None:
    tree, history = CallTree(FakeRenderer()), [user("a"), said("1"), user("b")]
    served = [serve(tree, history[: 2 * call + 1], str(call + 1)) for call in range(calls)]
    prompt = tree.prompt([*history, said(later), user("c")])
    assert (prompt.parent, prompt.drift) == (served[parent], drift)
    assert (later.encode() in bytes(i for i in prompt.context if i != EOS_ID)) is (parent + 1 < calls or calls == 1)


def test_a_template_that_trims_answers_is_bridged_and_realigned() -> None:
    tree = CallTree(TrimmingRenderer())
    first = serve(tree, [user("a")], " 1\n")
    prompt = tree.prompt([user("a"), said(" 1\n"), user("b")])
    assert (prompt.parent, prompt.drift) == (first, Drift.REALIGN)
    assert bytes(i for i in prompt.context if i != EOS_ID) == b"<|user|>b<|assistant|>"
    second = serve(tree, [user("a"), said(" 1\n"), user("b")], "2")
    third = tree.prompt([user("a"), said("1"), user("b"), said("2"), user("c")])
    assert (third.parent, third.drift) == (second, Drift.REALIGN)


def test_changed_or_reordered_tools_are_a_fork(tree: CallTree) -> None:
    f, g = ({"type": "function", "function": {"name": name, "parameters": {}}} for name in "fg")
    serve(tree, [user("a")], "1", tools=[f, g])
    history = [user("a"), said("1"), user("b")]
    again = {"function": {"parameters": {}, "name": "f"}, "type": "function"}
    assert tree.prompt(history, [again, g]).drift is Drift.CLEAN
    changed = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    for tools in ([], [f], [g, f], [changed, g]):
        prompt = tree.prompt(history, tools)
        assert (prompt.parent, prompt.drift) == (None, Drift.FORK)


def test_tools_of_calls_that_were_never_served_are_not_kept(tree: CallTree) -> None:
    sizes = []
    for number in range(50):
        tree.prompt([user("hi")], [{"type": "function", "function": {"name": f"f{number}", "parameters": {}}}])
        sizes.append(len(pickle.dumps(tree)))
    assert len(set(sizes)) == 1


def test_calls_planned_at_once_with_new_tools_are_both_gone_on_with() -> None:
    tree, tools = CallTree(FakeRenderer()), [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    prompts = [tree.prompt([user(text)], tools) for text in ("a", "b")]
    nodes = [
        tree.keep(prompt, tree.make_node(prompt, [*b"ok", EOS_ID], [-0.5] * 3, [0] * 3, text="ok"), said("ok"))
        for prompt in reversed(prompts)
    ]
    for text, node in zip("ba", nodes, strict=True):
        assert tree.prompt([user(text), said("ok"), user("more")], tools).parent is node


def test_a_call_that_was_not_kept_leaves_a_gap_and_no_trace(tree: CallTree) -> None:
    lost = tree.prompt([user("a")])
    tree.make_node(lost, [49, EOS_ID], [-0.5] * 2, [0] * 2, text="1")
    kept = serve(tree, [user("x")], "2")
    assert (kept.index, tree.nodes) == (1, [kept])
    assert tree.prompt([user("a"), said("1"), user("b")]).parent is None


def test_an_earlier_message_that_comes_back_in_another_form_is_looked_at_again() -> None:
    tree = CallTree(FakeRenderer())
    serve(tree, [user("a")], "1")
    second = serve(tree, [user("a"), said("1"), user("b")], "2")
    for form, drift in (("1\n", Drift.REALIGN), ("1", Drift.CLEAN)):  # this template shows the newline
        prompt = tree.prompt([user("a"), said(form), user("b"), said("2"), user("c")])
        assert (prompt.parent, prompt.drift) == (second, drift)
    tree = CallTree(TrimmingRenderer())
    serve(tree, [user("a")], "1")
    second = serve(tree, [user("a"), said("1"), user("b")], "2")
    for form in ("1\n", "1", " 1"):
        prompt = tree.prompt([user("a"), said(form), user("b"), said("2"), user("c")])
        assert (prompt.parent, prompt.drift) == (second, Drift.CLEAN)


def test_ids_without_their_log_probs_are_refused(tree: CallTree) -> None:
    with pytest.raises(ValueError, match="differ"):
        tree.make_node(tree.prompt([user("a")]), [1, 2], [-0.5], [0, 0], text="")


def test_a_template_that_hides_a_new_message_is_rendered_whole() -> None:
    secretive = renderer_of(
        "Secretive", lambda shown: [{**m, "content": ""} if m["role"] == "tool" else m for m in shown]
    )
    tree = CallTree(secretive())
    serve(tree, [user("a")], "1")
    messages = [user("a"), said("1"), {"role": "tool", "content": "x"}, user("b")]
    prompt = tree.prompt(messages)
    assert prompt.drift is Drift.FORK
    text = secretive().render(messages, generation_prompt=True)
    assert tuple(prompt.prompt_ids) == tuple(FakeRenderer().encode(text))


def call(arguments: Any, *, id_: str | None = "1", name: str = "f") -> dict[str, Any]:
    named = {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [named]}


PLAIN = {"role": "assistant", "content": "5"}
SAME: tuple[dict[str, Any], ...] = (
    {"content": "5", "role": "assistant"},
    {"role": "assistant", "content": "5", "refusal": None, "tool_calls": None, "annotations": []},
    {"role": "assistant", "content": [{"type": "text", "text": "5"}]},
    {"role": "assistant", "content": "5", "reasoning_content": "", "function_call": {}},
    {"role": "assistant", "content": "\n5 "},
    {"role": "assistant", "content": " 5", "reasoning_content": "\n\n", "tool_calls": []},
)
RESULT = {"role": "tool", "content": "x"}


@pytest.mark.parametrize(("one", "same"), [
    *((PLAIN, same) for same in SAME),
    *((call('{"a": 1, "b": 2}'), call(same)) for same in ('{"b":2,"a":1}', {"a": 1, "b": 2})),
    *((call("{}"), call("{}", id_=other)) for other in ("another", None)),
    *((RESULT, {**RESULT, "tool_call_id": other}) for other in "12"),
])  # fmt: skip
def test_absent_null_and_split_fields_ids_and_the_form_of_arguments_do_not_matter(one: Any, same: Any) -> None:
    assert canonical(one) == canonical(same)


@pytest.mark.parametrize(("one", "other"), [
    *((PLAIN, other) for other in (
        {"role": "user", "content": "5"}, {"role": "assistant", "content": "5", "name": "bob"},
        {"role": "assistant", "content": "5", "reasoning_content": "hm"}, {"role": "assistant", "content": None},
    )),
    *(({"role": role, "content": "5"}, {"role": role, "content": "5 "}) for role in ("user", "system", "tool")),
    *((call('{"a": 1}'), call(other)) for other in ('{"a": 2}', '{"a": true}')),
    (call("not json"), call("nor this")), (call("[" * 100_000), call("{" * 100_000)),
    (call("{}"), call("{}", name="g")),
    (call("{}"), {**call("{}"), "tool_calls": call("{}")["tool_calls"] * 2}),
    (RESULT, {**RESULT, "name": "f"}),
], ids=itertools.count())  # fmt: skip
def test_another_role_text_name_argument_tool_or_number_of_calls_does(one: Any, other: Any) -> None:
    assert canonical(one) != canonical(other)


@pytest.mark.parametrize(
    ("arguments", "shown"), [('{"b": 1, "a": [2]}', {"b": 1, "a": [2]}), ("{", "{"), ("5", "5"), ({"a": 1}, {"a": 1})]
)
def test_templates_get_tool_arguments_as_objects_where_they_are_ones(arguments: Any, shown: Any) -> None:
    (given,) = normalise(call(arguments))["tool_calls"]
    assert given["function"]["arguments"] == shown
    assert given["id"] == "1"


@pytest.mark.parametrize(
    "arguments", ['{"a": "\\ud800"}', '{"\\udfff": 1}', *("[" * depth + "]" * depth for depth in (300, 985, 990))]
)
def test_arguments_that_no_template_could_write_stay_text(arguments: str) -> None:
    (given,) = normalise(call(arguments))["tool_calls"]
    assert given["function"]["arguments"] == arguments
    assert canonical(call(arguments)) == canonical(call(arguments)) != canonical(call("{}"))
