"""In which fields jobs differ: the one rule by which arms and runs are compared, before the lock and after the runs.

A job is JSON; a nested field is named by its path (`model.seed`), one that a job does not have counts as null, and a
number is the same however it is written (16 and 16.0). When a run is evaluated during training follows from its metric
and changes no step, so that it is no difference. A reward, which is no field of a job, is compared under the name
`reward` where a caller lays it beside the fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any, Final

from studies.log.study_state import RunState, StudyState
from studies.records.base import canonical
from studies.records.design import REWARD, Arm, Design, Hypothesis
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


Pair = tuple[str, str]
"""Two of a claim's arms by their names, that of the control or the lower setting first."""


def pairs_of(design: Design, claim: Hypothesis) -> tuple[Pair, ...]:
    """Return every two arms of a claim: of a difference the one pair, of an interaction six."""
    return tuple(combinations(design.contrast_of(claim), 2))


def claim_of(design: Design, hypothesis: str, names: Pair | None = None) -> tuple[tuple[Arm, Arm], frozenset[str]]:
    """Return two arms of a hypothesis, and the fields in which they may differ, by the part before a dot.

    They are the control and the treatment unless others are named. Two arms of a contrast may differ in those declared
    fields alone in which they are to.
    """
    found = design.hypothesis(hypothesis)
    first, second = names or pairs_of(design, found)[0]
    arms = design.arm(first), design.arm(second)
    declared = found.declared
    if found.kind != "difference":
        declared = frozenset(name for name in declared if arms[0].overrides.get(name) != arms[1].overrides.get(name))
    return arms, frozenset(name.split(".")[0] for name in declared)


def undeclared(
    design: Design,
    hypothesis: str,
    control: Iterable[Fields],
    treatment: Iterable[Fields],
    names: Pair | None = None,
) -> tuple[str, ...]:
    """Return the fields, the seed apart, that differ between jobs of two arms and that the hypothesis does not vary.

    Where a field differs within an arm, it differs from some job of the other as well.
    """
    _, declared = claim_of(design, hypothesis, names)
    sides = list(control), list(treatment)
    found = differing([*sides[0], *sides[1]]) if all(sides) else ()
    return tuple(name for name in sorted(found) if name.split(".")[0] not in declared | _SEED)


def confounded(state: StudyState) -> dict[str, tuple[str, ...]]:
    """Return, for each hypothesis, the fields besides its variable in which the runs of two of its arms differ."""
    if (design := state.design) is None:
        return {}
    found: dict[str, set[str]] = {}
    for claim in design.hypotheses:
        for names in pairs_of(design, claim):
            left, right = ([_defined(run) for run in state.runs_of(name)] for name in names)
            found.setdefault(claim.id, set()).update(undeclared(design, claim.id, left, right, names))
    return {name: tuple(sorted(fields)) for name, fields in found.items() if fields}


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
