"""What to ask next, as a command.

It follows by rules from the verdict, never from a planner. Whether a command can be had is for the design compiler to
say: `list_next_questions` are what may be asked, and `study.concluded` holds the first of them that was compiled.
"""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from studies.log.study import StudyState
from studies.records.base import JsonValue
from studies.records.design import BUILT_IN, CONFIGURATION, MODEL, SLOTS, SUCCESS, Design, Hypothesis, Metric
from studies.records.procedure import InterimAnalysis
from studies.records.runs import VETOED
from studies.records.statements import along, effect_of, metric_name, value_of
from studies.records.verdict import Verdict, one_line
from studies.report.wording import capital, duration, format_signed, format_size, number, percent, plural, setting, span
from studies.statistics.comparison import contrast
from studies.statistics.power import exaggeration, min_detectable_effect, power_design, seeds_needed
from studies.statistics.proportions import min_detectable_rate, seeds_for_rates
from studies.verdicts.judge import gather
from studies.verdicts.rules import LEAST_KEPT
from studies.verdicts.wording import DecidingInterval, deciding_interval, find_unequal_training

POWER: Final = 0.8
"""Probability with which a difference counts as seen, where the design promised none."""
LESS: Final = "expect less, as differences that are large enough to be claimed are on average measured too large"
"""Of every estimate that a reader may want to rely on because it was claimed."""
_LEVEL: Final = 0.95
_ROOM: Final = 1.1
"""Times what a study is priced at that its budget is proposed with."""
_MOST_LONGER: Final = 8.0
"""A study that would take more than so many times its budget is not proposed."""
_SAFELY: Final = 0.9
"""Part of what trainings ended at that a threshold they reach may have."""
_GRAIN: Final = 0.05
"""What thresholds are rounded down to."""
_OF_ONE_RUN: Final = {"--json": 0, "--approve": 1}
"""Flags that say how a study is run and shown, not what it asks, with how many values each takes."""
_URGENCY: Final = ("invalid", "inconclusive", "supported", "refuted", "equivalent")
"""Which of several verdicts the next question is about: what is open first."""


@dataclass(frozen=True, slots=True)
class ReachedPower:
    """What a comparison of this spread can see, by the test's power."""

    detectable: float
    """The smallest true difference that is seen with probability `power`."""
    power: float
    wanted: float | None
    """The smallest difference that matters, where somebody said."""
    seeds: int | None
    """Seeds of each arm that would see `wanted`; None where nobody said, or where 200 are too few."""


def in_practice(state: StudyState, design: Design, claim: Hypothesis, verdict: Verdict) -> str:
    """Return what a reader may do on a verdict, with the trainings that collapsed counted where there were any."""
    if _is_given_up(state, claim, verdict):
        return "conclude nothing: it was vetoed before it had the runs to be judged by. Nothing has to be mended."
    if verdict.verdict == "invalid":
        return "conclude nothing: what stands above has to be mended, and the comparison run again."
    if verdict.exploratory:
        advice = "treat it as a lead: a claim needs a study of its own, locked before its data."
    elif verdict.verdict == "equivalent":
        advice = _by_cost(state, design, claim, verdict)
    elif verdict.verdict == "inconclusive":
        advice = f"do not read it as no difference: {_not_seen(design, claim, verdict)}"
    else:
        advice = _prefer(state, design, claim, verdict)
    if not any(rate.count for rate in verdict.collapses) or verdict.low is None:
        return advice
    arms, weights, unit = gather(state, look=verdict.look), design.contrast_of(claim), design.metric.unit
    values = [arms[name].runs(design.metric.worst).numbers for name in weights]
    if (whole := contrast(values, tuple(weights.values()))) is None:
        return advice
    low, high = whole.interval(_LEVEL)
    size = f"{format_signed(whole.estimate, unit=unit)} ({span(low, high, unit=unit)})"
    counted = f"with the trainings that collapsed counted, the difference is {size}."
    sign, same = -1 if (verdict.estimate or 0.0) < 0 else 1, verdict.equivalence
    name = "" if verdict.exploratory else verdict.verdict
    if name == "equivalent" and same is not None and max(-low, high) >= same.margin:
        return f"do not choose by cost: {counted}"
    # collapses that add to a difference, as those of the worse arm, take nothing from it
    less = min(sign * low, sign * high) <= 0 and sign * whole.estimate < abs(verdict.estimate or 0.0)
    if name in ("supported", "refuted") and less:
        return f"prefer neither by this: {counted}"
    return f"{advice} {capital(counted)}"


def _is_given_up(state: StudyState, claim: Hypothesis, verdict: Verdict) -> bool:
    if verdict.verdict != "invalid" or claim.id not in state.vetoed:
        return False
    left_out = {name.rpartition(": ")[2] for name in verdict.excluded}
    other = verdict.reason.startswith("the lock ") or any(line in verdict.reason for line in verdict.violations)
    return not other and left_out <= {VETOED} and (bool(left_out) or fewest(verdict) < 2)


def _setting_of(verdict: Verdict) -> str:
    words = (("started", "start"), ("not_collapsed", "do not collapse"))
    whom = " and ".join(said for scope, said in words if scope in verdict.scope)
    return f"in this setting, where trainings {whom}" if whom else "in this setting"


def _by_cost(state: StudyState, design: Design, claim: Hypothesis, verdict: Verdict) -> str:
    assert verdict.equivalence is not None  # equivalent is what two one-sided tests say
    margin = format_size(verdict.equivalence.margin, design.metric)
    if claim.kind == "interaction":
        return (
            f"take the {effect_of(claim)} to be the same with both values of {claim.moderator}: what they differ by "
            f"lies within ±{margin}."
        )
    lead = f"{_setting_of(verdict)}, choose by cost: what difference there is lies within ±{margin}"
    if verdict.nonzero and verdict.estimate is not None:
        lead += f", though it is not zero ({format_signed(verdict.estimate, unit=design.metric.unit)})"
    costs = []
    for value in (claim.treatment, claim.control):
        runs = state.runs_of(design.arm_with(claim.variable, value).name)
        lines = [run.lineage for run in runs if run.status == "collected"]
        seconds = [sum(one.seconds or 0.0 for one in line) for line in lines if line and line[-1].seconds is not None]
        costs += [f"{duration(fmean(seconds))} with {setting(claim, value)}"] if seconds else []
    return f"{lead}; a run took {' and '.join(costs)}." if len(costs) == 2 else f"{lead}."


def _prefer(state: StudyState, design: Design, claim: Hypothesis, verdict: Verdict) -> str:
    interval, unit = deciding_interval(design, verdict), design.metric.unit
    assert verdict.estimate is not None  # supported and refuted have one
    assert interval is not None
    where, less = _setting_of(verdict), _expect_less(design, claim, verdict)
    caution = ", part of which may come from the unequal training" if find_unequal_training(verdict) else ""
    again = next((entry for entry in state.replications if entry.hypothesis == claim.id), None)
    if again is not None and design.replication is not None:
        caution += f"; in {design.replication.environment} the same comparison was {again.verdict}"
    ends = span(interval.low, interval.high, unit=unit)
    size = f"{format_signed(verdict.estimate, unit=unit)} (from {ends}) of {metric_name(design.metric)}"
    if claim.contrast:
        return (
            f"{where}, read it as that weighted sum alone: {size} was measured {along(claim)}{caution}; {less}; which "
            "setting is best was not tested."
        )
    if claim.kind == "trend":
        first, last = (value_of(value) for value in (claim.control, claim.treatment))
        return (
            f"{where}, read it as a direction: from {claim.variable} = {first} to {last}, {size} was measured "
            f"{along(claim)}{caution}; {less}; which value between is best was not tested."
        )
    if claim.kind == "interaction":
        before, after = (value_of(value) for value in claim.varied[claim.moderator])
        return (
            f"{where}, choose {claim.moderated} anew for each {claim.moderator}: its effect with {after} "
            f"differs from that with {before} by {size} as measured{caution}; {less}; whether either effect is above "
            "zero was not tested."
        )
    caution += ", against a control nobody uses: the usual value may be better still" if claim.unused_control else ""
    treatment_wins = (verdict.estimate > 0) == design.metric.higher_is_better
    better, other = (claim.treatment, claim.control) if treatment_wins else (claim.control, claim.treatment)
    return (
        f"{where}, prefer {setting(claim, better)} to {setting(claim, other)}: "
        f"{format_gain(design.metric, verdict.estimate, interval)} was measured{caution}; {less}."
    )


def _expect_less(design: Design, claim: Hypothesis, verdict: Verdict) -> str:
    sd = max(design.noise.sd if design.noise is not None else 0.0, _spread(verdict) or 0.0)
    if not sd or design.promise is None or design.test == "boschloo":
        return LESS
    at, effect = InterimAnalysis(seeds=fewest(verdict), alpha=1 - verdict.level), design.promise.effect
    shape = replace(power_design(design, claim), analyses=(at,), families=1)
    times = [f"{exaggeration(shape, sd, effect / part):.1f}" for part in (1, 2, 4)]
    return (
        f"expect less: where {format_size(effect, design.metric)}, half or a quarter of it is true, claims at this "
        f"look measure {times[0]}, {times[1]} or {times[2]} times as much"
    )


def format_gain(metric: Metric, estimate: float, interval: DecidingInterval) -> str:
    """Return what the better arm was measured to have more of, or fewer where a name begins with what is counted."""
    name, unit, sign = metric_name(metric), metric.unit, 1 if (estimate > 0) == metric.higher_is_better else -1
    value, (low, high) = sign * estimate, sorted((sign * interval.low, sign * interval.high))
    if metric.cut_at is not None and name.startswith(unit) and high < 0:
        return f"{number(-value, unit=unit)} fewer ({number(-high, unit=unit)} to {number(-low, unit=unit)}) {name}"
    return f"{format_signed(value, unit=unit)} (from {span(low, high, unit=unit)}) of {name}"


def _not_seen(design: Design, claim: Hypothesis, verdict: Verdict) -> str:
    if verdict.collapses and verdict.low is None and any(rate.count for rate in verdict.collapses):
        said = one_line(verdict.reason)
        return f"{said[0].lower()}{said[1:]}"
    if verdict.reached and verdict.estimate is None and design.metric.threshold is not None:
        return "too few trainings got there; ask for a threshold that most reach, or train longer."
    if design.test == "boschloo":
        power = design.promise.power if design.promise is not None else POWER
        rate = min_detectable_rate(min(verdict.n_control, verdict.n_treatment), target_power=power, alpha=design.alpha)
        could = "no rates are told apart here" if rate is None else f"0 against {percent(round(rate, 2))} is seen here"
        meant = design.promise.effect if design.promise is not None else claim.smallest_effect
        if meant is None:
            return f"{could} with {percent(power)} probability."
        takes = _count_seeds(seeds_for_rates(0.0, min(1.0, meant), target_power=power, alpha=design.alpha))
        return f"{could} with {percent(power)} probability; 0 against {percent(meant)} takes {takes} of each arm."
    if verdict.last is not None and verdict.low is None:
        return "nothing that a difference could be seen by was left of the level at so early an end."
    found = reached_power(design, claim, verdict)
    if found is None:
        return "of so few runs, or without any spread, nothing is known of what could have been seen."
    least, wanted = format_size(found.detectable, design.metric), format_size(found.wanted, design.metric)
    could = f"differences of about {least} or more are seen here with {percent(found.power)} probability"
    if found.wanted is None:
        return f"{could}."
    if found.seeds is not None and found.seeds <= fewest(verdict):
        return f"{could}, so that one of {wanted} or more is unlikely, not excluded."
    return f"{could}; one of {wanted} takes {_count_seeds(found.seeds)} of each arm."


def _count_seeds(needed: int | None) -> str:
    return "more than 200 seeds" if needed is None else plural(needed, "seed")


def reached_power(design: Design, claim: Hypothesis, verdict: Verdict) -> ReachedPower | None:
    """Return what a comparison could see at the spread it met; None without one, or where no mean is judged."""
    sd, runs = _spread(verdict), fewest(verdict)
    if not sd or runs < (2 if design.collapse is None else LEAST_KEPT) or design.test == "boschloo":
        return None
    whole, promise = power_design(design, claim), design.promise
    shape = whole if runs == whole.seeds else whole.with_seeds(runs)
    power, wanted = (promise.power, promise.effect) if promise is not None else (POWER, claim.smallest_effect)
    needed = seeds_needed(shape, wanted, sd, target_power=power) if wanted is not None else None
    return ReachedPower(min_detectable_effect(shape, sd, target_power=power), power, wanted, needed)


def _spread(verdict: Verdict) -> float | None:
    known = [arm.sd for arm in verdict.arms] or [verdict.sd_control, verdict.sd_treatment]
    sds = [each for each in known if each is not None]
    return verdict.sd_pooled or (math.sqrt(fmean(each * each for each in sds)) if sds else None)


def fewest(verdict: Verdict) -> int:
    return min([arm.n for arm in verdict.arms] or [verdict.n_control, verdict.n_treatment])


@dataclass(frozen=True, slots=True)
class ProposedStudy:
    """What a proposed command asks: as much as it takes to compile it."""

    budget_s: float
    topic: str | None = None
    """None for the study's own question, with all that its flags say."""
    environment: str | None = None
    """What a flag names; None for what the topic names."""
    metric: str = ""
    effect: float | None = None


@dataclass(frozen=True, slots=True)
class NextQuestion:
    """What is worth doing next, in a clause, and the command that does it; empty where there is none."""

    why: str
    command: str
    asks: ProposedStudy | None = None
    """None for a command that begins no study."""


def ask_next(state: StudyState) -> NextQuestion:
    """Return what to ask next: how a study goes on, else what was compiled when it ended; of older studies a plan."""
    resume = f"ajet study resume {state.id}"
    if state.stopped_reason is not None and state.concluded_reason is None:
        if state.denial is not None or "budget" not in state.stopped_reason:
            return NextQuestion("the rest of this study", resume)
        more = f'ajet study amend {state.id} --budget {_minutes(2 * state.budget_s)}m --reason "more time"'
        late = ", exploratory, as the level is spent" if any(v.last and v.p is not None for v in state.verdicts) else ""
        return NextQuestion(f"the rest of this study, with more time{late}", f"{more} && {resume}")
    if state.status == "paused":
        return NextQuestion("the rest of this study", resume)
    if state.status == "waiting":
        return NextQuestion("what this study waits for, once it is approved", f"ajet study approve {state.id}")
    if state.status in ("planning", "running"):
        return NextQuestion("nothing before this study ends", f"ajet study watch {state.id}")
    if state.asked_next is not None:
        return NextQuestion(state.asked_next["why"], state.asked_next["command"])
    first = list_next_questions(state)[0]
    return replace(first, command=first.command.replace("ajet research", "ajet study plan", 1))


def list_next_questions(state: StudyState) -> tuple[NextQuestion, ...]:
    """Return what may be asked next, the best first. Only the compiler knows whether it can be had."""
    if state.declined:
        why, words = "the question in other words, as the planner declined it", _without(_words(state), _OF_ONE_RUN)
        if (state.settings.get("sandbox") or {}).get("kind", "process") != "process" or not words:
            return (NextQuestion(why, "ajet study plan '...'"),)
        why += "; or, if what it lacks is code that can be varied, such as a reward function, the same in containers"
        return (NextQuestion(why, shlex.join([*_without(words, {"--sandbox": 1}), "--sandbox", "docker"])),)
    design = state.design
    judged = [(design.hypothesis(verdict.hypothesis), verdict) for verdict in state.verdicts] if design else []
    if design is None or not judged:
        return (_same_question(state, "the same question with more time", 2.0),)
    judged.sort(key=lambda pair: _URGENCY.index(pair[1].verdict))
    leads: list[NextQuestion] = []
    for claim, verdict in judged:
        fallen = any(rate.count for rate in verdict.collapses)
        if fallen and verdict.low is None:  # so many that nothing is compared: more of them would tell no more
            leads.append(_ask_collapses(state, design, claim))
        if verdict.verdict == "inconclusive":
            leads += _with_more(state, design, claim, verdict)
        elif verdict.verdict == "supported" or (claim.open and verdict.verdict == "refuted"):
            again = NextQuestion("whether it holds again", f"ajet study reproduce {state.id} --claims {claim.id}")
            if (of := state.reproduces) is not None:
                again = NextQuestion(f"something else: {of.study} is {of.outcome(verdict)}", "ajet study plan '...'")
            leads.append(again)
        elif verdict.verdict == "refuted":
            why = "whether the opposite holds, as a claim of its own on fresh seeds"
            leads.append(_compare(state, design, claim, why, (claim.treatment, claim.control)))
        elif _is_given_up(state, claim, verdict):
            leads.append(_same_question(state, "the same again, without a veto", 1.0))
        elif verdict.verdict == "invalid":
            leads.append(_same_question(state, "the same again, once what made it invalid is mended", 1.0))
        if fallen and verdict.low is not None:
            leads.append(_ask_collapses(state, design, claim))
        elif verdict.verdict == "equivalent":
            why = "something else: here nothing that matters was left to find"
            leads.append(NextQuestion(why, "ajet study plan '...'"))
    return tuple(leads)


def _ask_collapses(state: StudyState, design: Design, claim: Hypothesis) -> NextQuestion:
    return _compare(state, design, claim, "which of them collapses more often", metric="collapse")


def _with_more(state: StudyState, design: Design, claim: Hypothesis, verdict: Verdict) -> Iterator[NextQuestion]:
    if verdict.reached and verdict.estimate is None:
        names = (design.control_arm, design.arm_with(claim.variable, claim.treatment).name)
        ended = [sorted(state.values(name, SUCCESS).values()) for name in names]
        most = min((values[len(values) // 4] if values else 0.0) for values in ended)
        nearer = math.floor(_SAFELY * most / _GRAIN) * _GRAIN
        if _GRAIN <= nearer < (design.metric.threshold or 0.0):
            why = f"which is faster to {nearer:.2g}, which most trainings reach"
            yield _compare(state, design, claim, why, metric=f"{design.metric.kind}:{nearer:.2g}")
    found = reached_power(design, claim, verdict)
    longer = max(2.0, found.seeds / fewest(verdict)) if found is not None and found.seeds is not None else 2.0
    longer = min(longer, _MOST_LONGER)
    # Seeds follow from the effect that is to be seen: after all looks the same one would lead to as many again.
    finer = longer if verdict.last is None else 1.0
    yield _compare(state, design, claim, "the same comparison with more seeds", longer=longer, finer=finer)


def _compare(
    state: StudyState, design: Design, claim: Hypothesis, why: str, values: tuple[JsonValue, JsonValue] | None = None,
    *, longer: float = 1.0, finer: float = 1.0, metric: str = "",
) -> NextQuestion:  # fmt: skip
    """Return a comparison of two values of the claim's variable, or of its own, by the design's metric unless named,
    with `finer` times as many seeds. Where a topic in words cannot name both values, it is the study's own question."""
    whole = claim.sought == "equivalence" or claim.kind != "difference"
    unsayable = claim.variable in (*SLOTS, CONFIGURATION, MODEL) or any(
        value == BUILT_IN or isinstance(value, bool | Mapping | list) or value is None
        for value in (claim.control, claim.treatment)
    )
    if unsayable or (values is None and whole and not metric):
        return _same_question(state, why, longer)
    left, right = (value_of(value) for value in values or (claim.control, claim.treatment))
    steps, own = design.base_job.get("steps"), design.metric
    trained = f" with {steps} training steps" if isinstance(steps, int) and claim.variable != "steps" else ""
    matched = " at the same number of episodes" if claim.matched == "episodes" else ""
    brought = design.environment in {known.name for known in design.environments}
    of = own.of or ("" if own.threshold is None else f"{own.threshold:g}")
    minutes = _minutes(longer * state.budget_s)
    effect = None if design.promise is None or metric == "collapse" else design.promise.effect
    asked = ProposedStudy(
        budget_s=60.0 * minutes,
        topic=f"{claim.variable} {left} vs {right}{'' if brought else f' on {design.environment}'}{trained}{matched}",
        environment=design.environment if brought else None,
        metric=metric or own.kind + (f":{of}" if own.kind and of else ""),
        effect=effect if effect is None or finer == 1.0 else float(f"{effect / math.sqrt(finer):.2g}"),
    )
    command = f"ajet research {shlex.quote(asked.topic or '')}"
    command += f" --env {shlex.quote(asked.environment)}" if asked.environment else ""
    words = _words(state)
    for flag in ("--job", "--model", "--model-path", "--server"):
        given = [word.removeprefix(f"{flag}=") for word in words if word.startswith(f"{flag}=")]
        given += [words[at + 1] for at, word in enumerate(words[:-1]) if word == flag]
        command += "".join(f" {shlex.quote(f'{flag}={value}')}" for value in given)
    command += f" --metric {shlex.quote(asked.metric)}" if asked.metric else ""
    command += "" if asked.effect is None else f" --effect {asked.effect:g}"
    return NextQuestion(why, f"{command} --budget {minutes}m", asked)


def _words(state: StudyState) -> list[str]:
    return [str(word) for word in state.command] if isinstance(state.command, list | tuple) else []


def _without(words: Sequence[str], flags: Mapping[str, int]) -> list[str]:
    dropped = {at + more for at, word in enumerate(words) for more in range(1 + flags.get(word, -1))}
    return [word for at, word in enumerate(words) if at not in dropped and word.partition("=")[0] not in flags]


def restate(state: StudyState, budget_s: float) -> str:
    """Return the command of a study that explored as one that tests: any number of runs, so many seconds and some."""
    asked = replace(state, command=_without(_words(state), {"--max-runs": 1, "--explore": 0}))
    return _same_question(asked, "", _ROOM * budget_s / state.budget_s).command


def _same_question(state: StudyState, why: str, longer: float) -> NextQuestion:
    if not (words := _without(_words(state), _OF_ONE_RUN)):
        return NextQuestion(why, str(state.command), ProposedStudy(state.budget_s))
    budget = f"{_minutes(longer * state.budget_s)}m"
    kept = [word for word in words if not word.startswith("--budget=")]
    if "--budget" in words[:-1]:
        kept = words
        kept[words.index("--budget") + 1] = budget
    elif longer != 1.0 or kept != words:
        kept += ["--budget", budget]
    return NextQuestion(why, shlex.join(kept), ProposedStudy(longer * state.budget_s))


def _minutes(seconds: float) -> int:
    return math.ceil(seconds / 60)
