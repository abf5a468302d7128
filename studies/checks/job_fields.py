"""In which fields jobs differ: the one rule by which arms and runs are compared, before the lock and after the runs.

A job is JSON; a nested field is named by its path (`model.seed`), one that a job does not have counts as null, and a
number is the same however it is written (16 and 16.0). When a run is evaluated during training follows from its metric
and changes no step, so that it is no difference. A reward, which is no field of a job, is compared under the name
`reward` where a caller lays it beside the fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from studies.log.study_state import RunState, StudyState
from studies.records.base import canonical
from studies.records.design import REWARD, Arm, Design
from studies.records.run_specs import EVALUATED

Fields = Mapping[str, Any]
_SEED: Final = {"seed"}


def flat(job: Fields) -> dict[str, Any]:
    """Return a job's values by the paths of their fields."""
    return dict(_entries(job, ""))


def differing(jobs: Iterable[Fields]) -> tuple[str, ...]:
    """Return the paths of the fields, sorted, that are not the same in all jobs."""
    rows = [flat(job) for job in jobs]
    names = sorted({name for row in rows for name in row} - set(EVALUATED))
    return tuple(name for name in names if len({canonical(_number(row.get(name))) for row in rows}) > 1)


def claim_of(design: Design, hypothesis: str) -> tuple[tuple[Arm, Arm], frozenset[str]]:
    """Return a hypothesis' control and treatment arm, and the fields that it declares, by the part before a dot."""
    found = design.hypothesis(hypothesis)
    declared = frozenset(name.split(".")[0] for name in found.declared)
    return (design.arm(design.control_arm), design.arm_with(found.variable, found.treatment)), declared


def undeclared(
    design: Design, hypothesis: str, control: Iterable[Fields], treatment: Iterable[Fields]
) -> tuple[str, ...]:
    """Return the fields, the seed apart, that differ between jobs of two arms and that the hypothesis does not vary.

    Where a field differs within an arm, it differs from some job of the other as well.
    """
    _, declared = claim_of(design, hypothesis)
    sides = list(control), list(treatment)
    found = differing([*sides[0], *sides[1]]) if all(sides) else ()
    return tuple(name for name in sorted(found) if name.split(".")[0] not in declared | _SEED)


def confounded(state: StudyState) -> dict[str, tuple[str, ...]]:
    """Return, for each hypothesis, the fields besides its variable in which its two arms' runs differ."""
    if (design := state.design) is None:
        return {}
    found = {}
    for claim in design.hypotheses:
        sides = ([_defined(run) for run in state.runs_of(arm.name)] for arm in claim_of(design, claim.id)[0])
        found[claim.id] = undeclared(design, claim.id, *sides)
    return {name: fields for name, fields in found.items() if fields}


def off_design(state: StudyState) -> dict[str, tuple[str, ...]]:
    """Return, for each arm, the fields in which its runs are not what the locked design gives them."""
    if (design := state.design) is None:
        return {}
    found: dict[str, set[str]] = {}
    for run in state.runs_in("confirm"):
        arm = design.arm(run.spec.arm)
        given = {"environment": design.environment, **design.base_job, **arm.job_overrides, "seed": run.spec.seed}
        wrong = differing(({**given, REWARD: design.code.get(arm.reward)}, _defined(run)))
        found.setdefault(arm.name, set()).update(wrong)
    return {arm: tuple(sorted(wrong)) for arm, wrong in found.items() if wrong}


def _defined(run: RunState) -> dict[str, Any]:
    """Return all that a run is defined by: its job's fields, and the source of its reward (None for the built-in)."""
    return {**run.spec.job, REWARD: run.spec.code}


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _entries(value: Fields, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, entry in value.items():
        if isinstance(entry, Mapping):
            yield from _entries(entry, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", entry
