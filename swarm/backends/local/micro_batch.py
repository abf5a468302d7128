"""Rows laid out for one forward and backward within a token budget, and their log-probs.

Each row is in exactly one micro-batch, and what a step learns does not depend on the layout. `linear` and `none` go row
by row, padded, or packed end to end as trees that share nothing. `tree` computes what rows share once, on a CPU: each
row's path through the packed ids is its own ids, in depth-first order; a shared sampled token is one id, trained as
often as rows have it. `auto` takes trees where rows hold `PAYS` times their ids. Log-probs are in fp32 at the job's
temperature; the policy's lock is held for one micro-batch at a time, so that nobody waits long.
"""

import logging
import math
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from swarm.algorithms import losses
from swarm.algorithms.rows import Row
from swarm.backends.local.fused_forward import describe_difference
from swarm.backends.local.policy import Policy
from swarm.backends.local.tree_attention import NAME, Segment, TreeMask
from swarm.job import Job
from swarm.timelines.node import TrainRow


class PaddedRows:
    """Rows side by side, padded right with id 0; causal attention keeps the padding from every real token. As of any
    micro-batch: `rows` in the order of their M sampled tokens; `tokens`: ids that are fed to the model, padding
    included; `places` (M,): the place before each sampled token; `shares`: whether rows share ids; `features`: what
    `policy.head` turns into logits, at some places (U,), by default at those (U, F)."""

    shares = False

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.ids = torch.nn.utils.rnn.pad_sequence([row.ids for row in rows], batch_first=True)
        """(B, T)"""
        self.tokens = self.ids.numel()
        counts = torch.tensor([len(row.places) for row in rows])
        starts = torch.arange(len(rows)) * self.ids.shape[1]
        self.places = torch.cat([row.places for row in rows]) + starts.repeat_interleave(counts)
        """(M,), in ids flattened."""

    def features(self, policy: Policy, places: Tensor | None = None) -> Tensor:
        found = policy.features(self.ids.to(policy.device), use_cache=False)
        return found.flatten(0, 1)[(self.places if places is None else places).to(policy.device)]


RowT = TypeVar("RowT", Row, TrainRow)


def group_by_length(lengths: Sequence[int], most: int, waste: float = math.inf) -> list[list[int]]:
    """Return the places of `lengths` in groups, longest first, so that none holds more than `most` ids, padding to its
    longest included (but always one), nor more than `waste` of padding."""
    groups: list[list[int]] = []
    longest = padding = 0
    for place in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        padding += longest - lengths[place]
        if not groups or (len(groups[-1]) + 1) * longest > most or padding > waste:
            groups.append([])
            longest, padding = lengths[place], 0
        groups[-1].append(place)
    return groups


def split_rows(rows: Sequence[RowT], tokens: int) -> list[list[RowT]]:
    return [[rows[place] for place in group] for group in group_by_length([len(row.ids) for row in rows], tokens)]


AT_ONCE: Final = 1 << 28
"""Numbers of log-probs of the whole vocabulary that are held at once: 1 GiB in fp32."""


def score_tokens(
    policy: Policy, micro: "PaddedRows | PackedRows", targets: Tensor, temperature: float, *, entropy: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the fp32 log-probs (M,) of a micro-batch's sampled tokens, with gradient where it is enabled, and the
    entropy (M,) where each was sampled, with gradient if `entropy`. Rows of a tree share places. Of the U places the
    log-probs (U, V) of the whole vocabulary are held AT_ONCE at most, and computed again for the gradient where they
    are more."""
    places, lines = micro.places.unique(return_inverse=True)
    features = micro.features(policy, places)
    vocabulary = int(policy.model.config.get_text_config().vocab_size)
    size = max(1, AT_ONCE // vocabulary)

    def score(features: Tensor, lines: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = policy.head(features)
        every = (logits if temperature == 1 else logits / temperature).log_softmax(-1)
        with torch.set_grad_enabled(entropy and torch.is_grad_enabled()):
            spread = losses.entropy(every)[lines]
        return every[lines, targets], spread

    lines, targets = lines.to(features.device), targets.to(features.device)
    if len(places) <= size:
        return score(features, lines, targets)
    order = lines.argsort(stable=True)  # tokens by their places
    bounds = torch.arange(size, len(places), size, device=lines.device)
    cuts = [0, *torch.searchsorted(lines[order], bounds).tolist(), len(lines)]
    parts = [
        checkpoint(score, part, lines[own] - size * number, targets[own], use_reentrant=False)
        for number, (part, (start, end)) in enumerate(zip(features.split(size), pairwise(cuts), strict=True))
        for own in [order[start:end]]
    ]
    back = order.argsort()
    present, spread = (torch.cat(each)[back] for each in zip(*parts, strict=True))
    return present, spread


def compute_logprobs(
    policy: Policy, micros: "Iterable[PaddedRows | PackedRows]", temperature: float
) -> Iterator[tuple[Row, Tensor]]:
    """Yield each row with the log-probs (K,) of its sampled tokens under the policy, without gradient, on the CPU."""
    for micro in micros:
        targets = torch.cat([row.targets for row in micro.rows])
        with torch.no_grad(), policy.lock.reading():
            found = score_tokens(policy, micro, targets, temperature)[0].cpu()
        yield from zip(micro.rows, found.split([len(row.targets) for row in micro.rows]), strict=True)


class Branch(NamedTuple):
    """A row, and how many ids it shares with the one before it in depth-first order: those it adds no more."""

    row: Row
    shared: int

    @property
    def added(self) -> int:
        """Ids that the row adds to its tree."""
        return len(self.row.ids) - self.shared


def sort_depth_first(rows: Sequence[Row]) -> list[Branch]:
    """Return rows as one forest in depth-first order, the way to the longest first, so that it stands in one piece."""
    ids = [row.ids.numpy() for row in rows]
    order = sorted(range(len(rows)), key=lambda n: ids[n].astype(">u4").tobytes())
    order = _sort_longest_first(order, [len(row.ids) for row in rows], _common_prefixes(order, ids))
    return [Branch(rows[n], common) for n, common in zip(order, _common_prefixes(order, ids), strict=True)]


def _common_prefixes(order: Sequence[int], ids: Sequence[np.ndarray]) -> list[int]:
    shared = [0]
    for left, right in pairwise(order):
        size = min(len(ids[left]), len(ids[right]))
        differ = ids[left][:size] != ids[right][:size]
        shared.append(int(differ.argmax()) if differ.any() else size)
    return shared[: len(order)]


def _sort_longest_first(order: Sequence[int], lengths: Sequence[int], shared: Sequence[int]) -> list[int]:
    waiting: list[tuple[int, list[int]]] = []
    """Ways in their order, each with the depth at which it parts from the one before; a way's first row is longest."""
    for row, depth in zip([*order, -1], [*shared, 0], strict=True):
        while len(waiting) > 1 and waiting[-1][0] > depth:
            parting, ways = waiting[-1][0], []
            while waiting[-1][0] == parting:
                ways.append(waiting.pop()[1])
            before, first = waiting.pop()
            ways = [first, *reversed(ways)]
            ways.sort(key=lambda way: -lengths[way[0]])
            waiting.append((before, [each for way in ways for each in way]))
        waiting.append((depth, [row]))
    return [each for _, way in waiting[:-1] for each in way]


LONGER: Final = 1.5
"""How many times its longest row a tree may be where `tokens` is less: what needs a row's memory alone is shared."""


def split_branches(branches: Sequence[Branch], tokens: int) -> Iterator[list[Branch]]:
    """Split branches where a tree would hold more than `tokens` ids; a new one begins alone. A row that is longer goes
    alone but for rows that share ids with it, as long as the tree is at most LONGER times its longest row."""
    taken: list[Branch] = []
    size = longest = 0
    for branch in branches:
        longest = max(longest, len(branch.row.ids))
        if taken and size + branch.added > max(tokens, LONGER * longest if branch.shared else 0):
            yield taken
            taken, size, longest = [], 0, len(branch.row.ids)
        taken.append(branch if taken else Branch(branch.row, 0))
        size += taken[-1].added
    if taken:
        yield taken


class PackedRows:
    """Rows as one packed tree. ids, position (N,): in depth-first order; places (M,): where tokens are predicted."""

    def __init__(self, branches: Sequence[Branch]) -> None:
        self.rows: Sequence[Row] = [branch.row for branch in branches]
        self.shares = any(branch.shared for branch in branches)
        self.ids = torch.cat([branch.row.ids[branch.shared :] for branch in branches])
        self.tokens = len(self.ids)
        self.position = torch.cat([torch.arange(branch.shared, len(branch.row.ids)) for branch in branches])
        path = np.empty(max(len(branch.row.ids) for branch in branches), dtype=np.int64)
        places: list[np.ndarray] = []
        parents: dict[int, int] = {}
        # of each run of ids that a branch adds: the index before the first (-1 at a root), by the index of the first
        size = 0
        for row, shared in branches:
            length = len(row.ids)
            if length > shared:
                parents[size] = int(path[shared - 1]) if shared else -1
            path[shared:length] = np.arange(size, size + length - shared)
            size += length - shared
            places.append(path[row.places.numpy()])
        self.places, self.tree = torch.from_numpy(np.concatenate(places)), TreeMask(_segments(parents, size))

    def features(self, policy: Policy, places: Tensor | None = None) -> Tensor:
        # given a mask of four dimensions that nobody reads, transformers builds none of N x N
        unread = torch.zeros(1, 1, 1, 1, device=policy.device)
        ids, position = self.ids[None].to(policy.device), self.position[None].to(policy.device)
        beside = {"tree": self.tree, "position_ids": position, "attention_mask": unread}
        found = policy.features(ids, use_cache=False, **beside)
        return found[0][(self.places if places is None else places).to(policy.device)]


def _segments(parents: dict[int, int], size: int) -> list[Segment]:
    apart = {start: parent for start, parent in parents.items() if parent < 0 or parent != start - 1}
    cuts = sorted({*apart, *(parent + 1 for parent in apart.values() if parent >= 0)})
    owners = [
        bisect(cuts, apart[cut]) - 1 if cut in apart and apart[cut] >= 0 else -1 if cut in apart else number - 1
        for number, cut in enumerate(cuts)
    ]
    ends = [*cuts[1:], size]
    below = list(ends)
    for number in reversed(range(len(cuts))):
        if owners[number] >= 0:
            below[owners[number]] = max(below[owners[number]], below[number])
    return [Segment(*each) for each in zip(cuts, ends, below, owners, strict=True)]


log = logging.getLogger(__name__)
PAYS: Final = 1.15
"""Fewest ids of the rows over ids of the trees at which trees are chosen."""
_LEAST_TOKENS: Final = 256
"""Below so many ids a micro-batch's activations are not what fills a memory."""
_PADDING_PER_ROW = 8
"""Ids of padding that cost as much as attention to one more row by itself (a few microseconds for each layer)."""
_PROBE = ((0, 1, 2, 3, 4, 5, 6), (0, 1, 2, 7, 8, 9), (0, 1, 2, 7, 8, 3, 1, 4), (5, 3, 2), (5, 3, 4, 4))
"""Rows that branch at a root, below it, and not at all, as places in the policy's text."""


class Layout:
    """How a job's rows are laid out for a policy."""

    def __init__(self, policy: Policy, job: Job) -> None:
        self._merging = job.merging
        self._tokens = job.micro_batch_tokens
        self._obstacle = find_tree_obstacle(policy)
        if self._obstacle is not None and policy.device.type == "cpu" and job.merging in ("auto", "tree"):
            log.warning(
                "event=no_trees cost='updates feed tokens/forward ids, not about merge/tree_tokens' model=%s reason=%r",
                type(policy.model).__name__,
                self._obstacle,
            )
        self._chosen: list[bool] = []

    def micro_batches(self, rows: Sequence[Row]) -> list[PaddedRows | PackedRows]:
        if not rows:
            return []
        trees = None
        if self._obstacle is None and self._merging in ("auto", "tree"):
            trees = list(split_branches(sort_depth_first(rows), self._tokens))
            ratio = sum(len(row.ids) for row in rows) / sum(branch.added for tree in trees for branch in tree)
            if self._merging == "auto" and ratio < PAYS:
                trees = None
        if trees is not None:
            return [*map(PackedRows, trees)]
        # rows are padded or, where padding would cost more than attention to each row by itself does, packed
        padded = list(map(PaddedRows, split_rows(rows, self._tokens)))
        padding = sum(micro.tokens for micro in padded) - sum(len(row.ids) for row in rows)
        if self._obstacle is not None or padding <= _PADDING_PER_ROW * len(rows):
            return [*padded]
        alone = [Branch(row, 0) for micro in padded for row in micro.rows]
        return [*map(PackedRows, split_branches(alone, self._tokens))]

    def count(self, micros: Sequence[PaddedRows | PackedRows]) -> None:
        """Note a layout that is computed: is it of trees?"""
        if micros:
            self._chosen.append(any(micro.shares for micro in micros))

    def shrink(self) -> bool:
        """Let micro-batches hold half as much from now on; False where they hold least."""
        if self._tokens < 2 * _LEAST_TOKENS:
            return False
        self._tokens //= 2
        log.warning("event=out_of_memory micro_batch_tokens=%d: tried again with so many", self._tokens)
        return True

    def metrics(self) -> Mapping[str, float]:
        chosen, self._chosen = self._chosen, []
        return {"merge/layout_tree": sum(chosen) / max(1, len(chosen))}


def find_tree_obstacle(policy: Policy) -> str | None:
    """Return why a policy cannot compute trees, or None: compare a small tree with its rows."""
    if policy.device.type != "cpu":
        return f"on {policy.device.type} rows are computed faster than trees"
    if getattr(policy.model.config, "_attn_implementation", None) != NAME:
        return "the model's attention is not transformers' SDPA"
    text = policy.probe_ids(1 + max(map(max, _PROBE)))
    rows = []
    for probe in _PROBE:
        places = torch.arange(len(probe))
        ids = torch.tensor([text[place] for place in probe])
        rows.append(Row(-1, ids, places, places, torch.zeros(len(probe)), places))
    packed = PackedRows(sort_depth_first(rows))
    with torch.no_grad(), policy.lock.writing():
        try:
            found = packed.features(policy)
            apart = describe_difference(policy.model, lambda: PaddedRows(packed.rows).features(policy), found)
        except (TypeError, ValueError, RuntimeError) as error:
            return f"the model's forward takes no tree: {error}"
    return None if apart is None else f"features of a tree differ from those of its rows: {apart}"
