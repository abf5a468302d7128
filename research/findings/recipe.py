"""The recipe of a study: the job under all arms with the better value of each comparison that was confirmed.

A value enters where the interval of its comparison leaves zero out, on the fresh seeds of a round in the environment
that was asked about first, by the metric that was asked for. A later round replaces it where it found another value
better than that very one; two rounds that contradict each other, or of which the later did not show it again, leave the
value of the job under all arms. What was never confirmed together is said: a round varies one thing, and what else its
arms had stands in its lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from research.errors import BadJob
from research.findings.known import KnownFinding
from research.findings.reading import findings_of
from research.installation.base_job import base_job_of
from research.noise.bank import metric_key
from studies import StudyState
from studies.records.base import JsonValue
from studies.records.design import REWARD, Design
from studies.records.sentences import setting
from swarm.job import Job

_VERSION: Final = "schema_version"
"""What a job file says beside its fields: whose defaults those have that it leaves out."""
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
        """The values in words."""
        return _text(self.fields)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A job, what of it was confirmed, and what a reader must know of it."""

    job: Mapping[str, JsonValue]
    """As a job file has it: what it leaves out has the default of its schema version."""
    confirmed: tuple[ConfirmedValue, ...]
    apart: tuple[str, ...]
    """Values that were never confirmed together, each pair a sentence."""
    notes: tuple[str, ...]
    """What else was found and is not in the job, or why nothing is."""


def recipe_of(state: StudyState, folder: Path) -> Recipe:
    """Return the recipe of a study whose files lie in `folder`.

    Raises BadJob where its job has fields that this ajet does not know.
    """
    designs = {entry.round: entry.design for entry in state.rounds if entry.design is not None}
    if not designs:
        job = _file(base_job_of(state.settings).model_dump(mode="json"), {})
        return Recipe(job, (), (), ("nothing was confirmed: no design was locked; this is the job under all arms",))
    first = designs[min(designs)]
    choice = _RecipeSoFar({**first.base_job, "environment": first.environment})
    elsewhere = []
    found = findings_of(state, folder)
    for number, design in designs.items():
        own = [entry for entry in found if entry.round == number]
        if (design.environment, metric_key(design.metric)) == (first.environment, metric_key(first.metric)):
            choice.take(design, [entry for entry in own if entry.phase == "confirm"])
            own = [entry for entry in own if entry.phase != "confirm"]
        elsewhere += [_elsewhere(entry) for entry in own]
    return choice.recipe(designs, first.environment, elsewhere)


@dataclass
class _RecipeSoFar:
    """Values as round after round confirms them."""

    base: Mapping[str, JsonValue]
    chosen: dict[str, ConfirmedValue] = field(default_factory=dict)
    past: list[ConfirmedValue] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def take(self, design: Design, findings: Sequence[KnownFinding]) -> None:
        """Take what a round confirmed, the largest difference first: of its values of one field one can be the best."""
        for entry in findings:
            self._take_back(entry)
        taken: set[str] = set()
        better = [value for entry in findings if (value := self._better(design, entry)) is not None]
        for value in sorted(better, key=lambda value: -abs(value.finding.estimate or 0.0)):
            if not taken & value.fields.keys():
                taken |= value.fields.keys()
                self._take(value)

    def recipe(self, designs: Mapping[int, Design], environment: str, elsewhere: Sequence[str]) -> Recipe:
        """Return the job with what was chosen, as far as a job can have all of it."""
        values, notes = self._confirmed(), [*self.notes, *elsewhere]
        while (job := _valid({**self.base, **_fields(values)})) is None:
            if not values:
                raise BadJob("expected a job that this ajet knows under all arms of the study; found other fields")
            notes.append(f"{values[-1].text} is left out: no job can have it beside {_text(_fields(values[:-1]))}")
            values = values[:-1]
        if not values:
            notes.insert(0, f"nothing was confirmed in {environment}; this is the job under all arms")
        told = tuple(_with_later(value, designs) for value in values)
        return Recipe(_file(job, _fields(values)), told, tuple(_apart(told, designs)), tuple(notes))

    def _better(self, design: Design, finding: KnownFinding) -> ConfirmedValue | None:
        """Return the better value of a comparison; None where its interval leaves it open, or it is none of a job."""
        if design.hypothesis(finding.hypothesis).kind != "difference":
            self.notes.append(f"{_told(finding)}: an interaction or a trend, and no value of a job")
            return None
        if not finding.sign or finding.exploratory or finding.low is None or finding.high is None:
            return None
        if finding.low <= 0 <= finding.high or finding.estimate is None:
            return None
        arms = design.arm(design.control_arm), design.arm_with(finding.variable, finding.treatment)
        declared = design.hypothesis(finding.hypothesis).declared
        if REWARD in declared:
            self.notes.append(f"{_told(finding)}: its reward is code, and no field of a job; see the report")
            return None
        control, treatment = ({**design.base_job, **arm.job_overrides} for arm in arms)
        sides = [{name: job.get(name) for name in sorted(declared)} for job in (control, treatment)]
        higher = (finding.estimate > 0) == design.metric.higher_is_better
        return ConfirmedValue(sides[higher], sides[not higher], finding)

    def _take_back(self, finding: KnownFinding) -> None:
        """Take back what the same comparison, asked again on fresh seeds, did not show again."""
        if finding.sign:
            return
        again = {id(value): value for value in self.chosen.values() if value.finding.compared == finding.compared}
        for value in again.values():
            self.notes.append(f"{_told(value.finding)}: asked again, and not shown again ({evidence(finding)})")
            self.chosen = {name: known for name, known in self.chosen.items() if known is not value}

    def _take(self, value: ConfirmedValue) -> None:
        now = {name: self._now(name) for name in value.fields}
        before = [self.chosen[name] for name in value.fields if name in self.chosen]
        if before and any((past.fields, past.over) == (value.over, value.fields) for past in self.past):
            self.notes.append(f"{_told(value.finding)} contradicts an earlier round; neither value is taken for it")
            self.chosen = {name: known for name, known in self.chosen.items() if name not in value.fields}
        elif before and now not in (value.over, value.fields):
            self.notes.append(f"{_told(value.finding)}: left out, as {_text(now)} was not compared with it")
        elif not before or now == value.over:
            self.chosen |= dict.fromkeys(value.fields, value)
        if not before and now not in (value.fields, value.over):
            self.notes.append(f"{_text(now)}, as the job under all arms has it, was not compared with {value.text}")
        self.past.append(value)

    def _now(self, name: str) -> JsonValue:
        return self.chosen[name].fields[name] if name in self.chosen else self.base.get(name)

    def _confirmed(self) -> list[ConfirmedValue]:
        """Return what was chosen in the order of its rounds, each with the fields that are still its own."""
        values = {id(value): value for value in self.chosen.values()}.values()
        kept = []
        for value in values:
            own = {name: value.fields[name] for name in value.fields if self.chosen.get(name) is value}
            kept.append(ConfirmedValue(own, {name: value.over[name] for name in own}, value.finding))
        return sorted(kept, key=lambda value: value.finding.round)


def _with_later(value: ConfirmedValue, designs: Mapping[int, Design]) -> ConfirmedValue:
    """Return a value with the later rounds that did and did not have it in all arms."""
    later = {number: design for number, design in designs.items() if number > value.finding.round}
    alike = {number: _holds(design, value) for number, design in later.items()}
    held = tuple(number for number, holds in alike.items() if holds)
    other = tuple(number for number, holds in alike.items() if holds is False)
    return ConfirmedValue(value.fields, value.over, value.finding, held, other)


def _holds(design: Design, value: ConfirmedValue) -> bool | None:
    """Return whether all arms of a design had a value; None where it compares the field itself."""
    varied = {name for arm in design.arms for name in arm.job_overrides}
    if varied & value.fields.keys():
        return None
    return all(design.base_job.get(name) == held for name, held in value.fields.items())


def _apart(values: Sequence[ConfirmedValue], designs: Mapping[int, Design]) -> Iterator[str]:
    for index, value in enumerate(values):
        for later in values[index + 1 :]:
            number = later.finding.round
            if number == value.finding.round or not _holds(designs[number], value):
                pair = f"{value.text} (round {value.finding.round}) and {later.text} (round {number})"
                yield f"{pair} were never confirmed together"


def _elsewhere(finding: KnownFinding) -> str:
    where = finding.conditions
    return f"{_told(finding)}: in {where.environment} by {where.metric_name}, and no part of the recipe"


def _told(finding: KnownFinding) -> str:
    compared = f"{setting(finding.variable, finding.treatment)} against {setting(finding.variable, finding.control)}"
    return f"{compared}, {evidence(finding)}"


def evidence(finding: KnownFinding) -> str:
    """Return in words what a finding rests on: round, claim, verdict, effect with its interval, lock."""
    effect = ""
    if finding.estimate is not None and finding.low is not None and finding.high is not None:
        level = "" if finding.level is None else f" ({finding.level:.1%})"
        effect = f" {finding.estimate:+.3g} [{finding.low:.3g}, {finding.high:.3g}]{level}"
    return f"round {finding.round}, {finding.hypothesis} {finding.verdict}{effect}, lock {finding.lock[:16]}"


def _text(fields: Mapping[str, JsonValue]) -> str:
    return ", ".join(setting(name, value) for name, value in fields.items())


def _fields(values: Sequence[ConfirmedValue]) -> dict[str, JsonValue]:
    return {name: held for value in values for name, held in value.fields.items()}


def _valid(job: Mapping[str, JsonValue]) -> dict[str, Any] | None:
    """Return a recorded job with all of its fields; None where no job can have these together."""
    try:
        return Job.recorded(job).model_dump(mode="json")
    except ValidationError:
        return None


def _file(job: Mapping[str, JsonValue], said: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a job as a file has it: its schema version, its environment, what was confirmed, what is not usual."""
    usual = Job.usual(Job.recorded(job).model)
    own = {
        name: value
        for name, value in job.items()
        if name not in _NO_PART and (name == "environment" or name in said or value != usual.get(name))
    }
    return {_VERSION: 1 + len(Job.earlier_defaults), **own}
