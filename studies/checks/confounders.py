"""The confound linter: whether two arms' runs differ only in what the hypothesis declares.

A finding that `blocks` makes the verdict invalid unless an amendment accepts its code; any other is a threat, told in
the report. What is unknown (None) is compared with nothing.
- What a run was given and how it was measured must be equal in all runs. A difference that the declared variable brings
  about (optimiser steps by `epochs`) is told as a threat: the claim may be one about the amount of training.
- Tokens and seconds are partly effects: seconds block only where time is the budget or the metric. What is read off
  where all have spent alike (`MATCHED`) may train any amount.
- Images, hardware and neighbours only count by how unlike their spread over the arms is.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Any, Final

from studies.checks.conditions import Pair, claim_of, find_undeclared_fields, flatten
from studies.records.design import KNOB, MATCHED, MODEL, NO_CODE, SLOTS, Design
from studies.records.runs import Conditions

TOKENS_TOLD: Final = 1.25
"""Ratio of trained tokens from which more training may be part of the effect."""
TOKENS_BLOCK: Final = 2.0
"""Ratio from which the arms are as unlike as with twice the steps."""
WALL_TOLD: Final = 1.5
"""Ratio of training seconds that is worth a word: runs of one arm on one busy machine differ by less."""
SPREAD_BLOCKS: Final = 0.5
"""Part of an arm's runs that would have to change their place for the arms to be alike."""
NEIGHBOURS_TOLD: Final = 1.0
"""Difference of the mean numbers of neighbours that is worth a word; the last runs of any study have fewer."""
NEIGHBOURS_BLOCK: Final = 0.5
"""The same where time is the budget or the metric, of which each neighbour takes a share."""
BEGINNINGS_BLOCK: Final = 4.0
"""Standard errors between the arms' success before training: chance brings so much in one of 16,000."""
JUDGE_ERRORS_BLOCK: Final = 0.02
"""Difference of the shares of episodes without a reward: one in fifty moves no success rate by more than 0.02."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One difference between the arms besides the declared one."""

    code: str
    sentence: str
    """What differs between which arms, with the values; one sentence without its full stop."""
    blocks: bool
    """Whether the verdict is invalid while no amendment accepts the code; a threat otherwise."""

    @property
    def line(self) -> str:
        return f"{self.code}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class _SameRule:
    """A condition that has to be the same in all runs, and the job fields that may bring a difference about."""

    code: str
    field: str
    noun: str
    caused_by: frozenset[str] = frozenset()
    amount: bool = False
    """Whether it is an amount of training: a run that the watchdog stopped has less of it by a locked rule."""


_STEPS: Final = frozenset({"steps"})
_DECODING: Final = frozenset({"temperature", "max_tokens", "max_context"})
_MODEL: Final = frozenset({"model", "environment"})
_EPISODES: Final = _STEPS | {"episodes_per_step", "batch_rule"}
_LENGTHS: Final = _EPISODES | _DECODING | _MODEL | {*SLOTS}
_COSTS: Final = _LENGTHS | {
    "epochs", "minibatches", "surplus_groups", "lora_rank", "kl_coef", "merging", "dtype", "device",
    "micro_batch_tokens", "gradient_checkpointing", "max_staleness", "max_concurrency", "rollout_correction",
}  # fmt: skip
"""What makes a run cheaper or dearer."""
_SAME: Final = (
    _SameRule("unequal_steps", "steps", "training steps", _STEPS, amount=True),
    _SameRule("unequal_episodes", "episodes", "training episodes", _EPISODES, amount=True),
    _SameRule("unequal_updates", "optimiser_steps", "optimiser steps", _STEPS | {"epochs", "minibatches"}, amount=True),
    _SameRule("evaluation_size", "evaluation_episodes", "evaluation episodes"),
    _SameRule("decoding", "decoding", "sampling in the evaluation", _DECODING),
    _SameRule("template", "template", "chat template", _MODEL),
    _SameRule("checkpoint", "checkpoint", "checkpoint rule"),
    _SameRule("warm_start", "initial_policy", "initial weights", _MODEL),
)
VIOLATION_CODES: Final = frozenset({
    *(rule.code for rule in _SAME), "undeclared_field", "evaluation_tasks", "unequal_tokens",
    "unequal_wall", "co_tenancy", "overlap", "judge_errors", "stopped_early", "image", "hardware",
})  # fmt: skip
"""Every code of a violation, for whoever names one."""


@dataclass(frozen=True, slots=True)
class _Pair:
    design: Design
    declared: frozenset[str]
    """Fields that the hypothesis varies, by the part before a dot."""
    names: tuple[str, str]
    arms: tuple[Mapping[str, Conditions], Mapping[str, Conditions]]

    def known_values(self, field: str, *, amount: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
        whole = ([pair for pair in arm.items() if not (amount and pair[1].stopped_by)] for arm in self.arms)
        left, right = ({run: v for run, seen in arm if (v := getattr(seen, field)) is not None} for arm in whole)
        return left, right

    def means(self, field: str, *, amount: bool = False) -> tuple[float, float] | None:
        left, right = self.known_values(field, amount=amount)
        return (fmean(left.values()), fmean(right.values())) if left and right else None

    def describe(self, left: str, right: str) -> str:
        return f"{self.names[0]} has {left}, {self.names[1]} has {right}"

    def causes(self, fields: frozenset[str]) -> list[str]:
        """Return what the hypothesis varies of fields that bring a difference about; knobs make plays of any length."""
        return sorted(name for name in self.declared if name in fields or name.startswith(KNOB))

    @property
    def matched(self) -> str:
        """What all runs have spent as much of where the metric is read off them; empty for what is read at an end."""
        return MATCHED.get(self.design.metric.kind, "")

    @property
    def by_time(self) -> bool:
        """Whether seconds decide what a run learns, as no number of steps ends it, or are what it is judged by."""
        metric = self.design.metric
        timed = metric.key.startswith(("timing", "perf/", "tokens/")) or "seconds" in (metric.unit, self.matched)
        return "steps" not in self.design.base_job or timed


def lint_conditions(
    design: Design, hypothesis: str, control: Mapping[str, Conditions], treatment: Mapping[str, Conditions],
    names: Pair | None = None,
) -> tuple[Violation, ...]:  # fmt: skip
    """Return what the runs of two of a hypothesis' arms, by run id, differ in besides its declared variable."""
    arms, declared = claim_of(design, hypothesis, names)
    pair = _Pair(design, declared, (arms[0].name, arms[1].name), (control, treatment))
    left, right = ({**NO_CODE, **design.base_job, **arm.overrides} for arm in arms)
    same = (_check_same(pair, rule) for rule in _SAME if not (rule.amount and pair.matched))
    spread = (_check_spread(pair, field, noun) for field, noun in (("image", "client image"), ("hardware", "hardware")))
    found = chain(same, _check_beginnings(pair), _check_training(pair), _check_errors(pair), spread)
    undeclared = lint_jobs(design, hypothesis, [left], [right], names)
    return (*undeclared, *(violation for violation in found if violation is not None))


def lint_jobs(
    design: Design, hypothesis: str, control: Iterable[Mapping[str, Any]], treatment: Iterable[Mapping[str, Any]],
    names: Pair | None = None,
) -> tuple[Violation, ...]:  # fmt: skip
    """Return the job fields, the seed apart, that are not the same in all jobs of two arms and not declared to vary."""
    (left, right), _ = claim_of(design, hypothesis, names)
    sides = [[flatten(job) for job in jobs] for jobs in (control, treatment)]
    found = []
    for name in find_undeclared_fields(design, hypothesis, sides[0], sides[1], names):
        one, other = (_format_values(job.get(name) for job in side) for side in sides)
        sentence = f"{left.name} has {name} {one}, {right.name} has {other}, and the hypothesis does not vary it"
        found.append(Violation("undeclared_field", sentence, blocks=True))
    return tuple(found)


def _check_same(pair: _Pair, rule: _SameRule) -> Violation | None:
    left, right = pair.known_values(rule.field, amount=rule.amount)
    values = (set(left.values()), set(right.values()))
    metric = pair.design.metric
    locked = {"evaluation_episodes": metric.episodes, "checkpoint": metric.checkpoint}.get(rule.field)
    told = f"{pair.describe(_format_values(left.values()), _format_values(right.values()))} as its {rule.noun}"
    if locked is not None and (values[0] | values[1]) - {locked}:
        return Violation(rule.code, f"{told}, where the lock says {locked}", blocks=True)
    uniform = all(len(found) < 2 for found in values)
    if len(values[0] | values[1]) < 2 or (rule.amount and pair.declared >= _STEPS and uniform):
        return None
    causes = ", ".join(sorted(pair.declared & rule.caused_by)) if uniform else ""
    told += f": {causes} brings that about, so that the effect may be one of it" if causes else ""
    return Violation(rule.code, told, blocks=not causes)


def _check_beginnings(pair: _Pair) -> Iterator[Violation]:
    strays = [
        sum(None not in (run.evaluation_tasks, run.drawn_tasks) and run.evaluation_tasks != run.drawn_tasks
            for run in arm.values())
        for arm in pair.arms
    ]  # fmt: skip
    if any(strays):
        counts = (f"{count} of {len(arm)} runs" for count, arm in zip(strays, pair.arms, strict=True))
        sentence = f"runs were evaluated on other tasks than their seeds draw: {pair.describe(*counts)}"
        yield Violation("evaluation_tasks", sentence, blocks=True)
    metric, means, sizes = pair.design.metric, pair.means("initial_success"), pair.known_values("evaluation_episodes")
    played = [  # an evaluation that runs share counts once
        sum({conditions[run].untrained or run: count for run, count in arm.items()}.values())
        for conditions, arm in zip(pair.arms, sizes, strict=True)
    ]
    if means is None:
        return
    began = f"{pair.describe(f'{means[0]:.3f}', f'{means[1]:.3f}')} as its success before training"
    if means[0] != means[1] and pair.declared & {MODEL}:
        sentence = f"{began}: model brings that about, and what is left to gain differs"
        yield Violation("warm_start", sentence, blocks=False)
    elif all(played) and not (
        pair.declared & (_DECODING | _MODEL) or metric.evaluates_apart(pair.declared) or metric.evaluate_by
    ):
        share = fmean(means)
        error = math.sqrt(share * (1 - share) * sum(1 / count for count in played))
        if abs(means[0] - means[1]) > BEGINNINGS_BLOCK * error:
            yield Violation("warm_start", f"{began}, which chance does not explain", blocks=True)


def _check_training(pair: _Pair) -> Iterator[Violation]:
    tokens = pair.means("tokens", amount=True)
    if not pair.matched and tokens is not None and _ratio(*tokens) >= TOKENS_TOLD and not pair.declared >= _STEPS:
        amounts = pair.describe(f"{tokens[0]:,.0f}", f"{tokens[1]:,.0f}")
        sentence = f"{amounts} trained tokens a run, {_ratio(*tokens):.2f} times as many"
        causes = ", ".join(pair.causes(_LENGTHS))
        sentence += f": {causes} brings that about" if causes else ""
        yield Violation("unequal_tokens", sentence, blocks=not causes and _ratio(*tokens) >= TOKENS_BLOCK)
    wall, judged = pair.means("wall_s", amount=True), "seconds" in (pair.design.metric.unit, pair.matched)
    explained = pair.causes(_COSTS) and (judged or not pair.by_time)
    if wall is not None and _ratio(*wall) >= WALL_TOLD and not explained:
        blocks = pair.by_time and not judged  # where seconds are judged, shorter trainings may be the effect itself
        times = pair.describe(f"{wall[0]:.1f} s", f"{wall[1]:.1f} s")
        yield Violation("unequal_wall", f"{times} of training a run, {_ratio(*wall):.2f} times as long", blocks)
    shared, limit = pair.means("neighbours"), NEIGHBOURS_BLOCK if pair.by_time else NEIGHBOURS_TOLD
    if shared is not None and abs(shared[0] - shared[1]) >= limit:
        others = pair.describe(f"{shared[0]:.1f} other runs", f"{shared[1]:.1f}")
        yield Violation("co_tenancy", f"{others} beside its own on the machine, on average", pair.by_time)


def _check_errors(pair: _Pair) -> Iterator[Violation]:
    left, right = (sum(arm.values()) for arm in pair.known_values("overlap"))
    if left or right:
        tasks = pair.describe(f"{left} tasks", f"{right}")
        yield Violation("overlap", f"{tasks} that were both trained on and evaluated, over all its runs", blocks=True)
    means, played = pair.means("judge_errors"), pair.means("episodes") or (0.0, 0.0)
    if means is not None and any(means):
        shares = [lost / max(lost, whole) if lost else 0.0 for lost, whole in zip(means, played, strict=True)]
        lost = pair.describe(f"{means[0]:.1f} episodes a run ({shares[0]:.1%})", f"{means[1]:.1f} ({shares[1]:.1%})")
        blocks = abs(shares[0] - shares[1]) > JUDGE_ERRORS_BLOCK
        yield Violation("judge_errors", f"{lost} whose reward could not be had", blocks)
    counts = [Counter(entry.stopped_by for entry in arm.values() if entry.stopped_by) for arm in pair.arms]
    if any(counts):
        ends = [", ".join(f"{n} by {code}" for code, n in sorted(count.items())) or "none" for count in counts]
        yield Violation("stopped_early", f"of runs that the watchdog stopped, {pair.describe(*ends)}", blocks=False)


def _check_spread(pair: _Pair, field: str, noun: str) -> Violation | None:
    left, right = pair.known_values(field)
    if not left or not right:
        return None
    counts = [Counter(values.values()) for values in (left, right)]
    shares = (abs(counts[0][value] / len(left) - counts[1][value] / len(right)) for value in counts[0] | counts[1])
    if (apart := sum(shares) / 2) <= 1e-9:
        return None
    told = pair.describe(_format_values(left.values()), _format_values(right.values()))
    return Violation(field, f"{told} as its {noun}", blocks=apart > SPREAD_BLOCKS)


def _ratio(left: float, right: float) -> float:
    low, high = sorted((left, right))
    return high / low if low > 0 else (math.inf if high > 0 else 1.0)


def _format_values(values: Iterable[Any]) -> str:
    # Of a hash its first digits.
    texts = (text[:12] if len(text) == 64 and " " not in text else text for text in map(str, values))
    counts = Counter(texts)
    if len(counts) == 1:
        return next(iter(counts))
    return " and ".join(f"{text} ({n} run{'s' * (n > 1)})" for text, n in counts.most_common()) or "nothing known"
