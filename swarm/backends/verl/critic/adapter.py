"""Every touch of verl's own names that is the critic's, pinned to 0.9 as `learning.adapter` is.

What is touched: the engine of `value_model`, the function that loads its model, `compute_gae_advantage_return` and
`compute_value_loss`. A *sequence* of verl's is an episode here, as in `learning.named`.
Promises: the critic begins as the policy's model with a head of one number, drawn from the job's seed alone, whatever
the number of ranks; a loss is the sum over tokens of weight times verl's term, so that parts add up.
Knows nothing of Ray.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from swarm.backends.protocols import BackendError
from swarm.backends.verl.learning import adapter
from swarm.backends.verl.learning.named import Sequences
from swarm.job import Job
from swarm.verl_fields import CriticFields, VerlFields


def fields(job: Job) -> CriticFields:
    """Return what a job says of its critic."""
    return (job.verl or VerlFields()).critic or CriticFields()


def engine(folder: Path, job: Job, device: str) -> Any:
    """Return verl's engine for a critic, made and sharded over the ranks of the group; all of them must call it.

    All of it learns, an adapter of the policy's notwithstanding.
    """
    own = job.model_copy(update={"lora_rank": 0, "learning_rate": fields(job).learning_rate})
    made = adapter.worker(folder, own, device, "value_model")
    with _with_a_head(job.seed):
        adapter.loaded(made)
    return made.engine


@contextmanager
def _with_a_head(seed: int) -> Iterator[None]:
    """Have verl load critics by `_critic`, and draw what their folder lacks from `seed`."""
    from verl.utils import model

    kept, model.load_valuehead_model = model.load_valuehead_model, _critic
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        model.load_valuehead_model = kept


def _critic(local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool) -> Any:
    """Return a model with a head of one number: verl's own function wants flash attention, whatever the job's model."""
    from transformers import AutoModelForTokenClassification

    require_critic(model_config)
    return AutoModelForTokenClassification.from_pretrained(
        local_path, dtype=torch_dtype, config=model_config, trust_remote_code=trust_remote_code
    )


def require_critic(model_config: Any) -> None:
    """Raise BackendError where transformers has no model of that kind with a head for each place."""
    from transformers import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

    if type(model_config) not in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING:
        raise BackendError(
            f"verl.advantage_estimator gae: transformers has no token classification of {model_config.model_type}, "
            "which a critic would be; take reinforce_plus_plus"
        )
    if hasattr(type(model_config), "hidden_dropout"):  # which verl sets to a text, and transformers refuses
        raise BackendError(
            f"verl.advantage_estimator gae: verl 0.9.1 makes no critic of {model_config.model_type}, whose dropout it "
            "sets to what the model does not take; take reinforce_plus_plus"
        )


def values(engine: Any, batch: TensorDict) -> Tensor:
    """Return the values, jagged over the batch's ids, of what each id leads to: of the next one, before it is there."""
    with adapter.computing(engine, engine.eval_mode()):
        found: Tensor = engine.infer_batch(batch)["model_output"]["values"].cpu()
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Estimated:
    """Advantages (M,) of tokens, whitened by verl over all of them, and returns (M,), which their values are to be."""

    advantages: Tensor
    returns: Tensor


def estimated(job: Job, rewards: Sequence[float], values: Tensor, episodes: Tensor) -> Estimated:
    """Return verl's estimate for the M > 0 tokens of a batch: their values, and the numbers of their episodes.

    An episode's reward is at the last token that was sampled in it; what others said in between is not there.
    """
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    sequences, own = Sequences(episodes), fields(job)
    mask = sequences.padded(torch.ones_like(episodes))
    scores = torch.zeros(mask.shape)
    scores[torch.arange(len(mask)), mask.sum(1) - 1] = torch.tensor(rewards)[episodes.unique()]
    try:
        found = compute_gae_advantage_return(scores, sequences.padded(values), mask, own.discount, own.gae_lambda)
    except ValueError as error:  # what verl raises for a batch that it cannot whiten
        raise BackendError(f"verl.advantage_estimator gae: verl refused the batch: {error}") from error
    return Estimated(*map(sequences.flat, found))


def value_loss(job: Job, present: Tensor, before: Tensor, returns: Tensor, weights: Tensor) -> tuple[Tensor, float]:
    """Return verl's loss () of M > 0 tokens, and the part of them that it clipped; all arguments are (M,).

    present: values with gradient; before: those that the update began with; weights: what each token weighs.
    """
    from verl.trainer.ppo.core_algos import compute_value_loss

    clip, mode = fields(job).clip_range, "token-sum"
    loss: Tensor = compute_value_loss(present, returns, before, weights, clip, mode)[0]
    clipped = compute_value_loss(present.detach(), returns, before, torch.ones_like(weights), clip, mode)[1]
    return loss, float(clipped)
