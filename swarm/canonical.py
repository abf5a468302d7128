"""The rule by which jobs are hashed: a later field counts only off its default.

So a job keeps its digest, and its training, when the job gains a field: give the field the default that means what was
done before, and name it in `added_fields`. Studies' records have the same rule (`studies.records.base`).
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, ValidationInfo

_RECORD: Final = {"record": True}


def is_record(info: ValidationInfo) -> bool:
    """Return whether what is validated was written as `value()`: what it leaves out is at its field's own default."""
    return info.context is _RECORD


class Canonical(BaseModel):
    """A frozen value with a canonical form, which leaves out the fields in `added_fields` while at their default."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    added_fields: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def from_record(cls, value: Mapping[str, Any] | str | bytes) -> Self:
        """Return what a record (its values, or JSON) means; ValidationError for one with unknown fields."""
        if isinstance(value, str | bytes):
            return cls.model_validate_json(value, context=_RECORD)
        return cls.model_validate(value, context=_RECORD)

    def value(self) -> dict[str, Any]:
        found = self.model_dump(mode="json")
        for name, field in type(self).model_fields.items():
            own = getattr(self, name)
            if isinstance(own, Canonical):
                found[name] = own.value()
            elif name in self.added_fields and own == field.get_default(call_default_factory=True):
                found.pop(name, None)
        return found
