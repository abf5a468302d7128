"""What is known of a fetched model, in a small file beside its weights: where it came from and what it is."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from swarm.errors import InvalidRequest
from swarm.models import folder_hash, require_model_folder

RECORD = "ajet-model.json"


class ModelRecord(BaseModel):
    """Written when the model is whole, and never changed."""

    model_config = ConfigDict(frozen=True)

    name: str
    requirement: str
    """The package that it was taken from."""
    file: str
    file_sha256: str
    """Of the file in that package."""
    licence: str
    about: str
    weights_sha256: str
    """Of model.safetensors, as it was converted here."""
    folder_hash: str
    """`swarm.models.folder_hash` of the folder."""
    converted_by: str
    """Versions of what converted it."""


def read_record(folder: Path) -> ModelRecord | None:
    """Return the record in a folder, None where there is none that can be read."""
    try:
        return ModelRecord.model_validate_json((folder / RECORD).read_bytes())
    except (OSError, ValidationError):
        return None


def damage(folder: Path) -> str | None:
    """Return why a folder is not the whole model that was fetched into it, None where it is."""
    record, again = read_record(folder), "move it away, then fetch again"
    if record is None:
        return f"{folder} holds no {RECORD} that can be read: {again}"
    try:
        require_model_folder(folder)
    except InvalidRequest as error:
        return f"{error} ({again})"
    if folder_hash(folder, folder.parent) != record.folder_hash:
        return f"what {folder} holds is not what was fetched: {again}"
    return None
