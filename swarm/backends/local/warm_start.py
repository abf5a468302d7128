"""Warm starts: models imitate an environment's demonstrations, cached by hash.

    python -m swarm.backends.local.warm_start --models DIR --job JSON [--environments DIR]    a tiny one's too

The folder is whole or absent, with the model's own files but fp32 weights, so that no small step is lost; processes
that ask at once make it once. A demonstration enters a call tree as though the model had said it, so prompts,
continuations and mask are a server's own; an answer must be one that the server reads back with the same calls.
"""

import argparse
import hashlib
import json
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.utils.logging import disable_progress_bar

from swarm.backends.local.loading import load_policy
from swarm.backends.local.micro_batch import split_rows
from swarm.backends.tiny_model import Progress, build_once, ensure_tiny
from swarm.environments import Demonstration, Environment, get_environment
from swarm.environments.registry import add_folder
from swarm.errors import InvalidRequest
from swarm.job import Job, PathModel, TinyModel
from swarm.models import folder_hash, model_place, require_model_folder
from swarm.rendering.messages import BackendError, Message, assemble_answer
from swarm.rendering.renderer import HFRenderer, load_renderer
from swarm.timelines import CallTree, Prompt, linear_rows, normalise
from swarm.timelines.node import TrainRow


def demonstration_rows(renderer: HFRenderer, play: Demonstration) -> tuple[TrainRow, ...]:
    """Return a demonstration's rows, `sampled` what to imitate; BackendError where the template cannot write it."""
    tree = CallTree(renderer)
    for number, message in enumerate(play.messages):
        if message["role"] == "assistant":
            prompt = tree.prompt(play.messages[:number], play.tools)
            ids = _answer_ids(renderer, play, number)
            text = renderer.decode(ids[:-1], special=True)
            _require_round_trip(renderer, play, prompt, message, text)
            tree.keep(prompt, tree.make_node(prompt, ids, [0.0] * len(ids), [0] * len(ids), text=text), message)
    return linear_rows(tree.nodes)


def _answer_ids(renderer: HFRenderer, play: Demonstration, number: int) -> list[int]:
    plain = [normalise(message) for message in play.messages[: number + 1]]
    asked = renderer.render(plain[:-1], tools=play.tools, generation_prompt=True)
    told = renderer.render(plain, tools=play.tools, generation_prompt=False)
    if not told.startswith(asked):
        raise BackendError(
            f"expected a chat template that writes an answer behind its prompt; found {told[-60:]!r} behind "
            f"{asked[-60:]!r}; mend the template, or train without warm_start_steps"
        )
    ids = renderer.encode(told[len(asked) :])
    end = next((place for place, token in enumerate(ids) if token in renderer.stop_ids), None)
    return [*ids, renderer.eos_id] if end is None else ids[: end + 1]


def _require_round_trip(renderer: HFRenderer, play: Demonstration, prompt: Prompt, answer: Message, text: str) -> None:
    wanted = [call["function"]["name"] for call in answer.get("tool_calls") or ()]
    reader = renderer.answers.reader(prompt.prompt_text, list(play.tools))
    found = [call.name for call in assemble_answer([*reader.feed(text), *reader.finish()]).tool_calls]
    unseen = [
        name
        for name in [tool["function"]["name"] for tool in play.tools]
        if prompt.parent is None and name not in prompt.prompt_text
    ]
    if unseen or found != wanted:
        what = f"no word of the tool {unseen[0]}" if unseen else f"{text!r:.80} for a call of {', '.join(wanted)}"
        raise BackendError(
            f"expected a chat template that writes tools and their calls, as the demonstrations have them; found "
            f"{what}; choose a model whose template knows tools, or train without warm_start_steps"
        )


LEARNING_RATE = 2e-5
"""Usual for fine-tuning of models of 0.1 to 10 billion weights; a tiny one would hardly move."""
WARM_UP = 10
"""Steps over which it rises; after them it falls along a line to 0."""
TOKENS_AT_ONCE = 4096
"""Ids of one forward, padding included; a step of more takes several."""


def _sum_loss(model: Any, rows: Sequence[TrainRow]) -> Tensor:
    columns = [(row.ids, row.sampled, [1] * len(row.ids)) for row in rows]
    ids_BT, imitated_BT, attended_BT = (
        pad_sequence([torch.tensor(column) for column in same], batch_first=True).to(next(model.parameters()).device)
        for same in zip(*columns, strict=True)
    )
    hidden_BTD = model.get_decoder()(input_ids=ids_BT, attention_mask=attended_BT, use_cache=False).last_hidden_state
    asked = imitated_BT[:, 1:] == 1
    logits_NV = model.get_output_embeddings()(hidden_BTD[:, :-1][asked]).float()
    return torch.nn.functional.cross_entropy(logits_NV, ids_BT[:, 1:][asked], reduction="sum")


_VERSION = 1
"""Raise it when a change of the recipe gives other weights for the same model, environment and steps."""
PLAYS_PER_STEP = 16
_TRIES = 200
"""Demonstrations drawn in a row that may be longer than the context before it is said to be too short."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".safetensors.index.json", ".bin.index.json")


def ensure_warm_start(job: Job, models: Path, progress: Progress | None = None) -> Path:
    """Return the folder under `models` of a job's warm-started model, made with `progress` if need be.
    InvalidRequest without environment or demonstrations, BackendError for an unfit model or template, OSError."""
    spec = job.model
    if not isinstance(spec, PathModel):
        raise TypeError(f"expected a model from a path, found {spec.kind}")
    require_model_folder(source := model_place(spec.path, models))
    world = get_environment(job.environment)
    if not world.has("imitate"):
        raise InvalidRequest(
            f"expected demonstrations of {job.environment} for warm_start_steps {spec.warm_start_steps}; it has none; "
            "give the environment `imitate`, or set warm_start_steps to 0"
        )
    renderer = load_renderer(source)
    next(_batches(renderer, world, job))  # what is wrong with template or demonstrations shows before weights are read
    parts = {
        "version": _VERSION, "model": folder_hash(source), "environment": job.environment,
        "steps": spec.warm_start_steps, "max_context": job.max_context,
    }  # fmt: skip
    name = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    return build_once(models / name, lambda scratch: _make(job, source, renderer, scratch, progress))


def _batches(renderer: HFRenderer, environment: Environment, job: Job) -> Iterator[Sequence[TrainRow]]:
    tasks, rng = environment.tasks("train"), random.Random("imitation")

    def play() -> Sequence[TrainRow]:
        for _ in range(_TRIES):
            rows = demonstration_rows(renderer, environment.demonstrate(rng.choice(tasks), rng))
            if rows and all(len(row.ids) <= job.max_context for row in rows):
                return rows
        raise BackendError(
            f"expected demonstrations of {environment.name} within max_context {job.max_context}; found {_TRIES} that "
            "are longer, or without answers; raise max_context"
        )

    while True:
        yield [row for _ in range(PLAYS_PER_STEP) for row in play()]


def _make(job: Job, source: Path, renderer: HFRenderer, folder: Path, progress: Progress | None) -> None:
    whole = job.model_copy(update={"lora_rank": 0, "dtype": "float32", "kl_coef": 0.0})
    model, steps = load_policy(source, whole, ids=renderer.ids).model, job.model.warm_start_steps
    batches = _batches(renderer, get_environment(job.environment), job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARM_UP) * (1.0 - step / steps)
    )
    model.train()
    for step in range(steps):
        rows = next(batches)
        imitated = sum(sum(row.sampled) for row in rows)
        model.zero_grad()
        for part in split_rows(rows, TOKENS_AT_ONCE):
            (_sum_loss(model, part) / imitated).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if progress is not None:
            progress(step + 1, steps)
    model.eval()
    model.save_pretrained(folder)
    for path in source.iterdir():
        if path.is_file() and path.name != "config.json" and not path.name.endswith(_WEIGHTS) and path.name[0] != ".":
            shutil.copyfile(path, folder / path.name)


def main(arguments: list[str] | None = None) -> int:
    """Make the model that the job in the command line trains, and print steps, then its folder; return the code."""
    parser = argparse.ArgumentParser(prog="python -m swarm.backends.local.warm_start", description="Make a model.")
    parser.add_argument("--job", required=True, help="the job as JSON")
    parser.add_argument("--models", required=True, type=Path, help="folder of models; made if missing")
    parser.add_argument("--environments", type=Path, help="folder of environments that were brought")
    given = parser.parse_args(arguments)
    disable_progress_bar()
    if given.environments is not None:
        add_folder(given.environments)

    def print_progress(done: int, of: int) -> None:
        if 50 * done // of > 50 * (done - 1) // of:  # some 50 lines at most
            print(f"warm start {done}/{of}", flush=True)  # noqa: T201

    try:
        job = Job.from_record(given.job)
        if isinstance(job.model, TinyModel):
            folder = ensure_tiny(job.model, job.environment, given.models, print_progress)
        else:
            folder = ensure_warm_start(job, given.models, print_progress)
    except ValidationError as error:
        first = error.errors()[0]
        why = f"expected --job to be a job's JSON; found {first['msg']} at {first['loc']}"
    except (InvalidRequest, BackendError, OSError) as error:
        why = str(error)
    else:
        print(folder, flush=True)  # noqa: T201
        return 0
    sys.stderr.write(f"{' '.join(why.split())}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
