"""The recipe of a study: the job under all arms with every confirmed better value.

What was confirmed is what the study's report says (`studies.verdicts.recipe`), in the environment that was asked
about first, by the metric that was asked for. What was never confirmed together is said: a round varies one thing, and
what else its arms had stands in its lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from research.design.known_findings import KnownFinding, findings_of
from research.errors import BadInput
from research.installation.base_job import APART, base_job_of, parse_job
from studies import StudyState
from studies.records.base import JsonValue
from studies.records.design import REWARD
from studies.records.statements import setting
from studies.verdicts.recipe import BetterValue, ExcludedClaim, find_untested_pairs, format_fields, holds, recipes
from swarm.job import Job


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


_CODE: Final = "its reward is code, and no field of a job; see the report"


def recipe_of(state: StudyState, folder: Path) -> Recipe:
    """Return the recipe of a study whose files lie in `folder`; raise BadInput for unknown fields."""
    designs = {entry.round: entry.design for entry in state.rounds if entry.design is not None}
    if not designs:
        plain = _build_job_file(base_job_of(state.settings), {})
        return Recipe(plain, (), (), ("nothing was confirmed: no design was locked; this is the job under all arms",))
    findings = {(entry.round, entry.hypothesis, entry.phase): entry for entry in findings_of(state, folder)}
    asked, *_ = recipes(
        state.rounds, lambda entry, verdict: not findings[entry.round, verdict.hypothesis, "confirm"].doubt
    )

    def describe(claim: BetterValue | ExcludedClaim) -> str:
        return _describe_comparison(findings[claim.round, claim.claim.id, "confirm"])

    notes = [f"{describe(left)}: {left.why}" for left in asked.left]
    notes += [f"{describe(value)}: {_CODE}" for value in asked.values if REWARD in value.fields]
    for entry in findings.values():
        if entry.round not in asked.rounds or entry.phase != "confirm":
            where = f"in {entry.conditions.environment} by {entry.conditions.metric_name}"
            notes.append(f"{_describe_comparison(entry)}: {where}, and no part of the recipe")
    values = [value for value in asked.values if REWARD not in value.fields]
    while (job := parse_job({**asked.base, **_merge_fields(values)})) is None:
        if not values:
            raise BadInput("expected a job that this ajet knows under all arms of the study; found other fields")
        beside = format_fields(_merge_fields(values[:-1]))
        notes.append(f"{format_fields(values[-1].fields)} is left out: no job can have it beside {beside}")
        values = values[:-1]
    if not values:
        notes.insert(0, f"nothing was confirmed in {asked.environment}; this is the job under all arms")
    confirmed = []
    for value in values:
        later = {number: holds(design, value) for number, design in designs.items() if number > value.round}
        held, other = (tuple(number for number, held in later.items() if held is is_held) for is_held in (True, False))
        confirmed.append(
            ConfirmedValue(value.fields, value.over, findings[value.round, value.claim.id, "confirm"], held, other)
        )
    pairs = (
        [f"{format_fields(value.fields)} (round {value.round})" for value in pair]
        for pair in find_untested_pairs(values, designs)
    )
    apart = tuple(f"{one} and {other} were never confirmed together" for one, other in pairs)
    return Recipe(_build_job_file(job, _merge_fields(values)), tuple(confirmed), apart, tuple(notes))


def _describe_comparison(finding: KnownFinding) -> str:
    compared = f"{setting(finding.variable, finding.treatment)} against {setting(finding.variable, finding.control)}"
    return f"{compared}, {describe_evidence(finding)}"


def describe_evidence(finding: KnownFinding) -> str:
    effect = ""
    if finding.estimate is not None and finding.low is not None and finding.high is not None:
        level = "" if finding.level is None else f" ({finding.level:.1%})"
        effect = f" {finding.estimate:+.3g} [{finding.low:.3g}, {finding.high:.3g}]{level}"
    return f"round {finding.round}, {finding.hypothesis} {finding.verdict}{effect}, lock {finding.lock[:16]}"


def _merge_fields(values: Sequence[BetterValue]) -> dict[str, JsonValue]:
    return {name: held for value in values for name, held in value.fields.items()}


def _build_job_file(job: Job, confirmed: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a job as a file has it: its environment, what was confirmed, what is not usual."""
    usual, shown = Job.default_fields(job.model, job.lora_rank), {"environment", *confirmed}
    return {
        name: value
        for name, value in job.model_dump(mode="json").items()
        if name not in APART and (name in shown or value != usual.get(name))
    }
