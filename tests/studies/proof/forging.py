"""What somebody could do to a study that is stored: change a value, a byte or an event, and hash the log anew."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from studies.log.event import GENESIS, Event, EventType
from studies.records.base import canonical
from tests.studies.synthetic import event_hash

Row = dict[str, Any]
Path_ = tuple[str | int, ...]


def leaves(value: Any, at: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Yield each number, text, truth or null of a JSON value, with the way to it."""
    if isinstance(value, dict):
        for name in sorted(value):
            yield from leaves(value[name], (*at, name))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from leaves(item, (*at, place))
    else:
        yield at, value


def changed(leaf: Any) -> Any:
    """Return a value of the same kind that differs, as somebody would write one by hand."""
    if isinstance(leaf, bool):
        return not leaf
    if isinstance(leaf, int):
        return leaf + 1
    if isinstance(leaf, float):
        return leaf + 0.25
    if leaf is None:
        return 0.5
    text = str(leaf)
    digits = [place for place, sign in enumerate(text) if sign.isdigit()]
    if not digits:
        return text + "x"
    place = digits[-1]
    return text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]


def with_leaf(value: Any, at: Path_, leaf: Any) -> Any:
    result = copy.deepcopy(value)
    inner = result
    for step in at[:-1]:
        inner = inner[step]
    inner[at[-1]] = leaf
    return result


def payload_of(row: Row) -> Any:
    return json.loads(row["payload"])


def with_payload(row: Row, payload: Any) -> Row:
    return {**row, "payload": canonical(payload)}


def rehashed(rows: Sequence[Row]) -> list[Row]:
    previous, result = GENESIS, []
    for row in rows:
        event = Event(**{**row, "type": EventType(row["type"]), "payload": payload_of(row), "prev_hash": previous})
        previous = event_hash(event)
        result.append({**row, "prev_hash": event.prev_hash, "hash": previous})
    return result


def rehashed_with_report(rows: Sequence[Row], folder: Path) -> list[Row]:
    """Hash the chain anew, write its new head into the report's pages, and their hashes into the log."""
    *shown, report = rows
    again = rehashed(shown)
    payload = payload_of(report)
    for kind in ("markdown", "html"):
        path = folder / payload[kind]["path"]
        text = path.read_text(encoding="utf-8").replace(shown[-1]["hash"], again[-1]["hash"])
        path.write_text(text, encoding="utf-8", newline="\n")
        payload[kind]["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    return rehashed([*again, with_payload(report, payload)])


def with_other_byte(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
