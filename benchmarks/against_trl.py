"""How fast are whole GRPO steps, and does each teach as much, beside TRL's GRPOTrainer?

    python benchmarks/against_trl.py            about six minutes
    python benchmarks/against_trl.py --quick    few steps, one seed: times only, no interval
    python benchmarks/against_trl.py --json     also writes benchmarks/results/against_trl.{json,svg}
    python benchmarks/against_trl.py --check    exit code 1 unless the goals below are met
    python benchmarks/against_trl.py --model smollm2-135m            a pretrained model: all contests, 40 minutes
    python benchmarks/against_trl.py --model DIR --only shared       one contest (again: --only own ...)
    python benchmarks/against_trl.py --model smollm2-135m --tune     TRL's settings, for `shared` or those of --only

Real model (--model)
--------------------
Whole steps of 64 episodes, groups of 8, at most 8 tokens a call, temperature 1, last words of lines of three, of
SmolLM2-135M (`ajet model fetch smollm2-135m`) or another, by a swarm server and a client (two processes) and by TRL:

    shared   six examples as turns of the chat before each question, the same for all tasks; goal 30 times TRL's rate
    own      each task has six examples of its own, so that only its group shares a prompt; goal 7
    tool     8 calls in a conversation, a new line after each, which is a tool in words alone: no schema, no parsing of
             calls; TRL plays it by `rollout_func`; goal 12, missed: what plays say themselves is learned either way,
             on 2026-11-30 4,715 ids of an update where TRL had 13,248
    lora     `shared` with LoRA 16 on all linear layers; goal 20
    bf16     `shared` with dtype bfloat16 (TRL: see below); goal 6; for a processor that multiplies in bfloat16, which
             none had on which these figures were made: there TRL takes hours

A step of TRL takes minutes, so it makes 2 and ajet 8 (`tool`: 4; --quick: 2); the first of each is in no time, but its
reward, made by the untrained weights, is the first of `reward`. The second tells what one update taught, for both, and
the last what all of ajet's did.
Ids are those that the model was fed in a step, padding included. CPU seconds are of all processes and all steps.

TRL at its best (`rig.trl_training.BEST`; --tune times the alternatives on 16 episodes, and the result file has them):
fp32 weights, sdpa, no gradient checkpointing, its own generation of a whole batch with a dynamic cache, and updates in
micro-batches of 8 rows. TRL shuffles the rows of a batch and pads them to its longest before it cuts it, so that no
micro-batch is a group. CPU seconds of a step of 8 episodes, one try each on a loaded machine: 19.7 by eights, 26.8 by
fours; a first step of 16 took 46 by sixteens. By arithmetic, not tried: by eights that would take as long; 64 rows at
once want more than 24 GB; AdamW on weights in bfloat16 loses such small updates to rounding, so that in `bf16` TRL has
its autocast over fp32 weights, where ajet has bfloat16 weights over fp32 masters. Liger's kernels need a GPU; vLLM,
with which TRL can generate, was not tried.

Tiny model
----------
`arith` has one turn, `guess` up to four. Three train the same tiny model on the same tasks, 128 episodes in groups of 8
a step, one after another in turns, each with one torch thread in fp32 on the CPU:

- `trl`: GRPOTrainer with `generate` (no vLLM); a game of several turns through its `rollout_func`;
- `ajet`: the real thing, a swarm server with its durable store and the built-in agent behind HTTP, two processes;
- `ajet, no server`: its engine, call trees and learner in one process.

Same temperature, most tokens a call, learning rate, AdamW, gradient clipping, clip ratio and loss (mean over episodes
of the mean over their sampled tokens; advantage over the group's standard deviation).

What is not the same: ajet's two processes may use two cores (CPU seconds a step are printed); it writes every token to
disk before it is answered, and a checkpoint at the end (in CPU seconds alone); it takes the log-probs of the time of
sampling as old ones, where TRL, which knows that it is on-policy, takes its own again. TRL generates a batch at once,
which suits games of one short answer; it reads the whole history of each play again every turn. Its gradient
checkpointing, bf16, logging and checkpoints, on by default, are off; its tasks come in another order. Booting and
importing is in no figure.

Goals: at least 0.8 times TRL's steps per minute for `arith`, 1.2 for `guess`, whose model is so small that the server's
own work is most of a step (until 2026-11-30 it was 2 for both, which were missed), and a reward per step whose
difference has 0 in its 95 % interval over the seeds.

With --json both parts stand in one file: running one, or one contest, keeps what is there of the rest, each with the
commit and the day of its own measurement.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median
from typing import Any

from performance.headlines import FASTER_THAN_TRL
from rig.frame import RESULTS, circumstances, concluded, earlier, parser, show_table, tell
from rig.plots import Curve, band, draw
from rig.plots import figures as mean_figures
from rig.training import NAME, TrainingProcess, made, missing
from rig.training import folder as model_folder
from rig.workloads import Trained

from swarm.job import Job, PathModel

CONTENDERS = {"trl": "trl_training", "ajet": "training", "ajet, no server": "in_process"}
ENVIRONMENTS = ("arith", "guess")
TIMES, TIMES_CPU = "times TRL's steps per minute", "times TRL's steps per CPU minute"
APART = "reward per step less TRL's"
ENDS = 5
"""Steps at the beginning and at the end whose mean reward makes the gain."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much to train."""

    steps: int
    seeds: int


FULL = Size(steps=24, seeds=4)
QUICK = Size(steps=4, seeds=1)
Runs = dict[str, list[Trained]]
"""The runs of each contender, by seed."""


@dataclass(frozen=True, slots=True)
class Contest:
    """What a pretrained model trains: what it plays, fields of its job, and how many times TRL's rate is the goal."""

    title: str
    goal: float
    workload: str = "shared"
    steps: int = 8
    """Of ajet; TRL makes TRL_STEPS."""
    fields: Mapping[str, Any] = field(default_factory=dict)


CONTESTS = {
    "shared": Contest("examples shared", 30),
    "own": Contest("prompts of their own", 7, "own"),
    "tool": Contest("8 turns with a tool", 12, "tool", steps=4),
    "lora": Contest("examples shared, LoRA 16", 20, fields={"lora_rank": 16, "learning_rate": 5e-4}),
    "bf16": Contest("examples shared, bfloat16", 6, fields={"dtype": "bfloat16"}),
}
TRL_STEPS = 2
TUNED: Mapping[str, Mapping[str, Any]] = {
    "as in the contests: batches of 8, sdpa, fp32, no checkpointing": {},
    "batches of 4": {"per_device_train_batch_size": 4},
    "batches of 16": {"per_device_train_batch_size": 16},
    "generation in batches of 8": {"steps_per_generation": 1},
    "eager attention": {"attention": "eager"},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "bf16 autocast": {"bf16": True},
    "bf16 weights": {"weights": "bfloat16"},
    "torch.compile": {"torch_compile": True},
    "static cache": {"cache_implementation": "static"},
    "continuous batching, shared blocks of 16": {
        "use_transformers_continuous_batching": True, "transformers_continuous_batching_config": {"block_size": 16},
    },
}  # fmt: skip
"""Settings of TRL that are tried, over those of the contests (`rig.trl_training.BEST`)."""
TUNED_EPISODES = 16


def main() -> int:
    """Run the benchmark; return the exit code."""
    options = parser(__doc__, quick="few steps, one seed")
    options.add_argument("--model", metavar="NAME_OR_DIR", help=f"a pretrained model, not the tiny ones ({NAME})")
    options.add_argument("--only", action="append", choices=CONTESTS, help="of --model: this contest")
    options.add_argument("--tune", action="store_true", help="of --model: time TRL's settings, and no contest")
    arguments = options.parse_args()
    if importlib.util.find_spec("trl") is None:
        print("expected TRL beside ajet; found none; install the extra: pip install 'ajet[bench]'")
        return 2
    if arguments.model:
        return real(arguments)
    size = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory(prefix="ajet-trl-") as folder:
        found = {name: trained(name, size, Path(folder)) for name in ENVIRONMENTS}
    figures: dict[str, Any] = {
        "steps": size.steps,
        "seeds": size.seeds,
        "environments": {name: compared(runs) for name, runs in found.items()},
        **{name: part for name, part in earlier("against_trl").items() if name in ("note", "real model")},
        **circumstances(arguments),
    }
    figures["versions"] = {**figures["versions"], "trl": version("trl")}
    show(figures)
    if arguments.json:
        _draw(found)
    return concluded("against_trl", figures, goals_missed(figures), arguments)


def real(arguments: argparse.Namespace) -> int:
    """Hold the contests of a pretrained model, or try TRL's settings; return the exit code."""
    if (reason := missing(arguments.model)) is not None:
        print(f"expected a model; {reason}")
        return 2
    model, around, missed = model_folder(arguments.model), circumstances(arguments), list[str]()
    at = {name: around[name] for name in ("date", "commit", "quick", "machine")} | {"TRL": version("trl")}
    figures = {"environments": {}, **around, **earlier("against_trl")}
    figures["note"] = f"A pretrained model: python benchmarks/against_trl.py --model {NAME} --json"
    before = figures.get("real model", {})
    own: dict[str, Any] = before if before.get("name") == model.name else {"name": model.name, "contests": {}}
    figures["real model"] = own
    with tempfile.TemporaryDirectory(prefix="ajet-trl-") as scratch:
        if arguments.tune:
            cases = {name: {**tuned(name, model, Path(scratch)), **at} for name in arguments.only or ["shared"]}
            own["TRL's settings"] = {**own.get("TRL's settings", {}), **cases}
            return concluded("against_trl", figures, (), arguments)
        for name in arguments.only or CONTESTS:
            found = {**held(name, model, Path(scratch), quick=arguments.quick), **at}
            own["contests"] = {each: found if each == name else own["contests"][each]
                               for each in CONTESTS if each == name or each in own["contests"]}  # fmt: skip
            if (times := found["ajet"][TIMES]) < found["goal"]:
                missed.append(f"{name}: {times:.1f} times TRL's steps per minute, the goal is {found['goal']:g}")
            show_real(name, found)
            if arguments.json:  # after each, so that a run that is ended keeps what it measured
                concluded("against_trl", figures, (), arguments)
    return concluded("against_trl", figures, missed, arguments)


def real_job(contest: Contest, model: Path, steps: int, episodes: int = 64) -> Job:
    """Return the job of a contest."""
    return Job(
        model=PathModel(path=str(model)), device="cpu", steps=steps, episodes_per_step=episodes, group_size=8,
        max_tokens=8, max_context=512 if contest.workload == "tool" else 320, lease_ttl_s=120, drain_timeout_s=120,
        **contest.fields,
    )  # fmt: skip


def held(name: str, model: Path, scratch: Path, *, quick: bool) -> dict[str, Any]:
    """Return the figures of a contest: ajet's training, then TRL's."""
    contest, figures, rates = CONTESTS[name], dict[str, Any](), dict[str, float]()
    for who, steps in (("ajet", TRL_STEPS if quick else contest.steps), ("trl", TRL_STEPS)):
        run = process_of(who, scratch / f"{name}-{who}", real_job(contest, model, steps), contest.workload)
        fed = [(step.generate_ids, step.update_ids) for step in run.steps[1:]]
        ids = dict(zip(("generation", "update"), (round(fmean(part)) for part in zip(*fed, strict=True)), strict=True))
        rates[who] = _rate(run)
        figures[who] = {**_figures([run]), "steps per minute": round(rates[who], 3), "ids fed per step": ids}
        del figures[who]["reward per step"], figures[who]["reward gained per minute"]  # of so few steps
        tell(f"{name}: {who} took {run.steps[-1].at:.0f} s for {steps} steps")
    own, theirs = figures["ajet"], figures["trl"]
    own[TIMES] = round(rates["ajet"] / rates["trl"], 2)
    own[TIMES_CPU] = round(theirs["CPU seconds per step"] / own["CPU seconds per step"], 2)
    return {"title": contest.title, "goal": contest.goal, **figures}


def process_of(who: str, scratch: Path, job: Job, workload: str | None = None, **fields: Any) -> Trained:
    """Let one train in a process of its own; raise RuntimeError where it fails. `fields` go into its order."""
    order = {"job": job.model_dump(mode="json"), "models": str(scratch / "models"), "workload": workload, **fields}
    training = TrainingProcess(CONTENDERS[who], scratch, order)
    with contextlib.ExitStack() as ending:
        ending.callback(training.kill)
        return training.result()


def tuned(contest_name: str, model: Path, scratch: Path) -> dict[str, Any]:
    """Return what a step of TRL's takes by each of the settings that are tried, on a part of a batch."""
    contest, cases = CONTESTS[contest_name], dict[str, Any]()
    job = real_job(contest, model, 2, TUNED_EPISODES)
    for place, (name, settings) in enumerate(TUNED.items()):
        try:
            run = process_of("trl", scratch / f"{contest_name}-{place}", job, contest.workload, trl=settings)
        except RuntimeError as error:
            cases[name] = {"failed": str(error).strip().splitlines()[-1][:200]}
        else:
            first, last = run.steps
            cases[name] = {"first step, s": round(first.at, 1), "step, s": round(last.at - first.at, 1),
                           "generation, s": round(last.generate_s, 1), "update, s": round(last.update_s, 1),
                           "CPU, s": round(last.cpu_s - first.cpu_s, 1)}  # fmt: skip
        print(f"{name}: {cases[name]}", flush=True)
    return {"episodes": TUNED_EPISODES, "cases": cases}


def show_real(name: str, contest: Mapping[str, Any]) -> None:
    """Print the figures of a contest."""
    columns = ("", "steps/min", "x TRL", "x TRL, CPU", "goal", "s/step", "generate", "update", "CPU s", "ids fed",
               "reward 1st, 2nd, last")  # fmt: skip
    rows = []
    for who in ("trl", "ajet"):
        own, rewards = contest[who], contest[who]["reward by step"][0]
        times = [f"{own[TIMES]:.1f}", f"{own[TIMES_CPU]:.1f}", f"{contest['goal']:g}"] if TIMES in own else [""] * 3
        parts = [f"{own['seconds per step'][part]:.1f}" for part in ("whole", "generation", "update")]
        spent = [*parts, f"{own['CPU seconds per step']:.1f}", f"{sum(own['ids fed per step'].values()):,}"]
        taught = ", ".join(f"{rewards[place]:.2f}" for place in (0, 1, -1))
        rows.append([f"{name}: {who}", f"{own['steps per minute']:.2f}", *times, *spent, taught])
    show_table(f"whole GRPO steps of 64 episodes, {contest['title']}", columns, rows)


def job(environment: str, seed: int, steps: int) -> Job:
    """Return what all train: the default job, with all episodes of a batch under way at once, as TRL has them."""
    return Job(environment=environment, seed=seed, steps=steps, max_concurrency=128)


def trained(environment: str, size: Size, folder: Path) -> Runs:
    """Let all contenders train in turns, one at a time; who goes first changes from seed to seed."""
    models = made(environment, folder / "models")
    runs: Runs = {name: [] for name in CONTENDERS}
    for seed in range(size.seeds):
        order = list(CONTENDERS)
        for name in order[seed % len(order) :] + order[: seed % len(order)]:
            began = time.monotonic()
            scratch = folder / f"{environment}-{seed}-{CONTENDERS[name]}"
            runs[name].append(process_of(name, scratch, job(environment, seed, size.steps), models=str(models)))
            seconds = time.monotonic() - began
            print(f"{environment}, seed {seed}: {name} took {seconds:.0f} s, start included", file=sys.stderr)
    return runs


def compared(runs: Runs) -> dict[str, Any]:
    """Return the figures of one environment."""
    theirs = runs["trl"]
    figures = {name: _figures(found) for name, found in runs.items()}
    for name, found in runs.items():
        if name != "trl":
            pairs = list(zip(found, theirs, strict=True))
            figures[name] |= {
                TIMES: round(median(_rate(own) / _rate(trl) for own, trl in pairs), 3),
                TIMES_CPU: round(median(trl.cpu_s / own.cpu_s for own, trl in pairs), 3),
                APART: mean_figures([_reward(own) - _reward(trl) for own, trl in pairs]),
            }
    return figures


def _figures(runs: Sequence[Trained]) -> dict[str, Any]:
    parts = {
        "generation": median(_part([step.generate_s for step in run.steps]) for run in runs),
        "update": median(_part([step.update_s for step in run.steps]) for run in runs),
    }
    whole = median(60 / _rate(run) for run in runs)
    return {
        "steps per minute": round(60 / whole, 1),
        "seconds per step": {
            "whole": round(whole, 4),
            **{name: round(seconds, 4) for name, seconds in parts.items()},
            "other": round(whole - sum(parts.values()), 4),
        },
        "CPU seconds per step": round(median(run.cpu_s / len(run.steps) for run in runs), 4),
        "reward per step": mean_figures([_reward(run) for run in runs]),
        "reward gained per minute": round(fmean(_gain(run) for run in runs), 4),
        "reward by step": [[round(step.reward, 4) for step in run.steps] for run in runs],
        "seconds by step": [[round(step.at, 3) for step in run.steps] for run in runs],
    }


def _rate(run: Trained) -> float:
    """Return steps per minute, without the first one, which warms up."""
    return 60 * (len(run.steps) - 1) / (run.steps[-1].at - run.steps[0].at)


def _part(seconds: Sequence[float]) -> float:
    return fmean(seconds[1:])


def _reward(run: Trained) -> float:
    return fmean(step.reward for step in run.steps)


def _gain(run: Trained) -> float:
    """Return how much the reward rose from the first steps to the last ones, a minute of training."""
    few = min(ENDS, len(run.steps) // 2)
    first, last = run.steps[:few], run.steps[-few:]
    rise = fmean(step.reward for step in last) - fmean(step.reward for step in first)
    return 60 * rise / run.steps[-1].at


def _draw(found: dict[str, Runs]) -> None:
    panels = {
        environment: {
            name: Curve(
                [fmean(run.steps[step].at for run in own) / 60 for step in range(len(own[0].steps))],
                band([[step.reward for step in run.steps] for run in own]),
            )
            for name, own in runs.items()
        }
        for environment, runs in found.items()
    }
    note = "mean of the seeds and its 95 % interval; one torch thread; start-up left out"
    draw(panels, RESULTS / "against_trl.svg", x="minutes of training", y="reward", note=note)


def goals_missed(figures: dict[str, Any]) -> list[str]:
    """Return the goals of the module's docstring that `figures` miss, for the real thing."""
    missed = []
    for environment, found in figures["environments"].items():
        own = found["ajet"]
        times, apart = own[TIMES], own[APART]
        if times < (goal := FASTER_THAN_TRL[environment]):
            missed.append(f"{environment}: {times:.2f} times TRL's steps per minute, the goal is {goal:g}")
        if apart["low"] is not None and not apart["low"] <= 0 <= apart["high"]:
            missed.append(f"{environment}: reward per step differs by {apart['low']:.3f} to {apart['high']:.3f}")
    return missed


def show(figures: dict[str, Any]) -> None:
    """Print the figures."""
    columns = ("", "steps/min", "x TRL", "x TRL, CPU", "s/step", "generate", "update", "other", "CPU s", "reward/step",
               "less TRL's, 95 %", "gain/min")  # fmt: skip
    rows = [
        _row(f"{environment}: {name}", own)
        for environment, found in figures["environments"].items()
        for name, own in found.items()
    ]
    show_table(f"whole GRPO steps of 128 episodes, {figures['steps']} steps, {figures['seeds']} seeds", columns, rows)
    print(f"on {figures['machine']}; TRL {figures['versions']['trl']}")
    if figures["quick"]:
        print("a quick run; the full one: python benchmarks/against_trl.py --json --check")


def _row(name: str, own: dict[str, Any]) -> list[str]:
    seconds, apart = own["seconds per step"], own.get(APART, {})
    return [
        name,
        f"{own['steps per minute']:.0f}",
        f"{own[TIMES]:.2f}" if apart else "",
        f"{own[TIMES_CPU]:.2f}" if apart else "",
        *(f"{seconds[part]:.3f}" for part in ("whole", "generation", "update", "other")),
        f"{own['CPU seconds per step']:.3f}",
        f"{own['reward per step']['mean']:.3f}",
        f"{apart['low']:+.3f} to {apart['high']:+.3f}" if apart.get("low") is not None else "",
        f"{own['reward gained per minute']:.3f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
