"""The watchdog: alarms on a training's metrics, by rules whose limits the design locks.

Pure functions of history rows, `{"step": n, "metrics": {...}}`, with verl's names. They run in the attempt, where an
alarm may stop the training, and again when the run is collected, over its whole snapshot: only that is believed.

- abort (`kl_blow_up`, `gradient_blow_up`): training stops, the policy reached is evaluated, and the run counts.
- worst (`training_nan`): nothing is left to measure; the run counts with the metric's worst value.
- exclude (`server_silent`): says nothing of training; the run is left out.
- note (all others): stands in the report alone: ending the training there would bias its arm.
"""

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final, Literal

from studies.records.procedure import Watchdog

Effect = Literal["abort", "worst", "exclude", "note"]
Row = Mapping[str, Any]

NOT_FINITE: Final = "training/not_finite"
"""What the server logs for a step whose loss or gradient was no finite number, before it fails."""
FIRST_STEPS: Final = 3
"""Steps whose mean is what entropy and length are compared with: one step of a small batch is too noisy."""
LEAST_STEPS: Final = 5
"""Steps behind a median that anything is compared with."""
QUARTER: Final = 4
"""The training reward rises from its first to its last quarter."""

DEFAULT_WATCHDOG: Final = Watchdog(
    kl=1.0,  # per token: updates of PPO stay near 0.01, a policy that moved by a nat in one has left its trust region
    grad_norm=20.0,  # before clipping; in the built-in jobs the largest is about 3 medians
    entropy_share=0.05,  # a twentieth of the first steps': sampling has become greedy, and groups are copies
    length_factor=8.0,  # beyond what learning to think longer does within a study
    constant_groups=1.0,  # every group: there is no gradient at all
    reward_gap=0.1,  # about two standard errors of the difference of two batches of 128
    throughput_share=0.25,  # steps of one run differ by about 2 on a busy machine
    judge_errors=0.2,
    heartbeat_s=120.0,  # an update of a large batch on a busy core answers nothing for a minute
    patience=3,  # one odd batch is not a trend
)
"""Limits that a healthy training keeps, with room: a rule that fires on one would bias the arm it fires in."""


_SILENT_STEPS: Final = 2.0
"""Steps for which a server may be silent: it answers while it learns, if late."""
_Broken = tuple[Iterable[bool], str] | None


def max_silence(step_s: float) -> float:
    return max(DEFAULT_WATCHDOG.heartbeat_s or 0.0, _SILENT_STEPS * step_s)


def watchdog_of(step_s: float) -> Watchdog:
    return DEFAULT_WATCHDOG.model_copy(update={"heartbeat_s": max_silence(step_s)})


@dataclass(frozen=True, slots=True)
class Alarm:
    """A limit that a training broke."""

    code: str
    step: int
    """The step at which it was broken for as long as the rule asks."""
    sentence: str
    effect: Effect


def find_alarms(
    history: Sequence[Row], limits: Watchdog, hidden_before: float | None = None, hidden_after: float | None = None
) -> tuple[Alarm, ...]:
    """Return what is wrong with a training, each code once, where it was broken first; ordered by step and code."""
    found = [_not_finite(history)]
    for field, (code, effect, rule) in _RULES.items():
        if (limit := getattr(limits, field)) is None or (result := rule(history, limit)) is None:
            continue
        (broken, said), streak = result, 0
        for row, bad in zip(history, broken, strict=True):
            streak = streak + 1 if bad else 0
            if streak >= limits.patience:
                said += f", for {limits.patience} steps up to step {row['step']}"
                found.append(Alarm(code, row["step"], said, effect))
                break
    if hidden_before is not None and hidden_after is not None:
        found.append(_reward_hacking(history, limits, hidden_before, hidden_after))
    return tuple(sorted((alarm for alarm in found if alarm is not None), key=lambda alarm: (alarm.step, alarm.code)))


def detect_silence(seconds: float, limits: Watchdog, step: int) -> Alarm | None:
    if limits.heartbeat_s is None or seconds <= limits.heartbeat_s:
        return None
    return Alarm("server_silent", step, f"no answer from the swarm server for {limits.heartbeat_s:g} s", "exclude")


def find_abort_alarm(found: Iterable[Alarm]) -> Alarm | None:
    return next((alarm for alarm in found if alarm.effect == "abort"), None)


class AbortWatch:
    """Looks for what stops a training at rows as they come; `find_alarms` at each would take the square of time."""

    def __init__(self, limits: Watchdog) -> None:
        self._patience, self._rules = limits.patience, list[tuple[deque[Row], Iterator[bool]]]()
        for limit, rule in ((limits.kl, _kl), (limits.grad_norm, _gradient)):
            rows = deque[Row]()
            self._rules += [] if limit is None else [(rows, rule(iter(rows.popleft, None), limit)[0])]
        self._streaks, self.step = [0] * len(self._rules), 0

    def add(self, row: Row) -> bool:
        """Return whether a rule that stops the training has been broken for as long as it asks, up to this row."""
        self.step = row["step"]
        for place, (rows, broken) in enumerate(self._rules):
            rows.append(row)
            self._streaks[place] = self._streaks[place] + 1 if next(broken) else 0
        return any(streak >= self._patience for streak in self._streaks)


def _not_finite(history: Sequence[Row]) -> Alarm | None:
    for row in history:
        names = [name for name in row.get("not_finite", ()) if name.startswith(("actor/", "critic/"))]
        if NOT_FINITE in row["metrics"]:
            names.append("loss or gradient")
        if names:
            sentence = f"{', '.join(sorted(names))} at step {row['step']} is no finite number"
            return Alarm("training_nan", row["step"], sentence, "worst")
    return None


def _kl(history: Iterable[Row], most: float) -> tuple[Iterator[bool], str]:
    broken = (abs(_number(row, "actor/ppo_kl") or 0.0) > most for row in history)
    return broken, f"actor/ppo_kl beyond {most:g} nats a token"


def _gradient(history: Iterable[Row], factor: float) -> tuple[Iterator[bool], str]:
    def broken() -> Iterator[bool]:
        before = list[float]()  # in order of size: a median of each beginning would be sorted anew
        for value in (_number(row, "actor/grad_norm") for row in history):
            half = len(before) // 2
            usual = (before[half] + before[-1 - half]) / 2 if len(before) >= LEAST_STEPS else math.inf
            yield value is not None and value > factor * usual
            if value is not None:
                insort(before, value)

    return broken(), f"actor/grad_norm beyond {factor:g} times the median of the steps before"


def _entropy(history: Sequence[Row], share: float) -> _Broken:
    broken = _against_first(history, "actor/entropy", lambda value, first: value < share * first)
    return broken, f"actor/entropy below {share:g} of its first {FIRST_STEPS} steps' mean"


def _length(history: Sequence[Row], factor: float) -> _Broken:
    broken = _against_first(history, "response_length/mean", lambda value, first: value > factor * first)
    return broken, f"response_length/mean beyond {factor:g} times its first {FIRST_STEPS} steps' mean"


def _constant(history: Sequence[Row], share: float) -> _Broken:
    pairs = [(_number(row, "batch/constant_groups"), _number(row, "batch/groups")) for row in history]
    broken = [bool(groups) and constant is not None and constant >= share * (groups or 0) for constant, groups in pairs]
    return broken, f"at least {share:.0%} of the groups had equal rewards, which teach nothing"


def _throughput(history: Sequence[Row], share: float) -> _Broken:
    pairs = [(_number(row, "tokens/generated"), _number(row, "timing_s/step")) for row in history]
    rates = [amount / seconds if amount is not None and seconds else None for amount, seconds in pairs]
    if len(known := _drop_missing(rates)) < LEAST_STEPS:
        return None
    usual = median(known)
    slow = f"fewer than {share:g} of the run's median {usual:.0f} tokens a second: something else used the machine"
    return [rate is not None and rate < share * usual for rate in rates], slow


def _judge(history: Sequence[Row], most: float) -> _Broken:
    given_up = [_number(row, "lease/aborted") or 0.0 for row in history]  # counted since the training began
    broken, before = [], 0.0
    for row, count in zip(history, given_up, strict=True):
        lost, before = max(0.0, count - before), count
        broken.append(lost > most * (lost + (_number(row, "batch/episodes") or 0.0)))
    return broken, f"more than {most:.0%} of the episodes were given up without a reward"


_RULES: Final[Mapping[str, tuple[str, Effect, Callable[[Sequence[Row], float], _Broken]]]] = {
    "kl": ("kl_blow_up", "abort", _kl),
    "grad_norm": ("gradient_blow_up", "abort", _gradient),
    "entropy_share": ("entropy_collapse", "note", _entropy),
    "length_factor": ("length_explosion", "note", _length),
    "constant_groups": ("constant_groups", "note", _constant),
    "throughput_share": ("throughput_drop", "note", _throughput),
    "judge_errors": ("judge_outage", "note", _judge),
}
"""By the limit of a watchdog: the code of its alarm, what follows, and which steps break it."""


def _reward_hacking(history: Sequence[Row], limits: Watchdog, before: float, after: float) -> Alarm | None:
    rewards = _drop_missing(_number(row, "critic/rewards/mean") for row in history)
    if limits.reward_gap is None or len(rewards) < QUARTER or after >= before:
        return None
    part = len(rewards) // QUARTER
    if (rise := fmean(rewards[-part:]) - fmean(rewards[:part])) < limits.reward_gap:
        return None
    said = f"the training reward rose by {rise:.3f} while hidden success fell from {before:.3f} to {after:.3f}"
    return Alarm("reward_hacking", history[-1]["step"], said, "note")


def _against_first(history: Sequence[Row], name: str, bad: Callable[[float, float], bool]) -> list[bool]:
    values = [_number(row, name) for row in history]
    first = _drop_missing(values)[:FIRST_STEPS]
    if len(first) < FIRST_STEPS:
        return [False] * len(values)
    usual, seen, broken = fmean(first), 0, []
    for value in values:
        seen += value is not None
        broken.append(value is not None and seen > FIRST_STEPS and bad(value, usual))
    return broken


def _number(row: Row, name: str) -> float | None:
    value = row["metrics"].get(name)
    return value if value is not None and math.isfinite(value) else None


def _drop_missing(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
