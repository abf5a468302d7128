"""From a batch's episodes to rows of ids, and from those to flat tensors.

Promises: every sampled token of every episode that weighs something appears once, with what was captured of it; nothing
is dropped, whatever the sizes; a row is cut after its last sampled token, for nothing later is trained.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from swarm.backends.protocols import TrainEpisode
from swarm.rendering.messages import BackendError
from swarm.timelines.node import TrainRow


@dataclass(slots=True, eq=False)
class Row:
    """One row to train: `ids` (T,) are fed to the model, which at `places` (K,) predicts the sampled `targets` (K,).
    episode: its episode's number in the batch. rollout, versions (K,): the engine's log-probs of the targets and the
    policy versions it had. proximal, reference (K,): their log-probs under the weights the update began with and under
    the frozen reference, once somebody computed them. The rest is as `Tokens` has it."""

    episode: int
    ids: Tensor
    places: Tensor
    targets: Tensor
    rollout: Tensor
    versions: Tensor
    proximal: Tensor | None = None
    reference: Tensor | None = None
    calls: Tensor | None = None
    """(K,): the call of each target, where its episode's calls have rewards of their own."""
    advantages: Tensor | None = None
    """(K,): those of the targets, where the tokens of their episode differ in them."""
    sequence: Tensor | None = None
    correction: Tensor | None = None
    kept: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The M sampled tokens of some rows, row by row; every tensor is (M,). targets: their ids; rollout, versions:
    log-probs and policy versions when they were sampled; proximal: log-probs under the weights the update began with;
    weights: their part in the loss; episodes: their episode's number in the batch; sequence: the mean log ratio of all
    tokens of their episode, where that is spread over several micro-batches; correction, kept: off-policy factors, and
    which tokens they did not reject (bool), where these were computed apart."""

    targets: Tensor
    rollout: Tensor
    versions: Tensor
    proximal: Tensor | None
    advantages: Tensor
    weights: Tensor
    episodes: Tensor
    sequence: Tensor | None = None
    correction: Tensor | None = None
    kept: Tensor | None = None


def train_rows(episodes: Sequence[TrainEpisode]) -> list[list[Row]]:
    """Return the rows of each episode; rows without sampled tokens vanish. BackendError for one that makes no sense."""
    return [
        [_row(number, episode, row) for row in episode.rows if any(row.sampled)]
        for number, episode in enumerate(episodes)
    ]


def _row(number: int, episode: TrainEpisode, row: TrainRow) -> Row:
    lengths = [len(row.ids), len(row.sampled), len(row.logprobs), len(row.versions)]
    if len(set(lengths)) != 1 or row.sampled[0]:
        raise BackendError(
            f"episode {episode.episode_id}: expected a row whose ids, sampled, logprobs and versions are equally long "
            f"and whose first id is given, found lengths {', '.join(map(str, lengths))}"
        )
    # numpy reads a long tuple five times as fast as torch, and does little to a short one in less time
    ids, found = np.array(row.ids, np.int64), np.array(row.sampled, np.bool_).nonzero()[0]
    rollout = np.array(row.logprobs, np.float32)[found]
    finite = np.isfinite(rollout)
    if not finite.all():
        raise BackendError(
            f"episode {episode.episode_id}: expected a finite log-prob of each sampled token, found "
            f"{rollout[~finite][0]}: the update was refused and the weights are as before"
        )
    return Row(
        calls=torch.tensor(row.calls)[torch.from_numpy(found)] if row.calls else None, episode=number,
        ids=torch.from_numpy(ids[: found[-1]]), places=torch.from_numpy(found - 1),
        targets=torch.from_numpy(ids[found]), rollout=torch.from_numpy(rollout),
        versions=torch.from_numpy(np.array(row.versions, np.int64)[found]),
    )  # fmt: skip


def tokens_by_call(rows: Sequence[Row]) -> dict[int, int]:
    """Return the sampled tokens of an episode's rows by call; all under -1 where nobody asked for calls."""
    counts: Counter[int] = Counter()
    for row in rows:
        counts.update([-1] * len(row.targets) if row.calls is None else row.calls.tolist())
    return dict(counts)


def flatten_tokens(
    rows: Sequence[Row], advantages: Sequence[float], weights: Sequence[float], device: torch.device
) -> Tokens:
    """Return the tokens of rows, row by row, with the advantage and the token weight of each one's episode."""
    counts = torch.tensor([len(row.targets) for row in rows])
    numbers = torch.tensor([row.episode for row in rows])
    valued = torch.tensor(advantages)[numbers].repeat_interleave(counts)
    if any(row.advantages is not None for row in rows):
        pairs = zip(rows, valued.split(counts.tolist()), strict=True)
        valued = torch.cat([whole if row.advantages is None else row.advantages for row, whole in pairs])

    def own(name: str) -> Tensor | None:
        parts = [part for row in rows if (part := getattr(row, name)) is not None]
        return torch.cat(parts).to(device) if len(parts) == len(rows) else None

    return Tokens(
        targets=torch.cat([row.targets for row in rows]).to(device),
        rollout=torch.cat([row.rollout for row in rows]).to(device),
        versions=torch.cat([row.versions for row in rows]).to(device), proximal=own("proximal"),
        advantages=valued.to(device), weights=torch.tensor(weights)[numbers].repeat_interleave(counts).to(device),
        episodes=numbers.repeat_interleave(counts).to(device), sequence=own("sequence"), correction=own("correction"),
        kept=own("kept"),
    )  # fmt: skip
