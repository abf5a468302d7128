"""From our rows to verl's batch: a TensorDict of jagged tensors, one row of ids for each of ours.

Promises: every sampled token of the rows is in the batch once, with its own advantage, weight, log-probs, version and
episode; a row's prompt is what precedes its first sampled token, its response all that follows, with 0 in
`response_mask` where a later turn's prompt stands. A row of `padding` has no sampled token: it makes ranks even and
adds nothing to any loss, metric or number of tokens.
Linear rows only: verl's engine gives each row positions of its own and an attention that is causal within the row, so
that ids which rows share are fed once for each of them.
Knows nothing of losses, ranks or verl's functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from swarm.backends.algorithms.rows import Row, Tokens, flat_tokens

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """A row in verl's terms: all its ids (T,), the length of its prompt, and where in the response (R,) it sampled."""

    ids: Tensor
    prompt: int
    sampled: Tensor


def verl_batch(
    rows: Sequence[Row],
    advantages: Sequence[float],
    weights: Sequence[float],
    *,
    sequence: Sequence[Tensor] = (),
    places: Sequence[Tensor] = (),
    padding: int = 0,
) -> TensorDict:
    """Return verl's batch of `rows` and as many rows of `padding`.

    advantages, weights: by episode, as `flat_tokens` takes them. sequence: the `Tokens.sequence` (K,) of each row,
    where the loss needs it. places: where among all tokens of a minibatch those of each row (K,) stand. Jagged over a
    row's ids: `input_ids`, `position_ids`, `loss_mask`; over its prompt: `prompts`; over its response: `responses`,
    `response_mask` and, unless all is padding, `places` and the columns of `_columns`.
    """
    shapes = [*map(_shape, rows), *[_Shape(torch.zeros(2, dtype=torch.long), 1, torch.zeros(0).long())] * padding]
    responses = [shape.ids[shape.prompt :] for shape in shapes]
    masks = [_scattered(shape, torch.ones(len(shape.sampled), dtype=torch.long)) for shape in shapes]
    whole = [torch.cat([torch.zeros(s.prompt).long(), mask]) for s, mask in zip(shapes, masks, strict=True)]
    columns = _columns(rows, flat_tokens(rows, advantages, weights, _CPU), sequence) if rows else {}
    if rows and places:
        columns["places"] = places
    filled = {
        name: [_scattered(s, v) for s, v in zip(shapes, [*values, *[values[0][:0]] * padding], strict=True)]
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
    nested = {name: torch.nested.as_nested_tensor(own, layout=torch.jagged) for name, own in parts.items()}
    return TensorDict(nested, batch_size=[len(shapes)])


def _shape(row: Row) -> _Shape:
    """Return a row with the id that it ends on, which ours leaves out: nothing is predicted after it."""
    first = int(row.places[0]) + 1
    return _Shape(torch.cat([row.ids, row.targets[-1:]]), first, row.places + 1 - first)


def _scattered(shape: _Shape, values: Tensor) -> Tensor:
    """Return values (K,) of the sampled tokens at their places in the response (R,), 0 elsewhere."""
    found = values.new_zeros(len(shape.ids) - shape.prompt)
    found[shape.sampled] = values
    return found


def _columns(rows: Sequence[Row], tokens: Tokens, sequence: Sequence[Tensor]) -> dict[str, Sequence[Tensor]]:
    """Return what each sampled token carries, row by row; names that verl has are verl's."""
    counts = [len(row.targets) for row in rows]
    columns: dict[str, Sequence[Tensor]] = {
        "advantages": tokens.advantages.split(counts),
        "token_weights": tokens.weights.split(counts),
        "rollout_log_probs": tokens.rollout.split(counts),
        "versions": tokens.versions.split(counts),
        "episodes": tokens.episodes.split(counts),
    }
    if tokens.proximal is not None:
        columns["old_log_probs"] = tokens.proximal.split(counts)
    for name, known in (
        ("ref_log_prob", [row.reference for row in rows if row.reference is not None]),
        ("values", [row.values for row in rows if row.values is not None]),
        ("returns", [row.returns for row in rows if row.returns is not None]),
    ):
        if len(known) == len(rows):
            columns[name] = known
    for name, own in (("rollout_is_weights", tokens.correction), ("kept", tokens.kept)):
        if own is not None:
            columns[name] = own.split(counts)
    if sequence:
        columns["sequence_log_ratios"] = sequence
    return columns


def sampled(values: Any, batch: TensorDict) -> Tensor:
    """Return what a jagged output of the model, which stands where ids are fed, says of the M sampled tokens.

    At each place the model predicts the id of the next one; the tokens are in the order of the batch's rows.
    """
    flat, ends = values.values(), values.offsets()[1:]
    lengths = batch["response_mask"].offsets().diff()
    parts = [flat[end - length - 1 : end - 1] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    return torch.cat(parts)[batch["response_mask"].values().bool()]


def column(batch: TensorDict, name: str) -> Tensor:
    """Return what of a name a batch has of its M sampled tokens: one of `verl_batch`'s, or `places`."""
    found: Tensor = batch[name].values()[batch["response_mask"].values().bool()]
    return found


def batch_tokens(batch: TensorDict) -> tuple[Tokens, Tensor | None]:
    """Return the M sampled tokens of a batch, row by row, and their log-probs under the reference if it has them."""

    def own(name: str) -> Tensor | None:
        return column(batch, name) if name in batch.keys() else None  # noqa: SIM118 a TensorDict needs keys()

    tokens = Tokens(
        targets=column(batch, "responses"),
        rollout=column(batch, "rollout_log_probs"),
        versions=column(batch, "versions"),
        proximal=own("old_log_probs"),
        advantages=column(batch, "advantages"),
        weights=column(batch, "token_weights"),
        episodes=column(batch, "episodes"),
        sequence=own("sequence_log_ratios"),
        correction=own("rollout_is_weights"),
        kept=own("kept"),
    )
    return tokens, own("ref_log_prob")
