"""The same training by TRL's GRPOTrainer, in a process of its own.

    python -m rig.trl_training run FOLDER    trains what FOLDER/training.json says; writes FOLDER/trained.json

Model, tasks, reward, batch, groups, sampling, optimiser, clip and loss are the job's. A game of one answer goes
TRL's plain way: a data set of prompts and a reward function. A game of several goes through `rollout_func`, TRL's way
to a rollout of one's own: each turn is one padded `generate` over all plays that are not over, with the trainer's
own generation; hints enter as ids with `env_mask` 0. (`environment_factory` wants a model that writes tool calls.)
Everything TRL does beside (logging, checkpoints, progress bars, gradient checkpointing, bf16) is off. A pretrained
model is trained as BEST says, unless `trl` in training.json says otherwise: fields of GRPOConfig, and `attention` and
`weights` (their dtype) of the model.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from rig.workloads import Step, Trained
from swarm.environments.base import PlainEnvironment, PlainGame, Task, said
from swarm.job import Job, TinyModel

SEVERAL_TURNS = {"guess", "tool"}
"""Environments and workloads whose games ask more than once."""
BEST: Mapping[str, Mapping[str, Any]] = {
    "float32": {"per_device_train_batch_size": 8},
    "bfloat16": {"per_device_train_batch_size": 8, "bf16": True},
}
"""TRL's settings for a pretrained model by the job's dtype, the fastest found (`against_trl.py --tune`)."""


class Timed(GRPOTrainer):
    """GRPOTrainer that takes the time of its generation and of all it prepares a batch with, and counts ids."""

    generate_s = 0.0
    prepare_s = 0.0
    generate_ids = 0
    update_ids = 0

    def count(self, _: Any, __: Any, fields: Mapping[str, Any]) -> None:
        """Count the ids of a forward: those of an update have gradients."""
        part = "update_ids" if torch.is_grad_enabled() else "generate_ids"
        setattr(self, part, getattr(self, part) + fields["input_ids"].numel())

    def _generate(self, prompts: list[Any]) -> Any:
        began = time.perf_counter()
        try:
            return super()._generate(prompts)
        finally:
            self.generate_s += time.perf_counter() - began

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        began = time.perf_counter()
        try:
            return super()._prepare_inputs(generation_batch)
        finally:
            self.prepare_s += time.perf_counter() - began


class Clock(TrainerCallback):  # type: ignore[misc]
    """Writes down each step: when it was done, its parts, and the outcomes of its plays."""

    def __init__(self) -> None:
        self.trainer: Timed | None = None
        self.outcomes: list[tuple[float, bool]] = []
        self.steps: list[Step] = []
        self._began = self._last = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin."""
        self._began = self._last = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Take down a step."""
        assert self.trainer is not None
        now = time.perf_counter()
        rewards, successes = zip(*self.outcomes, strict=True)
        whole, trainer = now - self._last, self.trainer
        self.steps.append(
            Step(
                at=now - self._began,
                reward=sum(rewards) / len(rewards),
                success=sum(successes) / len(successes),
                generate_s=trainer.generate_s,
                update_s=whole - trainer.prepare_s,
                generate_ids=trainer.generate_ids,
                update_ids=trainer.update_ids,
                cpu_s=time.process_time(),
            )
        )
        self._last = now
        trainer.generate_s = trainer.prepare_s = 0.0
        trainer.generate_ids = trainer.update_ids = 0
        self.outcomes.clear()


@dataclass(slots=True)
class _Play:
    """A game on its way: what the model has read and said so far."""

    game: PlainGame
    ids: list[int]
    """All tokens after the prompt."""
    said: list[int]
    """1 for those the model sampled."""
    over: bool = False
    prompt: list[int] = field(default_factory=list)


class Rollout:
    """TRL's `rollout_func` for games of several turns."""

    def __init__(self, environment: PlainEnvironment, tokenizer: Any) -> None:
        self._environment = environment
        self._tokenizer = tokenizer
        self._tasks = {task.id: task for task in environment.tasks("train")}

    def __call__(self, prompts: Sequence[Any], trainer: Timed) -> dict[str, Any]:
        """Play one game for each prompt to its end."""
        plays = [self._begun(self._tasks[prompt[0]["task"]]) for prompt in prompts]
        while going := [play for play in plays if not play.over]:
            asked = [play.prompt + play.ids for play in going]
            answers, _ = trainer._generate_single_turn(asked, None, {}, trainer.num_generations)
            for play, answer in zip(going, answers, strict=True):
                self._answered(play, answer)
        outcomes = [play.game.outcome() for play in plays]
        return {
            "prompt_ids": [play.prompt for play in plays],
            "completion_ids": [play.ids for play in plays],
            "env_mask": [play.said for play in plays],
            "logprobs": None,  # generation is the trainer's own: it is on-policy, and TRL takes its own log-probs
            "worth": [(outcome.reward, bool(outcome.success)) for outcome in outcomes],
        }

    def _begun(self, task: Task) -> _Play:
        game = self._environment.game(task)
        return _Play(game, [], [], prompt=self._rendered(game.opening()))

    def _answered(self, play: _Play, answer: list[int]) -> None:
        play.ids += answer
        play.said += [1] * len(answer)
        hint = play.game.answer(said(self._tokenizer.decode(answer, skip_special_tokens=True)))
        play.over = not hint
        if hint:
            heard = self._following(hint)
            heard = heard[1:] if answer[-1] == heard[0] else heard  # the end of the answer, unless it was sampled
            play.ids += heard
            play.said += [0] * len(heard)

    def _rendered(self, messages: list[dict[str, Any]]) -> list[int]:
        return list(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    def _following(self, hint: list[dict[str, Any]]) -> list[int]:
        """Return what the template writes after an answer, from the end of that on."""
        asked = [{"role": "system", "content": "-"}, {"role": "user", "content": "-"}]
        options = {"tokenize": False, "add_generation_prompt": True}
        before = self._tokenizer.apply_chat_template(asked, **options) + "-"
        whole = self._tokenizer.apply_chat_template([*asked, said("-"), *hint], **options)
        return list(self._tokenizer.encode(whole.removeprefix(before), add_special_tokens=False))


def rewarder(environment: PlainEnvironment, clock: Clock) -> Callable[..., list[float]]:
    """Return TRL's reward function: what the game says, or what the rollout found."""
    tasks = {task.id: task for task in environment.tasks("train")}

    def judged(task: str, completion: Sequence[Mapping[str, str]]) -> tuple[float, bool]:
        game = environment.game(tasks[task])
        game.answer(said(completion[0]["content"]))
        outcome = game.outcome()
        return outcome.reward, bool(outcome.success)

    def reward(completions: list[Any], task: list[str], worth: Any = None, **_: Any) -> list[float]:
        found = worth or [judged(name, completion) for name, completion in zip(task, completions, strict=True)]
        clock.outcomes += found
        return [value for value, _ in found]

    return reward


def config(job: Job, folder: Path, settings: Mapping[str, Any]) -> GRPOConfig:
    """Return TRL's settings for a job."""
    defaults = {
        "bf16": False, "gradient_checkpointing": False, "per_device_train_batch_size": job.episodes_per_step,
        "use_cpu": True,
    }  # fmt: skip
    settings = {**defaults, **settings}
    return GRPOConfig(
        output_dir=str(folder / "trl"), fp16=False, use_vllm=False, seed=job.seed,
        gradient_accumulation_steps=job.episodes_per_step // settings["per_device_train_batch_size"],
        num_generations=job.group_size, num_iterations=1, max_steps=job.steps,
        max_completion_length=job.max_tokens, temperature=job.temperature, top_p=1.0, top_k=0,
        learning_rate=job.learning_rate, lr_scheduler_type=job.lr_schedule, warmup_steps=job.lr_warmup_steps,
        weight_decay=job.weight_decay, max_grad_norm=job.max_grad_norm, optim="adamw_torch_fused",
        epsilon=job.clip_ratio, beta=0.0, loss_type="grpo", scale_rewards="group",
        disable_dropout=True, dataloader_pin_memory=False,
        logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True, **settings,
    )  # fmt: skip


def steps_of_ids(
    model: Any, job: Job, prompts: Sequence[Sequence[int]], reward: Callable[[Sequence[int]], float],
    settings: Mapping[str, Any],
) -> list[Step]:  # fmt: skip
    """Train on prompts in ids, of which each step takes the next, by a reward of ids; no answer ends early."""
    words = {str(token): token for token in range(model.config.vocab_size)}
    end = str(len(words) - 1)
    plain = Tokenizer(WordLevel(words, unk_token=end))
    plain.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=end, pad_token=end, padding_side="left")
    clock = Clock()

    def rewards(completion_ids: list[list[int]], **_: Any) -> list[float]:
        found = [reward(ids) for ids in completion_ids]
        clock.outcomes += [(value, False) for value in found]
        return found

    settings = {**settings, "generation_kwargs": {"min_new_tokens": job.max_tokens}, "shuffle_dataset": False}
    rows = Dataset.from_list([{"prompt": " ".join(map(str, ids))} for ids in prompts])
    with TemporaryDirectory() as folder:
        clock.trainer = Timed(
            model=model, reward_funcs=rewards, args=config(job, Path(folder), settings), processing_class=tokenizer,
            train_dataset=rows, callbacks=[clock],
        )  # fmt: skip
        clock.trainer.train()
    return clock.steps


def _run(folder: Path) -> Trained:
    from peft import LoraConfig

    from rig.training import environment_of
    from swarm.backends.tiny_model import ensure_tiny

    order = json.loads((folder / "training.json").read_text())
    job = Job.model_validate(order["job"])
    torch.set_num_threads(1)
    settings: dict[str, Any] = {}
    if isinstance(job.model, TinyModel):
        model = str(ensure_tiny(job.model, job.environment, Path(order["models"])))
    else:
        model, settings = job.model.path, {**BEST[job.dtype], **order.get("trl", {})}
    attention, weights = settings.pop("attention", "sdpa"), getattr(torch, settings.pop("weights", "float32"))
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    environment, name = environment_of(order), order.get("workload") or job.environment
    clock, lora = Clock(), {"r": job.lora_rank, "lora_alpha": job.lora_alpha, "target_modules": "all-linear"}
    trainer = Timed(
        model=AutoModelForCausalLM.from_pretrained(model, attn_implementation=attention, dtype=weights),
        reward_funcs=rewarder(environment, clock),
        args=config(job, folder, settings),
        train_dataset=Dataset.from_list([_row(environment, task) for task in environment.tasks("train")]),
        processing_class=tokenizer,
        callbacks=[clock],
        rollout_func=Rollout(environment, tokenizer) if name in SEVERAL_TURNS else None,
        peft_config=LoraConfig(task_type="CAUSAL_LM", **lora) if job.lora_rank else None,
    )
    clock.trainer = trainer
    called = trainer.model.get_base_model() if job.lora_rank else trainer.model  # an adapter's generation calls that
    called.register_forward_pre_hook(trainer.count, with_kwargs=True)
    before = time.process_time()
    trainer.train()
    return Trained(tuple(clock.steps), time.process_time() - before)


def _row(environment: PlainEnvironment, task: Task) -> dict[str, Any]:
    """Return a task as a row: a `rollout_func` sees nothing but prompts, so that the task's name is in there too."""
    return {"prompt": [{**message, "task": task.id} for message in environment.game(task).opening()], "task": task.id}


if __name__ == "__main__":
    _run(Path(sys.argv[2])).write(Path(sys.argv[2]) / "trained.json")
