"""The models of this installation by name: fetched ones, and those that could be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from research.models.record import RECORD, ModelRecord, damage, read_record
from research.models.registry import FETCHABLE

State = Literal["fetched", "damaged", "not fetched"]


@dataclass(frozen=True, slots=True)
class Shelved:
    """One model: `problem` says what is wrong with a damaged one."""

    name: str
    state: State
    folder: Path
    bytes: int
    """On this disk; of one that is not fetched, what it would take."""
    download_bytes: int | None
    parameters: int | None
    licence: str
    source: str
    about: str
    problem: str | None = None


def shelf(models: Path) -> list[Shelved]:
    """Return fetchable models in the order of the registry, then others that were fetched once."""
    known = [_fetchable(name, models) for name in FETCHABLE]
    others = sorted(path.parent for path in models.glob(f"*/{RECORD}") if path.parent.name not in FETCHABLE)
    return known + [_fetched(folder, record) for folder in others if (record := read_record(folder)) is not None]


def _fetchable(name: str, models: Path) -> Shelved:
    model, folder = FETCHABLE[name], models / name
    if (record := read_record(folder)) is not None:
        return _fetched(folder, record)
    return Shelved(
        name=name,
        state="damaged" if folder.exists() else "not fetched",
        folder=folder,
        bytes=model.model_bytes,
        download_bytes=model.download_bytes,
        parameters=model.parameters,
        licence=model.licence,
        source=model.requirement,
        about=model.about,
        problem=damage(folder) if folder.exists() else None,
    )


def _fetched(folder: Path, record: ModelRecord) -> Shelved:
    problem, model = damage(folder), FETCHABLE.get(record.name)
    return Shelved(
        name=record.name,
        state="damaged" if problem else "fetched",
        folder=folder,
        bytes=sum(path.stat().st_size for path in folder.iterdir() if path.is_file()),
        download_bytes=None if model is None else model.download_bytes,
        parameters=None if model is None else model.parameters,
        licence=record.licence,
        source=record.requirement,
        about=record.about,
        problem=problem,
    )
