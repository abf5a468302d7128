"""What the studies of this home found: verdicts that stand, searched, held against one another, made a recipe.

A finding is read from a study's log and its verified files; one whose verdict does not follow from them stands without
numbers. The recipe of a study is the job under all arms with every confirmed better value, in the environment and by
the metric that was asked for first.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal, get_args

from research.design.noise_bank import metric_key, model_key
from research.errors import BadInput
from research.installation.base_job import APART, base_job_of, parse_job, without_model_path
from research.installation.home import Home
from research.installation.studies import RESULTS_VERSION, cached_studies
from studies import EventLog, StudyState
from studies.proof import DOES_NOT_FOLLOW, verdict_fault
from studies.records.base import JsonValue, Record, canonical, digest
from studies.records.design import MODEL, SLOTS, Hypothesis
from studies.records.procedure import Phase
from studies.records.statements import metric_name, model_name, sentences, setting
from studies.records.verdict import Outcome, Verdict
from studies.verdicts.recipe import BetterValue, ExcludedClaim, find_untested_pairs, format_fields, holds, recipes
from studies.verdicts.wording import deciding_interval
from swarm.job import Job, TinyModel, tunables

KnownVerdict = Literal["supported", "refuted", "equivalent", "inconclusive", "invalid", "does not follow"]
"""A verdict, or that it does not follow from the files any more: then nothing else is said of it."""
FILE: Final = "findings.json"
_FORM: Final = f"2, results {RESULTS_VERSION}"
"""The first number is that of what is kept of a study."""
_CODE: Final = "its reward is code, and no field of a job; see the report"


class FindingConditions(Record):
    """Where a finding holds."""

    environment: str
    model: str
    """What people call the model that is trained."""
    model_key: str
    """Key of the model and of what trains it, as in the noise bank."""
    metric: str
    """Key of the metric with all that its values depend on."""
    metric_name: str
    job: str
    """Digest of the job under all arms, whatever the compared fields, the seed and the schedule of evaluations are."""
    fields: Mapping[str, JsonValue]
    """What that job has otherwise than a job that says nothing, but for model, environment and compared fields."""


class KnownFinding(Record):
    """A verdict that stands, of any study and round."""

    study: str
    round: int
    hypothesis: str
    phase: Phase
    """`replicate` for the same comparison in another setting."""
    claim: str
    """What was put to the test, a sentence by code."""
    variable: str
    control: JsonValue
    treatment: JsonValue
    verdict: KnownVerdict
    estimate: float | None = None
    """Treatment minus control, in the metric's own unit; None where there is none."""
    low: float | None = None
    high: float | None = None
    level: float | None = None
    """Level of the interval that decided, from `low` to `high`."""
    n_control: int
    n_treatment: int
    exploratory: bool
    """Whether an amendment after the first result touched it."""
    lock: str
    """Hash of the lock that it was judged under."""
    conditions: FindingConditions
    doubt: str = ""
    """Why the verdict does not follow; empty where it does."""
    challenges: tuple[str, ...] = ()
    reproduces: str = ""
    """Of a claim that was put to the test again, its name and lock there, and what was found."""
    outcome: str = ""
    replications: Mapping[str, str] = {}
    """What studies here that put it to the test again came to, by their names."""

    @property
    def name(self) -> str:
        again = "" if self.phase == "confirm" else f"/{self.phase}"
        return f"{self.study}/{self.round}/{self.hypothesis}{again}"

    @property
    def standing(self) -> str:
        """What became of it, or of the claim that it puts to the test again; each clause after a semicolon."""
        by = {came: [name for name, own in self.replications.items() if own == came] for came in get_args(Outcome)}
        told = (f"{came} by {len(names)} ({', '.join(names)})" for came, names in by.items() if names)
        again = [f"{self.reproduces.split()[0]} {self.outcome} by it"] if self.reproduces else []
        return "".join(f"; {clause}" for clause in (*told, *again, *self.challenges))

    @property
    def compared(self) -> tuple[str, tuple[str, ...], str]:
        """What was compared, whichever arm was the control: variable, values in a fixed order, metric."""
        values = sorted((self.control, self.treatment), key=_sort_key)
        return self.variable, tuple(map(canonical, values)), self.conditions.metric

    @property
    def sign(self) -> int:
        """1 where the later value of `compared` is said to have the higher metric, -1 where the lower, else 0."""
        if self.verdict not in ("supported", "refuted") or not self.estimate:
            return 0
        return 1 if (self.estimate > 0) == self._in_order else -1

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval, turned to be of the later value minus the earlier one in the order of `compared`."""
        if self.low is None or self.high is None:
            return None
        return (self.low, self.high) if self._in_order else (-self.high, -self.low)

    @property
    def _in_order(self) -> bool:
        return _sort_key(self.treatment) >= _sort_key(self.control)


def _sort_key(value: JsonValue) -> tuple[bool, float, str]:
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, canonical(value)


def findings_of(state: StudyState, folder: Path) -> tuple[KnownFinding, ...]:
    """Return what each round of a study found; a verdict that does not follow from `folder` stands without numbers."""
    findings = []
    for entry in state.rounds:
        for claim in entry.design.hypotheses if entry.design is not None else ():
            verdict = entry.verdict_on(claim.id)
            settled = [verdict] if verdict is not None and entry.is_settled(claim.id) else []
            again = [other for other in entry.replications if other.hypothesis == claim.id]
            findings += [build_finding(entry, claim, verdict, folder) for verdict in (*settled, *again)]
    return tuple(findings)


def build_finding(state: StudyState, claim: Hypothesis, verdict: Verdict, folder: Path) -> KnownFinding:
    design = state.design
    assert design is not None
    job = {**design.base_job, "environment": design.environment}
    if verdict.phase == "replicate" and design.replication is not None:
        job |= {**design.replication.overrides, "environment": design.replication.environment}
    environment, doubt = str(job["environment"]), verdict_fault(state, folder, verdict)
    least = design.promise.effect if design.promise else None
    outcome: dict[str, Any] = {"verdict": DOES_NOT_FOLLOW, "doubt": doubt or ""}
    if doubt is None:
        interval = deciding_interval(design, verdict)
        ends = (None, None, None) if interval is None else (interval.low, interval.high, interval.level)
        numbers = dict(zip(("estimate", "low", "high", "level"), (verdict.estimate, *ends), strict=True))
        outcome = {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}
        outcome |= {"verdict": verdict.verdict}
    recorded, apart = parse_job(job), {*APART, *claim.declared}
    if recorded is None:
        values, alike, usual = dict(job), dict(job), Job.default_fields(TinyModel())
    else:
        values, alike = recorded.model_dump(mode="json"), without_model_path(recorded).value()
        usual = Job.default_fields(recorded.model, recorded.lora_rank)
    shown = sorted(values.keys() - {*apart, MODEL, "environment"})
    played = " apart" * bool(design.metric.evaluates_apart(claim.declared))
    played += " by agent" * bool(design.metric.evaluate_by)
    conditions = FindingConditions(
        environment=environment, metric=metric_key(design.metric) + played, metric_name=metric_name(design.metric),
        model="compared" if MODEL in claim.declared else model_name(values.get(MODEL, {})),
        model_key=digest(values.get(MODEL))[:16] if recorded is None else model_key(recorded),
        job=digest({name: value for name, value in alike.items() if name not in apart})[:16],
        fields={name: values[name] for name in shown if values[name] != usual.get(name)},
    )  # fmt: skip
    if (of := state.reproduces) is not None and doubt is None:
        (before,) = (known for known in of.verdicts if known.hypothesis == claim.id)
        named = f"{of.study}/{of.round}/{claim.id} {of.lock} {before.verdict} {before.estimate}"
        outcome |= {"reproduces": named, "outcome": of.outcome(verdict)}
    return KnownFinding(
        study=state.id, round=state.round, hypothesis=claim.id, phase=verdict.phase,
        claim=sentences([claim], environment, least, design.metric)[0],
        variable=claim.variable, control=claim.control, treatment=claim.treatment,
        n_control=verdict.n_control, n_treatment=verdict.n_treatment, exploratory=verdict.exploratory,
        lock=str(state.design_hash), conditions=conditions, challenges=state.challenges(claim.id), **outcome,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class KnownFindings:
    """What is known, the newest study first, each study's rounds in order."""

    findings: tuple[KnownFinding, ...]
    left_out: Mapping[str, str]
    """Studies whose log cannot be read, with what is wrong."""


def load_findings(home: Home, log: EventLog) -> KnownFindings:
    def content(state: StudyState) -> dict[str, Any]:
        return {"findings": [entry.model_dump(mode="json") for entry in findings_of(state, home.study(state.id))]}

    contents = cached_studies(home, log, FILE, _FORM, content, lambda study, error: {"corrupt": error})
    entries = (entry for kept in contents.values() for entry in kept.get("findings", ()))
    left_out = {study: str(kept["corrupt"]) for study, kept in contents.items() if "corrupt" in kept}
    found, again = list(map(KnownFinding.model_validate, entries)), defaultdict[str, dict[str, str]](dict)
    for finding in found:
        again[finding.reproduces][finding.study] = finding.outcome
    told = ((one, again.get(f"{one.name} {one.lock} {one.verdict} {one.estimate}", {})) for one in found)
    return KnownFindings(tuple(one.model_copy(update={"replications": named}) for one, named in told), left_out)


def search_findings(findings: Iterable[KnownFinding], words: Sequence[str]) -> tuple[KnownFinding, ...]:
    """Return the findings of which each word begins a word of claim, study, verdict, conditions or field synonyms."""
    wanted = (part for word in words for part in _normalize(word).split())
    patterns, marks = [re.compile(rf"(?<![\w.]){re.escape(part)}") for part in wanted], tunables()

    def matches(finding: KnownFinding) -> bool:
        where, fields = finding.conditions, finding.treatment if isinstance(finding.treatment, dict) else ()
        synonyms = (word for name in (finding.variable, *fields) if name in marks for word in marks[name].synonyms)
        text = _normalize(" ".join((
            finding.name, finding.claim, finding.standing, finding.verdict, finding.variable, where.environment,
            where.model, where.model_key, where.metric, where.metric_name, where.job, *synonyms,
            *(f"{name} {value}" for name, value in where.fields.items()),
        )))  # fmt: skip
        return all(pattern.search(text) for pattern in patterns)

    return tuple(filter(matches, findings))


def list_effects(findings: Sequence[KnownFinding], most: int) -> list[dict[str, Any]]:
    """Return how large differences were here by field, environment, metric and model, the most comparisons first."""
    groups = defaultdict[tuple[str, ...], list[KnownFinding]](list)
    for entry in findings:
        where = entry.conditions
        if entry.estimate is not None:
            groups[entry.variable, where.environment, where.metric_name, where.model].append(entry)
    rows = []
    for place, group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))[:most]:
        sizes = sorted(abs(entry.estimate or 0.0) for entry in group)
        about = dict(zip(("field", "environment", "metric", "model"), place, strict=True))
        size = {"least": sizes[0], "median": median(sizes), "most": sizes[-1]}
        verdicts = Counter(entry.verdict for entry in group)
        rows.append({**about, "comparisons": len(group), "size": size, "verdicts": dict(verdicts)})
    return rows


def _normalize(text: str) -> str:
    return text.replace("_", " ").lower()


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Findings on the same values of the same variable, by the same metric, that cannot both hold everywhere."""

    one: tuple[KnownFinding, ...]
    """Those that find one side higher."""
    other: tuple[KnownFinding, ...]
    """Those that find the other side higher, or no difference where the others' intervals leave none."""
    differ: tuple[str, ...]
    """The conditions in which the two sides differ, each a clause; empty where nothing that is recorded differs."""


def find_contradictions(findings: Iterable[KnownFinding]) -> tuple[Contradiction, ...]:
    """Return what findings contradict one another on, in the order of the first of each."""
    groups: defaultdict[object, list[KnownFinding]] = defaultdict(list)
    for finding in findings:
        if finding.sign or finding.verdict == "equivalent":
            groups[finding.compared].append(finding)
    contradictions = []
    for group in groups.values():
        higher, lower, same = ([entry for entry in group if entry.sign == sign] for sign in (1, -1, 0))
        pairs = [(higher, lower)] if higher and lower else []
        for side in (higher, lower):
            if apart := _find_disjoint(same, side):
                pairs.append((_find_disjoint(side, apart), apart))
        contradictions += [Contradiction(tuple(a), tuple(b), tuple(_describe_differences(a, b))) for a, b in pairs]
    return tuple(contradictions)


def _find_disjoint(findings: Sequence[KnownFinding], others: Sequence[KnownFinding]) -> list[KnownFinding]:
    intervals = [entry.interval for entry in others if entry.interval is not None]
    lowest_high, highest_low = min((i[1] for i in intervals), default=inf), max((i[0] for i in intervals), default=-inf)
    known = ((entry, entry.interval) for entry in findings)
    return [entry for entry, own in known if own is not None and (own[1] < highest_low or own[0] > lowest_high)]


def _describe_differences(*sides: Sequence[KnownFinding]) -> Iterator[str]:
    """Yield the conditions in which two sides differ; a model of the same name may be another, or trained otherwise."""

    def differ(name: str, value: Callable[[FindingConditions], str]) -> list[str]:
        one, other = ({value(entry.conditions) for entry in side} for side in sides)
        return [] if one == other else [f"{name}: {' or '.join(sorted(one))} against {' or '.join(sorted(other))}"]

    def describe(name: str, where: FindingConditions) -> str:
        return canonical(where.fields[name]) if name in where.fields else "usual"

    yield from differ("environment", lambda where: where.environment)
    yield from differ("model", lambda where: where.model) or differ("model or backend", lambda where: where.model_key)
    for name in sorted({name for side in sides for entry in side for name in entry.conditions.fields}):
        yield from differ(name, partial(describe, name))


@dataclass(frozen=True, slots=True)
class ConfirmedValue:
    """What one comparison says to set, and its evidence."""

    fields: Mapping[str, JsonValue]
    over: Mapping[str, JsonValue]
    """The values that it was found better than."""
    finding: KnownFinding
    held_by: tuple[int, ...] = ()
    """Later rounds whose arms all had these values."""
    not_held_by: tuple[int, ...] = ()
    """Later rounds whose arms all had other ones."""

    @property
    def text(self) -> str:
        return format_fields(self.fields)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A job, what of it was confirmed, and what a reader must know of it."""

    job: Mapping[str, JsonValue]
    """As a job file has it: what it leaves out has its default."""
    confirmed: tuple[ConfirmedValue, ...]
    apart: tuple[str, ...]
    """Values that were never confirmed together, each pair a sentence."""
    notes: tuple[str, ...]
    """What else was found and is not in the job, or why nothing is."""


def recipe_of(state: StudyState, folder: Path, known: Iterable[KnownFinding] = ()) -> Recipe:
    """Return the recipe of a study whose files lie in `folder`, with what became of its claims where they are `known`;
    raise BadInput for unknown fields."""
    designs = {entry.round: entry.design for entry in state.rounds if entry.design is not None}
    if not designs:
        plain = _build_job_file(base_job_of(state.settings), {})
        return Recipe(plain, (), (), ("nothing was confirmed: no design was locked; this is the job under all arms",))
    findings = {(entry.round, entry.hypothesis, entry.phase): entry for entry in findings_of(state, folder)}
    findings |= {(one.round, one.hypothesis, one.phase): one for one in known if one.study == state.id}
    asked, *_ = recipes(
        state.rounds, lambda entry, verdict: not findings[entry.round, verdict.hypothesis, "confirm"].doubt
    )

    def describe(claim: BetterValue | ExcludedClaim) -> str:
        return _describe_comparison(findings[claim.round, claim.claim.id, "confirm"])

    notes = [f"{describe(left)}: {left.why}" for left in asked.left]
    notes += [f"{describe(value)}: {_CODE}" for value in asked.values if not value.fields.keys().isdisjoint(SLOTS)]
    for entry in findings.values():
        if entry.round not in asked.rounds or entry.phase != "confirm":
            where = f"in {entry.conditions.environment} by {entry.conditions.metric_name}"
            notes.append(f"{_describe_comparison(entry)}: {where}, and no part of the recipe")
    values = [value for value in asked.values if value.fields.keys().isdisjoint(SLOTS)]
    while (job := parse_job({**asked.base, **_merge_fields(values)})) is None:
        if not values:
            raise BadInput("expected a job that this ajet knows under all arms of the study; found other fields")
        out, beside = values.pop(), format_fields(_merge_fields(values))
        notes.append(f"{format_fields(out.fields)} is left out: no job can have it beside {beside}")
    if not values:
        notes.insert(0, f"nothing was confirmed in {asked.environment}; this is the job under all arms")
    confirmed = []
    for value in values:
        later = {number: holds(design, value) for number, design in designs.items() if number > value.round}
        rounds = (tuple(number for number, held in later.items() if held is wanted) for wanted in (True, False))
        finding = findings[value.round, value.claim.id, "confirm"]
        confirmed.append(ConfirmedValue(value.fields, value.over, finding, *rounds))
    apart = tuple(
        " and ".join(f"{format_fields(value.fields)} (round {value.round})" for value in pair)
        + " were never confirmed together"
        for pair in find_untested_pairs(values, designs)
    )
    return Recipe(_build_job_file(job, _merge_fields(values)), tuple(confirmed), apart, tuple(notes))


def _describe_comparison(finding: KnownFinding) -> str:
    compared = f"{setting(finding.variable, finding.treatment)} against {setting(finding.variable, finding.control)}"
    return f"{compared}, {describe_evidence(finding)}"


def describe_evidence(finding: KnownFinding) -> str:
    effect = ""
    if finding.estimate is not None and finding.low is not None and finding.high is not None:
        level = "" if finding.level is None else f" ({100 * finding.level:.4g} %)"
        effect = f" {finding.estimate:+.3g} [{finding.low:.3g}, {finding.high:.3g}]{level}"
    told = f"{finding.verdict}{effect}, lock {finding.lock[:16]}{finding.standing}"
    return f"round {finding.round}, {finding.hypothesis} {told}"


def _merge_fields(values: Sequence[BetterValue]) -> dict[str, JsonValue]:
    return {name: held for value in values for name, held in value.fields.items()}


def _build_job_file(job: Job, confirmed: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    usual, shown = Job.default_fields(job.model, job.lora_rank), {"environment", *confirmed}
    fields = {name: value for name, value in job.model_dump(mode="json").items() if name not in APART}
    return {name: value for name, value in fields.items() if name in shown or value != usual.get(name)}
