"""Tiny models made on the spot: a standard Hugging Face Llama with its tokenizer, warm-started, cached by hash.

    python -m swarm.backends.tiny.model --environment guess --models DIR [--spec JSON]

Promises: the folder is in Hugging Face's format (config, safetensors, tokenizer, chat template) and whole or
absent; the same spec, environment and code version name the same folder; processes that ask at once make it
once. Does not know about jobs, servers or training: it ends where reinforcement learning begins.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sys
from pathlib import Path

import torch
import transformers
from transformers.utils.logging import disable_progress_bar

from swarm.backends.made_once import made_once, print_made
from swarm.backends.protocols import BackendError
from swarm.backends.tiny.number_codes import number_codes
from swarm.backends.tiny.tokenizer import CALL_MARKS, END, LARGEST_NUMBER, START, build_tokenizer
from swarm.backends.tiny.warm_start import Progress, one_thread, rendered, warm_start
from swarm.environments import Environment, get_environment
from swarm.environments.registry import look_in
from swarm.job import TINY_CONTEXT, TinyModel

_VERSION = 3
"""Raise it when a change of code (player, tokenizer, recipe) gives other weights for the same spec.

A change of the template alone does not: a folder that an earlier version made goes on being used with its own template
(the first one knew no tools), so that interrupted trainings and studies see no other prompts. Delete it for another.
"""

_VOCABULARY_PLAYS = 200
_BETWEEN_MARKS = re.compile("|".join(map(re.escape, (START, END))))


def tiny_hash(spec: TinyModel, environment: str) -> str:
    """Return the name of the model's folder: 16 hex digits of a hash over spec, environment and code version."""
    parts = {"version": _VERSION, "environment": environment, "spec": spec.value()}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def require_context(max_context: int) -> None:
    """Raise BackendError where a job wants longer sequences than a tiny model takes."""
    if max_context > TINY_CONTEXT:
        raise BackendError(
            f"expected a max_context of at most {TINY_CONTEXT}, as many as a tiny model has positions, found "
            f"{max_context}: set max_context to {TINY_CONTEXT} or less, or name a model with more"
        )


def ensure_tiny(spec: TinyModel, environment: str, models: Path, progress: Progress | None = None) -> Path:
    """Return the folder of the model `spec` describes under `models`, making it if it is not there yet.

    `progress` is told (steps done, steps in all) while the warm start runs, and nothing when the model is
    there. Raises InvalidRequest for an unknown environment, and OSError when `models` cannot be written.
    """
    folder = models / tiny_hash(spec, environment)
    if folder.is_dir():  # nobody needs its environment any more
        return folder
    world = get_environment(environment)
    return made_once(folder, lambda scratch: _make(spec, world, scratch, progress))


def _make(spec: TinyModel, environment: Environment, folder: Path, progress: Progress | None) -> None:
    tokenizer = _tokenizer(environment)
    model = _initial(spec, tokenizer)
    warm_start(model, tokenizer, environment, steps=spec.warm_start_steps, seed=spec.seed, progress=progress)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(environment: Environment) -> transformers.PreTrainedTokenizerFast:
    """Return the tokenizer of the words in plays: what is said, and where there are tools what the template writes."""
    rng = random.Random(0)
    tasks = environment.tasks("train")
    plays = [environment.demonstrate(rng.choice(tasks), rng) for _ in range(_VOCABULARY_PLAYS)]
    if not any(play.tools for play in plays):
        return build_tokenizer((str(message["content"]) for play in plays for message in play.messages), TINY_CONTEXT)
    bytes_alone = build_tokenizer((), TINY_CONTEXT)
    texts = [text for play in plays for text in _BETWEEN_MARKS.split(rendered(bytes_alone, play))]
    return build_tokenizer(texts, TINY_CONTEXT, CALL_MARKS)


def _initial(spec: TinyModel, tokenizer: transformers.PreTrainedTokenizerFast) -> transformers.LlamaForCausalLM:
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=spec.hidden_size,
        intermediate_size=2 * spec.hidden_size,
        num_hidden_layers=spec.layers,
        num_attention_heads=max(1, spec.hidden_size // spec.head_size),
        num_key_value_heads=max(1, spec.hidden_size // spec.head_size),
        head_dim=spec.head_size,
        max_position_embeddings=TINY_CONTEXT,
        tie_word_embeddings=False,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(spec.seed)
        model = transformers.LlamaForCausalLM(config)
        _order_numbers(model, tokenizer)
    return model


@torch.no_grad()
def _order_numbers(model: transformers.LlamaForCausalLM, tokenizer: transformers.PreTrainedTokenizerFast) -> None:
    ids = [tokenizer.convert_tokens_to_ids(str(number)) for number in range(LARGEST_NUMBER + 1)]
    for table in (model.model.embed_tokens.weight, model.lm_head.weight):
        table[ids] = number_codes(len(ids), table.shape[1])


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m swarm.backends.tiny.model", description="Make a tiny model.")
    parser.add_argument("--environment", required=True, help="the environment whose player it imitates")
    parser.add_argument("--models", required=True, type=Path, help="folder of models; made if missing")
    parser.add_argument("--environments", type=Path, help="folder of environments that were brought")
    parser.add_argument("--spec", default="{}", help="JSON of a job's tiny model; defaults where left out")
    return parser.parse_args(arguments)


def _print_progress(done: int, of: int) -> None:
    if done % 50 == 0 or done == of:
        sys.stdout.write(f"warm start {done}/{of}\n")
        sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Make the model the command line names and print its folder; return the exit code (2: bad input)."""
    given = _arguments(arguments)
    disable_progress_bar()
    if given.environments is not None:
        look_in(given.environments)
    return print_made(
        lambda: ensure_tiny(
            TinyModel.model_validate_json(given.spec), given.environment, given.models, _print_progress
        ),
        "--spec to be a tiny model's JSON",
    )


if __name__ == "__main__":
    sys.exit(main())
