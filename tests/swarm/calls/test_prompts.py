"""Tests of prompts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from swarm.backends.fake import FakeBackend, FakeRenderer
from swarm.calls.prompts import LONG, PromptBuilder, SamplingPlan, sampling_plan
from swarm.dialects.base import CompletionRequest, RequestedSampling, ToolChoice
from swarm.errors import InvalidRequest
from swarm.job import Job
from swarm.rollout.episodes import EpisodeRegistry, LeasedEpisode
from swarm.rollout.state import StateMachine
from swarm.timelines import CallTree
from swarm.wire import EpisodeKind
from tests.swarm.server.agents import ADD, GuidedBackend
from tests.swarm.server.support import MODEL, Clock, Served, eventually, job, serving
from tests.swarm.store.support import FakeStore

WIDE = job(max_context=200_000, episodes_per_step=8)
LONG_WORDS = "word " * LONG


class SlowRenderer(FakeRenderer):
    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def encode(self, text: str) -> list[int]:
        if len(text) >= LONG:
            self.begun.set()
            assert self.go_on.wait(120)
        return super().encode(text)


@pytest.fixture
def renderer() -> Iterator[SlowRenderer]:
    slow = SlowRenderer()
    yield slow
    slow.go_on.set()


@pytest.fixture
async def served(tmp_path: Path, renderer: SlowRenderer, clock: Clock) -> AsyncIterator[Served]:
    def backend(loaded: Job) -> FakeBackend:
        made = FakeBackend(loaded, script=lambda *_: "yes")
        made.renderer = renderer
        return made

    async with serving(tmp_path, WIDE, backend=backend, clock=clock) as running:
        yield running


async def test_others_are_answered_while_a_long_prompt_is_encoded_or_counted(
    served: Served, renderer: SlowRenderer
) -> None:
    long, short = await served.begin("long"), await served.begin("short")
    body = {"model": MODEL, "messages": [{"role": "user", "content": LONG_WORDS}]}
    asked = asyncio.create_task(served.chat(long, LONG_WORDS))
    counted = asyncio.create_task(served.post("/v1/messages/count_tokens", long["api_key"], body))
    assert await asyncio.to_thread(renderer.begun.wait, 120)
    assert (await served.chat(short, "hi")).text == "yes"
    assert not asked.done()
    assert not counted.done()
    renderer.go_on.set()
    assert (await asked).text == "yes"
    assert (await counted).body["input_tokens"] > LONG
    assert (await served.end(long)).status == 200


async def test_an_episode_that_ends_meanwhile_has_no_call(served: Served, renderer: SlowRenderer) -> None:
    lease = await served.begin()
    asked = asyncio.create_task(served.chat(lease, LONG_WORDS))
    assert await asyncio.to_thread(renderer.begun.wait, 120)
    assert (await served.verb(lease, "abort", {"reason": "tired"})).status == 200
    renderer.go_on.set()
    assert (await asked).code == "episode_ended"
    assert served.rollout.counts["calls"] == 0


async def test_a_client_that_goes_away_meanwhile_leaves_no_call_behind(served: Served, renderer: SlowRenderer) -> None:
    lease = await served.begin()
    served.rollout.gate.shut()
    asked = asyncio.create_task(served.chat(lease, LONG_WORDS))
    assert await asyncio.to_thread(renderer.begun.wait, 120)
    asked.cancel()
    await served.status()  # the server has seen it by then
    renderer.go_on.set()
    await eventually(lambda: served.rollout.counts["calls_cancelled"], lambda calls: calls == 1)
    served.rollout.gate.open()


@pytest.mark.parametrize("turns", [[LONG_WORDS, "hi"], ["hi", LONG_WORDS], [LONG_WORDS, LONG_WORDS]])
async def test_a_prompt_is_the_same_whether_its_texts_are_encoded_at_once_or_beside(turns: list[str]) -> None:
    at_once, beside = CallTree(FakeRenderer()), CallTree(FakeRenderer())
    builder, playing = PromptBuilder(FakeRenderer()), cast(LeasedEpisode, Playing(beside))
    messages: list[dict[str, str]] = []
    for words in turns:
        messages.append({"role": "user", "content": words})
        plain = at_once.prompt(messages)
        _, other = await builder.build(playing, lambda: playing, messages, ())
        assert (plain.prompt_ids, plain.context, plain.drift) == (other.prompt_ids, other.context, other.drift)
        answer = {"role": "assistant", "content": "yes"}
        for tree, prompt in ((at_once, plain), (beside, other)):
            ids = [*b"yes", FakeRenderer.eos_id]
            tree.keep(prompt, tree.make_node(prompt, ids, [-0.1] * 4, [0] * 4, text="yes<|end|>"), answer)
        messages.append(answer)


class Playing:
    def __init__(self, tree: CallTree) -> None:
        self.tree = tree
        self.calls: set[object] = set()


async def test_what_no_context_can_hold_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async with serving(tmp_path, job(max_context=256)) as served:
        lease = await served.begin()
        reader, writer = await served.connect()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {lease['api_key']}\r\n"
        writer.write(f"{head}content-length: 15000000\r\n\r\n{{".encode())
        async with asyncio.timeout(120):
            assert await reader.readline() == b"HTTP/1.1 400 Bad Request\r\n"
            said = (await reader.readuntil(b"}")).decode()
        assert '"code":"context_length_exceeded"' in said
        assert [part in said for part in ("1064960 bytes", "256 tokens", "15000000")] == [True] * 3
        writer.close()


def asking(**sampling: Any) -> CompletionRequest:
    return CompletionRequest((), sampling=RequestedSampling(**sampling))


FOREIGN: list[tuple[str, CompletionRequest]] = [
    ("temperature", asking(temperature=0.2)),
    ("top_p", asking(top_p=0.5)),
    ("top_k", asking(top_k=5)),
    ("tool_choice", CompletionRequest((), tools=(ADD,), tool_choice=ToolChoice("required"))),
    ("response_format", asking(json_schema={})),
    ("logit_bias", asking(others={"logit_bias": {"5": 1}})),
]
JOB = job(temperature=0.7, max_tokens=16)


def ledger(wanted: Job) -> EpisodeRegistry:
    return EpisodeRegistry(wanted, StateMachine(), FakeStore(), time.monotonic)


def judged(
    ask: CompletionRequest, kind: EpisodeKind, wanted: Job = JOB, *, guided: bool = True, prompt: str = ""
) -> SamplingPlan:
    backend: FakeBackend = GuidedBackend(wanted, script=lambda *_: "", guided=guided)
    return sampling_plan(ask, kind, ledger(wanted), backend, prompt)


BESIDE_TOOLS = CompletionRequest((), tools=(ADD,), sampling=RequestedSampling(json_schema={}))
REFUSED: list[tuple[str, CompletionRequest, Any, bool, str]] = [
    *((field, ask, "train", True, r"eval episode.*neutralise") for field, ask in FOREIGN),
    *((field, ask, "eval", False, "cannot guide") for field, ask in FOREIGN[3:5]),
    ("min_p", asking(others={"min_p": 0.1}), "eval", True, "not honoured"),
    ("response_format", BESIDE_TOOLS, "eval", True, "beside tools"),
]


@pytest.mark.parametrize(("field", "ask", "kind", "guided", "said"), REFUSED, ids=[f"{r[2]}-{r[0]}" for r in REFUSED])
def test_what_cannot_be_honoured_is_refused_by_name(
    field: str, ask: CompletionRequest, kind: EpisodeKind, guided: bool, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said) as refusal:
        judged(ask, kind, guided=guided)
    assert refusal.value.param == field


@pytest.mark.parametrize(("field", "ask"), FOREIGN, ids=[field for field, _ in FOREIGN])
def test_a_job_that_neutralises_samples_its_own_way_and_counts(field: str, ask: CompletionRequest) -> None:
    lenient = ledger(JOB.model_copy(update={"foreign_sampling": "neutralise"}))
    backend = GuidedBackend(lenient.job, script=lambda *_: "")
    assert sampling_plan(ask, "train", lenient, backend, "").sampling == judged(CompletionRequest(()), "train").sampling
    assert lenient.counts == {f"neutralised_{field}": 1}


@pytest.mark.parametrize(("asked", "found"), [(None, 10), (99, 10), (16, 10), (12, 12), (3, 3)])
def test_an_answer_takes_what_is_left_unless_its_caller_asked_for_more(asked: int | None, found: int) -> None:
    plan = judged(asking(max_tokens=asked), "train").limit_to_context(JOB, asked, JOB.max_context - 10)
    assert plan.sampling.max_tokens == found


def test_an_evaluation_that_gives_no_seed_is_given_another_one_for_each_call_and_training_is_not() -> None:
    shared, backend = ledger(JOB), GuidedBackend(JOB, script=lambda *_: "")
    seeds = [sampling_plan(CompletionRequest(()), "eval", shared, backend, "").sampling.seed for _ in range(3)]
    another = ledger(JOB)
    assert [sampling_plan(CompletionRequest(()), "eval", another, backend, "").sampling.seed for _ in range(3)] == seeds
    assert len(set(seeds)) == 3
    shared.version = 1
    assert sampling_plan(CompletionRequest(()), "eval", shared, backend, "").sampling.seed not in seeds
    assert judged(CompletionRequest(()), "train").sampling.seed is None


def test_a_response_format_becomes_a_grammar_where_the_engine_is_guided() -> None:
    any_object = judged(asking(json_schema={}), "eval").sampling.grammar
    assert any_object is not None
    assert any_object.startswith('start: %json {"type": "object"')
    integer = judged(asking(json_schema={"type": "integer"}), "eval").sampling.grammar
    assert integer is not None
    assert '"type": "integer"' in integer


def test_a_forced_tool_becomes_a_grammar_of_that_tool_alone() -> None:
    other: dict[str, Any] = {"type": "function", "function": {"name": "sub", "parameters": {}}}
    named = CompletionRequest((), tools=(ADD, other), tool_choice=ToolChoice("required", "sub"))
    grammar = judged(named, "eval").sampling.grammar
    assert grammar is not None
    assert "sub" in grammar
    assert "add" not in grammar
