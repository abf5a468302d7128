"""Imitation learning on rows: AdamW with the step size that fine-tuning of real models takes.

The loss is the mean cross-entropy of the imitated ids. Promises: memory is bounded by the model and
`TOKENS_AT_ONCE`, or the longest row; logits are made only where they count. Knows nothing of environments or files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from swarm.backends.protocols import TrainRow

LEARNING_RATE = 2e-5
"""Usual for fine-tuning of models of 0.1 to 10 billion weights; a tiny one would hardly move."""
WARM_UP = 10
"""Steps over which it rises; after them it falls along a line to 0."""
TOKENS_AT_ONCE = 4096
"""Ids of one forward, padding included; a step of more takes several."""
_IGNORED = -100

Progress = Callable[[int, int], None]
"""Told the steps done and the steps in all."""


def imitate(
    model: Any,
    draw: Callable[[], Sequence[TrainRow]],
    *,
    steps: int,
    learning_rate: float = LEARNING_RATE,
    progress: Progress | None = None,
) -> None:
    """Train `model` in place on `steps` batches, each of which `draw` gives."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARM_UP) * (1.0 - step / steps)
    )
    model.train()
    for step in range(steps):
        _step(model, draw(), optimizer)
        schedule.step()
        if progress is not None:
            progress(step + 1, steps)
    model.eval()


@torch.no_grad()
def loss_of(model: Any, rows: Sequence[TrainRow]) -> float:
    """Return the mean cross-entropy of the imitated ids in rows."""
    return sum(float(_summed(model, part)) for part in _parts(rows)) / _asked(rows)


def _step(model: Any, rows: Sequence[TrainRow], optimizer: torch.optim.Optimizer) -> None:
    model.zero_grad()
    for part in _parts(rows):
        (_summed(model, part) / _asked(rows)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _summed(model: Any, rows: Sequence[TrainRow]) -> Tensor:
    """Return the sum of the cross-entropies of the imitated ids."""
    length, device = max(len(row.ids) for row in rows), next(model.parameters()).device
    ids_BT = torch.tensor([[*row.ids, *[0] * (length - len(row.ids))] for row in rows], device=device)
    labels_BT = torch.tensor([_labels(row, length) for row in rows], device=device)[:, 1:]
    attended_BT = torch.tensor([[1] * len(row.ids) + [0] * (length - len(row.ids)) for row in rows], device=device)
    hidden_BTD = model.get_decoder()(input_ids=ids_BT, attention_mask=attended_BT, use_cache=False).last_hidden_state
    asked = labels_BT != _IGNORED
    logits_NV = model.get_output_embeddings()(hidden_BTD[:, :-1][asked]).float()
    return torch.nn.functional.cross_entropy(logits_NV, labels_BT[asked], reduction="sum")


def _labels(row: TrainRow, length: int) -> list[int]:
    own = [token if sampled else _IGNORED for token, sampled in zip(row.ids, row.sampled, strict=True)]
    return own + [_IGNORED] * (length - len(own))


def _asked(rows: Sequence[TrainRow]) -> int:
    return sum(sum(row.sampled) for row in rows)


def _parts(rows: Sequence[TrainRow]) -> Iterator[Sequence[TrainRow]]:
    """Yield the rows in parts that fit a forward, the longest with the longest."""
    part: list[TrainRow] = []
    for row in sorted(rows, key=lambda row: -len(row.ids)):
        if part and (len(part) + 1) * len(part[0].ids) > TOKENS_AT_ONCE:
            yield part
            part = []
        part.append(row)
    if part:
        yield part
