"""The fake backend keeps the contract of a backend."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from swarm.backends.fake import EOS_ID, EOS_TEXT, FakeBackend, number_script
from swarm.backends.protocols import BackendError, Batch, Chunk, Sampling, TrainEpisode, TrainRow
from swarm.job import Job

JOB = Job(backend="fake", seed=7)
PROMPT = tuple(b"a number from 1 to 9")


async def generated(backend: FakeBackend, sampling: Sampling) -> list[Chunk]:
    return [chunk async for chunk in backend.engine.generate("r", PROMPT, sampling)]


def ids(chunks: list[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.ids]


def test_ids_and_text_are_each_others_inverse() -> None:
    renderer = FakeBackend(JOB).renderer
    text = f"<|user|>é?{EOS_TEXT}<|assistant|>"
    assert renderer.encode(text).count(EOS_ID) == 1
    assert renderer.decode(renderer.encode(text)) == text.replace(EOS_TEXT, "")


def test_rendering_an_answer_extends_the_rendering_of_its_prompt() -> None:
    renderer = FakeBackend(JOB).renderer
    asked = [{"role": "user", "content": "hi"}]
    answered = [*asked, {"role": "assistant", "content": "5"}]
    prompt = renderer.render(asked, generation_prompt=True)
    assert renderer.render(answered, generation_prompt=False) == prompt + "5" + EOS_TEXT


async def test_two_backends_of_one_seed_answer_alike_and_one_of_another_does_not() -> None:
    def fresh(seed: int) -> FakeBackend:
        return FakeBackend(Job(backend="fake", seed=seed), script=lambda _, rng: str(rng.getrandbits(40)))

    first = [ids(await generated(backend, Sampling(20))) for backend in (fresh(1), fresh(1), fresh(2))]
    assert first[0] == first[1] != first[2]


async def test_sampling_varies_while_a_seed_or_zero_temperature_does_not() -> None:
    backend = FakeBackend(JOB, script=lambda _, rng: str(rng.getrandbits(40)))
    assert ids(await generated(backend, Sampling(20))) != ids(await generated(backend, Sampling(20)))
    for fixed in (Sampling(20, seed=3), Sampling(20, temperature=0)):
        assert ids(await generated(backend, fixed)) == ids(await generated(backend, fixed))


async def test_chunks_carry_log_probs_and_versions_and_only_the_last_finishes() -> None:
    backend = FakeBackend(JOB, script=lambda *_: "abcdefghij", chunk_size=4)
    chunks = await generated(backend, Sampling(64))
    assert [len(chunk.ids) for chunk in chunks] == [4, 4, 3]
    assert [chunk.finish for chunk in chunks] == [None, None, "stop"]
    assert ids(chunks)[-1] == EOS_ID
    assert all(len(chunk.logprobs) == len(chunk.ids) and max(chunk.logprobs) < 0 for chunk in chunks)


async def test_an_answer_too_long_is_cut_without_an_end_mark() -> None:
    backend = FakeBackend(JOB, script=lambda *_: "abcdef")
    chunks = await generated(backend, Sampling(3))
    assert ids(chunks) == [*b"abc"]
    assert chunks[-1].finish == "length"


async def test_closing_the_iterator_cancels_the_request() -> None:
    backend = FakeBackend(JOB, script=lambda *_: "abcdef", chunk_size=1)
    chunks = backend.engine.generate("r", PROMPT, Sampling(9))
    await anext(chunks)
    assert backend.engine.active == 1
    await chunks.aclose()
    assert (backend.engine.active, backend.engine.cancelled) == (0, 1)


def batch() -> Batch:
    row = TrainRow((1, 2, 3), (0, 1, 1), (0.0, -0.1, -0.2), (-1, 0, 0))
    return Batch(1, (TrainEpisode("e", "g", 1.0, (row,)),))


async def test_an_update_makes_a_version_and_refuses_to_overlap_with_generation() -> None:
    backend = FakeBackend(JOB, script=lambda *_: "abc", chunk_size=1)
    assert backend.learner.update(batch()) == {"actor/trained_tokens": 2.0}
    assert backend.learner.version == 1
    chunks = backend.engine.generate("r", PROMPT, Sampling(9))
    assert (await anext(chunks)).version == 1
    with pytest.raises(BackendError, match="no generation during update"):
        backend.learner.update(batch())
    await chunks.aclose()


def test_a_checkpoint_restores_the_version_and_its_absence_is_said(tmp_path: Path) -> None:
    first, second = FakeBackend(JOB), FakeBackend(JOB)
    first.learner.update(batch())
    first.learner.save(tmp_path / "c")
    first.learner.save(tmp_path / "c")
    second.learner.load(tmp_path / "c")
    assert second.learner.version == 1
    with pytest.raises(BackendError, match="found none"):
        second.learner.load(tmp_path / "nothing")


async def test_a_held_engine_waits_until_released() -> None:
    backend = FakeBackend(JOB)
    backend.engine.hold()
    task = asyncio.ensure_future(generated(backend, Sampling(9)))
    await asyncio.sleep(0)
    assert backend.engine.active == 1
    assert not task.done()
    backend.engine.release()
    assert await task


def test_the_number_script_stays_between_the_numbers_of_the_prompt() -> None:
    guesses = {int(number_script("from 3 to 6", random.Random(seed))) for seed in range(64)}
    assert guesses == {3, 4, 5, 6}
    assert number_script("no number", random.Random(0)).isdigit()


def test_a_checkpoint_tells_what_its_weights_were_trained_on(tmp_path: Path) -> None:
    first, second = FakeBackend(JOB), FakeBackend(JOB)
    row = TrainRow(ids=(1, 2, 3), sampled=(0, 1, 1), logprobs=(0.0, -0.1, -0.1), versions=(-1, 0, 0))
    first.learner.update(Batch(1, (TrainEpisode("e1", "g", 1.0, (row, row)), TrainEpisode("e2", "g", 0.0, (row,)))))
    first.learner.save(tmp_path / "c")
    second.learner.load(tmp_path / "c")
    assert second.learner.trained == [(1, [("e1", 4), ("e2", 2)])]
    second.learner.update(Batch(2, ()))
    assert [step for step, _ in second.learner.trained] == [1, 2]
