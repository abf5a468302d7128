"""Conditions of runs: fields in which jobs differ, facts and courses of trainings, and files, held to their hashes.

One rule compares arms and runs, before the lock and after the runs. A nested field is named by its path (`model.seed`),
one that a job does not have counts as null, and a number is the same however it is written (16 and 16.0). When a run is
evaluated during training changes no step, so that it is no difference. What the files of a run say of its conditions is
recorded by whoever collects it with these functions, and computed again by whoever verifies a study.

Collapse compares a run with itself by the locked rule, blind to its arm and all other runs. Either is enough: it ended
below its beginning by more than so many standard errors of the two evaluations; or its training success ended more than
`lost` of its own gain, and as many errors, below its peak. A training that stays where it began never started and is
not collapsed. The error of an evaluation is sqrt(1/4 / n); that of a mean over steps is the larger of this and von
Neumann's successive differences (1941, Ann. Math. Stat. 12), which no trend disturbs.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from studies.log.entries import RunState
from studies.log.study import StudyState
from studies.records import runs as records
from studies.records.base import canonical, digest
from studies.records.design import KNOB, SLOTS, Arm, Design, Hypothesis, RunSpec
from studies.records.procedure import CollapseRule, Phase, StartRule
from studies.records.verdict import CollapseRate
from studies.statistics.proportions import one_sided_limits

Fields = Mapping[str, Any]
Pair = tuple[str, str]
"""Two of a claim's arms by their names, that of the control or the lower setting first."""
Row = Mapping[str, Any]
"""A training step of a snapshot: its number and its metrics."""
Part = Mapping[str, Any]
"""One of the two evaluations of a run: the version of its policy, and its episodes."""
INITIAL: Final = "/initial"
_NONE = 1e-6
LEAST_REPEATED: Final = 16
"""Tasks that are played again, from which on they say what plays of one task differ by."""
WINDOW_EPISODES: Final = 256
"""Training episodes behind each mean of a training curve, at the least."""
_LEAST_WINDOWS: Final = 3
"""A curve of fewer windows has no peak that is neither its beginning nor its end."""
LEAST_EPISODES: Final = _LEAST_WINDOWS * WINDOW_EPISODES
"""Training episodes from which on a curve can show a collapse."""
_LEVEL: Final = 0.95
_BREAKDOWNS: Final = frozenset({"kl_blow_up", "gradient_blow_up"})
"""Rules of the watchdog that end a training because it breaks down."""


def flatten(job: Fields, prefix: str = "") -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in job.items():
        fields |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return fields


def find_differing_fields(jobs: Iterable[Fields]) -> tuple[str, ...]:
    def written(value: Any) -> str:
        return canonical(int(value) if isinstance(value, float) and value.is_integer() else value)

    rows = [flatten(job) for job in jobs]
    names = sorted({name for row in rows for name in row} - set(records.EVALUATED))
    return tuple(name for name in names if len({written(row.get(name)) for row in rows}) > 1)


def pairs_of(design: Design, claim: Hypothesis) -> tuple[Pair, ...]:
    """Return every two arms of a claim: of a difference the one pair, of an interaction six."""
    return tuple(combinations(design.contrast_of(claim), 2))


def claim_of(design: Design, hypothesis: str, names: Pair | None = None) -> tuple[tuple[Arm, Arm], frozenset[str]]:
    """Return two arms of a hypothesis, control and treatment unless named, and the fields in which they may differ."""
    found = design.hypothesis(hypothesis)
    first, second = names or pairs_of(design, found)[0]
    arms = design.arm(first), design.arm(second)
    declared = found.declared
    if found.kind != "difference":
        declared = frozenset(name for name in declared if arms[0].overrides.get(name) != arms[1].overrides.get(name))
    return arms, frozenset(map(_root, declared))


def _root(name: str) -> str:
    return name if name.startswith(KNOB) else name.split(".")[0]


def find_undeclared_fields(
    design: Design, hypothesis: str, control: Iterable[Fields], treatment: Iterable[Fields], names: Pair | None = None
) -> tuple[str, ...]:
    """Return the fields, the seed apart, that differ between jobs of two arms and that the hypothesis does not vary."""
    _, declared = claim_of(design, hypothesis, names)
    sides = list(control), list(treatment)
    found = find_differing_fields([*sides[0], *sides[1]]) if all(sides) else ()
    return tuple(name for name in sorted(found) if _root(name) not in declared | {"seed"})


def find_confounders(state: StudyState) -> dict[str, tuple[str, ...]]:
    if (design := state.design) is None:
        return {}
    differing: dict[str, set[str]] = {}
    for claim in design.hypotheses:
        for names in pairs_of(design, claim):
            left, right = (
                [{**run.spec.job, **dict.fromkeys(SLOTS), **run.spec.sources} for run in state.runs_of(name)]
                for name in names
            )
            differing.setdefault(claim.id, set()).update(find_undeclared_fields(design, claim.id, left, right, names))
    return {name: tuple(sorted(fields)) for name, fields in differing.items() if fields}


def extract_conditions(history: Sequence[Row], initial: Part, final: Part) -> dict[str, Any]:
    """Return the conditions that the files hold, by their names in `Conditions`; None where a metric is missing."""
    version, plays = final["policy_version"], len(final["episodes"])
    last = history[-1]["metrics"] if history else {}
    course = training_curve(history, success_rate(initial), success_rate(final), plays_of_both(initial, final))
    return {
        "steps": len(history),
        "episodes": _whole(_reduce(sum, history, "batch/episodes")),
        "tokens": _whole(_reduce(sum, history, "tokens/trained")),
        "wall_s": _reduce(sum, history, "timing_s/step"),
        "initial_success": success_rate(initial),
        "evaluation_tasks": tasks_hash((episode["task_id"], episode["sample"]) for episode in final["episodes"]),
        "evaluation_episodes": plays,
        "checkpoint": "last" if version == len(history) else f"after step {version}",
        # Episodes that were given up without a reward, which the server counts from its start.
        "judge_errors": _whole(last.get("lease/aborted", 0.0) if "lease/begun" in last else None),
        "signal_steps": _signal_steps(history),
        "probs_diff": _reduce(max, history, "training/rollout_probs_diff_max"),
        "course": course.model_dump(mode="json"),
    }


def tasks_hash(plays: Iterable[tuple[str, int]]) -> str:
    return digest(sorted([task, sample] for task, sample in plays))


def success_rate(part: Part) -> float:
    episodes = part["episodes"]
    if not episodes:
        raise ValueError("an evaluation without episodes has no share of solved ones")
    return sum(bool(episode["success"]) for episode in episodes) / len(episodes)


def plays_of_both(initial: Part, final: Part) -> int:
    """Return the plays of each of two evaluations that their difference is as sure by: the harmonic mean."""
    before, after = len(initial["episodes"]), len(final["episodes"])
    return 2 * before * after // (before + after)


def play_variance(part: Part) -> float:
    """Return the variance of success between plays of one task, over tasks played twice or more; of few p (1 - p)."""
    played = Counter(episode["task_id"] for episode in part["episodes"])
    solved = Counter(episode["task_id"] for episode in part["episodes"] if episode["success"])
    repeated = {task: count for task, count in played.items() if count > 1}
    if len(repeated) >= LEAST_REPEATED:
        return fmean(solved[task] * (count - solved[task]) / (count * (count - 1)) for task, count in repeated.items())
    share = success_rate(part)
    return share * (1 - share)


def mean_facts(part: Part) -> dict[str, float]:
    said: dict[str, list[float]] = {}
    for episode in part["episodes"]:
        for name, value in (episode.get("facts") or {}).items():
            said.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in sorted(said.items())}


def _reduce(by: Callable[[Iterable[Any]], Any], history: Sequence[Row], name: str) -> float | None:
    values = [row["metrics"].get(name) for row in history]
    return None if not values or None in values else float(by(values))


def _signal_steps(history: Sequence[Row]) -> int | None:
    counts = [[row["metrics"].get(f"batch/{name}") for name in ("groups", "constant_groups")] for row in history]
    if not counts or any(None in pair for pair in counts):
        return None
    ends = ([float(row["metrics"].get(f"critic/advantages/{end}", 0.0)) for end in ("max", "min")] for row in history)
    pairs = zip(counts, ends, strict=True)
    return sum(bool(constant < groups) or most - least > _NONE for (groups, constant), (most, least) in pairs)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


class CollectError(Exception):
    """What an attempt left behind is not the run's whole, own result; `code` is one of `studies.records.runs`."""

    def __init__(self, code: str, reason: str, *, late: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.late = late
        """Whether the tracker may only be behind, so that the same again may succeed."""


def read_collected(study_folder: Path, stored: Mapping[str, Any]) -> bytes:
    """Return what is in a collected file; CollectError if it is not there, or not what the log says."""
    if not (study_folder / stored["path"]).resolve().is_relative_to(study_folder.resolve()):
        raise CollectError(records.EVIDENCE_MISSING, f"the collected {stored['path']} lies outside the study's folder")
    return read_unchanged(study_folder / stored["path"], f"the collected {stored['path']}", stored["sha256"])


def read_unchanged(path: Path, name: str, expected: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CollectError(records.EVIDENCE_MISSING, f"{name} cannot be read: {error.strerror}") from error
    if (found := hashlib.sha256(data).hexdigest()) != expected:
        said = f"{name} was changed: expected the sha256 {expected[:12]}, found {found[:12]}"
        raise CollectError(records.EVIDENCE_CHANGED, said)
    return data


def find_spoilt_runs(state: StudyState, folder: Path, phase: Phase) -> Iterator[tuple[RunState, str, str]]:
    """Yield the collected runs of a phase whose files are not what was collected, with a code and a sentence."""
    for run in state.runs_in(phase):
        if run.status != "collected" or run.collected is None:
            continue
        try:
            for kind in ("snapshot", "evaluation"):
                read_collected(folder, run.collected[kind])
        except CollectError as error:
            yield run, error.code, error.reason


def min_steps_to_detect(episodes: float) -> int:
    """Return the training steps from which on a curve of so many episodes a step can show a collapse."""
    return _LEAST_WINDOWS * math.ceil(WINDOW_EPISODES / episodes)


def training_curve(history: Sequence[Mapping[str, Any]], start: float, end: float, plays: int) -> records.TrainingCurve:
    rows = [(row["metrics"].get("critic/success/mean"), row["metrics"].get("batch/episodes")) for row in history]
    plain = records.TrainingCurve(start=start, end=end, plays=plays)
    if not rows or any(share is None or not count for share, count in rows):
        return plain
    shares = [float(share) for share, _ in rows]
    episodes = fmean(float(count) for _, count in rows)
    steps = math.ceil(WINDOW_EPISODES / episodes)
    if len(shares) < min_steps_to_detect(episodes):
        return plain
    means = [fmean(shares[at : at + steps]) for at in range(len(shares) - steps + 1)]
    error = math.sqrt(max(0.25 / episodes, fmean((b - a) ** 2 for a, b in pairwise(shares)) / 2) / steps)
    return plain.model_copy(update={"first": means[0], "peak": max(means), "last": means[-1], "error": error})


def detect_collapse(conditions: records.Conditions, rule: CollapseRule) -> str | None:
    """Return how a run that was measured collapsed, in a clause; None for one that did not, or that nobody can say."""
    if conditions.stopped_by in _BREAKDOWNS:
        return f"it was stopped as it broke down ({conditions.stopped_by})"
    found = conditions.course
    if found is None:
        return None
    if found.start - found.end > rule.errors * math.sqrt(0.5 / found.plays):
        return f"it ended at {found.end:.3f}, below its beginning of {found.start:.3f}"
    if found.first is None or found.peak is None or found.last is None or found.error is None:
        return None
    lost, gained = found.peak - found.last, found.peak - found.first
    if lost > rule.lost * gained and lost > rule.errors * math.sqrt(2) * found.error:
        begun = "where it began" if gained == 0 else f"having begun at {found.first:.3f}"
        return f"its training success fell from {found.peak:.3f} to {found.last:.3f}, {begun}"
    return None


def has_started(conditions: records.Conditions, rule: StartRule) -> bool:
    """Return whether a training ended above where it began; of one of which nobody can say, that it did."""
    if (found := conditions.course) is None:
        return True
    if found.end - found.start > rule.errors * math.sqrt(0.5 / found.plays):
        return True
    if found.first is None or found.last is None or found.error is None:
        return False
    return found.last - found.first > rule.errors * math.sqrt(2) * found.error


def collapse_rate(arm: str, count: int, of: int) -> CollapseRate:
    low, high = one_sided_limits(count, of, (1 + _LEVEL) / 2)
    return CollapseRate(arm=arm, count=count, of=of, low=low, high=high, upper=one_sided_limits(count, of, _LEVEL)[1])


def find_zero_lr_run(state: StudyState) -> RunState | None:
    return next((run for run in state.runs_in("noise") if run.spec.arm == records.PLUMBING_ARM), None)


def list_untrained_runs(state: StudyState) -> list[RunState]:
    return [run for run in state.every_run.values() if records.is_untrained_run(run.spec) and run.status == "collected"]


def find_untrained_run(state: StudyState, spec: RunSpec) -> RunState | None:
    return next((run for run in list_untrained_runs(state) if records.shares_untrained(spec, run.spec)), None)


def find_fault(seen: records.Conditions | None) -> str | None:
    if seen is None or (still := seen.stillness) is None:
        return None
    if still.before is not None and still.after is not None and still.before != still.after:
        return (
            f"{seen.steps} training steps with a learning rate of 0 changed the weights: expected them bit-equal "
            f"({still.before[:12]}), found {still.after[:12]}"
        )
    if still.probs_tolerance is not None and seen.probs_diff is not None and seen.probs_diff > still.probs_tolerance:
        return (
            f"engine and learner differ by {seen.probs_diff:.3g} on the probability of a sampled token under the same "
            f"weights, where their backend states at most {still.probs_tolerance:g}"
        )
    return None


def list_unreported(seen: records.Conditions | None) -> tuple[str, ...]:
    still, missing = None if seen is None else seen.stillness, []
    if still is None or None in (still.before, still.after):
        missing.append("whether the weights stayed as they were")
    if seen is None or still is None or None in (still.probs_tolerance, seen.probs_diff):
        missing.append("whether engine and learner agree on probabilities")
    return tuple(missing)


def describe_zero_lr_run(run: RunState) -> str:
    seen = run.conditions or records.Conditions()
    if (fault := find_fault(seen)) is not None:
        return fault
    unsaid = list_unreported(seen)
    if not unsaid and seen.stillness is not None:
        return (
            f"{seen.steps} steps with a learning rate of 0 left the weights bit-equal, and engine and learner differed "
            f"by at most {seen.probs_diff:.2g} on a probability ({seen.stillness.probs_tolerance:g} is allowed)"
        )
    return f"{seen.steps} steps with a learning rate of 0 ran; the backend cannot say {' nor '.join(unsaid)}"


def unequal_drops(state: StudyState, claim: Hypothesis) -> tuple[str, ...]:
    """Return in what the arms of a hypothesis and its control lost different shares, with the counts: each a clause."""
    if (design := state.design) is None:
        return ()
    control, *others = design.contrast_of(claim)
    clauses = []
    for names in ((control, other) for other in others):
        arms = [[run for run in state.runs_of(name) if run.attempts and not run.cut] for name in names]
        ends = ([run.invalid[0] for run in runs if run.invalid is not None] for runs in arms)
        lost = [sum(code not in design.counted_as_worst for code in codes) for codes in ends]
        if all(arms) and lost[0] * len(arms[1]) != lost[1] * len(arms[0]):
            shares = (f"{n} of {len(runs)} with {name}" for name, n, runs in zip(names, lost, arms, strict=True))
            clauses.append(f"runs left out: {', '.join(shares)}")
    return tuple(clauses)


def had_no_signal(run: RunState) -> bool:
    """Return whether a collected run learned nothing from rewards in any step; not, where its files do not say."""
    if run.status != "collected" or run.spec.arm == records.PLUMBING_ARM or (seen := run.conditions) is None:
        return False
    return seen.signal_steps == 0 and bool(seen.steps)


def count_without_signal(state: StudyState) -> dict[str, tuple[int, int]]:
    """Return how many collected runs of each arm learned nothing from rewards, of how many; of arms that have some."""
    runs = [run for run in state.runs.values() if run.status == "collected" and run.spec.arm != records.PLUMBING_ARM]
    whole, none = Counter(run.spec.arm for run in runs), Counter(run.spec.arm for run in runs if had_no_signal(run))
    return {arm: (none[arm], count) for arm, count in whole.items() if none[arm]}
