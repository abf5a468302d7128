"""Whatever the agent does with its history, every sampled token is trained once, in the context it was sampled in."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.backends.fake import EOS_ID, FakeRenderer
from swarm.backends.protocols import TrainRow
from swarm.timelines import Drift, Tree, linear_rows, token_counts, unmerged_rows
from tests.swarm.timelines.renderers import ForgettingRenderer, ThoughtlessRenderer, TrimmingRenderer

ANSWERS = st.lists(st.integers(0, 255), max_size=6)
TEXTS = st.sampled_from(["a", "b", " c ", "x</think>y", "é"])


@dataclass(frozen=True)
class Turn:
    """One call: which earlier history it goes on from (None: a new conversation), and what the agent does to it."""

    base: int | None
    said: str
    rewrite: int | None
    answer: list[int]
    cut: bool


TURNS = st.lists(
    st.builds(
        Turn,
        base=st.none() | st.integers(0, 20),
        said=TEXTS,
        rewrite=st.none() | st.integers(0, 5),
        answer=ANSWERS,
        cut=st.booleans(),
    ),
    min_size=1,
    max_size=12,
)
RENDERERS = st.sampled_from([FakeRenderer, TrimmingRenderer, ForgettingRenderer, ThoughtlessRenderer])


@dataclass
class Play:
    """An episode as the engine saw it: prompt, sampled ids, and a log-prob that names each sampled token."""

    tree: Tree
    seen: list[tuple[list[int], list[int], list[float]]] = field(default_factory=list)
    histories: list[list[dict[str, Any]]] = field(default_factory=list)


def play(turns: list[Turn], renderer: FakeRenderer) -> Play:
    game, names = Play(Tree(renderer)), itertools.count(1)
    for number, turn in enumerate(turns):
        history: list[dict[str, Any]] = []
        if turn.base is not None and game.histories:
            history = [dict(message) for message in game.histories[turn.base % len(game.histories)]]
        if turn.rewrite is not None and history:
            history[turn.rewrite % len(history)]["content"] += "!"
        messages = [*history, {"role": "user", "content": turn.said}]
        plan = game.tree.plan(messages)
        sampled = turn.answer[:] if turn.cut and turn.answer else [*turn.answer, EOS_ID]
        logprobs = [-float(next(names)) for _ in sampled]
        text = renderer.decode(sampled)
        answer = {"role": "assistant", "content": text}
        game.tree.add(plan, sampled, logprobs, [number] * len(sampled), text=text, answer=answer)
        game.seen.append((list(plan.prompt_ids), sampled, logprobs))
        game.histories.append([*messages, answer])
    return game


def trained(row: TrainRow) -> list[float]:
    return [logprob for logprob, mark in zip(row.logprobs, row.sampled, strict=True) if mark]


def check(rows: tuple[TrainRow, ...], game: Play) -> None:
    """Each call's sampled tokens are trained in exactly one row, after exactly the prompt the engine saw."""
    named = sorted(name for row in rows for name in trained(row))
    assert named == sorted(name for _, _, logprobs in game.seen for name in logprobs)
    for number, (prompt, sampled, logprobs) in enumerate(game.seen):
        (row,) = [row for row in rows if logprobs[0] in trained(row)]
        end = len(prompt) + len(sampled)
        assert list(row.ids[:end]) == prompt + sampled
        assert list(row.sampled[len(prompt) : end]) == [1] * len(sampled)
        assert list(row.logprobs[len(prompt) : end]) == logprobs
        assert list(row.versions[len(prompt) : end]) == [number] * len(sampled)
    for row in rows:
        assert len(row.ids) == len(row.sampled) == len(row.logprobs) == len(row.versions)
        unsampled = [n for n, mark in enumerate(row.sampled) if not mark]
        assert all(row.logprobs[n] == 0.0 and row.versions[n] == -1 for n in unsampled)
        assert any(list(row.ids) == prompt + sampled for prompt, sampled, _ in game.seen)


@settings(max_examples=150, deadline=None)
@given(TURNS, RENDERERS)
def test_linear_rows_train_every_sampled_token_exactly_once(turns: list[Turn], renderer: type[FakeRenderer]) -> None:
    game = play(turns, renderer())
    check(linear_rows(game.tree.nodes), game)


@settings(max_examples=75, deadline=None)
@given(TURNS, RENDERERS)
def test_unmerged_rows_are_one_per_call(turns: list[Turn], renderer: type[FakeRenderer]) -> None:
    game = play(turns, renderer())
    rows = unmerged_rows(game.tree.nodes)
    check(rows, game)
    assert [list(row.ids) for row in rows] == [prompt + sampled for prompt, sampled, _ in game.seen]


@settings(max_examples=75, deadline=None)
@given(TURNS, RENDERERS)
def test_token_counts_are_the_lengths_of_the_rows(turns: list[Turn], renderer: type[FakeRenderer]) -> None:
    nodes = play(turns, renderer()).tree.nodes
    linear, unmerged = linear_rows(nodes), unmerged_rows(nodes)
    assert token_counts(nodes) == (sum(len(r.ids) for r in linear), sum(len(r.ids) for r in unmerged))


@settings(max_examples=75, deadline=None)
@given(st.lists(st.builds(Turn, st.just(-1), TEXTS, st.none(), ANSWERS, st.booleans()), min_size=1, max_size=8))
def test_a_plain_conversation_is_one_row(turns: list[Turn]) -> None:
    game = play(turns, FakeRenderer())
    assert len(linear_rows(game.tree.nodes)) == 1
    assert game.tree.drift[Drift.CLEAN] + game.tree.drift[Drift.REALIGN] == len(turns) - 1


def test_two_answers_to_one_prompt_are_two_rows_that_share_no_trained_token() -> None:
    turns = [Turn(None, "a", None, [49], False), Turn(0, "b", None, [50], False), Turn(0, "c", None, [51], False)]
    game = play(turns, FakeRenderer())
    first, second = linear_rows(game.tree.nodes)
    assert sum(first.sampled) == 4
    assert sum(second.sampled) == 2
    assert game.seen[0][0] + game.seen[0][1] == list(second.ids[: len(game.seen[0][0]) + 2])
