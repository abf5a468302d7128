"""The warm start: supervised imitation of an environment's mediocre scripted player.

It teaches the format and a policy that sometimes succeeds; reinforcement learning starts where it ends. Only
the train split is shown, and the loss is on the assistant's tokens alone. Given the same model, tokenizer,
environment, steps and seed on one machine, the weights come out the same, bit for bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import transformers

from swarm.backends.tiny.tokenizer import ASSISTANT, END, START
from swarm.environments import Demonstration, Environment
from swarm.timelines import normalise

_TOKENS_PER_STEP = 2048
_MUON_RATE, _ADAM_RATE = 0.02, 5e-3
_WARM_UP = 20
_IGNORED = -100

Progress = Callable[[int, int], None]
"""Told the steps done and the steps in all."""


def warm_start(
    model: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerFast,
    environment: Environment,
    *,
    steps: int,
    seed: int,
    progress: Progress | None = None,
) -> None:
    """Train `model` in place on `steps` batches of fresh plays by `environment.imitate`; none leave it as it is."""
    if not steps:
        return
    rng = random.Random(f"warm start {seed}")
    optimizers = _optimizers(model)
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, partial(_schedule, steps=steps)) for each in optimizers]
    model.train()
    with one_thread():
        for step in range(steps):
            _train_step(model, _batch(tokenizer, environment, rng), optimizers)
            for schedule in schedules:
                schedule.step()
            if progress is not None:
                progress(step + 1, steps)
    model.eval()


def _schedule(step: int, *, steps: int) -> float:
    return min(1.0, (step + 1) / _WARM_UP) * (1.0 - step / steps)


def _optimizers(model: transformers.PreTrainedModel) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside, AdamW for embeddings, head and norms: half the steps of AdamW alone."""
    inside = [p for name, p in model.named_parameters() if p.dim() == 2 and ".layers." in name]
    outside = [p for name, p in model.named_parameters() if not (p.dim() == 2 and ".layers." in name)]
    return [
        torch.optim.Muon(inside, lr=_MUON_RATE, weight_decay=0.0),
        torch.optim.AdamW(outside, lr=_ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def _train_step(
    model: transformers.PreTrainedModel,
    batch: tuple[torch.Tensor, torch.Tensor],
    optimizers: list[torch.optim.Optimizer],
) -> None:
    ids_BT, labels_BT = batch
    hidden_BTD = model.get_decoder()(input_ids=ids_BT, use_cache=False).last_hidden_state
    asked = labels_BT[:, 1:] != _IGNORED  # logits only where they count: the vocabulary is wider than the model
    logits_NV = model.get_output_embeddings()(hidden_BTD[:, :-1][asked])
    loss = torch.nn.functional.cross_entropy(logits_NV, labels_BT[:, 1:][asked])
    model.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread inside: sums in another order would give other weights."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _batch(
    tokenizer: transformers.PreTrainedTokenizerFast, environment: Environment, rng: random.Random
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = _demonstrations(tokenizer, environment, rng)
    length = max(len(row) for row in rows)
    ids = [row + [tokenizer.pad_token_id] * (length - len(row)) for row in rows]
    labels = [assistant_labels(tokenizer, row) + [_IGNORED] * (length - len(row)) for row in rows]
    return torch.tensor(ids), torch.tensor(labels)


def _demonstrations(
    tokenizer: transformers.PreTrainedTokenizerFast, environment: Environment, rng: random.Random
) -> list[list[int]]:
    """Return fresh plays of about `_TOKENS_PER_STEP` ids in all, so that a step costs the same in any environment."""
    tasks = environment.tasks("train")
    rows: list[list[int]] = []
    while sum(map(len, rows)) < _TOKENS_PER_STEP:
        rows += encode_plays(tokenizer, [environment.demonstrate(rng.choice(tasks), rng) for _ in range(16)])
    return rows


def encode_plays(tokenizer: transformers.PreTrainedTokenizerFast, plays: Sequence[Demonstration]) -> list[list[int]]:
    """Return the ids of each play as a server shows and samples them: the chat template's text, with its tools."""
    texts = [rendered(tokenizer, play) for play in plays]
    rows: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return rows


def rendered(tokenizer: transformers.PreTrainedTokenizerFast, play: Demonstration) -> str:
    """Return the chat template's text of a whole play, its messages in the form in which a server renders them."""
    messages = [normalise(message) for message in play.messages]
    tools: list[Any] = list(play.tools)
    return str(tokenizer.apply_chat_template(messages, tools=tools or None, tokenize=False))


def assistant_labels(tokenizer: transformers.PreTrainedTokenizerFast, ids: list[int]) -> list[int]:
    """Return `ids` with everything hidden but what the assistant says, its end token included."""
    start, end, role = (tokenizer.convert_tokens_to_ids(token) for token in (START, END, ASSISTANT))
    labels, speaking = [], False
    for position, token in enumerate(ids):
        labels.append(token if speaking else _IGNORED)
        if token == end:
            speaking = False
        elif position > 0 and token == role and ids[position - 1] == start:
            speaking = True
    return labels
