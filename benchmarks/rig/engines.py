"""Ways to generate with one model: this project's engine, a static batch by hand, transformers' two, and vLLM.

Each answers requests with exactly `answer` sampled tokens at temperature 1 and the log-prob of each, as training needs
them, and says how long that took. Nobody stops early, so all make the same number of tokens.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from swarm.backends.local.batcher import Batcher
from swarm.backends.local.engine import LocalEngine
from swarm.backends.local.policy import Policy
from swarm.backends.protocols import GenerationRequest, Sampling

_BLOCK = 32
_VLLM = Path(__file__).with_name("vllm_child.py")


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt's ids, and how many tokens to sample."""

    prompt: tuple[int, ...]
    answer: int


class Answer(NamedTuple):
    """Sampled ids and their log-probs; of our engine also the version of the weights that each was sampled by."""

    ids: list[int]
    logprobs: list[float]
    versions: Sequence[int] = ()


class Timed(NamedTuple):
    """Answers in the requests' order, and the seconds from the first request to the last answer."""

    answers: list[Answer]
    seconds: float


def saved_model(folder: Path, context: int, **sizes: Any) -> Callable[[], Any]:
    """Write a random Llama to `folder`; return what loads a copy of it."""
    disable_progress_bar()
    set_verbosity_error()
    torch.manual_seed(0)
    config = LlamaConfig(
        **sizes, max_position_embeddings=context, tie_word_embeddings=False, initializer_range=0.05,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return lambda: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()


@torch.no_grad()
def deviation(model: Any, prompt: Sequence[int], answer: Answer) -> float:
    """Return how far an answer's log-probs are from those of a plain forward over prompt and answer."""
    ids = torch.tensor([[*prompt, *answer.ids]], device=model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float().cpu()
    plain = logits.log_softmax(-1).gather(-1, torch.tensor(answer.ids)[:, None])[:, 0]
    return float((plain - torch.tensor(answer.logprobs)).abs().max())


class Ours:
    """The local engine as the server uses it: its thread, its event loop, its chunks."""

    def __init__(self, model: Any, slots: int, context: int) -> None:
        self.policy = Policy(model, model.device)
        self.batcher = Batcher(self.policy, slots=slots, positions=context, seed=0)
        self._engine = LocalEngine(self.policy, self.batcher, context)
        self.runner = asyncio.Runner()
        self.runner.run(self._engine.start())

    def run(self, requests: Sequence[Request]) -> Timed:
        """Answer requests that all come at once."""
        begun = time.perf_counter()
        answers = self.answers([(request.prompt, Sampling(max_tokens=request.answer)) for request in requests])
        return Timed(answers, time.perf_counter() - begun)

    def answers(self, asked: Sequence[tuple[Sequence[int], Sampling]]) -> list[Answer]:
        """Return the answers to prompts that all come at once, each sampled by its own rule."""

        async def together() -> list[Answer]:
            return await asyncio.gather(*(self.answer(*each) for each in asked))

        return self.runner.run(together())

    async def answer(self, prompt: Sequence[int], rule: Sampling) -> Answer:
        """Return the answer to one prompt."""
        versions: list[int] = []
        answer = Answer([], [], versions)
        async for chunk in self._engine.generate(GenerationRequest("", prompt, rule)):
            answer.ids.extend(chunk.ids)
            answer.logprobs.extend(chunk.logprobs)
            versions.extend([chunk.version] * len(chunk.ids))
        return answer

    def close(self) -> None:
        """End the engine's thread."""
        self.runner.run(self._engine.stop())
        self.runner.close()


class _StaticCache:
    """Keys and values of a static batch, allocated at once; all rows are at the same place."""

    is_compileable = False

    def __init__(self, config: Any, rows: int, length: int) -> None:
        shape = (2, config.num_hidden_layers, rows, config.num_key_value_heads, length, config.head_dim)
        self._memory = torch.empty(shape)
        self.place = 0

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        end = self.place + keys.shape[2]
        held = self._memory[:, layer]
        held[0, :, :, self.place : end] = keys
        held[1, :, :, self.place : end] = values
        return held[0, :, :, :end], held[1, :, :, :end]

    def get_seq_length(self, *_: Any) -> int:
        return self.place

    def get_mask_sizes(self, queries: int, *_: Any) -> tuple[int, int]:
        return self.place + queries, 0


class Static:
    """A batch by hand: transformers' forward, padded on the left, over a cache allocated once; ends with the longest.

    At equal lengths it needs no mask, and its attention repeats no keys: as good as a loop over this forward gets.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    @torch.inference_mode()
    def run(self, requests: Sequence[Request]) -> Timed:
        """Answer requests that all come at once."""
        begun = time.perf_counter()
        ids, places, mask = _padded(requests)
        width, longest = ids.shape[1], max(request.answer for request in requests)
        cache = _StaticCache(self._model.config, len(requests), width + longest)
        whole = None if mask is None else torch.cat([mask, mask.new_zeros(len(mask), longest)], 1)
        causal = torch.full((width, width), -torch.inf).triu(1)
        masked = causal if mask is None else (causal + mask[:, None, None]).clamp_(min=torch.finfo(mask.dtype).min)
        seen: Tensor | None = masked.expand(len(ids), 1, width, width)
        sampled, logprobs = [], []
        for _ in range(longest):
            token, logprob = self._step(ids, places, seen, cache)
            sampled.append(token)
            logprobs.append(logprob)
            cache.place += ids.shape[1]
            ids, places = token, places[:, -1:] + 1
            seen = None if whole is None else whole[:, None, None, : cache.place + 1]
        pairs = zip(torch.cat(sampled, 1).tolist(), torch.cat(logprobs, 1).tolist(), requests, strict=True)
        answers = [Answer(ids[: request.answer], values[: request.answer]) for ids, values, request in pairs]
        return Timed(answers, time.perf_counter() - begun)

    def _step(self, ids: Tensor, places: Tensor, mask: Tensor | None, cache: _StaticCache) -> tuple[Tensor, Tensor]:
        hidden = self._model.model(
            input_ids=ids, position_ids=places, attention_mask=mask, past_key_values=cache, use_cache=True
        ).last_hidden_state
        logprobs = self._model.lm_head(hidden[:, -1]).float().log_softmax(-1)
        token = torch.multinomial(logprobs.exp(), 1)
        return token, logprobs.gather(-1, token)

    def close(self) -> None:
        """Nothing is open."""


def _padded(requests: Sequence[Request]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return ids and places (B, T), padded on the left, and what is added to scores (B, T): None without padding."""
    width = max(len(request.prompt) for request in requests)
    pads = torch.tensor([width - len(request.prompt) for request in requests])
    ids = torch.tensor([(0,) * (width - len(request.prompt)) + request.prompt for request in requests])
    columns = torch.arange(width)
    places = (columns - pads[:, None]).clamp_(min=0)
    if not pads.any():
        return ids, places, None
    return ids, places, torch.zeros(ids.shape).masked_fill_(columns < pads[:, None], -torch.inf)


class Padded:
    """`generate` of transformers over one padded batch, which ends with the longest."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @torch.inference_mode()
    def run(self, requests: Sequence[Request]) -> Timed:
        """Answer requests that all come at once."""
        begun = time.perf_counter()
        ids, _, mask = _padded(requests)
        admitted = torch.ones_like(ids) if mask is None else (mask == 0).long()
        ids, admitted = ids.to(self._model.device), admitted.to(self._model.device)
        longest = max(request.answer for request in requests)
        out = self._model.generate(
            ids, attention_mask=admitted, max_new_tokens=longest, do_sample=True, top_k=0, top_p=1.0,
            eos_token_id=None, pad_token_id=0, return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        new = out.sequences[:, ids.shape[1] :]
        every = [
            logits.float().log_softmax(-1).gather(-1, ids)
            for logits, ids in zip(out.logits, new.T[..., None], strict=True)
        ]
        logprobs = torch.cat(every, 1)
        pairs = zip(new.tolist(), logprobs.tolist(), requests, strict=True)
        answers = [Answer(ids[: request.answer], values[: request.answer]) for ids, values, request in pairs]
        return Timed(answers, time.perf_counter() - begun)

    def close(self) -> None:
        """Nothing is open."""


class Continuous:
    """Continuous batching of transformers: one manager, kept and warm, with room for all, prefixes shared."""

    def __init__(self, model: Any, slots: int, context: int) -> None:
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        config = ContinuousBatchingConfig(
            block_size=_BLOCK, num_blocks=slots * (context // _BLOCK + 1), max_batch_tokens=1024,
            return_logprobs=True, seed=0,
        )  # fmt: skip
        rules = GenerationConfig(do_sample=True, top_k=0, top_p=1.0, eos_token_id=-1, pad_token_id=0)
        self._manager = model.init_continuous_batching(rules, config)
        self._manager.start()

    def run(self, requests: Sequence[Request]) -> Timed:
        """Answer requests that all come at once."""
        begun = time.perf_counter()
        names = [
            self._manager.add_request(list(request.prompt), max_new_tokens=request.answer, eos_token_id=-1)
            for request in requests
        ]
        found: dict[str, Answer] = {}
        while len(found) < len(names):
            result = self._manager.get_result(timeout=60)
            if result is None or result.error:
                raise RuntimeError(f"transformers' continuous batching failed: {result and result.error}")
            found[result.request_id] = Answer(result.generated_tokens, result.logprobs)
        return Timed([found[name] for name in names], time.perf_counter() - begun)

    def close(self) -> None:
        """End the manager's thread."""
        self._manager.stop(block=True)


class VLLM:
    """vLLM in a process of another environment, its engine in that very process; it times itself."""

    def __init__(self, python: str, folder: Path, slots: int, context: int) -> None:
        quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        settings = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [python, str(_VLLM), str(folder), str(slots), str(context)]
        environment = {**os.environ, **quiet, **settings}
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=environment, cwd=folder,
        )  # fmt: skip
        self._ask("ready")

    def run(self, requests: Sequence[Request]) -> Timed:
        """Answer requests that all come at once."""
        reply = self._ask([[request.prompt, request.answer] for request in requests])
        return Timed([Answer(ids, logprobs) for ids, logprobs in reply["answers"]], reply["seconds"])

    def _ask(self, question: Any) -> Any:
        assert self._child.stdin
        assert self._child.stdout
        print(json.dumps(question), file=self._child.stdin, flush=True)
        for line in self._child.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"vLLM's process ended with code {self._child.wait()}: does its environment work?")

    def close(self) -> None:
        """End the process."""
        assert self._child.stdin
        self._child.stdin.close()
        self._child.wait()
