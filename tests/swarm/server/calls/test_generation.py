"""What is captured is what was sampled, and what is served is the same however it was cut on the way."""

from __future__ import annotations

import asyncio
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.answers import gathered
from swarm.backends.fake.backend import EOS_ID, FakeBackend, fake_logprob
from swarm.backends.protocols import Sampling
from swarm.server.calls.generation import AnswerGeneration, SampledPiece, short_name
from swarm.server.calls.sampling_plan import SamplingPlan
from swarm.server.shared.gate import Gate
from swarm.timelines import CallTree
from tests.swarm.server.agents import ADD, called
from tests.swarm.server.support import job

SAMPLING = Sampling(max_tokens=10_000, stop_ids=(EOS_ID,))
parts = st.sampled_from(
    ("<think>\n", "\n</think>\n\n", called(a=1), "\n", "é", "🙂", "stop", "st", "<tool_call>", "a b")
)


def generated(says: str, plan: SamplingPlan, chunk_size: int = 8) -> tuple[AnswerGeneration, list[SampledPiece]]:
    """Sample one answer; return it and the pieces that were heard."""
    backend = FakeBackend(job(), script=lambda *_: says, chunk_size=chunk_size)
    prompt = CallTree(backend.renderer).prompt([{"role": "user", "content": "hi"}], plan.tools)
    heard: list[SampledPiece] = []
    found = AnswerGeneration(backend, prompt, plan, "e/1.0", 0)
    gate = Gate()
    gate.open()
    asyncio.run(found.run(gate, heard.append if plan.streamed else None))
    return found, heard


@settings(max_examples=200)
@given(st.lists(parts, max_size=8).map("".join), st.integers(1, 12), st.sampled_from([(), ("stop",), ("b", "é")]))
def test_what_is_streamed_is_what_is_said_at_once(says: str, chunk_size: int, stops: tuple[str, ...]) -> None:
    whole, _ = generated(says, SamplingPlan(SAMPLING, stops, tools=(ADD,)), chunk_size)
    streamed, heard = generated(says, SamplingPlan(SAMPLING, stops, tools=(ADD,), streamed=True), chunk_size)
    assert gathered([said.piece for said in heard]) == streamed.answer == whole.answer
    assert streamed.reply.call_ids == whole.reply.call_ids
    assert (streamed.ids, streamed.finish) == (whole.ids, whole.finish)


@given(st.lists(parts, max_size=6).map("".join), st.integers(1, 12), st.booleans())
def test_every_sampled_id_is_captured_and_told_once(says: str, chunk_size: int, streamed: bool) -> None:
    found, _ = generated(says, SamplingPlan(SAMPLING, streamed=streamed, tokens=True), chunk_size)
    assert found.ids == [*says.encode(), EOS_ID]
    assert found.logprobs == list(map(fake_logprob, found.ids))
    assert [token.logprob for token in found.reply.tokens] == found.logprobs


@given(st.lists(st.text(max_size=20), unique=True, max_size=50))
def test_short_names_are_nine_letters_and_digits_and_differ(texts: list[str]) -> None:
    names = [short_name(text) for text in texts]
    assert len(set(names)) == len(texts)
    assert all(len(name) == 9 and set(name) <= set(string.ascii_letters + string.digits) for name in names)
    assert names == [short_name(text) for text in texts]


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_ends_inside_a_character_behind_a_stop_string_was_stopped_by_it(streamed: bool) -> None:
    sampling = Sampling(max_tokens=len(b"a stop") + 2, stop_ids=(EOS_ID,))
    found, _ = generated("a stop\U0001f642", SamplingPlan(sampling, ("stop",), streamed=streamed), chunk_size=20)
    assert (found.answer.content, found.finish, found.reply.stop) == ("a ", "stop", "stop")
    assert bytes(found.ids) == b"a stop"
