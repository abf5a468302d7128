"""Continuous batching by transformers: paged key-value memory in place of a slot per sequence, one step at a time.

Promises: what `batcher.py` promises, to the same engine (`engine.py`): a generation's tokens and log-probs depend on
its own ids alone; keys and values computed under one revision of the weights never serve another; a cancelled
generation's memory is free at the next step. transformers schedules, pages and attends; tokens are sampled by this
project's own `sampling.py`, so that temperature, top-p, top-k, seeds, stop ids, likeliest ids and grammars mean the
same under both engines. The forward is checked against the model's own when it is set up.
Private parts of transformers are touched in this module alone, and only the version that was read is accepted: its
public manager draws by itself, from the process's one random stream, cannot be paused while weights change, and
keeps keys and values of older weights.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache_manager import BlockManager
from transformers.generation.continuous_batching.requests import RequestState

from swarm.backends.local.generating.eager_check import logprob_gap
from swarm.backends.local.generating.generation import Generation, extend
from swarm.backends.local.model.architecture import refusing, soft_caps
from swarm.backends.local.model.cache_shape import slot_bytes
from swarm.backends.local.model.policy import Policy
from swarm.backends.protocols import BackendError, Sampling

_VERSION = "5.10"
"""The transformers that was read."""
_BLOCK = 32
"""Tokens in a block: what one sequence takes at once, and what prompts must share to share it."""
_STEP_TOKENS = 512
"""Most tokens fed in one step: running answers first, then parts of prompts."""


class PagedBatcher:
    """Generations waiting and running over paged memory. One thread uses it; `generator` draws for the unseeded."""

    def __init__(self, policy: Policy, *, sequences: int, positions: int, cache_bytes: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self._policy = policy
        self._sequences = sequences
        self._positions = positions
        self._waiting: deque[Generation] = deque()
        self._running: dict[str, Generation] = {}
        self._numbers = 0
        self._whole = True
        """Whether no step failed since the memory was last empty."""
        self._revision = policy.revision
        kind = policy.config.model_type
        with refusing(f"transformers' continuous batching does not take {kind}", "choose the job's engine `slots`"):
            self._model = _twin(policy.model)
            pages = _pages(policy, sequences, positions, cache_bytes)
            self._processor = _processor(_manager(self._model, pages), policy.device)
            self._processor.scheduler.safety_margin = 0.0  # nobody is admitted without room
            self._check()
        _empty(self._processor)

    @property
    def busy(self) -> bool:
        """Whether a step would have something to do."""
        return bool(self._waiting or self._running)

    @property
    def free(self) -> int:
        """Tokens for which there is memory now."""
        return int(self._processor.cache.get_num_free_blocks()) * _BLOCK

    def empty(self) -> tuple[list[Generation], list[Generation]]:
        """Remove all generations and their keys and values; return those that ran, and those that waited.

        After a failed step the memory is zeroed: numbers that are not finite come through masks.
        """
        running, waiting = list(self._running.values()), list(self._waiting)
        self._running.clear()
        self._waiting.clear()
        _empty(self._processor)
        if not self._whole:
            for memory in (*self._processor.cache.key_cache, *self._processor.cache.value_cache):
                memory.zero_()
            self._whole = True
        return running, waiting

    def add(self, generation: Generation) -> None:
        """Queue a generation; it starts, in order of arrival, when fewer than `sequences` run and it has memory."""
        self._waiting.append(generation)

    @torch.inference_mode()
    def step(self) -> list[Generation]:
        """Run the forward of one step; return the generations that got a token (`finish` set on the finished)."""
        self._whole = False
        self._follow_revision()
        self._retire()
        self._admit()
        ready = self._advance() if self._processor.prepare_next_batch() else []
        self._retire()
        self._whole = True
        return ready

    def _advance(self) -> list[Generation]:
        batch = self._processor.inputs_and_outputs
        ready = [self._running[each.state.request_id] for each in batch.requests_in_batch if each.has_new_token]
        ids = self._extend(ready, batch.get_model_kwargs()) if ready else []
        batch.output_ids[0, : len(ids)] = torch.tensor(ids, dtype=batch.output_ids.dtype)
        self._processor.update_batch()
        return ready

    def _follow_revision(self) -> None:
        """Begin with empty memory after a change of the weights; running generations are fed again from the start."""
        if self._revision == self._policy.revision:
            return
        self._revision = self._policy.revision
        _empty(self._processor)
        for key, generation in self._running.items():
            self._schedule(key, generation)

    def _retire(self) -> None:
        """Free the memory of what is finished or cancelled."""
        over = [key for key, generation in self._running.items() if generation.finish or generation.cancelled]
        for key in over:
            self._running.pop(key).guide = None
            self._processor.scheduler.set_request_cancellation(key)
        if over:
            self._processor.scheduler.clear_cancelled_requests()

    def _admit(self) -> None:
        """Admit, in order of arrival, those for whom there is memory to their last token: nobody is preempted."""
        room = self._processor.cache.num_blocks - sum(map(self._most_blocks, self._running.values()))
        while self._waiting and len(self._running) < self._sequences:
            generation = self._waiting[0]
            if not generation.cancelled:
                room -= self._most_blocks(generation)
                if room < 0:
                    return
                self._numbers += 1
                self._running[str(self._numbers)] = generation
                self._schedule(str(self._numbers), generation)
            self._waiting.popleft()

    def _most_blocks(self, generation: Generation) -> int:
        return _blocks(min(generation.prompt_length + generation.sampling.max_tokens, self._positions))

    def _schedule(self, key: str, generation: Generation) -> None:
        state = RequestState(request_id=key, initial_tokens=list(generation.ids), max_new_tokens=None)
        self._processor.scheduler.add_waiting_request(state)

    def _extend(self, ready: Sequence[Generation], inputs: dict[str, Any]) -> list[int]:
        """Sample one token for each of `ready` (N), the sequences that this forward feeds up; return the ids."""
        places = inputs["logits_indices"][: len(ready)].long()
        logits = self._model(**inputs, logits_to_keep=places).logits[0].float()  # (N, V)
        ids: list[int] = extend(ready, logits, self.generator, self._policy.version, self._positions).tolist()
        return ids

    def _check(self) -> None:
        """Compare log-probs over two blocks, a prompt's and a running answer's, with those of eager attention."""
        prompt = self._policy.checked_ids(min(_BLOCK + 3, self._positions - 2))
        trial = Generation([*prompt], Sampling(max_tokens=2, temperature=0))
        self.add(trial)
        while self.busy:
            self.step()
        gap = logprob_gap(self._policy, [trial])
        if not gap.small:
            kind = self._policy.config.model_type
            raise BackendError(
                f"transformers' continuous batching computes {kind} otherwise than {kind} itself (log-probs differ by "
                f"{gap.found:.2g}): choose the job's engine `slots`"
            )


def _twin(model: Any) -> Any:
    """Return a second module over the very same weights, whose attention may be another one."""
    if not transformers.__version__.startswith(_VERSION + "."):
        raise BackendError(
            f"the engine `transformers` touches private parts of transformers {_VERSION}, found "
            f"{transformers.__version__}: install {_VERSION}, or choose the job's engine `slots`"
        )
    if soft_caps(model.config):
        raise BackendError(
            f"the paged attention of transformers drops the soft caps of {model.config.model_type}: choose the job's "
            "engine `slots`"
        )
    shared = [*model.parameters(), *model.buffers()]
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
    if "logits_to_keep" not in inspect.signature(twin.forward).parameters:
        raise BackendError(
            f"the engine `transformers` needs a model whose forward takes logits_to_keep, {model.config.model_type} "
            "does not: choose the job's engine `slots`"
        )
    twin.set_attn_implementation("sdpa")  # transformers cannot page with the learner's own (`tree_attention.py`)
    return twin


def _manager(model: Any, config: ContinuousBatchingConfig) -> Any:
    """Return transformers' manager, of which only the settings and what it makes are used: it is never started."""
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    return model.init_continuous_batching(GenerationConfig(do_sample=False, eos_token_id=-1), config)


def _pages(policy: Policy, sequences: int, positions: int, cache_bytes: int) -> ContinuousBatchingConfig:
    """Return settings by which keys, values and mask together stay within `cache_bytes`."""
    fed = max(_STEP_TOKENS, sequences)
    each = slot_bytes(policy.cache_shape, policy.dtype, 0) + fed * policy.dtype.itemsize
    longest = _blocks(positions)
    blocks = min(cache_bytes // (each * _BLOCK), sequences * longest)
    if blocks < longest:
        raise BackendError(
            f"kv_cache_bytes is {cache_bytes}, but one sequence of max_context {positions} takes "
            f"{longest * _BLOCK * each} bytes with its mask: give at least as many"
        )
    return ContinuousBatchingConfig(
        block_size=_BLOCK,
        num_blocks=blocks,
        max_batch_tokens=fed,
        max_blocks_per_request=0,
        allow_block_sharing=True,
        use_async_batching=False,
        use_cuda_graph=False,
        seed=0,
    )


def _blocks(tokens: int) -> int:
    """Return the blocks that so many tokens of one sequence take at most: transformers takes up to one too many."""
    return -(-tokens // _BLOCK) + 1


def _processor(manager: Any, device: torch.device) -> Any:
    """Return what schedules and pages; transformers seeds the process's random stream here, which is undone."""
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            return manager._create_batch_processor()
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise BackendError(f"no room for the engine's memory ({error}): lower the job's kv_cache_bytes") from error


def _empty(processor: Any) -> None:
    """Forget every request, and every block that a later prompt could share."""
    processor.reset()
    cache = processor.cache
    cache._block_manager = BlockManager(cache.num_blocks, cache.block_size, tp_on=False)
