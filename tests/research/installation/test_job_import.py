"""Scripts of TRL's and configurations of verl's come to jobs that train what they do, or are refused."""

from __future__ import annotations

import dataclasses
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from research.errors import BadInput
from research.installation.job_import import TABLES, _flatten, import_job
from swarm.job import Job

SCRIPT = """
import trl
LR = 3e-6
config = trl.GRPOConfig("out", {config})
trainer = trl.GRPOTrainer("models/mine", reward, args=config, train_dataset=rows{trainer})
"""
GRPO = "algorithm.adv_estimator=grpo actor_rollout_ref.model.path=models/mine actor_rollout_ref.rollout.n=8"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def from_trl(folder: Path, config: str = "", trainer: str = "", rows: int | None = None) -> tuple[Job, dict[str, Any]]:
    path = folder / "train.py"
    path.write_text(SCRIPT.format(config=config, trainer=trainer))
    job, notes = import_job(path, None, rows)
    return Job.model_validate(job), {name: value for name, value, _ in notes}


def from_verl(folder: Path, words: str, rows: int | None = None) -> tuple[Job, dict[str, Any]]:
    path = folder / "verl.sh"
    path.write_text(words)
    job, notes = import_job(path, None, rows)
    return Job.model_validate(job), {name: value for name, value, _ in notes}


def test_what_a_script_leaves_to_trls_defaults_is_set(folder: Path) -> None:
    job, notes = from_trl(folder)
    said = {name: getattr(job, name) for name in (
        "learning_rate", "lr_schedule", "group_size", "episodes_per_step", "minibatches", "epochs", "loss_weighting",
        "kl_coef", "max_tokens", "dtype", "weight_decay", "gradient_checkpointing",
    )}  # fmt: skip
    assert said == {
        "learning_rate": 1e-6, "lr_schedule": "linear", "group_size": 8, "episodes_per_step": 8, "minibatches": 1,
        "epochs": 1, "loss_weighting": "token", "kl_coef": 0.0, "max_tokens": 512, "dtype": "bfloat16",
        "weight_decay": 0.0, "gradient_checkpointing": True,
    }  # fmt: skip
    assert notes.keys() >= {"steps", "per_device_train_batch_size", "vllm_max_model_length", "reward_funcs"}


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        ("learning_rate=LR, beta=0.04", {"learning_rate": 3e-6, "kl_coef": 0.04}),
        ("per_device_train_batch_size=4, gradient_accumulation_steps=4, max_steps=10",
         {"episodes_per_step": 16, "minibatches": 1, "steps": 10}),
        ("per_device_train_batch_size=4, steps_per_generation=8, num_iterations=2, max_steps=64, warmup_steps=16",
         {"episodes_per_step": 32, "minibatches": 8, "epochs": 2, "steps": 4, "lr_warmup_steps": 1}),
        ("generation_batch_size=64, max_steps=80, warmup_ratio=0.1",
         {"minibatches": 8, "steps": 10, "lr_warmup_steps": 1}),
        ("loss_type='dr_grpo', scale_rewards=False", {"algorithm": "dr_grpo"}),
        ("loss_type='grpo', importance_sampling_level='sequence', epsilon=3e-4, epsilon_high=4e-4",
         {"algorithm": "gspo", "loss_weighting": "episode", "clip_ratio": 3e-4, "clip_ratio_high": 4e-4}),
        ("lr_scheduler_type='constant', warmup_steps=5, max_steps=10",
         {"lr_schedule": "constant", "lr_warmup_steps": 0}),
        ("vllm_max_model_length=2048, scale_rewards='none'", {"max_context": 2048, "normalize_advantage": False}),
        ("mask_truncated_completions=True, delta=4.0, bf16=False",
         {"mask_truncated": True, "dual_clip": 4.0, "dtype": "float32"}),
        ("use_vllm=True, vllm_importance_sampling_correction=False", {"rollout_correction": "off"}),
    ],
)  # fmt: skip
def test_trls_arguments_come_to_fields(folder: Path, config: str, fields: dict[str, Any]) -> None:
    job, _ = from_trl(folder, config)
    assert {name: getattr(job, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("args = TrlParser((GRPOConfig,)).parse_args_and_config()\nGRPOTrainer('m', args=args)", "args=GRPOConfig"),
        ("from trl import GRPOConfig as C\nGRPOTrainer(model='m', args=C(learning_rate=5e-4))", "args=GRPOConfig"),
        ("a = GRPOConfig()\na.learning_rate = 5e-4\nGRPOTrainer(model='m', args=a)", "changed afterwards"),
        ("a = GRPOConfig()\nsetattr(a, 'learning_rate', 5e-4)\nGRPOTrainer(model='m', args=a)", "changed afterwards"),
        ("try:\n from mine import lr\nexcept ImportError:\n lr = 1e-6\n"
         "GRPOTrainer(model='m', args=GRPOConfig(learning_rate=lr))", "only a run knows"),
        ("lr = 1e-6\nfrom mine import *\nGRPOTrainer('m', args=GRPOConfig(learning_rate=lr))", "only a run knows"),
        ("GRPOTrainer(model='m', args=GRPOConfig())\nLoraConfig(r=16)", "peft_config=LoraConfig"),
        ("GRPOTrainer(model='m', args=GRPOConfig(gradient_accumulation_steps=0))", "zero"),
    ],
)  # fmt: skip
def test_a_script_whose_numbers_may_be_others_comes_to_no_job(folder: Path, text: str, told: str) -> None:
    (folder / "train.py").write_text(text)
    with pytest.raises(BadInput, match=told):
        import_job(folder / "train.py", None, 100)


def test_epochs_are_steps_once_the_rows_are_known(folder: Path) -> None:
    job, notes = from_trl(folder, "num_train_epochs=2, per_device_train_batch_size=32", rows=103)
    assert (job.steps, "steps" in notes) == (50, False)


def test_an_adapter_is_pefts(folder: Path) -> None:
    job, notes = from_trl(folder, trainer=", peft_config=LoraConfig(lora_alpha=64)")
    assert (job.lora_rank, job.lora_alpha, notes["target_modules"]) == (8, 64, None)


@pytest.mark.parametrize(
    ("config", "named"),
    [("top_p=0.9", "top_p"), ("reward_weights=[1.0, 2.0]", "reward_weights"), ("logging_steps=5", "logging_steps"),
     ("run_name=f'{LR}'", "run_name"), ("nobody_knows=1", "nobody_knows")],
)  # fmt: skip
def test_what_has_no_counterpart_is_named(folder: Path, config: str, named: str) -> None:
    assert named in from_trl(folder, config)[1]


@pytest.mark.parametrize(
    ("config", "trainer", "words"),
    [
        ("learning_rate=args.lr", "", "args.lr"),
        ("learning_rate=2 * LR", "", r"2 \* LR"),
        ("**more", "", r"\*\*more"),
        ("loss_type='vespo'", "", "vespo"),
        ("scale_rewards='batch'", "", "batch"),
        ("loss_type='dr_grpo'", "", "scaled"),
        ("num_generations=3", "", "multiple of group_size"),
        ("temperature=9", "", "temperature"),
        ("optim='adafactor'", "", "adafactor"),
        ("", ", peft_config=adapter", "LoraConfig"),
    ],
)
def test_what_no_job_trains_is_refused_in_one_line(folder: Path, config: str, trainer: str, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        from_trl(folder, config, trainer)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["x = 1", "def", "GRPOTrainer(model=make())", "GRPOConfig()\nGRPOConfig()", "LR = 1"])
def test_a_script_of_something_else_is_refused_and_none_is_run(folder: Path, text: str) -> None:
    (folder / "train.py").write_text(f"{text}\nopen({str(folder / 'ran')!r}, 'w')")
    with pytest.raises(BadInput):
        import_job(folder / "train.py", None, None)
    assert not (folder / "ran").exists()


def test_a_name_that_is_assigned_twice_is_no_value(folder: Path) -> None:
    (folder / "train.py").write_text(
        "LR = 1e-6\nfor LR in rates:\n    GRPOTrainer('m', args=GRPOConfig(learning_rate=LR))"
    )
    with pytest.raises(BadInput, match="LR"):
        import_job(folder / "train.py", None, None)


def test_verls_words_and_yaml_come_to_one_job(folder: Path) -> None:
    words = f"""n=8
    python3 -m verl.trainer.main_ppo {GRPO} \\
        data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=$n actor_rollout_ref.actor.optim.lr=1e-6 \\
        actor_rollout_ref.actor.use_kl_loss=True trainer.total_epochs=2 data.max_response_length=1024 $@"""
    job, notes = from_verl(folder, words, rows=1000)
    said = (
        job.episodes_per_step,
        job.minibatches,
        job.steps,
        job.max_context,
        job.kl_coef,
        job.dual_clip,
        job.weight_decay,
    )
    assert said == (512, 8, 30, 1536, 0.001, 3.0, 0.01)
    assert notes.keys() == {"data.train_files"}
    tree = {
        "algorithm": {"adv_estimator": "grpo"}, "data": {"train_batch_size": 64, "max_response_length": 1024},
        "actor_rollout_ref": {
            "model": {"path": "models/mine"}, "rollout": {"n": 8},
            "actor": {"ppo_mini_batch_size": 8, "optim": {"lr": "1e-6"}, "use_kl_loss": True},
        }, "trainer": {"total_epochs": 2},
    }  # fmt: skip
    (folder / "verl.yaml").write_text(yaml.safe_dump(tree))
    assert Job.model_validate(import_job(folder / "verl.yaml", None, 1000)[0]) == job


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("algorithm.adv_estimator=rloo", {"algorithm": "rloo", "group_size": 8}),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo", {"algorithm": "gspo", "dual_clip": None}),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gpg", {"backend": "verl", "dual_clip": None}),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", {"loss_weighting": "episode"}),
        ("algorithm.rollout_correction.rollout_is=token", {"rollout_correction": "truncate"}),
    ],
)  # fmt: skip
def test_verls_names_come_to_fields(folder: Path, words: str, fields: dict[str, Any]) -> None:
    rest = " ".join(word for word in GRPO.split() if word.partition("=")[0] not in words)
    job, _ = from_verl(folder, f"{rest} {words}")
    assert {name: getattr(job, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("data.train_batch_size=8", "adv_estimator"),
        (f"{GRPO} actor_rollout_ref.actor.optim.lr=$LR", "LR"),
        (f"{GRPO} actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov", "kl_cov"),
        (f"{GRPO} data.train_batch_size=100", "whole optimiser steps"),
        (f"{GRPO} {GRPO} algorithm.adv_estimator=rloo", "set again, to rloo"),
        (f"{GRPO} actor_rollout_ref.actor.ppo_mini_batch_size=null", "NoneType"),
        ("a.b=1", "fields of verl"),
    ],
)
def test_what_of_verls_no_job_trains_is_refused(folder: Path, words: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        from_verl(folder, words)


def test_the_table_has_verls_own_defaults() -> None:
    spec = find_spec("verl")
    if spec is None or spec.origin is None or version("verl") != "0.9.1":
        pytest.skip("verl 0.9.1 is not installed")
    path = Path(spec.origin).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml"
    theirs = {name: None if value == "null" else value for name, value in _flatten(yaml.safe_load(path.read_text()))}
    ours = {name: entry.get("default") for name, entry in TABLES["verl"]["fields"].items() if name in theirs}
    assert ours == {name: theirs[name] for name in ours}
    assert ours.keys() == TABLES["verl"]["fields"].keys()
    unknown = {start for start in TABLES["verl"]["apart"] if not any(name.startswith(start) for name in theirs)}
    assert unknown == {"defaults", "hydra."}  # of Hydra


@pytest.mark.slow  # imports TRL
def test_the_table_has_trls_and_pefts_own_defaults() -> None:
    trl, peft = pytest.importorskip("trl"), pytest.importorskip("peft")
    for config in (trl.GRPOConfig, peft.LoraConfig):
        theirs = {field.name: field.default for field in dataclasses.fields(config)}
        entries = TABLES[config.__name__]["fields"]
        ours = {name: entry["default"] for name, entry in entries.items() if "default" in entry}
        assert ours == {name: theirs[name] for name in ours}
        none = entries.keys() - ours.keys()
        assert {name for name in none if theirs[name] not in (None, dataclasses.MISSING)} == set()
        apart = tuple(TABLES[config.__name__]["apart"])
        assert [beginning for beginning in apart if not any(name.startswith(beginning) for name in theirs)] == []
