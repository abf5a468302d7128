"""Continuous batching: each step feeds the tokens that admitted generations still lack.

A generation's tokens and log-probs depend on its own ids alone; a draw costs one uniform number, so a seeded request
does not depend on its neighbours. Keys and values of one revision of the weights never serve another. Admission is
first come first served; only so many prompt tokens are fed in one step, oldest first, that running answers are not held
up; what prompts that arrive together share is computed once.

A log-prob is that of the distribution drawn from (temperature, then top-k, then top-p, renormalised) in fp32; a greedy
row gets the model's own. Ids that a guide forbids have no part in it.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from swarm.backends.local.kv_cache import SlotAssignment, SlotCache, SlotTable
from swarm.backends.local.micro_batch import group_by_length
from swarm.backends.local.policy import Policy
from swarm.backends.protocols import Finish, Sampling
from swarm.rendering.guides import Guide
from swarm.rendering.messages import BackendError, GrammarRefused

_COLDEST = 1e-30
"""Lower temperatures count as this one, at which the likeliest id is certain and fp32 logits do not yet overflow."""
_BLOCK = 512
"""Ids of a large vocabulary that are summed before the sums are summed."""


class SampledBatch(NamedTuple):
    """The next token of each row: ids (B,), log-probs (B,), and where asked for the likeliest ids with theirs."""

    ids: Tensor
    logprobs: Tensor
    top: list[tuple[tuple[int, float], ...]]


def sample(logits: Tensor, rules: Sequence[Sampling], uniforms: Tensor) -> SampledBatch:
    """Draw from fp32 logits (B, V), -inf where an id must not come, by uniforms (B,) in [0, 1), float64, on the CPU.
    ArithmeticError where a row has NaN or infinity, or no id that may come."""
    logprobs = distribution(logits, rules)
    if logprobs[:, 0].isnan().any():  # one in a row of logits makes all its log-probs NaN
        raise ArithmeticError("the model's logits are no finite numbers")
    ids = _invert(logprobs, uniforms)
    greedy = [row for row, rule in enumerate(rules) if rule.temperature == 0]
    if greedy:
        ids[greedy] = logits[greedy].argmax(-1)
    top: list[tuple[tuple[int, float], ...]] = [()] * len(rules)
    for row, rule in enumerate(rules):
        if rule.top_logprobs:
            values, likeliest = logprobs[row].topk(min(rule.top_logprobs, logprobs.shape[-1]))
            pairs = zip(likeliest.tolist(), values.tolist(), strict=True)
            top[row] = tuple((token, value) for token, value in pairs if value > -math.inf)
    return SampledBatch(ids, logprobs.gather(-1, ids[:, None])[:, 0], top)


def distribution(logits: Tensor, rules: Sequence[Sampling]) -> Tensor:
    temperatures = [max(rule.temperature, _COLDEST) if rule.temperature else 1.0 for rule in rules]
    if any(temperature != 1.0 for temperature in temperatures):
        logits = logits / torch.tensor(temperatures, dtype=logits.dtype, device=logits.device)[:, None]
    logprobs = logits.log_softmax(-1)
    cut = [row for row, rule in enumerate(rules) if rule.temperature > 0 and (rule.top_k > 0 or rule.top_p < 1.0)]
    if cut:
        logprobs[cut] = _cut(logprobs[cut], [rules[row].top_k for row in cut], [rules[row].top_p for row in cut])
    return logprobs


def _cut(logprobs: Tensor, top_k: Sequence[int], top_p: Sequence[float]) -> Tensor:
    """Keep of rows (R, V) the `top_k` likeliest (0: all), then the fewest whose mass reaches `top_p`; renormalise."""
    ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
    size, device = logprobs.shape[-1], logprobs.device
    kept = torch.tensor([count if count > 0 else size for count in top_k], device=device)
    ordered[torch.arange(size, device=device) >= kept[:, None]] = -torch.inf
    mass = ordered.softmax(-1)
    beyond = mass.cumsum(-1) - mass >= torch.tensor(top_p, dtype=mass.dtype, device=device)[:, None]
    beyond[:, 0] = False  # also where fp32 rounds `top_p` to 0
    beyond &= torch.tensor([share < 1.0 for share in top_p], device=device)[:, None]
    ordered[beyond] = -torch.inf
    return torch.full_like(logprobs, -torch.inf).scatter(-1, order, ordered.log_softmax(-1))


def _invert(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """Return the ids (B,) at which each row's cumulative distribution passes its uniform number, in float64; over a
    large vocabulary by sums of blocks, and then the ids of one block."""

    def exact(mass: Tensor) -> Tensor:
        return (mass.cpu() if mass.device.type == "mps" else mass).double()

    mass = logprobs.exp()
    if mass.shape[-1] <= 2 * _BLOCK:
        sums = exact(mass).cumsum(-1)
        return _passing(sums, uniforms.to(sums.device) * sums[:, -1]).to(mass.device)
    blocks = functional.pad(mass, (0, -mass.shape[-1] % _BLOCK)).unflatten(-1, (-1, _BLOCK))  # (B, V / K, K)
    sums = exact(blocks.sum(-1)).cumsum(-1)
    draws = uniforms.to(sums.device) * sums[:, -1]
    block = _passing(sums, draws)
    before = functional.pad(sums, (1, 0)).gather(-1, block[:, None])[:, 0]
    within = exact(blocks[torch.arange(len(mass), device=mass.device), block.to(mass.device)]).cumsum(-1)
    return (block * _BLOCK + _passing(within, draws - before)).to(mass.device)


def _passing(sums: Tensor, draws: Tensor) -> Tensor:
    """Return where rows of ascending `sums` (B, N) first exceed their draws (B,); one too large is the last."""
    total = sums[:, -1:]
    draws = draws[:, None].minimum(total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(sums, draws, right=True)[:, 0]


class SampledToken(NamedTuple):
    """One sampled token."""

    id: int
    logprob: float
    version: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True, eq=False)
class Generation:
    """One request: prompt and sampled ids, its row, and what was sampled but not sent yet. While `leader` is set it
    waits for that one to have `awaited` tokens of a prompt they share. `since` is used by the engine alone. `error`
    says why it could not go on, though others can: it is finished then, and its last token is void."""

    ids: list[int]
    sampling: Sampling
    guide: Guide | None = None
    random: random.Random | None = None
    prompt_length: int = 0
    slot: int = -1
    leader: Generation | None = None
    awaited: int = 0
    cancelled: bool = False
    finish: Finish | None = None
    error: BackendError | None = None
    since: float = 0.0
    fresh: list[SampledToken] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.ids)
        if self.sampling.seed is not None:
            self.random = random.Random(self.sampling.seed)

    def fail(self, error: BackendError) -> None:
        self.error, self.finish = error, "stop"


def extend(
    ready: Sequence[Generation], logits: Tensor, generator: torch.Generator, version: int, positions: int
) -> npt.NDArray[np.int64]:
    """Sample one token for each of `ready` (N) from its fp32 logits (N, V), and note it there; return the ids (N,).
    `generator` draws for the unseeded. Raises ArithmeticError, with nothing noted, where logits are no numbers."""
    for row, generation in enumerate(ready):
        if generation.guide is None:
            continue
        try:
            logits[row].masked_fill_(~generation.guide.allowed_mask().to(logits.device), -torch.inf)
        except GrammarRefused as error:
            generation.fail(error)
    uniforms = torch.empty(len(ready), dtype=torch.float64)
    unseeded = [row for row, generation in enumerate(ready) if generation.random is None]
    uniforms[unseeded] = torch.rand(len(unseeded), generator=generator, dtype=torch.float64)
    for row, generation in enumerate(ready):  # a seeded request's number is its own, and takes none of the others'
        if generation.random is not None:
            uniforms[row] = generation.random.random()
    drawn, logprobs, top = sample(logits, [generation.sampling for generation in ready], uniforms)
    ids: npt.NDArray[np.int64] = drawn.cpu().numpy()
    for generation, token, logprob, likeliest in zip(ready, ids.tolist(), logprobs.tolist(), top, strict=True):
        generation.ids.append(token)
        generation.fresh.append(SampledToken(token, logprob, version, likeliest))
        if generation.guide is not None and generation.error is None:
            try:
                generation.guide.accept(token)
            except GrammarRefused as error:
                generation.fail(error)
        rule, length = generation.sampling, len(generation.ids)
        if token in rule.stop_ids or generation.error is not None:
            generation.finish = "stop"
        elif length >= positions or length - generation.prompt_length >= rule.max_tokens:
            generation.finish = "length"
    return ids


_Array = npt.NDArray[Any]

_CHUNK = 512
"""Most tokens of one prompt fed in one step."""
_PREFILL = 1024
"""Most tokens of all prompts fed in a step that also advances running answers."""
_FORWARD = 8192
"""Most tokens, padding included, in one forward, and most of all prompts in a step when no answer is running."""
_WASTE = 256
"""Padding tokens that cost as much as one more forward (tiny model, one core: 0.8 ms against 4 us a token)."""
_TINY = 140_000
"""Weights of that model."""
_FLOPS_PER_BYTE = 10
"""How many multiplications of a forward take as long as copying a byte of history (one core: 50 G/s, 5 GB/s)."""


class Batcher:
    """Generations waiting and running over one slot cache. One thread uses it; `generator` draws for the unseeded."""

    def __init__(self, policy: Policy, *, slots: int, positions: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        policy.fuse()
        self._policy = policy
        self._slots = slots
        self._positions = positions
        self._table = SlotTable(slots, positions)
        self._cache = SlotCache(policy.cache_shape, slots, positions, policy.dtype, policy.device)
        self._waiting: deque[Generation] = deque()
        self._running: dict[int, Generation] = {}
        """By row."""
        self._weights = sum(weight.numel() for weight in policy.model.parameters())
        self._kept_bytes = policy.cache_shape.numbers * policy.dtype.itemsize
        """Of the keys and values of a token."""
        self._version = policy.version
        self._revision = policy.revision

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, generation: Generation) -> None:
        self._waiting.append(generation)

    @torch.inference_mode()
    def step(self) -> list[Generation]:
        """Run the forwards of one step; return the generations that got a token (`finish` set on the finished)."""
        self._version = self._policy.version
        if self._revision != self._policy.revision:
            self._revision = self._policy.revision
            self._table.forget()
            for generation in self._running.values():
                self._find_leader(generation)
        for generation in [generation for generation in self._running.values() if generation.cancelled]:
            self._release(generation)
        for generation in self._running.values():
            if (leader := generation.leader) is None:
                continue
            gone = self._running.get(leader.slot) is not leader
            if gone or self._table.cached[leader.slot] >= generation.awaited:
                self._copy_prefix(self._table.borrow(generation.slot))
                self._find_leader(generation)
        self._admit()
        rows, features = self._advance()
        ready = [self._running[row] for row in rows.tolist()]
        if ready:
            logits = self._policy.head(features)
            self._table.append(rows, extend(ready, logits, self.generator, self._version, self._positions))
        for generation in ready:
            if generation.finish:
                self._release(generation)
        return ready

    @torch.inference_mode()
    def empty(self) -> tuple[list[Generation], list[Generation]]:
        """After a failed step, remove generations, keys and values; return those that ran in it, and the waiting."""
        running, waiting = list(self._running.values()), list(self._waiting)
        self._running.clear()
        self._waiting.clear()
        self._table = SlotTable(self._slots, self._positions)
        self._cache.wipe()  # numbers that are not finite come through masks
        return running, waiting

    def _find_leader(self, generation: Generation) -> None:
        row, awaited = self._table.find_leader(generation.slot) or (None, 0)
        generation.leader = None if row is None else self._running[row]
        generation.awaited = awaited

    def _admit(self) -> None:
        while self._waiting and not self._table.busy.all():
            generation = self._waiting.popleft()
            if generation.cancelled:
                continue
            assignment = self._table.place(generation.ids)
            self._copy_prefix(assignment)
            generation.slot = assignment.slot
            self._running[assignment.slot] = generation
            self._find_leader(generation)

    def _copy_prefix(self, assignment: SlotAssignment | None) -> None:
        if assignment is not None and assignment.donor is not None:
            self._cache.copy(assignment.donor, assignment.slot, assignment.cached)

    def _advance(self) -> tuple[_Array, Tensor]:
        """Run the forwards of this step; return the rows (N,) that lack no token now and their features (N, F)."""
        answers = np.flatnonzero(self._table.count_missing() == 1)
        budget, ones = _PREFILL if answers.size else _FORWARD, np.ones(answers.size, np.int64)
        portions = self._portions(budget)
        if portions and self._may_join(answers, *portions[-1]):
            rows, lengths = portions[-1]
            portions[-1] = np.append(rows, answers), np.append(lengths, ones)
        elif answers.size:
            self._move_answers_to_front()
            portions = [(np.arange(answers.size), ones), *self._portions(budget)]
        fed = [self._feed(*portion) for portion in portions]
        if not fed:
            return answers, torch.empty(0)
        if len(fed) == 1:
            return fed[0]
        return np.concatenate([done for done, _ in fed]), torch.cat([features for _, features in fed])

    def _may_join(self, answers: _Array, rows: _Array, lengths: _Array) -> bool:
        """Return whether `answers` fed beside a portion of prompts cost less than a forward of their own."""
        longest = int(lengths.max())
        seen = int(self._table.cached[np.append(rows, answers)].max()) + longest
        padded = int((longest - lengths).sum()) + answers.size * (longest - 1)
        copied = answers.size * seen * self._kept_bytes * _FLOPS_PER_BYTE
        return padded * self._weights + copied <= _WASTE * _TINY and (rows.size + answers.size) * longest <= _FORWARD

    def _move_answers_to_front(self) -> None:
        lacks_one = self._table.count_missing() == 1
        count = int(lacks_one.sum())
        holes, strays = np.flatnonzero(~lacks_one[:count]), np.flatnonzero(lacks_one[count:]) + count
        for hole, stray in zip(holes.tolist(), strays.tolist(), strict=True):
            self._cache.exchange(hole, stray, self._table.exchange(hole, stray))
            moved, displaced = self._running.pop(stray), self._running.pop(hole, None)
            for generation, row in ((moved, hole), (displaced, stray)):
                if generation is not None:
                    generation.slot = row
                    self._running[row] = generation

    def _portions(self, budget: int) -> list[tuple[_Array, _Array]]:
        """Return rows of prompts, and how many ids of each are fed now, a pair for each forward."""
        lacking = self._table.count_missing()
        rows: list[int] = []
        lengths: list[int] = []
        for row in self._table.sort_by_age(np.flatnonzero(lacking > 1)).tolist():
            if budget and self._running[row].leader is None:
                rows.append(row)
                lengths.append(min(int(lacking[row]), _CHUNK, budget))
                budget -= lengths[-1]
        prompts, portions = np.array(rows, np.int64), np.array(lengths, np.int64)
        return [(prompts[group], portions[group]) for group in group_by_length(lengths, _FORWARD, _WASTE)]

    def _feed(self, rows: _Array, lengths: _Array) -> tuple[_Array, Tensor]:
        """Feed `rows` (B,) their next `lengths` (B,) ids; return the N that lack none now, with features (N, F)."""
        kept, of = self._find_twins(rows, lengths)
        fed, widths = rows[kept], lengths[kept]
        starts, columns = self._table.cached[fed], np.arange(lengths.max())
        positions = np.where(columns < widths[:, None], starts[:, None] + columns, self._cache.scratch)
        ends = starts + widths
        device, ids = self._policy.device, torch.from_numpy(self._table.read(fed, positions))
        places = torch.from_numpy(positions).to(device)
        mask = self._cache.bind(fed, places, int(ends.max()))
        if columns.size > 1:  # what pads has a place in memory, but none that a model of so many positions knows
            places = places.clamp(max=self._positions - 1)
        features = self._policy.decode(ids.to(device), places, mask, self._cache)
        if twins := np.flatnonzero(kept[of] != np.arange(len(rows))).tolist():
            self._cache.spread(fed[of[twins]], rows[twins], torch.from_numpy(positions[of[twins]]).to(device))
        self._table.cached[rows] = ends[of]
        done = np.flatnonzero(ends[of] == self._table.known[rows])
        return rows[done], features[of[done], lengths[done] - 1]

    def _find_twins(self, rows: _Array, lengths: _Array) -> tuple[_Array, _Array]:
        """Return the places in `rows` that are fed, and for each row the place there of the one that is fed for it."""
        each = np.arange(len(rows))
        if len(rows) == 1 or self._policy.device.type != "cpu":
            return each, each
        kept, of = self._table.find_twins(rows, lengths)
        longest, apart = int(lengths.max()), len(kept) < int(np.ptp(rows[kept])) + 1
        seen = int(self._table.cached[rows].max()) + longest
        saved = (len(rows) - len(kept)) * longest * self._weights
        return (kept, of) if saved > apart * len(kept) * seen * self._kept_bytes * _FLOPS_PER_BYTE else (each, each)

    def _release(self, generation: Generation) -> None:
        self._table.release(generation.slot)
        del self._running[generation.slot]
        generation.guide = generation.leader = None
