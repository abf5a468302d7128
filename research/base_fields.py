"""The job that a user gave under all arms: what it fixes, and that nothing else in a study contradicts it.

A field is fixed where the user says it, be it at its default: what the file leaves out is free. A topic or a flag that
names a fixed field has to name its value too: nobody's word is replaced without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from research.errors import DesignRefused
from studies.records.design import MODEL
from studies.records.sentences import setting
from swarm.job import Job

_OWN: Final = {"seed", "tracking"}
"""Fields that a study sets for each run."""


def fixed_fields(base: Job) -> dict[str, Any]:
    """Return the fields of a base job that were said, or are not as in every other job, as JSON values."""
    held, usual = base.model_dump(mode="json", exclude=_OWN), Job.usual(base.model, base.lora_rank)
    return {name: value for name, value in held.items() if name in base.model_fields_set or value != usual[name]}


def fixed_text(base: Job) -> str:
    """Return the fixed fields in words, `steps = 80, max_tokens = 64`; empty for a job that is like any other."""
    return ", ".join(setting(name, value) for name, value in fixed_fields(base).items())


def require_agreement(base: Job | None, named: Mapping[str, Iterable[Any]]) -> None:
    """Raise DesignRefused where fields are named with values among which is not what the base job fixes them at."""
    fixed = {} if base is None else fixed_fields(base)
    for name, values in named.items():
        if name not in fixed or fixed[name] in (given := list(values)):
            continue
        said = " and ".join(setting(name, value) for value in given)
        told = f"expected {setting(name, fixed[name])}, which the job of the study fixes; found {said}"
        place = "--job or --model-path" if name == MODEL else "the job file"
        raise DesignRefused(
            f"{told}; name that value too, or leave the field out of {place}", for_planner=f"{told}; keep to it"
        )
