"""Batches as verl's engine takes them, and the job's loss inside it.

A batch is a TensorDict of jagged tensors, one row of ids for each of ours; `response_mask` is 0 where a later turn's
prompt stands. A `padding` row has no sampled token and adds nothing. Micro-batches and ranks add up to exactly the
minibatch's loss: FSDP averages gradients, so each rank's share is multiplied by their number. A micro-batch without a
sampled token contributes 0 and still takes part in the exchange. A loss can be pickled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from swarm.algorithms.learner import CPU
from swarm.algorithms.losses import Surrogate
from swarm.algorithms.objective import Objective, UpdateSums
from swarm.algorithms.rows import Row, Tokens, flatten_tokens
from swarm.backends.verl.adapter import policy_loss
from swarm.job import Job

_COLUMNS = {
    "advantages": "advantages", "token_weights": "weights", "rollout_log_probs": "rollout", "versions": "versions",
    "episodes": "episodes", "old_log_probs": "proximal", "sequence_log_ratios": "sequence",
    "rollout_is_weights": "correction", "kept": "kept",
}  # fmt: skip
"""What each sampled token carries in a batch, by names that are verl's where it has one, and fields of `Tokens`."""


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """A row in verl's terms: all its ids (T,), the length of its prompt, and where in the response (R,) it sampled."""

    ids: Tensor
    prompt: int
    sampled: Tensor


def verl_batch(
    rows: Sequence[Row], advantages: Sequence[float], weights: Sequence[float], *, padding: int = 0
) -> TensorDict:
    """Return verl's batch of `rows` and as many rows of `padding`; advantages, weights: by episode. Jagged over a row's
    ids: `input_ids`, `position_ids`, `loss_mask`; over its prompt: `prompts`; over its response: `responses`,
    `response_mask` and, unless all is padding, `ref_log_prob` and those of `_COLUMNS` that are there."""
    shapes = []
    for row in rows:  # with the id that it ends on, which ours leaves out: nothing is predicted after it
        first = int(row.places[0]) + 1
        shapes.append(_Shape(torch.cat([row.ids, row.targets[-1:]]), first, row.places + 1 - first))
    shapes += [_Shape(torch.zeros(2, dtype=torch.long), 1, torch.zeros(0).long())] * padding
    responses = [shape.ids[shape.prompt :] for shape in shapes]
    masks = [_scatter(shape, torch.ones(len(shape.sampled), dtype=torch.long)) for shape in shapes]
    whole = [torch.cat([torch.zeros(s.prompt).long(), mask]) for s, mask in zip(shapes, masks, strict=True)]
    columns: dict[str, Sequence[Tensor]] = {}
    if rows:
        tokens, counts = flatten_tokens(rows, advantages, weights, CPU), [len(row.targets) for row in rows]
        flat = {name: getattr(tokens, field) for name, field in _COLUMNS.items()}
        columns = {name: values.split(counts) for name, values in flat.items() if values is not None}
        references = [row.reference for row in rows if row.reference is not None]
        columns |= {"ref_log_prob": references} if len(references) == len(rows) else {}
    filled = {
        name: [_scatter(s, v) for s, v in zip(shapes, [*values, *[values[0][:0]] * padding], strict=True)]
        for name, values in columns.items()
    }
    parts = {
        "input_ids": [shape.ids for shape in shapes],
        "position_ids": [torch.arange(len(shape.ids)) for shape in shapes],
        "loss_mask": whole,
        "prompts": [shape.ids[: shape.prompt] for shape in shapes],
        "responses": responses,
        "response_mask": masks,
        **filled,
    }
    jagged = torch.nested.nested_tensor_from_jagged
    nested = {name: jagged(torch.cat(own), lengths=torch.tensor([*map(len, own)])) for name, own in parts.items()}
    return TensorDict(nested, batch_size=[len(shapes)])


def _scatter(shape: _Shape, values: Tensor) -> Tensor:
    """Return values (K,) of the sampled tokens at their places in the response (R,), 0 elsewhere."""
    found = values.new_zeros(len(shape.ids) - shape.prompt)
    found[shape.sampled] = values
    return found


def select_sampled(values: Any, batch: TensorDict) -> Tensor:
    """Return what a jagged output, which stands where ids are fed, says of the M sampled tokens, in the rows' order."""
    flat, ends = values.values(), values.offsets()[1:]
    lengths = batch["response_mask"].offsets().diff()
    parts = [flat[end - length - 1 : end - 1] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    return torch.cat(parts)[batch["response_mask"].values().bool()]


def batch_tokens(batch: TensorDict) -> tuple[Tokens, Tensor | None]:
    """Return the M sampled tokens of a batch, row by row, and their log-probs under the reference if it has them."""

    sampled = batch["response_mask"].values().bool()

    def own(name: str) -> Any:
        return batch[name].values()[sampled] if name in batch.keys() else None  # noqa: SIM118 a TensorDict needs keys()

    fields: dict[str, Any] = {field: own(name) for name, field in _COLUMNS.items()}
    return Tokens(targets=own("responses"), **fields), own("ref_log_prob")


class ObjectiveLoss:
    """The job's `Objective`, as verl calls a loss function; `sums` are of what this rank computed in one update."""

    def __init__(self, job: Job, version: int) -> None:
        self.sums = UpdateSums(version, job.correction_cap)
        self._objective = Objective(job)

    def __call__(
        self, model_output: Mapping[str, Tensor], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the micro-batch's share () of the loss times the number of ranks, and no metrics: see `sums`."""
        nothing = model_output["log_probs"].values()[:0].sum()
        if not data["response_mask"].values().any():
            return nothing, {}
        tokens, reference = batch_tokens(data)
        present, entropy = (select_sampled(model_output[name], data) for name in ("log_probs", "entropy"))
        loss = self._share(present, entropy, tokens, reference)
        return loss * data["dp_size"] + nothing, {}

    def _share(self, present: Tensor, entropy: Tensor, tokens: Tokens, reference: Tensor | None) -> Tensor:
        return self._objective.token_loss(present, entropy, tokens, reference, self.sums)


class VerlLoss(ObjectiveLoss):
    """The loss of the policy that the job names, by verl's function; entropy and divergence are the objective's."""

    def __init__(self, job: Job, version: int) -> None:
        super().__init__(job, version)
        self._job = job
        self._bypass = job.verl_fields.bypass

    def _share(self, present: Tensor, entropy: Tensor, tokens: Tokens, reference: Tensor | None) -> Tensor:
        if self._bypass:
            proximal, correction = tokens.rollout, torch.ones_like(tokens.rollout)
        else:
            proximal = self._objective.proximal(present, tokens)
            correction = self._objective.correction(proximal, tokens)
        loss, *clipped = policy_loss(self._job, tokens, present, proximal, correction)
        self.sums.add(pg_loss=loss)
        # verl tells parts of all tokens, and our sums are over tokens: each counts as the part
        terms = Surrogate(present.detach(), *[torch.full_like(present, part) for part in clipped])
        self.sums.add_tokens(tokens, present, proximal, terms, correction)
        return self._objective.add_bonuses(loss, present, entropy, tokens, reference, self.sums)
