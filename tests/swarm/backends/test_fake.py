"""The fake backend keeps the contract of a backend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.fake import EOS_TEXT, FakeBackend, FakeRenderer
from swarm.backends.protocols import Batch, GenerationRequest, Sampling, TrainEpisode
from swarm.job import Job
from swarm.rendering.messages import BackendError, Reasoning, ToolCall, Words
from swarm.timelines.node import TrainRow

JOB = Job(backend="fake", seed=7)
PROMPT = tuple(b"a number from 1 to 9")
ROW = TrainRow(ids=(1, 2, 3), sampled=(0, 1, 1), logprobs=(0.0, -0.1, -0.1), versions=(-1, 0, 0))
BATCH = Batch(1, (TrainEpisode("e1", "g", 1.0, (ROW, ROW)), TrainEpisode("e2", "g", 0.0, (ROW,))))


async def test_an_update_makes_a_version_and_refuses_to_overlap_with_generation() -> None:
    backend = FakeBackend(JOB, script=lambda *_: "abc", chunk_size=1)
    assert backend.learner.update(BATCH) == {"actor/trained_tokens": 6.0}
    backend.publish()
    assert backend.learner.version == 1
    chunks = backend.engine.generate(GenerationRequest("r", PROMPT, Sampling(9)))
    assert (await anext(chunks)).version == 1
    with pytest.raises(BackendError, match="generation during"):
        backend.learner.update(BATCH)
    await chunks.aclose()


def test_a_checkpoint_tells_what_its_weights_were_trained_on(tmp_path: Path) -> None:
    first, second = FakeBackend(JOB), FakeBackend(JOB)
    first.learner.update(BATCH)
    first.learner.save(tmp_path / "c")
    second.learner.load(tmp_path / "c")
    assert second.learner.trained == [(1, [("e1", 4), ("e2", 2)])]
    second.learner.update(Batch(2, ()))
    assert [step for step, _ in second.learner.trained] == [1, 2]


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
ASKED = {"role": "user", "content": "How is the weather?"}


texts = st.text(st.characters(exclude_characters="<>", exclude_categories=["Cs"]), max_size=12)
words = texts.map(str.strip)
calls = st.lists(st.builds(lambda city: ToolCall("weather", json.dumps({"city": city})), texts), max_size=3)


@given(words, words, calls)
def test_what_a_scripted_model_writes_is_read_back(thought: str, said: str, called: list[ToolCall]) -> None:
    renderer = FakeRenderer()
    message = {
        "role": "assistant",
        "content": said,
        "reasoning_content": thought,
        "tool_calls": [{"function": {"name": call.name, "arguments": call.arguments}} for call in called],
    }
    prompt = renderer.render([ASKED], tools=[WEATHER], generation_prompt=True)
    whole = renderer.render([ASKED, message], tools=[WEATHER], generation_prompt=False)
    assert whole.startswith(prompt)
    reader = renderer.answers.reader(prompt, [WEATHER])
    sampled = whole.removeprefix(prompt).removesuffix(EOS_TEXT)
    pieces = [*reader.feed(sampled), *reader.finish()]
    assert pieces == [*([Reasoning(thought)] if thought else []), *([Words(said)] if said else []), *called]
