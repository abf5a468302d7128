"""From hypotheses to arms: values checked, jobs and models resolved, confounds named.

All hypotheses share one control arm; each treatment replaces exactly one field, or the code of a slot. The confound
linter compares resolved jobs and code. What follows from a declared variable by itself is a confound feared from the
start, no violation. Proposals name models by name, and no planner can have another folder read.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Annotated, Any, Final, Self

from pydantic import TypeAdapter, ValidationError

from research.errors import BadTopic, DesignRefused
from research.files import load_table
from research.installation.base_job import find_fixed_fields, require_agreement
from research.proposals.slots import code_name
from research.text import describe, did_you_mean
from studies.checks.conditions import find_differing_fields, flatten
from studies.records.base import JsonValue, canonical, digest
from studies.records.design import BUILT_IN, CONFIGURATION, KNOB, MODEL, NO_CODE, SLOTS, Arm, Hypothesis
from studies.records.statements import model_name, setting
from swarm.environments.base import Environment, Knob
from swarm.environments.registry import environments
from swarm.errors import InvalidRequest
from swarm.job import Job, PathModel, default_learning_rate, tunables

EXAMPLE: Final = "--vary model=DIR1,DIR2"
_MOST_CHARACTERS: Final = 40
_MOST_MODELS: Final = 4


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """A model that may be an arm's."""

    folder: str
    """The folder as it was written."""
    model: PathModel

    def value(self) -> dict[str, Any]:
        return self.model.model_dump(mode="json")


@dataclass(frozen=True, slots=True)
class ComparedModels:
    """The models of a study by their names, in the order in which they were named."""

    by_name: Mapping[str, ComparedModel]

    @classmethod
    def load(cls, folders: Iterable[str], find: Callable[[str], PathModel]) -> Self:
        """Return the models of folders; raise what `find` raises, and BadTopic for two that cannot be told apart."""
        known: dict[str, ComparedModel] = {}
        for said in dict.fromkeys(folders):
            model = find(said)
            name = arm_text(model.model_dump(mode="json"))
            if (other := known.setdefault(name, ComparedModel(said, model))).folder != said:
                raise BadTopic(
                    f"expected model folders of different names, as arms are called by them; found {other.folder} and "
                    f"{said}, which are both {name}; rename one, or name a link to it"
                )
        if len(known) > _MOST_MODELS:
            raise BadTopic(f"expected at most {_MOST_MODELS} models in a study; found {len(known)}; compare fewer")
        for other, one in combinations(known.values(), 2):
            if one.model.sha256 is not None and one.model.sha256 == other.model.sha256:
                raise BadTopic(
                    f"expected different models to compare; found the same content in {other.folder} and {one.folder}; "
                    "name another folder"
                )
        return cls(known)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        return cls({
            name: ComparedModel(str(held["said"]), PathModel.from_record(held["model"]))
            for name, held in settings.items()
        })  # fmt: skip

    def settings(self) -> dict[str, Any]:
        return {name: {"said": known.folder, "model": known.value()} for name, known in self.by_name.items()}

    def value(self, name: object) -> dict[str, Any]:
        """Return the model of a name as a job holds it; raise DesignRefused for a name that none has."""
        if isinstance(name, str) and name in self.by_name:
            return self.by_name[name].value()
        if not self.by_name:
            none = f"{MODEL}: expected models that the user names; found none;"
            other = "vary another field, or decline"
            raise DesignRefused(f"{none} name their folders, {EXAMPLE}", model_feedback=f"{none} {other}")
        near = did_you_mean(str(name), self.by_name) or ""
        raise DesignRefused(f"{MODEL}: expected one of {', '.join(self.by_name)}; found {name!r}{near}")


NO_MODELS: Final = ComparedModels({})


def arm_text(value: Mapping[str, Any]) -> str:
    """Return a model's name as the name of an arm may have it: lower case, short."""
    return re.sub(r"[^a-z0-9_.+-]+", "-", model_name(value).lower()).strip("-.")[:_MOST_CHARACTERS] or MODEL


Scalar = bool | int | float | str
"""A value of a job field that can be varied; a text is one of a choice of words."""


@dataclass(frozen=True, slots=True)
class ResolvedArms:
    """Arms that are ready to be priced: every job resolved and linted."""

    base: Job
    """The constants and the control values; its seed is the default."""
    arms: tuple[Arm, ...]
    """The control arm first."""
    jobs: tuple[Job, ...]
    """The resolved job of each arm, in the order of `arms`."""


def knobs(environment: str = "") -> dict[str, Knob]:
    """Return the knobs that a job may set, by its fields' names; as `environment` has them, where it does."""
    known = environments()
    order = [*(name for name in known if name != environment), *([environment] if environment in known else [])]
    return {f"{KNOB}{name}": knob for each in order for name, knob in known[each].list_knobs().items()}


def variables() -> tuple[str, ...]:
    """Return the fields of a job that a study may vary, its environment's knobs among them."""
    return (*tunables(), *knobs())


def set_knobs(environment: str, values: Mapping[str, Scalar]) -> Environment:
    """Return an environment with knobs set; raise DesignRefused for one that it has not, or not so."""
    try:
        return environments()[environment].with_knobs(values)
    except InvalidRequest as error:
        raise DesignRefused(str(error)) from error


def field_value(name: str, value: Scalar) -> Scalar:
    """Return `value` as the job holds it (16.0 episodes become 16); raise DesignRefused if the field cannot take it, or
    no environment has a knob that does (`set_knobs` asks a job's own)."""
    if name in knobs():
        taken = (knobs(each)[name].take(value) for each in environments())
        if (held := next((found for found in taken if found is not None), None)) is None:
            raise DesignRefused(f"{name}: expected {knobs()[name].describe()}; found {value!r}")
        return held
    if name not in tunables():
        raise DesignRefused(_explain_no_variable(name))
    usual, choices = Job.model_fields[name].default, tunables()[name].ladder
    if isinstance(usual, str) and value not in choices:
        raise DesignRefused(f"{name}: expected one of {', '.join(choices)}; found {value!r}")
    if isinstance(value, bool) != isinstance(usual, bool) or isinstance(value, str) != isinstance(usual, str):
        expected = "true or false" if isinstance(usual, bool) else "a number"
        raise DesignRefused(f"{name}: expected {expected}; found {value!r}")
    if name == "learning_rate" and value <= 0:  # type: ignore[operator]  # a number, as its default is
        raise DesignRefused(f"{name}: expected greater than 0; found {value!r}, with which nothing is learned")
    return _validate(name, value)  # type: ignore[no-any-return]


_FIELDS: Mapping[str, Any] = load_table(__package__, "fields.toml")
"""What is known of fields of jobs, in words."""


def _explain_no_variable(name: str) -> str:
    why = next((why for names, why in _FIELDS["no_variables"].items() if name.lower() in names.split()), None)
    because = f"; {why}" if why else ""
    near = did_you_mean(name, variables())
    return f"expected a job field that can be varied; found {name!r}{because}{near}; they are {', '.join(variables())}"


def variable_value(name: str, value: JsonValue, models: ComparedModels = NO_MODELS) -> JsonValue:
    """Return a value as an arm holds it: of a job field, a reward's name, or a model by its name among `models`."""
    if name == MODEL:
        return dict(value) if isinstance(value, Mapping) else models.value(value)
    if name == CONFIGURATION:
        return {name: field_value(name, value[name]) for name in sorted(value)}
    return code_name(name, value) if name in SLOTS else field_value(name, value)


def overrides_of(variable: str, value: JsonValue) -> dict[str, JsonValue]:
    return dict(value) if variable == CONFIGURATION else {variable: value}


def constant_value(name: str, value: Scalar) -> Any:
    """Return the value of any job field as all arms may hold it; raise DesignRefused where the field cannot take it."""
    if name in variables():
        return field_value(name, value)
    if (why := _FIELDS["no_constants"].get(name)) is not None:
        raise DesignRefused(f"expected a constant that a design may hold; found {name}; {why}")
    if name not in Job.model_fields:
        raise DesignRefused(_explain_no_variable(name))
    return _validate(name, value)


def _validate(name: str, value: Scalar) -> Any:
    try:
        return _adapter(name).validate_python(value)
    except ValidationError as error:
        raise DesignRefused(f"{name}: {describe(error)}") from error


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    field = Job.model_fields[name]
    kind: Any = Annotated[field.annotation, field]
    return TypeAdapter(kind)


def value_text(value: Scalar) -> str:
    """Return a value as it stands in arm names and sentences: `16`, `0.001`, `false`, `rloo`."""
    return str(value).lower()


def compare(
    environment: str, hypotheses: Sequence[Hypothesis], constants: Mapping[str, Scalar], base: Job | None = None
) -> ResolvedArms:
    """Resolve and lint the arms that test `hypotheses` over `base` (default: `Job()`); raise DesignRefused for anything
    that is not sound. Where code is varied, all arms keep what they trained on (`_KEPT`).
    """
    require_known_environment(environment)
    controls = common_controls(hypotheses)
    fixed = {name: constant_value(name, value) for name, value in constants.items()}
    values: dict[str, list[JsonValue]] = {name: [value] for name, value in fixed.items()}
    compared = [(name, value) for claim in hypotheses for name, sides in claim.varied.items() for value in sides]
    values |= {name: [] for name, _ in compared if name not in SLOTS}
    for name, value in compared:
        if name not in SLOTS:
            values[name].append(variable_value(name, value))
    require_agreement(base, values)
    if MODEL in controls and len(controls) > 1:
        others = " and ".join(sorted(controls.keys() - {MODEL}))
        raise DesignRefused(
            f"expected models compared alone, as they are judged by what they gain; found {others} varied as well; "
            "ask in two studies"
        )
    varied = {name for variable, value in controls.items() for name in overrides_of(variable, value)}
    for name in fixed.keys() & varied:
        raise DesignRefused(f"{name} is varied by a hypothesis, so it cannot be held constant; leave it out")
    if "steps" in varied and any(claim.matched == "episodes" for claim in hypotheses):
        raise DesignRefused("steps follows the size of the batch where episodes are equal, so it cannot be varied, too")
    owning = hypotheses if hypotheses[0].kind == "difference" else hypotheses[:1]  # contrasts are of the same arms
    arms = _make_arms(owning, controls)
    control = arms[0].job_overrides
    kept = {} if controls.keys().isdisjoint(SLOTS) else _KEPT
    require_agreement(base, {name: [value] for name, value in kept.items()})
    under = base or Job.model_validate({name: value for name, value in control.items() if name == MODEL})
    fields = {**kept, "environment": environment, **fixed, **control}
    usual = default_learning_rate(under.model, under.lora_rank)
    # An earlier study's learning rate is its own.
    if "learning_rate" not in find_fixed_fields(under) and under.learning_rate == usual:
        rank = fields.get("lora_rank", under.lora_rank)
        fields = {"learning_rate": default_learning_rate(under.model, int(rank)), **fields}
    resolved = _make_job({**under.model_dump(), **fields})
    owners = [claim for claim in owning for _ in claim.settings[1:]]
    arms = (arms[0], *(_match_episodes(arm, claim, resolved) for arm, claim in zip(arms[1:], owners, strict=True)))
    jobs = tuple(_make_job({**resolved.model_dump(), **arm.job_overrides}) for arm in arms)
    crossed, known = hypotheses[0].kind != "difference", list(zip(arms, jobs, strict=True))
    pairs = combinations(known, 2) if crossed else ((known[0], other) for other in known[1:])
    for (first, left), (arm, right) in pairs:
        declared = [name for name in arm.overrides if not crossed or first.overrides[name] != arm.overrides[name]]
        if violations := lint_arms(left, right, declared, slots=(first.slots, arm.slots)):
            raise DesignRefused(f"arm {arm.name} is confounded: {'; '.join(violations)}")
    return ResolvedArms(resolved, arms, jobs)


def require_known_environment(name: str) -> None:
    if name not in environments():
        near = did_you_mean(name, environments()) or "; choose one of them"
        raise DesignRefused(f"expected an environment among {', '.join(environments())}; found {name!r}{near}")


_KEPT: Mapping[str, Scalar] = {"checkpoints_kept": 1000}
"""What keeps the tokens of all that is trained, for it is played again afterwards (`research.runs.provenance`):
a server lets them go with the checkpoints before which nobody goes on."""


def common_controls(hypotheses: Sequence[Hypothesis]) -> dict[str, JsonValue]:
    controls: dict[str, JsonValue] = {}
    treated: set[tuple[str, str]] = set()
    for claim in hypotheses:
        control, treatment = (variable_value(claim.variable, value) for value in (claim.control, claim.treatment))
        if claim.variable in SLOTS and (control != BUILT_IN or claim.ladder):
            found = "a ladder" if claim.ladder else repr(control)
            raise DesignRefused(f"{claim.variable}: expected the control {BUILT_IN!r} and a treatment; found {found}")
        if control == treatment:
            raise DesignRefused(f"{claim.variable}: control and treatment must differ; found {control!r} in both")
        if controls.setdefault(claim.variable, control) != control:
            raise DesignRefused(
                f"{claim.variable}: hypotheses about one field must share their control value; "
                f"found {controls[claim.variable]!r} and {control!r}"
            )
        if claim.kind == "difference" and (claim.variable, canonical(treatment)) in treated:
            raise DesignRefused(f"{setting(claim.variable, treatment)} is the treatment of two hypotheses; keep one")
        treated.add((claim.variable, canonical(treatment)))
    if CONFIGURATION in controls:
        if others := sorted(controls.keys() - {CONFIGURATION}):
            raise DesignRefused(
                f"expected fields that go together compared alone, as all arms share one control; found {others[0]} "
                "varied by itself as well; ask in two studies"
            )
        for claim in hypotheses:
            for field, values in claim.varied.items():
                if len({canonical(value) for value in values}) < 2:
                    raise DesignRefused(
                        f"{field}: expected different values of each of the fields that go together; found "
                        f"{value_text(values[0])} in both arms; hold it constant instead"
                    )
    return controls


def _make_arms(hypotheses: Sequence[Hypothesis], controls: Mapping[str, JsonValue]) -> tuple[Arm, ...]:
    single = len(controls) == 1
    name = _arm_name(*next(iter(controls.items()))) if single else "control"
    treatments = (
        (entry.variable, variable_value(entry.variable, value)) for entry in hypotheses for value in entry.settings[1:]
    )
    shared: dict[str, JsonValue] = {}
    for variable, value in controls.items():
        shared |= overrides_of(variable, value)
    return (
        Arm(name=name, overrides=shared),
        *(Arm(name=_arm_name(field, value), overrides=overrides_of(field, value)) for field, value in treatments),
    )


_BATCH = "episodes_per_step"
_LONGEST_NAME = 64


def _match_episodes(arm: Arm, hypothesis: Hypothesis, control: Job) -> Arm:
    if hypothesis.matched == "steps":
        return arm
    if hypothesis.variable != _BATCH:
        raise DesignRefused(
            f"{hypothesis.variable}: expected equal episodes for {_BATCH} alone, as every other field leaves them "
            "equal or is their number; leave `matched` out"
        )
    episodes, batch = control.steps * control.episodes_per_step, int(arm.overrides[_BATCH])
    if episodes % batch:
        raise DesignRefused(
            f"expected batches that give every arm {episodes:,} episodes in whole steps; found {batch}; name batches "
            "of which the larger is a multiple of the smaller, or other steps"
        )
    return arm.model_copy(update={"overrides": {**arm.overrides, "steps": episodes // batch}})


def _arm_name(field: str, value: JsonValue) -> str:
    if field == CONFIGURATION:
        name = "+".join(_arm_name(*entry) for entry in value.items())
        return name if len(name) <= _LONGEST_NAME else f"together-{digest(value)[:8]}"
    return f"{field}={arm_text(value) if field == MODEL else value_text(value)}"


def _make_job(values: Mapping[str, Any]) -> Job:
    try:
        job = Job.model_validate(values)
    except ValidationError as error:
        raise DesignRefused(f"an arm is no valid job: {describe(error)}") from error
    set_knobs(job.environment, job.environment_args)
    return job


_DERIVED: Mapping[str, tuple[Callable[[Job], int], frozenset[str]]] = {
    "tasks per step": (lambda job: job.tasks_per_step, frozenset({"episodes_per_step", "group_size"})),
    "training episodes in all": (
        lambda job: job.steps * job.episodes_per_step,
        frozenset({"steps", "episodes_per_step"}),
    ),
    "optimiser steps in all": (
        lambda job: job.steps * job.epochs * job.minibatches,
        frozenset({"steps", "epochs", "minibatches"}),
    ),
}
"""What follows from a job's fields, and from which."""


def lint_arms(
    control: Job, arm: Job, declared: str | Collection[str],
    slots: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
) -> list[str]:  # fmt: skip
    """Return how two arms, jobs and names of code by slot, differ beyond what is `declared`, a line each. Values that
    follow from several fields may differ only when they follow from a declared one. That nothing declared differs is a
    violation too. `tracking` trains nothing and is not compared."""
    names = frozenset({declared} if isinstance(declared, str) else declared)
    left, right = (
        flatten({**job.model_dump(mode="json", exclude={"tracking"}), **NO_CODE, **code})
        for job, code in zip((control, arm), slots, strict=True)
    )
    found = find_differing_fields((left, right))
    covered = {name for name in found if name in names or name.split(".")[0] in names}
    alone, listed = len(names) == 1, ", ".join(sorted(names))
    none = f"the declared variable {listed} does not differ" if alone else f"none of the declared {listed} differs"
    differing: list[tuple[str, Any, Any]] = [
        (name, left.get(name), right.get(name)) for name in found if name not in covered
    ]
    differing += [
        (name, value(control), value(arm))
        for name, (value, sources) in _DERIVED.items()
        if not names & sources and value(control) != value(arm)
    ]
    but = f"the declared variable is {listed}" if alone else f"declared are {listed}"
    return ([] if covered else [none]) + [f"{name} differs ({a!r} and {b!r}), but {but}" for name, a, b in differing]


_CONSEQUENCES: Mapping[str, Sequence[str]] = _FIELDS["consequences"]
_MORE_TRAINING = _CONSEQUENCES["steps"][0]


def add_potential_confounders(claim: Hypothesis) -> Hypothesis:
    """Return the hypothesis with the confounds that its variables bring by themselves, before those that are feared."""
    varied = {} if claim.variable in SLOTS else claim.varied
    known = [f"{name}: {clause}" for name in sorted(varied) for clause in _CONSEQUENCES.get(name, ())]
    known += [f"{name}: it is another game that is trained on" for name in sorted(varied) if name.startswith(KNOB)]
    steps, batches = (varied.get(name, ()) for name in ("steps", _BATCH))
    together = len({int(n) * int(size) for n, size in zip(steps, batches, strict=False)}) == 1
    if together or claim.matched == "episodes":  # each arm has as many episodes
        known = [line for line in known if _MORE_TRAINING not in line]
    if claim.matched == "episodes" and not together:
        known.insert(0, f"{_BATCH}: fewer training steps follow from a larger batch of as many episodes in all")
    # what begins with a variable's name and a colon is told in code's voice
    feared = (line if line in known else line.replace(": ", " - ") for line in claim.confounds)
    return claim.model_copy(update={"confounds": tuple(dict.fromkeys((*known, *feared)))[:8]})


def is_job(base: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether a job's fields with other values are a job at all."""
    try:
        Job.model_validate({**base, **values})
    except ValidationError:
        return False
    return True
