"""Jobs of different releases: when two mean the same, and what a release may change.

Jobs are compared by value. The canonical form of a job leaves out what came after the first release and says nothing
beyond it, so that a job written by a release that did not know a field is the job of a release that does, digest and
all. Two things change from release to release, and each has one place:

    a new field         its default must mean what was done before the field was there. Nothing else to do: it is in no
                        `first_fields`, so it is part of the canonical form only where it says something else.
    another default     append the old value to `earlier_defaults`, which makes a new schema version. What was recorded
                        keeps its meaning; only a job that is written by hand or by code from then on has the new one.

A record (a store, a server's folder, a request, a study's log) says all that its writer knew, so what it leaves out
means what it meant in schema version 1: `recorded` reads it so. A job file written by hand means today's defaults,
unless it says which ones: `"schema_version": 1`. Removing a field, or changing what a value means, is no change this
knows: it is another job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator

VERSION_KEY = "schema_version"
"""What a job file may say beside the fields: the version whose defaults the fields that it leaves out have."""

_RECORD: Mapping[str, Any] = {"record": True}


def is_record(info: ValidationInfo) -> bool:
    """Return whether what is validated is a record, which says what its writer meant."""
    return info.context is _RECORD


class Versioned(BaseModel):
    """A frozen value of which every release reads what every other one wrote."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    first_fields: ClassVar[frozenset[str]] = frozenset()
    """The fields of the first release, which the canonical form always has."""
    earlier_defaults: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """By schema version, from 1 on: the defaults that the next version changed, as they were."""

    @model_validator(mode="before")
    @classmethod
    def _of_its_version(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, Mapping) or (VERSION_KEY not in value and not is_record(info)):
            return value
        said, newest = value.get(VERSION_KEY, 1), 1 + len(cls.earlier_defaults)
        if not isinstance(said, int) or not 1 <= said <= newest:
            raise ValueError(f"{VERSION_KEY} must be from 1 to {newest}, the newest this ajet knows; found {said!r}")
        fields = {name: content for name, content in value.items() if name != VERSION_KEY}
        return {**cls._defaults_of(said), **fields}

    @classmethod
    def recorded(cls, value: Mapping[str, Any] | str | bytes) -> Self:
        """Return what a record (its values, or JSON) of any release means.

        Raises ValidationError for one that has fields this release lacks, or is no record.
        """
        if isinstance(value, str | bytes):
            return cls.model_validate_json(value, context=_RECORD)
        return cls.model_validate(value, context=_RECORD)

    def value(self) -> dict[str, Any]:
        """Return the canonical form as JSON values: of later fields those that say more than schema version 1 did."""
        found = self.model_dump(mode="json")
        before = self._defaults_of(1)
        for name, field in type(self).model_fields.items():
            own = getattr(self, name)
            if isinstance(own, Versioned):
                found[name] = own.value()
            elif name not in self.first_fields and own == before.get(
                name, field.get_default(call_default_factory=True)
            ):
                del found[name]
        return found

    @classmethod
    def _defaults_of(cls, version: int) -> dict[str, Any]:
        """Return the defaults of a version that later ones changed."""
        found: dict[str, Any] = {}
        for changed in reversed(cls.earlier_defaults[version - 1 :]):
            found.update(changed)
        return found
