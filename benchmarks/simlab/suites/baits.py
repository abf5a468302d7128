"""Does a confound pass for an effect?

Each bait is a study in which the treatment looks better although its knob does nothing: something else differs between
the arms, and everything else is as it should be. `detected`: the system names the difference, so that no reader takes
the claim for clean. `withheld`: it names nothing, and claims nothing. `fooled`: it claims the effect without a warning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from research.runs.files import AttemptSpec
from simlab.scores import Bar, Measured, Progress, SuiteOutcome, counted, silent, work
from simlab.sim_records import CaseResult, TemptingCase, score
from simlab.sim_run import Flight
from simlab.sim_sandbox import SimulatedFiles, evaluation
from simlab.suites.traps import difference, rows
from simlab.worlds import ComparisonTopic, MainEffect, Planted, Played

NAME = "baits"
QUESTION = "Does a confound pass for an effect?"
BONUS = 0.2
"""What the confound adds to the treatment's hidden success."""
STEPS = 8
ASK = ComparisonTopic("group_size", (8, 16))
UPDATES = ComparisonTopic("minibatches", (1, 4))
Side = Literal["control", "treatment"]


@dataclass(frozen=True)
class Confound:
    """What differs in one arm of the confirmation, besides the knob."""

    ask: ComparisonTopic = ASK
    side: Side = "treatment"
    bonus: float = BONUS
    seen: Mapping[str, Any] = field(default_factory=dict)
    """What the attempt sees of it, by the names of `studies.records.runs.Conditions`."""
    logged: Mapping[str, float] = field(default_factory=dict)
    """Factors on what the tracker logs of it in each step, or the value where it logs 0."""
    how: str = ""
    """A change of the files, by name."""

    def __call__(self, order: AttemptSpec, played: Played, left: SimulatedFiles) -> SimulatedFiles:
        """Return the remains of an attempt, altered where it is of that arm."""
        if order.spec.phase != "confirm":
            return left
        treated = order.spec.job[self.ask.field] == self.ask.values[1]
        if treated and self.bonus:
            left = replace(left, final=evaluation(order, STEPS, min(1.0, played.hidden + self.bonus)))
        if treated != (self.side == "treatment"):
            return left
        left = _observed(left, self.seen, self.logged)
        return _CHANGES[self.how](order, played, left) if self.how else left


def _observed(left: SimulatedFiles, seen: Mapping[str, Any], logged: Mapping[str, float]) -> SimulatedFiles:
    """Return the remains with what shows of a confound."""
    assert left.outcome is not None
    assert left.tracked is not None
    history = {
        step: {name: _logged(name, value, int(step), logged) for name, value in row.items()}
        for step, row in left.tracked["history"].items()
    }
    outcome = {**left.outcome, "seen": {**left.outcome["seen"], **seen}}
    return replace(left, outcome=outcome, tracked={**left.tracked, "history": history})


def _logged(name: str, value: float, step: int, logged: Mapping[str, float]) -> float:
    factor = logged.get(name, 1.0)
    return (
        value * factor if value else (step * factor if name in logged else 0.0)
    )  # what is 0 is counted from the start


def _fewer_episodes(order: AttemptSpec, played: Played, left: SimulatedFiles) -> SimulatedFiles:
    """Evaluate an eighth of the episodes."""
    assert left.final is not None
    return replace(left, final={**left.final, "episodes": left.final["episodes"][: order.spec.metric.episodes // 8]})


def _fewer_steps(order: AttemptSpec, played: Played, left: SimulatedFiles) -> SimulatedFiles:
    """Log only five of eight steps, as training ended there."""
    assert left.tracked is not None
    history = {step: row for step, row in left.tracked["history"].items() if int(step) <= 5}
    return replace(left, tracked={**left.tracked, "history": history})


def _more_steps(order: AttemptSpec, played: Played, left: SimulatedFiles) -> SimulatedFiles:
    """Log twice the steps."""
    assert left.tracked is not None
    rows = list(left.tracked["history"].values())
    history = {str(step): rows[min(step, STEPS) - 1] for step in range(1, 2 * STEPS + 1)}
    return replace(left, tracked={**left.tracked, "history": history})


def _best_checkpoint(order: AttemptSpec, played: Played, left: SimulatedFiles) -> SimulatedFiles:
    """Evaluate the best of the training's policies."""
    assert left.final is not None
    return replace(left, final={**left.final, "policy_version": 5})


def _worse_start(order: AttemptSpec, played: Played, left: SimulatedFiles) -> SimulatedFiles:
    """Begin from a worse success, so that the gain is a larger multiple of it."""
    return replace(left, initial=evaluation(order, 0, played.initial / 2))


def _better_start(order: AttemptSpec, played: Played, left: SimulatedFiles) -> SimulatedFiles:
    """Begin from a better policy."""
    return replace(left, initial=evaluation(order, 0, played.initial + BONUS))


def _seed_in_config(order: AttemptSpec, played: Played, left: SimulatedFiles) -> SimulatedFiles:
    """Train with the one seed that the configuration names, whatever the run's own is."""
    assert left.tracked is not None
    return replace(left, tracked={**left.tracked, "config": {**left.tracked["config"], "seed": 7}})


def _easier_mix(order: AttemptSpec, played: Played, left: SimulatedFiles) -> SimulatedFiles:
    """Play mostly the easy tasks: worse on easy and on hard ones, better over all."""
    assert left.final is not None
    count = order.spec.metric.episodes
    tasks = list(dict.fromkeys(episode["task_id"] for episode in left.final["episodes"]))
    easy, hard = tasks[: len(tasks) // 2], tasks[len(tasks) // 2 :]
    episodes = []
    for number in range(count):
        part, rate = (easy, 0.8) if number % 10 else (hard, 0.2)
        solved = (number * 193 + order.spec.seed) % 1000 < 1000 * rate
        episodes.append({
            "task_id": part[number % len(part)], "sample": 1000 + number, "success": solved, "reward": float(solved),
        })  # fmt: skip
    return replace(left, final={**left.final, "episodes": episodes})


_CHANGES = {
    "fewer_episodes": _fewer_episodes,
    "fewer_steps": _fewer_steps,
    "more_steps": _more_steps,
    "best_checkpoint": _best_checkpoint,
    "worse_start": _worse_start,
    "better_start": _better_start,
    "seed_in_config": _seed_in_config,
    "easier_mix": _easier_mix,
}


def _build(name: str, confound: Confound, effect: float, number: int) -> Flight:
    ask = confound.ask
    effects = (MainEffect(ask.field, {ask.values[1]: effect}),) if effect else ()
    world = Planted(8_000_000 + number, ask.knobs, ask.base, effects, seed_sd=0.03, steps=STEPS)
    return Flight(f"{name}-{number}", ask.topic, world, alter=confound)


def _bait(name: str, what: str, confound: Confound, *named_by: str, effect: float = 0.0) -> TemptingCase:
    tempting = f"{confound.ask.field} {confound.ask.values[1]} is better"
    return TemptingCase(name, what, tempting, partial(_build, name, confound, effect), difference, named_by)


def _seen(**seen: Any) -> Confound:
    return Confound(seen=seen)


CASES: Sequence[TemptingCase] = (
    _bait("update-ratio", "four times the optimiser steps, at a learning rate that suits them",
          Confound(UPDATES, bonus=0.0), "unequal_updates", effect=0.15),
    _bait("unequal-steps", "the treatment trains twice the steps",
          Confound(how="more_steps"), "unequal_steps", "steps_missing"),
    _bait("unequal-tokens", "the treatment trains on 2.5 times the tokens",
          Confound(logged={"tokens/trained": 2.5}), "unequal_tokens"),
    _bait("shared-machine", "the control shares its machine and does five of eight steps in the time",
          Confound(side="control", how="fewer_steps", logged={"timing_s/step": 1.6}),
          "unequal_steps", "steps_missing", "co_tenancy"),
    _bait("evaluation-size", "the treatment is evaluated on 64 episodes",
          Confound(how="fewer_episodes"), "evaluation_size", "evaluation_incomplete"),
    _bait("decoding", "the treatment is evaluated with greedy decoding", _seen(decoding="temperature 0"), "decoding"),
    _bait("template", "the treatment is evaluated with another chat template", _seen(template="e" * 64), "template"),
    _bait("best-checkpoint", "the best checkpoint of the treatment is evaluated",
          Confound(how="best_checkpoint"), "checkpoint", "foreign_results"),
    _bait("early-stopped-baseline", "the control's training is stopped after five of eight steps",
          Confound(side="control", how="fewer_steps"), "unequal_steps", "steps_missing"),
    _bait("judge-outage", "a third of the control's episodes get no reward",
          Confound(side="control", logged={"lease/aborted": 42.0}), "judge_errors"),
    _bait("overlap", "the treatment trains on evaluated tasks", _seen(overlap=60), "overlap"),
    _bait("gain-ratio", "the treatment begins worse, so that its relative gain is larger",
          Confound(bonus=0.0, how="worse_start"), "warm_start"),
    _bait("warm-start", "the treatment begins from a better policy",
          Confound(how="better_start", seen={"initial_policy": "f" * 64}), "warm_start"),
    _bait("seed-in-config", "all runs of the treatment have one lucky seed", Confound(how="seed_in_config"),
          "foreign_results"),
    _bait("subgroups", "the treatment is worse in every group of tasks, and plays the easy ones more often",
          Confound(how="easier_mix", bonus=0.0), "evaluation_tasks"),
)  # fmt: skip


def figures(found: Sequence[CaseResult]) -> list[Measured]:
    """Return what the flights amount to."""
    counts = {name: sum(one.score == name for one in found) for name in ("fooled", "detected", "withheld")}
    return [
        counted("baits taken", counts["fooled"], len(found), Bar("at most", 0.0)),
        counted("confounds named", counts["detected"], len(found)),
        counted("claims withheld without a name", counts["withheld"], len(found)),
    ]


def measure(repeats: int, *, workers: int = 1, tell: Progress = silent) -> SuiteOutcome:
    """Fly every bait so many times, in other worlds, and count."""
    pairs = [(place, number) for place in range(len(CASES)) for number in range(repeats)]
    found = work(NAME, _score, pairs, workers=workers, tell=tell)
    return SuiteOutcome(NAME, QUESTION, len(found), figures(found), rows(CASES, found))


def _score(pair: tuple[int, int]) -> CaseResult:
    return score(CASES[pair[0]], pair[1])
