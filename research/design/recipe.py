"""The recipe of a study: the job under all arms with every confirmed better value.

What was confirmed is what the study's report says (`studies.verdicts.recipe`), in the environment that was asked
about first, by the metric that was asked for. What was never confirmed together is said: a round varies one thing, and
what else its arms had stands in its lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from research.design.known_findings import KnownFinding, findings_of
from research.errors import BadJob
from research.installation.base_job import base_job_of
from studies import StudyState
from studies.records.base import JsonValue
from studies.records.design import REWARD, Design
from studies.records.procedure import Phase
from studies.records.statements import setting
from studies.verdicts.recipe import BetterValue, SettingRecipe, find_untested_pairs, format_fields, holds, recipes
from swarm.job import Job

_NO_PART: Final = ("seed", "tracking", "evaluate_after", "eval_every", "evaluation_episodes")
"""Fields of a job that are a run's or a metric's own."""


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


def recipe_of(state: StudyState, folder: Path) -> Recipe:
    """Return the recipe of a study whose files lie in `folder`; raise BadJob for unknown fields."""
    designs = {entry.round: entry.design for entry in state.rounds if entry.design is not None}
    if not designs:
        job = _build_job_file(base_job_of(state.settings).model_dump(mode="json"), {})
        return Recipe(job, (), (), ("nothing was confirmed: no design was locked; this is the job under all arms",))
    found = {(entry.round, entry.hypothesis, entry.phase): entry for entry in findings_of(state, folder)}
    asked, *_ = recipes(
        state.rounds, lambda entry, verdict: not found[entry.round, verdict.hypothesis, "confirm"].doubt
    )
    notes = [f"{_describe_comparison(found[left.round, left.claim.id, 'confirm'])}: {left.why}" for left in asked.left]
    coded = [value for value in asked.values if REWARD in value.fields]
    notes += [f"{_describe_comparison(_get_finding(value, found))}: {_CODE}" for value in coded]
    for entry in found.values():
        if entry.round not in asked.rounds or entry.phase != "confirm":
            notes.append(_describe_other_setting(entry))
    return _build_recipe(asked, [value for value in asked.values if value not in coded], notes, found, designs)


_CODE: Final = "its reward is code, and no field of a job; see the report"
_Findings = Mapping[tuple[int, str, Phase], KnownFinding]


def _get_finding(value: BetterValue, found: _Findings) -> KnownFinding:
    return found[value.round, value.claim.id, "confirm"]


def _build_recipe(
    asked: SettingRecipe,
    values: Sequence[BetterValue],
    notes: list[str],
    found: _Findings,
    designs: Mapping[int, Design],
) -> Recipe:
    while (job := _parse_job({**asked.base, **_merge_fields(values)})) is None:
        if not values:
            raise BadJob("expected a job that this ajet knows under all arms of the study; found other fields")
        beside = format_fields(_merge_fields(values[:-1]))
        notes.append(f"{format_fields(values[-1].fields)} is left out: no job can have it beside {beside}")
        values = values[:-1]
    if not values:
        notes.insert(0, f"nothing was confirmed in {asked.environment}; this is the job under all arms")
    pairs = tuple(
        f"{_describe_value(one)} and {_describe_value(other)} were never confirmed together"
        for one, other in find_untested_pairs(values, designs)
    )
    confirmed = tuple(_build_confirmed(value, _get_finding(value, found), designs) for value in values)
    return Recipe(_build_job_file(job, _merge_fields(values)), confirmed, pairs, tuple(notes))


def _describe_value(value: BetterValue) -> str:
    return f"{format_fields(value.fields)} (round {value.round})"


def _build_confirmed(value: BetterValue, finding: KnownFinding, designs: Mapping[int, Design]) -> ConfirmedValue:
    alike = {number: holds(design, value) for number, design in designs.items() if number > value.round}
    held = tuple(number for number, holds in alike.items() if holds)
    other = tuple(number for number, holds in alike.items() if holds is False)
    return ConfirmedValue(value.fields, value.over, finding, held, other)


def _describe_other_setting(finding: KnownFinding) -> str:
    where = finding.conditions
    return f"{_describe_comparison(finding)}: in {where.environment} by {where.metric_name}, and no part of the recipe"


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


def _parse_job(job: Mapping[str, JsonValue]) -> dict[str, Any] | None:
    try:
        return Job.from_record(job).model_dump(mode="json")
    except ValidationError:
        return None


def _build_job_file(job: Mapping[str, JsonValue], said: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a job as a file has it: its environment, what was confirmed, what is not usual."""
    known = Job.from_record(job)
    usual = Job.default_fields(known.model, known.lora_rank)
    return {
        name: value
        for name, value in job.items()
        if name not in _NO_PART and (name == "environment" or name in said or value != usual.get(name))
    }
