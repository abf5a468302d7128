"""The base of every record: frozen, checked, with one byte form and its sha256.

A record may gain fields after logs were written with it. An `EvolvingRecord` leaves such fields out of its canonical
form while they hold their default, so that the hashes in those logs still hold.
"""

import hashlib
import json
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

JsonValue = Any
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class Record(BaseModel):
    """Base of all records: frozen, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def hash(self) -> str:
        return digest(self.model_dump(mode="json"))


class EvolvingRecord(Record):
    """A record whose canonical form leaves out the fields in `added_fields` while they hold their default."""

    added_fields: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _omit_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        for name in self.added_fields:
            if getattr(self, name) == type(self).__pydantic_fields__[name].default:
                fields.pop(name, None)
        return fields


def canonical(value: JsonValue) -> str:
    """Return the canonical JSON of a JSON value: sorted keys, no spaces, finite numbers only, UTF-8 text."""
    return _ENCODER.encode(value)


def digest(value: JsonValue) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()
