"""A scripted backend for tests.

It keeps the whole contract of `Backend` but learns nothing. The script that answers is a plain function of the prompt's
text and a random stream; faults are asked for by name. Tools and calls are written as Hermes models do.
"""

import asyncio
import hashlib
import json
import os
import random
import re
import shutil
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from swarm.backends.protocols import Batch, Chunk, Finish, GenerationRequest, RequestLost
from swarm.job import Job
from swarm.rendering.messages import AnswerFormat, BackendError, Message, RequestRefused, Tool
from swarm.rendering.tagged import HermesFormat


def format_message(message: Message) -> str:
    """Return a message's text: thinking, words and calls; raise BackendError for content that is no text."""
    content = message.get("content")
    if len(message) == 2 and isinstance(content, str):
        return content
    calls = message.get("tool_calls") or ()
    thought = message.get("reasoning_content")
    if content is None and (calls or thought):
        content = ""
    if not isinstance(content, str):
        raise BackendError(f"expected text content, found {type(content).__name__}")
    text = f"<think>\n{thought}\n</think>\n\n{content}" if thought else content
    for number, call in enumerate(calls):
        function = call["function"]
        given = function["arguments"]
        arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        text += "\n" if content or number else ""
        text += f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {arguments}}}\n</tool_call>'
    return text


EOS_ID = 256
EOS_TEXT = "<|end|>"
HELD_S = 60.0
"""Seconds after which a held update gives up, so that a test that failed ends."""
Script = Callable[[str, random.Random], str]
"""Answers a prompt's text; must draw all its randomness from the given stream."""


def number_script(prompt: str, rng: random.Random) -> str:
    """Return a number between the smallest and the largest one the prompt names: now and then a right guess."""
    numbers = [int(number) for number in re.findall(r"\d{1,9}", prompt)] or [0, 9]
    return str(rng.randint(min(numbers), max(numbers)))


class FakeRenderer:
    """Byte-level: an id per UTF-8 byte, and one that ends a message. Thinking and tools are written as Hermes does."""

    eos_id = EOS_ID
    stop_ids = (EOS_ID,)
    answers: AnswerFormat = HermesFormat(thinks=True)

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), generation_prompt: bool) -> str:
        text = f"<|tools|>{json.dumps(list(tools), ensure_ascii=False)}{EOS_TEXT}" if tools else ""
        text += "".join(f"<|{message.get('role')}|>{format_message(message)}{EOS_TEXT}" for message in messages)
        return text + "<|assistant|>" if generation_prompt else text

    def encode(self, text: str) -> list[int]:
        first, *others = text.split(EOS_TEXT)
        ids = list(first.encode())
        for other in others:
            ids.append(EOS_ID)
            ids.extend(other.encode())
        return ids

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        if special and EOS_ID in ids:
            end = list(ids).index(EOS_ID)
            return self.decode(ids[:end]) + EOS_TEXT + self.decode(ids[end + 1 :], special=True)
        plain = [token for token in ids if token != EOS_ID] if EOS_ID in ids else ids
        return bytes(plain).decode(errors="replace")


class FakeEngine:
    """Answers by script, `chunk_size` ids at a time. `hold()` makes every generation wait for `release()`.
    `refuse_next` refuses the next request with that reason; `lose_next` loses the next answer after its first chunk."""

    guided = False

    def __init__(self, renderer: FakeRenderer, seed: int, script: Script, chunk_size: int) -> None:
        self._renderer = renderer
        self._seed = seed
        self._script = script
        self._chunk_size = chunk_size
        self._released = asyncio.Event()
        self._released.set()
        self.hold, self.release = self._released.clear, self._released.set
        self._requests = 0
        self.refuse_next: str | None = None
        self.lose_next: str | None = None
        self.version = 0
        self.active = 0
        self.cancelled = 0
        self.seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        """Prompt and sampled ids of each finished generation, for tests of what the engine really saw."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Yield the script's answer; the same seed, or temperature 0, gives the same answer to the same prompt."""
        refusal, self.refuse_next = self.refuse_next, None
        if refusal is not None:
            raise RequestRefused(refusal)
        prompt_ids, sampling = request.prompt_ids, request.sampling
        self._requests += 1
        draw = sampling.seed if sampling.seed is not None else 0 if sampling.temperature == 0 else self._requests
        rng = random.Random(f"{self._seed}:{sampling.temperature}:{draw}")
        prompt = bytes(token if token < EOS_ID else 32 for token in prompt_ids).decode(errors="replace")
        ids = [*self._script(prompt, rng).encode(), EOS_ID]
        finish: Finish = "stop" if len(ids) <= sampling.max_tokens else "length"
        ids = ids[: sampling.max_tokens]
        loss, self.lose_next = self.lose_next, None
        self.active += 1
        whole = False
        try:
            await self._released.wait()
            for start in range(0, len(ids), self._chunk_size):
                part = ids[start : start + self._chunk_size]
                last = start + self._chunk_size >= len(ids)
                whole = last
                if last:
                    self.seen.append((tuple(prompt_ids), tuple(ids)))
                top = tuple(fake_top(token, sampling.top_logprobs) for token in part) if sampling.top_logprobs else ()
                yield Chunk(tuple(part), tuple(map(fake_logprob, part)), self.version, finish if last else None, top)
                await asyncio.sleep(0)
                if loss is not None:
                    raise RequestLost(loss)
        finally:
            self.active -= 1
            self.cancelled += not whole


def fake_logprob(token: int) -> float:
    """Return the made-up log-prob of an id: between -0.8 and -0.1, the same every time."""
    return -0.1 * (1 + token % 8)


def fake_top(token: int, count: int) -> tuple[tuple[int, float], ...]:
    return tuple(((token + step) % EOS_ID if step else token, fake_logprob(token) - step) for step in range(count))


class FakeLearner:
    """Counts versions and keeps the batches it was given; `fail_next` breaks the next update with that reason. `hold()`
    makes updates wait until `release()`; `learning` tells that one waits. With `overlaps`, generations may run
    meanwhile. `trained` has of each update the step, and of each episode in it the id and the number of tokens."""

    def __init__(self, engine: FakeEngine, *, overlaps: bool = False) -> None:
        self._engine = engine
        self._overlaps = overlaps
        self.version = engine.version
        self._released = threading.Event()
        self._released.set()
        self.hold, self.release = self._released.clear, self._released.set
        self.learning = False
        self.batches: list[Batch] = []
        self.trained: list[tuple[int, list[tuple[str, int]]]] = []
        self.fail_next: str | None = None

    def update(self, batch: Batch) -> Mapping[str, float]:
        """Count the batch; refuse to while a generation runs, where that breaks the server's promise."""
        self.learning = True
        if not self._released.wait(HELD_S):
            raise BackendError(f"expected a held update to be released, found none after {HELD_S:g} s")
        self.learning = False
        if self.fail_next is not None:
            raise BackendError(self.fail_next)
        if self._engine.active and not self._overlaps:
            raise BackendError(f"expected no generation during update, found {self._engine.active}")
        self.batches.append(batch)
        self.version += 1
        trained = [(episode.episode_id, sum(sum(row.sampled) for row in episode.rows)) for episode in batch.episodes]
        self.trained.append((batch.step, trained))
        return {"actor/trained_tokens": float(sum(tokens for _, tokens in trained))}

    def save(self, folder: Path) -> None:
        parts = folder.with_name(folder.name + ".part")
        parts.mkdir(parents=True, exist_ok=True)
        (parts / "fake.json").write_text(json.dumps({"version": self.version, "trained": self.trained}))
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(parts, folder)

    def load(self, folder: Path) -> None:
        path = folder / "fake.json"
        if not path.is_file():
            raise BackendError(f"expected a fake checkpoint in {folder}, found none")
        found = json.loads(path.read_text())
        self.version = int(found["version"])
        self.trained = [(step, [(name, tokens) for name, tokens in batch]) for step, batch in found["trained"]]


class FakeBackend:
    """All parts together; `die(reason)` is what the watchdog must see."""

    model_name = "fake"
    provenance: Mapping[str, str] = MappingProxyType({})
    probs_tolerance: float | None = None

    def __init__(self, job: Job, *, script: Script = number_script, chunk_size: int = 8) -> None:
        self.renderer = FakeRenderer()
        self.engine = FakeEngine(self.renderer, job.seed, script, chunk_size)
        self.learner = FakeLearner(self.engine, overlaps=job.max_staleness > 0)
        self.stopped = False
        self._failure: str | None = None

    def publish(self) -> None:
        self.engine.version = self.learner.version

    async def start(self) -> None:
        """Have nothing to load."""

    async def stop(self) -> None:
        self.stopped = True

    def weights(self) -> str | None:
        return hashlib.sha256().hexdigest()

    def failure(self) -> str | None:
        return self._failure

    def die(self, reason: str) -> None:
        self._failure = reason
